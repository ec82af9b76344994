package cli_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"twopoint/runner/deploy"
)

var update = flag.Bool("update", false, "rewrite what the scripts expect")

// TestScripts runs every behaviour of the command line as a script, one a
// behaviour, named verb_case.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, UpdateScripts: *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "mask": mask, "lastline": lastLine, "port": port, "up": up, "noserver": noServer,
		},
	})
}

// exits 0,3,4 twopoint … runs a command that must end with one of the codes.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODES COMMAND…")
	}
	code := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = fmt.Sprint(exit.ExitCode())
	}
	if !slices.Contains(strings.Split(args[0], ","), code) {
		ts.Fatalf("%s: exit code %s, want %s", strings.Join(args[1:], " "), code, args[0])
	}
}

var masks = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`\d{8}T\d{6}Z-[0-9a-f]{6}`), "RUN"},
	{regexp.MustCompile(`\b\d\d\d\d-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `), "TIME "},
	{regexp.MustCompile(`\b(pid|port) \d+`), "$1 N"},
	{regexp.MustCompile(`-?\b\d+(\.\d+)?(e[-+]?\d+)? (ms|µs|ns|s|tok/s|GB/s)\b`), "N"},
	{regexp.MustCompile(`/tmp/[^ "']*/(RUN|script-[^/ "']*)`), "DIR"},
}

// mask FROM TO writes a file, or stdout or stderr, with everything masked that
// differs from run to run.
func mask(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mask FROM TO")
	}
	text := strings.ReplaceAll(ts.ReadFile(args[0]), ts.Getenv("WORK"), "WORK")
	for _, m := range masks {
		text = m.pattern.ReplaceAllString(text, m.word)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o644))
}

// lastline NAME puts the last line of stdout into a variable; it must name a
// folder with a plan.
func lastLine(ts *testscript.TestScript, neg bool, args []string) {
	lines := strings.Split(strings.TrimRight(ts.ReadFile("stdout"), "\n"), "\n")
	last := lines[len(lines)-1]
	if _, err := os.Stat(filepath.Join(ts.MkAbs(last), "plan.json")); err != nil {
		ts.Fatalf("the last line of stdout is no run: %q", last)
	}
	ts.Setenv(args[0], last)
	ts.Setenv(args[0]+"_ID", filepath.Base(last))
}

// port NAME puts the number of a free port into a variable.
func port(ts *testscript.TestScript, neg bool, args []string) {
	p, err := deploy.FreePort("127.0.0.1")
	ts.Check(err)
	ts.Setenv(args[0], fmt.Sprint(p))
}

// up URL waits until a server answers there.
func up(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		r, err := http.Get(args[0])
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			ts.Fatalf("nothing answers at %s: %v", args[0], err)
		}
	}
}

// noserver ID fails if a process of the run lives.
func noServer(ts *testscript.TestScript, neg bool, args []string) {
	if left := deploy.Leftovers(args[0]); len(left) > 0 {
		ts.Fatalf("still there: %v", left)
	}
}
