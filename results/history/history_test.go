package history_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/history/historytest"
	"twopoint/results/stat"
	"twopoint/schema"
)

func TestOutcomes(t *testing.T) {
	r := historytest.Eventful()
	for _, c := range []struct {
		key, status, reason string
		pairs, counted      int // pairs that are there, and those in the estimate
		open                bool
	}{
		{"fast/256/1", stat.OK, "", 4, 4, false},
		{"fast/512/1", stat.Invalid, "cache_hit", 3, 3, false},
		{"fast/1024/1", stat.OK, "", 4, 3, false},
		{"fast/2048/1", stat.OK, "", 4, 3, false},
		{"fast/4096/1", stat.Skipped, "skip_longer", 0, 0, false},
		{"fast/8192/1", stat.Failed, "gpu-oom", 2, 2, false},
		{"other/256/1", stat.Unresolved, "too_few_pairs", 2, 2, false},
		{"other/512/1", stat.Invalid, "count_missing", 3, 3, false},
		{"other/1024/1", stat.OK, "", 3, 3, false},
		{"other/2048/1", stat.OK, "", 6, 6, false},
		{"other/4096/1", stat.Pending, "", 1, 1, true},
		{"other/8192/1", stat.Pending, "", 0, 0, true},
		{"remote/256/1", stat.OK, "", 4, 4, false},
		{"remote/4096/1", stat.Failed, "context-too-long", 0, 0, false},
		{"remote/8192/1", stat.Pending, "", 0, 0, true},
	} {
		t.Run(c.key, func(t *testing.T) {
			p := r.Point(c.key)
			status, reason, _ := p.Outcome()
			if status != c.status || reason != c.reason {
				t.Errorf("outcome %s (%s), want %s (%s)", status, reason, c.status, c.reason)
			}
			e := p.Estimate()
			if n := len(p.Pairs()); n != c.pairs || e.N+e.NInvalid != c.counted {
				t.Errorf("%d pairs of which %d count, want %d and %d", n, e.N+e.NInvalid, c.pairs, c.counted)
			}
			if p.Open() != c.open {
				t.Errorf("open is %v", p.Open())
			}
		})
	}
}

func TestTornPairIsTriedAgain(t *testing.T) {
	p := historytest.Eventful().Point("fast/1024/1")
	var got []string
	for _, pr := range p.Pairs() {
		got = append(got, fmt.Sprintf("%d.%d %s %s %s valid=%v", pr.Repeat, pr.Attempt, pr.LegOrder, pr.Life, pr.Status, pr.Valid()))
	}
	want := []string{
		"1.1 ab o1-d1 complete valid=true",
		"2.1 ba o1-d1 cancelled valid=false",
		"2.2 ba o1-d2 complete valid=true",
		"3.1 ab o1-d2 complete valid=true",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("pairs %q, want %q", got, want)
	}
}

func TestLives(t *testing.T) {
	h := historytest.Eventful().History
	var got []string
	for _, l := range h.Lives {
		kind := ""
		if l.Failure != nil {
			kind = l.Failure.Kind
		}
		got = append(got, fmt.Sprintf("%s %s managed=%v launched=%v ready=%v ended=%v expected=%v signal=%s failure=%s",
			l.DeploymentID, l.Variant, l.Managed, !l.LaunchedAt.IsZero(), l.Ready, l.Ended, l.Expected, l.ExitSignal, kind))
	}
	want := []string{
		"o1-d1 fast managed=true launched=true ready=true ended=false expected=false signal= failure=", // its runner was killed
		"o1-d2 fast managed=true launched=true ready=true ended=true expected=false signal=SIGKILL failure=gpu-oom",
		"o1-d3 other managed=true launched=true ready=true ended=true expected=true signal= failure=",
		"o1-d4 fast managed=true launched=true ready=true ended=true expected=false signal=SIGKILL failure=gpu-oom",
		"o1-d5 fast managed=true launched=true ready=true ended=true expected=true signal= failure=crash",
		"o1-d6 other managed=true launched=false ready=false ended=true expected=true signal= failure=left-over", // never launched
		"o2-d7 remote managed=false launched=true ready=true ended=true expected=true signal= failure=",          // a request's failure is not the server's
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("lives:\n%q\nwant\n%q", got, want)
	}
	if h.Deployments() != len(want) {
		t.Errorf("%d deployments, want %d", h.Deployments(), len(want))
	}
}

func TestDrift(t *testing.T) {
	r := historytest.Eventful()
	for life, want := range map[string]string{"o1-d1": "", "o1-d3": "other/256/1", "o1-d5": "fast/256/1"} {
		p, ratio := r.History.Life(life).Drift()
		switch {
		case want == "":
			if p != nil || ratio != nil {
				t.Errorf("%s drifts without a pair that shows it", life)
			}
		case p == nil || p.Key != want || ratio == nil || *ratio < 0.9 || *ratio > 1.1:
			t.Errorf("%s: drift %v at %v, want about 1 at %s", life, ratio, p, want)
		}
	}
}

// Deployments share a point's pairs, and a runner that died between the last
// pair and the word that the point is done finds it done.
func TestDoneOverLives(t *testing.T) {
	exp := historytest.Experiment([]int{256}, historytest.Variant("v"))
	exp.Method.TwoPoint.Repeats = schema.Repeats{Min: 9, Max: 12, Target: 0.5, Deployments: 3}
	r := historytest.New(exp)
	p := r.Point("v/256/1")
	for n := 1; n <= 3; n++ {
		life := r.Launch("v")
		for range 3 {
			if done, _ := p.Done(life); done {
				t.Fatalf("done in life %d", n)
			}
			r.Pair(life, p.Key, event.RoleMeasure)
		}
		if done, why := p.DoneIn(life); !done || why != stat.StopTarget {
			t.Errorf("life %d: done=%v (%s) after its share", n, done, why)
		}
		r.Stop(life)
	}
	for _, life := range []string{"o1-d3", "o1-d4"} { // d4: a life to come
		if done, why := p.Done(life); !done || why != stat.StopTarget {
			t.Errorf("asked for %s: done=%v (%q), want the reason of the lives that served it", life, done, why)
		}
	}
	if e := p.Estimate(); e.Deployments != 3 || e.Method != stat.MethodDeployments {
		t.Errorf("estimate over %d deployments by %q", e.Deployments, e.Method)
	}
}

// A done event without a reason, as no version of ours writes it, still closes.
func TestDoneWithoutReason(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v")))
	r.Done("v/256/1", "")
	if r.Point("v/256/1").Open() {
		t.Error("the point is open")
	}
}

// What went wrong before a retry neither counts against the point nor comes
// back under the same key.
func TestRetryForgetsFailedPairs(t *testing.T) {
	exp := historytest.Experiment([]int{256}, historytest.Variant("v"))
	exp.Method.TwoPoint.Repeats.Max = 3
	r := historytest.New(exp)
	life, p := r.Launch("v"), r.Point("v/256/1")
	fail := func(s *event.Sample) bool { s.Error = "http-error"; return true }
	r.Pair(life, p.Key, event.RoleMeasure)
	r.Pair(life, p.Key, event.RoleMeasure, fail)
	if e := p.Estimate(); e.N != 1 || e.NInvalid != 1 {
		t.Fatalf("%d valid, %d invalid before the retry", e.N, e.NInvalid)
	}
	r.Retry(p.Key)
	if e := p.Estimate(); e.N != 1 || e.NInvalid != 0 {
		t.Errorf("%d valid, %d invalid after the retry", e.N, e.NInvalid)
	}
	if done, why := p.DoneIn(life); done {
		t.Errorf("done (%s) before it is tried again", why)
	}
	if repeat, attempt := p.Next(event.RoleMeasure); repeat != 2 || attempt != 2 {
		t.Errorf("next is %d.%d, want 2.2", repeat, attempt)
	}
	if n := len(p.Pairs()); n != 2 {
		t.Errorf("%d pairs are kept, want 2", n)
	}
}

// A pair that was ended as cancelled says nothing, whatever its samples say.
func TestCancelledPair(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v")))
	life, p := r.Launch("v"), r.Point("v/256/1")
	r.Pair(life, p.Key, event.RoleMeasure)
	last := *r.Events[len(r.Events)-1].Repeat
	last.Status = "cancelled"
	r.Add(event.Event{Type: event.TypeRepeat, Repeat: &last})
	if pr := p.Pairs()[0]; pr.Valid() || !pr.Interrupted() {
		t.Errorf("reasons %v", pr.Reasons)
	}
}

// A server that cannot be held to a prompt length is judged as it reports.
func TestRulesOfLife(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v")))
	longer := func(s *event.Sample) bool { n := int64(257); s.PromptTokens = &n; return true }
	life, p := r.Launch("v"), r.Point("v/256/1")
	r.Pair(life, p.Key, event.RoleMeasure, longer)
	l := r.History.Life(life)
	d := l.Deployment
	d.DeploymentID, d.State, d.Effective = "o1-d2", "ready", map[string]any{"exact_length": false}
	r.Add(event.Event{Type: event.TypeDeployment, Deployment: &d})
	r.Pair(d.DeploymentID, p.Key, event.RoleMeasure, longer)
	pairs := p.Pairs()
	if pairs[0].Valid() || !pairs[1].Valid() {
		t.Errorf("exact: %v, reported: %v", pairs[0].Reasons, pairs[1].Reasons)
	}
}

func TestUnknownNames(t *testing.T) {
	h := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v"))).History
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, e := range []event.Event{
		{Type: event.TypeSample, Sample: &event.Sample{PointID: "ffffffffffff", DeploymentID: "o9-d9", Leg: "a"}},
		{Type: event.TypeRepeat, Repeat: &event.Repeat{PointID: "ffffffffffff"}},
		{Type: event.TypePoint, Point: &event.Point{PointID: "ffffffffffff", State: "done"}},
		{Type: event.TypeSkip, Skip: &event.Skip{PointID: "ffffffffffff"}},
		{Type: event.TypeFailure, Failure: &event.Failure{PointID: "ffffffffffff", Scope: "host"}},
		{Type: event.TypeNote, Note: &event.Note{PointID: "ffffffffffff"}},
		{Type: "invented later"},
	} {
		e.Time = at
		h.Add(e)
	}
	if len(h.Samples) != 1 || len(h.Lives) != 0 || len(h.Notes) != 1 || !h.First.Equal(at) || !h.Last.Equal(at) {
		t.Errorf("%d samples, %d lives, %d notes, from %v to %v", len(h.Samples), len(h.Lives), len(h.Notes), h.First, h.Last)
	}
	if p := h.Points()[0]; !p.Open() || len(p.Pairs()) != 0 {
		t.Error("another point's events reached this one")
	}
}

// A crash can end the record anywhere. Whatever is left gives a consistent
// state, from which further pairs take new keys; and it does not matter whether
// anybody looked in between.
func TestAnyPrefix(t *testing.T) {
	r := historytest.Eventful()
	watched := history.New(r.Plan, nil)
	roles := []string{event.RoleMeasure, event.RoleWarmup, event.RolePilot, event.RoleDrift}
	for n := range len(r.Events) + 1 {
		if n > 0 {
			watched.Add(r.Events[n-1])
		}
		h := history.New(r.Plan, r.Events[:n])
		for i, p := range h.Points() {
			seen := map[[2]int]bool{}
			for _, pr := range p.Pairs() {
				if key := [2]int{pr.Repeat, pr.Attempt}; seen[key] {
					t.Fatalf("after %d events: %s has pair %v twice", n, p.Key, key)
				} else {
					seen[key] = true
				}
				if pr.Valid() != (len(pr.Reasons) == 0) || pr.Valid() && pr.Status != "complete" {
					t.Fatalf("after %d events: pair %d.%d of %s is %s and valid=%v", n, pr.Repeat, pr.Attempt, p.Key, pr.Status, pr.Valid())
				}
			}
			for _, role := range roles {
				repeat, attempt := p.Next(role)
				for _, e := range h.Samples {
					if s := e.Sample; s.PointID == p.ID && s.Role == role && s.Repeat == repeat && s.Attempt == attempt {
						t.Fatalf("after %d events: %s %s %d.%d comes again", n, p.Key, role, repeat, attempt)
					}
				}
				if repeat < 1 || attempt < 1 {
					t.Fatalf("after %d events: next %s is %d.%d", n, role, repeat, attempt)
				}
			}
			status, _, _ := p.Outcome()
			if p.Open() != (status == stat.Pending) {
				t.Fatalf("after %d events: %s is %s and open=%v", n, p.Key, status, p.Open())
			}
			w := watched.Points()[i]
			if !reflect.DeepEqual(w.Estimate(), p.Estimate()) || w.Excess("o1-d1") != p.Excess("o1-d1") {
				t.Fatalf("after %d events: %s says something else to those who looked before", n, p.Key)
			}
		}
		for _, l := range h.Lives {
			if h.Life(l.DeploymentID) != l {
				t.Fatalf("after %d events: life %s is there twice", n, l.DeploymentID)
			}
			l.Drift()
		}
	}
}

// Orders are written by different processes; their events may come in any
// interleaving.
func TestInterleavedOrders(t *testing.T) {
	r := historytest.Eventful()
	byOrder := map[string][]event.Event{}
	for _, e := range r.Events {
		byOrder[e.Order] = append(byOrder[e.Order], e)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		rest := map[string][]event.Event{}
		for order, events := range byOrder {
			rest[order] = events
		}
		var mixed []event.Event
		for len(mixed) < len(r.Events) {
			for _, order := range []string{"o1", "o2", "notes"} {
				if n := random.IntN(len(rest[order]) + 1); n > 0 {
					mixed = append(mixed, rest[order][:n]...)
					rest[order] = rest[order][n:]
				}
			}
		}
		h := history.New(r.Plan, mixed)
		for i, p := range h.Points() {
			want := r.History.Points()[i]
			if !reflect.DeepEqual(p.Estimate(), want.Estimate()) || !reflect.DeepEqual(p.Failure, want.Failure) || !reflect.DeepEqual(p.Skip, want.Skip) || p.Stop != want.Stop {
				t.Fatalf("%s depends on how orders are interleaved", p.Key)
			}
		}
		if !h.First.Equal(r.History.First) || !h.Last.Equal(r.History.Last) || len(h.Lives) != len(r.History.Lives) {
			t.Fatal("times or lives depend on how orders are interleaved")
		}
	}
}

// BenchmarkEstimateAgain asks every point of a large plan for its estimate, as
// a progress display does after each pair.
func BenchmarkEstimateAgain(b *testing.B) {
	contexts := make([]int, 100_000)
	for i := range contexts {
		contexts[i] = i + 100
	}
	r := historytest.New(historytest.Experiment(contexts, historytest.Variant("v")))
	life := r.Launch("v")
	for _, p := range r.History.Points()[:100] {
		for range 10 {
			r.Pair(life, p.Key, event.RoleMeasure)
		}
	}
	for b.Loop() {
		for _, p := range r.History.Points() {
			p.Estimate()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(contexts)), "ns/point")
}
