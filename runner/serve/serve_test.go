package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twopoint/kernels"
	"twopoint/runner/serve/kv"
	"twopoint/runner/serve/token"
)

// served is a server under test.
type served struct {
	*Server
	t   *testing.T
	url string
}

func start(t *testing.T, change func(*Options)) served {
	t.Helper()
	o := Defaults()
	o.ContextLength, o.MaxTotalTokens, o.ChunkedPrefill = 4096, 8192, 256
	if change != nil {
		change(&o)
	}
	s, err := New(o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := s.Loop(ctx); err != nil {
			t.Errorf("loop: %v", err)
		}
	})
	web := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		cancel()
		loop.Wait()
		web.Close()
		if s.sched.tree != nil {
			s.sched.tree.Flush()
		}
		if n := s.sched.pool.Used(); n != 0 {
			t.Errorf("%d pages are still in use after the end", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return served{s, t, web.URL}
}

type object = map[string]any

func (s served) do(method, path string, in any) (int, []byte) {
	s.t.Helper()
	var body io.Reader
	switch in := in.(type) {
	case nil:
	case string:
		body = strings.NewReader(in)
	default:
		data, err := json.Marshal(in)
		if err != nil {
			s.t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, data
}

type result struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		ID          string  `json:"id"`
		Finish      object  `json:"finish_reason"`
		Prompt      int     `json:"prompt_tokens"`
		Completion  int     `json:"completion_tokens"`
		Cached      int     `json:"cached_tokens"`
		Retractions int     `json:"num_retractions"`
		E2E         float64 `json:"e2e_latency"`
		Logprobs    [][]any `json:"output_token_logprobs"`
		TopLogprobs [][]any `json:"output_top_logprobs"`
	} `json:"meta_info"`
}

// generate asks for exactly n tokens after prompt.
func (s served) generate(prompt []int32, n int, more object) result {
	s.t.Helper()
	in := object{"input_ids": prompt, "sampling_params": object{"max_new_tokens": n, "ignore_eos": true}}
	maps.Copy(in, more)
	code, body := s.do("POST", "/generate", in)
	if code != http.StatusOK {
		s.t.Fatalf("generate: %d %s", code, body)
	}
	var r result
	if err := json.Unmarshal(body, &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// events reads a stream to its end and returns its data lines.
func (s served) events(path string, in object) []string {
	s.t.Helper()
	_, body := s.do("POST", path, in)
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			out = append(out, data)
		} else if lines.Text() != "" {
			s.t.Errorf("line %q is no event", lines.Text())
		}
	}
	if len(out) == 0 || out[len(out)-1] != "[DONE]" {
		s.t.Fatalf("stream does not end with [DONE]: %q", body)
	}
	return out[:len(out)-1]
}

func prompt(seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 9))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(token.End))
	}
	return out
}

func TestTokensDoNotDependOnConfiguration(t *testing.T) {
	const steps = 32
	lengths := []int{1, 2, 65, 300, 701}
	for _, model := range []string{"tiny-gqa", "tiny-mla", "small-gqa"} {
		want := map[int][]int32{}
		for i, c := range []func(*Options){
			func(o *Options) { o.Kernel = "serial_perhead"; o.ChunkedPrefill = -1; o.DisableRadixCache = true },
			func(o *Options) {},
			func(o *Options) { o.Splits = 1; o.PageSize = 16 },
			func(o *Options) { o.Splits = 5; o.PageSize = 64; o.Placement = kv.Shuffled },
			func(o *Options) { o.Kernel = "serial_perhead"; o.Placement = kv.Shuffled; o.ChunkedPrefill = 100 },
			func(o *Options) { o.Threads = 1; o.PageSize = 7; o.ChunkedPrefill = 33 },
		} {
			s := start(t, func(o *Options) { o.ModelPath = model; c(o) })
			for _, n := range lengths {
				// The second request finds the first one's rows in the cache.
				for range 2 {
					r := s.generate(prompt(uint64(n), n), steps, nil)
					if len(r.OutputIDs) != steps || r.Meta.Finish["type"] != "length" || r.Meta.Prompt != n {
						t.Fatalf("%s configuration %d: %+v", model, i, r)
					}
					if want[n] == nil {
						want[n] = r.OutputIDs
					} else if !slices.Equal(r.OutputIDs, want[n]) {
						t.Errorf("%s configuration %d, %d tokens, %d cached: %v, want %v", model, i, n, r.Meta.Cached, r.OutputIDs, want[n])
					}
				}
			}
		}
	}
}

func TestEveryRegisteredDecodeKernelServes(t *testing.T) {
	var want []int32
	for _, k := range kernels.All() {
		o := Defaults()
		o.Kernel, o.ContextLength = k.Name(), 64
		if _, err := New(o, io.Discard); err != nil {
			t.Logf("%s: %v", k.Name(), err)
			continue
		}
		s := start(t, func(o *Options) { o.Kernel = k.Name() })
		got := s.generate(prompt(3, 200), 16, nil).OutputIDs
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", k.Name(), got, want)
		}
	}
}

func TestCachedTokens(t *testing.T) {
	for _, size := range []int{1, 16} {
		t.Run(fmt.Sprintf("page=%d", size), func(t *testing.T) {
			s := start(t, func(o *Options) { o.PageSize = size })
			p := prompt(1, 100)
			floor := func(n int) int { return n / size * size }
			check := func(what string, r result, want int) {
				t.Helper()
				if r.Meta.Cached != want {
					t.Errorf("%s: %d cached tokens, want %d", what, r.Meta.Cached, want)
				}
			}
			first := s.generate(p, 8, nil)
			check("cold", first, 0)
			check("the same again", s.generate(p, 8, nil), floor(99))
			check("a longer one", s.generate(append(slices.Clone(p), prompt(2, 50)...), 1, nil), floor(100))
			// Rows of generated tokens stay too, all but the last one's.
			check("prompt and output", s.generate(append(slices.Clone(p), first.OutputIDs...), 1, nil), floor(107))
			other := slices.Clone(p)
			other[40] ^= 1
			check("half the same", s.generate(other, 1, nil), floor(40))
			other[0] ^= 1
			check("another start", s.generate(other, 1, nil), 0)
			check("a salt", s.generate(p, 1, object{"cache_salt": "x"}), 0)
			check("the salt again", s.generate(p, 1, object{"cache_salt": "x"}), floor(99))
			check("an extra key", s.generate(p, 1, object{"extra_key": "x"}), 0)
			for _, method := range []string{"GET", "POST"} {
				if code, body := s.do(method, "/flush_cache", nil); code != 200 {
					t.Fatalf("flush: %d %s", code, body)
				}
				check("after a flush", s.generate(p, 1, nil), 0)
			}
			if code, _ := s.do("GET", "/health_generate", nil); code != 200 {
				t.Errorf("health_generate: %d", code)
			}
			check("a health probe's prompt", s.generate([]int32{0, 1, 2, 3}, 1, nil), 0)
		})
	}
	s := start(t, func(o *Options) { o.DisableRadixCache = true })
	for range 2 {
		if r := s.generate(prompt(1, 100), 4, nil); r.Meta.Cached != 0 {
			t.Errorf("%d cached tokens without a cache", r.Meta.Cached)
		}
	}
}

// TestConcurrentEqualsAlone runs requests side by side, with a pool so small
// that some are retracted, and compares each with the same request alone.
func TestConcurrentEqualsAlone(t *testing.T) {
	for name, tokens := range map[string]int{"roomy": 8192, "tight": 700} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(o *Options) { o.MaxTotalTokens = tokens; o.ChunkedPrefill = 64 })
			const c, n, steps = 6, 60, 150
			var want [c][]int32
			for i := range c {
				want[i] = s.generate(prompt(uint64(i), n+i), steps, nil).OutputIDs
			}
			s.do("POST", "/flush_cache", nil)
			var group sync.WaitGroup
			retracted := make([]int, c)
			for i := range c {
				group.Go(func() {
					r := s.generate(prompt(uint64(i), n+i), steps, nil)
					retracted[i] = r.Meta.Retractions
					if !slices.Equal(r.OutputIDs, want[i]) {
						t.Errorf("request %d in a batch: %v, alone %v (%d retractions)", i, r.OutputIDs, want[i], r.Meta.Retractions)
					}
				})
			}
			group.Wait()
			total := 0
			for _, r := range retracted {
				total += r
			}
			if name == "tight" && total == 0 {
				t.Error("no request reports a retraction, though the pool cannot hold all of them")
			}
			if name == "roomy" && total != 0 {
				t.Errorf("%d retractions in a pool with room for all", total)
			}
			_, body := s.do("GET", "/metrics", nil)
			if line := fmt.Sprintf("sglang:num_retracted_requests_total{model_name=\"tiny-gqa\"} %d\n", total); !strings.Contains(string(body), line) {
				t.Errorf("metrics lack %q:\n%s", line, body)
			}
		})
	}
}

func TestBatchOfPrompts(t *testing.T) {
	s := start(t, nil)
	code, body := s.do("POST", "/generate", object{"input_ids": [][]int32{prompt(1, 9), prompt(2, 5)}, "sampling_params": object{"max_new_tokens": 3, "ignore_eos": true}})
	var got []result
	if err := json.Unmarshal(body, &got); code != 200 || err != nil || len(got) != 2 {
		t.Fatalf("%d %s %v", code, body, err)
	}
	for i, r := range got {
		if want := s.generate(prompt(uint64(i+1), []int{9, 5}[i]), 3, nil); !slices.Equal(r.OutputIDs, want.OutputIDs) {
			t.Errorf("prompt %d: %v, want %v", i, r.OutputIDs, want.OutputIDs)
		}
	}
}

func TestGenerateStreams(t *testing.T) {
	in := object{"input_ids": prompt(4, 50), "stream": true, "sampling_params": object{"max_new_tokens": 40, "ignore_eos": true}}
	for _, incremental := range []bool{false, true} {
		for _, interval := range []int{1, 7} {
			t.Run(fmt.Sprintf("incremental=%v/interval=%d", incremental, interval), func(t *testing.T) {
				s := start(t, func(o *Options) { o.Incremental, o.StreamInterval = incremental, interval })
				want := s.generate(prompt(4, 50), 40, nil)
				var ids []int32
				text, count := "", 0
				events := s.events("/generate", in)
				for i, e := range events {
					var r result
					if err := json.Unmarshal([]byte(e), &r); err != nil {
						t.Fatal(err)
					}
					last := i == len(events)-1
					if incremental {
						ids, text = append(ids, r.OutputIDs...), text+r.Text
					} else {
						if !slices.Equal(r.OutputIDs[:len(ids)], ids) || !strings.HasPrefix(r.Text, text) {
							t.Errorf("chunk %d does not begin with what came before", i)
						}
						ids, text = r.OutputIDs, r.Text
					}
					if r.Meta.Completion != len(ids) {
						t.Errorf("chunk %d: completion_tokens %d after %d ids", i, r.Meta.Completion, len(ids))
					}
					if !last && i > 0 && r.Meta.Completion < count+interval {
						t.Errorf("chunk %d has %d tokens, the interval is %d", i, r.Meta.Completion-count, interval)
					}
					if (r.Meta.Finish != nil) != last || (r.Meta.E2E > 0) != last {
						t.Errorf("chunk %d of %d: finish_reason %v, e2e_latency %v", i, len(events), r.Meta.Finish, r.Meta.E2E)
					}
					count = r.Meta.Completion
				}
				if !slices.Equal(ids, want.OutputIDs) || text != want.Text {
					t.Errorf("stream gives %v %q, whole response %v %q", ids, text, want.OutputIDs, want.Text)
				}
			})
		}
	}
}

func TestCompletions(t *testing.T) {
	type response struct {
		Model   string
		Choices []struct {
			Text   string
			Finish *string `json:"finish_reason"`
		}
		Usage *usage
	}
	for _, report := range []bool{false, true} {
		s := start(t, func(o *Options) { o.EnableCacheReport = report; o.ServedModelName = "m" })
		ids := prompt(5, 30)
		want := s.generate(ids, 10, nil)
		in := object{"model": "m", "prompt": ids, "max_tokens": 10, "ignore_eos": true, "temperature": 0}
		code, body := s.do("POST", "/v1/completions", in)
		var r response
		if err := json.Unmarshal(body, &r); code != 200 || err != nil {
			t.Fatalf("%d %s %v", code, body, err)
		}
		if r.Choices[0].Text != want.Text || *r.Choices[0].Finish != "length" || r.Usage.PromptTokens != 30 || r.Usage.CompletionTokens != 10 || r.Usage.TotalTokens != 40 {
			t.Errorf("%s, want text %q", body, want.Text)
		}
		if report != (r.Usage.Details != nil && r.Usage.Details.CachedTokens == 29) {
			t.Errorf("cache report %v: %s", report, body)
		}
		in["stream"], in["stream_options"] = true, object{"include_usage": true}
		text := ""
		events := s.events("/v1/completions", in)
		for i, e := range events {
			r = response{}
			if err := json.Unmarshal([]byte(e), &r); err != nil {
				t.Fatal(err)
			}
			if i == len(events)-1 {
				if len(r.Choices) != 0 || r.Usage == nil || r.Usage.CompletionTokens != 10 {
					t.Errorf("last chunk %s", e)
				}
				continue
			}
			if r.Usage != nil {
				t.Errorf("usage in chunk %d: %s", i, e)
			}
			text += r.Choices[0].Text
		}
		if text != want.Text {
			t.Errorf("stream gives %q, want %q", text, want.Text)
		}
		// A text prompt is the ids of its text.
		words := "It was the best of times"
		_, body = s.do("POST", "/v1/completions", object{"prompt": words, "max_tokens": 1})
		if err := json.Unmarshal(body, &r); err != nil || r.Usage.PromptTokens != len(token.Encode(words)) {
			t.Errorf("%s", body)
		}
	}
}

// TestEndOfSequence looks for a prompt whose likeliest continuation soon ends,
// and asks for it under each of the rules that move the end.
func TestEndOfSequence(t *testing.T) {
	s := start(t, nil)
	ask := func(ids []int32, sp object) result {
		sp["max_new_tokens"] = 48
		return s.generate(ids, 0, object{"sampling_params": sp})
	}
	for seed := range uint64(200) {
		ids := prompt(seed, 4)
		r := ask(ids, object{})
		n := len(r.OutputIDs)
		if r.Meta.Finish["type"] != "stop" || n < 3 {
			continue
		}
		if r.OutputIDs[n-1] != token.End || r.Meta.Finish["matched"] != float64(token.End) || r.Meta.Completion != n || r.Text != token.Decode(r.OutputIDs[:n-1]) {
			t.Errorf("an ended sequence: %+v", r)
		}
		if long := ask(ids, object{"ignore_eos": true}); len(long.OutputIDs) != 48 || long.OutputIDs[n-1] != token.End || long.Meta.Finish["type"] != "length" {
			t.Errorf("ignore_eos: %+v", long)
		}
		if long := ask(ids, object{"min_new_tokens": 40}); len(long.OutputIDs) < 40 || slices.Contains(long.OutputIDs[:39], token.End) {
			t.Errorf("min_new_tokens: %+v", long)
		}
		stopped := ask(ids, object{"stop_token_ids": []int32{r.OutputIDs[1]}})
		if got := len(stopped.OutputIDs); got > 2 || stopped.Meta.Finish["type"] != "stop" {
			t.Errorf("stop_token_ids: %+v", stopped)
		}
		stop := token.Decode(r.OutputIDs[:2])
		if got := ask(ids, object{"stop": stop}); got.Text != "" || len(got.OutputIDs) != 2 || got.Meta.Finish["matched"] != stop {
			t.Errorf("stop %q: %+v", stop, got)
		}
		return
	}
	t.Fatal("no prompt of 200 leads to an end of sequence")
}

func TestLogprobs(t *testing.T) {
	s := start(t, nil)
	r := s.generate(prompt(1, 20), 5, object{"return_logprob": true, "top_logprobs_num": 2})
	if len(r.Meta.Logprobs) != 5 || len(r.Meta.TopLogprobs) != 5 {
		t.Fatalf("%+v", r.Meta)
	}
	for i, l := range r.Meta.Logprobs {
		top := r.Meta.TopLogprobs[i][0].([]any)
		if l[1] != float64(r.OutputIDs[i]) || top[1] != l[1] || top[0] != l[0] || l[0].(float64) > 0 {
			t.Errorf("token %d: %v, likeliest %v, chosen %d", i, l, top, r.OutputIDs[i])
		}
	}
}

// busy starts a long request and returns when it is running, with a function
// that cancels it.
func (s served) busy() (cancel func()) {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	data, _ := json.Marshal(object{"rid": "long", "input_ids": prompt(8, 50), "stream": true, "sampling_params": object{"max_new_tokens": 4000, "ignore_eos": true}})
	req, _ := http.NewRequestWithContext(ctx, "POST", s.url+"/generate", bytes.NewReader(data))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		stop()
		resp.Body.Close()
	}
}

// idle waits until nothing runs.
func (s served) idle() {
	s.t.Helper()
	if code, body := s.do("POST", "/flush_cache?timeout=60", nil); code != 200 {
		s.t.Fatalf("flush after the work: %d %s", code, body)
	}
}

func TestFlushIsRefusedWhileWorkIsPending(t *testing.T) {
	s := start(t, nil)
	cancel := s.busy()
	for _, path := range []string{"/flush_cache", "/flush_cache?timeout=0.001"} {
		code, body := s.do("POST", path, nil)
		if code != 400 || !strings.Contains(string(body), "pending work") {
			t.Errorf("%s while a request runs: %d %s", path, code, body)
		}
	}
	cancel()
	s.idle()
	for _, bad := range []string{"x", "-1", "NaN"} {
		if code, _ := s.do("POST", "/flush_cache?timeout="+bad, nil); code != 400 {
			t.Errorf("timeout %s: %d", bad, code)
		}
	}
	for _, large := range []string{"1e300", "Inf"} {
		if code, _ := s.do("POST", "/flush_cache?timeout="+large, nil); code != 200 {
			t.Errorf("timeout %s: %d", large, code)
		}
	}
}

func TestDisconnectAborts(t *testing.T) {
	s := start(t, nil)
	s.busy()()
	s.idle()
	st := s.sched.snapshot()
	if st.Aborted != 1 || st.Generated >= 4000 {
		t.Errorf("after a disconnect: %+v", st)
	}
}

func TestAbortRequest(t *testing.T) {
	for _, how := range []object{{"rid": "lo"}, {"abort_all": true}} {
		s := start(t, nil)
		done := make(chan []byte)
		go func() {
			_, body := s.do("POST", "/generate", object{"rid": "long", "input_ids": prompt(8, 50), "sampling_params": object{"max_new_tokens": 4000, "ignore_eos": true}})
			done <- body
		}()
		for s.sched.snapshot().Running == 0 {
			time.Sleep(time.Millisecond)
		}
		s.do("POST", "/abort_request", object{"rid": "other"})
		if code, body := s.do("POST", "/abort_request", how); code != 200 {
			t.Errorf("abort: %d %s", code, body)
		}
		var r result
		if err := json.Unmarshal(<-done, &r); err != nil || r.Meta.Finish["type"] != "abort" || r.Meta.ID != "long" {
			t.Errorf("%v %+v", err, r)
		}
	}
}

func TestMistakes(t *testing.T) {
	s := start(t, func(o *Options) { o.ContextLength = 100; o.MaxTotalTokens = 64; o.PageSize = 16 })
	sampling := func(kv ...any) object {
		sp := object{}
		for i := 0; i < len(kv); i += 2 {
			sp[kv[i].(string)] = kv[i+1]
		}
		return object{"input_ids": []int{1, 2}, "sampling_params": sp}
	}
	for name, c := range map[string]struct {
		path string
		in   any
		code int
		want string
	}{
		"not JSON":            {"/generate", "{", 400, "request body"},
		"wrong type":          {"/generate", `{"sampling_params": 3}`, 400, "request body"},
		"no prompt":           {"/generate", object{}, 400, "exactly one of"},
		"two prompts":         {"/generate", object{"text": "a", "input_ids": []int{1}}, 400, "exactly one of"},
		"empty text":          {"/generate", object{"text": ""}, 400, "empty"},
		"empty batch":         {"/generate", object{"text": []string{}}, 400, "empty"},
		"foreign id":          {"/generate", object{"input_ids": []int{1, 512}}, 400, "outside the vocabulary"},
		"negative id":         {"/generate", object{"input_ids": []int{-1}}, 400, "outside the vocabulary"},
		"fractional id":       {"/generate", object{"input_ids": []float64{1.5}}, 400, "list of integers"},
		"prompt over context": {"/generate", object{"input_ids": prompt(1, 100)}, 400, "is longer than the model's context length (100 tokens)"},
		"prompt over pool":    {"/generate", object{"input_ids": prompt(1, 64)}, 400, "exceeds the maximum allowed length"},
		"sum over context":    {"/generate", sampling("max_new_tokens", 99), 400, "exceeds the model's maximum context length of 100 tokens"},
		"sum over pool":       {"/generate", sampling("max_new_tokens", 63), 400, "exceeds the maximum allowed length"},
		"huge budget":         {"/generate", sampling("max_new_tokens", 1<<62), 400, "exceeds the model's maximum context length"},
		"negative budget":     {"/generate", sampling("max_new_tokens", -1), 400, "min_new_tokens"},
		"warm":                {"/generate", sampling("temperature", 0.7, "max_new_tokens", 1), 400, "greedy"},
		"many":                {"/generate", sampling("n", 2, "max_new_tokens", 1), 400, "only one completion"},
		"rids":                {"/generate", object{"rid": []string{"a", "b"}, "text": "a", "sampling_params": object{"max_new_tokens": 1}}, 400, "2 rids"},
		"completion over":     {"/v1/completions", object{"prompt": prompt(1, 100)}, 400, `"object":"error"`},
		"completion none":     {"/v1/completions", object{}, 400, "prompt is missing"},
		"completion two":      {"/v1/completions", object{"prompt": []string{"a", "b"}}, 400, "one prompt"},
		"other model":         {"/v1/completions", object{"model": "gpt", "prompt": "a"}, 404, "model_not_found"},
		"tokenize nothing":    {"/tokenize", object{}, 400, "prompt is missing"},
		"detokenize foreign":  {"/detokenize", object{"tokens": []int{999}}, 400, "outside the vocabulary"},
		"abort not JSON":      {"/abort_request", "", 400, "request body"},
	} {
		if code, body := s.do("POST", c.path, c.in); code != c.code || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %d %s, want %d and %q", name, code, body, c.code, c.want)
		}
	}
	for path, want := range map[string]int{"/v1/models/gpt": 404, "/v1/models/tiny-gqa": 200, "/nowhere": 404} {
		if code, body := s.do("GET", path, nil); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	// In a stream of /generate the error is an event behind status 200.
	events := s.events("/generate", object{"input_ids": prompt(1, 100), "stream": true})
	if len(events) != 1 || !strings.Contains(events[0], `{"error":{"message":"The input (100 tokens) is longer`) {
		t.Errorf("stream of a request that is too long: %q", events)
	}
	// The largest request that fits is answered.
	if r := s.generate(prompt(1, 60), 4, nil); len(r.OutputIDs) != 4 {
		t.Errorf("a request that fills the pool: %+v", r)
	}
	if r := s.generate(prompt(1, 60), 0, nil); len(r.OutputIDs) != 0 || r.Meta.Finish["type"] != "length" {
		t.Errorf("a request for nothing: %+v", r)
	}
}

func TestTokenizeRoutes(t *testing.T) {
	s := start(t, nil)
	text := "The light of the server, and then: é\n"
	_, body := s.do("POST", "/tokenize", object{"prompt": text})
	var ids struct {
		Tokens []int32
		Count  int
	}
	if err := json.Unmarshal(body, &ids); err != nil || ids.Count != len(ids.Tokens) || ids.Count == 0 {
		t.Fatalf("%s", body)
	}
	_, body = s.do("POST", "/v1/detokenize", object{"tokens": ids.Tokens})
	var back struct{ Text string }
	if err := json.Unmarshal(body, &back); err != nil || back.Text != text {
		t.Errorf("%s", body)
	}
	if r := s.generate(nil, 0, object{"input_ids": nil, "text": text}); r.Meta.Prompt != ids.Count {
		t.Errorf("prompt_tokens %d for %d ids", r.Meta.Prompt, ids.Count)
	}
}

func TestInfo(t *testing.T) {
	s := start(t, func(o *Options) { o.Kernel = "serial_perhead"; o.PageSize = 16; o.MaxTotalTokens = 1000 })
	for _, path := range []string{"/server_info", "/get_server_info"} {
		_, body := s.do("GET", path, nil)
		var got object
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]any{
			"attention_backend": "serial_perhead", "page_size": 16.0, "kv_cache_dtype": "float32", "max_total_num_tokens": 992.0,
			"max_req_input_len": 991.0, "context_length": 4096.0, "version": Version, "kv_bytes_per_token": 2048.0, "device": "cpu",
		} {
			if got[name] != want {
				t.Errorf("%s: %s is %v, want %v", path, name, got[name], want)
			}
		}
		state := got["internal_states"].([]any)[0].(object)
		if state["memory_usage"].(object)["token_capacity"] != 992.0 {
			t.Errorf("%s: %v", path, state)
		}
	}
	_, body := s.do("GET", "/v1/models", nil)
	if !strings.Contains(string(body), `"max_model_len":4096`) {
		t.Errorf("models: %s", body)
	}
	for _, path := range []string{"/health", "/health_generate", "/ping", "/model_info"} {
		if code, body := s.do("GET", path, nil); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	s.generate(prompt(1, 64), 5, nil)
	s.generate(prompt(1, 64), 5, nil)
	_, body = s.do("GET", "/metrics", nil)
	for _, line := range []string{
		`sglang:num_running_reqs{model_name="tiny-gqa"} 0`,
		`sglang:prompt_tokens_total{model_name="tiny-gqa"} 129`, // one of the health probe
		`sglang:cached_tokens_total{model_name="tiny-gqa"} 48`,
		`sglang:generation_tokens_total{model_name="tiny-gqa"} 11`,
		`sglang:max_total_num_tokens{model_name="tiny-gqa"} 992`,
		`sglang:kv_evictable_tokens{model_name="tiny-gqa"} 64`,
		`sglang:num_used_tokens{model_name="tiny-gqa"} 0`,
	} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("metrics lack %q:\n%s", line, body)
		}
	}
}

// FuzzBodies sends foreign bytes to every route that takes a body: the answer
// is never a server fault, and the server goes on.
func FuzzBodies(f *testing.F) {
	f.Add(`{"text":"a","sampling_params":{"max_new_tokens":1}}`)
	f.Add(`{"input_ids":[[1],[2]],"rid":["a"],"sampling_params":{"max_new_tokens":0,"stop":["",null]}}`)
	f.Add(`{"prompt":[1,2,3],"max_tokens":2,"stream":true,"stream_options":null,"stop":"a"}`)
	f.Add(`{"tokens":[1e99]}`)
	f.Add(`{"rid":"","abort_all":true}`)
	f.Add(`{"input_ids":[9],"sampling_params":{"max_new_tokens":2,"stop_token_ids":[-5]},"return_logprob":true,"top_logprobs_num":9999}`)
	o := Defaults()
	o.ContextLength, o.MaxTotalTokens = 64, 64
	s, err := New(o, io.Discard)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := s.Loop(ctx); err != nil {
			panic(err)
		}
	})
	f.Cleanup(func() {
		cancel()
		loop.Wait()
	})
	h := s.Handler()
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/generate", "/v1/completions", "/tokenize", "/detokenize", "/abort_request"} {
			w := httptest.NewRecorder()
			patience, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			h.ServeHTTP(w, httptest.NewRequestWithContext(patience, "POST", path, strings.NewReader(body)))
			if patience.Err() != nil {
				t.Errorf("%s does not answer %q", path, body)
			}
			cancel()
			if w.Code >= 500 {
				t.Errorf("%s answers %d to %q: %s", path, w.Code, body, w.Body)
			}
		}
	})
}
