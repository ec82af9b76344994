// Package runner is the agent: it executes one work order on the machine where
// the servers run. For each variant it deploys the server, waits until it
// answers, probes its prefix cache, measures the points in rounds of pairs and
// tears it down. What happens goes out as events; it computes no figure of its
// own and reads what it needs to decide (is a point done, which one is farthest
// from its target) from the same history that the tables are made from.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/runner/deploy"
	"twopoint/runner/engine"
	"twopoint/runner/failure"
	"twopoint/runner/method"
	"twopoint/runner/telemetry"
	"twopoint/schema/plan"
)

// Agent executes a work order.
type Agent struct {
	Order   plan.WorkOrder
	History *history.History        // what earlier stretches recorded; the agent's own events are added to it
	Journal Journal                 // where events go
	After   func(event.Event) error // told of each event once it is on disk and in the history, between requests; may be nil

	Engine  func(name string) (engine.Engine, bool)
	Self    string                           // path of the twopoint binary, which embedded servers and supervisors run
	Version string                           // of twopoint
	LogPath func(deploymentID string) string // where a server's output goes
	Files   string                           // the folder of the spec's files
	WorkDir string                           // where servers run
	Prompt  string                           // content of the prompt file, where the spec names one
	Secret  func(name string) (string, bool) // values of secrets, by name

	Monitor *telemetry.Monitor // reads the machine's sensors between requests; nil: nobody does

	Selected func(plan.Point) bool // points to measure; nil: all
	Only     string                // the selection in words, for the record
	Deadline time.Time             // stop cleanly, leaving points pending; zero: none

	began   time.Time
	spent   map[string]time.Duration // measuring each point, in this stretch
	built   map[string]bool          // variants whose build commands have run
	endTime time.Time                // of the current variant's share of the total budget
}

// Journal takes events. A nil error means that the event is on disk, as it is
// returned: with its place in the journal and its time.
type Journal interface {
	Append(...event.Event) ([]event.Event, error)
}

// errBudget ends a variant whose share of the total budget is used up.
var errBudget = errors.New("budget")

// Record puts events on disk and then into the history, as they are there.
func (a *Agent) Record(events ...event.Event) error {
	events, err := a.Journal.Append(events...)
	if err != nil {
		return err
	}
	for _, e := range events {
		a.History.Add(e)
	}
	for _, e := range events {
		if a.After == nil {
			break
		}
		if err := a.After(e); err != nil {
			return err
		}
	}
	return nil
}

// Run executes the order and returns why it ended, one of event.EndDone to
// EndError. Failures of servers and requests are events, not errors; an error is
// ours or the machine's (a full disk, say). When ctx ends, everything that was
// started is ended first.
//
// The deadline ends what is under way: the torn pair is measured again by the
// stretch that goes on.
func (a *Agent) Run(parent context.Context, state string) (reason string, err error) {
	ctx := parent
	if !a.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(parent, a.Deadline)
		defer cancel()
	}
	a.began, a.spent, a.built = time.Now(), map[string]time.Duration{}, map[string]bool{}
	start := event.Run{RunID: a.Order.RunID, State: state, Version: a.Version, Only: a.Only}
	if err := a.Record(event.Event{Type: event.TypeRun, Run: &start}); err != nil {
		return event.EndError, err
	}
	reason = event.EndDone
	for i, name := range a.Order.Order.Variants {
		err = a.variant(ctx, name, len(a.Order.Order.Variants)-i)
		switch {
		case parent.Err() != nil && (err == nil || errors.Is(err, parent.Err())):
			reason, err = event.EndInterrupted, nil
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			reason, err = event.EndTimeLimit, nil
		case errors.Is(err, errBudget):
			reason, err = event.EndBudget, nil
			continue // the next variant has its own share
		case err != nil:
			reason = event.EndError
		default:
			continue
		}
		break
	}
	end := event.Run{RunID: a.Order.RunID, State: "end", Reason: reason}
	if err != nil {
		end.Detail = err.Error()
	}
	return reason, errors.Join(err, a.Record(event.Event{Type: event.TypeRun, Run: &end}))
}

// todo are the variant's selected points that have no outcome, by context.
func (a *Agent) todo(variant string) []*history.Point {
	var out []*history.Point
	for _, p := range a.History.Points() {
		if p.Variant == variant && p.Open() && (a.Selected == nil || a.Selected(p.Point)) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(x, y *history.Point) int {
		return cmp.Or(cmp.Compare(x.Context, y.Context), cmp.Compare(x.Concurrency, y.Concurrency))
	})
	return out
}

// variant gives the variant as many server lives as its points need. left is
// the number of variants still to come, this one included: they share what is
// left of the total budget.
func (a *Agent) variant(ctx context.Context, name string, left int) error {
	v, ok := a.Order.Plan.Variant(name)
	if !ok {
		return fmt.Errorf("work order %s names variant %q, which its plan does not have", a.Order.Order.ID, name)
	}
	a.endTime = time.Time{}
	if total := time.Duration(a.Order.Plan.Budget.Total); total > 0 {
		now := time.Now()
		a.endTime = now.Add((total - now.Sub(a.began)) / time.Duration(left))
	}
	for {
		if err := a.closeServed(name); err != nil {
			return err
		}
		if len(a.todo(name)) == 0 {
			return nil
		}
		if err := a.timeUp(ctx); err != nil {
			return a.budgetOver(name, err)
		}
		l, failed, err := a.launch(ctx, v)
		if err != nil {
			return err
		}
		if failed != nil {
			return a.failAll(name, *failed)
		}
		err = a.measure(ctx, l)
		if stopErr := l.end(ctx, a); stopErr != nil { // something of the server may be left: that outweighs the rest
			err = stopErr
		}
		if err != nil {
			return a.budgetOver(name, err)
		}
	}
}

// closeServed closes points that an earlier stretch measured to the end without
// recording so: no server needs to be started for them.
func (a *Agent) closeServed(variant string) error {
	for _, p := range a.todo(variant) {
		if err := a.close(p, ""); err != nil {
			return err
		}
	}
	return nil
}

// timeUp tells whether a limit says to stop before the next step.
func (a *Agent) timeUp(ctx context.Context) error {
	now := time.Now()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !a.endTime.IsZero() && now.After(a.endTime):
		return errBudget
	}
	return nil
}

// budgetOver closes what the budget leaves: a point with a pair is done with
// what it has, one without is skipped. Other errors pass.
func (a *Agent) budgetOver(variant string, err error) error {
	if !errors.Is(err, errBudget) {
		return err
	}
	for _, p := range a.todo(variant) {
		e := event.Event{Type: event.TypeSkip, Skip: &event.Skip{PointID: p.ID, Reason: "budget", Detail: "the total budget of " + a.Order.Plan.Budget.Total.String() + " was used up"}}
		if len(p.Pairs()) > 0 {
			e = event.Event{Type: event.TypePoint, Point: &event.Point{PointID: p.ID, State: "done", Stop: "budget"}}
		}
		if err := a.Record(e); err != nil {
			return err
		}
	}
	return err
}

// failAll gives every open point of a variant that could not be deployed the
// failure as its outcome.
func (a *Agent) failAll(variant string, f event.Failure) error {
	for _, p := range a.todo(variant) {
		f.PointID = p.ID
		if err := a.Record(event.Event{Type: event.TypeFailure, Failure: &f}); err != nil {
			return err
		}
	}
	return nil
}

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
	return a.Record(event.Event{Type: event.TypePoint, Point: &event.Point{PointID: p.ID, State: "done", Stop: why}})
}

// visit measures one pair at a point, preceded by a warm-up pair where this
// life has not seen the point yet, and by pilots where its budgets are not
// fixed.
func (a *Agent) visit(ctx context.Context, l *life, p *history.Point, fresh bool) error {
	tp := a.Order.Plan.Method.TwoPoint
	pa, pb := a.pilotBudgets(l, p)
	if fresh && tp.Warmup {
		if ok, err := a.pair(ctx, l, p, event.RoleWarmup, pa, pb); !ok {
			return err
		}
	}
	if p.Sized == nil {
		if tp.B == 0 {
			for range plan.PilotPairs {
				if ok, err := a.pair(ctx, l, p, event.RolePilot, pa, pb); !ok {
					return err
				}
			}
		}
		sized, err := a.size(l, p)
		if err != nil {
			return err
		}
		if err := a.Record(event.Event{Type: event.TypePoint, Point: &sized}); err != nil {
			return err
		}
	}
	_, err := a.pair(ctx, l, p, event.RoleMeasure, p.Sized.A, p.Sized.B)
	return err
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
	watched, err := a.watch(ctx, l, p, role, repeat)
	if err != nil {
		return false, err
	}
	failed, err := method.TwoPoint(ctx, l, method.Pair{
		DeploymentID: l.id, Point: p.Point, Role: role, Repeat: repeat, Attempt: attempt, A: na, B: nb,
		FirstB: repeat%2 == 0, Settle: a.Order.Plan.Method.TwoPoint.Settle, RequireFlush: l.variant.Flush == "require",
	}, a)
	if err = errors.Join(err, watched()); err != nil || failed == nil {
		return err == nil, err
	}
	return false, a.failed(ctx, l, p, role, failed)
}

// failed finds out what became of the server, records the outcome of the point
// and of those that the policy skips with it.
func (a *Agent) failed(ctx context.Context, l *life, p *history.Point, role string, s *event.Sample) error {
	state := l.aftermath(ctx, s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := l.classify(s, stageOf(role, s), state)
	f.PointID = p.ID
	if err := a.Record(event.Event{Type: event.TypeFailure, Failure: &f}); err != nil {
		return err
	}
	if role == event.RoleDrift { // the point has its outcome, and others lose nothing
		return errDeadUnless(state == alive)
	}
	policy := a.Order.Plan.OnFailure
	if policy == "" && failure.Kind(f.Kind).SkipLonger() {
		policy = "skip_longer"
	}
	for _, q := range a.todo(p.Variant) {
		if policy == "skip_longer" && (q.Context < p.Context || q.Concurrency < p.Concurrency) || policy != "skip_longer" && policy != "stop_variant" {
			continue
		}
		skip := event.Skip{PointID: q.ID, Reason: policy, Because: p.ID, Detail: fmt.Sprintf("%s at context %d", f.Kind, p.Context)}
		if err := a.Record(event.Event{Type: event.TypeSkip, Skip: &skip}); err != nil {
			return err
		}
	}
	return errDeadUnless(state == alive)
}

func errDeadUnless(alive bool) error {
	if alive {
		return nil
	}
	return errDead
}

func stageOf(role string, s *event.Sample) failure.Stage {
	switch {
	case s.Flush != nil && s.Error == string(failure.FlushRefused):
		return failure.Flush
	case role == event.RoleWarmup:
		return failure.Warmup
	case len(s.ChunkS) > 0:
		return failure.Decode
	}
	return failure.Prefill
}

// endLeftovers waits a bounded time until nothing of an earlier life is left.
func endLeftovers(ctx context.Context, marker string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return deploy.EndLeftovers(ctx, marker, 2*time.Second)
}
