package cases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/deploy"
	"twopoint/test/standin"
)

// Servers that start late, die, hang or leave something behind.

// after is a script whose requests at exactly that many prompt tokens do then.
func after(context int, then string) standin.Script {
	return standin.Script{When: []standin.When{{MinContext: context, MaxContext: context, Then: standin.Then(then)}}}
}

// at is what became of a variant's points, by context: "1000 measured, 2000
// failed killed, 4000 skipped skip_longer". Whether a measured point is resolved is
// the machine's affair and not these cases'.
func (o outcome) at(variant string) string {
	var out []string
	for _, p := range o.Points {
		if p.Variant != variant {
			continue
		}
		word := p.Status + " " + p.Reason
		if p.Status == "ok" || p.Status == "unresolved" {
			word = "measured"
		}
		out = append(out, fmt.Sprintf("%d %s", *p.ContextRequested, word))
	}
	return strings.Join(out, ", ")
}

// became fails unless that became of a variant's points.
func (o outcome) became(t testing.TB, variant, want string) {
	t.Helper()
	if got := o.at(variant); got != want {
		t.Errorf("%s: %s\nwant %s", variant, got, want)
	}
}

func (o outcome) lives(variant string) (out []table.DeploymentRow) {
	for _, d := range o.Deployments {
		if d.Variant == variant {
			out = append(out, d)
		}
	}
	return out
}

func TestC16ReadyTooEarly(t *testing.T) {
	t.Parallel()
	const loading = 2.0
	early := standin.Life{LoadS: loading, Listen: "early", ModelsEarly: true}
	check := func(t *testing.T, o outcome) {
		t.Helper()
		o.became(t, "s", "1000 measured")
		if d := o.Deployments; len(d) != 1 || !d[0].Ready || d[0].LoadS == nil || d[0].FailureKind != "" {
			t.Fatalf("lives: %v", d)
		}
		for _, s := range o.Samples {
			if s.FailureKind != "" || s.HTTPStatus == nil || *s.HTTPStatus != 200 {
				t.Errorf("a %s request of the early phase is on record: %s %s", s.Role, s.FailureKind, s.Detail)
			}
		}
	}
	for _, engine := range []string{"sglang", "llamacpp", "vllm"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			o := measure(t, experiment("servers: s: "+managed(t, engine, standin.Script{Life: early}, ""), quick))
			check(t, o)
			if load := *o.Deployments[0].LoadS; load < loading || load > 2*loading {
				t.Errorf("load_s is %g, the server took %g", load, loading)
			}
		})
	}
	t.Run("no health route", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Life: early})
		check(t, measure(t, spec(url, "openai", quick)))
	})
	t.Run("an empty list of models", func(t *testing.T) {
		t.Parallel()
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: standin.Life{NoModels: true}}, `ready_timeout: "2s"`), quick))
		o.status(t, "s/1000/1", "failed", "not-ready")
	})
}

// locked tells whether a process holds the lock on a file.
func locked(t testing.TB, name string) bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

func TestC18WorkersOutliveTheServer(t *testing.T) {
	t.Parallel()
	t.Run("the next variant starts", func(t *testing.T) {
		t.Parallel()
		lock := filepath.Join(t.TempDir(), "memory")
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: standin.Life{Lock: lock}}, ""),
			`variants: {one: {}, two: env: SECOND: "1"}`, quick))
		o.became(t, "one", "1000 measured")
		o.became(t, "two", "1000 measured")
		if locked(t, lock) {
			t.Error("a worker is left")
		}
	})
	t.Run("the server dies first", func(t *testing.T) {
		t.Parallel()
		lock := filepath.Join(t.TempDir(), "memory")
		s := after(2000, `{"life": {"kill": true}}`)
		s.Life.Lock = lock
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", s, ""), `variants: {one: {}, two: env: SECOND: "1"}`, `sweep: context: [1000, 2000]`, quick))
		for _, v := range []string{"one", "two"} {
			o.became(t, v, "1000 measured, 2000 failed killed")
		}
		if locked(t, lock) {
			t.Error("a worker is left")
		}
	})
	t.Run("somebody else's", func(t *testing.T) {
		t.Parallel()
		// Nobody's but the tester's: it is not ended, the variant fails with the
		// server's words, the other goes on.
		lock := filepath.Join(t.TempDir(), "memory")
		keeper := exec.Command(server, "keep", lock)
		held, err := keeper.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := keeper.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { keeper.Process.Kill(); keeper.Wait() }()
		held.Read(make([]byte, 1))
		o := measure(t, experiment(`servers: {`, "one: "+managed(t, "sglang", standin.Script{Life: standin.Life{Lock: lock}}, ""),
			"two: "+managed(t, "sglang", standin.Script{}, ""), `}`, quick))
		if p := o.status(t, "one/1000/1", "failed", "start-error"); !strings.Contains(p.FailureMessage+p.Evidence, "memory is in use") {
			t.Errorf("%s\n%s", p.FailureMessage, p.Evidence)
		}
		o.became(t, "two", "1000 measured")
		if !locked(t, lock) {
			t.Error("a process that twopoint did not start was ended")
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		lock := filepath.Join(dir, "memory")
		text := experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: standin.Life{Lock: lock}}, ""),
			`method: two_point: {a: 1, b: 17, repeats: {min: 1000, max: 1000, target: 0.0001}}`)
		if err := os.WriteFile(filepath.Join(dir, "spec.cue"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(product, "run", ".")
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill()
		for begun := false; !begun; time.Sleep(50 * time.Millisecond) {
			dirs, _ := run.List(filepath.Join(dir, "runs"))
			for _, d := range dirs {
				list, _ := d.Events()
				for _, e := range list {
					begun = begun || e.Repeat != nil
				}
			}
		}
		if !locked(t, lock) {
			t.Error("no worker to begin with")
		}
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("exit %d", code)
		}
		dirs, err := run.List(filepath.Join(dir, "runs"))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		if left := deploy.Leftovers(dirs[0].ID()); len(left) > 0 || locked(t, lock) {
			t.Errorf("left running: %v", left)
		}
	})
}

func TestC19OneBadPointMustNotEndTheSweep(t *testing.T) {
	t.Parallel()
	const words = "flash_decode: the tile does not fit"
	dies := after(4000, `{"life": {"exit": 7, "log_line": "`+words+`"}}`)
	for policy, want := range map[string]string{
		``:                          "1000 measured, 2000 measured, 4000 failed crash, 8000 measured",
		`on_failure: "restart"`:     "1000 measured, 2000 measured, 4000 failed crash, 8000 measured",
		`on_failure: "skip_longer"`: "1000 measured, 2000 measured, 4000 failed crash, 8000 skipped skip_longer",
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			o := measure(t, experiment(`servers: {`, "bad: "+managed(t, "sglang", dies, ""), "good: "+managed(t, "sglang", standin.Script{}, ""), `}`,
				`sweep: context: [1000, 2000, 4000, 8000]`, policy, quick))
			o.became(t, "bad", want)
			o.became(t, "good", "1000 measured, 2000 measured, 4000 measured, 8000 measured")
			p := o.point(t, "bad/4000/1")
			if !strings.Contains(p.FailureMessage, "exit code 7") || !strings.Contains(p.Evidence, words) {
				t.Errorf("%s\n%s", p.FailureMessage, p.Evidence)
			}
			died := 0
			for _, d := range o.lives("bad") {
				if d.Expected != nil && !*d.Expected {
					died++
					if d.ExitCode == nil || *d.ExitCode != 7 || !strings.Contains(d.LogTail, words) {
						t.Errorf("%s: exit code %v, log %q", d.DeploymentID, d.ExitCode, d.LogTail)
					}
				}
			}
			if died != 1 {
				t.Errorf("%d lives died", died)
			}
			if o.Exit != 3 {
				t.Errorf("exit %d", o.Exit)
			}
		})
	}
	t.Run("nothing can be measured", func(t *testing.T) {
		t.Parallel()
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", after(1000, `{"life": {"exit": 7}}`), ""), quick))
		o.became(t, "s", "1000 failed crash")
		if o.Exit != 4 {
			t.Errorf("exit %d", o.Exit)
		}
	})
}

func TestC20WhatKindOfMemoryFailure(t *testing.T) {
	t.Parallel()
	const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 3 has 1.2 GiB free"
	limited := standin.Script{Limit: 2400}
	for name, c := range map[string]struct {
		engine string
		script standin.Script
		points string
		stage  string
		lives  int
		signal string
		words  string
	}{
		"1 context length": {"vllm", limited, "1000 measured, 2500 failed context-too-long, 2600 skipped skip_longer", "warmup", 1, "", "context length"},
		"2 error event": {"vllm", after(2500, `{"stream": {"error_at": 1, "error": "out of memory while processing the prompt"}}`),
			"1000 measured, 2500 failed request-oom, 2600 measured", "warmup", 1, "", "out of memory while processing the prompt"},
		"3 engine dead": {"vllm", after(2500, `{"life": {"dead": true, "log_line": "`+oom+strings.Repeat(`\n  stack of rank 3: forward (model.py:12)`, 1500)+`"}}`),
			"1000 measured, 2500 failed gpu-oom, 2600 skipped skip_longer", "warmup", 2, "", "CUDA out of memory"},
		"3 engine dead, no words": {"vllm", after(2500, `{"life": {"dead": true}}`),
			"1000 measured, 2500 failed http-error, 2600 measured", "warmup", 2, "", "500"},
		"4 killed": {"vllm", after(2500, `{"life": {"kill": true}}`),
			"1000 measured, 2500 failed killed, 2600 skipped skip_longer", "warmup", 2, "SIGKILL", "SIGKILL"},
		"5 at start-up": {"vllm", standin.Script{Life: standin.Life{LoadS: 30, ExitAtS: 0.5, Exit: new(int), LogLine: oom}},
			"1000 failed gpu-oom, 2500 failed gpu-oom, 2600 failed gpu-oom", "load", 1, "", "CUDA out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := measure(t, experiment("servers: s: "+managed(t, c.engine, c.script, ""), `sweep: context: [1000, 2500, 2600]`, quick))
			o.became(t, "s", c.points)
			p := o.point(t, "s/2500/1")
			if p.FailureStage != c.stage || !strings.Contains(p.FailureMessage+p.Evidence, c.words) {
				t.Errorf("in stage %s: %s\n%s", p.FailureStage, p.FailureMessage, p.Evidence)
			}
			if got := len(o.lives("s")); got != c.lives {
				t.Errorf("%d lives", got)
			}
			if d := o.lives("s")[0]; d.ExitSignal != c.signal {
				t.Errorf("the first life ended by %q", d.ExitSignal)
			}
			if strings.HasPrefix(name, "4") && !strings.Contains(p.FailureMessage, "host memory") || strings.HasPrefix(name, "4") && strings.Contains(strings.ToLower(p.FailureMessage+p.Evidence), "gpu") {
				t.Errorf("a GPU is suspected: %s\n%s", p.FailureMessage, p.Evidence)
			}
		})
	}
}

// A server whose health is 200 and that gives no token is ended and replaced.
func TestC20HungServer(t *testing.T) {
	t.Parallel()
	const short = "TWOPOINT_TEST_NO_TOKEN=1s"
	for name, c := range map[string]struct {
		engine, then, kind string
		lives              int
	}{
		"no answer":                {"sglang", `{"life": {"hang": true}}`, "hang", 2},
		"no answer, vllm":          {"vllm", `{"life": {"hang": true}}`, "hang", 2},
		"no answer, llamacpp":      {"llamacpp", `{"life": {"hang": true}}`, "hang", 2},
		"comments, of one request": {"sglang", `{"stream": {"stall": 3, "comments": true}}`, "timeout", 1},
		"comments, before a token": {"vllm", `{"stream": {"stall": -1, "comments": true}}`, "timeout", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := measure(t, experiment("servers: s: "+managed(t, c.engine, after(2000, c.then), ""), `sweep: context: [1000, 2000, 3000]`, quick), short)
			want, lives := "1000 measured, 2000 failed "+c.kind+", 3000 measured", c.lives
			o.became(t, "s", want)
			if got := o.lives("s"); len(got) != lives || got[0].LimitNoTokenS == nil || *got[0].LimitNoTokenS != 1 || got[0].Expected == nil || !*got[0].Expected {
				t.Errorf("lives: %v", got)
			}
		})
	}
	for _, engine := range []string{"sglang", "openai"} {
		t.Run("not ours, "+engine, func(t *testing.T) {
			t.Parallel()
			s := after(2000, `{"life": {"hang": true}}`)
			s.Face = engine
			_, url := standin.Open(t, s)
			o := measure(t, spec(url, engine, quick+"\n\tsweep: context: [1000, 2000, 3000]"), short)
			o.became(t, "s", "1000 failed hang, 2000 failed hang, 3000 failed hang") // a point needs more than the one pair that 1000 had
			if p := o.point(t, "s/3000/1"); !strings.Contains(p.FailureMessage, "did not start this server") {
				t.Errorf("%s", p.FailureMessage)
			}
		})
	}
}

func TestC22SlowLoad(t *testing.T) {
	t.Parallel()
	slow := standin.Life{LoadS: 4, LoadLog: "loading safetensors shard"}
	t.Run("too slow", func(t *testing.T) {
		t.Parallel()
		for _, listen := range []string{"", "early"} {
			life := slow
			life.Listen = listen
			o := measure(t, experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: life}, `ready_timeout: "1500ms"`), quick))
			p := o.status(t, "s/1000/1", "failed", "not-ready")
			if p.FailureStage != "load" || !strings.Contains(p.FailureMessage, "not ready in 1.5s") || !strings.Contains(p.Evidence, slow.LoadLog) {
				t.Errorf("%s: %s\n%s", p.FailureStage, p.FailureMessage, p.Evidence)
			}
			if !strings.Contains(o.Stdout+o.Stderr, "not ready in 1.5s") || !strings.Contains(o.Stdout+o.Stderr, slow.LoadLog) {
				t.Errorf("a person is not told:\n%s%s", o.Stdout, o.Stderr)
			}
			if d := o.Deployments[0]; d.Ready || d.LoadS != nil || d.Expected == nil || !*d.Expected {
				t.Errorf("%v", d)
			}
		}
	})
	t.Run("in time", func(t *testing.T) {
		t.Parallel()
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: slow}, `ready_timeout: "60s"`), quick))
		o.became(t, "s", "1000 measured")
	})
	t.Run("ends early", func(t *testing.T) {
		t.Parallel()
		o := measure(t, experiment("servers: s: "+managed(t, "sglang", standin.Script{Life: standin.Life{LoadS: 100, LoadLog: slow.LoadLog, ExitAtS: 1}}, `ready_timeout: "60s"`), quick))
		p := o.status(t, "s/1000/1", "failed", "start-error")
		if d := o.Deployments[0]; d.LifeS == nil || *d.LifeS > 20 || d.ExitCode == nil || *d.ExitCode != 1 || !strings.Contains(p.Evidence, slow.LoadLog) {
			t.Errorf("life of %v s, exit code %v\n%s", d.LifeS, d.ExitCode, p.Evidence)
		}
	})
}

// What a server prints of its own secret stays in its log, which is its owner's.
func TestSecretsStayInTheLog(t *testing.T) {
	t.Parallel()
	const secret = "hf_0123456789abcdefghij"
	o := measure(t, experiment(`servers: s: {engine: "sglang", model_path: "m", env: HF_TOKEN: secret: "CASES_TOKEN", ready_timeout: "20s",
		command: ["sh", "-c", "echo token $HF_TOKEN of the hub; echo $HF_TOKEN | fold -w 10; echo half of it: ${HF_TOKEN%ghij} >&2; printf 'end %s' $HF_TOKEN; exit 3"]}`, quick), "CASES_TOKEN="+secret)
	p := o.status(t, "s/1000/1", "failed", "start-error")
	if !strings.Contains(p.Evidence, "token [secret CASES_TOKEN] of the hub") || !strings.Contains(p.Evidence, "end [secret CASES_TOKEN]") {
		t.Errorf("evidence: %s", p.Evidence)
	}
	logs := 0
	err := filepath.WalkDir(string(o.Dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if filepath.Ext(path) == ".log" {
			logs++
			if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(string(b), secret) {
				t.Errorf("%s has mode %v (%v):\n%s", path, info.Mode(), err, b)
			}
		} else if strings.Contains(string(b), secret) || strings.Contains(string(b), secret[:10]+"\n") {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil || logs != 1 || strings.Contains(o.Stdout+o.Stderr, secret) {
		t.Errorf("%v, %d logs\n%s%s", err, logs, o.Stdout, o.Stderr)
	}
}
