package method

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/runner/method/prompt"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// server notes what a method asks of it, and answers at once.
type server struct {
	mu      sync.Mutex
	log     []string
	prompts int
	sending int // requests between connection and first byte: those at the barrier and past it
	began   []int

	refuseFlush bool
	fail        func(r Request) string // failure_kind of a request; "connect": it finds no connection
}

func (s *server) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *server) WaitIdle(context.Context) { s.note("idle") }

func (s *server) Flush(context.Context) *event.Flush {
	s.note("flush")
	ok := !s.refuseFlush
	return &event.Flush{Method: "scripted", Attempts: 1, OK: &ok, Detail: "no"}
}

// Prompt gives each prompt an id of its own, as a nonce does.
func (s *server) Prompt(length, slot int) (prompt.Prompt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prompts++
	return prompt.Prompt{IDs: []int32{int32(length), int32(slot), int32(s.prompts)}}, nil
}

func (s *server) Generate(_ context.Context, r Request) event.Sample {
	sample := event.Sample{Slot: -1, TokensRequested: r.MaxTokens}
	kind := ""
	if s.fail != nil {
		kind = s.fail(r)
	}
	if kind == "connect" {
		sample.Error, sample.Detail = "unreachable", "refused"
		return sample
	}
	s.mu.Lock()
	s.sending++
	s.mu.Unlock()
	if r.Begin != nil {
		r.Begin()
	}
	sample.Began = time.Now()
	s.mu.Lock()
	s.began = append(s.began, s.sending)
	s.mu.Unlock()
	reuse := ""
	if r.Reuse {
		reuse = " reuse"
	}
	s.note("%d tokens after %d%s", r.MaxTokens, r.Prompt.IDs[0], reuse)
	sample.TotalS, sample.Error = 1, kind
	return sample
}

// journal keeps what is recorded, one entry a call.
type journal [][]event.Event

func (j *journal) Record(events ...event.Event) error {
	*j = append(*j, slices.Clone(events))
	return nil
}

// words are the recorded samples and ends, in order.
func (j journal) words() (out []string) {
	for _, events := range j {
		for _, e := range events {
			switch {
			case e.Sample != nil:
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Sample.Role, e.Sample.Leg, e.Sample.Error)))
			case e.Repeat != nil:
				out = append(out, fmt.Sprintf("%s %s %d-%d", e.Repeat.Status, e.Repeat.Order, e.Repeat.A, e.Repeat.B))
			}
		}
	}
	return out
}

func pairOf(concurrency int, tokens ...int) Pair {
	return Pair{
		DeploymentID: "o1-d1", Point: plan.Point{ID: "p", Context: 500, Concurrency: concurrency}, Role: event.RoleMeasure, Repeat: 1, Attempt: 1,
		Legs: Legs(tokens), Settle: schema.Settle{Mode: "request"},
	}
}

// What each method asks of a server, in this order and nothing else, and what is
// recorded of it.
func TestSequence(t *testing.T) {
	settle := fmt.Sprintf("1 tokens after %d", plan.SettleTokens)
	cached := []prompt.Prompt{{IDs: []int32{500, 0, 1}}}
	for name, c := range map[string]struct {
		pair     func() Pair
		asked    []string
		recorded []string
	}{
		"two_point": {
			func() Pair { return pairOf(1, 1, 17) },
			[]string{"idle", "flush", settle, "1 tokens after 500", "idle", "flush", settle, "17 tokens after 500"},
			[]string{"settle a", "measure a", "settle b", "measure b", "complete ab 1-17"},
		},
		"leg b first": {
			func() Pair { p := pairOf(1, 1, 17); p.Descending = true; return p },
			[]string{"idle", "flush", settle, "17 tokens after 500", "idle", "flush", settle, "1 tokens after 500"},
			[]string{"settle b", "measure b", "settle a", "measure a", "complete ba 1-17"},
		},
		"no settle request": {
			func() Pair { p := pairOf(1, 1, 17); p.Settle = schema.Settle{Mode: "none"}; return p },
			[]string{"idle", "flush", "1 tokens after 500", "idle", "flush", "17 tokens after 500"},
			[]string{"measure a", "measure b", "complete ab 1-17"},
		},
		"multi_point": {
			func() Pair {
				p := pairOf(1, schema.Method{MultiPoint: &schema.MultiPoint{Budgets: 4}}.Budgets(1, 33)...)
				p.Settle.Mode = "none"
				return p
			},
			[]string{"idle", "flush", "1 tokens after 500", "idle", "flush", "12 tokens after 500", "idle", "flush", "22 tokens after 500", "idle", "flush", "33 tokens after 500"},
			[]string{"measure a", "measure m1", "measure m2", "measure b", "complete ab 1-33"},
		},
		"stream": {
			func() Pair { return pairOf(1, 33) },
			[]string{"idle", "flush", settle, "33 tokens after 500"},
			[]string{"settle b", "measure b", "complete ab 0-33"},
		},
		"decode_at_depth": {
			func() Pair { p := pairOf(1, 1, 17); p.Settle.Mode, p.Cached = "none", cached; return p },
			[]string{"idle", "1 tokens after 500 reuse", "idle", "1 tokens after 500 reuse", "idle", "17 tokens after 500 reuse"},
			[]string{"prime", "measure a", "measure b", "complete ab 1-17"},
		},
	} {
		var s server
		var j journal
		failed, err := Measure(t.Context(), &s, c.pair(), &j)
		if err != nil || failed != nil || !slices.Equal(s.log, c.asked) || !slices.Equal(j.words(), c.recorded) {
			t.Errorf("%s: failed %+v, %v\n asked    %q\n want     %q\n recorded %q\n want     %q", name, failed, err, s.log, c.asked, j.words(), c.recorded)
		}
	}
}

// Budgets stay distinct and within a and b however little room there is.
func TestBudgets(t *testing.T) {
	multi := schema.Method{MultiPoint: &schema.MultiPoint{Budgets: 5}}
	for _, c := range []struct {
		a, b int
		want []int
	}{{1, 129, []int{1, 33, 65, 97, 129}}, {1, 4, []int{1, 2, 3, 4}}, {33, 34, []int{33, 34}}} {
		if got := multi.Budgets(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("from %d to %d: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// No request of a leg is sent before every connection stands; each has a prompt of
// its own; offsets count from the earliest.
func TestTogether(t *testing.T) {
	const c = 8
	var s server
	var j journal
	p := pairOf(c, 1, 17)
	p.Settle.Mode = "none"
	failed, err := Measure(t.Context(), &s, p, &j)
	if err != nil || failed != nil {
		t.Fatal(failed, err)
	}
	for i, n := range s.began {
		if want := c * (1 + i/c); n < want {
			t.Errorf("request %d was sent when %d of %d connections stood", i, n, want)
		}
	}
	if s.prompts != 2*c {
		t.Errorf("%d prompts for %d requests", s.prompts, 2*c)
	}
	for _, leg := range []string{"a", "b"} {
		slots, zeros := map[int]bool{}, 0
		for _, events := range j {
			for _, e := range events {
				if e.Sample == nil || e.Sample.Leg != leg {
					continue
				}
				slots[e.Sample.Slot] = true
				if e.Sample.OffsetS == nil || *e.Sample.OffsetS < 0 {
					t.Errorf("leg %s slot %d: offset %v", leg, e.Sample.Slot, e.Sample.OffsetS)
				} else if *e.Sample.OffsetS == 0 {
					zeros++
				}
			}
		}
		if len(slots) != c || zeros == 0 {
			t.Errorf("leg %s: slots %v, %d at the beginning", leg, slots, zeros)
		}
	}
}

// A request that fails, or finds no connection, keeps none of the others from being
// sent and recorded; the pair ends with it.
func TestOneOfSeveralFails(t *testing.T) {
	for _, kind := range []string{"connect", "http-error"} {
		s := server{fail: func(r Request) string {
			if r.MaxTokens == 17 && r.Slot == 2 {
				return kind
			}
			return ""
		}}
		var j journal
		p := pairOf(4, 1, 17, 33)
		p.Settle.Mode = "none"
		failed, err := Measure(t.Context(), &s, p, &j)
		if err != nil || failed == nil || failed.Slot != 2 || failed.Leg != "m1" {
			t.Fatalf("%s: %+v, %v", kind, failed, err)
		}
		words := strings.Join(j.words(), ", ")
		if strings.Count(words, "measure m1") != 4 || strings.Contains(words, "measure b") || !strings.HasSuffix(words, "failed ab 1-33") {
			t.Errorf("%s: recorded %s", kind, words)
		}
		if (failed.OffsetS == nil) != (kind == "connect") {
			t.Errorf("%s: offset %v", kind, failed.OffsetS)
		}
	}
}

// A pair that cannot begin as it should ends before its timed request.
func TestEndsBeforeTheClockStarts(t *testing.T) {
	for name, c := range map[string]struct {
		server *server
		change func(*Pair)
		want   []string
	}{
		"a flush that is required is refused": {&server{refuseFlush: true}, func(p *Pair) { p.RequireFlush = true }, []string{"measure a flush-refused", "failed ab 1-17"}},
		"the settle request fails": {&server{fail: func(r Request) string {
			if int(r.Prompt.IDs[0]) == plan.SettleTokens {
				return "timeout"
			}
			return ""
		}}, func(*Pair) {}, []string{"settle a timeout", "failed ab 1-17"}},
		"the prompt is not put into the cache": {&server{fail: func(Request) string { return "http-error" }},
			func(p *Pair) { p.Cached = []prompt.Prompt{{IDs: []int32{500, 0, 1}}} }, []string{"prime  http-error", "failed ab 1-17"}},
	} {
		var j journal
		p := pairOf(1, 1, 17)
		c.change(&p)
		failed, err := Measure(t.Context(), c.server, p, &j)
		if err != nil || failed == nil || !slices.Equal(j.words(), c.want) {
			t.Errorf("%s: failed %+v, %v, recorded %q, want %q", name, failed, err, j.words(), c.want)
		}
	}
}

// A leg is on disk in one step, its pair's end with the last.
func TestRecordedLegByLeg(t *testing.T) {
	var s server
	var j journal
	p := pairOf(2, 1, 17)
	if _, err := Measure(t.Context(), &s, p, &j); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for _, events := range j {
		sizes = append(sizes, len(events))
	}
	if want := []int{1 + 2, 1 + 2 + 1}; !slices.Equal(sizes, want) {
		t.Errorf("events a step: %v, want %v", sizes, want)
	}
}

// An interruption is the context's error, and what was cut is no outcome.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := server{fail: func(Request) string { cancel(); return "cancelled" }}
	var j journal
	failed, err := Measure(ctx, &s, pairOf(1, 1, 17), &j)
	if err == nil || failed != nil || len(j) != 0 {
		t.Errorf("failed %+v, %v, recorded %q", failed, err, j.words())
	}
}
