package runner

import (
	"context"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/gate"
	"twopoint/runner/method"
	"twopoint/runner/method/prompt"
)

// gates runs the output checks of variant and context that are due: those of
// points that have been measured to their end, by this life or an earlier one. A
// check that gets no answer fails no point; err is errDead where the server went
// with it.
func (a *Agent) gates(ctx context.Context, l *life) error {
	if a.Order.Plan.Gate == nil {
		return nil
	}
	for _, p := range a.History.Points() {
		due, attempt := p.GateDue()
		if !due || p.Variant != l.variant.Name || p.Stop == "" || a.Selected != nil && !a.Selected(p.Point) {
			continue
		}
		if a.timeUp(ctx) != nil { // the checks are not what the time is for
			return nil
		}
		failed, err := gate.Run(ctx, asked{l}, gate.Checks{
			DeploymentID: l.id, Point: p.Point, Attempt: attempt, Gate: *a.Order.Plan.Gate, Seed: a.Order.Plan.Prompt.Seed,
			Baseline: p.Variant == a.Order.Plan.Baseline, ContextLimit: l.info.ContextLimit,
		}, a)
		if err != nil {
			return err
		}
		if failed != nil {
			if err := a.failed(ctx, l, p, event.RoleGate, failed); err != nil {
				return err
			}
		}
	}
	return nil
}

// asked is a life as its output checks see it.
type asked struct{ *life }

// Ask implements gate.Server.
func (l asked) Ask(ctx context.Context, p prompt.Prompt, tokens int, reuse bool) event.Sample {
	return l.generate(ctx, method.Request{Prompt: p, MaxTokens: tokens, Reuse: reuse}, true)
}

// Prompts implements gate.Server.
func (l asked) Prompts() *prompt.Builder { return l.prompts }

// Tokenize implements gate.Server.
func (l asked) Tokenize(ctx context.Context, text string) ([]int32, error) {
	return l.engine.(engine.Tokenizer).Tokenize(ctx, l.client, text) // prompts are ids only where it is one
}

var _ gate.Server = asked{}
