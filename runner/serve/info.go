package serve

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"twopoint/kernels/cpu"
	"twopoint/runner/serve/model"
)

func (s *Server) modelInfo(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]any{
		"model_path": s.opt.ModelPath, "tokenizer_path": s.opt.ModelPath, "is_generation": true,
		"weight_version": "default", "model_type": s.opt.ModelPath, "architectures": []string{"TwopointForCausalLM"},
	})
}

// serverInfo reports the settings as they are in effect, under SGLang's names,
// and beside them the geometry that figures per KV byte need.
func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	o, st := s.opt, s.sched.snapshot()
	geometry, _ := model.Preset(o.ModelPath)
	capacity := s.sched.pool.Tokens()
	reply(w, http.StatusOK, map[string]any{
		"model_path": o.ModelPath, "served_model_name": o.ServedModelName, "random_seed": o.RandomSeed,
		"host": o.Host, "port": o.Port, "context_length": o.ContextLength, "page_size": o.PageSize,
		"max_total_tokens": o.MaxTotalTokens, "max_running_requests": o.MaxRunning, "chunked_prefill_size": o.ChunkedPrefill,
		"disable_radix_cache": o.DisableRadixCache, "enable_cache_report": o.EnableCacheReport,
		"stream_interval": o.StreamInterval, "incremental_streaming_output": o.Incremental,
		"attention_backend": o.Kernel, "decode_attention_backend": o.Kernel, "prefill_attention_backend": prefillKernel,
		"kernel": o.Kernel, "splits": o.Splits, "threads": o.Threads, "placement": o.Placement, "mem_limit": o.MemLimit,
		"dtype": "float32", "kv_cache_dtype": "float32", "tp_size": 1, "dp_size": 1, "pp_size": 1, "speculative_algorithm": nil,
		"device": "cpu", "device_path": cpu.Path(), "version": Version,
		"max_total_num_tokens": capacity, "max_req_input_len": s.maxInput(),
		"kv_bytes_per_token": geometry.KVTokenBytes(), "num_hidden_layers": geometry.Layers,
		"internal_states": []any{map[string]any{
			"last_gen_throughput":                   st.GenThroughput,
			"effective_max_running_requests_per_dp": o.MaxRunning,
			"startup_time":                          s.ready.Seconds(),
			"memory_usage": map[string]any{
				"token_capacity": capacity,
				"kvcache":        float64(capacity*geometry.KVTokenBytes()) / (1 << 30), // GiB once all is mapped
			},
		}},
	})
}

// metrics speaks the Prometheus text format, with SGLang's names.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	st := s.sched.snapshot()
	capacity := s.sched.pool.Tokens()
	used := st.UsedTokens - st.CachedKV
	hit := 0.0
	if st.PromptTokens > 0 {
		hit = float64(st.Cached) / float64(st.PromptTokens)
	}
	var b strings.Builder
	label := fmt.Sprintf("{model_name=%q}", s.opt.ServedModelName)
	put := func(kind, name string, value float64) {
		family := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
		if kind != "" {
			fmt.Fprintf(&b, "# TYPE sglang:%s %s\n", family, kind)
		}
		fmt.Fprintf(&b, "sglang:%s%s %s\n", name, label, strconv.FormatFloat(value, 'g', -1, 64))
	}
	put("gauge", "num_running_reqs", float64(st.Running))
	put("gauge", "num_queue_reqs", float64(st.Queued))
	put("gauge", "max_total_num_tokens", float64(capacity))
	put("gauge", "num_used_tokens", float64(used))
	put("gauge", "kv_used_tokens", float64(used))
	put("gauge", "kv_evictable_tokens", float64(st.CachedKV))
	put("gauge", "kv_available_tokens", float64(capacity-st.UsedTokens))
	put("gauge", "token_usage", float64(used)/float64(capacity))
	put("gauge", "gen_throughput", st.GenThroughput)
	put("gauge", "cache_hit_rate", hit)
	put("counter", "num_retracted_requests_total", float64(st.Retracted))
	put("counter", "num_requests_total", float64(st.Requests))
	put("counter", "num_aborted_requests_total", float64(st.Aborted))
	put("counter", "prompt_tokens_total", float64(st.PromptTokens))
	put("counter", "cached_tokens_total", float64(st.Cached))
	put("counter", "generation_tokens_total", float64(st.Generated))
	put("counter", "prefill_steps_total", float64(st.PrefillSteps))
	put("counter", "decode_steps_total", float64(st.DecodeSteps))
	put("summary", "time_to_first_token_seconds_sum", st.TTFTSum)
	put("", "time_to_first_token_seconds_count", float64(st.TTFTCount))
	put("summary", "e2e_request_latency_seconds_sum", st.E2ESum)
	put("", "e2e_request_latency_seconds_count", float64(st.E2ECount))
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, b.String())
}
