package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/runner/deploy"
	"twopoint/runner/engine"
	"twopoint/runner/failure"
)

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
	if role == event.RoleDrift || role == event.RoleGate { // the point has its outcome, and others lose nothing
		return errDeadUnless(state == alive)
	}
	if state == hung && l.proc == nil {
		// It is not ours to end, and whoever asks it waits for as long again.
		f.Message += " (twopoint did not start this server and does not end it)"
		return errors.Join(a.failAll(p.Variant, f), errDead)
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

// classify turns what is known of a failure into its row. s is nil where no
// request was under way.
func (l *life) classify(s *event.Sample, stage failure.Stage, state aftermath) event.Failure {
	o := failure.Observation{Stage: stage, Facts: map[failure.Fact]string{}}
	if s != nil {
		o.Transport, o.HTTPStatus = failure.Transport(s.Transport), s.HTTPStatus
		if o.Transport == failure.HTTP || o.Transport == failure.ErrorEvent {
			o.Body = s.Detail
		} else {
			o.Error = s.Detail
		}
		switch failure.Kind(s.Error) {
		case failure.FlushRefused:
			o.Facts[failure.RefusedFlush] = s.Detail
		case failure.Timeout:
			if s.Limit == "no_token" {
				o.Facts[failure.NoToken] = s.Detail
			} else {
				o.Facts[failure.LimitPassed] = s.Detail
			}
		}
		o.Facts[map[bool]failure.Fact{true: failure.ProbeAnswered, false: failure.ProbeUnanswered}[state == alive]] = ""
	}
	if l.proc != nil {
		o.Exit.State = failure.Running
		o.Log = l.proc.LogSince(l.mark.Load(), failureTail)
		if l.ended() {
			if n, source, ok := deploy.OOMKills(); ok && n > l.oomKills.Load() {
				o.Facts[failure.OOMKill] = fmt.Sprintf("%s counts %d processes killed since the request began", source, n-l.oomKills.Load())
			}
			exit := l.proc.Exit()
			o.Exit = failure.Exit{State: failure.Ended, Code: exit.Code, Signal: exit.Signal, Asked: exit.Asked}
			if exit.Lost {
				o.Facts[failure.SupervisorKilled] = ""
			}
		}
	}
	f := l.outcome(failure.Classify(o), stage)
	f.HTTPStatus, f.ExitSignal = o.HTTPStatus, o.Exit.Signal
	if o.Exit.State == failure.Ended && o.Exit.Signal == "" {
		f.ExitCode = &o.Exit.Code
	}
	return *f
}

// outcome is a finding as an event.
func (l *life) outcome(f failure.Finding, stage failure.Stage) *event.Failure {
	return &event.Failure{DeploymentID: l.id, Variant: l.variant.Name, Kind: string(f.Kind), Stage: string(stage), Scope: string(f.Scope),
		Signature: f.Signature, Message: f.Message, Evidence: f.Evidence}
}

// fact is the outcome that a single fact decides.
func (l *life) fact(stage failure.Stage, fact failure.Fact, err error) *event.Failure {
	return l.outcome(failure.Classify(failure.Observation{Stage: stage, Facts: map[failure.Fact]string{fact: err.Error()}}), stage)
}

// unusable is the outcome of a server that answers, but not as the one that the
// spec describes.
func (l *life) unusable(err error) *event.Failure {
	return l.outcome(failure.Classify(failure.Observation{Stage: failure.Load, Transport: failure.Malformed, Error: err.Error()}), failure.Load)
}

// What became of a server after a request failed.
type aftermath int

const (
	alive  aftermath = iota // it answers
	dead                    // its process has ended, or its address refuses
	silent                  // it answers with errors, or nothing is known of it
	hung                    // it takes the question and does not answer it
)

// aftermath finds out whether the server still answers. A server that dies is
// given time to be gone, so that its exit status and last words can be read.
func (l *life) aftermath(ctx context.Context, s *event.Sample) aftermath {
	if !l.ended() {
		try, cancel := context.WithTimeout(ctx, min(aliveWait, l.client.Limits().NoToken.Base))
		defer cancel()
		stopped := make(chan struct{})
		go func() { // a process that ends answers the question at once
			select {
			case <-l.done():
				cancel()
			case <-stopped:
			}
		}()
		err := l.engine.Ready(try, l.client, l.variant.Variant)
		close(stopped)
		if err == nil && !l.ended() {
			return alive
		}
		held := errors.Is(err, context.DeadlineExceeded) || errors.Is(try.Err(), context.DeadlineExceeded)
		if l.proc == nil {
			if held {
				return hung
			}
			return silent
		}
		wait := time.NewTimer(dying(held || s.Error == string(failure.Timeout), err))
		defer wait.Stop()
		select {
		case <-l.done():
		case <-wait.C:
		case <-ctx.Done():
		}
		if !l.ended() {
			if held {
				return hung
			}
			return silent
		}
	}
	return dead
}

// dying is how long a server that does not answer as it should is given to be
// gone; err is what a question met.
func dying(held bool, err error) time.Duration {
	var status *engine.StatusError
	switch {
	case held: // nothing suggests that it ends
		return time.Second
	case errors.As(err, &status):
		return frontWait
	}
	return deathWait
}

// left ends what is left of earlier lives and waits until all of it is gone.
// What still lives then is named in the error.
func (a *Agent) left(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(a.patience, leftWait))
	defer cancel()
	return errors.Join(deploy.EndLeftovers(ctx, a.Order.RunID, 2*time.Second), deploy.AwaitGone(ctx, a.Order.RunID+"/"+a.Order.Order.ID+"-"))
}

// limits are those of timed requests.
func (a *Agent) limits() engine.Limits {
	l := a.Order.Plan.Limits
	return engine.Limits{
		Connect: time.Duration(l.Connect), FirstToken: time.Duration(l.FirstToken), Total: time.Duration(l.Total), NoToken: a.NoToken,
	}.Effective()
}

// limitsInForce are limits for the record.
func limitsInForce(l engine.Limits) *event.Limits {
	optional := func(d time.Duration) *float64 {
		if d <= 0 {
			return nil
		}
		s := d.Seconds()
		return &s
	}
	return &event.Limits{
		ConnectS: l.Connect.Seconds(), FirstTokenS: optional(l.FirstToken), TotalS: optional(l.Total),
		NoTokenS: l.NoToken.Base.Seconds(), NoTokenPerPromptTokenS: l.NoToken.PerPromptToken.Seconds(), NoTokenPerTokenS: l.NoToken.PerToken.Seconds(),
	}
}
