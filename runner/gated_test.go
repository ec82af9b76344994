package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/stat"
	"twopoint/runner/engine"
	"twopoint/schema"
)

// answering is an instant engine that shows its output where it is asked to.
type answering struct {
	instant
	refused *bool // to answer no request whose output is kept
	gone    *bool // to be gone from then on
}

var began = time.Now()

func (e answering) Ready(context.Context, *engine.Client, schema.Variant) error {
	if *e.gone {
		return fmt.Errorf("connection refused: %w", engine.ErrNotYet)
	}
	return nil
}

func (e answering) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	e.requests = new(int) // not shared by simultaneous requests
	s := e.instant.Generate(ctx, c, r)
	s.Began = began // simultaneous requests do begin together
	switch {
	case !r.KeepOutput:
	case *e.refused:
		s = event.Sample{Start: s.Start, TokensRequested: r.MaxTokens, Error: "http-error", Transport: "http", HTTPStatus: 500, Detail: "no"}
	default:
		s.OutputIDs = make([]int32, r.MaxTokens)
		s.OutputText = strings.Repeat("light ", r.MaxTokens)
	}
	return s
}

const gateSpec = `experiment: {
	servers: s: {engine: "openai", url: "http://127.0.0.1:9", flush: "auto"}
	baseline: "s"
	sweep: {context: [64, 128], concurrency: [1, 2]}
	method: two_point: {a: 1, b: 33, warmup: false, settle: "none", repeats: {min: 3, max: 3, target: 0.5}}
	gate: {needle: {depth: 0.5, on_fail: "invalid"}, agreement: {prompts: 2, tokens: 8}}
}`

// steps are the agent's events in short: pairs, ends of points, requests of gates.
func steps(tb testing.TB, a *Agent, dir string) []string {
	tb.Helper()
	list, err := event.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range list {
		switch {
		case e.Repeat != nil:
			out = append(out, fmt.Sprintf("%s %s", e.Repeat.Role, a.History.Point(e.Repeat.PointID).Key))
		case e.Point != nil && e.Point.State != "sized":
			out = append(out, e.Point.State+" "+a.History.Point(e.Point.PointID).Key)
		case e.Sample != nil && e.Sample.Role == event.RoleGate:
			out = append(out, fmt.Sprintf("%s.%d attempt %d", e.Sample.Leg, e.Sample.Repeat, e.Sample.Attempt))
		case e.Failure != nil:
			out = append(out, "failure "+e.Failure.Scope)
		}
	}
	return out
}

func gateAgent(t *testing.T) (a *Agent, e answering, dir string) {
	t.Helper()
	dir = t.TempDir()
	e = answering{instant{requests: new(int)}, new(bool), new(bool)}
	a = agentFor(t, dir, gateSpec, e.instant)
	a.Engine = func(string) (engine.Engine, bool) { return e, true }
	return a, e, dir
}

// A variant and context is checked once, when its first point is done and no pair
// is under way; the answers are judged for all its points.
func TestGateAfterThePoint(t *testing.T) {
	a, _, dir := gateAgent(t)
	if reason, err := a.Run(t.Context(), "start"); err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	var checks []string
	got := steps(t, a, dir)
	for _, context := range []int{64, 128} {
		first, last := "", 0
		for i, s := range got {
			if strings.HasPrefix(s, "gate s/"+fmt.Sprint(context)) {
				checks, last = append(checks, s), i
			}
			if strings.HasPrefix(s, "done s/"+fmt.Sprint(context)) && first == "" {
				first = s
			}
		}
		want := []string{first, "needle@0.5.1 attempt 1", "agree1.1 attempt 1", "agree2.1 attempt 1", "agree1.2 attempt 1", "agree2.2 attempt 1", strings.Replace(first, "done", "gate", 1)}
		if last < len(want) || !slices.Equal(got[last+1-len(want):last+1], want) {
			t.Errorf("context %d: want %q in\n%s", context, want, strings.Join(got, "\n"))
		}
	}
	if len(checks) != 2 {
		t.Errorf("checks %q", checks)
	}
	for _, p := range a.History.Points() {
		status, reason, _ := p.Outcome()
		g := p.Gate()
		if status != "invalid" || reason != "gate_needle_failed" || g == nil || *g.Needle != 0 || *g.Self != 1 { // it says light, whatever it is asked
			t.Errorf("%s is %s (%s), %+v", p.Key, status, reason, g)
		}
	}

	// A stretch that goes on has nothing to do.
	a.History = replay(t, a, dir)
	before := len(got)
	if reason, err := a.Run(t.Context(), "resume"); err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	if now := steps(t, a, dir); len(now) != before {
		t.Errorf("done again: %q", now[before:])
	}
}

func replay(t *testing.T, a *Agent, dir string) *history.History {
	t.Helper()
	list, err := event.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return history.New(a.History.Plan, list)
}

// A check without an answer fails no point, but leaves none ok where the spec says
// that only what was checked counts: neither where the server goes on, nor where it
// goes with it.
func TestGateWithoutAnswer(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%v", gone), func(t *testing.T) {
			a, e, dir := gateAgent(t)
			*e.refused = true
			a.After = func(ev event.Event) error {
				switch {
				case ev.Sample != nil && ev.Sample.Role == event.RoleGate:
					*e.gone = gone
				case ev.Failure != nil: // back for the next life
					*e.gone = false
				}
				return nil
			}
			if reason, err := a.Run(t.Context(), "start"); err != nil || reason != event.EndDone {
				t.Fatal(reason, err)
			}
			got := steps(t, a, dir)
			if n := strings.Count(strings.Join(got, "\n"), "needle@0.5.1 attempt 1"); n != 2 || strings.Contains(strings.Join(got, "\n"), "agree") {
				t.Errorf("asked %d times:\n%s", n, strings.Join(got, "\n"))
			}
			for _, p := range a.History.Points() {
				status, reason, detail := p.Outcome()
				e := p.Estimate()
				if status != "invalid" || reason != "gate_unknown" || !slices.ContainsFunc(e.Doubts, func(f stat.Finding) bool { return f.Code == "gate_unknown" && strings.Contains(f.Detail, "http-error") }) {
					t.Errorf("%s is %s (%s: %s), %v", p.Key, status, reason, detail, e.Doubts)
				}
			}
			if lives := len(a.History.Lives); gone != (lives > 1) {
				t.Errorf("%d lives", lives)
			}
		})
	}
}

// A check that our own end cut is made again, under the next number.
func TestGateTorn(t *testing.T) {
	a, _, dir := gateAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	a.After = func(ev event.Event) error {
		if ev.Sample != nil && ev.Sample.Leg == "agree1" {
			cancel()
		}
		return nil
	}
	if reason, err := a.Run(ctx, "start"); err != nil || reason != event.EndInterrupted {
		t.Fatal(reason, err)
	}
	a.History, a.After = replay(t, a, dir), nil
	if reason, err := a.Run(t.Context(), "resume"); err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	got := strings.Join(steps(t, a, dir), "\n")
	if !strings.Contains(got, "needle@0.5.1 attempt 2\nagree1.1 attempt 2") || strings.Count(got, "gate s/64/") != 1 {
		t.Error(got)
	}
}
