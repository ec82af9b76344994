// Package method knows which requests a point needs and in what order, and
// records what came back. It is handed a server as an interface and prompts;
// it knows no process, no HTTP and no statistics.
package method

import (
	"context"
	"sync"
	"time"

	"twopoint/results/event"
	"twopoint/runner/method/prompt"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// Server is all that a method may know of a deployment.
type Server interface {
	// Generate sends one request over a fresh connection and returns the
	// sample; a failure stands in its Error.
	Generate(ctx context.Context, r Request) event.Sample
	// Flush empties the prefix cache as the spec asks; nil where it asks for
	// nothing or the engine cannot.
	Flush(ctx context.Context) *event.Flush
	// WaitIdle returns when no request is running, or after a bounded time.
	WaitIdle(ctx context.Context)
	// Prompt makes a prompt of length tokens with a fresh nonce.
	Prompt(length, slot int) (prompt.Prompt, error)
}

// Request is one request of a method.
type Request struct {
	Prompt    prompt.Prompt
	MaxTokens int
	// Reuse leaves the engine's prefix cache as it is for this request, where
	// there is a switch for single requests. Only the cache probe wants that.
	Reuse bool

	// Slot and Begin belong to simultaneous requests (see engine.Request).
	Slot  int
	Begin func()
}

// Recorder takes events; nil means that all of them are on disk.
type Recorder interface{ Record(...event.Event) error }

// Pair is one pair to be measured.
type Pair struct {
	DeploymentID string
	Point        plan.Point
	Role         string // event.RoleMeasure, RoleWarmup, RolePilot, RoleDrift
	Repeat       int
	Attempt      int
	A, B         int  // tokens asked for
	FirstB       bool // leg b runs first
	Settle       schema.Settle
	RequireFlush bool // a refused flush ends the pair instead of being judged later
}

// TwoPoint measures one pair: for each leg it waits until the server is idle,
// flushes, settles, and sends the timed request. Each leg is recorded as it
// comes, the pair's end with the last one. When a request fails the pair ends
// with status "failed" and failed is that sample. err is the recorder's or the
// context's.
func TwoPoint(ctx context.Context, s Server, p Pair, rec Recorder) (failed *event.Sample, err error) {
	order, sides := "ab", []string{"a", "b"}
	if p.FirstB {
		order, sides = "ba", []string{"b", "a"}
	}
	end := event.Repeat{
		DeploymentID: p.DeploymentID, PointID: p.Point.ID, Role: p.Role, Repeat: p.Repeat, Attempt: p.Attempt,
		A: p.A, B: p.B, Order: order, Status: "complete",
	}
	for i, leg := range sides {
		samples, err := p.leg(ctx, s, leg, i == 1)
		if err != nil {
			return nil, err
		}
		var events []event.Event
		for k := range samples {
			events = append(events, event.Event{Type: event.TypeSample, Sample: &samples[k]})
			if samples[k].Error != "" && failed == nil {
				failed, end.Status = &samples[k], "failed"
			}
		}
		if i == 1 || failed != nil {
			return failed, rec.Record(append(events, event.Event{Type: event.TypeRepeat, Repeat: &end})...)
		}
		if err := rec.Record(events...); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// leg measures one side: the samples are the settle request's, if there was
// one, and those of the timed requests, by slot; a failed settle request ends
// the leg.
func (p Pair) leg(ctx context.Context, s Server, leg string, second bool) (samples []event.Sample, err error) {
	keep := func(sample event.Sample, role string, length int) error {
		sample.DeploymentID, sample.PointID, sample.Role, sample.ContextRequested = p.DeploymentID, p.Point.ID, role, length
		sample.Repeat, sample.Attempt, sample.Leg, sample.Second = p.Repeat, p.Attempt, leg, second
		samples = append(samples, sample)
		return ctx.Err() // a request cut by our own end says nothing about the server
	}

	s.WaitIdle(ctx)
	flush := s.Flush(ctx)
	if flush != nil && p.RequireFlush && (flush.OK == nil || !*flush.OK) {
		return samples, keep(event.Sample{Start: time.Now().UTC(), Flush: flush, Error: "flush-refused", Detail: flush.Detail}, p.Role, p.Point.Context)
	}
	switch p.Settle.Mode {
	case "wait":
		select {
		case <-time.After(time.Duration(p.Settle.Wait)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "request":
		// Lets the server do what a flush leaves to the next request; that cost would be booked on prefill.
		body, err := s.Prompt(plan.SettleTokens, 0)
		if err != nil {
			return nil, err
		}
		settle := s.Generate(ctx, Request{Prompt: body, MaxTokens: 1})
		if err := keep(settle, event.RoleSettle, plan.SettleTokens); err != nil || settle.Error != "" {
			return samples, err
		}
	}
	timed, err := p.together(ctx, s, map[string]int{"a": p.A, "b": p.B}[leg])
	if err != nil {
		return nil, err
	}
	for _, sample := range timed {
		sample.Flush = flush
		if err := keep(sample, p.Role, p.Point.Context); err != nil {
			return nil, err
		}
	}
	return samples, nil
}

// together sends the point's simultaneous requests of tokens tokens each, all at
// once when every connection stands, and reads each answer to its end, so that
// none is left on the server when another failed. Each has a body of its own, so
// that none can use another's prefix.
func (p Pair) together(ctx context.Context, s Server, tokens int) ([]event.Sample, error) {
	requests := make([]Request, max(p.Point.Concurrency, 1))
	for slot := range requests {
		body, err := s.Prompt(p.Point.Context, slot)
		if err != nil {
			return nil, err
		}
		requests[slot] = Request{Prompt: body, MaxTokens: tokens, Slot: slot}
	}
	if len(requests) == 1 {
		return []event.Sample{s.Generate(ctx, requests[0])}, nil
	}
	samples := make([]event.Sample, len(requests))
	var waiting, running sync.WaitGroup
	waiting.Add(len(requests))
	for slot, r := range requests {
		arrive := sync.OnceFunc(waiting.Done)
		r.Begin = func() { arrive(); waiting.Wait() }
		running.Go(func() {
			defer arrive() // one that finds no connection keeps nobody waiting
			samples[slot] = s.Generate(ctx, r)
			samples[slot].Slot = slot
		})
	}
	running.Wait()
	var earliest time.Time
	for _, sample := range samples {
		if b := sample.Began; !b.IsZero() && (earliest.IsZero() || b.Before(earliest)) {
			earliest = b
		}
	}
	for slot := range samples {
		if b := samples[slot].Began; !b.IsZero() {
			offset := b.Sub(earliest).Seconds()
			samples[slot].OffsetS = &offset
		}
	}
	return samples, nil
}

// Probe asks the deployment once whether its prefix cache answers repeated
// prompts and whether a flush empties it: cold, the same again, flush, the same
// again, one token each. The samples come in that order; fewer when one failed.
func Probe(ctx context.Context, s Server, deploymentID string, length int, rec Recorder) ([]event.Sample, error) {
	body, err := s.Prompt(length, 0)
	if err != nil {
		return nil, err
	}
	var out []event.Sample
	for i, leg := range []string{"cold", "again", "flushed"} {
		var flush *event.Flush
		if leg != "again" {
			s.WaitIdle(ctx)
			flush = s.Flush(ctx)
		}
		sample := s.Generate(ctx, Request{Prompt: body, MaxTokens: 1, Reuse: true})
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		sample.DeploymentID, sample.Role, sample.Leg, sample.Repeat, sample.Attempt = deploymentID, event.RoleProbe, leg, i+1, 1
		sample.ContextRequested, sample.Flush = length, flush
		if err := rec.Record(event.Event{Type: event.TypeSample, Sample: &sample}); err != nil {
			return out, err
		}
		out = append(out, sample)
		if sample.Error != "" {
			break
		}
	}
	return out, nil
}
