package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"twopoint/results/event"
	"twopoint/runner/method/prompt"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// scholar is a server that finds what stands in its prompts: every word is a
// token.
type scholar struct {
	t       *testing.T
	prompts *prompt.Builder
	ids     map[string]int32
	words   []string
	log     []string // what was asked of it, in order
	answer  func(n int, prompt string, s *event.Sample)
}

func (s *scholar) Tokenize(_ context.Context, text string) ([]int32, error) {
	var out []int32
	for _, w := range strings.Fields(text) {
		if _, ok := s.ids[w]; !ok {
			s.ids[w] = int32(len(s.words))
			s.words = append(s.words, w)
		}
		out = append(out, s.ids[w])
	}
	return out, nil
}

func newScholar(t *testing.T) *scholar {
	s := &scholar{t: t, ids: map[string]int32{}}
	var err error
	if s.prompts, err = prompt.New(t.Context(), schema.Prompt{Source: "text", Nonce: true}, "", 4096, s.Tokenize); err != nil {
		t.Fatal(err)
	}
	s.answer = s.honest
	return s
}

func (s *scholar) Prompts() *prompt.Builder { return s.prompts }
func (s *scholar) WaitIdle(context.Context) { s.log = append(s.log, "idle") }
func (s *scholar) Flush(context.Context) *event.Flush {
	s.log = append(s.log, "flush")
	return &event.Flush{Method: "scholar"}
}

func (s *scholar) Ask(_ context.Context, p prompt.Prompt, tokens int, reuse bool) event.Sample {
	var text []string
	for _, id := range p.IDs {
		text = append(text, s.words[id])
	}
	asked := 0
	for _, l := range s.log {
		if strings.HasPrefix(l, "ask") {
			asked++
		}
	}
	s.log = append(s.log, fmt.Sprintf("ask %d for %d reuse %v", len(p.IDs), tokens, reuse))
	n := int64(tokens)
	sample := event.Sample{TokensRequested: tokens, CompletionTokens: &n, TotalS: 1}
	s.answer(asked, strings.Join(text, " "), &sample)
	return sample
}

// honest answers with the planted value, or with the prompt's first words.
func (s *scholar) honest(_ int, text string, sample *event.Sample) {
	words := strings.Fields(text)
	out := slices.Clone(words[:min(len(words), sample.TokensRequested)])
	if strings.HasSuffix(text, " is") {
		_, after, _ := strings.Cut(text, "The secret code of "+words[len(words)-2]+" is ")
		value, _, _ := strings.Cut(after, ". ")
		out = []string{"It", "is", value[:3] + "," + value[3:]}
	}
	sample.OutputText = strings.Join(out, " ")
	sample.OutputIDs, _ = s.Tokenize(s.t.Context(), sample.OutputText)
	n := int64(len(out))
	sample.CompletionTokens = &n
}

// journal keeps what is recorded, as it would be on disk.
type journal struct{ events []event.Event }

func (j *journal) Record(events ...event.Event) error {
	j.events = append(j.events, events...)
	return nil
}

func (j *journal) result(t *testing.T) event.Gate {
	t.Helper()
	last := j.events[len(j.events)-1].Point
	if last == nil || last.State != "gate" || last.PointID != "p" || last.Gate == nil {
		t.Fatalf("the last event is %+v", j.events[len(j.events)-1])
	}
	return *last.Gate
}

func checks(baseline bool) Checks {
	return Checks{
		DeploymentID: "o1-d1", Point: plan.Point{ID: "p", Context: 600}, Attempt: 2, Baseline: baseline,
		Gate: schema.Gate{Needle: &schema.Needle{Depth: []float64{0, 0.5, 1}, Tokens: 32}, Agreement: &schema.Agreement{Prompts: 2, Tokens: 16}},
	}
}

func TestRun(t *testing.T) {
	s, j := newScholar(t), &journal{}
	failed, err := Run(t.Context(), s, checks(true), j)
	if err != nil || failed != nil {
		t.Fatal(failed, err)
	}
	want := []string{"idle", "flush", "ask 600 for 32 reuse false", "ask 600 for 32 reuse false", "ask 600 for 32 reuse false",
		"ask 600 for 16 reuse false", "ask 600 for 16 reuse false", "ask 600 for 16 reuse true", "ask 600 for 16 reuse true", "idle"}
	if !slices.Equal(s.log, want) {
		t.Errorf("asked %q", s.log)
	}
	g := j.result(t)
	for _, n := range g.Needles {
		if n.Found == nil || !*n.Found || !strings.HasPrefix(n.Answer, "It is ") || n.Detail != "" {
			t.Errorf("needle %+v", n)
		}
	}
	if len(g.Needles) != 3 || g.Needles[0].Fact == g.Needles[1].Fact || g.DeploymentID != "o1-d1" || g.Attempt != 2 {
		t.Errorf("%+v", g)
	}
	if len(g.Outputs) != 4 || !g.Outputs[2].Again || g.Outputs[1].Again || !slices.Equal(g.Outputs[0].IDs, g.Outputs[2].IDs) || slices.Equal(g.Outputs[0].IDs, g.Outputs[1].IDs) ||
		len(g.Outputs[0].IDs) != 16 || g.Outputs[0].SHA256 != g.Outputs[2].SHA256 || g.Outputs[0].Asked != 16 {
		t.Errorf("outputs %+v", g.Outputs)
	}
	keys := map[string]bool{}
	for _, e := range j.events[:len(j.events)-1] {
		if e.Sample.Role != event.RoleGate || e.Sample.PointID != "p" || e.Sample.Attempt != 2 || e.Sample.ContextRequested != 600 {
			t.Errorf("sample %+v", e.Sample)
		}
		keys[fmt.Sprint(e.Sample.Leg, e.Sample.Repeat)] = true
	}
	if len(keys) != 7 || !keys["needle@0.51"] || !keys["agree22"] || j.events[0].Sample.Flush == nil {
		t.Errorf("samples %v", keys)
	}

	// Another variant is asked the same.
	s2, j2 := newScholar(t), &journal{}
	if _, err := Run(t.Context(), s2, checks(false), j2); err != nil {
		t.Fatal(err)
	}
	g2 := j2.result(t)
	if len(g2.Outputs) != 2 || g2.Outputs[1].SHA256 != g.Outputs[1].SHA256 || g2.Needles[1].Fact != g.Needles[1].Fact {
		t.Errorf("another variant: %+v", g2)
	}
}

// What a server can do to its answers.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(s *scholar, text string, sample *event.Sample)
		found  any // true, false or part of the reason
	}{
		{"another value", func(_ *scholar, _ string, sample *event.Sample) { sample.OutputText = "It is 000000." }, false},
		{"part of it", func(_ *scholar, text string, sample *event.Sample) {
			sample.OutputText = plainCode(text)[:5]
		}, false},
		{"nothing", func(_ *scholar, _ string, sample *event.Sample) {}, "no output"},
		{"ids alone", func(s *scholar, text string, sample *event.Sample) {
			sample.OutputIDs, _ = s.Tokenize(t.Context(), "It is "+plainCode(text)+" indeed")
		}, true},
		{"ids without it", func(s *scholar, _ string, sample *event.Sample) {
			sample.OutputIDs, _ = s.Tokenize(t.Context(), "It is not known")
		}, false},
		{"a failure", func(_ *scholar, _ string, sample *event.Sample) { sample.Error, sample.Detail = "http-error", "no" }, "http-error: no"},
		{"hostile bytes", func(_ *scholar, _ string, sample *event.Sample) {
			sample.OutputText = strings.Repeat("\x00\xff\u202e\n", 1<<14)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, j := newScholar(t), &journal{}
			s.answer = func(_ int, text string, sample *event.Sample) { c.answer(s, text, sample) }
			if _, err := Run(t.Context(), s, checks(false), j); err != nil {
				t.Fatal(err)
			}
			n := j.result(t).Needles[1]
			switch want := c.found.(type) {
			case bool:
				if n.Found == nil || *n.Found != want {
					t.Errorf("%+v", n)
				}
			case string:
				if n.Found != nil || !strings.Contains(n.Detail, want) && !strings.Contains(n.Detail, "not asked after") {
					t.Errorf("%+v", n)
				}
			}
			b, err := json.Marshal(j.events)
			if err != nil || len(b) > 128<<10 || !utf8.Valid(b) {
				t.Errorf("%d bytes of events: %v", len(b), err)
			}
		})
	}
}

// plainCode is the value of the one fact in a prompt; another where there is none.
func plainCode(text string) string {
	_, after, found := strings.Cut(text, "The secret code of ")
	if !found {
		return "000000"
	}
	return strings.TrimSuffix(strings.Fields(after)[2], ".")
}

// A failed request ends the asking and nothing else.
func TestFailureEndsTheAsking(t *testing.T) {
	s, j := newScholar(t), &journal{}
	s.answer = func(n int, text string, sample *event.Sample) {
		if s.honest(n, text, sample); n == 3 {
			sample.Error, sample.Detail = "timeout", "limit no_token passed"
		}
	}
	failed, err := Run(t.Context(), s, checks(true), j)
	if err != nil || failed == nil || failed.Leg != "agree1" || failed.Error != "timeout" {
		t.Fatal(failed, err)
	}
	g := j.result(t)
	if len(j.events) != 5 || *g.Needles[2].Found != true || len(g.Outputs) != 4 {
		t.Errorf("%d events, %+v", len(j.events), g)
	}
	for i, o := range g.Outputs {
		if want := map[bool]string{true: "timeout: limit no_token passed", false: "not asked after agree1 failed"}[i == 0]; o.Detail != want || o.IDs != nil {
			t.Errorf("output %d: %+v", i, o)
		}
	}
}

func TestNoRoom(t *testing.T) {
	s, j := newScholar(t), &journal{}
	c := checks(false)
	c.ContextLimit = 600
	if failed, err := Run(t.Context(), s, c, j); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if g := j.result(t); len(j.events) != 1 || !strings.Contains(g.Needles[0].Detail, "no room") || !strings.Contains(g.Outputs[0].Detail, "no room") {
		t.Errorf("%+v", g)
	}
	c.ContextLimit, c.Point.Context = 0, 12
	if failed, err := Run(t.Context(), s, c, j); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if g := j.result(t); !strings.Contains(g.Needles[0].Detail, "no room") || g.Outputs[0].Detail != "" {
		t.Errorf("%+v", g)
	}
	c.ContextLimit, c.Point.Context = 604, 600
	s.log = nil
	if _, err := Run(t.Context(), s, c, j); err != nil || !slices.Contains(s.log, "ask 600 for 4 reuse false") || j.result(t).Outputs[0].Asked != 4 {
		t.Errorf("%v: %q", err, s.log)
	}
}

// Our own end says nothing about the server: nothing but samples is recorded.
func TestCancelled(t *testing.T) {
	s, j := newScholar(t), &journal{}
	ctx, cancel := context.WithCancel(t.Context())
	s.answer = func(n int, text string, sample *event.Sample) {
		if s.honest(n, text, sample); n == 2 {
			cancel()
		}
	}
	if _, err := Run(ctx, s, checks(true), j); !errors.Is(err, context.Canceled) || len(j.events) != 2 {
		t.Errorf("%v, %d events", err, len(j.events))
	}
}
