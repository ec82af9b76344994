package cli_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/results/run"
	"twopoint/results/table"
)

// quick is the method of small specs. Whether so few pairs end ok or unresolved
// is the machine's noise and no matter of these tests.
const quick = `method: two_point: {a: 1, b: 33, warmup: false, repeats: {min: 3, max: 6, target: 0.2}}`

// Two variants, two contexts, one of them with pilots: every type of event that
// a run without failures has.
const killSpec = `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 1Ki, args: threads: 1}
	variants: {serial: args: kernel: "serial_perhead", split: args: kernel: "split_grouped"}
	sweep: context: [64, 128]
	` + quick + `
}`

// One variant cannot start and the other's pool is too small for the longer
// contexts: failures and skips.
const killFailingSpec = `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 4Ki, args: threads: 1}
	variants: {small: args: "max-total-tokens": 512, missing: command: ["./no-such-server"]}
	sweep: context: [64, 1024, 2048]
	` + quick + `
}`

// TestKill ends the runner with SIGKILL fifty times: before and after fsyncs and
// renames, with each type of event newest, torn or whole, and at random times.
// Each time the folder reads, no process stays, resume completes the run, and
// what was complete is kept.
func TestKill(t *testing.T) {
	var cases []killCase
	add := func(spec, kind string, n int, when ...string) {
		for _, w := range when {
			cases = append(cases, killCase{spec: spec, plan: fmt.Sprintf("%s:%d:%s", kind, n, w)})
		}
	}
	both := []string{"before", "after"}
	for _, typ := range []string{"run", "sample", "repeat", "point"} {
		add(killSpec, typ, 1, "before", "after", "torn")
	}
	for n := 1; n <= 4; n++ { // launch, ready, probed, end
		add(killSpec, "deployment", n, both[n%2])
	}
	add(killSpec, "deployment", 6, "torn") // ready, second variant
	add(killSpec, "run", 2, both...)       // the end
	add(killSpec, "sample", 12, both...)
	add(killSpec, "repeat", 8, "torn")
	for _, typ := range []string{"failure", "skip"} {
		add(killFailingSpec, typ, 1, "before", "after", "torn")
	}
	// Every run of the spec has at least so many fsyncs and renames.
	for i, n := range spread(100, 6) {
		add(killSpec, "fsync", n, both[i%2])
	}
	for i, n := range spread(12, 6) {
		add(killSpec, "rename", n, both[i%2])
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed of the random times: %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for len(cases) < 50 {
		cases = append(cases, killCase{spec: killSpec, after: time.Duration(random.Int64N(int64(3 * time.Second)))})
	}
	if testing.Short() {
		every := len(cases) / 10
		for i := range 10 {
			cases[i] = cases[i*every]
		}
		cases = cases[:10]
	}
	for i, c := range cases {
		name := c.plan
		if name == "" {
			name = fmt.Sprint("random:", c.after)
		}
		t.Run(fmt.Sprintf("%02d_%s", i+1, strings.ReplaceAll(name, ":", "_")), func(t *testing.T) {
			t.Parallel()
			c.test(t)
		})
	}
}

// spread is count numbers from 1 to most.
func spread(most, count int) []int {
	var out []int
	for i := range count {
		out = append(out, 1+i*(most-1)/(count-1))
	}
	return out
}

type killCase struct {
	spec  string
	plan  string        // of killVar
	after time.Duration // without a plan: when
}

func (c killCase) test(t *testing.T) {
	dir := specIn(t, c.spec)
	var env []string
	if c.plan != "" {
		env = []string{killVar + "=" + c.plan}
	}
	cmd, wait := start(t, dir, env, "run", ".")
	if c.plan == "" {
		time.AfterFunc(c.after, func() { cmd.Process.Kill() })
	}
	killed := wait()
	if killed.signal != syscall.SIGKILL && c.plan != "" {
		t.Fatalf("the runner was not killed: exit %d\n%s%s", killed.code, killed.stdout, killed.stderr)
	}

	twopoint(t, dir, 0, "ls")
	d := onlyRun(t, dir)
	if d == "" { // killed before the run had a folder: nothing to resume, nothing in the way
		measured(t, dir, "run", ".")
		return
	}
	nothingLeft(t, d.ID())
	twopoint(t, dir, 0, "show", "last")
	twopoint(t, dir, 0, "tables", "last")
	before := completePairs(load(t, d))

	measured(t, dir, "resume", "last")
	nothingLeft(t, d.ID())
	tables := load(t, d)
	after := completePairs(tables)
	for key := range before {
		if !after[key] {
			t.Errorf("the complete pair %v is gone after resume", key)
		}
	}
	uniqueKeys(t, tables)
	whole(t, d, events(t, d), tables)
	for _, p := range tables.Points {
		if p.Status == "pending" {
			t.Errorf("%s is pending after resume", p.PointKey)
		}
	}
	for _, pattern := range []string{".*.tmp-*", "*/.*.tmp-*"} {
		if left, _ := filepath.Glob(d.Path(pattern)); len(left) > 0 {
			t.Errorf("temporary files stay: %v", left)
		}
	}
}

type pairKey struct {
	point           string
	repeat, attempt int64
}

func completePairs(t *table.Tables) map[pairKey]bool {
	out := map[pairKey]bool{}
	for _, r := range t.Repeats {
		if r.Status == "complete" {
			out[pairKey{r.PointID, r.Repeat, r.Attempt}] = true
		}
	}
	return out
}

// uniqueKeys checks the keys of design.md 9.
func uniqueKeys(t *testing.T, tables *table.Tables) {
	t.Helper()
	seen := map[string]bool{}
	key := func(name string, parts ...any) {
		k := name + fmt.Sprint(parts...)
		if seen[k] {
			t.Errorf("two rows of %s", k)
		}
		seen[k] = true
	}
	for _, r := range tables.Samples {
		key("samples", r.DeploymentID, r.PointID, r.Role, r.Repeat, r.Attempt, r.Leg, r.Slot)
	}
	for _, r := range tables.Repeats {
		key("repeats", r.PointID, r.Repeat, r.Attempt)
	}
	for _, r := range tables.Points {
		key("points", r.PointID)
	}
	for _, r := range tables.Deployments {
		key("deployments", r.DeploymentID)
	}
}

// whole checks that every pair that has a sample and no end is cancelled in the
// tables, and that complete ones have both legs.
func whole(t *testing.T, d run.Dir, list []event.Event, tables *table.Tables) {
	t.Helper()
	status := map[pairKey]string{}
	for _, r := range tables.Repeats {
		status[pairKey{r.PointID, r.Repeat, r.Attempt}] = r.Status
	}
	ended, legs := map[pairKey]string{}, map[pairKey][]string{}
	for _, e := range list {
		switch {
		case e.Repeat != nil && e.Repeat.Role == event.RoleMeasure:
			ended[pairKey{e.Repeat.PointID, int64(e.Repeat.Repeat), int64(e.Repeat.Attempt)}] = e.Repeat.Status
		case e.Sample != nil && e.Sample.Role == event.RoleMeasure:
			k := pairKey{e.Sample.PointID, int64(e.Sample.Repeat), int64(e.Sample.Attempt)}
			legs[k] = append(legs[k], e.Sample.Leg)
		}
	}
	if len(legs) == 0 {
		t.Errorf("%s has no sample", d)
	}
	for k, l := range legs {
		want := ended[k]
		if want == "" {
			want = "cancelled"
		}
		if status[k] != want {
			t.Errorf("pair %v has legs %v and status %q, want %q", k, l, status[k], want)
		}
		if slices.Sort(l); want == "complete" && !slices.Equal(l, []string{"a", "b"}) {
			t.Errorf("the complete pair %v has legs %v", k, l)
		}
	}
}
