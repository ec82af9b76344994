package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// events are as servers write them.
var events = []string{
	`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a","token_ids":[1],"logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`,
	`{"choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}},"metrics":{"time_to_first_token_ms":1.5}}`,
	`{"choices":[{"delta":{"role":"assistant","content":null,"reasoning":"x"}},{"message":{"reasoning_content":"y","content":"z"}}]}`,
	`{"error":{"message":"m"}}`,
}

// FuzzPull holds that a reply read without reflection is the one that
// encoding/json reads from the same bytes.
func FuzzPull(f *testing.F) {
	for _, e := range events {
		f.Add([]byte(e))
	}
	same := func(m *reply) {
		m.Error, m.Metrics, m.Object = bytes.TrimSpace(m.Error), bytes.TrimSpace(m.Metrics), bytes.TrimSpace(m.Object)
		if len(m.Choices) == 0 {
			m.Choices = nil
		}
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
