package runner

import (
	"context"
	"errors"
	"slices"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/stat"
	"twopoint/runner/method"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// errDead ends a life whose server no longer answers.
var errDead = errors.New("the server is gone")

// measure goes through the variant's open points in rounds until they are done,
// the server is gone, or a limit says to stop.
func (a *Agent) measure(ctx context.Context, l *life) error {
	visited := map[string]bool{}
	var first *history.Point
	for round := 1; ; round++ {
		points := a.due(l)
		if len(points) == 0 {
			break
		}
		if first == nil {
			first = points[0]
		}
		if round%2 == 0 { // ascending first (a curve at once), then to and fro
			slices.Reverse(points)
		}
		for _, p := range points {
			if !p.Open() { // skipped by a failure within this round
				continue
			}
			if err := a.timeUp(ctx); err != nil {
				return err
			}
			began := time.Now()
			err := a.visit(ctx, l, p, !visited[p.ID])
			a.spent[p.ID] += time.Since(began)
			visited[p.ID] = true
			if errors.Is(err, errDead) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := a.close(p, l.id); err != nil {
				return err
			}
			if err := a.gates(ctx, l); errors.Is(err, errDead) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	return a.drift(ctx, l, first)
}

// due are the points that this life still has to serve: those farthest from
// their target, and all that are at least half as far.
func (a *Agent) due(l *life) []*history.Point {
	var out []*history.Point
	worst := 0.0
	for _, p := range a.todo(l.variant.Name) {
		if done, _ := p.DoneIn(l.id); !done {
			out = append(out, p)
			worst = max(worst, p.Excess(l.id))
		}
	}
	return slices.DeleteFunc(out, func(p *history.Point) bool { return p.Excess(l.id) < worst/2 })
}

// close records a point as done where its stopping rule or own budget says so;
// life is where it was measured last.
func (a *Agent) close(p *history.Point, life string) error {
	if !p.Open() {
		return nil
	}
	done, why := p.Done(life)
	if limit := time.Duration(a.Order.Plan.Budget.PerPoint); !done && limit > 0 && a.spent[p.ID] > limit {
		done, why = true, "budget"
	}
	if !done {
		return nil
	}
	return a.Record(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: p.ID, State: event.PointDone, Stop: why}})
}

// visit measures one pair at a point, preceded by a warm-up pair where this
// life has not seen the point yet, and by pilots where its budgets are not
// fixed or answers do not stream.
func (a *Agent) visit(ctx context.Context, l *life, p *history.Point, fresh bool) error {
	asked := a.Order.Plan.Method.Legs()
	pa, pb, err := a.pilotBudgets(l, p)
	if err != nil {
		return a.noRoom(p, err)
	}
	if fresh && asked.Warmup {
		if ok, err := a.pair(ctx, l, p, event.RoleWarmup, pa, pb); !ok {
			return err
		}
	}
	if p.Sized == nil {
		if asked.B == 0 || l.info.CountsWhole { // without a stream only pilots tell what to expect
			for range plan.PilotPairs {
				if ok, err := a.pair(ctx, l, p, event.RolePilot, pa, pb); !ok {
					return err
				}
			}
		}
		sized, err := a.size(l, p)
		if err != nil {
			return a.noRoom(p, err)
		}
		if err := a.Record(event.Event{Type: event.TypePoint, Point: &sized}); err != nil {
			return err
		}
	}
	atDepth := a.Order.Plan.Method.DecodeAtDepth != nil
	if atDepth && p.ColdDue() {
		if ok, err := a.pair(ctx, l, p, event.RoleCold, p.Sized.A, a.coldB(l, p)); !ok {
			return err
		}
	}
	if ok, err := a.pair(ctx, l, p, event.RoleMeasure, p.Sized.A, p.Sized.B); !ok {
		return err
	}
	for atDepth && p.ColdDue() {
		if ok, err := a.pair(ctx, l, p, event.RoleCold, p.Sized.A, a.coldB(l, p)); !ok {
			return err
		}
	}
	if text := p.TooSmall(); text != "" {
		return a.Record(event.Event{Type: event.TypeNote, Note: &event.Note{Code: string(stat.BTooSmall), PointID: p.ID, Variant: p.Variant, Text: text}})
	}
	return nil
}

// drift measures the life's first point once more, so that a change over the
// life shows.
func (a *Agent) drift(ctx context.Context, l *life, p *history.Point) error {
	if p == nil || p.Sized == nil || p.Failure != nil || a.timeUp(ctx) != nil {
		return nil
	}
	_, err := a.pair(ctx, l, p, event.RoleDrift, p.Sized.A, p.Sized.B)
	if errors.Is(err, errDead) {
		return nil
	}
	return err
}

// pair measures one pair. ok is false when it failed; the failure is then
// recorded, and err is errDead where the server went with it.
func (a *Agent) pair(ctx context.Context, l *life, p *history.Point, role string, na, nb int) (ok bool, err error) {
	repeat, attempt := p.Next(role)
	m := a.Order.Plan.Method
	pair := method.Pair{
		DeploymentID: l.id, Point: p.Point, Role: role, Repeat: repeat, Attempt: attempt, Legs: method.Legs(m.Budgets(na, nb)),
		Descending: repeat%2 == 0, Settle: m.Legs().Settle, RequireFlush: l.variant.Flush == "require",
	}
	switch {
	case role == event.RoleCold:
		pair.Settle = schema.Settle{Mode: "request"}
	case m.DecodeAtDepth != nil:
		if pair.Cached, err = l.cached(p.Point); err != nil {
			return false, err
		}
	case m.Stream != nil:
		pair.Descending = false
	}
	watched, err := a.watch(ctx, l, p, role, repeat)
	if err != nil {
		return false, err
	}
	failed, err := method.Measure(ctx, l, pair, a)
	if err = errors.Join(err, watched()); err != nil || failed == nil {
		return err == nil, err
	}
	return false, a.failed(ctx, l, p, role, failed)
}
