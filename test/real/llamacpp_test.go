//go:build real

package real

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"twopoint/test/gguf"
)

func bench(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	model(t, dir, "tiny", gguf.Small())
	s, _ := start(t, dir, append([]string{"--model", "tiny.gguf", "--alias", "tiny"}, benchFlags...)...)
	return s
}

// The server listens before it can generate, and says so.
func TestHealthWhileLoading(t *testing.T) {
	dir := t.TempDir()
	m := gguf.Small()
	m.Layers, m.Width, m.FFN = 8, 512, 1024
	model(t, dir, "larger", m)
	_, seen := start(t, dir, append([]string{"--model", "larger.gguf"}, benchFlags...)...)
	if len(seen) != 2 || seen[0].status != http.StatusServiceUnavailable {
		t.Fatalf("/health answered %d times before it was ready, want one kind of answer, 503", len(seen)-1)
	}
	record(t, "health_loading.json", seen[0].body)
}

// Prompts of exactly L ids are processed as L tokens, and exactly n come back,
// each in an event of its own.
func TestCountsAreExact(t *testing.T) {
	s := bench(t)
	for _, l := range []int{1, 2, 512, 513, 2048, 8000} {
		for _, n := range []int{1, 2, 17} {
			for _, stream := range []bool{false, true} {
				final, events := s.complete(prompt(l, n), n, object{"cache_prompt": false, "stream": stream})
				if final.Timings == nil {
					t.Fatalf("no timings in %+v", final)
				}
				got := []int{final.Timings.CacheN, final.Timings.PromptN, final.Timings.PredictedN, final.Predicted, final.Evaluated}
				if want := []int{0, l, n, n, l}; !slices.Equal(got, want) {
					t.Errorf("L %d, n %d, stream %v: cached, prompt, predicted, tokens_predicted, tokens_evaluated = %v, want %v", l, n, stream, got, want)
				}
				if !final.Stop || final.StopType != "limit" || final.Truncated {
					t.Errorf("L %d, n %d: stop %v, type %q, truncated %v", l, n, final.Stop, final.StopType, final.Truncated)
				}
				if !stream {
					if len(final.Tokens) != n {
						t.Errorf("L %d, n %d: %d token ids", l, n, len(final.Tokens))
					}
					continue
				}
				if len(events) != n {
					t.Errorf("L %d, n %d: %d events before the final one", l, n, len(events))
				}
				for i, e := range events {
					if len(e.Tokens) != 1 || e.Predicted != i+1 || e.Stop {
						t.Errorf("L %d, n %d: event %d has ids %v, tokens_predicted %d, stop %v", l, n, i, e.Tokens, e.Predicted, e.Stop)
					}
				}
			}
		}
	}
}

func TestSamePromptSameTokens(t *testing.T) {
	s := bench(t)
	want, _ := s.complete(prompt(300, 0), 40, object{"cache_prompt": false})
	if len(slices.Compact(slices.Sorted(slices.Values(want.Tokens)))) < 2 {
		t.Errorf("the model says one token only: %v", want.Tokens)
	}
	for _, stream := range []bool{false, true} {
		got, events := s.complete(prompt(300, 0), 40, object{"cache_prompt": false, "stream": stream})
		for _, e := range events {
			got.Tokens = append(got.Tokens, e.Tokens...)
		}
		if !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("stream %v: %v, want %v", stream, got.Tokens, want.Tokens)
		}
	}
	other, _ := s.complete(prompt(300, 1), 40, object{"cache_prompt": false})
	if slices.Equal(other.Tokens, want.Tokens) {
		t.Error("another prompt gives the same tokens")
	}
}

func TestPrefixCache(t *testing.T) {
	s := bench(t)
	const l = 500
	cached := func(slot int, changes object) int {
		t.Helper()
		final, _ := s.complete(prompt(l, slot), 4, changes)
		if final.Timings.CacheN+final.Timings.PromptN != l {
			t.Errorf("cache_n %d and prompt_n %d do not make %d", final.Timings.CacheN, final.Timings.PromptN, l)
		}
		return final.Timings.CacheN
	}
	erase := func() {
		t.Helper()
		if a := s.mustDo("POST", "/slots/0?action=erase", nil); a.status != http.StatusOK {
			t.Errorf("erase: %d %s", a.status, a.body)
		}
	}
	off := object{"cache_prompt": false}
	for _, step := range []struct {
		what string
		got  func() int
		want int
	}{
		{"first time", func() int { return cached(0, nil) }, 0},
		{"again: all but the last token", func() int { return cached(0, nil) }, l - 1},
		{"again without cache_prompt", func() int { return cached(0, off) }, 0},
		{"what ran without cache_prompt is still offered to the next", func() int { return cached(0, nil) }, l - 1},
		{"after erase", func() int { erase(); return cached(0, nil) }, 0},
		{"another prompt", func() int { return cached(1, nil) }, 0},
		{"the first one after another", func() int { return cached(0, nil) }, 0},
	} {
		if got := step.got(); got != step.want {
			t.Errorf("%s: %d cached tokens, want %d", step.what, got, step.want)
		}
	}
}

// With the server's defaults an evicted prompt is kept in host memory, so
// neither another prompt nor an erase proves that the next run is cold.
func TestDefaultHostCacheOutlivesTheSlot(t *testing.T) {
	dir := t.TempDir()
	model(t, dir, "tiny", gguf.Small())
	s, _ := start(t, dir, "--model", "tiny.gguf", "--ctx-size", "8192", "--parallel", "1", "--slot-save-path", ".")
	s.complete(prompt(500, 0), 4, nil)
	s.complete(prompt(500, 1), 4, nil)
	again, _ := s.complete(prompt(500, 0), 4, nil)
	s.mustDo("POST", "/slots/0?action=erase", nil)
	erased, _ := s.complete(prompt(500, 0), 4, nil)
	bypass, _ := s.complete(prompt(500, 0), 4, object{"cache_prompt": false})
	t.Logf("after another prompt %d cached, after erase %d, with cache_prompt false %d", again.Timings.CacheN, erased.Timings.CacheN, bypass.Timings.CacheN)
	if again.Timings.CacheN == 0 {
		t.Error("the default host cache did not answer: docs/engines-llamacpp.md says it does")
	}
	if bypass.Timings.CacheN != 0 {
		t.Errorf("cache_prompt false: %d cached tokens", bypass.Timings.CacheN)
	}
}

func TestTokenizeIsStable(t *testing.T) {
	s := bench(t)
	const text = "We measured the server twice, once for one token and once for many; the rest is arithmetic. Größe: 8 GPUs."
	var first []int32
	for range 3 {
		var r struct{ Tokens []int32 }
		a := s.mustDo("POST", "/tokenize", object{"content": text, "add_special": false})
		if err := json.Unmarshal(a.body, &r); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = r.Tokens
		}
		if !slices.Equal(r.Tokens, first) {
			t.Errorf("%v, want %v", r.Tokens, first)
		}
	}
	// One for each byte, and one for the space that SentencePiece puts in front.
	if want := len(text) + 1; len(first) != want {
		t.Errorf("%d tokens for %d characters in %d bytes, want %d", len(first), utf8.RuneCountInString(text), len(text), want)
	}
	var r struct{ Content string }
	a := s.mustDo("POST", "/detokenize", object{"tokens": first})
	if err := json.Unmarshal(a.body, &r); err != nil || r.Content != " "+text {
		t.Errorf("detokenize gives %q (%v)", r.Content, err)
	}
	final, _ := s.complete(first, 2, object{"cache_prompt": false})
	if final.Timings.PromptN != len(first) {
		t.Errorf("prompt_n %d, want %d", final.Timings.PromptN, len(first))
	}
}

// Tokens that are no UTF-8 on their own share an event; its id list holds the
// last one only, and tokens_predicted counts them all.
func TestHeldBackTokensShareAnEvent(t *testing.T) {
	dir := t.TempDir()
	m := gguf.Small()
	m.RawBytes = true
	model(t, dir, "bytes", m)
	s, _ := start(t, dir, append([]string{"--model", "bytes.gguf"}, benchFlags...)...)
	final, events := s.complete(prompt(20, 0), 200, object{"stream": true, "temperature": 3, "seed": 5})
	if final.Predicted != 200 || len(events) >= 200 {
		t.Fatalf("%d tokens in %d events: none was held back", final.Predicted, len(events))
	}
	before := 0
	for i, e := range events {
		if e.Predicted <= before || len(e.Tokens) != 1 {
			t.Errorf("event %d: tokens_predicted %d after %d, ids %v", i, e.Predicted, before, e.Tokens)
		}
		before = e.Predicted
	}
}

// An erase waits for the request that runs in its slot, so that its 200 is
// never about a cache that is still filling.
func TestEraseWaitsForTheRunningRequest(t *testing.T) {
	s := bench(t)
	answered := make(chan completion)
	go func() {
		a, err := s.do("POST", "/completion", object{"prompt": prompt(8000, 0), "n_predict": 100, "ignore_eos": true})
		var final completion
		if err == nil {
			err = json.Unmarshal(a.body, &final)
		}
		if err != nil {
			t.Error(err)
		}
		answered <- final
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		var slots []struct {
			Busy bool `json:"is_processing"`
		}
		if err := json.Unmarshal(s.mustDo("GET", "/slots", nil).body, &slots); err != nil {
			t.Fatal(err)
		}
		if slots[0].Busy {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the request never ran")
		}
	}
	a := s.mustDo("POST", "/slots/0?action=erase", nil)
	final := <-answered
	var r struct {
		N int `json:"n_erased"`
	}
	if err := json.Unmarshal(a.body, &r); err != nil || a.status != http.StatusOK {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	// The last token said is not in the cache yet.
	if final.Predicted != 100 || r.N != 8099 {
		t.Errorf("%d tokens said, %d erased, want 100 and 8099", final.Predicted, r.N)
	}
}

// Two oddities that an adapter has to know.
func TestOddities(t *testing.T) {
	s := bench(t)
	if final, _ := s.complete(prompt(10, 0), 0, nil); final.Predicted != 1 {
		t.Errorf("n_predict 0 gives %d tokens, not 1", final.Predicted)
	}
	a := s.mustDo("POST", "/slots/9?action=erase", nil)
	after, _ := s.complete(prompt(10, 0), 1, nil)
	if a.status != http.StatusOK || after.Timings.CacheN != 0 {
		t.Errorf("erasing slot 9 of 1: %d %s, then %d cached tokens; it used to erase slot 0", a.status, a.body, after.Timings.CacheN)
	}
}

func TestContextLimit(t *testing.T) {
	s := bench(t)
	for _, stream := range []bool{false, true} {
		a := s.mustDo("POST", "/completion", object{"prompt": prompt(8192, 0), "n_predict": 2, "stream": stream})
		var r struct {
			Error struct {
				Type string
				N    int `json:"n_prompt_tokens"`
				Ctx  int `json:"n_ctx"`
			}
		}
		if err := json.Unmarshal(a.body, &r); err != nil {
			t.Fatalf("%v in %s", err, a.body)
		}
		if a.status != 400 || r.Error.Type != "exceed_context_size_error" || r.Error.N != 8192 || r.Error.Ctx != 8192 {
			t.Errorf("stream %v: %d %s", stream, a.status, a.body)
		}
	}
	final, _ := s.complete(prompt(8100, 0), 200, nil)
	if final.Predicted != 8192-8100 || !final.Truncated || final.StopType != "limit" {
		t.Errorf("8100 + 200 tokens in 8192: predicted %d, truncated %v, stop type %q", final.Predicted, final.Truncated, final.StopType)
	}
}

func TestEnds(t *testing.T) {
	dir := t.TempDir()
	model(t, dir, "tiny", gguf.Small())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, takenPort, _ := net.SplitHostPort(taken.Addr().String())

	for _, c := range []struct {
		name, port string
		args       []string
		line       string
	}{
		{"no model file", freePort(t), []string{"--model", "missing.gguf"}, "exiting due to model loading error"},
		{"port in use", takenPort, []string{"--model", "tiny.gguf"}, "couldn't bind HTTP server socket"},
		{"bad flag", freePort(t), []string{"--model", "tiny.gguf", "--no-such-flag"}, "error: invalid argument: --no-such-flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := launch(t, dir, c.port, c.args...)
			if code := s.waitEnd(); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if !strings.Contains(s.log.String(), c.line) {
				t.Errorf("the log lacks %q:\n%s", c.line, s.log.String())
			}
			record(t, "log."+strings.ReplaceAll(c.name, " ", "_")+".txt", []byte(plainLog(s)))
		})
	}
	t.Run("out of memory", func(t *testing.T) {
		// 4,000,000 tokens of this model's cache are 1 GB.
		port := freePort(t)
		s := launchIn(t, dir, port, []string{"sh", "-c", `ulimit -v 700000; exec "$0" "$@"`, binary(t), "--host", "127.0.0.1", "--port", port,
			"--model", "tiny.gguf", "--ctx-size", "4000000", "--parallel", "1", "--threads", "1", "--fit", "off", "--cache-ram", "0", "--no-ui"})
		if code := s.waitEnd(); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
		if line := "failed to allocate buffer"; !strings.Contains(s.log.String(), line) {
			t.Errorf("the log lacks %q:\n%s", line, s.log.String())
		}
		record(t, "log.out_of_memory.txt", []byte(plainLog(s)))
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(fmt.Sprint(signal), func(t *testing.T) {
			s, _ := start(t, dir, append([]string{"--model", "tiny.gguf"}, benchFlags...)...)
			// /health turns 200 a moment before the server handles signals; a
			// request answered is later than both.
			s.complete(prompt(1, 0), 1, nil)
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if code := s.waitEnd(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			for _, line := range []string{"llama_server: model loaded", "listening on http://127.0.0.1:", "flash_attn            = enabled",
				"n_ctx_seq             = 8192", "llama_kv_cache: size =", "K (f16):", "print_info: n_head_kv             = 2"} {
				if !strings.Contains(s.log.String(), line) {
					t.Errorf("the log lacks %q", line)
				}
			}
			// Whether the last idle line comes before the signal is chance, so
			// this log is kept but not compared.
			if *update && signal == syscall.SIGTERM {
				write(t, filepath.Join(recordings, "log.ready_and_stopped.txt"), []byte(plainLog(s)))
			}
		})
	}
}
