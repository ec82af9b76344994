// Package gate asks a server for what shows that its answers are right: a fact
// planted in a long prompt, and greedy answers that others can be compared with.
// Requests are untimed and have prompts of their own. It is handed the server as
// an interface and records samples and one event with the answers; what they say
// is judged in package stat. It knows no process and no HTTP.
package gate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode"

	"twopoint/results/event"
	"twopoint/runner/method/prompt"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// Server is all that a gate may know of a deployment.
type Server interface {
	// Ask sends one request for greedy tokens and returns the sample with its output
	// kept; reuse lets the prefix cache answer. A failure stands in its Error.
	Ask(ctx context.Context, p prompt.Prompt, tokens int, reuse bool) event.Sample
	// Flush empties the prefix cache as the spec asks; nil where it asks for nothing.
	Flush(ctx context.Context) *event.Flush
	// WaitIdle returns when no request is running, or after a bounded time.
	WaitIdle(ctx context.Context)
	// Prompts makes prompts in the server's tokens.
	Prompts() *prompt.Builder
	// Tokenize is asked only where prompts are token ids.
	Tokenize(ctx context.Context, text string) ([]int32, error)
}

// Recorder takes events; nil means that all of them are on disk.
type Recorder interface{ Record(...event.Event) error }

// Checks are the output checks of one variant and context.
type Checks struct {
	DeploymentID string
	Point        plan.Point
	Attempt      int
	Gate         schema.Gate
	Seed         int64 // of the facts
	Baseline     bool  // whether this is the variant that others are compared with: it is asked twice
	ContextLimit int   // tokens of prompt and answer together; 0: not known
}

// Run asks everything, leaves the server idle, and records each sample as it
// comes and the answers at the end. A failed request ends the asking: failed is
// its sample, and what was not asked is recorded as not known. err is the
// recorder's or the context's; nothing but samples is recorded then.
func Run(ctx context.Context, s Server, c Checks, rec Recorder) (failed *event.Sample, err error) {
	r := run{ctx: ctx, s: s, c: c, rec: rec, result: event.Gate{DeploymentID: c.DeploymentID, Attempt: c.Attempt}}
	s.WaitIdle(ctx)
	r.flush = s.Flush(ctx)
	if n := c.Gate.Needle; n != nil {
		for i, depth := range n.Depth {
			needle, err := r.needle(i, depth, n.Tokens)
			if err != nil {
				return nil, err
			}
			r.result.Needles = append(r.result.Needles, needle)
		}
	}
	if a := c.Gate.Agreement; a != nil {
		rounds := 1
		if c.Baseline {
			rounds = 2
		}
		for round := range rounds {
			for i := range a.Prompts {
				output, err := r.output(i, round > 0, a.Tokens)
				if err != nil {
					return nil, err
				}
				r.result.Outputs = append(r.result.Outputs, output)
			}
		}
	}
	s.WaitIdle(ctx)
	return r.failed, rec.Record(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: c.Point.ID, State: event.PointGate, Gate: &r.result}})
}

// run is a gate under way.
type run struct {
	ctx    context.Context
	s      Server
	c      Checks
	rec    Recorder
	flush  *event.Flush // to go with the first sample
	failed *event.Sample
	result event.Gate
}

// ask sends one request and records it. why is the reason for no answer.
func (r *run) ask(leg string, repeat int, p prompt.Prompt, tokens int, reuse bool) (sample event.Sample, why string, err error) {
	if limit := r.c.ContextLimit; limit > 0 {
		if tokens = min(tokens, limit-r.c.Point.Context); tokens < 1 {
			return sample, fmt.Sprintf("the context limit of %d leaves no room for an answer", limit), nil
		}
	}
	if r.failed != nil {
		return sample, fmt.Sprintf("not asked after %s failed", r.failed.Leg), nil
	}
	sample = r.s.Ask(r.ctx, p, tokens, reuse)
	if err := r.ctx.Err(); err != nil { // a request cut by our own end says nothing about the server
		return sample, "", err
	}
	sample.DeploymentID, sample.PointID, sample.Role, sample.ContextRequested = r.c.DeploymentID, r.c.Point.ID, event.RoleGate, r.c.Point.Context
	sample.Repeat, sample.Attempt, sample.Leg, sample.Flush = repeat, r.c.Attempt, leg, r.flush
	r.flush = nil
	if sample.Error != "" {
		r.failed, why = &sample, clip(sample.Error+": "+sample.Detail)
	}
	return sample, why, r.rec.Record(event.Event{Type: event.TypeSample, Sample: &sample})
}

// towns are what secret codes are of.
var towns = strings.Fields(`Aberdeen Bergen Cordoba Dresden Esbjerg Ferrara Granada Haarlem Innsbruck Jaen Kalmar Leiden Malmo Norwich
	Odense Padua Quimper Ravenna Salerno Tampere Utrecht Verona Wexford Ypres Zwolle`)

// Slots of prompts, apart from each other and from those of timed requests.
const (
	needleSlot = -1_000
	agreeSlot  = -2_000
)

// needle plants a fact at a depth and asks for it. The fact is of seed, context
// and place alone: every variant is asked the same.
func (r *run) needle(i int, depth float64, tokens int) (event.Needle, error) {
	rng := rand.New(rand.NewPCG(uint64(r.c.Seed), uint64(r.c.Point.Context)<<8+uint64(i)))
	town, code := towns[rng.IntN(len(towns))], fmt.Sprint(100_000+rng.IntN(900_000))
	n := event.Needle{Depth: depth, Fact: fmt.Sprintf("The secret code of %s is %s.", town, code)}
	// The end is the beginning of the answer: a model that was not taught to answer questions goes on with it.
	question := fmt.Sprintf("What is the secret code of %s? The secret code of %s is", town, town)
	var parts [2]prompt.Tokens
	for k, text := range []string{"\n" + n.Fact + "\n", "\n" + question} {
		var err error
		if parts[k], err = r.tokens(text); err != nil {
			n.Detail = clip(err.Error())
			return n, r.ctx.Err()
		}
	}
	p, err := r.s.Prompts().Planted(r.c.Point.Context, needleSlot-i, depth, parts[0], parts[1])
	if err != nil {
		n.Detail = clip(err.Error())
		return n, nil
	}
	sample, why, err := r.ask(fmt.Sprintf("needle@%g", depth), 1, p, tokens, false)
	if err != nil || why != "" {
		n.Detail = why
		return n, err
	}
	n.Answer = clip(sample.OutputText)
	found, known := plain(sample.OutputText), sample.OutputText != ""
	has := known && strings.Contains(found, plain(code))
	if !known && len(sample.OutputIDs) > 0 {
		for _, text := range []string{code, " " + code} {
			ids, err := r.s.Tokenize(r.ctx, text)
			if err != nil {
				break
			}
			known, has = true, has || contains(sample.OutputIDs, ids)
		}
	}
	if !known {
		n.Detail = "the server shows no output"
		return n, r.ctx.Err()
	}
	n.Found = &has
	return n, nil
}

// tokens are a text's, where prompts are token ids.
func (r *run) tokens(text string) (prompt.Tokens, error) {
	t := prompt.Tokens{Text: strings.TrimSpace(text)}
	if r.s.Prompts().IsText() {
		return t, nil
	}
	var err error
	if t.IDs, err = r.s.Tokenize(r.ctx, text); err != nil {
		return t, fmt.Errorf("tokenise the gate's question: %w", err)
	}
	return t, nil
}

// plain is what of a text tells codes apart: models write 482,913 too.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

func contains(ids, part []int32) bool {
	for i := 0; len(part) > 0 && i+len(part) <= len(ids); i++ {
		if slices.Equal(ids[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// output is a greedy answer to a prompt that all variants get.
func (r *run) output(i int, again bool, tokens int) (event.Output, error) {
	o := event.Output{Prompt: i + 1, Again: again, Asked: tokens}
	p, err := r.s.Prompts().Fixed(r.c.Point.Context, agreeSlot-i)
	if err != nil {
		o.Detail = clip(err.Error())
		return o, nil
	}
	o.SHA256 = digest(p)
	repeat := 1
	if again {
		repeat = 2
	}
	sample, why, err := r.ask(fmt.Sprintf("agree%d", i+1), repeat, p, tokens, again)
	if err != nil || why != "" {
		o.Detail = why
		return o, err
	}
	o.Asked, o.Tokens = sample.TokensRequested, sample.CompletionTokens
	if n := len(sample.OutputIDs); sample.CompletionTokens == nil || int64(n) == *sample.CompletionTokens {
		o.IDs = sample.OutputIDs[:min(n, o.Asked)]
	}
	o.Text = bound(sample.OutputText, maxText)
	return o, nil
}

func digest(p prompt.Prompt) string {
	h := sha256.New()
	for _, id := range p.IDs {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], uint32(id))
		h.Write(b[:])
	}
	h.Write([]byte(p.Text))
	return hex.EncodeToString(h.Sum(nil))
}

const (
	maxText = 16 << 10 // bytes of an output that are kept
	maxClip = 300      // bytes of an answer or a reason
)

// clip is the beginning of a text on one line.
func clip(text string) string {
	return strings.Join(strings.Fields(bound(text, maxClip)), " ")
}

// bound is valid UTF-8 of at most n bytes.
func bound(text string, n int) string {
	if len(text) > n {
		text = text[:n]
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	return strings.ToValidUTF8(text[:min(len(text), n)], "")
}
