package prompt_test

import (
	"context"
	"errors"
	"testing"

	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
	"twopoint/runner/method/prompt"
	"twopoint/schema"
	"twopoint/test/standin"
)

// Servers without a tokenizer that take 1,024 tokens are calibrated, whether they
// state that (Ollama does) or not, and whatever a word is in tokens.
func TestShortContextLimit(t *testing.T) {
	const limit = 1024
	for name, c := range map[string]struct {
		engine  string
		word    int
		longest int
	}{
		"limit stated":                     {"ollama", 3, 900},
		"limit stated, long words":         {"ollama", 8, 900},
		"limit not stated":                 {"openai", 3, 900},
		"limit not stated, a plan beyond":  {"openai", 3, 8192},
		"limit not stated, shorter plan":   {"openai", 1, 64},
		"limit stated, a plan of one page": {"ollama", 3, 48},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := standin.Open(t, standin.Script{Face: c.engine, Limit: limit, Word: c.word, Clock: standin.Clock{PrefillTokS: 1e9, StepS: 1e-5}})
			e, _ := engines.Lookup(c.engine)
			client, err := engine.NewClient(url, "", engine.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			v := schema.Variant{ServedName: "standin", ModelPath: "standin"}
			if err := e.Ready(t.Context(), client, v); err != nil {
				t.Fatal(err)
			}
			info, err := e.Info(t.Context(), client, v)
			if err != nil {
				t.Fatal(err)
			}
			refused := 0
			count := func(ctx context.Context, text string) (int64, error) {
				s := e.Generate(ctx, client, engine.Request{Model: info.Model, Text: text, MaxTokens: 1, Stream: true})
				if s.Error != "" {
					refused++
					return 0, errors.New(s.Detail)
				}
				return *s.PromptTokens, nil
			}
			most := c.longest
			if info.ContextLimit > 0 {
				most = min(most, info.ContextLimit/2)
			}
			b, err := prompt.NewText(t.Context(), schema.Prompt{Source: "text", Nonce: true}, "", most, count)
			if err != nil {
				t.Fatal(err)
			}
			if refused > 0 && (info.ContextLimit > 0 || c.longest < limit) {
				t.Errorf("%d requests were refused on the way", refused)
			}
			for _, n := range []int{120, 256, 1000} {
				p, err := b.Build(n, 0)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := count(t.Context(), p.Text); err != nil || got < int64(n-c.word) || got > int64(n+c.word) {
					t.Errorf("%d tokens asked for, the server counts %d, %v", n, got, err)
				}
			}
		})
	}
}
