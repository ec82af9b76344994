// Package enginetest holds what every engine adapter must do, as tests, and
// Fake, a scripted server that speaks each engine's wire format, well or badly.
// An adapter and a server come in, verdicts go out. It measures nothing.
package enginetest

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Model is the name of a Fake's model.
const Model = "fake"

// Dialects are the wire formats that a Fake speaks.
var Dialects = []string{"sglang", "openai", "llamacpp"}

// Fake is a server whose answers are scripted. Its zero value, with a dialect,
// behaves well. Fields are set before it is opened.
type Fake struct {
	Dialect string // sglang | openai | llamacpp

	// The stream.
	Incremental bool          // sglang: events hold what is new, not everything so far
	PerChunk    int           // tokens in an event; 0 is 1
	Preamble    string        // raw bytes before the first event
	Field       string        // what begins a data line; "" is "data: "
	EOL         string        // "" is "\n"
	Padding     int           // bytes of filler in the second event
	Held        bool          // all events leave in one write, at the end
	Bytewise    bool          // every byte leaves alone
	Prefill     time.Duration // before the first token; the stream holds comments until then
	Step        time.Duration // between events
	Hang        int           // no more events after this many tokens, while the connection stays; with a comment now and then
	End         string        // "" proper | no-done | done-only | null-finish | early | fin | reset
	Cut         int           // tokens before an end of early, fin or reset
	ErrorAt     int           // an error event in place of this token, from 1
	Abort       string        // sglang: finish with an abort and this message
	Stop        int           // the model ends by itself after this many tokens
	Role        bool          // openai: an empty first delta
	Reasoning   string        // openai: chat field that the tokens come in
	NoIDs       bool          // events hold text alone

	// Counts.
	NoUsage  bool
	NoCached bool

	// Other routes and refusals.
	Refuse        string // a request field refused with RefuseStatus
	RefuseStatus  int    // 0 is 400
	NoCompletions bool   // openai: only the chat route
	NoFlush       bool   // the flush route is missing
	FlushRefusals int    // flushes refused before one is done; −1: all
	FlushBody     string // openai: body of a flush's 200
	Loading       int    // answers of 503 before it is ready
	Key           string // the bearer token that it wants
	Limit         int    // context limit; 0 is 4096
	Models        []string

	mu     sync.Mutex
	cache  map[string][]int32
	loads  int
	flush  int
	Bodies []map[string]any // of generate requests, in order

	Conns atomic.Int64 // connections opened
}

// Open starts the server; it ends with the test.
func (f *Fake) Open(t testing.TB) string {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { f.serve(w, r) })
	s := httptest.NewUnstartedServer(mux)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			f.Conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]any{"error": map[string]any{"message": message, "code": status}})
}

func (f *Fake) serve(w http.ResponseWriter, r *http.Request) {
	if f.Key != "" && r.Header.Get("Authorization") != "Bearer "+f.Key {
		refuse(w, 401, "bad key: "+r.Header.Get("Authorization"))
		return
	}
	f.mu.Lock()
	loading := f.loads < f.Loading
	if loading {
		f.loads++
	}
	f.mu.Unlock()
	if loading {
		refuse(w, 503, "Loading model")
		return
	}
	limit := f.limit()
	switch path := r.URL.Path; {
	case path == "/v1/models":
		list := []any{}
		models := f.Models
		if models == nil {
			models = []string{Model}
		}
		for _, id := range models {
			list = append(list, map[string]any{"id": id, "max_model_len": limit, "owned_by": "vllm"})
		}
		answer(w, 200, map[string]any{"data": list})
	case path == "/health":
		answer(w, 200, map[string]any{"status": "ok"})
	case path == "/tokenize":
		var in struct{ Prompt, Content string }
		json.NewDecoder(r.Body).Decode(&in)
		ids := []int32{}
		for _, b := range []byte(in.Prompt + in.Content) {
			ids = append(ids, int32(b))
		}
		answer(w, 200, map[string]any{"tokens": ids})
	case f.Dialect == "sglang" && path == "/server_info":
		answer(w, 200, map[string]any{
			"version": "1.2.3", "attention_backend": "triton", "decode_attention_backend": nil, "page_size": 16,
			"kv_cache_dtype": "auto", "tp_size": 2, "speculative_algorithm": nil, "api_key": "hush",
			"disable_radix_cache": false, "max_total_num_tokens": 99999, "mem_fraction_static": 0.88,
			"internal_states": []any{map[string]any{"memory_usage": map[string]any{"token_capacity": 99999}}},
		})
	case f.Dialect == "sglang" && path == "/metrics":
		fmt.Fprintf(w, "# HELP x\nsglang:num_running_reqs{model_name=\"a } b\"} 0.0\nsglang:num_queue_reqs{} 0\n")
	case f.Dialect == "llamacpp" && path == "/props":
		answer(w, 200, map[string]any{"total_slots": 1, "model_path": "/m/" + Model, "build_info": "b1",
			"default_generation_settings": map[string]any{"n_ctx": limit}})
	case f.Dialect == "llamacpp" && path == "/slots":
		answer(w, 200, []any{map[string]any{"id": 0, "is_processing": false}})
	case f.Dialect == "sglang" && path == "/flush_cache",
		f.Dialect == "openai" && path == "/reset_prefix_cache",
		f.Dialect == "llamacpp" && path == "/slots/0":
		f.flushed(w)
	case f.Dialect == "sglang" && path == "/generate",
		f.Dialect == "openai" && path == "/v1/completions" && !f.NoCompletions,
		f.Dialect == "openai" && path == "/v1/chat/completions",
		f.Dialect == "llamacpp" && path == "/completion":
		f.generate(w, r)
	default:
		refuse(w, 404, "Not Found")
	}
}

func (f *Fake) limit() int {
	if f.Limit == 0 {
		return 4096
	}
	return f.Limit
}

func (f *Fake) flushed(w http.ResponseWriter) {
	if f.NoFlush {
		status := 404
		if f.Dialect == "llamacpp" {
			status = 501
		}
		refuse(w, status, "Not Found")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.FlushRefusals < 0 || f.flush < f.FlushRefusals {
		f.flush++
		if f.Dialect == "openai" {
			answer(w, 200, map[string]any{"success": false})
			return
		}
		refuse(w, 400, "Cache not flushed because there is pending work.")
		return
	}
	f.cache = nil
	switch {
	case f.FlushBody != "":
		fmt.Fprint(w, f.FlushBody)
	case f.Dialect == "openai":
		answer(w, 200, map[string]any{"success": true})
	default:
		answer(w, 200, map[string]any{"n_erased": 1})
	}
}

// asked is a generate request of any dialect.
type asked struct {
	ids       []int32
	max       int
	stream    bool
	usage     bool
	space     string // cache namespace
	noReuse   bool
	wantIDs   bool
	chat      bool
	cachedIDs int
}

func (f *Fake) read(r *http.Request) (a asked, body map[string]any) {
	json.NewDecoder(r.Body).Decode(&body)
	whole := func(v any) int { n, _ := v.(float64); return int(n) }
	prompt := body["prompt"]
	a.max = whole(body["max_tokens"]) + whole(body["max_completion_tokens"]) + whole(body["n_predict"])
	a.stream, _ = body["stream"].(bool)
	a.wantIDs, _ = body["return_token_ids"].(bool)
	switch f.Dialect {
	case "sglang":
		prompt = body["input_ids"]
		if prompt == nil {
			prompt = body["text"]
		}
		sampling, _ := body["sampling_params"].(map[string]any)
		a.max = whole(sampling["max_new_tokens"])
		a.space, _ = body["extra_key"].(string)
	case "openai":
		a.space, _ = body["cache_salt"].(string)
		_, a.usage = body["stream_options"]
		if messages, chat := body["messages"].([]any); chat {
			a.chat = true
			prompt = messages[0].(map[string]any)["content"]
		}
	case "llamacpp":
		reuse, set := body["cache_prompt"].(bool)
		a.noReuse = set && !reuse
	}
	switch p := prompt.(type) {
	case string:
		for _, b := range []byte(p) {
			a.ids = append(a.ids, int32(b))
		}
	case []any:
		for _, v := range p {
			a.ids = append(a.ids, int32(whole(v)))
		}
	}
	return a, body
}

func (f *Fake) generate(w http.ResponseWriter, r *http.Request) {
	a, body := f.read(r)
	f.mu.Lock()
	f.Bodies = append(f.Bodies, body)
	f.mu.Unlock()
	if _, sent := body[f.Refuse]; sent {
		status := f.RefuseStatus
		if status == 0 {
			status = 400
		}
		refuse(w, status, "unknown field: "+f.Refuse)
		return
	}
	if len(a.ids)+a.max > f.limit() {
		message := fmt.Sprintf("the prompt (%d tokens) is longer than the model's context length (%d tokens)", len(a.ids), f.limit())
		if f.Dialect == "sglang" && a.stream {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"error\":{\"message\":%q}}\n\ndata: [DONE]\n\n", message)
			return
		}
		refuse(w, 400, message)
		return
	}
	if !a.noReuse {
		f.mu.Lock()
		before := f.cache[a.space]
		for a.cachedIDs < min(len(before), len(a.ids)-1) && before[a.cachedIDs] == a.ids[a.cachedIDs] {
			a.cachedIDs++
		}
		if f.cache == nil {
			f.cache = map[string][]int32{}
		}
		f.cache[a.space] = a.ids
		f.mu.Unlock()
	}
	n, finish := a.max, "length"
	if f.Stop > 0 && f.Stop < n {
		n, finish = f.Stop, "stop"
	}
	if !a.stream {
		pause(r, f.Prefill)
		answer(w, 200, f.event(a, 0, n, n, finish, false))
		return
	}
	f.stream(w, r, a, n, finish)
}

// ids are the output's tokens, a function of the prompt alone.
func ids(a asked, from, to int) []int32 {
	h := fnv.New32()
	fmt.Fprint(h, a.ids)
	out := []int32{}
	for i := from; i < to; i++ {
		out = append(out, int32((h.Sum32()+uint32(i)*7919)%5000))
	}
	return out
}

func text(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString("t" + strconv.Itoa(int(id)) + " ")
	}
	return b.String()
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// event is tokens from..to of n; finish ends it where not empty.
func (f *Fake) event(a asked, from, to, n int, finish string, padded bool) map[string]any {
	fresh := ids(a, from, to)
	var m map[string]any
	switch f.Dialect {
	case "sglang":
		if !f.Incremental {
			fresh = ids(a, 0, to)
		}
		meta := map[string]any{"prompt_tokens": len(a.ids), "completion_tokens": to, "cached_tokens": a.cachedIDs, "num_retractions": 0, "finish_reason": nil}
		if finish != "" {
			meta["finish_reason"] = map[string]any{"type": finish}
			meta["e2e_latency"] = 0.25
			meta["spec_verify_ct"] = n - 1
		}
		if f.NoCached {
			delete(meta, "cached_tokens")
		}
		if f.NoUsage {
			delete(meta, "completion_tokens")
		}
		m = map[string]any{"text": text(fresh), "output_ids": fresh, "meta_info": meta}
		if f.NoIDs {
			delete(m, "output_ids")
		}
	case "openai":
		choice := map[string]any{"index": 0, "finish_reason": null(finish)}
		field := "content"
		if f.Reasoning != "" {
			field = f.Reasoning
		}
		switch {
		case a.chat && a.stream:
			choice["delta"] = map[string]any{field: text(fresh)}
		case a.chat:
			choice["message"] = map[string]any{field: text(fresh)}
		default:
			choice["text"] = text(fresh)
			if a.wantIDs && !f.NoIDs {
				choice["token_ids"] = fresh
			}
		}
		m = map[string]any{"choices": []any{choice}}
		if !a.stream && !f.NoUsage {
			m["usage"] = f.usage(a, n)
		}
	case "llamacpp":
		m = map[string]any{"content": text(fresh), "tokens": fresh, "stop": finish != "" && !a.stream, "tokens_predicted": to, "tokens_evaluated": len(a.ids)}
		if !a.stream {
			f.last(m, a, n, finish)
		}
	}
	if padded {
		m["filler"] = strings.Repeat("x", f.Padding)
	}
	return m
}

func (f *Fake) usage(a asked, n int) map[string]any {
	u := map[string]any{"prompt_tokens": len(a.ids), "completion_tokens": n, "total_tokens": len(a.ids) + n}
	if !f.NoCached {
		u["prompt_tokens_details"] = map[string]any{"cached_tokens": a.cachedIDs}
	}
	return u
}

func (f *Fake) last(m map[string]any, a asked, n int, finish string) {
	m["stop"], m["tokens_predicted"] = true, n
	m["stop_type"] = map[string]string{"length": "limit", "stop": "eos"}[finish]
	timings := map[string]any{"prompt_n": len(a.ids) - a.cachedIDs, "prompt_ms": 100.0, "predicted_n": n, "predicted_ms": 20.0 * float64(n-1)}
	if !f.NoCached {
		timings["cache_n"] = a.cachedIDs
	}
	m["timings"] = timings
}

// pause waits for d, or until the client is gone.
func pause(r *http.Request, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
}

func (f *Fake) stream(w http.ResponseWriter, r *http.Request, a asked, n int, finish string) {
	field, eol := f.Field, f.EOL
	if field == "" {
		field = "data: "
	}
	if eol == "" {
		eol = "\n"
	}
	w.Header().Set("Content-Type", "text/event-stream")
	var held strings.Builder
	send := func(raw string) {
		switch {
		case f.Held:
			held.WriteString(raw)
			return
		case f.Bytewise:
			for _, b := range []byte(raw) {
				w.Write([]byte{b})
				w.(http.Flusher).Flush()
			}
		default:
			fmt.Fprint(w, raw)
		}
		w.(http.Flusher).Flush()
	}
	event := func(v any) {
		raw, ok := v.(string)
		if !ok {
			b, _ := json.Marshal(v)
			raw = string(b)
		}
		send(field + raw + eol + eol)
	}
	if f.Preamble != "" {
		send(f.Preamble)
	}
	if f.Role {
		event(map[string]any{"choices": []any{map[string]any{"text": "", "delta": map[string]any{"role": "assistant", "content": ""}}}})
	}
	for begin := time.Now(); time.Since(begin) < f.Prefill && r.Context().Err() == nil; {
		send(": prefilling\n\n")
		pause(r, min(5*time.Millisecond, f.Prefill))
	}
	per := max(1, f.PerChunk)
	named := slices.Contains([]string{"", "no-done"}, f.End)
	for from := 0; from < n; from += per {
		to := min(n, from+per)
		cut := slices.Contains([]string{"early", "fin", "reset"}, f.End)
		switch {
		case f.ErrorAt > 0 && to >= f.ErrorAt:
			event(map[string]any{"error": map[string]any{"message": "CUDA out of memory", "code": 500}})
			event("[DONE]")
			return
		case f.Hang > 0 && from >= f.Hang:
			for r.Context().Err() == nil {
				send(": still here\n\n")
				pause(r, 5*time.Millisecond)
			}
			return
		case cut && from >= f.Cut:
			if f.End == "early" {
				return
			}
			conn, _, _ := w.(http.Hijacker).Hijack()
			if f.End == "reset" {
				conn.(*net.TCPConn).SetLinger(0)
			}
			conn.Close()
			return
		}
		reason := ""
		if to == n && named && f.Dialect != "llamacpp" {
			reason = finish
		}
		m := f.event(a, from, to, n, reason, f.Padding > 0 && from/per == 1)
		if to == n && f.Abort != "" {
			m["meta_info"].(map[string]any)["finish_reason"] = map[string]any{"type": "abort", "message": f.Abort, "status_code": 400}
		}
		event(m)
		pause(r, f.Step)
	}
	switch f.Dialect {
	case "llamacpp":
		if f.End == "" {
			m := map[string]any{"content": "", "tokens": []int32{}}
			f.last(m, a, n, finish)
			event(m)
		}
	case "openai":
		if a.usage && !f.NoUsage {
			event(map[string]any{"choices": []any{}, "usage": f.usage(a, n)})
		}
		fallthrough
	default:
		if f.End != "no-done" {
			event("[DONE]")
		}
	}
	if f.Held {
		fmt.Fprint(w, held.String())
	}
}
