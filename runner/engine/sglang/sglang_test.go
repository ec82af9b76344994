package sglang

import (
	"encoding/json"
	"fmt"
	"testing"

	"twopoint/results/event"
)

// FuzzParse holds that no event, whatever its bytes, ends the program, yields
// more new tokens than were counted, or lets a negative count through.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"text":"a","output_ids":[1],"meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":1,"cached_tokens":0}}`,
		`{"text":"ab","output_ids":[1,2],"meta_info":{"finish_reason":{"type":"length"},"completion_tokens":2,"e2e_latency":0.5,"spec_verify_ct":1}}`,
		`{"error":{"message":"m"}}`, `{"meta_info":{"finish_reason":{"type":"abort","status_code":500}}}`, `{"meta_info":{"finish_reason":"length","completion_tokens":-1}}`, `[]`, `null`,
	} {
		f.Add([]byte(s), []byte(s))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var p parser
		var s event.Sample
		for _, data := range [][]byte{a, b, a} {
			part, err := p.parse(data, &s)
			if err == nil && part.Tokens < -1 {
				t.Errorf("%d tokens in %q", part.Tokens, data)
			}
		}
		for _, n := range []*int64{s.PromptTokens, s.CompletionTokens, s.CachedTokens, s.Steps, s.Retractions} {
			if n != nil && *n < 0 {
				t.Errorf("count %d from %q, %q", *n, a, b)
			}
		}
	})
}

func TestFinishReason(t *testing.T) {
	for raw, want := range map[string][2]string{
		``: {}, `null`: {}, `{"type":"length","length":17}`: {"length", ""}, `"stop"`: {"stop", ""}, `{"type":"stop","matched":2}`: {"stop", ""},
		`{"type":"abort","message":"no room","status_code":400}`: {"abort", "aborted by the server (400): no room"},
		`{"type":"abort"}`: {"abort", "aborted by the server"}, `7`: {},
	} {
		if finish, failed := finishReason([]byte(raw)); finish != want[0] || failed != want[1] {
			t.Errorf("%s: %q, %q", raw, finish, failed)
		}
	}
}

// BenchmarkParse is the client's cost of an event of a stream: constant where
// it holds what is new, growing with the tokens so far where it holds them all.
func BenchmarkParse(b *testing.B) {
	for _, tokens := range []int{1, 512, 4096} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			ids, text := make([]int32, tokens), ""
			for i := range ids {
				ids[i] = int32(i * 37 % 150000)
				text += " word"
			}
			m := map[string]any{"text": text, "output_ids": ids, "meta_info": map[string]any{
				"id": "0123456789abcdef", "finish_reason": nil, "prompt_tokens": 32768, "completion_tokens": tokens, "cached_tokens": 0}}
			data, err := json.Marshal(m)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			var p parser
			var s event.Sample
			for b.Loop() {
				if _, err := p.parse(data, &s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
