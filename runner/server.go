package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"twopoint/results/event"
	"twopoint/runner/deploy"
	"twopoint/runner/engine"
	"twopoint/runner/method"
	"twopoint/runner/method/prompt"
	"twopoint/schema/plan"
)

// Generate implements method.Server: one timed request, streamed unless only
// whole answers have counts.
func (l *life) Generate(ctx context.Context, r method.Request) event.Sample {
	return l.generate(ctx, r, false)
}

func (l *life) generate(ctx context.Context, r method.Request, keepOutput bool) event.Sample {
	if l.proc != nil {
		l.mark.Store(l.proc.LogMark())
		if n, _, ok := deploy.OOMKills(); ok {
			l.oomKills.Store(n)
		}
	}
	return l.engine.Generate(ctx, l.client, engine.Request{
		Model: l.info.Model, IDs: r.Prompt.IDs, Text: r.Prompt.Text, MaxTokens: r.MaxTokens, Stream: !l.info.CountsWhole,
		Slot: r.Slot, Begin: r.Begin,
		NoReuse: l.variant.Flush != "never" && !r.Reuse, Salt: salt(), KeepOutput: keepOutput,
	})
}

// reloadWait is how long a flush may take that loads the model anew.
const reloadWait = 10 * time.Minute

// Flush implements method.Server. With flush "never" the engine's own default
// is what is measured. Where a flush is a load of the model it is made only if
// it is required: what a server does first after a load is slow. A server that
// has refused for the whole wait and never flushed is not waited for so long
// again.
func (l *life) Flush(ctx context.Context) *event.Flush {
	f, ok := l.engine.(engine.Flusher)
	if !ok || l.variant.Flush == "never" || l.info.FlushReloads && l.variant.Flush != "require" {
		return nil
	}
	wait := flushWait
	if l.info.FlushReloads {
		wait = reloadWait
	}
	if l.flushRefused {
		wait = flushAgain
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	verdict := f.Flush(ctx, l.client)
	l.flushed = l.flushed || verdict.OK != nil && *verdict.OK
	l.flushRefused = !l.flushed && verdict.OK != nil && !*verdict.OK
	return &verdict
}

// WaitIdle implements method.Server. A server that does not become idle shows
// in the flush's verdict, so that nothing is returned here.
func (l *life) WaitIdle(ctx context.Context) {
	if idler, ok := l.engine.(engine.Idler); ok {
		ctx, cancel := context.WithTimeout(ctx, idleWait)
		defer cancel()
		idler.WaitIdle(ctx, l.client)
	}
}

// Prompt implements method.Server.
func (l *life) Prompt(length, slot int) (prompt.Prompt, error) { return l.prompts.Build(length, slot) }

// cached are the prompts of a point whose copies in the prefix cache its legs
// run on: the same for as long as the server lives.
func (l *life) cached(p plan.Point) ([]prompt.Prompt, error) {
	if l.atDepth[p.ID] == nil {
		prompts := make([]prompt.Prompt, max(p.Concurrency, 1))
		for slot := range prompts {
			var err error
			if prompts[slot], err = l.Prompt(p.Context, slot); err != nil {
				return nil, err
			}
		}
		if l.atDepth == nil {
			l.atDepth = map[string][]prompt.Prompt{}
		}
		l.atDepth[p.ID] = prompts
	}
	return l.atDepth[p.ID], nil
}

func salt() string {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

var _ method.Server = (*life)(nil)
