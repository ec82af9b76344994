package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"twopoint/runner/serve/token"
)

// maxBody bounds a request's body in bytes.
const maxBody = 64 << 20

// Handler serves all routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", s.generate)
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.models)
	for _, prefix := range []string{"", "/v1"} {
		mux.HandleFunc("POST "+prefix+"/tokenize", s.tokenize)
		mux.HandleFunc("POST "+prefix+"/detokenize", s.detokenize)
	}
	for _, path := range []string{"/ping", "/health"} {
		mux.HandleFunc("GET "+path, func(http.ResponseWriter, *http.Request) {})
	}
	mux.HandleFunc("GET /health_generate", s.healthGenerate)
	for _, get := range []string{"", "get_"} {
		mux.HandleFunc("GET /"+get+"model_info", s.modelInfo)
		mux.HandleFunc("GET /"+get+"server_info", s.serverInfo)
	}
	mux.HandleFunc("GET /flush_cache", s.flushCache)
	mux.HandleFunc("POST /flush_cache", s.flushCache)
	mux.HandleFunc("POST /abort_request", s.abortRequest)
	mux.HandleFunc("GET /metrics", s.metrics)
	return mux
}

// A badRequest is the client's mistake, with the HTTP status that says so.
type badRequest struct {
	status  int
	message string
}

func (e *badRequest) Error() string { return e.message }

func bad(format string, args ...any) error {
	return &badRequest{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func status(err error) int {
	var b *badRequest
	switch {
	case errors.As(err, &b):
		return b.status
	case errors.Is(err, errStopped):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func reply(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		// Every value here is made of types that encode.
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	w.Write(body)
}

// apiError is the error object of SGLang's schema errors and OpenAI routes.
type apiError struct {
	Object  string `json:"object"`
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   any    `json:"param"`
	Code    any    `json:"code"`
}

func newAPIError(err error) (int, apiError) {
	code := status(err)
	e := apiError{Object: "error", Message: err.Error(), Type: "BadRequestError", Code: code}
	switch {
	case code == http.StatusNotFound:
		e.Type, e.Code = "NotFoundError", "model_not_found"
	case code >= 500:
		e.Type = "InternalServerError"
	}
	return code, e
}

func replyError(w http.ResponseWriter, err error) {
	code, e := newAPIError(err)
	reply(w, code, e)
}

// body decodes a JSON request. Unknown fields are ignored, as SGLang does.
func body(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return bad("read request body: %v", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return bad("request body: %v", err)
	}
	return nil
}

// parseIDs reads a list of token ids, or a list of such lists.
func parseIDs(raw json.RawMessage) (lists [][]int32, batch bool, err error) {
	var one []int32
	if json.Unmarshal(raw, &one) == nil {
		return [][]int32{one}, false, nil
	}
	if err := json.Unmarshal(raw, &lists); err != nil {
		return nil, false, bad("token ids must be a list of integers, or a list of such lists")
	}
	return lists, true, nil
}

// parseTexts reads a text, or a list of texts, as token ids.
func parseTexts(raw json.RawMessage) (lists [][]int32, batch bool, err error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return [][]int32{token.Encode(one)}, false, nil
	}
	var many []string
	if err := json.Unmarshal(raw, &many); err != nil {
		return nil, false, bad("text must be a string or a list of strings")
	}
	for _, t := range many {
		lists = append(lists, token.Encode(t))
	}
	return lists, true, nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// stringList is a string or a list of them.
type stringList []string

func (l *stringList) UnmarshalJSON(data []byte) error {
	var one string
	if string(data) == "null" {
		return nil
	}
	if json.Unmarshal(data, &one) == nil {
		*l = stringList{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}

// budget is the number of tokens asked for, or the usual number as far as there
// is room for it after a prompt of n.
func (s *Server) budget(asked *int, usual, n int) int {
	if asked != nil {
		return *asked
	}
	return max(min(usual, s.maxInput()+1-n), 0)
}

// check refuses a sequence that could never be computed.
func (s *Server) check(prompt []int32, p params) error {
	n, limit := len(prompt), s.opt.ContextLength
	switch {
	case n == 0:
		return bad("the prompt is empty: at least one token is needed")
	case n >= limit:
		return bad("The input (%d tokens) is longer than the model's context length (%d tokens).", n, limit)
	case n > s.maxInput():
		return bad("Input length (%d tokens) exceeds the maximum allowed length (%d tokens): the KV cache pool has room for %d.", n, s.maxInput(), s.sched.pool.Tokens())
	case p.maxNew < 0 || p.minNew < 0 || p.minNew > p.maxNew:
		return bad("min_new_tokens must be in [0, max_new_tokens], and max_new_tokens at least 0; got %d and %d", p.minNew, p.maxNew)
	case p.maxNew > limit-n:
		return bad("Requested token count exceeds the model's maximum context length of %d tokens: %d of the prompt and %d of the completion.", limit, n, p.maxNew)
	case n+p.maxNew > s.sched.pool.Tokens():
		return bad("Requested token count exceeds the maximum allowed length: %d of the prompt and %d of the completion, where the KV cache pool has room for %d.", n, p.maxNew, s.sched.pool.Tokens())
	}
	for _, t := range prompt {
		if t < 0 || t >= token.Vocab {
			return bad("token id %d is outside the vocabulary of %d", t, token.Vocab)
		}
	}
	return nil
}

// greedy refuses sampling: the server only takes the likeliest token.
func greedy(temperature *float64, n *int) error {
	if temperature != nil && *temperature != 0 {
		return bad("temperature %v: only greedy decoding is supported, set temperature to 0", *temperature)
	}
	if n != nil && *n != 1 {
		return bad("n %d: only one completion per prompt is supported", *n)
	}
	return nil
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// stream writes server-sent events, each flushed at once.
type stream struct {
	w       http.ResponseWriter
	flusher *http.ResponseController
	buf     []byte
}

func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	return &stream{w: w, flusher: http.NewResponseController(w)}
}

// send writes one event; an error means that the client is gone.
func (t *stream) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return t.raw(data)
}

func (t *stream) raw(data []byte) error {
	t.buf = append(append(append(t.buf[:0], "data: "...), data...), "\n\n"...)
	if _, err := t.w.Write(t.buf); err != nil {
		return err
	}
	return t.flusher.Flush()
}

func (t *stream) done() { _ = t.raw([]byte("[DONE]")) }

// follow calls emit with each published snapshot that has enough that is new,
// the last one included, and aborts q when emit fails or the client leaves.
func (s *Server) follow(ctx context.Context, q *sequence, emit func(snapshot) error) {
	sent := 0
	for {
		select {
		case <-q.notify:
		case <-ctx.Done():
			s.drop(q)
			return
		}
		snap := q.read()
		fresh := len(snap.out) - sent
		if snap.finish == nil && (fresh == 0 || sent > 0 && fresh < s.opt.StreamInterval) {
			continue
		}
		sent = len(snap.out)
		if err := emit(snap); err != nil {
			s.drop(q)
			return
		}
		if snap.finish != nil {
			return
		}
	}
}

// text decodes generated ids, without the stop text and what follows it.
func text(out []int32, f *finish) string {
	t := token.Decode(out)
	if f != nil {
		if stop, ok := f.matched.(string); ok {
			if i := strings.LastIndex(t, stop); i >= 0 {
				return t[:i]
			}
		}
	}
	return t
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Prompt *string `json:"prompt"`
		Text   *string `json:"text"`
	}
	if err := body(w, r, &req); err != nil {
		replyError(w, err)
		return
	}
	if req.Prompt == nil {
		req.Prompt = req.Text
	}
	if req.Prompt == nil {
		replyError(w, bad("prompt is missing"))
		return
	}
	ids := token.Encode(*req.Prompt)
	reply(w, http.StatusOK, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": s.opt.ContextLength})
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Tokens []int32 `json:"tokens"`
	}
	if err := body(w, r, &req); err != nil {
		replyError(w, err)
		return
	}
	for _, t := range req.Tokens {
		if t < 0 || t >= token.Vocab {
			replyError(w, bad("token id %d is outside the vocabulary of %d", t, token.Vocab))
			return
		}
	}
	reply(w, http.StatusOK, map[string]any{"text": token.Decode(req.Tokens)})
}

func (s *Server) healthGenerate(w http.ResponseWriter, r *http.Request) {
	q := newSequence("health-"+newID(), []int32{0}, params{maxNew: 1, ignoreEOS: true, noCache: true}, time.Now())
	if err := s.sched.submit(q); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if snap, err := s.wait(r.Context(), q); err != nil || snap.finish.kind == "abort" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (s *Server) flushCache(w http.ResponseWriter, r *http.Request) {
	var wait float64
	if t := r.URL.Query().Get("timeout"); t != "" {
		var err error
		// Longer than a day says the same as a day, and fits a Duration.
		if wait, err = strconv.ParseFloat(t, 64); err != nil || !(wait >= 0) {
			replyError(w, bad("timeout %q is not a number of seconds", t))
			return
		}
	}
	f, err := s.sched.flush(time.Duration(min(wait, 86400) * float64(time.Second)))
	code, verdict := http.StatusOK, "Cache flushed successfully!"
	switch {
	case err != nil:
		code, verdict = http.StatusServiceUnavailable, err.Error()
	case !f.ok:
		code = http.StatusBadRequest
		verdict = fmt.Sprintf("Cache not flushed because there is pending work. #queue-req: %d, #running-req: %d", f.queued, f.running)
	}
	s.log.Print(verdict)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, verdict+"\n")
}

func (s *Server) abortRequest(w http.ResponseWriter, r *http.Request) {
	var req struct {
		RID      string `json:"rid"`
		AbortAll bool   `json:"abort_all"`
	}
	if err := body(w, r, &req); err != nil {
		replyError(w, err)
		return
	}
	match := func(q *sequence) bool { return req.AbortAll || req.RID != "" && strings.HasPrefix(q.id, req.RID) }
	if err := s.sched.abort(match, "aborted by request"); err != nil {
		replyError(w, err)
	}
}
