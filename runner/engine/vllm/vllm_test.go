package vllm

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/enginetest"
	"twopoint/schema"
	"twopoint/test/standin"
)

func TestStandin(t *testing.T) {
	for name, script := range map[string]standin.Script{
		"plain":       {},
		"speculation": {Clock: standin.Clock{TokensPerStep: 3}},
		"blocks":      {Cache: standin.Cache{Block: 16}},
	} {
		script.Face, script.Limit = "vllm", 2048
		script.Clock.PrefillTokS, script.Clock.StepS = 50_000, 0.002
		t.Run(name, func(t *testing.T) {
			_, url := standin.Open(t, script)
			v := schema.Variant{ModelPath: "standin"}
			enginetest.Run(t, Engine{}, func(*testing.T) enginetest.Server { return enginetest.Server{URL: url, Variant: v} })
			c := enginetest.Client(t, url, "", engine.Limits{})
			info, err := Engine{}.Info(t.Context(), c, v)
			if err != nil || info.PageSize != max(1, script.Cache.Block) || info.KVPoolTokens != 1000*int64(info.PageSize) || info.Speculative == nil || *info.Speculative != (script.Clock.TokensPerStep > 1) ||
				!info.ExactLength || !info.TokenIDs || !info.CachedCount || !info.EngineDefault {
				t.Errorf("info: %+v, %v", info, err)
			}
			s := Engine{}.Generate(t.Context(), c, engine.Request{Model: info.Model, IDs: enginetest.Prompt(9, 64), MaxTokens: 31, Stream: true})
			enginetest.Whole(t, s, 64, 31)
			if s.Retractions == nil || *s.Retractions != 0 || s.ServerPrefillS == nil || s.ServerDecodeSPerTok == nil {
				t.Errorf("retractions %v, server's times %v %v, notes %q", s.Retractions, s.ServerPrefillS, s.ServerDecodeSPerTok, s.Notes)
			}
			switch k := script.Clock.TokensPerStep; {
			case k == 0 && s.Steps != nil:
				t.Errorf("%d steps without speculation", *s.Steps)
			case k > 0 && (s.Steps == nil || *s.Steps != 10):
				t.Errorf("steps %v, want 10", s.Steps)
			}
			// One of several at a time: nothing is asked beside the request itself.
			many := Engine{}.Generate(t.Context(), c, engine.Request{Model: info.Model, IDs: enginetest.Prompt(8, 64), MaxTokens: 4, Stream: true, Begin: func() {}})
			if many.Error != "" || many.Retractions != nil {
				t.Errorf("of several: %+v", many)
			}
		})
	}
}

// counters is a vLLM whose /metrics are scripted: what a request adds appears
// after some readings.
type counters struct {
	drafts, accepted, preempted, finished, running int // that a request adds
	lag                                            int // readings until then

	mu       sync.Mutex
	reads    int
	requests int
}

func (k *counters) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch r.URL.Path {
	case "/metrics":
		n := 0
		if k.requests > 0 {
			if k.reads++; k.reads > k.lag {
				n = 1
			}
		}
		fmt.Fprintf(w, "# HELP vllm:x y\npython_gc{a=\"1\"} 3\nvllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} 0\n", n*k.running)
		fmt.Fprintf(w, "vllm:request_success_total{finished_reason=\"length\"} %d\nvllm:request_success_total{finished_reason=\"stop\"} 5\n", 7+n*k.finished)
		fmt.Fprintf(w, "vllm:num_preemptions_total{} %d\nvllm:spec_decode_num_drafts_total{} %d\nvllm:spec_decode_num_accepted_tokens_total{} %d\n", 2+n*k.preempted, 100+n*k.drafts, 200+n*k.accepted)
	case "/v1/completions":
		k.requests++
		fmt.Fprintf(w, `{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":33}}`)
	}
}

func TestCounters(t *testing.T) {
	for _, c := range []struct {
		name           string
		counters       *counters
		steps, retract string
	}{
		{"all drafted", &counters{drafts: 12, accepted: 21, finished: 1}, "12", "0"},
		{"late", &counters{drafts: 12, accepted: 20, finished: 1, lag: 3}, "12", "0"},
		{"some without a draft", &counters{drafts: 4, accepted: 12, finished: 1}, "nil", "0"},
		{"nothing accepted", &counters{drafts: 4, finished: 1}, "32", "0"},
		{"preempted", &counters{drafts: 12, accepted: 21, finished: 1, preempted: 2}, "12", "2"},
		{"somebody else's too", &counters{drafts: 12, accepted: 21, finished: 2}, "nil", "nil"},
	} {
		s := httptest.NewServer(c.counters)
		got := Engine{}.Generate(t.Context(), enginetest.Client(t, s.URL, "", engine.Limits{}), engine.Request{IDs: []int32{1, 2, 3, 4, 5}, MaxTokens: 33})
		s.Close()
		show := func(n *int64) string {
			if n == nil {
				return "nil"
			}
			return fmt.Sprint(*n)
		}
		if got.Error != "" || show(got.Steps) != c.steps || show(got.Retractions) != c.retract {
			t.Errorf("%s: steps %s, retractions %s, want %s and %s; %q %q", c.name, show(got.Steps), show(got.Retractions), c.steps, c.retract, got.Detail, got.Notes)
		}
		if (c.steps == "nil") != (len(got.Notes) > 0) {
			t.Errorf("%s: notes %q", c.name, got.Notes)
		}
	}
}

// TestSteps plays requests under speculation, step by step, and holds that a
// number of steps is either the true one or not given.
func TestSteps(t *testing.T) {
	for seed := range uint64(20000) {
		rnd := seed*0x9e3779b97f4a7c15 + 1
		next := func(n uint64) int64 {
			rnd ^= rnd << 13
			rnd ^= rnd >> 7
			rnd ^= rnd << 17
			return int64(rnd % n)
		}
		n, draft, none := 1+next(40), next(5), uint64(1+next(6)) // one step of so many has no draft; of 1: the lot
		always := none == 6
		var done, drafts, accepted, taken int64 = 1, 0, 0, 0
		for done < n {
			yield := int64(1)
			if draft > 0 && (always || next(none) != 0) {
				a := next(uint64(draft + 1))
				drafts, accepted, yield = drafts+1, accepted+a, a+1
			}
			done, taken = done+yield, taken+1
		}
		pieces := int(taken) + 1
		if got, ok := steps(n, drafts, accepted, pieces); ok && got != taken {
			t.Fatalf("seed %d: %d steps, want %d (n %d, drafts %d, accepted %d)", seed, got, taken, n, drafts, accepted)
		}
		if got, ok := steps(n, drafts, accepted, pieces); always && draft > 0 && (!ok || got != taken) {
			t.Fatalf("seed %d: every step had a draft, yet %d %v, want %d", seed, got, ok, taken)
		}
	}
	if _, ok := steps(33, -1, 5, 0); ok {
		t.Error("a negative count gives steps")
	}
}

func TestInfo(t *testing.T) {
	const text = `vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0",gpu_memory_utilization="0.92",kv_cache_size_tokens="123456",num_gpu_blocks="9999",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="32",engine="1"} 1.0
`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, text)
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","max_model_len":4096,"owned_by":"vllm"}]}`)
		case "/version":
			fmt.Fprint(w, `{"version":"0.20.0"}`)
		case "/server_info":
			fmt.Fprint(w, `{"vllm_config":{"attention_config":{"backend":"FLASHMLA"},"parallel_config":{"tensor_parallel_size":8},"speculative_config":{"method":"mtp"},"model_config":{"hf_token":"hush"}}}`)
		case "/v1/completions":
			fmt.Fprint(w, `{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	info, err := Engine{}.Info(t.Context(), enginetest.Client(t, s.URL, "", engine.Limits{}), schema.Variant{ModelPath: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if info.KVPoolTokens != 123456 || info.PageSize != 16 || info.KVDType != "fp8" || info.EngineDefault || info.Backend != "FLASHMLA" || info.TP != 8 ||
		info.Speculative == nil || !*info.Speculative || info.Version != "0.20.0" || info.ContextLimit != 4096 || !info.TokenIDs || !info.CachedCount {
		t.Errorf("%+v", info)
	}
	if strings.Contains(fmt.Sprint(info.Settings), "hush") || info.Settings["cache.sliding_window"] != nil || info.Settings["cache.gpu_memory_utilization"] != "0.92" {
		t.Errorf("settings %v", info.Settings)
	}
	if !slices.ContainsFunc(info.Advice, func(a string) bool { return strings.Contains(a, "--enable-per-request-metrics") }) {
		t.Errorf("advice %q", info.Advice)
	}
}

func TestSalt(t *testing.T) {
	for _, bad := range []string{"a@b", "a/b", `a\b`, "a\x00", strings.Repeat("x", 129)} {
		if s := salt(bad); s == bad || len(s) != 64 || salt(bad) != s {
			t.Errorf("%q became %q", bad, s)
		}
	}
	if salt("0a1b") != "0a1b" || salt("") != "" {
		t.Error("a good salt was changed")
	}
}

func TestMetrics(t *testing.T) {
	m := parseMetrics("vllm:a{x=\"1\"} 2\nvllm:a{x=\"q\\\"}, y\\n\",z=\"2\"} 3 1700000000\nvllm:b 4\nvllm:c{broken 5\nvllm:d NaN\nother 6\nvllm:cache_config_info{p=\"a\\\\b\"} 1")
	if m.sum["vllm:a"] != 5 || m.sum["vllm:b"] != 4 || len(m.sum) != 3 || m.cache["p"] != `a\b` {
		t.Errorf("%+v", m)
	}
}

// FuzzMetrics holds that no text ends the program, and that no delta is negative.
func FuzzMetrics(f *testing.F) {
	f.Add("vllm:a{x=\"1\"} 2\nvllm:cache_config_info{block_size=\"16\"} 1.0\n")
	f.Add("vllm:request_success_total{a=\"\\")
	f.Add("vllm:request_success_total -1e308\nvllm:request_success_total{} +Inf")
	f.Fuzz(func(t *testing.T, text string) {
		m := parseMetrics(text)
		for name := range m.sum {
			for _, before := range []metrics{{sum: map[string]float64{name: 0}}, {sum: map[string]float64{name: math.Inf(-1)}}, m} {
				if n, ok := m.delta(before, name); ok && n < 0 {
					t.Errorf("%s grew by %d", name, n)
				}
			}
		}
	})
}

// FuzzRequest holds that no per-request metrics, whatever they say, give a
// negative or infinite time.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"time_to_first_token_ms":12.5,"generation_time_ms":640,"queue_time_ms":0.1,"speculative_decoding":{"num_spec_steps":10,"num_accepted_draft_tokens":20}}`), int64(33))
	f.Add([]byte(`{"time_to_first_token_ms":-1,"generation_time_ms":1e308}`), int64(2))
	f.Fuzz(func(t *testing.T, data []byte, n int64) {
		var r request
		if json.Unmarshal(data, &r) != nil {
			return
		}
		s := event.Sample{CompletionTokens: &n}
		r.times(&s)
		for _, x := range []*float64{s.ServerPrefillS, s.ServerDecodeSPerTok, s.ServerTotalS} {
			if x != nil && (!(*x >= 0) || math.IsInf(*x, 0)) {
				t.Errorf("time %v from %q", *x, data)
			}
		}
	})
}
