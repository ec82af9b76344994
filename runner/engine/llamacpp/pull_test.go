package llamacpp

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// events are as servers write them.
var events = []string{
	`{"content":" a","tokens":[5],"stop":false,"id_slot":0,"tokens_predicted":1,"tokens_evaluated":9}`,
	`{"content":"","tokens":[],"stop":true,"stop_type":"limit","truncated":false,"tokens_predicted":null,"tokens_evaluated":9}`,
	`{"error":{"message":"m"}}`,
}

// FuzzPull holds that a reply read without reflection is the one that
// encoding/json reads from the same bytes.
func FuzzPull(f *testing.F) {
	for _, e := range events {
		f.Add([]byte(e))
	}
	same := func(m *reply) {
		m.Error = bytes.TrimSpace(m.Error)
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
