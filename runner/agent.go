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
	"twopoint/runner/engine"
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

	NoToken engine.NoToken // how long a request may go without a token; zero: engine.NoTokenDefault

	Monitor *telemetry.Monitor // reads the machine's sensors between requests; nil: nobody does

	Selected func(plan.Point) bool // points to measure; nil: all
	Only     string                // the selection in words, for the record
	Deadline time.Time             // stop cleanly, leaving points pending; zero: none

	began    time.Time
	spent    map[string]time.Duration // measuring each point, in this stretch
	built    map[string]bool          // variants whose build commands have run
	redact   func(string) string      // takes secrets out of what is recorded
	patience time.Duration            // for lives to be gone; zero: stopWait for the own, leftWait for what is left of earlier ones
	endTime  time.Time                // of the current variant's share of the total budget
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
	for i := range events {
		scrub(&events[i], a.redact)
	}
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
	a.redact = a.redactor()
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
	end := event.Run{RunID: a.Order.RunID, State: event.RunEnd, Reason: reason}
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
		left, endErr := l.end(ctx, a)
		if endErr != nil { // that outweighs the rest
			return endErr
		}
		if err != nil {
			return a.budgetOver(name, err)
		}
		if left != nil {
			return a.failAll(name, *left)
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
		e := event.Event{Type: event.TypeSkip, Skip: &event.Skip{PointID: p.ID, Reason: event.SkipBudget, Detail: "the total budget of " + a.Order.Plan.Budget.Total.String() + " was used up"}}
		if len(p.Pairs()) > 0 {
			e = event.Event{Type: event.TypePoint, Point: &event.Point{PointID: p.ID, State: event.PointDone, Stop: "budget"}}
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
