package openai

import (
	"testing"

	"twopoint/results/event"
)

func TestWithdraw(t *testing.T) {
	body := map[string]any{"stream_options": 1, "max_tokens": 1, "ignore_eos": 1, "temperature": 0}
	for _, c := range []struct {
		status       int
		detail, want string
	}{
		{422, "stream_options: extra fields not permitted", "stream_options"},
		{400, "Unknown parameter: 'ignore_eos'", "ignore_eos"},
		{400, "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "max_tokens"},
		{400, "max_tokens is too large: the model's context length is 4096", ""},
		{400, "cache_salt is unknown", ""}, // was not sent
		{400, "my_stream_options_x", ""},
		{500, "stream_options", ""},
		{404, "Not Found", completions},
		{405, "Method Not Allowed", completions},
		{404, "The model `x` does not exist.", ""},
	} {
		s := event.Sample{Error: "http-error", HTTPStatus: c.status, Detail: c.detail}
		if got := withdraw(s, completions, body); got != c.want {
			t.Errorf("%d %q: %q, want %q", c.status, c.detail, got, c.want)
		}
	}
	if got := withdraw(event.Sample{Error: "http-error", HTTPStatus: 404}, chat, body); got != "" {
		t.Errorf("chat missing too: %q", got)
	}
	if got := withdraw(event.Sample{}, completions, body); got != "" {
		t.Errorf("nothing wrong: %q", got)
	}
}

// FuzzParse holds that no event, whatever its bytes, ends the program or lets a
// negative count through.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"choices":[{"text":"a","token_ids":[1],"finish_reason":null}]}`, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":-2,"prompt_tokens_details":null}}`,
		`{"choices":[{"delta":{"role":"assistant","content":null,"reasoning":"x"}}]}`, `{"object":"error","message":"m"}`, `{"error":{}}`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := new(parser)
		var s event.Sample
		p.parse(data, &s)
		for _, n := range []*int64{s.PromptTokens, s.CompletionTokens, s.CachedTokens} {
			if n != nil && *n < 0 {
				t.Errorf("count %d from %q", *n, data)
			}
		}
	})
}
