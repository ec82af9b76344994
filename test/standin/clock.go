package standin

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// clock is what the times of requests have in common.
type clock struct {
	mu      sync.Mutex
	rng     *rand.Rand
	count   int
	flushes int
	after   bool         // a flush was made and no request came yet
	seen    map[int]bool // prompt lengths

	prefill chan struct{} // one at a time, where the script says so
	places  chan struct{} // as many as run
}

func (c *clock) init(s Clock) {
	c.rng = rand.New(rand.NewPCG(s.Seed, 1))
	c.seen = map[int]bool{}
	c.prefill = make(chan struct{}, 1)
	if s.MaxRunning > 0 {
		c.places = make(chan struct{}, s.MaxRunning)
	}
}

func (c *clock) flushed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushes++
	c.after = true
}

// times are one request's: seconds to the first token, and of each step.
type times struct {
	prefillS float64
	stepS    []float64
}

// of draws the times of a request of a prompt of which so much is cached, that
// generates n tokens.
func (c *clock) of(s Clock, prompt, cached, n int) times {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := times{prefillS: float64(prompt-cached)/s.PrefillTokS + s.ExtraS}
	if c.after && (!s.FlushOnce || c.flushes == 1) {
		t.prefillS += s.AfterFlushS
	}
	if c.after && s.ForgetOnFlush {
		clear(c.seen)
	}
	c.after = false
	if !c.seen[prompt] {
		c.seen[prompt] = true
		t.prefillS += s.NewContextS
	}
	t.prefillS = math.Max(0, t.prefillS+s.PrefillJitterS*c.rng.NormFloat64())
	drift := s.DriftPerRequest * float64(c.count)
	if s.DriftMost > 0 {
		drift = math.Min(drift, s.DriftMost)
	}
	c.count++
	if s.ColdStepS > 0 && cached == 0 {
		s.StepS = s.ColdStepS
	}
	step := (s.StepS + s.StepPerContextS*float64(prompt)) * (1 + drift)
	for left := n - 1; left > 0; left -= s.TokensPerStep {
		t.stepS = append(t.stepS, math.Max(0, step+s.StepJitterS*c.rng.NormFloat64()))
	}
	return t
}

// enter waits for a place among the running requests.
func (c *clock) enter(ctx context.Context) (leave func(), err error) {
	if c.places == nil {
		return func() {}, nil
	}
	select {
	case c.places <- struct{}{}:
		return func() { <-c.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// until sleeps to a deadline; false: ctx ended first.
func until(ctx context.Context, due time.Time) bool {
	d := time.Until(due)
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
