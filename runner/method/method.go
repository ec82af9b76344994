// Package method knows which requests a point needs and in what order, and
// records what came back. It is handed a server as an interface and prompts;
// it knows no process, no HTTP and no statistics.
package method

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// Reuse lets the engine's prefix cache answer, where there is a switch for
	// single requests: for the cache probe, and for legs on a cached prompt.
	Reuse bool

	// Slot and Begin belong to simultaneous requests (see engine.Request).
	Slot  int
	Begin func()
}

// Recorder takes events; nil means that all of them are on disk.
type Recorder interface{ Record(...event.Event) error }

// Leg is one leg of a pair.
type Leg struct {
	Name   string // a, b, or m1, m2, … between them
	Tokens int    // asked for
}

// Legs are those of a repeat with these tokens, ascending: b alone, a and b, or
// a, m1, …, b.
func Legs(tokens []int) []Leg {
	legs := make([]Leg, len(tokens))
	for i, n := range tokens {
		legs[i] = Leg{fmt.Sprintf("m%d", i), n}
	}
	legs[0].Name = "a"
	legs[len(legs)-1].Name = "b"
	return legs
}

// Pair is one repeat to be measured, of whatever method.
type Pair struct {
	DeploymentID string
	Point        plan.Point
	Role         string // event.RoleMeasure, RoleWarmup, RolePilot, RoleDrift, RoleCold
	Repeat       int
	Attempt      int
	Legs         []Leg // ascending
	Descending   bool  // leg b runs first
	Settle       schema.Settle
	RequireFlush bool // a refused flush ends the pair instead of being judged later

	// Cached are the prompts, one for each simultaneous request, on whose copies in
	// the prefix cache all legs run. They are put there first, and nothing is
	// flushed. nil: each leg has fresh prompts.
	Cached []prompt.Prompt
}

// Measure runs one pair: for each leg it waits until the server is idle,
// flushes, settles, and sends the timed requests. Each leg is recorded as it
// comes, the pair's end with the last one. When a request fails the pair ends
// with status RepeatFailed and failed is that sample. err is the recorder's or the
// context's.
func Measure(ctx context.Context, s Server, p Pair, rec Recorder) (failed *event.Sample, err error) {
	legs := slices.Clone(p.Legs)
	end := event.Repeat{
		DeploymentID: p.DeploymentID, PointID: p.Point.ID, Role: p.Role, Repeat: p.Repeat, Attempt: p.Attempt,
		B: legs[len(legs)-1].Tokens, Order: "ab", Status: event.RepeatComplete,
	}
	if len(legs) > 1 {
		end.A = legs[0].Tokens
	}
	if p.Descending {
		slices.Reverse(legs)
		end.Order = "ba"
	}
	if p.Cached != nil {
		samples, err := p.prime(ctx, s)
		if err != nil {
			return nil, err
		}
		if failed, err := record(rec, samples, nil); failed != nil || err != nil {
			end.Status = event.RepeatFailed
			return failed, errors.Join(err, rec.Record(event.Event{Type: event.TypeRepeat, Repeat: &end}))
		}
	}
	for i, leg := range legs {
		samples, err := p.leg(ctx, s, leg, i > 0)
		if err != nil {
			return nil, err
		}
		if failed := firstFailed(samples); failed != nil {
			end.Status = event.RepeatFailed
			_, err := record(rec, samples, &end)
			return failed, err
		}
		last := &end
		if i < len(legs)-1 {
			last = nil
		}
		if _, err := record(rec, samples, last); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// record puts samples on disk, together with the pair's end if there is one.
func record(rec Recorder, samples []event.Sample, end *event.Repeat) (failed *event.Sample, err error) {
	var events []event.Event
	for k := range samples {
		events = append(events, event.Event{Type: event.TypeSample, Sample: &samples[k]})
	}
	if end != nil {
		events = append(events, event.Event{Type: event.TypeRepeat, Repeat: end})
	}
	return firstFailed(samples), rec.Record(events...)
}

func firstFailed(samples []event.Sample) *event.Sample {
	if i := slices.IndexFunc(samples, func(s event.Sample) bool { return s.Error != "" }); i >= 0 {
		return &samples[i]
	}
	return nil
}

// own makes a sample the pair's. A request cut by our own end says nothing about
// the server, hence the error.
func (p Pair) own(ctx context.Context, s event.Sample, role, leg string, second bool, length int) (event.Sample, error) {
	s.DeploymentID, s.PointID, s.Role, s.ContextRequested = p.DeploymentID, p.Point.ID, role, length
	s.Repeat, s.Attempt, s.Leg, s.Second = p.Repeat, p.Attempt, leg, second
	return s, ctx.Err()
}

// prime sends the cached prompts for one token each: the first time that puts
// them into the prefix cache, later it shows that they are still there.
func (p Pair) prime(ctx context.Context, s Server) ([]event.Sample, error) {
	s.WaitIdle(ctx)
	samples, err := p.together(ctx, s, 1)
	for i := range samples {
		if err == nil {
			samples[i], err = p.own(ctx, samples[i], event.RolePrime, "", false, p.Point.Context)
		}
	}
	return samples, err
}

// leg measures one side: the samples are the settle request's, if there was
// one, and those of the timed requests, by slot; a failed settle request ends
// the leg.
func (p Pair) leg(ctx context.Context, s Server, leg Leg, second bool) (samples []event.Sample, err error) {
	keep := func(sample event.Sample, role string, length int) error {
		sample, err := p.own(ctx, sample, role, leg.Name, second, length)
		samples = append(samples, sample)
		return err
	}
	s.WaitIdle(ctx)
	var flush *event.Flush
	if p.Cached == nil {
		flush = s.Flush(ctx)
	}
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
	timed, err := p.together(ctx, s, leg.Tokens)
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
		r := Request{MaxTokens: tokens, Slot: slot}
		if p.Cached != nil {
			r.Prompt, r.Reuse = p.Cached[slot], true
		} else {
			var err error
			if r.Prompt, err = s.Prompt(p.Point.Context, slot); err != nil {
				return nil, err
			}
		}
		requests[slot] = r
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
