package prompt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"twopoint/schema"
)

// words gives every word an id of its own, as a tokenizer would.
func words() func(context.Context, string) ([]int32, error) {
	ids := map[string]int32{}
	return func(_ context.Context, text string) ([]int32, error) {
		var out []int32
		for _, w := range strings.Fields(text) {
			if _, ok := ids[w]; !ok {
				ids[w] = int32(len(ids) + 1)
			}
			out = append(out, ids[w])
		}
		return out, nil
	}
}

func builder(t *testing.T, spec schema.Prompt, longest int) *Builder {
	t.Helper()
	b, err := New(t.Context(), spec, "", longest, words())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func build(t *testing.T, b *Builder, length, slot int) []int32 {
	t.Helper()
	p, err := b.Build(length, slot)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.IDs) != length {
		t.Fatalf("%d tokens, %d asked for", len(p.IDs), length)
	}
	return p.IDs
}

func TestExactLengthAndFreshNonce(t *testing.T) {
	for _, source := range []string{"text", "random"} {
		b := builder(t, schema.Prompt{Source: source, Nonce: true}, 4096)
		for _, n := range []int{schema.NonceTokens + 1, 24, 1000, 4096, 200_000} { // the last wraps around the corpus
			x, y := build(t, b, n, 0), build(t, b, n, 0)
			if slices.Equal(x[:schema.NonceTokens], y[:schema.NonceTokens]) {
				t.Errorf("%s, %d tokens: two prompts begin alike", source, n)
			}
			if !slices.Equal(x[schema.NonceTokens:], y[schema.NonceTokens:]) {
				t.Errorf("%s, %d tokens: two bodies of one length and slot differ", source, n)
			}
		}
		if x, y := build(t, b, 500, 0), build(t, b, 500, 1); slices.Equal(x[schema.NonceTokens:], y[schema.NonceTokens:]) {
			t.Errorf("%s: two slots share a body", source)
		}
	}
}

func TestBodyDependsOnSeedAlone(t *testing.T) {
	spec := schema.Prompt{Source: "text", Seed: 7}
	x, y := build(t, builder(t, spec, 2000), 1500, 0), build(t, builder(t, spec, 2000), 1500, 0)
	if !slices.Equal(x, y) {
		t.Error("two builders of one seed differ")
	}
	spec.Seed = 8
	if slices.Equal(x, build(t, builder(t, spec, 2000), 1500, 0)) {
		t.Error("two seeds give one body")
	}
}

func TestNoRoomForANonce(t *testing.T) {
	b := builder(t, schema.Prompt{Source: "text", Nonce: true}, 100)
	if _, err := b.Build(schema.NonceTokens, 0); err == nil {
		t.Error("a prompt that is all nonce was built")
	}
	if _, err := builder(t, schema.Prompt{Source: "text"}, 100).Build(0, 0); err == nil {
		t.Error("an empty prompt was built")
	}
}

func TestTokenizerFails(t *testing.T) {
	broken := errors.New("no such route")
	_, err := New(t.Context(), schema.Prompt{Source: "text"}, "", 100, func(context.Context, string) ([]int32, error) { return nil, broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want the tokenizer's", err)
	}
	if _, err := New(t.Context(), schema.Prompt{Source: "file"}, "one one one", 100, words()); err == nil {
		t.Error("a corpus of one token was accepted")
	}
}

// Without a tokenizer the length is calibrated: here 3 tokens for two words and
// a template of 11.
func TestTextMode(t *testing.T) {
	count := func(_ context.Context, text string) (int64, error) {
		return int64(11 + len(strings.Fields(text))*3/2), nil
	}
	b, err := NewText(t.Context(), schema.Prompt{Source: "text", Nonce: true}, "", 4096, count)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{64, 1000, 8000} {
		x, err := b.Build(n, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := count(t.Context(), x.Text); got < int64(n)-3 || got > int64(n)+3 || x.IDs != nil {
			t.Errorf("%d tokens asked for, the server counts %d", n, got)
		}
		if y, _ := b.Build(n, 0); x.Text == y.Text {
			t.Errorf("%d tokens: two prompts are alike", n)
		}
	}
	if _, err := NewText(t.Context(), schema.Prompt{Source: "text"}, "", 4096, func(context.Context, string) (int64, error) { return 1, nil }); err == nil {
		t.Error("counts that do not grow with the prompt were accepted")
	}
}

// With one token a byte, two prompts of one length differ in their nonce and not
// in their number of tokens.
func TestTextNoncesAreAlike(t *testing.T) {
	count := func(_ context.Context, text string) (int64, error) { return int64(1 + len(text)), nil }
	b, err := NewText(t.Context(), schema.Prompt{Source: "text", Nonce: true}, "", 4096, count)
	if err != nil {
		t.Fatal(err)
	}
	x, err := b.Build(500, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if y, _ := b.Build(500, 0); len(y.Text) != len(x.Text) || y.Text == x.Text {
			t.Errorf("prompts of %d and %d bytes", len(x.Text), len(y.Text))
		}
	}
}
