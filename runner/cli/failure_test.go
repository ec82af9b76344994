package cli_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"twopoint/results/event"
	"twopoint/results/run"
)

// productInPath puts the program as it is shipped, static and without cgo, at
// the front of PATH: threads that cgo starts map far more address space than a
// small memory limit has.
func productInPath(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "twopoint"), "twopoint")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// The embedded server dies of memory for real at 2048 tokens of context.
const dyingSpec = `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 4Ki, args: threads: 1}
	variants: {
		dying: args: "mem-limit": "8Mi"
		living: {}
	}
	sweep: {context: [64, 128, 2048, 3072], exclude: [{variant: "living", context: {min: 2048}}]}
	` + quick + `
}`

func TestServerDiesOfMemory(t *testing.T) {
	productInPath(t)
	const oom = "failed: host-oom"
	for policy, want := range map[string]map[int64]string{
		"":             {64: "", 128: "", 2048: oom, 3072: "skipped: skip_longer"},
		"restart":      {64: "", 128: "", 2048: oom, 3072: oom},
		"skip_longer":  {64: "", 128: "", 2048: oom, 3072: "skipped: skip_longer"},
		"stop_variant": {64: "skipped: stop_variant", 128: "skipped: stop_variant", 2048: oom, 3072: "skipped: stop_variant"},
	} {
		t.Run("on_failure="+policy, func(t *testing.T) {
			dir := specIn(t, dyingSpec)
			args := []string{"run", "."}
			if policy != "" {
				args = append(args, "--set", "on_failure="+policy)
			}
			r := measured(t, dir, args...)
			d := onlyRun(t, dir)
			nothingLeft(t, d.ID())
			tables := load(t, d)
			uniqueKeys(t, tables)
			for _, p := range tables.Points {
				got := p.Status + ": " + p.Reason
				if p.Variant == "living" || want[*p.ContextRequested] == "" {
					if p.Status != "ok" && p.Status != "unresolved" {
						t.Errorf("%s is %s", p.PointKey, got)
					}
					continue
				}
				if got != want[*p.ContextRequested] {
					t.Errorf("%s is %q, want %q", p.PointKey, got, want[*p.ContextRequested])
				}
				if p.Status == "failed" {
					if p.FailureKind != "host-oom" || !strings.Contains(p.Evidence, "out of memory: cannot map") {
						t.Errorf("%s: kind %q, evidence %q", p.PointKey, p.FailureKind, p.Evidence)
					}
				}
			}
			for _, e := range events(t, d) {
				if e.Failure != nil && e.Failure.ExitSignal != "SIGKILL" {
					t.Errorf("failure event without the exit signal: %+v", *e.Failure)
				}
			}
			for _, row := range []string{"dying +2048 .*failed: host-oom", "living +128 .*(ok|unresolved.*)"} {
				for where, text := range map[string]string{"run": r.stdout, "show": twopoint(t, dir, 0, "show", "last").stdout} {
					if !matches(text, "(?m)^"+row+"$") {
						t.Errorf("%s has no row %q:\n%s", where, row, text)
					}
				}
			}
			if policy == "restart" { // done is done, also what failed; unless it is asked for
				before := len(events(t, d))
				measured(t, dir, "resume", "last")
				if fresh := events(t, d)[before:]; len(fresh) != 2 {
					t.Errorf("resume of a finished run did more than begin and end: %d events", len(fresh))
				}
				before = len(events(t, d))
				twopoint(t, dir, 4, "resume", "last", "--retry", "failed", "--only", "context=2048")
				again := 0
				for _, e := range events(t, d)[before:] {
					if e.Failure != nil && e.Failure.Kind == "host-oom" && e.Failure.Stage == "prefill" && e.Failure.PointID != "" {
						again++
					}
				}
				if again != 1 {
					t.Errorf("--retry failed of one point: %d failures", again)
				}
				uniqueKeys(t, load(t, d))
			}
		})
	}
}

// Servers that never serve: each gives its points an outcome, ends, and leaves
// nothing behind.
func TestServerNeverServes(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	cases := map[string]struct {
		server               string
		kind, stage, message string
		evidence             string
		exit                 int // of the server; -1: none
	}{
		"never ready":    {`command: ["sh", "-c", "echo loading layer 7; sleep 600"], ready_timeout: "1s"`, "not-ready", "load", "connection refused", "loading layer 7", -1},
		"not found":      {`command: ["./no-such-server"]`, "start-error", "launch", "program not found", "", -1},
		"exits at once":  {`command: ["sh", "-c", "echo the model file is broken >&2; exit 3"]`, "start-error", "load", "exit code 3", "the model file is broken", 3},
		"exits with 0":   {`command: ["sh", "-c", "echo nothing to do"]`, "start-error", "load", "exit code 0", "nothing to do", 0},
		"unknown flag":   {`args: "no-such-flag": 1`, "bad-flag", "load", "unrecognized arguments", "unrecognized arguments: --no-such-flag", 2},
		"port in use":    {fmt.Sprintf("port: %d", busy.Addr().(*net.TCPAddr).Port), "port-in-use", "launch", "in use", "", -1},
		"build fails":    {`files: ["k.txt"], build: [["sh", "-c", "echo no rule to make it; exit 2"]]`, "start-error", "build", "exit", "no rule to make it", -1},
		"no such preset": {`model_path: "tiny-none"`, "start-error", "load", "exit code 1", "tiny-none", 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := specIn(t, `
experiment: {
	servers: e: {engine: "twopoint", model_path: *"tiny-gqa" | string, context_length: 1Ki, `+c.server+`}
	sweep: context: [64, 128]
}`)
			if err := os.WriteFile(filepath.Join(dir, "k.txt"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			twopoint(t, dir, 4, "run", ".")
			d := onlyRun(t, dir)
			nothingLeft(t, d.ID())
			tables := load(t, d)
			for _, p := range tables.Points {
				if p.Status != "failed" || p.FailureKind != c.kind || p.FailureStage != c.stage || !strings.Contains(p.FailureMessage, c.message) {
					t.Errorf("%s: %s %s in %s: %s\nwant %s in %s: …%s…", p.PointKey, p.Status, p.FailureKind, p.FailureStage, p.FailureMessage, c.kind, c.stage, c.message)
				}
				if !strings.Contains(p.Evidence, c.evidence) {
					t.Errorf("%s: evidence %q, want …%s…", p.PointKey, p.Evidence, c.evidence)
				}
			}
			for _, e := range events(t, d) {
				if f := e.Failure; f != nil && f.PointID != "" {
					if (f.ExitCode == nil) != (c.exit < 0) || f.ExitCode != nil && *f.ExitCode != c.exit {
						t.Errorf("exit code in the failure: %v, want %d", f.ExitCode, c.exit)
					}
				}
			}
		})
	}
}

// midRun starts a run that has far more to do than the test waits for, and
// returns once the server has served a pair.
func midRun(t *testing.T, more string) (dir string, d run.Dir, runner *exec.Cmd, server int, wait func() result) {
	t.Helper()
	dir = specIn(t, `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 1Ki, args: threads: 1}
	sweep: context: [64, 128]
	method: two_point: {a: 1, b: *33 | int, warmup: false, repeats: {min: *20000 | int, max: 20000, target: 0.2}}
	`+more+`
}`)
	runner, wait = start(t, dir, nil, "run", ".")
	t.Cleanup(func() { runner.Process.Kill() })
	await(t, "the first pair", func() bool {
		if d = onlyRun(t, dir); d == "" {
			return false
		}
		list, _ := d.Events() // the last line may be half written
		for _, e := range list {
			if e.Deployment != nil && e.Deployment.State == "launch" {
				server = e.Deployment.PID
			}
		}
		return slices.ContainsFunc(list, func(e event.Event) bool { return e.Repeat != nil && e.Repeat.Role == event.RoleMeasure })
	})
	return dir, d, runner, server, wait
}

func TestServerKilledFromOutside(t *testing.T) {
	t.Parallel()
	_, d, _, server, wait := midRun(t, `budget: per_point: "2s"`)
	syscall.Kill(server, syscall.SIGKILL)
	r := wait()
	nothingLeft(t, d.ID())
	var kinds []string
	for _, p := range load(t, d).Points {
		kinds = append(kinds, p.Status+" "+p.FailureKind)
	}
	if !slices.Contains(kinds, "failed killed") || r.code != 3 && r.code != 4 {
		t.Errorf("exit %d, points %q\n%s", r.code, kinds, tail(r.stderr, 5))
	}
}

// A run that goes on keeps its plan and its journal to itself.
func TestRunIsLocked(t *testing.T) {
	t.Parallel()
	dir, d, runner, _, wait := midRun(t, "")
	before, err := os.ReadFile(d.Path("plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"resume", "last"}, {"extend", "last", "--set", "sweep.context=[64, 128, 256]"}} {
		if r := twopoint(t, dir, 5, args...); !strings.Contains(r.stderr, "another process is writing it") {
			t.Errorf("%s: %s", args[0], r.stderr)
		}
	}
	after, err := os.ReadFile(d.Path("plan.json"))
	if err != nil || string(after) != string(before) {
		t.Errorf("the plan was changed under a run that goes on (%v)", err)
	}
	runner.Process.Signal(os.Interrupt)
	wait()
	nothingLeft(t, d.ID())
}

// A server that stops answering: the request ends by the spec's limit, the
// server is ended, the other points are measured in its next life.
func TestServerStopsAnswering(t *testing.T) {
	t.Parallel()
	_, d, _, server, wait := midRun(t, `limits: first_token: "2s"
	budget: per_point: "2s"`)
	syscall.Kill(server, syscall.SIGSTOP)
	r := wait()
	nothingLeft(t, d.ID())
	var timeouts, others int
	for _, p := range load(t, d).Points {
		if p.FailureKind == "timeout" {
			timeouts++
			if !strings.Contains(p.FailureMessage, "2s") {
				t.Errorf("the message does not name the limit: %s", p.FailureMessage)
			}
		} else if p.Status != "failed" && p.Status != "pending" {
			others++
		}
	}
	if timeouts != 1 || others != 1 {
		t.Errorf("%d points with a timeout, %d measured\n%s", timeouts, others, tail(r.stderr, 8))
	}
}

// ^C and TERM end the run and everything that it started; resume completes it.
func TestInterrupt(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir, d, runner, _, wait := midRun(t, "")
			runner.Process.Signal(sig)
			r := wait()
			if r.code != 130 || !strings.Contains(r.stderr, "resume") {
				t.Fatalf("exit %d\n%s", r.code, tail(r.stderr, 5))
			}
			if lines := strings.Fields(r.stdout); len(lines) == 0 || filepath.Join(dir, lines[len(lines)-1]) != string(d) {
				t.Errorf("the last line of stdout is not the folder:\n%s", r.stdout)
			}
			nothingLeft(t, d.ID())
			tables := load(t, d)
			if tables.Runs[0].State != "interrupted" {
				t.Errorf("the run's state is %q", tables.Runs[0].State)
			}
			for _, p := range tables.Points {
				if p.Status != "pending" {
					t.Errorf("%s is %s: an interrupt is no outcome", p.PointKey, p.Status)
				}
			}
			whole(t, d, events(t, d), tables)

			before := completePairs(tables)
			changePlan(t, d, func(p map[string]any) {
				p["method"].(map[string]any)["two_point"].(map[string]any)["repeats"].(map[string]any)["min"] = 3
			})
			measured(t, dir, "resume", d.ID())
			tables = load(t, d)
			after := completePairs(tables)
			for k := range before {
				if !after[k] {
					t.Errorf("the complete pair %v is gone after resume", k)
				}
			}
			uniqueKeys(t, tables)
		})
	}
}

// changePlan edits a run's plan, so that resume has less to do than the run had.
func changePlan(t *testing.T, d run.Dir, edit func(map[string]any)) {
	t.Helper()
	text, err := os.ReadFile(d.Path("plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p map[string]any
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	edit(p)
	if text, err = json.Marshal(p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("plan.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}
