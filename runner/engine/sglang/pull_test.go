package sglang

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// events are as servers write them.
var events = []string{
	`{"text":"a\n","output_ids":[1],"meta_info":{"id":"x","finish_reason":null,"prompt_tokens":3,"completion_tokens":1,"cached_tokens":0,"weight_version":"default"}}`,
	`{"text":"ab","output_ids":[1,2],"meta_info":{"finish_reason":{"type":"length","length":2},"completion_tokens":2,"e2e_latency":0.5,"spec_verify_ct":1,"num_retractions":0}}`,
	`{"error":{"message":"m"}}`,
}

// FuzzPull holds that a reply read without reflection is the one that
// encoding/json reads from the same bytes.
func FuzzPull(f *testing.F) {
	for _, e := range events {
		f.Add([]byte(e))
	}
	same := func(m *reply) {
		m.Error, m.Meta.Finish = bytes.TrimSpace(m.Error), bytes.TrimSpace(m.Meta.Finish)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want reply
		if !got.pull(data) {
			return
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("took %q, of which encoding/json says: %v", data, err)
		}
		same(&got)
		same(&want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, encoding/json has %+v", data, got, want)
		}
	})
}

func TestCommonEventsNeedNoReflection(t *testing.T) {
	for _, e := range events {
		var m reply
		if !m.pull([]byte(e)) {
			t.Errorf("left to encoding/json: %s", e)
		}
	}
}
