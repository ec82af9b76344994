package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"twopoint/results/event"
	"twopoint/results/stat"
	"twopoint/runner/deploy"
	"twopoint/runner/engine"
	embedded "twopoint/runner/engine/twopoint"
	"twopoint/runner/failure"
	"twopoint/runner/method"
	"twopoint/runner/method/prompt"
	"twopoint/schema/plan"
)

// Waits around a server's life. The first two are bounded by the spec's own
// ready_timeout and by the process's end.
const (
	readyPause  = 200 * time.Millisecond // between two tries whether it answers
	readyTry    = 30 * time.Second       // one try
	readyURL    = time.Minute            // all tries at a server that we did not start, which has no ready_timeout
	idleWait    = 10 * time.Second       // for requests to drain before a leg
	flushWait   = 30 * time.Second       // for a flush to be accepted
	flushAgain  = time.Second            // the same, of a server that has refused all so far
	aliveWait   = 30 * time.Second       // for one token after a failed request
	deathWait   = 90 * time.Second       // for a dying server to be gone (core dumps)
	frontWait   = 15 * time.Second       // the same where something still answers with errors (vLLM's front ends itself after 5 s)
	stopWait    = 60 * time.Second       // for the tree to be ended
	leftWait    = 30 * time.Second       // for what is left of earlier lives to be gone
	failureTail = 20000                  // log lines that a classification looks at: dumps of many ranks follow the cause
)

// life is one life of a server, from launch to end. It is the method.Server of
// the points measured in it.
type life struct {
	id       string
	variant  plan.Variant
	engine   engine.Engine
	client   *engine.Client
	info     engine.Info
	prompts  *prompt.Builder
	atDepth  map[string][]prompt.Prompt // by point: what its legs find in the prefix cache
	proc     *deploy.Deployment         // nil for a server that we do not start
	mark     atomic.Int64               // end of the log when the latest request began
	oomKills atomic.Int64               // deploy.OOMKills then
	launch   time.Time

	flushed, flushRefused bool // a flush was done; all so far were refused

	recorded bool // the launch event is on disk
}

// launch deploys the variant, waits until it answers and probes its cache. A
// server that could not be brought up is a failure to be given to its points;
// everything of it has then been ended.
func (a *Agent) launch(ctx context.Context, v plan.Variant) (*life, *event.Failure, error) {
	l := &life{id: fmt.Sprintf("%s-d%d", a.Order.Order.ID, a.History.Deployments()+1), variant: v, launch: time.Now()}
	var ok bool
	if l.engine, ok = a.Engine(v.Engine); !ok {
		return nil, nil, fmt.Errorf("engine %q is not one that this build speaks to", v.Engine)
	}
	f, err := l.start(ctx, a)
	if err == nil && f == nil {
		f, err = l.ready(ctx, a)
	}
	if err == nil && f == nil {
		f, err = l.probe(ctx, a)
	}
	if f == nil && err == nil {
		return l, nil, nil
	}
	if ctx.Err() != nil { // our own end says nothing about the server
		f, err = nil, ctx.Err()
	}
	if f != nil {
		f.DeploymentID, f.Variant = l.id, v.Name
		if !l.recorded {
			err = errors.Join(err, l.recordLaunch(a, event.Deployment{Managed: v.URL == ""}))
		}
		err = errors.Join(err, a.Record(event.Event{Type: event.TypeFailure, Failure: f}))
	}
	left, endErr := l.end(ctx, a)
	if f == nil {
		f = left
	}
	return nil, f, errors.Join(err, endErr)
}

// start launches the process, or takes note of a server that is already there.
func (l *life) start(ctx context.Context, a *Agent) (failed *event.Failure, err error) {
	e := event.Deployment{Managed: l.variant.URL == ""}
	if n, _, ok := deploy.OOMKills(); ok {
		l.oomKills.Store(n)
	}
	base := l.variant.URL
	if e.Managed {
		failed, err = l.spawn(ctx, a, &e)
		base = "http://" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
	} else {
		failed, err = l.watchLaunch(ctx, a, false)
	}
	if err != nil {
		return nil, err
	}
	limits := a.limits()
	e.Limits = limitsInForce(limits)
	if failed == nil {
		key, _ := a.Secret(apiKey)
		if l.client, err = engine.NewClient(base, key, limits); err != nil {
			return nil, fmt.Errorf("variant %s: %w", l.variant.Name, err)
		}
	}
	return failed, l.recordLaunch(a, e)
}

// spawn starts the server's process and says in e where and how.
func (l *life) spawn(ctx context.Context, a *Agent, e *event.Deployment) (*event.Failure, error) {
	secrets, err := l.secrets(a)
	if err != nil {
		return nil, err
	}
	if err := a.left(ctx); err != nil {
		return l.fact(failure.Launch, failure.FoundLeftOver, err), nil
	}
	if f, err := l.watchLaunch(ctx, a, true); f != nil || err != nil {
		return f, err
	}
	e.Host, e.Port = cmp.Or(l.variant.Host, "127.0.0.1"), l.variant.Port
	if e.Port == 0 {
		if e.Port, err = deploy.FreePort(e.Host); err != nil {
			return nil, fmt.Errorf("choose a port on %s: %w", e.Host, err)
		}
	} else if err := deploy.CheckPort(net.JoinHostPort(e.Host, strconv.Itoa(e.Port))); err != nil {
		return l.fact(failure.Launch, failure.PortTaken, err), nil
	}
	argv, extra, err := l.engine.Args(l.variant.Variant, e.Host, e.Port)
	if err != nil {
		return nil, fmt.Errorf("command line of variant %s: %w", l.variant.Name, err)
	}
	fill := a.filler(e.Port)
	argv = a.command(argv, fill)
	if l.variant.Setup != "" {
		// One shell, so that what the set-up line exports reaches the server; exec, so that no shell stands between us.
		argv = append([]string{"/bin/sh", "-c", fill(l.variant.Setup) + "\nexec \"$@\"", "sh"}, argv...)
	}
	for _, word := range argv {
		e.Argv = append(e.Argv, a.redact(word))
	}
	cwd := cmp.Or(fill(l.variant.Cwd), a.WorkDir)
	env := l.environ(extra, secrets, fill)
	if failed, err := l.build(ctx, a, cwd, env); failed != nil || err != nil {
		return failed, err
	}
	l.proc, err = deploy.Launch(context.WithoutCancel(ctx), deploy.Command{
		ID: a.Order.RunID + "/" + l.id, Argv: argv, Env: env, Dir: cwd, LogPath: a.LogPath(l.id), Redact: a.redact,
	})
	if start := new(deploy.StartError); errors.As(err, &start) {
		return l.fact(failure.Launch, failure.LaunchFailed, err), nil
	} else if err != nil {
		return nil, fmt.Errorf("launch %s: %w", l.id, err)
	}
	e.PID = l.proc.PID()
	return nil, nil
}

// secrets are the values of those that the variant names.
func (l *life) secrets(a *Agent) (map[string]string, error) {
	values := map[string]string{}
	for _, env := range l.variant.Env {
		if env.Secret == "" {
			continue
		}
		value, ok := a.Secret(env.Secret)
		if !ok {
			return nil, fmt.Errorf("secret %s, which variant %s names, is not set in the environment", env.Secret, l.variant.Name)
		}
		values[env.Secret] = value
	}
	return values, nil
}

func (l *life) recordLaunch(a *Agent, e event.Deployment) error {
	l.recorded = true
	e.DeploymentID, e.Variant, e.VariantID, e.State = l.id, l.variant.Name, l.variant.ID, event.DeploymentLaunch
	return a.Record(event.Event{Type: event.TypeDeployment, Deployment: &e})
}

// build runs the variant's build commands, once a stretch of work. Their output
// goes where the server's will.
func (l *life) build(ctx context.Context, a *Agent, dir string, env []string) (*event.Failure, error) {
	if a.built[l.variant.Name] {
		return nil, nil
	}
	for i, argv := range l.variant.Build {
		c := deploy.Command{ID: fmt.Sprintf("%s/%s-build%d", a.Order.RunID, l.id, i+1), Argv: a.command(argv, a.filler(0)), Env: env, Dir: dir, LogPath: a.LogPath(l.id), Redact: a.redact}
		proc, err := deploy.Launch(ctx, c)
		why := ""
		var log []string
		if err == nil {
			<-proc.Done()
			if exit := proc.Exit(); exit.Code != 0 || exit.Signal != "" {
				why, log = fmt.Sprintf("%s: %s", deploy.Quote(c.Argv), exit), proc.LogTail(failureTail)
			}
		} else if start := new(deploy.StartError); errors.As(err, &start) {
			why = err.Error()
		} else {
			return nil, fmt.Errorf("build variant %s: %w", l.variant.Name, err)
		}
		if why != "" {
			f := failure.Classify(failure.Observation{Stage: failure.Build, Log: log, Facts: map[failure.Fact]string{failure.BuildFailed: a.redact(why)}})
			return l.outcome(f, failure.Build), ctx.Err()
		}
	}
	a.built[l.variant.Name] = true
	return nil, nil
}

// filler puts the target's values into the placeholders of a text.
func (a *Agent) filler(port int) func(string) string {
	return strings.NewReplacer("{port}", strconv.Itoa(port), "{files}", a.Files, "{workdir}", a.WorkDir).Replace
}

// command is a command line as it is run here: placeholders filled, our own path
// in the place of the embedded server's name.
func (a *Agent) command(argv []string, fill func(string) string) []string {
	out := make([]string, len(argv))
	for i, word := range argv {
		out[i] = fill(word)
	}
	if len(out) > 0 && out[0] == embedded.Program {
		out[0] = a.Self
	}
	return out
}

// environ is the runner's environment, the adapter's needs and the variant's
// own variables over it. Secrets are taken as they are.
func (l *life) environ(extra []string, secrets map[string]string, fill func(string) string) []string {
	env := append(os.Environ(), extra...)
	names := make([]string, 0, len(l.variant.Env))
	for name := range l.variant.Env {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		value := fill(l.variant.Env[name].Value)
		if s := l.variant.Env[name].Secret; s != "" {
			value = secrets[s]
		}
		env = append(env, name+"="+value)
	}
	return env
}

// ready waits until the expected model answers one token from the process that
// we started, reads what the server says of itself and prepares its prompts.
func (l *life) ready(ctx context.Context, a *Agent) (*event.Failure, error) {
	within := time.Duration(l.variant.ReadyTimeout)
	if l.variant.URL != "" {
		within = readyURL
	}
	limit, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var said error // what the latest try before the limit came to: a try that the limit cut off says nothing
	for {
		try, done := context.WithTimeout(limit, readyTry)
		err := l.engine.Ready(try, l.client, l.variant.Variant)
		done()
		if l.ended() {
			f := l.classify(nil, failure.Load, dead)
			return &f, nil
		}
		if err == nil {
			break
		}
		if limit.Err() != nil {
			if said != nil {
				err = said
			}
			f := l.fact(failure.Load, failure.ReadyTimeout, fmt.Errorf("not ready in %v: %s", within, strings.TrimPrefix(err.Error(), engine.ErrNotYet.Error()+": ")))
			f.Evidence = append(f.Evidence, l.logTail(3)...)
			return f, nil
		}
		if !errors.Is(err, engine.ErrNotYet) {
			return l.unusable(err), nil
		}
		said = err
		select {
		case <-time.After(readyPause):
		case <-l.done():
		case <-limit.Done():
		}
	}
	loadS := time.Since(l.launch).Seconds()
	info, err := l.engine.Info(ctx, l.client, l.variant.Variant)
	if err != nil {
		return l.unusable(fmt.Errorf("read what the server says of itself: %w", err)), nil
	}
	l.info = info
	if err := l.preparePrompts(ctx, a); err != nil {
		var request *unanswered
		if !errors.As(err, &request) {
			return l.unusable(err), nil
		}
		f := l.classify(&request.sample, failure.Load, l.aftermath(ctx, &request.sample))
		return &f, ctx.Err()
	}
	if speculates := info.Speculative; speculates != nil && *speculates && a.Order.Plan.Prompt.Source == "random" {
		note := event.Note{Code: "random-prompt-speculation", Variant: l.variant.Name, Text: "random prompts under speculation: few drafts are accepted, so decode looks slower than on text (prompt.source: \"text\")"}
		if err := a.Record(event.Event{Type: event.TypeNote, Note: &note}); err != nil {
			return nil, err
		}
	}
	for _, text := range info.Advice {
		note := event.Note{Code: "server-advice", Variant: l.variant.Name, Text: text}
		if err := a.Record(event.Event{Type: event.TypeNote, Note: &note}); err != nil {
			return nil, err
		}
	}
	return nil, a.Record(event.Event{Type: event.TypeDeployment, Deployment: &event.Deployment{
		DeploymentID: l.id, Variant: l.variant.Name, VariantID: l.variant.ID, State: event.DeploymentReady, Managed: l.proc != nil, LoadS: &loadS, Effective: effective(info),
	}})
}

// effective is what the server says of itself, flat, absent things left out.
func effective(i engine.Info) map[string]any {
	out := map[string]any{}
	for k, v := range i.Settings {
		out[k] = v
	}
	for k, v := range map[string]string{"version": i.Version, "model": i.Model, "attention_backend": i.Backend, "kv_dtype": i.KVDType} {
		if v != "" {
			out[k] = v
		}
	}
	for k, v := range map[string]int64{"context_limit": int64(i.ContextLimit), "kv_pool_tokens": i.KVPoolTokens, "page_size": int64(i.PageSize), "tp": int64(i.TP), "dp": int64(i.DP), "dcp": int64(i.DCP)} {
		if v != 0 {
			out[k] = v
		}
	}
	if i.Speculative != nil {
		out["speculative"] = *i.Speculative
	}
	out["token_ids"], out["exact_length"], out["cached_count"] = i.TokenIDs, i.ExactLength, i.CachedCount
	return out
}

// unanswered is the error of a request that failed before anything was measured.
type unanswered struct{ sample event.Sample }

func (u *unanswered) Error() string { return u.sample.Error + ": " + u.sample.Detail }

func (l *life) preparePrompts(ctx context.Context, a *Agent) (err error) {
	longest := 0
	for _, p := range a.Order.Plan.Points {
		longest = max(longest, p.Context)
	}
	spec := a.Order.Plan.Prompt
	if tok, ok := l.engine.(engine.Tokenizer); ok && l.info.TokenIDs {
		l.prompts, err = prompt.New(ctx, spec, a.Prompt, longest, func(ctx context.Context, text string) ([]int32, error) {
			return tok.Tokenize(ctx, l.client, text)
		})
		if !engine.NoRoute(err) {
			return err
		} // without the route prompts are text
	}
	if limit := l.info.ContextLimit; limit > 0 {
		longest = min(longest, limit/2)
	}
	l.prompts, err = prompt.NewText(ctx, spec, a.Prompt, longest, func(ctx context.Context, text string) (int64, error) {
		s := l.Generate(ctx, method.Request{Prompt: prompt.Prompt{Text: text}, MaxTokens: 1})
		if s.Error != "" {
			return 0, &unanswered{s}
		}
		if s.PromptTokens == nil {
			return 0, errors.New("the server reports no prompt token count and has no tokenizer route, so no prompt length can be stated")
		}
		return *s.PromptTokens, nil
	})
	return err
}

// probe runs the cache probe at the variant's shortest planned context, whichever
// points are still to be measured.
func (l *life) probe(ctx context.Context, a *Agent) (*event.Failure, error) {
	shortest := math.MaxInt
	for _, p := range a.Order.Plan.Points {
		if p.Variant == l.variant.Name {
			shortest = min(shortest, p.Context)
		}
	}
	samples, err := method.Probe(ctx, l, l.id, shortest, a)
	if err != nil {
		return nil, err
	}
	if last := &samples[len(samples)-1]; last.Error != "" {
		// The shortest context is what the probe runs at: if that fails, no point can be measured.
		state := l.aftermath(ctx, last)
		f := l.classify(last, failure.Warmup, state)
		return &f, ctx.Err()
	}
	verdict := stat.ProbeVerdict(samples, a.Order.Plan.Prompt.Nonce && l.prompts.IsText())
	return nil, a.Record(event.Event{Type: event.TypeDeployment, Deployment: &event.Deployment{
		DeploymentID: l.id, Variant: l.variant.Name, VariantID: l.variant.ID, State: event.DeploymentProbed, Managed: l.proc != nil, Probe: &verdict,
	}})
}

// end ends the server, if it is ours, and records how. What of it could not be
// ended is a failure: nothing can be measured beside it.
func (l *life) end(ctx context.Context, a *Agent) (left *event.Failure, err error) {
	e := event.Deployment{DeploymentID: l.id, Variant: l.variant.Name, VariantID: l.variant.ID, State: event.DeploymentEnd, Managed: l.proc != nil, Expected: true}
	if l.proc != nil {
		e.Expected = !l.ended()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(a.patience, stopWait))
		defer cancel()
		if err := l.proc.Stop(stop); err != nil {
			left = l.fact(failure.Teardown, failure.FoundLeftOver, err)
			if err := a.Record(event.Event{Type: event.TypeFailure, Failure: left}); err != nil {
				return left, err
			}
		}
		exit := l.proc.Exit()
		e.ExitSignal = exit.Signal
		if exit.Signal == "" && !exit.Lost {
			e.ExitCode = &exit.Code
		}
		if !e.Expected {
			e.LogTail = l.logTail(20)
		}
	}
	lived := time.Since(l.launch).Seconds()
	e.LifeS = &lived
	return left, a.Record(event.Event{Type: event.TypeDeployment, Deployment: &e})
}

func (l *life) done() <-chan struct{} {
	if l.proc == nil {
		return nil
	}
	return l.proc.Done()
}

func (l *life) ended() bool {
	select {
	case <-l.done():
		return true
	default:
		return false
	}
}

func (l *life) logTail(n int) []string {
	if l.proc == nil {
		return nil
	}
	return l.proc.LogTail(n)
}
