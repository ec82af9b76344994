//go:build real

package real

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"twopoint/results/run"
	"twopoint/results/table"
)

// twopoint runs the built program as a user would, with llama-server and mkgguf
// in PATH, and returns the run's folder (the last line of stdout) and the exit
// code.
func twopoint(t *testing.T, args ...string) (run.Dir, int) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "bin", "twopoint"), args...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(t))+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatalf("%v (make build, make real)", err)
	}
	t.Logf("twopoint %s\n%s%s", strings.Join(args, " "), stderr.String(), stdout.String())
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	return run.Dir(lines[len(lines)-1]), cmd.ProcessState.ExitCode()
}

func load(t *testing.T, dir run.Dir) *table.Tables {
	t.Helper()
	tables, err := table.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// The experiment runs against llama.cpp's own server: every measured prompt has
// exactly the length asked for and no token of it comes from a cache.
func TestExperimentOnLlamaCpp(t *testing.T) {
	out := t.TempDir()
	dir, _ := twopoint(t, "run", "../../experiments/llamacpp-cpu", "--out", out)
	tables := load(t, dir)
	measured := 0
	for _, s := range tables.Samples {
		if s.Role != "measure" {
			continue
		}
		measured++
		switch {
		case s.FailureKind != "":
			t.Errorf("%s: %s: %s", s.PointKey, s.FailureKind, s.Detail)
		case s.PromptTokens == nil || *s.PromptTokens != *s.ContextRequested:
			t.Errorf("%s: a prompt of %v tokens, %d asked for", s.PointKey, s.PromptTokens, *s.ContextRequested)
		case s.CachedTokens == nil || *s.CachedTokens != 0:
			t.Errorf("%s: cached tokens %v, want 0", s.PointKey, s.CachedTokens)
		case s.CompletionTokens == nil || *s.CompletionTokens != *s.TokensRequested:
			t.Errorf("%s: %v tokens, %d asked for", s.PointKey, s.CompletionTokens, *s.TokensRequested)
		case s.FlushOK == nil || !*s.FlushOK:
			t.Errorf("%s: the flush before it was not confirmed", s.PointKey)
		}
	}
	if measured < 2*8*3 {
		t.Errorf("%d measured requests, at least 48 expected", measured)
	}
	for _, d := range tables.Deployments {
		if d.FlushProven != "yes" {
			t.Errorf("%s: flush proven %q", d.Variant, d.FlushProven)
		}
		if d.ServerVersion == "" || d.ContextLimit == nil || *d.ContextLimit != 4096 || d.Expected == nil || !*d.Expected {
			t.Errorf("%s: version %q, context limit %v, ended as asked %v", d.Variant, d.ServerVersion, d.ContextLimit, d.Expected)
		}
	}
	for _, p := range tables.Points {
		// How wide an interval is depends on the machine; that nothing else is wrong does not.
		if p.Status != "ok" && p.Status != "unresolved" {
			t.Errorf("%s: %s %s %s", p.PointKey, p.Status, p.Reason, p.Detail)
		}
	}

	// The same without flush, nonce or per-request switch: llama.cpp's own cache answers, and no number comes out.
	cached, code := twopoint(t, "run", "../../experiments/llamacpp-cpu", "--out", out,
		"--set", "servers.llamacpp.flush=never", "--set", "prompt.nonce=false", "--set", "sweep.context=[256, 512]", "--only", "variant=fa-on")
	if code != 4 {
		t.Errorf("exit code %d, want 4: nothing can be measured", code)
	}
	for _, p := range load(t, cached).Points {
		if p.Variant == "fa-on" && (p.Status != "invalid" || p.Reason != "cache_hit" || p.SPerTok != nil || p.DecodeTokS != nil) {
			t.Errorf("%s: %s %s, s_per_tok %v; want invalid cache_hit and no value", p.PointKey, p.Status, p.Reason, p.SPerTok)
		}
	}

	// Both runs' tables in other people's readers, each and as one data set.
	check := exec.Command(filepath.Join("..", "..", ".real", "venv", "bin", "python"), "check_tables.py", string(dir), string(cached))
	text, err := check.CombinedOutput()
	t.Logf("%s", text)
	if err != nil {
		t.Error(err)
	}
}
