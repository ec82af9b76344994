package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/runner/deploy"
	"twopoint/runner/deploy/deploytest"
	"twopoint/runner/engine"
	"twopoint/schema"
)

// The test binary is the supervisor too, and a server that does nothing.
func TestMain(m *testing.M) {
	deploy.MaybeSupervise()
	if len(os.Args) > 1 && os.Args[1] == "__linger" {
		time.Sleep(time.Hour)
		return
	}
	os.Exit(m.Run())
}

// lingering is launched, and never begins to serve.
type lingering struct{ instant }

func (lingering) Args(schema.Variant, string, int) (argv, env []string, err error) {
	return []string{"/bin/sleep", "1000"}, nil, nil
}

func (lingering) Ready(context.Context, *engine.Client, schema.Variant) error {
	return errors.New("this test launches nothing")
}

// What is left of an earlier life, and cannot be ended in time, fails the variant
// by name and ends neither the run nor what is left.
func TestLeftOver(t *testing.T) {
	dir, requests := t.TempDir(), 0
	e := instant{requests: &requests}
	a := agentFor(t, dir, strings.Replace(fmt.Sprintf(instantSpec, "33"), `url: "http://127.0.0.1:9", flush: "auto"`, `model_path: "m", command: ["/bin/sleep", "1000"]`, 1), e)
	a.Engine = func(string) (engine.Engine, bool) { return lingering{e}, true }
	a.LogPath = func(id string) string { return filepath.Join(dir, id+".log") }
	a.WorkDir = dir
	a.patience = 100 * time.Millisecond
	stuck, err := deploy.Launch(t.Context(), deploy.Command{
		ID: a.Order.RunID + "/" + a.Order.Order.ID + "-d0", Argv: []string{"/bin/sleep", "1000"}, Env: os.Environ(), LogPath: filepath.Join(dir, "stuck.log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Stop(context.Background())
	reason, err := a.Run(t.Context(), "start")
	if err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	for _, p := range a.History.Points() {
		status, reason, _ := p.Outcome()
		if status != "failed" || reason != "left-over" || p.Failure.Scope != "host" || !strings.Contains(p.Failure.Message, fmt.Sprintf("-d0, still alive: pid %d (sleep)", stuck.PID())) {
			t.Errorf("%d: %s %s: %+v", p.Context, status, reason, p.Failure)
		}
	}
	select {
	case <-stuck.Done():
		t.Error("what a supervisor looks after was ended by another")
	default:
	}
}

// held is launched, answers as instant does, and cannot be killed.
type held struct {
	instant
	hold func() error
}

func (held) Args(schema.Variant, string, int) (argv, env []string, err error) {
	exe, err := os.Executable()
	return []string{exe, "__linger"}, nil, err
}

func (e held) Ready(context.Context, *engine.Client, schema.Variant) error {
	return e.hold()
}

// A server that survives KILL is a failure of its teardown, by name, beside what
// was measured, and the run ends.
func TestServerSurvivesKill(t *testing.T) {
	t.Parallel() // it waits for deploy's last patience
	dir, requests := t.TempDir(), 0
	e := instant{requests: &requests}
	a := agentFor(t, dir, strings.Replace(fmt.Sprintf(instantSpec, "33"), `url: "http://127.0.0.1:9", flush: "auto"`, `model_path: "m", command: ["x"]`, 1), e)
	release, pid := func() {}, 0
	a.Order.RunID = "test" + strings.ReplaceAll(dir, "/", "-") // no other test has it
	a.Engine = func(string) (engine.Engine, bool) {
		return held{e, func() error {
			left := deploy.Leftovers(a.Order.RunID)
			if len(left) != 1 {
				return engine.ErrNotYet
			}
			pid = left[0].PID
			release = deploytest.Hold(t, pid)
			return nil
		}}, true
	}
	a.LogPath = func(id string) string { return filepath.Join(dir, id+".log") }
	a.WorkDir = dir
	a.patience = 100 * time.Millisecond
	reason, err := a.Run(t.Context(), "start")
	defer release()
	if err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	for _, p := range a.History.Points() {
		if status, reason, _ := p.Outcome(); status != "ok" {
			t.Errorf("%d: %s %s", p.Context, status, reason)
		}
	}
	events, err := event.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var failures []event.Failure
	ended := false
	for _, ev := range events {
		if ev.Failure != nil {
			failures = append(failures, *ev.Failure)
		}
		ended = ended || ev.Deployment != nil && ev.Deployment.State == event.DeploymentEnd
	}
	if len(failures) != 1 || failures[0].Kind != "left-over" || failures[0].Stage != "teardown" || !strings.Contains(failures[0].Message, fmt.Sprintf("still alive: pid %d (", pid)) || !ended {
		t.Errorf("pid %d, failures %+v, end recorded %v", pid, failures, ended)
	}
}

// No text of an event carries a secret, wherever a server put it.
func TestSecretsStayOutOfTheJournal(t *testing.T) {
	const secret = "sk-0123456789abcdef"
	dir, requests := t.TempDir(), 0
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, "33"), instant{requests: &requests})
	a.Secret = func(name string) (string, bool) { return secret, name == apiKey }
	a.redact = a.redactor()
	ratio := 0.5
	for _, e := range []event.Event{
		{Type: event.TypeDeployment, Deployment: &event.Deployment{DeploymentID: "o1-d1", State: "ready", Argv: []string{"--key=" + secret},
			Effective: map[string]any{"api_key": secret, "nested": map[string]any{"list": []any{secret, 1.5, nil}}, "n": 3}, LogTail: []string{"a " + secret}}},
		{Type: event.TypeSample, Sample: &event.Sample{Error: "http-error", Detail: "bad key: " + secret, Notes: []string{secret}, OutputText: secret, ChunkS: []float64{1, 2},
			Flush: &event.Flush{Detail: secret}}},
		{Type: event.TypeFailure, Failure: &event.Failure{Kind: "crash", Message: secret, Evidence: []string{"x", secret[:10] + "\n" + secret[10:]}}},
		{Type: event.TypeNote, Note: &event.Note{Code: "server-advice", Text: "use " + secret}},
		{Type: event.TypeDeployment, Deployment: &event.Deployment{DeploymentID: "o1-d1", State: "probed", Probe: &event.Probe{HitRatio: &ratio, Proven: secret}}},
	} {
		if err := a.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	journal, err := os.ReadFile(filepath.Join(dir, a.Order.Order.ID+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(journal); strings.Contains(text, "0123456789") || strings.Contains(text, "abcdef") || strings.Count(text, "[secret "+apiKey+"]") != 11 {
		t.Errorf("%d times taken out of\n%s", strings.Count(text, "[secret "+apiKey+"]"), text)
	}
	kept, _ := json.Marshal(a.History.Lives)
	if strings.Contains(string(kept), secret) || !strings.Contains(string(kept), `"n":3`) {
		t.Errorf("history: %s", kept)
	}
}
