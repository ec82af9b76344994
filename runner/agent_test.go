package runner

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"twopoint/results/durable"
	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/runner/engine"
	"twopoint/schema"
	"twopoint/schema/load"
	"twopoint/schema/plan"
)

// instant is an engine whose server answers at once, with the times that an
// honest one would have taken.
type instant struct {
	perToken func(context, n int) float64 // seconds per token of the n-th request of the process; nil: a constant
	requests *int
	refuse   func(context int) bool
}

func (instant) Name() string                        { return "openai" }
func (instant) Vet(schema.Variant) []engine.Problem { return nil }
func (instant) Args(schema.Variant, string, int) (argv, env []string, err error) {
	return nil, nil, fmt.Errorf("not launched")
}
func (instant) Ready(context.Context, *engine.Client, schema.Variant) error { return nil }
func (instant) Info(context.Context, *engine.Client, schema.Variant) (engine.Info, error) {
	return engine.Info{Model: "instant", ContextLimit: 1 << 20, TokenIDs: true, ExactLength: true, CachedCount: true}, nil
}

func (instant) Tokenize(_ context.Context, _ *engine.Client, text string) ([]int32, error) {
	ids := make([]int32, len(text)/4)
	for i := range ids {
		ids[i] = int32(text[4*i]) + 100
	}
	return ids, nil
}

func (instant) Flush(context.Context, *engine.Client) event.Flush {
	ok := true
	return event.Flush{Method: "instant", Attempts: 1, OK: &ok}
}

func (e instant) Generate(_ context.Context, _ *engine.Client, r engine.Request) event.Sample {
	*e.requests++
	length, n, cached := int64(len(r.IDs)), int64(r.MaxTokens), int64(0)
	s := event.Sample{Start: time.Now().UTC(), TokensRequested: r.MaxTokens}
	if e.refuse != nil && e.refuse(int(length)) {
		s.Error, s.Transport, s.HTTPStatus, s.Detail = "http-error", "http", 400, "Input length exceeds the maximum allowed length"
		return s
	}
	perToken := 100e-6
	if e.perToken != nil {
		perToken = e.perToken(int(length), *e.requests)
	}
	ttft := float64(length) * 10e-6
	s.TTFTS, s.TotalS, s.Streamed = &ttft, ttft+float64(n-1)*perToken, true
	s.PromptTokens, s.CompletionTokens, s.CachedTokens = &length, &n, &cached
	for i := range n {
		s.ChunkS, s.ChunkTokens = append(s.ChunkS, ttft+float64(i)*perToken), append(s.ChunkTokens, 1)
	}
	s.Finish, s.HTTPStatus, s.OutputSHA256 = "length", 200, strings.Repeat("0", 64)
	return s
}

// agentFor is an agent about to execute a spec against an engine, with a real
// journal in dir.
func agentFor(tb testing.TB, dir, spec string, e instant) *Agent {
	tb.Helper()
	loaded, list := load.Load("-", load.Options{Stdin: strings.NewReader(spec)})
	if list.HasErrors() {
		tb.Fatal(list)
	}
	p, list := plan.New(loaded.Experiment, loaded.Hash, plan.Options{})
	if list.HasErrors() {
		tb.Fatal(list)
	}
	order, err := p.WorkOrder(p.Orders[0].ID, "20260101T000000Z-000000")
	if err != nil {
		tb.Fatal(err)
	}
	journal, err := event.Create(filepath.Join(dir, order.Order.ID+".jsonl"), order.Order.ID)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { journal.Close() })
	return &Agent{
		Order: order, History: history.New(p, nil), Journal: journal, Version: "test",
		Engine: func(string) (engine.Engine, bool) { return e, true },
		Secret: func(string) (string, bool) { return "", false },
	}
}

const instantSpec = `experiment: {
	servers: s: {engine: "openai", url: "http://127.0.0.1:9", flush: "auto"}
	sweep: context: [64, 128, 256]
	method: two_point: {a: 1, b: %s, repeats: {min: 3, max: 5, target: 0.1}}
}`

// pairs are the agent's pairs in order: "warmup 64", "measure 128", …
func pairs(tb testing.TB, a *Agent, dir string) []string {
	tb.Helper()
	list, err := event.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range list {
		if e.Repeat != nil {
			out = append(out, fmt.Sprintf("%s %d %s", e.Repeat.Role, a.History.Point(e.Repeat.PointID).Context, e.Repeat.Order))
		}
	}
	return out
}

// Round 1 takes one pair at every context, ascending; later rounds alternate
// direction and go to the points that are far from their target; the first point
// is measured once more at the end.
func TestOrderOfPairs(t *testing.T) {
	dir, requests := t.TempDir(), 0
	noisy := func(context, n int) float64 { // only 128 needs more than three pairs
		if context == 128 {
			return 100e-6 * (1 + 0.3*float64(n%5))
		}
		return 100e-6
	}
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, "33"), instant{perToken: noisy, requests: &requests})
	reason, err := a.Run(t.Context(), "start")
	if err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	want := []string{
		"warmup 64 ab", "measure 64 ab", "warmup 128 ab", "measure 128 ab", "warmup 256 ab", "measure 256 ab",
		"measure 256 ba", "measure 128 ba", "measure 64 ba",
		"measure 64 ab", "measure 128 ab", "measure 256 ab",
		"measure 128 ba", "measure 128 ab",
		"drift 64 ab",
	}
	if got := pairs(t, a, dir); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// With b "auto" a point has a warm-up pair and two pilots before its first pair.
func TestPilotsComeFirst(t *testing.T) {
	dir, requests := t.TempDir(), 0
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, `"auto"`), instant{requests: &requests})
	if _, err := a.Run(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	want := []string{"warmup 64 ab", "pilot 64 ab", "pilot 64 ba", "measure 64 ab", "warmup 128 ab"}
	if got := pairs(t, a, dir); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("got\n%s\nwant first\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, p := range a.History.Points() {
		if status, reason, detail := p.Outcome(); status != "ok" || p.Sized == nil || p.Sized.B <= p.Sized.A {
			t.Errorf("%s: %s %s %s, sized %+v", p.Key, status, reason, detail, p.Sized)
		}
	}
}

// A refusal is the point's outcome; the server, which still answers, is kept,
// and longer contexts are skipped.
func TestRefusalKeepsTheServer(t *testing.T) {
	dir, requests := t.TempDir(), 0
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, "33"), instant{requests: &requests, refuse: func(c int) bool { return c >= 128 }})
	if _, err := a.Run(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range a.History.Points() {
		status, reason, _ := p.Outcome()
		got = append(got, strings.TrimRight(fmt.Sprintf("%d %s %s", p.Context, status, reason), " "))
	}
	want := []string{"64 ok", "128 failed context-too-long", "256 skipped skip_longer"}
	if !slices.Equal(got, want) || a.History.Deployments() != 1 {
		t.Errorf("%d lives, points %q, want %q", a.History.Deployments(), got, want)
	}
}

// wordy takes token ids, but has no route that makes them: a prompt has as many
// tokens as words.
type wordy struct{ instant }

func (wordy) Tokenize(context.Context, *engine.Client, string) ([]int32, error) {
	return nil, fmt.Errorf("tokenise: %w", &engine.StatusError{Status: 404})
}

func (e wordy) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	if r.Text != "" {
		r.IDs = make([]int32, len(strings.Fields(r.Text)))
	}
	return e.instant.Generate(ctx, c, r)
}

func TestServerWithoutTokenizer(t *testing.T) {
	dir, requests := t.TempDir(), 0
	spec := strings.Replace(fmt.Sprintf(instantSpec, "33"), "method:", `prompt: {source: "random", length: "reported", tolerance: 0.3}, method:`, 1)
	a := agentFor(t, dir, spec, instant{requests: &requests})
	a.Engine = func(string) (engine.Engine, bool) { return wordy{instant{requests: &requests}}, true }
	if _, err := a.Run(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	for _, p := range a.History.Points() {
		if status, reason, _ := p.Outcome(); status != "ok" {
			t.Errorf("%d: %s %s", p.Context, status, reason)
		}
	}
}

// BenchmarkRunnerOverhead is the runner's own time: planning the next step,
// prompts, samples, events on disk. The server takes none. The aim is under 5 ms
// a point besides server and flush; the part that the disk takes, one fsync an
// event, is shown beside it.
func BenchmarkRunnerOverhead(b *testing.B) {
	for _, contexts := range []int{4, 16} {
		b.Run(fmt.Sprintf("contexts=%d/pairs=6", contexts), func(b *testing.B) {
			var axis []string
			for i := range contexts {
				axis = append(axis, fmt.Sprint(512*(i+1)))
			}
			spec := strings.Replace(fmt.Sprintf(instantSpec, "33"), "[64, 128, 256]", "["+strings.Join(axis, ", ")+"]", 1)
			spec = strings.Replace(spec, "{min: 3, max: 5, target: 0.1}", "{min: 6, max: 6}", 1)
			points, requests := 0, 0
			var spent, disk, syncing time.Duration
			var syncAt time.Time
			durable.Step = func(_, _ string, after bool) {
				if after {
					syncing += time.Since(syncAt)
				}
				syncAt = time.Now()
			}
			defer func() { durable.Step = nil }()
			for b.Loop() {
				a := agentFor(b, b.TempDir(), spec, instant{requests: &requests})
				syncing = 0
				began := time.Now()
				if reason, err := a.Run(b.Context(), "start"); err != nil || reason != event.EndDone {
					b.Fatal(reason, err)
				}
				spent += time.Since(began)
				disk += syncing
				points += contexts
			}
			ms := 1e3 * spent.Seconds()
			b.ReportMetric(ms/float64(points), "ms/point")
			b.ReportMetric(ms/float64(points*6), "ms/pair")
			b.ReportMetric(1e3*disk.Seconds()/float64(points), "fsync-ms/point")
		})
	}
}
