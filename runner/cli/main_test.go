package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"twopoint/results/durable"
	"twopoint/results/event"
	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/cli"
	"twopoint/runner/deploy"
)

// The test binary is the program too: testscript.Main puts a hard link to it,
// named twopoint, at the front of PATH, so that servers and supervisors, which
// are the program again, are that link.
func TestMain(m *testing.M) {
	if plan := os.Getenv(killVar); plan != "" {
		if err := armKill(plan); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
	}
	deploy.MaybeSupervise()
	testscript.Main(m, map[string]func(){"twopoint": func() {
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}})
}

// killVar makes the program end itself with SIGKILL at a step that makes
// something durable: "fsync:7:before", "rename:2:after", "sample:3:torn" (the
// third fsync whose file is a journal that ends with an event of that type, after
// half of that event's line is cut off, as a crash of the machine can leave it).
const killVar = "TWOPOINT_TEST_KILL"

func armKill(plan string) error {
	kind, rest, _ := strings.Cut(plan, ":")
	number, when, _ := strings.Cut(rest, ":")
	n, err := strconv.Atoi(number)
	if err != nil || when != "before" && when != "after" && when != "torn" {
		return fmt.Errorf("%s=%q is not kind:number:before|after|torn", killVar, plan)
	}
	durable.Step = func(op, path string, after bool) {
		if op != kind && lastType(path) != kind || after != (when == "after") {
			return
		}
		if n--; n > 0 {
			return
		}
		if when == "torn" {
			tear(path)
		}
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}

// lastType is the type of a journal's last event; empty where path is no journal.
func lastType(path string) string {
	if filepath.Ext(path) != ".jsonl" {
		return ""
	}
	content, _ := os.ReadFile(path)
	content = bytes.TrimSuffix(content, []byte("\n"))
	last := content[bytes.LastIndexByte(content, '\n')+1:]
	if m := typeField.FindSubmatch(last); m != nil {
		return string(m[1])
	}
	return ""
}

var typeField = regexp.MustCompile(`"type":"(\w+)"`)

func tear(path string) {
	content, _ := os.ReadFile(path)
	start := bytes.LastIndexByte(bytes.TrimSuffix(content, []byte("\n")), '\n') + 1
	os.Truncate(path, int64(start+(len(content)-start)/2))
}

// result is what a call of the program gave.
type result struct {
	code           int
	signal         syscall.Signal
	stdout, stderr string
}

// start is a call of the program in dir, not yet waited for.
func start(t testing.TB, dir string, env []string, args ...string) (*exec.Cmd, func() result) {
	t.Helper()
	cmd := exec.Command("twopoint", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, func() result {
		err := cmd.Wait()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatalf("twopoint %s: %v", strings.Join(args, " "), err)
		}
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		r := result{code: status.ExitStatus(), stdout: stdout.String(), stderr: stderr.String()}
		if status.Signaled() {
			r.signal = status.Signal()
		}
		return r
	}
}

// twopoint calls the program in dir and expects an exit code.
func twopoint(t testing.TB, dir string, want int, args ...string) result {
	t.Helper()
	_, wait := start(t, dir, nil, args...)
	r := wait()
	if r.code != want {
		t.Fatalf("twopoint %s: exit %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), r.code, want, r.stdout, tail(r.stderr, 20))
	}
	return r
}

// measured calls run, resume or extend, whose exit code must be what the points'
// states say: whether a point is ok or unresolved is the machine's noise.
func measured(t testing.TB, dir string, args ...string) result {
	t.Helper()
	_, wait := start(t, dir, nil, args...)
	r := wait()
	d := onlyRun(t, dir)
	if d == "" {
		t.Fatalf("twopoint %s: exit %d and no run\n%s", strings.Join(args, " "), r.code, tail(r.stderr, 20))
	}
	ok, points := 0, load(t, d).Points
	for _, p := range points {
		if p.Status == "ok" {
			ok++
		}
	}
	want := 3
	switch ok {
	case len(points):
		want = 0
	case 0:
		want = 4
	}
	if r.code != want {
		t.Fatalf("twopoint %s: exit %d with %d of %d points ok\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), r.code, ok, len(points), r.stdout, tail(r.stderr, 20))
	}
	return r
}

// tail is the end of a long text.
func tail(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

func matches(text, pattern string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// specIn writes a spec into a new folder, which it returns.
func specIn(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "spec.cue"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// onlyRun is the folder of the one run below dir; empty where there is none.
func onlyRun(t testing.TB, dir string) run.Dir {
	t.Helper()
	dirs, err := run.List(filepath.Join(dir, "runs"))
	if err != nil || len(dirs) > 1 {
		t.Fatalf("runs in %s: %v, %v", dir, dirs, err)
	}
	if len(dirs) == 0 {
		return ""
	}
	return dirs[0]
}

// load derives the tables of a run, which must not be damaged.
func load(t testing.TB, dir run.Dir) *table.Tables {
	t.Helper()
	tables, err := table.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func events(t testing.TB, dir run.Dir) []event.Event {
	t.Helper()
	list, err := dir.Events()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// nothingLeft fails if a process of the run still lives after a bounded time.
func nothingLeft(t testing.TB, runID string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := deploy.Leftovers(runID)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %v", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// await polls until ok, at most a minute: what it waits for has happened or will
// never.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}
