package history

import (
	"slices"

	"twopoint/results/event"
	"twopoint/results/stat"
)

// gates are the output checks of a variant and context, which all its points
// share whatever their concurrency.
type gates map[gated]*checks

type gated struct {
	variant string
	context int
}

type checks struct {
	result   *event.Gate // the first whole one
	attempts int         // begun
}

// checks are those of a point, kept from the first time on.
func (h *History) checks(p *Point) *checks {
	k := gated{p.Variant, p.Context}
	if h.gates[k] == nil {
		h.gates[k] = &checks{}
	}
	return h.gates[k]
}

// answered is what a variant answered to its checks at a context; nil: nothing.
func (h *History) answered(variant string, context int) *event.Gate {
	if c := h.gates[gated{variant, context}]; c != nil {
		return c.result
	}
	return nil
}

// GateDue tells whether the spec asks for output checks of the point's variant
// and context that have no result yet, and the number of the attempt at them.
func (p *Point) GateDue() (due bool, attempt int) {
	if c := p.history.gates[gated{p.Variant, p.Context}]; c != nil {
		attempt = c.attempts
	}
	return p.history.Plan.Gate != nil && p.history.answered(p.Variant, p.Context) == nil, attempt + 1
}

// Gate is what the output checks say of the point: nil where none is asked for,
// or the point has not been measured to its end.
func (p *Point) Gate() *stat.Gated {
	h := p.history
	if h.Plan.Gate == nil || p.Stop == "" {
		return nil
	}
	g := stat.Gate(*h.Plan.Gate, h.answered(p.Variant, p.Context), h.answered(h.Plan.Baseline, p.Context), p.Variant == h.Plan.Baseline)
	return &g
}

// gated is the point's estimate as its output checks leave it.
func (p *Point) gated(e stat.Point) stat.Point {
	g := p.Gate()
	if g == nil {
		return e
	}
	e.Doubts = append(slices.Clip(e.Doubts), g.Findings...)
	if f := g.Invalid; f != nil {
		e = e.Refuse(f.Code, f.Detail)
	}
	return e
}
