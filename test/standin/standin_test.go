package standin_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
	"twopoint/schema"
	"twopoint/test/standin"
)

// adapters are the engines whose adapter speaks to a face.
var adapters = map[string]string{"sglang": "sglang", "openai": "openai", "trtllm": "openai", "llamacpp": "llamacpp", "vllm": "openai"}

func client(t testing.TB, url string) *engine.Client {
	t.Helper()
	c, err := engine.NewClient(url, "", engine.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// prompt is n tokens, none of them the same for two seeds.
func prompt(seed, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(seed*10_000 + i)
	}
	return ids
}

func ask(t testing.TB, engineName, url string, ids []int32, n int) event.Sample {
	t.Helper()
	e, ok := engines.Lookup(engineName)
	if !ok {
		t.Fatalf("no engine %s", engineName)
	}
	return e.Generate(t.Context(), client(t, url), engine.Request{Model: "standin", IDs: ids, MaxTokens: n, Stream: true})
}

// Each face is what its adapter expects, and what it says of a request is true.
func TestFaces(t *testing.T) {
	for face, name := range adapters {
		t.Run(face, func(t *testing.T) {
			t.Parallel()
			srv, url := standin.Open(t, standin.Script{Face: face, Clock: standin.Clock{StepS: 0.002}})
			e, _ := engines.Lookup(name)
			c := client(t, url)
			v := schema.Variant{ServedName: "standin"}
			if err := e.Ready(t.Context(), c, v); err != nil {
				t.Fatal(err)
			}
			info, err := e.Info(t.Context(), c, v)
			if err != nil || !info.TokenIDs || info.Model != "standin" {
				t.Fatalf("%+v, %v", info, err)
			}
			first := ask(t, name, url, prompt(1, 100), 17)
			again := ask(t, name, url, prompt(1, 100), 17)
			for _, s := range []event.Sample{first, again} {
				if s.Error != "" || *s.PromptTokens != 100 || *s.CompletionTokens != 17 || s.Finish != "length" || s.TTFTS == nil {
					t.Errorf("%+v", s)
				}
			}
			if *first.CachedTokens != 0 || *again.CachedTokens != 99 {
				t.Errorf("cached %d and %d", *first.CachedTokens, *again.CachedTokens)
			}
			if f, ok := e.(engine.Flusher); ok && face != "trtllm" {
				if got := f.Flush(t.Context(), c); got.OK == nil || !*got.OK {
					t.Errorf("flush: %+v", got)
				}
				if s := ask(t, name, url, prompt(1, 100), 1); *s.CachedTokens != 0 {
					t.Errorf("cached %d after a flush", *s.CachedTokens)
				}
			}
			records := srv.Requests()
			last := records[len(records)-1]
			if last.Prompt != 100 || last.LateS < 0 || last.FirstS < last.PrefillS {
				t.Errorf("%+v", last)
			}
		})
	}
}

// The clock keeps what the script says, and says how late it was.
func TestClock(t *testing.T) {
	srv, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.005, StepPerContextS: 5e-6, TokensPerStep: 4}})
	s := ask(t, "sglang", url, prompt(1, 1000), 17)
	r := srv.Requests()[0]
	if math.Abs(r.PrefillS-0.1) > 1e-9 || math.Abs(r.DecodeS-4*0.010) > 1e-9 || r.Steps != 4 || *s.Steps != 4 || len(s.ChunkS) != 5 {
		t.Errorf("%+v; %d chunks", r, len(s.ChunkS))
	}
	if r.LastS < r.PrefillS+r.DecodeS || r.LateS < r.LastS-r.PrefillS-r.DecodeS-0.002 {
		t.Errorf("written at %g s, due at %g, late by %g", r.LastS, r.PrefillS+r.DecodeS, r.LateS)
	}
	if d := s.TotalS - (r.PrefillS + r.DecodeS); d < 0 || d > r.LateS+0.05 {
		t.Errorf("took %g s, due %g", s.TotalS, r.PrefillS+r.DecodeS)
	}
}

// Requests run beside each other, or in a queue.
func TestRunning(t *testing.T) {
	for most, want := range map[int]int{0: 4, 1: 1} {
		srv, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.01, MaxRunning: most}})
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { ask(t, "sglang", url, prompt(i, 500), 9) })
		}
		all.Wait()
		seen := 0
		for _, r := range srv.Requests() {
			seen = max(seen, r.Running)
		}
		if seen != want {
			t.Errorf("at most %d: %d ran together", most, seen)
		}
	}
}

func TestWhen(t *testing.T) {
	_, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.001}, When: []standin.When{
		{MinContext: 200, Then: standin.Then(`{"stream": {"end": "reset", "cut": 2}}`)},
		{MinTokens: 17, Then: standin.Then(`{"answer": {"stop": 9}}`)},
		{From: 3, To: 3, Then: standin.Then(`{"answer": {"status": 503, "body": "busy"}}`)},
	}})
	if s := ask(t, "sglang", url, prompt(1, 100), 17); *s.CompletionTokens != 9 || s.Finish != "stop" {
		t.Errorf("%+v", s)
	}
	if s := ask(t, "sglang", url, prompt(2, 200), 5); s.Error != "stream-cut" || s.Transport != "reset" {
		t.Errorf("%+v", s)
	}
	if s := ask(t, "sglang", url, prompt(3, 100), 5); s.HTTPStatus != 503 || s.Detail != "busy" {
		t.Errorf("%+v", s)
	}
	if s := ask(t, "sglang", url, prompt(4, 100), 5); s.Error != "" {
		t.Errorf("%+v", s)
	}
}

// A fact that a prompt plants is found again, unless it is lost.
func TestNeedle(t *testing.T) {
	text := strings.Repeat("some words ", 50) + "The secret code of Ada is 4711-blue. " + strings.Repeat("more words ", 50) + "What is the secret code of Ada?"
	for lost, want := range map[bool]bool{false: true, true: false} {
		_, url := standin.Open(t, standin.Script{Face: "vllm", Clock: standin.Clock{Instant: true}, Answer: standin.Answer{NeedleLost: lost}})
		var out struct{ Choices []struct{ Text string } }
		body, _ := json.Marshal(map[string]any{"prompt": text, "max_tokens": 8})
		req, _ := http.NewRequestWithContext(context.Background(), "POST", url+"/v1/completions", strings.NewReader(string(body)))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		json.NewDecoder(resp.Body).Decode(&out)
		resp.Body.Close()
		if got := strings.Contains(out.Choices[0].Text, "4711-blue"); got != want {
			t.Errorf("lost %v: %q", lost, out.Choices[0].Text)
		}
	}
}
