package token

import (
	"slices"
	"strings"
	"testing"
)

func TestEncodeSpellsWordsWithTheirSpace(t *testing.T) {
	for text, want := range map[string][]string{
		"":                  nil,
		"the cat":           {"the", " ", "ca", "t"},
		" the other people": {" the", " other", " people"},
		"a  b\n":            {"a", " ", " ", "b", "\n"},
		"x1 and2":           {"x", "1", " and", "2"},
	} {
		var got []string
		for _, id := range Encode(text) {
			got = append(got, Spelling(id))
		}
		if !slices.Equal(got, want) {
			t.Errorf("Encode(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestEveryIdButEndHasItsOwnSpelling(t *testing.T) {
	seen := map[string]int{}
	for id := range End {
		s := Spelling(int32(id))
		if other, dup := seen[s]; dup || s == "" {
			t.Errorf("id %d spells %q, and so does %d", id, s, other)
		}
		seen[s] = id
	}
}

func TestConcatenationAtWordsKeepsIds(t *testing.T) {
	text := "It was the best of times, it was the worst of times; it was the age of wisdom."
	for i := range text {
		if text[i] != ' ' {
			continue
		}
		joined := append(Encode(text[:i]), Encode(text[i:])...)
		if !slices.Equal(joined, Encode(text)) {
			t.Errorf("cut at %d: %v", i, joined)
		}
	}
}

func FuzzDecodeInvertsEncode(f *testing.F) {
	f.Add("The quick brown fox")
	f.Add("\xff\x00 é 日本 ")
	f.Add(strings.Repeat(" the", 9))
	f.Fuzz(func(t *testing.T, text string) {
		if got := Decode(Encode(text)); got != text {
			t.Errorf("Decode(Encode(%q)) = %q", text, got)
		}
	})
}
