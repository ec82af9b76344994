// Package historytest makes up runs for tests: a plan, and events in the order
// in which an agent records them, with times from a line over context and a
// little noise that is the same every time. It measures nothing.
package historytest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// The line that made-up servers follow, in seconds.
const (
	PerToken        = 2e-3 // seconds per token at no context
	PerContextToken = 1e-6 // and what a context token adds
	PrefillPerToken = 1e-4
)

// Tokens of the legs.
const (
	A = 1
	B = 33
)

// Run is a run in the making. Its history has every event that was added.
type Run struct {
	ID      string
	Plan    plan.Plan
	History *history.History
	Events  []event.Event

	Order string // that further events belong to
	Noise float64

	seq map[string]int64
}

// Experiment is a small spec: every variant at every context, three to six
// pairs a point.
func Experiment(contexts []int, variants ...schema.Variant) schema.Experiment {
	return schema.Experiment{
		Name: "made-up", Title: "A made-up run", Target: schema.Target{Name: "local"},
		Variants: variants, Sweep: schema.Sweep{Context: contexts, Concurrency: []int{1}},
		Prompt: schema.Prompt{Source: "random", Seed: 1, Nonce: true},
		Method: schema.Method{TwoPoint: &schema.TwoPoint{A: A, B: B, Repeats: schema.Repeats{Min: 3, Max: 6, Target: 0.03, Deployments: 1}, Settle: schema.Settle{Mode: "request"}}},
	}
}

// Variant is a server that is started.
func Variant(name string) schema.Variant {
	return schema.Variant{Name: name, Server: name, Engine: "twopoint", Flush: "auto", Args: map[string]any{"kernel": name}}
}

// New is a run to which nothing has happened. A spec that makes no plan is a
// mistake in the test and panics.
func New(exp schema.Experiment) *Run {
	p, ds := plan.New(exp, "0123456789ab", plan.Options{})
	if ds.HasErrors() {
		panic(fmt.Sprint(ds))
	}
	return &Run{ID: "20260301T120000Z-3fa9c1", Plan: p, History: history.New(p, nil), Order: plan.OrderID, Noise: 0.01, seq: map[string]int64{}}
}

// Add records an event, one second after the one before it.
func (r *Run) Add(e event.Event) {
	r.seq[r.Order]++
	e.V, e.Order, e.Seq = event.Version, r.Order, r.seq[r.Order]
	e.Time = time.Date(2026, 3, 1, 12, 0, len(r.Events), 123456000, time.UTC)
	r.Events = append(r.Events, e)
	r.History.Add(e)
}

// Point is the planned point of that key.
func (r *Run) Point(key string) *history.Point {
	for _, p := range r.History.Points() {
		if p.Key == key {
			return p
		}
	}
	panic("no point " + key)
}

// Begin and End are a stretch's ends.
func (r *Run) Begin(state string) {
	r.Add(event.Event{Type: event.TypeRun, Run: &event.Run{RunID: r.ID, State: state, Version: "1.0.0"}})
}

// End records why a stretch ended.
func (r *Run) End(reason string) {
	r.Add(event.Event{Type: event.TypeRun, Run: &event.Run{RunID: r.ID, State: "end", Reason: reason}})
}

// Launch begins a life of a variant's server that becomes ready and is probed.
func (r *Run) Launch(variant string) (life string) {
	life = fmt.Sprintf("%s-d%d", r.Order, r.History.Deployments()+1)
	v := r.History.Variant(variant)
	d := event.Deployment{DeploymentID: life, Variant: variant, VariantID: v.ID, State: "launch", Managed: v.URL == ""}
	if d.Managed {
		d.Argv, d.Host, d.Port, d.PID = []string{"twopoint", "serve"}, "127.0.0.1", 30000, 4711
	}
	r.step(d)
	d.State, d.LoadS = "ready", ptr(1.5)
	d.Effective = map[string]any{"version": "1.0.0", "page_size": int64(16), "speculative": false, "exact_length": true, "cached_count": true}
	if v.URL != "" {
		d.Effective["tp"] = int64(1)
	}
	r.step(d)
	for i, leg := range []string{"cold", "again", "flushed"} {
		context := r.shortest(variant)
		s := r.sample(life, context, 1, leg)
		s.Role, s.Leg, s.Repeat, s.Attempt = event.RoleProbe, leg, i+1, 1
		if leg == "again" {
			s.CachedTokens = ptr(int64(context))
		}
		r.Add(event.Event{Type: event.TypeSample, Sample: &s})
	}
	d.State, d.Probe = "probed", &event.Probe{Context: r.shortest(variant), HitRatio: ptr(0.1), FlushRatio: ptr(1.0), HitCached: ptr(int64(8)), Flushed: ptr(int64(0)), Proven: "yes"}
	r.step(d)
	return life
}

func (r *Run) step(d event.Deployment) {
	r.Add(event.Event{Type: event.TypeDeployment, Deployment: &d})
}

// Stop ends a life as asked.
func (r *Run) Stop(life string) {
	l := r.History.Life(life)
	r.step(event.Deployment{DeploymentID: life, Variant: l.Variant, VariantID: l.VariantID, Managed: l.Managed, State: "end", Expected: true, ExitCode: ptr(0), LifeS: ptr(60.0)})
}

// Crash ends a life by a signal.
func (r *Run) Crash(life, signal string) {
	l := r.History.Life(life)
	r.step(event.Deployment{DeploymentID: life, Variant: l.Variant, VariantID: l.VariantID, Managed: l.Managed, State: "end", ExitSignal: signal, LifeS: ptr(60.0), LogTail: []string{"out of memory"}})
}

// Sized fixes a point's tokens.
func (r *Run) Sized(key string) {
	r.Add(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: r.Point(key).ID, State: "sized", A: A, B: B, S0: ptr(PerToken), JitterS: ptr(5e-4)}})
}

// Done closes a point.
func (r *Run) Done(key, why string) {
	r.Add(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: r.Point(key).ID, State: "done", Stop: why}})
}

// Retry forgets a point's outcome.
func (r *Run) Retry(key string) {
	r.Add(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: r.Point(key).ID, State: "retry"}})
}

// Skip leaves a point out because of another.
func (r *Run) Skip(key, because string) {
	r.Add(event.Event{Type: event.TypeSkip, Skip: &event.Skip{PointID: r.Point(key).ID, Reason: "skip_longer", Because: r.Point(because).ID, Detail: "gpu-oom at a shorter context"}})
}

// Fail gives a point a failure of its server.
func (r *Run) Fail(life, key, kind string) {
	p := r.Point(key)
	r.Add(event.Event{Type: event.TypeFailure, Failure: &event.Failure{
		DeploymentID: life, PointID: p.ID, Variant: p.Variant, Kind: kind, Stage: "prefill", Scope: "server", Signature: "oom",
		Message: "the server ran out of memory", Evidence: []string{"line one", "bad \xff byte"}, ExitSignal: "SIGKILL",
	}})
}

// Change alters a sample before it is recorded; it may return false to stop the
// pair there, as a crash would.
type Change func(s *event.Sample) bool

// Pair measures one pair: settle, leg, settle, leg, and its end. A leg with an
// error ends it as failed.
func (r *Run) Pair(life, key, role string, changes ...Change) {
	p := r.Point(key)
	repeat, attempt := p.Next(role)
	legs, order := []string{"a", "b"}, "ab"
	if repeat%2 == 0 {
		legs, order = []string{"b", "a"}, "ba"
	}
	end := event.Repeat{DeploymentID: life, PointID: p.ID, Role: role, Repeat: repeat, Attempt: attempt, A: A, B: B, Order: order, Status: "complete"}
	for i, leg := range legs {
		settle := r.sample(life, 24, 1, fmt.Sprint(key, role, repeat, attempt, leg, "settle"))
		settle.PointID, settle.Role, settle.Repeat, settle.Attempt, settle.Leg, settle.Second = p.ID, event.RoleSettle, repeat, attempt, leg, i == 1
		r.Add(event.Event{Type: event.TypeSample, Sample: &settle})
		for slot := range p.Concurrency {
			s := r.sample(life, p.Context, map[string]int{"a": A, "b": B}[leg], fmt.Sprint(key, role, repeat, attempt, leg, slot))
			s.PointID, s.Role, s.Repeat, s.Attempt, s.Leg, s.Second, s.Slot = p.ID, role, repeat, attempt, leg, i == 1, slot
			s.Flush = &event.Flush{Method: "/flush_cache", Attempts: 1, WaitS: 0.01, Status: 200, OK: ptr(true)}
			if p.Concurrency > 1 {
				s.OffsetS = ptr(0.0)
			}
			for _, change := range changes {
				if !change(&s) {
					return
				}
			}
			r.Add(event.Event{Type: event.TypeSample, Sample: &s})
			if s.Error != "" {
				end.Status = "failed"
			}
		}
		if end.Status == "failed" {
			break
		}
	}
	r.Add(event.Event{Type: event.TypeRepeat, Repeat: &end})
}

// Measure does all that a point needs: warm-up, sizes, n pairs, done.
func (r *Run) Measure(life, key string, n int, changes ...Change) {
	r.Pair(life, key, event.RoleWarmup)
	if r.Point(key).Sized == nil {
		r.Sized(key)
	}
	for range n {
		r.Pair(life, key, event.RoleMeasure, changes...)
	}
	r.Done(key, "target")
}

// Reading adds a reading of the machine: of the host, and of the GPUs and
// processes in t. key names the point of the pair that it was made for; empty:
// none.
func (r *Run) Reading(life, key, moment string, t event.Telemetry) {
	t.DeploymentID, t.Moment, t.At, t.TookS = life, moment, time.Date(2026, 3, 1, 12, 0, len(r.Events), 0, time.UTC), 0.05
	if key != "" {
		t.PointID, t.Role, t.Repeat = r.Point(key).ID, event.RoleMeasure, 1
	}
	t.Host = event.HostReading{CPUs: 4, CPUClockMHz: ptr(2600.0), Load1: ptr(0.5), MemoryAvailable: ptr(int64(1 << 33)), MemoryPressure: ptr(0.0), IntervalS: ptr(1.0), OtherCPUs: ptr(0.05)}
	r.Add(event.Event{Type: event.TypeTelemetry, Telemetry: &t})
}

func (r *Run) shortest(variant string) int {
	n := 0
	for _, p := range r.Plan.Points {
		if p.Variant == variant && (n == 0 || p.Context < n) {
			n = p.Context
		}
	}
	return n
}

// sample is a streamed answer of n tokens at that context; what distinguishes it
// from others makes its noise.
func (r *Run) sample(life string, context, n int, what string) event.Sample {
	h := fnv.New64a()
	h.Write([]byte(what))
	noise := 1 + r.Noise*(float64(binary.LittleEndian.Uint32(h.Sum(nil)))/(1<<32)-0.5)
	first := float64(context) * PrefillPerToken * noise
	each := PerToken + PerContextToken*float64(context)
	s := event.Sample{
		DeploymentID: life, ContextRequested: context, TokensRequested: n, Start: time.Date(2026, 3, 1, 12, 0, len(r.Events), 0, time.FixedZone("CET", 3600)),
		ConnectS: 1e-4, HeaderS: ptr(first / 2), TTFTS: ptr(first), Streamed: true, PromptTokens: ptr(int64(context)), CompletionTokens: ptr(int64(n)), CachedTokens: ptr(int64(0)),
		Finish: "length", OutputSHA256: "00ff", HTTPStatus: 200,
	}
	for i := range n {
		s.ChunkS, s.ChunkTokens = append(s.ChunkS, first+float64(i)*each), append(s.ChunkTokens, 1)
	}
	s.TotalS = first + float64(n-1)*each
	return s
}

func ptr[T any](v T) *T { return &v }
