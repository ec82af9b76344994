// Package cases holds a test for each case of the case log: what went wrong for
// real users of such tools, played on the scripted stand-in server, and driven
// through the built program. What is asserted are rows of the tables and what
// the program prints, never its insides.
package cases

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/deploy"
	"twopoint/test/standin"
)

// Programs under test, built once.
var product, server string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "twopoint-cases")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir, "twopoint", "twopoint/test/standin/cmd/standin")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		product, server = filepath.Join(dir, "twopoint"), filepath.Join(dir, "standin")
		flag.Parse()
		flag.Set("test.parallel", "10") // these tests wait for scripted clocks
		return m.Run()
	}())
}

// outcome is a finished run.
type outcome struct {
	*table.Tables
	Exit           int
	Stdout, Stderr string
	Dir            run.Dir
	PeakRSSBytes   int64 // of the program; servers are not its children
}

// quick is a method of few pairs with fixed budgets: b − a = 16 as in the cases.
const quick = `method: two_point: {a: 1, b: 17, repeats: {min: 3, max: 3, target: 0.5}}`

// spec is an experiment with one server that is there already, at 1,000 tokens of
// context where fields hold no sweep.
func spec(url, engine, fields string) string {
	return experiment(fmt.Sprintf(`servers: s: {engine: %q, url: %q, flush: "auto"}`, engine, url), fields)
}

func experiment(fields ...string) string {
	text := strings.Join(fields, "\n\t")
	if !strings.Contains(text, "sweep:") {
		text += "\n\tsweep: context: [1000]"
	}
	return "experiment: {\n\ttitle: \"case\"\n\t" + text + "\n}\n"
}

// managed is the field servers of an experiment whose server twopoint starts:
// the stand-in with a script, under an engine's name.
func managed(t testing.TB, engine string, s standin.Script, fields string) string {
	t.Helper()
	s.Face = engine
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	command, _ := json.Marshal([]string{server, "--face", engine, "--script", string(b)})
	return fmt.Sprintf("{engine: %q, model_path: \"standin\", command: %s, %s}", engine, command, fields)
}

// measure runs a spec to its end and reads its tables. more are arguments of the
// program, and NAME=value settings of its environment before them. On a machine
// that is busy with something else twopoint may refuse a number: where the stand-in
// itself was late, or cannot be asked any more, it runs again, twice at most.
func measure(t testing.TB, spec string, more ...string) (o outcome) {
	t.Helper()
	for range 3 {
		o = measureOnce(t, spec, more...)
		busy := func(p table.PointRow) bool {
			return slices.Contains([]string{"wide_interval", "cache_suspected", "not_concurrent", "no_stream"}, p.Reason)
		}
		if !slices.ContainsFunc(o.Points, busy) || !late(spec) {
			break
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("exit %d\n%s%s", o.Exit, o.Stdout, o.Stderr)
		}
	})
	return o
}

// lateBy is how late the stand-in may write before the machine counts as busy.
const lateBy = 0.003 // seconds

var address = regexp.MustCompile(`url: "(http://127[^"]+)"`)

// late tells whether a stand-in that the spec names wrote later than it meant to; of one
// that is gone that is taken to be so.
func late(spec string) bool {
	urls := address.FindAllStringSubmatch(spec, -1)
	for _, u := range urls {
		resp, err := http.Get(u[1] + "/standin/requests")
		if err != nil {
			return true
		}
		defer resp.Body.Close()
		var requests []standin.Request
		if json.NewDecoder(resp.Body).Decode(&requests) != nil {
			return true
		}
		if slices.ContainsFunc(requests, func(r standin.Request) bool { return r.LateS > lateBy }) {
			return true
		}
	}
	return len(urls) == 0
}

func measureOnce(t testing.TB, spec string, more ...string) outcome {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "spec.cue"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(product, "run", ".")
	cmd.Env = os.Environ()
	for len(more) > 0 && strings.Contains(more[0], "=") && !strings.HasPrefix(more[0], "-") {
		cmd.Env, more = append(cmd.Env, more[0]), more[1:]
	}
	cmd.Args = append(cmd.Args, more...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(3*time.Minute, func() { cmd.Process.Signal(syscall.SIGQUIT) })
	err := cmd.Wait()
	late.Stop()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	o := outcome{Exit: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		o.PeakRSSBytes = used.Maxrss << 10
	}
	for _, text := range []string{o.Stdout, o.Stderr} {
		if strings.Contains(text, "NaN") || strings.Contains(text, "+Inf") || strings.Contains(text, "panic:") || strings.Contains(text, "goroutine ") {
			t.Errorf("printed:\n%s", text)
		}
	}
	dirs, err := run.List(filepath.Join(dir, "runs"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("exit %d, %d runs (%v)\n%s%s", o.Exit, len(dirs), err, o.Stdout, o.Stderr)
	}
	o.Dir = dirs[0]
	if o.Tables, err = table.Load(o.Dir); err != nil {
		t.Fatal(err)
	}
	if left := deploy.Leftovers(o.Runs[0].RunID); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
	return o
}

// point is the planned point of that key.
func (o outcome) point(t testing.TB, key string) table.PointRow {
	t.Helper()
	for _, p := range o.Points {
		if p.PointKey == key {
			return p
		}
	}
	t.Fatalf("no point %s", key)
	return table.PointRow{}
}

// samples are the requests of a point with a role; of leg "" all.
func (o outcome) samples(key, role, leg string) (out []table.SampleRow) {
	for _, s := range o.Samples {
		if s.PointKey == key && s.Role == role && (leg == "" || s.Leg == leg) {
			out = append(out, s)
		}
	}
	return out
}

// status fails unless the point has that status and reason.
func (o outcome) status(t testing.TB, key, status, reason string) table.PointRow {
	t.Helper()
	p := o.point(t, key)
	if p.Status != status || p.Reason != reason {
		t.Errorf("%s is %s (%s: %s), want %s (%s)", key, p.Status, p.Reason, p.Detail, status, reason)
	}
	if p.Status != "ok" && (p.SPerTok != nil || p.DecodeTokS != nil || p.PrefillTokS != nil || p.TTFTS != nil) {
		t.Errorf("%s is %s and has values", key, p.Status)
	}
	return p
}

// near fails unless a figure is within 5 % of the scripted truth, or its interval
// holds the truth: on a busy machine that is what it is for, and decode's is no wider
// than ±25 % where a point is ok. One without an interval has 30 %: what the cases are
// about is wrong by more.
func near(t testing.TB, what string, got *float64, want float64, interval ...*float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s is null, want %g", what, want)
	case math.Abs(*got-want) <= 0.05*math.Abs(want), len(interval) == 0 && math.Abs(*got-want) <= 0.30*math.Abs(want):
	case len(interval) == 2 && interval[0] != nil && interval[1] != nil && *interval[0] <= want && want <= *interval[1]:
	default:
		t.Errorf("%s is %g, want %g", what, *got, want)
	}
}

// ok fails unless the point is ok and decodes and prefills as the clock of the
// cases does: 50 tok/s, 10,000 tok/s.
func (o outcome) ok(t testing.TB, key string) table.PointRow {
	t.Helper()
	p := o.status(t, key, "ok", "")
	if p.Status == "ok" {
		near(t, key+" decode_tok_s", p.DecodeTokS, 50, p.DecodeTokSLo, p.DecodeTokSHi)
		near(t, key+" prefill_tok_s", p.PrefillTokS, 10_000, p.PrefillTokSLo, p.PrefillTokSHi)
	}
	return p
}

// has tells whether a comma-separated list holds a code.
func has(list, code string) bool { return strings.Contains(","+list+",", ","+code+",") }
