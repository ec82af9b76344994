package runner

import (
	"fmt"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/stat"
)

// request is what the token budgets of a point depend on.
func (a *Agent) request(l *life, p *history.Point) stat.SizeRequest {
	tp := a.Order.Plan.Method.Legs()
	dp := max(l.variant.DP, 1) // replicas, each with a pool of its own
	r := stat.SizeRequest{
		A: tp.A, B: tp.B, Target: tp.Repeats.Target, Context: p.Context, Concurrency: p.Concurrency,
		Speculative: l.info.Speculative != nil && *l.info.Speculative, ContextLimit: l.info.ContextLimit, Pool: int(l.info.KVPoolTokens) / ((p.Concurrency + dp - 1) / dp),
	}
	if a.Order.Plan.Method.Stream != nil {
		r.A = 1 // there is no such leg: nothing to keep clear of
	}
	return r
}

// pilotBudgets are the tokens of the legs of warm-up and pilot pairs: those of
// the measured pairs where they are fixed. An error says why the point cannot be
// measured on this server.
func (a *Agent) pilotBudgets(l *life, p *history.Point) (na, nb int, err error) {
	if n := l.info.Slots; n > 0 && p.Concurrency > n { // the rest would wait for their turn
		return 0, 0, fmt.Errorf("%d requests at a time are asked for, and the server has slots for %d", p.Concurrency, n)
	}
	if p.Sized != nil {
		return p.Sized.A, p.Sized.B, nil
	}
	return stat.PilotSize(a.request(l, p))
}

// noRoom gives a point for which the server has no room its outcome. Nothing failed: it
// is we who do not ask.
func (a *Agent) noRoom(p *history.Point, why error) error {
	return a.Record(event.Event{Type: event.TypeSkip, Skip: &event.Skip{PointID: p.ID, Reason: event.SkipNoRoom, Detail: why.Error()}})
}

// size fixes a and b for the point, from its pilots where b is auto.
func (a *Agent) size(l *life, p *history.Point) (event.Point, error) {
	s, err := stat.Size(p.Pilots(), a.request(l, p))
	if a.Order.Plan.Method.Stream != nil {
		s.A = 0 // there is no such leg
	}
	return event.Point{PointID: p.ID, State: event.PointSized, A: s.A, B: s.B, S0: s.S0S, JitterS: &s.JitterS, Capped: s.Capped}, err
}

// coldB is the budget of leg b of a cold pair: that of the measured pairs, or, where
// the tool chooses, what the target asks for if the prefill wanders by 1 %.
func (a *Agent) coldB(l *life, p *history.Point) int {
	if a.Order.Plan.Method.Legs().B > 0 {
		return p.Sized.B
	}
	return p.Sized.A + stat.ColdTokens(p.Sized.B-p.Sized.A, p.PrimeS, p.Sized.S0, a.request(l, p))
}
