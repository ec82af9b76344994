// Package prompt makes prompts of an exact length whose content is fixed by the
// spec, except for a nonce that no cache can have seen. It is handed the
// server's tokenizer and returns token ids, or text where the server takes no
// ids; it sends no timed request.
package prompt

import (
	"context"
	crand "crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"twopoint/schema"
)

// opticks is the text of Isaac Newton's Opticks, fourth edition of 1730, in the
// public domain; a line is a paragraph.
//
//go:embed opticks.txt
var opticks string

// pieceBytes bounds one call of a tokenizer. Pieces are cut at line ends and do
// not depend on how many tokens are needed, so that longer contexts extend
// shorter ones.
const pieceBytes = 16 << 10

// Prompt is what a request carries: token ids, or text where IDs is nil.
type Prompt struct {
	IDs  []int32
	Text string
}

// Builder makes the prompts of one deployment. It is safe for concurrent use.
type Builder struct {
	spec schema.Prompt
	body []int32 // the corpus in the server's tokens
	safe []int32 // ids that occur in the corpus: ordinary tokens, sorted

	words      []string // text mode
	nonces     []string // words that a nonce is made of
	perToken   float64  // words per token
	baseTokens float64  // tokens of an empty prompt: template and BOS
}

// New tokenises the corpus as far as maxContext needs. file is the content of
// spec.File where the source is "file".
func New(ctx context.Context, spec schema.Prompt, file string, maxContext int, tokenize func(context.Context, string) ([]int32, error)) (*Builder, error) {
	b := &Builder{spec: spec}
	for _, piece := range pieces(corpus(spec, file)) {
		ids, err := tokenize(ctx, piece)
		if err != nil {
			return nil, fmt.Errorf("tokenise the %s prompt: %w", spec.Source, err)
		}
		if b.body = append(b.body, ids...); len(b.body) >= maxContext {
			break
		}
	}
	b.safe = slices.Compact(slices.Sorted(slices.Values(b.body)))
	if len(b.safe) < 2 {
		return nil, fmt.Errorf("tokenise the %s prompt: the server returned %d distinct tokens; a prompt needs at least 2", spec.Source, len(b.safe))
	}
	return b, nil
}

// Words of the two texts that calibrate prompts, where a server takes as many.
const (
	fewWords  = 100
	manyWords = 600
)

// NewText makes prompts for a server without a tokenizer: words, whose number
// per token is calibrated by two untimed requests, the longer of them of about
// most tokens at the most. count returns the prompt tokens that the server
// reports for a text. Where it fails on the longer text, as it does on a server
// that does not state how little it takes, shorter ones are tried.
func NewText(ctx context.Context, spec schema.Prompt, file string, most int, count func(context.Context, string) (int64, error)) (*Builder, error) {
	b := &Builder{spec: spec, words: strings.Fields(corpus(spec, file))}
	if len(b.words) < 2 {
		return nil, errors.New("the prompt file holds fewer than 2 words")
	}
	b.nonces = alike(b.words)
	few := 1
	for bytes := len(b.text(0, 2)); few < fewWords && bytes <= most/2; few++ { // a token is a byte or more
		bytes += 1 + len(b.words[(few+1)%len(b.words)])
	}
	n1, err := count(ctx, b.text(0, few))
	if err != nil {
		return nil, fmt.Errorf("calibrate prompt length: %w", err)
	}
	many := max(few*3/2, few+1)
	if n1 > 0 { // a template's tokens are in it too, which errs on the short side
		many = max(many, int(min(float64(most)*float64(few)/float64(n1), manyWords)))
	}
	n2, err := count(ctx, b.text(0, many))
	for ; err != nil && many > 2*few && ctx.Err() == nil; n2, err = count(ctx, b.text(0, many)) {
		many = (few + many) / 2
	}
	if err != nil {
		return nil, fmt.Errorf("calibrate prompt length: %w", err)
	}
	if n2 <= n1 {
		return nil, fmt.Errorf("calibrate prompt length: %d words were %d tokens and %d words were %d; the server's counts do not grow with the prompt", few, n1, many, n2)
	}
	b.perToken = float64(many-few) / float64(n2-n1)
	b.baseTokens = float64(n1) - float64(few)/b.perToken
	return b, nil
}

// IsText tells whether prompts are text, which a server may wrap in a template;
// token ids are taken literally.
func (b *Builder) IsText() bool { return b.words != nil }

// Build makes a prompt of exactly length tokens (about as many in text mode):
// a fresh nonce first, unless the spec has none, then a body that depends on
// the spec's seed, length and slot alone. A length that cannot hold the nonce
// is an error.
func (b *Builder) Build(length, slot int) (Prompt, error) {
	if length < 1 || b.spec.Nonce && length <= schema.NonceTokens {
		return Prompt{}, fmt.Errorf("a prompt of %d tokens has no room for a nonce of %d and a body", length, schema.NonceTokens)
	}
	rng := b.rng(length, slot)
	if b.words != nil {
		n := max(int((float64(length)-b.baseTokens)*b.perToken+0.5), 1)
		text := ""
		if b.spec.Nonce {
			for range schema.NonceTokens {
				text += b.nonces[fresh(len(b.nonces))] + " "
			}
			n = max(n-schema.NonceTokens, 1)
		}
		return Prompt{Text: text + b.text(rng.IntN(len(b.words)), n)}, nil
	}
	ids := make([]int32, 0, length)
	if b.spec.Nonce {
		for range schema.NonceTokens {
			ids = append(ids, b.safe[fresh(len(b.safe))])
		}
	}
	return Prompt{IDs: append(ids, b.filler(rng, length-len(ids))...)}, nil
}

func (b *Builder) rng(length, slot int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d/%d", b.spec.Seed, length, slot)
	return rand.New(rand.NewPCG(h.Sum64(), uint64(b.spec.Seed)))
}

func (b *Builder) text(at, n int) string {
	var out strings.Builder
	for i := range n {
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(b.words[(at+i)%len(b.words)])
	}
	return out.String()
}

// fresh is a random index below n that no earlier run can have used by design.
func fresh(n int) int {
	var b [8]byte
	crand.Read(b[:]) // never fails (crypto/rand)
	return int(binary.LittleEndian.Uint64(b[:]) % uint64(n))
}

// alike are the distinct words of five small letters: nonces made of them are of
// nearly the same number of tokens, whatever the vocabulary. A text that holds
// few of them has all its words taken.
func alike(words []string) []string {
	var out []string
	for _, w := range words {
		if len(w) == 5 && strings.Trim(w, "abcdefghijklmnopqrstuvwxyz") == "" {
			out = append(out, w)
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) < 128 {
		return words
	}
	return out
}

func corpus(spec schema.Prompt, file string) string {
	if spec.Source == "file" {
		return file
	}
	return opticks
}

// pieces cuts text at line ends into parts of about pieceBytes.
func pieces(text string) []string {
	var out []string
	for len(text) > pieceBytes {
		cut := strings.LastIndexByte(text[:pieceBytes], '\n') + 1
		if cut == 0 {
			cut = pieceBytes
			for cut > 1 && text[cut]&0xc0 == 0x80 { // not inside a UTF-8 sequence
				cut--
			}
		}
		out = append(out, text[:cut])
		text = text[cut:]
	}
	if text != "" {
		out = append(out, text)
	}
	return out
}
