package standin

import (
	"encoding/json"
	"net/http"
	"time"
)

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// promptCount is the prompt's length as the server says it.
func (a *ask) promptCount() int {
	if n := a.script.Counts.Prompt; n != 0 {
		return n
	}
	return len(a.ids) + a.script.Counts.PromptOff
}

func (a *ask) answerCount(n int) int {
	if c := a.script.Counts.Answer; c != 0 && n == a.n {
		return c
	}
	return n
}

// cachedCount is the number of cached tokens as the server says it; set is false
// where it leaves the field out.
func (a *ask) cachedCount() (value any, set bool) {
	switch {
	case a.script.Cache.Claim != nil:
		return *a.script.Cache.Claim, true
	case a.script.Cache.Report == "omit":
		return nil, false
	case a.script.Cache.Report == "null":
		return nil, true
	}
	return a.cached, true
}

// event holds the tokens from..to of an answer, or the whole of one that does not
// stream; finish ends it where not empty.
func (s *Server) event(a *ask, from, to int, finish string) map[string]any {
	switch {
	case a.path == "/generate":
		return s.sglangEvent(a, from, to, finish)
	case a.path == "/completion":
		return s.llamacppEvent(a, from, to, finish)
	case a.path == "/api/generate":
		return s.ollamaEvent(a, from, to, finish)
	}
	return s.openaiEvent(a, from, to, finish)
}

// fragment is the i-th of k pieces of the text of tokens from..to.
func (s *Server) fragment(a *ask, from, to, i, k int) map[string]any {
	text := s.vocabulary.text(a.out[from:to])
	piece := text[len(text)*i/k : len(text)*(i+1)/k]
	if a.path == "/completion" {
		return map[string]any{"content": piece, "stop": false}
	}
	choice := map[string]any{"index": 0, "text": piece, "finish_reason": nil}
	if a.chat {
		choice["delta"] = map[string]any{"content": piece}
	}
	return map[string]any{"choices": []any{choice}}
}

func setFinish(m map[string]any, finish string) {
	if choices, ok := m["choices"].([]any); ok {
		choices[0].(map[string]any)["finish_reason"] = finish
	}
}

// closing are the events after the last token.
func (s *Server) closing(a *ask) []map[string]any {
	switch {
	case a.lastApart() && a.script.Stream.End != "" && a.script.Stream.End != "linger":
		return nil
	case a.path == "/api/generate":
		return []map[string]any{s.ollamaEvent(a, a.n, a.n, a.finish)}
	case a.path == "/completion":
		m := map[string]any{"content": "", "tokens": []int32{}}
		s.llamacppLast(m, a, a.finish)
		return []map[string]any{m}
	case a.path == "/v1/completions" || a.path == "/v1/chat/completions":
		if (a.usage || s.script.Face == "trtllm") && !a.script.Counts.NoUsage && !a.script.Counts.NoStreamUsage {
			m := map[string]any{"choices": []any{}, "usage": a.usageObject(a.n)}
			s.vllmMetrics(m, a)
			return []map[string]any{m}
		}
	}
	return nil
}

// SGLang: /generate is cumulative (engines.md 2.5).

func (s *Server) sglangInfo() map[string]any {
	spec := any(nil)
	if s.script.Clock.TokensPerStep > 1 {
		spec = "EAGLE"
	}
	return map[string]any{
		"version": "0.0.standin", "attention_backend": "triton", "decode_attention_backend": nil, "page_size": s.script.Cache.Block,
		"kv_cache_dtype": "auto", "tp_size": 1, "dp_size": 1, "speculative_algorithm": spec, "api_key": s.script.Key, "context_length": s.script.Limit,
		"disable_radix_cache": s.script.Cache.Off, "max_total_num_tokens": 4 * s.script.Limit,
		"internal_states": []any{map[string]any{"memory_usage": map[string]any{"token_capacity": 4 * s.script.Limit}}},
	}
}

func (s *Server) sglangEvent(a *ask, from, to int, finish string) map[string]any {
	if !a.script.Stream.Delta {
		from = 0
	}
	fresh := a.out[from:to]
	meta := map[string]any{"id": "x", "prompt_tokens": a.promptCount(), "completion_tokens": a.answerCount(to), "num_retractions": 0, "finish_reason": nil}
	if v, set := a.cachedCount(); set {
		meta["cached_tokens"] = v
	}
	if finish != "" {
		meta["finish_reason"] = map[string]any{"type": finish}
		meta["e2e_latency"] = time.Since(a.t0).Seconds()
		if k := a.script.Clock.TokensPerStep; k > 1 {
			meta["spec_verify_ct"] = (a.n - 1 + k - 1) / k
		}
	}
	if a.script.Counts.NoUsage || a.script.Counts.NoStreamUsage && a.stream {
		delete(meta, "completion_tokens")
	}
	if a.script.Counts.NoUsage || a.script.Counts.NoPrompt {
		delete(meta, "prompt_tokens")
	}
	m := map[string]any{"text": s.vocabulary.text(fresh), "output_ids": fresh, "meta_info": meta}
	if a.script.Stream.NoIDs {
		delete(m, "output_ids")
	}
	return m
}

// OpenAI's routes, with what vLLM, SGLang, llama.cpp and TensorRT-LLM add.

func (a *ask) usageObject(n int) map[string]any {
	u := map[string]any{"prompt_tokens": a.promptCount(), "completion_tokens": a.answerCount(n), "total_tokens": a.promptCount() + a.answerCount(n)}
	if a.script.Counts.NoPrompt {
		delete(u, "prompt_tokens")
	}
	if v, set := a.cachedCount(); set {
		u["prompt_tokens_details"] = map[string]any{"cached_tokens": v}
	}
	return u
}

func (s *Server) openaiEvent(a *ask, from, to int, finish string) map[string]any {
	fresh := a.out[from:to]
	choice := map[string]any{"index": 0, "finish_reason": null(finish)}
	field := or(a.script.Stream.Reasoning, "content")
	text := s.vocabulary.text(fresh)
	switch {
	case a.chat && a.stream:
		choice["delta"] = map[string]any{field: text}
	case a.chat:
		choice["message"] = map[string]any{field: text}
	default:
		choice["text"] = text
		if a.wantIDs && !a.script.Stream.NoIDs {
			choice["token_ids"] = fresh
		}
	}
	m := map[string]any{"id": "x", "object": "text_completion", "model": s.script.Model, "choices": []any{choice}}
	if !a.stream && !a.script.Counts.NoUsage {
		m["usage"] = a.usageObject(a.n)
		s.vllmMetrics(m, a)
	}
	return m
}

// vllmMetrics are vLLM's per-request metrics (engines.md 3.4).
func (s *Server) vllmMetrics(m map[string]any, a *ask) {
	if s.script.Face != "vllm" {
		return
	}
	var decode float64
	for _, d := range a.times.stepS {
		decode += d
	}
	metrics := map[string]any{"time_to_first_token_ms": 1e3 * a.times.prefillS, "generation_time_ms": 1e3 * decode, "queue_time_ms": 0.0}
	if k := a.script.Clock.TokensPerStep; k > 1 {
		steps := (a.n - 1 + k - 1) / k
		metrics["speculative_decoding"] = map[string]any{"num_spec_steps": steps, "num_accepted_draft_tokens": a.n - 1 - steps}
	}
	m["metrics"] = metrics
}

// llama.cpp: /completion, whose last event has the counts.

func (s *Server) llamacppEvent(a *ask, from, to int, finish string) map[string]any {
	fresh := a.out[from:to]
	m := map[string]any{"content": s.vocabulary.text(fresh), "tokens": fresh, "stop": false, "tokens_predicted": to, "tokens_evaluated": a.promptCount()}
	if a.script.Stream.NoIDs {
		delete(m, "tokens")
	}
	if !a.stream {
		s.llamacppLast(m, a, finish)
	}
	return m
}

func (s *Server) llamacppLast(m map[string]any, a *ask, finish string) {
	m["stop"], m["stop_type"] = true, map[string]string{"length": "limit", "stop": "eos"}[finish]
	m["truncated"] = false
	if a.script.Counts.NoUsage {
		return
	}
	m["tokens_predicted"], m["tokens_evaluated"] = a.answerCount(a.n), a.promptCount()
	var decode float64
	for _, d := range a.times.stepS {
		decode += d
	}
	timings := map[string]any{"prompt_n": a.promptCount() - a.cached, "prompt_ms": 1e3 * a.times.prefillS, "predicted_n": a.answerCount(a.n), "predicted_ms": 1e3 * decode}
	if v, set := a.cachedCount(); set {
		timings["cache_n"] = v
	}
	if k := a.script.Clock.TokensPerStep; k > 1 {
		steps := (a.n - 1 + k - 1) / k
		timings["draft_n"], timings["draft_n_accepted"] = steps*(k-1), a.n-1-steps
	}
	m["timings"] = timings
}

// Ollama: lines of JSON, models that load on first use, durations in ns.

func (s *Server) ollamaCommon(w http.ResponseWriter, r *http.Request) bool {
	model := map[string]any{"name": s.script.Model, "model": s.script.Model}
	switch r.URL.Path {
	case "/":
		w.Write([]byte("Ollama is running"))
	case "/api/version":
		answer(w, 200, map[string]any{"version": "0.0.standin"})
	case "/api/tags":
		answer(w, 200, map[string]any{"models": []any{model}})
	case "/api/ps":
		model["context_length"], model["size"], model["size_vram"] = s.script.Limit, 1<<30, 0
		list := []any{model}
		s.mu.Lock()
		if !s.gone.IsZero() && time.Now().After(s.gone) {
			list = []any{}
		}
		s.mu.Unlock()
		answer(w, 200, map[string]any{"models": list})
	case "/api/show":
		answer(w, 200, map[string]any{"details": map[string]any{"family": "standin"}, "model_info": map[string]any{}})
	default:
		return false
	}
	return true
}

// unloadS is how long a model stays in memory after it was unloaded. A request
// before that is served by what is about to go; one after that loads it again.
const unloadS = 0.020

// ollamaLoad answers requests without a prompt: load and unload.
func (s *Server) ollamaLoad(w http.ResponseWriter, a *ask) bool {
	if name, _ := a.body["model"].(string); name != "" && name != s.script.Model {
		answer(w, 404, map[string]any{"error": "model '" + name + "' not found"})
		return true
	}
	v, set := a.body["keep_alive"]
	text, _ := a.body["prompt"].(string)
	unload := text == "" && set && (v == 0.0 || v == "0")
	s.mu.Lock()
	if unload {
		s.gone = time.Now().Add(seconds(unloadS))
	} else if time.Now().After(s.gone) {
		s.gone = time.Time{}
	}
	s.mu.Unlock()
	if text != "" {
		return false
	}
	why := "load"
	if unload {
		why = "unload"
		s.mu.Lock()
		s.flushes++
		s.mu.Unlock()
		s.cache.flush()
		s.clock.flushed()
	}
	answer(w, 200, map[string]any{"model": s.script.Model, "response": "", "done": true, "done_reason": why})
	return true
}

func (s *Server) ollamaEvent(a *ask, from, to int, finish string) map[string]any {
	m := map[string]any{"model": s.script.Model, "created_at": time.Now().UTC(), "response": s.vocabulary.text(a.out[from:to]), "done": finish != ""}
	if finish == "" {
		return m
	}
	ns := func(s float64) json.Number { return json.Number(jsonInt(int64(s * 1e9))) }
	var decode float64
	for _, d := range a.times.stepS {
		decode += d
	}
	m["done_reason"] = finish
	m["total_duration"], m["load_duration"] = ns(a.times.prefillS+decode), ns(0.001) // never zero
	m["prompt_eval_duration"], m["eval_duration"] = ns(a.times.prefillS), ns(decode)
	if !a.script.Counts.NoUsage {
		m["eval_count"] = a.answerCount(a.n)
		if !a.script.Counts.NoPrompt {
			m["prompt_eval_count"] = a.promptCount()
		}
	}
	return m
}

func jsonInt(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}
