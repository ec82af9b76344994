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

func (h *History) checks(variant string, context int) *checks {
	k := gated{variant, context}
	if h.gates[k] == nil {
		h.gates[k] = &checks{}
	}
	return h.gates[k]
}

// GateDue tells whether the spec asks for output checks of the point's variant
// and context that have no result yet, and the number of the attempt at them.
func (p *Point) GateDue() (due bool, attempt int) {
	c := p.history.checks(p.Variant, p.Context)
	return p.history.Plan.Gate != nil && c.result == nil, c.attempts + 1
}

// Gate is what the output checks say of the point: nil where none is asked for,
// or the point has not been measured to its end.
func (p *Point) Gate() *stat.Gated {
	h := p.history
	if h.Plan.Gate == nil || p.Stop == "" {
		return nil
	}
	g := stat.Gate(*h.Plan.Gate, h.checks(p.Variant, p.Context).result, h.checks(h.Plan.Baseline, p.Context).result, p.Variant == h.Plan.Baseline)
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
