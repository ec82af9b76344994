package runner

import (
	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/stat"
)

// request is what the token budgets of a point depend on.
func (a *Agent) request(l *life, p *history.Point) stat.SizeRequest {
	tp := a.Order.Plan.Method.TwoPoint
	return stat.SizeRequest{
		A: tp.A, B: tp.B, Target: tp.Repeats.Target, Context: p.Context, Concurrency: p.Concurrency,
		Speculative: l.info.Speculative, ContextLimit: l.info.ContextLimit,
	}
}

// pilotBudgets are the tokens of the legs of warm-up and pilot pairs: those of
// the measured pairs where they are fixed.
func (a *Agent) pilotBudgets(l *life, p *history.Point) (na, nb int) {
	if p.Sized != nil {
		return p.Sized.A, p.Sized.B
	}
	r := a.request(l, p)
	na, nb = stat.PilotSize(r)
	if r.B > 0 {
		nb = r.B
	}
	return na, nb
}

// size fixes a and b for the point, from its pilots where b is auto.
func (a *Agent) size(l *life, p *history.Point) (event.Point, error) {
	s, err := stat.Size(p.Pilots(), a.request(l, p))
	return event.Point{PointID: p.ID, State: "sized", A: s.A, B: s.B, S0: s.S0S, JitterS: &s.JitterS, Capped: s.Capped}, err
}
