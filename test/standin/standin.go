// Package standin is a scripted inference server for tests: it presents the
// interfaces of SGLang, vLLM, llama.cpp, Ollama, TensorRT-LLM and of a plain
// OpenAI server, answers on a clock that is known beforehand, and misbehaves as
// it is told. A Script comes in; answers go out, and a record of each request
// with what the truth was and how late the server itself wrote. It computes
// nothing and is no product: real work is done by the embedded server.
//
// Its deadlines are absolute, counted from the arrival of a request's first
// byte, so that a late token delays none after it.
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Server is a stand-in that serves. It is an http.Handler; Serve and Open give
// it the connections whose first bytes it times.
type Server struct {
	script Script
	log    io.Writer
	born   time.Time
	ready  time.Time

	vocabulary vocabulary
	cache      cache
	clock      clock

	mu        sync.Mutex
	generates int
	flushes   int
	lastEnd   time.Time // of an answer
	requests  []Request
	bodies    []map[string]any
	dead      bool
	hung      bool
	gone      time.Time // ollama: when the model is out of memory; zero: it stays

	running, waiting atomic.Int64
	steps, accepted  atomic.Int64 // of all answers: steps with drafts, and tokens beyond one a step
	conns            atomic.Int64
	loads            atomic.Int64 // requests that came when it was loaded
}

// Request is the record of one generate request. Times are in seconds after the
// arrival of its first byte; those of tokens that were never due are 0.
type Request struct {
	Number    int   `json:"number"` // from 1, in the order of arrival
	Prompt    int   `json:"prompt"` // tokens that it had
	Cached    int   `json:"cached"`
	Asked     int   `json:"asked"`      // tokens
	Generated int   `json:"generated"`  // tokens
	Running   int   `json:"running"`    // requests under way when it began, itself included
	Arrived   int64 `json:"arrived_us"` // on the server's clock, µs since it was made

	PrefillS float64 `json:"prefill_s"` // the truth: until the first token is due
	DecodeS  float64 `json:"decode_s"`  // the truth: from the first token due to the last
	Steps    int     `json:"steps"`
	FirstS   float64 `json:"first_s"` // written
	LastS    float64 `json:"last_s"`  // written
	LateS    float64 `json:"late_s"`  // the latest that an event was written after it was due
}

// New is a server of a script, whose log lines go to log; nil: nowhere.
func New(s Script, log io.Writer) *Server {
	if log == nil {
		log = io.Discard
	}
	s = s.withDefaults()
	now := time.Now()
	srv := &Server{script: s, log: log, born: now, ready: now.Add(seconds(s.Life.LoadS))}
	srv.cache.workers = make([]map[string][][]int32, s.Cache.Workers)
	srv.clock.init(s.Clock)
	srv.vocabulary.per = s.Word
	return srv
}

// Open serves a script at a free port of loopback for as long as the test runs.
func Open(t testing.TB, s Script) (*Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := New(s, nil)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, listener) }()
	t.Cleanup(func() { stop(); <-done })
	return srv, "http://" + listener.Addr().String()
}

// Serve answers on a listener until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler:     s,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		IdleTimeout: seconds(s.script.Life.IdleCloseS),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	err := h.Serve(stamping{l, &s.conns})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Requests are the records of all generate requests so far that were answered
// or refused, in the order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.requests)
	slices.SortFunc(out, func(a, b Request) int { return a.Number - b.Number })
	return out
}

// Bodies are the bodies of all generate requests so far.
func (s *Server) Bodies() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

// Conns is the number of connections that were opened.
func (s *Server) Conns() int { return int(s.conns.Load()) }

// Flushes is the number of flushes that were done or refused.
func (s *Server) Flushes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushes
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// connKey is the context key of a request's connection.
type connKey struct{}

// stamping gives connections that note when a request's first byte arrives.
type stamping struct {
	net.Listener
	count *atomic.Int64
}

func (l stamping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.count.Add(1)
	st := &stamped{Conn: c}
	st.armed.Store(true)
	return st, nil
}

type stamped struct {
	net.Conn
	armed atomic.Bool
	first atomic.Int64 // unix ns, of the latest request
}

func (c *stamped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.armed.CompareAndSwap(true, false) {
		c.first.Store(int64(time.Since(epoch)))
	}
	return n, err
}

// epoch makes monotonic readings into numbers.
var epoch = time.Now()

// arrival is when a request's first byte arrived.
func arrival(r *http.Request) time.Time {
	if c, ok := r.Context().Value(connKey{}).(*stamped); ok {
		return epoch.Add(time.Duration(c.first.Load()))
	}
	return time.Now()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if c, ok := r.Context().Value(connKey{}).(*stamped); ok {
			c.armed.Store(true)
		}
	}()
	if r.URL.Path == "/standin/requests" {
		answer(w, 200, s.Requests())
		return
	}
	if s.script.Key != "" && r.Header.Get("Authorization") != "Bearer "+s.script.Key {
		s.refuse(w, 401, "bad key: "+r.Header.Get("Authorization"))
		return
	}
	loading := time.Now().Before(s.ready) || s.loads.Add(1) <= int64(s.script.Life.LoadAnswers)
	path := r.URL.Path
	switch {
	case slices.Contains(s.script.Answer.NoRoute, path):
		s.refuse(w, 404, "Not Found")
	case path == "/v1/models" && (!loading || s.script.Life.ModelsEarly):
		s.models(w)
	case loading:
		s.refuse(w, 503, "Loading model")
	case s.common(w, r), s.flush(w, r), s.generate(w, r):
	default:
		s.refuse(w, 404, "Not Found")
	}
}

func (s *Server) models(w http.ResponseWriter) {
	list := []any{}
	if !s.script.Life.NoModels {
		owner := map[string]string{"sglang": "sglang", "vllm": "vllm", "llamacpp": "llamacpp", "trtllm": "tensorrt_llm", "ollama": "library"}[s.script.Face]
		m := map[string]any{"id": s.script.Model, "object": "model", "owned_by": owner}
		switch s.script.Face {
		case "sglang", "vllm":
			m["root"], m["max_model_len"] = s.script.Model, s.script.Limit
		case "llamacpp":
			m["meta"] = map[string]any{"n_ctx": s.script.Limit}
		}
		list = append(list, m)
	}
	answer(w, 200, map[string]any{"object": "list", "data": list})
}

// state tells how the server is after what requests did to it.
func (s *Server) state() (dead, hung bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead, s.hung
}

// common are the routes beside generation and flushing, as the face has them.
func (s *Server) common(w http.ResponseWriter, r *http.Request) bool {
	face, path := s.script.Face, r.URL.Path
	dead, hung := s.state()
	has := func(faces ...string) bool { return slices.Contains(faces, face) }
	switch {
	case path == "/health" && has("sglang", "vllm", "llamacpp", "trtllm"), path == "/health_generate" && has("sglang", "trtllm"):
		switch {
		case dead:
			w.WriteHeader(503)
		case path == "/health_generate" && hung:
			wait(r, time.Hour)
		default:
			answer(w, 200, map[string]any{"status": "ok"})
		}
	case path == "/version" && has("vllm", "trtllm"):
		answer(w, 200, map[string]any{"version": "0.0.standin"})
	case (path == "/tokenize" || path == "/v1/tokenize") && has("sglang", "vllm", "llamacpp"):
		var in struct{ Prompt, Content string }
		json.NewDecoder(r.Body).Decode(&in)
		ids := s.vocabulary.ids(in.Prompt + in.Content)
		answer(w, 200, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": s.script.Limit})
	case (path == "/detokenize" || path == "/v1/detokenize") && has("sglang", "vllm", "llamacpp"):
		var in struct{ Tokens []int32 }
		json.NewDecoder(r.Body).Decode(&in)
		text := s.vocabulary.text(in.Tokens)
		answer(w, 200, map[string]any{"prompt": text, "text": text, "content": text})
	case path == "/metrics" && has("sglang", "vllm"):
		s.metrics(w)
	case (path == "/server_info" || path == "/get_server_info") && face == "sglang":
		answer(w, 200, s.sglangInfo())
	case path == "/props" && face == "llamacpp":
		drafts := "none"
		if s.script.Clock.TokensPerStep > 1 {
			drafts = "draft-simple"
		}
		answer(w, 200, map[string]any{"total_slots": max(1, s.script.Clock.MaxRunning), "model_path": "/m/" + s.script.Model, "build_info": "standin",
			"default_generation_settings": map[string]any{"n_ctx": s.script.Limit, "params": map[string]any{"speculative.types": drafts}}})
	case path == "/slots" && face == "llamacpp":
		list := []any{}
		for i := range max(1, s.script.Clock.MaxRunning) {
			list = append(list, map[string]any{"id": i, "is_processing": int64(i) < s.running.Load()})
		}
		answer(w, 200, list)
	case face == "ollama":
		return s.ollamaCommon(w, r)
	default:
		return false
	}
	return true
}

// metrics are the gauges and counters of SGLang and vLLM that an adapter reads.
func (s *Server) metrics(w http.ResponseWriter) {
	running, waiting := s.running.Load(), s.waiting.Load()
	if s.script.Face == "sglang" {
		fmt.Fprintf(w, "# HELP sglang:num_running_reqs x\nsglang:num_running_reqs{model_name=\"a } b\"} %d.0\nsglang:num_queue_reqs{} %d\n", running, waiting)
		return
	}
	s.mu.Lock()
	done := len(s.requests)
	s.mu.Unlock()
	label := fmt.Sprintf("{engine=\"0\",model_name=%q}", s.script.Model)
	fmt.Fprintf(w, "vllm:num_requests_running%s %d.0\nvllm:num_requests_waiting%s %d.0\nvllm:num_preemptions_total%s 0.0\n", label, running, label, waiting, label)
	fmt.Fprintf(w, "vllm:request_success_total{engine=\"0\",finished_reason=\"length\"} %d.0\n", done)
	fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",enable_prefix_caching=\"%v\",num_gpu_blocks=\"1000\",engine=\"0\"} 1.0\n", s.script.Cache.Block, !s.script.Cache.Off)
	if s.script.Clock.TokensPerStep > 1 {
		fmt.Fprintf(w, "vllm:spec_decode_num_drafts_total%s %d.0\nvllm:spec_decode_num_accepted_tokens_total%s %d.0\n", label, s.steps.Load(), label, s.accepted.Load())
	}
}

// flush empties the prefix cache, or refuses to, where path is the face's route.
func (s *Server) flush(w http.ResponseWriter, r *http.Request) bool {
	face, path, f := s.script.Face, r.URL.Path, s.script.Flush
	llamacpp := face == "llamacpp" && strings.HasPrefix(path, "/slots/")
	switch {
	case llamacpp:
	case face == "sglang" && path == "/flush_cache":
	case (face == "vllm" || face == "openai") && path == "/reset_prefix_cache":
	default:
		return false
	}
	if f.NoRoute {
		status := 404
		if llamacpp {
			status = 501
		}
		s.refuse(w, status, "Not Found")
		return true
	}
	wait(r, seconds(f.TakesS))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes++
	busy := s.running.Load() > 0 || f.BusyS > 0 && time.Since(s.lastEnd) < seconds(f.BusyS)
	if busy || f.Refuse < 0 || s.flushes <= f.Refuse {
		text := f.Text
		if text == "" {
			text = "Cache not flushed because there is pending work."
		}
		switch {
		case f.Status != 0:
			s.refuse(w, f.Status, text)
		case face == "sglang" || llamacpp:
			s.refuse(w, 400, text)
		default:
			answer(w, 200, map[string]any{"success": false})
		}
		return true
	}
	if !f.Lies {
		s.cache.flush()
	}
	s.clock.flushed()
	switch {
	case f.Body != "":
		io.WriteString(w, f.Body)
	case llamacpp:
		answer(w, 200, map[string]any{"id_slot": 0, "n_erased": 1})
	case face == "sglang":
		io.WriteString(w, "Cache flushed.\n")
	default:
		answer(w, 200, map[string]any{"success": true})
	}
	return true
}

// end does to the process what a request's script says; it returns where the
// server lives on.
func (s *Server) end(l Life) {
	if l.LogLine != "" {
		fmt.Fprintln(s.log, l.LogLine)
	}
	s.mu.Lock()
	s.dead, s.hung = s.dead || l.Dead, s.hung || l.Hang
	s.mu.Unlock()
	switch {
	case l.Kill:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case l.Exit != nil:
		os.Exit(*l.Exit)
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// refuse answers an error in the face's form.
func (s *Server) refuse(w http.ResponseWriter, status int, message string) {
	switch s.script.Face {
	case "ollama":
		answer(w, status, map[string]any{"error": message})
	case "trtllm":
		answer(w, status, map[string]any{"object": "error", "message": message, "type": "BadRequestError", "code": status})
	default:
		answer(w, status, map[string]any{"error": map[string]any{"message": message, "code": status}})
	}
}

// wait waits for d, or until the client is gone.
func wait(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
}
