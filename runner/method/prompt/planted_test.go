package prompt

import (
	"context"
	"slices"
	"strings"
	"testing"

	"twopoint/schema"
)

func TestPlanted(t *testing.T) {
	tokenize := words()
	b, err := New(t.Context(), schema.Prompt{Source: "text", Nonce: true}, "", 4096, tokenize)
	if err != nil {
		t.Fatal(err)
	}
	tokens := func(text string) Tokens {
		ids, err := tokenize(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return Tokens{Text: text, IDs: ids}
	}
	fact, question := tokens("the secret code of Norwich is 482913."), tokens("what is the secret code of Norwich?")
	for _, c := range []struct {
		length, at int
		depth      float64
	}{{15, 0, 0}, {512, 0, 0}, {512, 498, 1}, {513, 250, 0.5}, {20_000, 1999, 0.1}} {
		p, err := b.Planted(c.length, -1, c.depth, fact, question)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.IDs) != c.length || !slices.Equal(p.IDs[c.at:c.at+len(fact.IDs)], fact.IDs) || !slices.Equal(p.IDs[c.length-len(question.IDs):], question.IDs) {
			t.Errorf("%+v: %d tokens, the fact is not at %d or the question not at the end", c, len(p.IDs), c.at)
		}
		again, _ := b.Planted(c.length, -1, c.depth, fact, question)
		if !slices.Equal(p.IDs, again.IDs) {
			t.Errorf("%+v: two prompts differ", c)
		}
	}
	if _, err := b.Planted(14, -1, 0.5, fact, question); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("14 tokens: %v", err)
	}
	x, _ := b.Fixed(512, -1)
	y, _ := b.Fixed(512, -2)
	if len(x.IDs) != 512 || len(y.IDs) != 512 || slices.Equal(x.IDs, y.IDs) {
		t.Error("two slots have the same body")
	}
}

func TestPlantedText(t *testing.T) {
	count := func(_ context.Context, text string) (int64, error) { return int64(7 + len(strings.Fields(text))), nil }
	b, err := NewText(t.Context(), schema.Prompt{Source: "text"}, "", 4096, count)
	if err != nil {
		t.Fatal(err)
	}
	fact, question := Tokens{Text: "The secret code of Norwich is 482913."}, Tokens{Text: "What is the secret code of Norwich?"}
	for _, depth := range []float64{0, 0.25, 1} {
		p, err := b.Planted(300, -1, depth, fact, question)
		if err != nil {
			t.Fatal(err)
		}
		before, _, ok := strings.Cut(p.Text, fact.Text)
		if n, _ := count(t.Context(), p.Text); n != 300 || !ok || !strings.HasSuffix(p.Text, question.Text) {
			t.Errorf("depth %g: %d tokens, fact %v", depth, n, ok)
		}
		if at, want := len(strings.Fields(before)), int(depth*279+0.5); at != want {
			t.Errorf("depth %g: %d words before the fact, want %d", depth, at, want)
		}
	}
	if _, err := b.Planted(15, -1, 0.5, fact, question); err == nil {
		t.Error("15 tokens hold both")
	}
}
