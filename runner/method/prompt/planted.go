package prompt

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Tokens are the ids of a text in the server's vocabulary; in text mode they are
// not looked at, and need not be there.
type Tokens struct {
	Text string
	IDs  []int32
}

// Fixed makes a prompt of exactly length tokens (about as many in text mode)
// without a nonce. It depends on the spec's seed, on length and on slot alone:
// whoever asks with these gets the same. Slots of negative number are never those
// of Build.
func (b *Builder) Fixed(length, slot int) (Prompt, error) {
	return b.Planted(length, slot, 0, Tokens{}, Tokens{})
}

// Planted makes a prompt as Fixed does, into whose body fact is set at a depth
// from 0, its beginning, to 1, its end, and which ends with question. A length
// that cannot hold both is an error.
func (b *Builder) Planted(length, slot int, depth float64, fact, question Tokens) (Prompt, error) {
	rng := b.rng(length, slot)
	if b.words != nil {
		n := int((float64(length)-b.baseTokens)*b.perToken+0.5) - len(strings.Fields(fact.Text)) - len(strings.Fields(question.Text))
		if n < 1 {
			return Prompt{}, noRoom(length, fact, question)
		}
		at, k := rng.IntN(len(b.words)), int(depth*float64(n)+0.5)
		var parts []string
		for _, part := range []string{b.text(at, k), fact.Text, b.text(at+k, n-k), question.Text} {
			if part != "" {
				parts = append(parts, part)
			}
		}
		return Prompt{Text: strings.Join(parts, " ")}, nil
	}
	n := length - len(fact.IDs) - len(question.IDs)
	if n < 1 {
		return Prompt{}, noRoom(length, fact, question)
	}
	body := b.filler(rng, n)
	k := int(depth*float64(n) + 0.5)
	ids := make([]int32, 0, length)
	for _, part := range [][]int32{body[:k], fact.IDs, body[k:], question.IDs} {
		ids = append(ids, part...)
	}
	return Prompt{IDs: ids}, nil
}

func noRoom(length int, fact, question Tokens) error {
	return fmt.Errorf("a prompt of %d tokens has no room for %q and %q", length, fact.Text, question.Text)
}

// filler is n tokens of a body.
func (b *Builder) filler(rng *rand.Rand, n int) []int32 {
	ids := make([]int32, 0, n)
	if b.spec.Source == "random" {
		for len(ids) < n {
			ids = append(ids, b.safe[rng.IntN(len(b.safe))])
		}
		return ids
	}
	for at := rng.IntN(len(b.body)); len(ids) < n; at = 0 {
		ids = append(ids, b.body[at:min(len(b.body), at+n-len(ids))]...)
	}
	return ids
}
