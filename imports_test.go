package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A layer says what of ours a package may import. Patterns are paths below the
// module, "" being main; "x/..." is x and all below it. The first layer that
// names a package is its own.
type layer struct {
	of  string
	may []string
	why string
}

var layers = []layer{
	{"schema/load", []string{"schema", "schema/diag"}, "reading a spec knows the language only; planning comes after it"},
	{"schema/...", []string{"schema", "schema/diag"}, "the language is what all others build on, and its types carry no CUE"},
	{"kernels/...", []string{"kernels/..."}, "the kernels stand alone, to be used and tested without the rest"},
	{"results/table", []string{"schema", "schema/plan", "schema/diag", "results/..."}, "what remembers knows what was planned, never how it is carried out"},
	{"results/report", []string{"schema", "results/..."}, "words and pages are made from tables alone"},
	{"results/...", []string{"schema", "schema/plan", "schema/diag", "results/durable", "results/event", "results/stat", "results/history", "results/run", "results/claim"},
		"what remembers knows what was planned, never how it is carried out; tables are made last"},
	{"runner/failure", nil, "classification is a pure function of what was seen"},
	{"runner/deploy", []string{"runner/failure"}, "a server's life knows nothing of requests, plans or events"},
	{"runner/deploy/deploytest", nil, "what is done to processes in tests needs nothing of ours"},
	{"runner/engine/...", []string{"schema", "results/event", "runner/engine/...", "runner/failure"}, "an adapter speaks to a server and starts none"},
	{"runner/method/...", []string{"schema", "schema/plan", "results/event", "runner/method/..."}, "a method is handed a server as an interface; it knows no process and no HTTP"},
	{"runner/gate", []string{"schema", "schema/plan", "results/event", "runner/method/prompt"}, "a gate is handed a server as an interface and judges nothing"},
	{"runner/telemetry", []string{"results/event", "results/run"}, "looking at the machine depends on no stage of a run"},
	{"runner/serve/...", []string{"kernels/...", "runner/serve/..."}, "the embedded server is a program of its own: it knows nothing of measuring"},
	{"runner/target/...", []string{"schema/...", "results/...", "runner/target/..."}, "a target gets an agent running somewhere and is handed it as a function"},
	{"runner", []string{"schema/...", "results/event", "results/history", "results/stat", "kernels/...", "runner/engine/...", "runner/deploy", "runner/failure", "runner/gate", "runner/method/...", "runner/telemetry"},
		"the agent joins the parts; it writes no tables and knows no command line"},
	{"runner/cli", []string{"schema/...", "results/...", "kernels/...", "runner/..."}, "the command line may use every stage"},
	{"", []string{"runner/cli", "runner/deploy"}, "main is thin"},
	{"experiments/...", nil, "specs, not code"},
	{"test/...", []string{"schema/...", "kernels/...", "results/...", "runner/...", "test/..."}, "test tools may use all and are used by nobody"},
}

// A preserve is a foreign package that only some of ours may import.
type preserve struct {
	path string   // a foreign package and all below it
	only []string // packages of ours
	why  string
}

var preserves = []preserve{
	{"github.com/apache/arrow-go", []string{"results/table"}, "one package writes tables; 30 MB of Arrow stay out of all others"},
	{"cuelang.org/go", []string{"schema/load"}, "one package evaluates CUE and returns plain Go values"},
	{"github.com/yuin/goldmark", []string{"results/report"}, "one package makes pages"},
	{"github.com/spf13/cobra", []string{"runner/cli"}, "stages know no command line"},
	{"github.com/spf13/pflag", []string{"runner/cli", "runner/serve"}, "stages know no command line"},
	{"net/http", []string{"runner/engine/...", "runner/serve", "runner/target/...", "test/..."}, "deployments know no HTTP, and neither do methods"},
	{"os/exec", []string{"runner/deploy", "runner/telemetry", "runner/target/...", "runner/cli", "test/..."}, "what starts programs also ends them: package deploy does both"},
	{"time", []string{"schema", "schema/load", "schema/plan", "results/event", "results/run", "results/history/...", "results/table", "kernels/cpu", "runner/...", "test/..."},
		"statistics and classification read no clock"},
	{"os", []string{"schema/load", "results/durable", "results/event", "results/run", "runner", "runner/cli", "runner/deploy/...", "runner/serve", "runner/telemetry", "runner/target/...", "", "test/..."},
		"plan, statistics, histories, adapters and methods touch no file"},
	{"testing", []string{"runner/engine/enginetest", "runner/deploy/deploytest", "runner/target/targettest", "results/history/historytest", "test/..."}, "the program carries no test code"},
	{"unsafe", []string{"runner/serve/kv"}, "memory is mapped in one place"},
}

// foreign is what the program must not even reach through others.
var foreign = []struct{ path, why string }{
	{"runtime/cgo", "the binary is static (CGO_ENABLED=0)"},
	{"net/http/pprof", "it registers a handler by being imported"},
	{"gorgonia.org/cu", "its init ends the process on a machine without a GPU; device code is a program of its own"},
	{"github.com/ebitengine/purego", "device code is a program of its own"},
	{"github.com/shirou/gopsutil", "what it would tell is read from /proc"},
}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Module     *struct{ Path string }
	Imports    []string
	Deps       []string
}

const module = "twopoint"

// rel is a package's path below the module; ok is false for a foreign one.
func rel(path string) (r string, ok bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func matches(pattern, path string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == below || strings.HasPrefix(path, below+"/")
	}
	return path == pattern
}

func anyMatches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

func name(r string) string {
	if r == "" {
		return "main"
	}
	return r
}

// broken lists every import that breaks a rule, with the rule and its reason.
func broken(pkgs []pkg) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range pkgs {
		self, ours := rel(p.ImportPath)
		if !ours {
			continue
		}
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.of, self) })
		if i < 0 {
			say("%s has no layer: say in imports_test.go what it may import, and why", self)
			continue
		}
		for _, path := range p.Imports {
			if r, ours := rel(path); ours {
				if l := layers[i]; !anyMatches(l.may, r) {
					say("%s imports %s; of ours it may import only %v: %s", name(self), name(r), l.may, l.why)
				}
				continue
			}
			for _, c := range preserves {
				if matches(c.path+"/...", path) && !anyMatches(c.only, self) {
					say("%s imports %s, which only %v may: %s", name(self), path, c.only, c.why)
				}
			}
		}
		if self == "" {
			for _, path := range p.Deps {
				for _, f := range foreign {
					if matches(f.path+"/...", path) {
						say("main reaches %s: %s", path, f.why)
					}
				}
			}
		}
	}
	return out
}

// golist is every package of the module with what it imports, in the
// configuration in which the program is built.
func golist(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Module,Imports,Deps", "./...")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.Bytes())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// TestImports checks the layering (docs/architecture.md).
func TestImports(t *testing.T) {
	pkgs := golist(t)
	if len(pkgs) < 20 {
		t.Fatalf("go list knows only %d packages", len(pkgs))
	}
	for _, b := range broken(pkgs) {
		t.Error(b)
	}
	used := map[string]bool{}
	for _, p := range pkgs {
		self, _ := rel(p.ImportPath)
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.of, self) })
		if i >= 0 {
			used[layers[i].of] = true
		}
	}
	for _, l := range layers {
		if !used[l.of] && l.of != "runner/target/..." { // to come: running the agent elsewhere
			t.Errorf("the layer %s has no package", name(l.of))
		}
	}
}

// TestImportsAreChecked breaks each kind of rule in made-up packages.
func TestImportsAreChecked(t *testing.T) {
	for _, c := range []struct {
		what string
		pkg  pkg
		want string // part of the message; empty: nothing is broken
	}{
		{"as it should be", pkg{ImportPath: "twopoint/results/stat", Imports: []string{"math", "twopoint/schema", "twopoint/results/event"}}, ""},
		{"upwards", pkg{ImportPath: "twopoint/schema/plan", Imports: []string{"twopoint/results/event"}}, "schema/plan imports results/event"},
		{"sideways", pkg{ImportPath: "twopoint/kernels/cpu", Imports: []string{"twopoint/schema"}}, "the kernels stand alone"},
		{"types by way of CUE", pkg{ImportPath: "twopoint/results/table", Imports: []string{"twopoint/schema/load"}}, "results/table imports schema/load"},
		{"an adapter that starts servers", pkg{ImportPath: "twopoint/runner/engine/sglang", Imports: []string{"twopoint/runner/deploy"}}, "starts none"},
		{"a deployment that records", pkg{ImportPath: "twopoint/runner/deploy", Imports: []string{"twopoint/results/event"}}, "runner/deploy imports results/event"},
		{"a method with an adapter", pkg{ImportPath: "twopoint/runner/method", Imports: []string{"twopoint/runner/engine"}}, "no HTTP"},
		{"a test tool in use", pkg{ImportPath: "twopoint/runner/cli", Imports: []string{"twopoint/test/gguf"}}, "runner/cli imports test/gguf"},
		{"a thick main", pkg{ImportPath: "twopoint", Imports: []string{"twopoint/schema/load"}}, "main is thin"},
		{"a new package", pkg{ImportPath: "twopoint/util"}, "util has no layer"},
		{"Arrow elsewhere", pkg{ImportPath: "twopoint/results/run", Imports: []string{"github.com/apache/arrow-go/v18/parquet"}}, "one package writes tables"},
		{"CUE elsewhere", pkg{ImportPath: "twopoint/schema/plan", Imports: []string{"cuelang.org/go/cue"}}, "schema/plan imports cuelang.org/go/cue"},
		{"a deployment with HTTP", pkg{ImportPath: "twopoint/runner/deploy", Imports: []string{"net/http"}}, "know no HTTP"},
		{"statistics with a clock", pkg{ImportPath: "twopoint/results/stat", Imports: []string{"time"}}, "read no clock"},
		{"os/exec is not os", pkg{ImportPath: "twopoint/runner/engine", Imports: []string{"os/exec"}}, "os/exec, which only"},
		{"a library by way of others", pkg{ImportPath: "twopoint", Deps: []string{"github.com/shirou/gopsutil/v4/cpu"}}, "main reaches github.com/shirou/gopsutil"},
		{"a foreign package", pkg{ImportPath: "cuelang.org/go/cue", Imports: []string{"twopoint/test/gguf"}}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := strings.Join(broken([]pkg{c.pkg}), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want it to say %q", got, c.want)
			}
		})
	}
}
