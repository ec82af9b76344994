package standin

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ask is a generate request of any face, and what becomes of it.
type ask struct {
	number  int
	path    string
	body    map[string]any
	ids     []int32
	max     int
	stream  bool
	usage   bool   // counts in the stream are asked for
	space   string // namespace of the prefix cache
	noReuse bool
	wantIDs bool
	chat    bool

	script Script
	cached int
	n      int    // tokens of the answer
	finish string // length | stop
	out    []int32
	times  times
	t0     time.Time
}

// skip is how much of a prompt does not tell requests apart: output depends on the
// rest. Prompts begin with tokens that are fresh each time.
func (a *ask) skip() int { return min(8, len(a.ids)/2) }

// lastApart tells whether the end is an event of its own, which no [DONE] follows.
func (a *ask) lastApart() bool { return a.path == "/completion" || a.path == "/api/generate" }

func (a *ask) text(s *Server) string {
	if t, ok := a.body["prompt"].(string); ok {
		return t
	}
	if len(a.ids) > 1<<16 { // nobody plants facts that deep
		return ""
	}
	return s.vocabulary.text(a.ids)
}

func whole(v any) int { n, _ := v.(float64); return int(n) }

// read is a request as the face writes it, or nil where path generates nothing.
func (s *Server) read(r *http.Request) *ask {
	a := &ask{path: r.URL.Path}
	routes := map[string][]string{
		"sglang": {"/generate", "/v1/completions"}, "vllm": {"/v1/completions", "/v1/chat/completions"}, "openai": {"/v1/completions", "/v1/chat/completions"},
		"trtllm": {"/v1/completions"}, "llamacpp": {"/completion", "/v1/completions"}, "ollama": {"/api/generate"},
	}
	if r.Method != http.MethodPost || !slices.Contains(routes[s.script.Face], a.path) {
		return nil
	}
	a.t0 = arrival(r)
	json.NewDecoder(r.Body).Decode(&a.body)
	b := a.body
	prompt := b["prompt"]
	a.stream, _ = b["stream"].(bool)
	a.max = whole(b["max_tokens"]) + whole(b["max_completion_tokens"]) + whole(b["n_predict"])
	a.wantIDs, _ = b["return_token_ids"].(bool)
	_, a.usage = b["stream_options"]
	switch s.script.Face {
	case "sglang":
		if a.space, _ = b["extra_key"].(string); a.space == "" {
			a.space, _ = b["cache_salt"].(string)
		}
	case "vllm":
		a.space, _ = b["cache_salt"].(string)
	case "llamacpp":
		reuse, set := b["cache_prompt"].(bool)
		a.noReuse = set && !reuse
	}
	if messages, ok := b["messages"].([]any); ok && len(messages) > 0 {
		a.chat = true
		if m, ok := messages[0].(map[string]any); ok {
			prompt = m["content"]
		}
	}
	if a.path == "/generate" {
		if prompt = b["input_ids"]; prompt == nil {
			prompt = b["text"]
		}
		sampling, _ := b["sampling_params"].(map[string]any)
		a.max = whole(sampling["max_new_tokens"])
	}
	if s.script.Face == "ollama" {
		options, _ := b["options"].(map[string]any)
		a.max = whole(options["num_predict"])
		a.stream = b["stream"] != false
	}
	switch p := prompt.(type) {
	case string:
		a.ids = s.vocabulary.ids(p)
		a.body["prompt"] = p
	case []any:
		for _, v := range p {
			a.ids = append(a.ids, int32(whole(v)))
		}
	}
	return a
}

// generate answers a generate request, where path is one's.
func (s *Server) generate(w http.ResponseWriter, r *http.Request) bool {
	a := s.read(r)
	if a == nil {
		return false
	}
	if s.script.Face == "ollama" && s.ollamaLoad(w, a) {
		return true
	}
	s.mu.Lock()
	s.generates++
	a.number = s.generates
	s.bodies = append(s.bodies, a.body)
	dead, hung := s.dead, s.hung
	s.mu.Unlock()
	var err error
	if a.script, err = s.script.at(a); err != nil {
		s.refuse(w, 500, err.Error())
		return true
	}
	if dead || a.script.Life.Dead {
		s.end(a.script.Life)
		w.WriteHeader(500)
		return true
	}
	if hung || a.script.Life.Hang {
		s.end(a.script.Life)
		wait(r, time.Hour)
		return true
	}
	s.end(a.script.Life)
	if s.refused(w, a) {
		return true
	}
	s.waiting.Add(1)
	leave, err := s.clock.enter(r.Context())
	s.waiting.Add(-1)
	if err != nil {
		return true
	}
	defer leave()
	rec := Request{Number: a.number, Prompt: len(a.ids), Asked: a.max, Running: int(s.running.Add(1)), Arrived: a.t0.Sub(s.born).Microseconds()}
	defer func() {
		s.running.Add(-1)
		s.mu.Lock()
		s.lastEnd = time.Now()
		s.requests = append(s.requests, rec)
		s.mu.Unlock()
	}()

	a.n, a.finish = a.max+a.script.Answer.Extra, "length"
	if stop := a.script.Answer.Stop; stop > 0 && stop < a.n {
		a.n, a.finish = stop, "stop"
	}
	if a.script.Stream.Endless {
		a.n = 1 << 30
	}
	a.cached = s.cache.take(a)
	a.times = s.clock.of(a.script.Clock, len(a.ids)+a.script.Counts.PromptOff, a.cached, min(a.n, 1<<20))
	a.out = s.output(a, min(a.n, 1<<20))
	rec.Cached = a.cached
	if !a.stream {
		s.whole(w, r, a, &rec)
	} else {
		s.stream(w, r, a, &rec)
	}
	return true
}

// refused answers requests that are not taken.
func (s *Server) refused(w http.ResponseWriter, a *ask) bool {
	sc := a.script.Answer
	for _, field := range sc.Refuse {
		if _, sent := a.body[field]; sent {
			s.refuse(w, sc.RefuseStatus, "unknown field: "+field)
			return true
		}
	}
	if s.script.Face == "trtllm" {
		known := []string{"model", "prompt", "max_tokens", "min_tokens", "ignore_eos", "temperature", "seed", "add_special_tokens", "detokenize", "stop_token_ids", "stream", "stream_options", "top_p", "top_k", "n"}
		for field := range a.body {
			if !slices.Contains(known, field) {
				answer(w, 400, map[string]any{"error": "1 validation error: body." + field + ": Extra inputs are not permitted"})
				return true
			}
		}
	}
	if sc.Status != 0 {
		if sc.Location != "" {
			w.Header().Set("Location", sc.Location)
		}
		w.Header().Set("Content-Type", sc.Type)
		w.WriteHeader(sc.Status)
		io.WriteString(w, sc.Body)
		return true
	}
	if n := len(a.ids) + a.max; n > s.script.Limit && !a.script.Stream.Endless {
		message := fmt.Sprintf("the prompt (%d tokens) is longer than the model's context length (%d tokens)", len(a.ids), s.script.Limit)
		if s.script.Face == "llamacpp" {
			answer(w, 400, map[string]any{"error": map[string]any{"code": 400, "type": "exceed_context_size_error",
				"message": fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", len(a.ids), s.script.Limit)}})
		} else if a.path == "/generate" && a.stream {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"error\":{\"message\":%q}}\n\ndata: [DONE]\n\n", message)
		} else {
			s.refuse(w, 400, message)
		}
		return true
	}
	return false
}

// prefill waits until the first token is due.
func (s *Server) prefill(ctx context.Context, a *ask) (due time.Time, ok bool) {
	start := a.t0
	if a.script.Clock.SerialPrefill {
		select {
		case s.clock.prefill <- struct{}{}:
		case <-ctx.Done():
			return due, false
		}
		defer func() { <-s.clock.prefill }()
		if now := time.Now(); s.running.Load() > 1 {
			start = now
		}
	} else if s.clock.places != nil { // it may have waited for its place
		if now := time.Now(); now.Sub(start) > 5*time.Millisecond {
			start = now
		}
	}
	due = start.Add(seconds(a.times.prefillS))
	return due, until(ctx, due)
}

// step is when the next tokens are due after one of a kind was.
func (s *Server) step(a *ask, i int, due time.Time) time.Time {
	d := a.times.stepS[min(i, len(a.times.stepS)-1)]
	if per := a.script.Clock.StepPerRunningS; per > 0 {
		d += per * float64(s.running.Load()-1)
	}
	return due.Add(seconds(d))
}

func (s *Server) whole(w http.ResponseWriter, r *http.Request, a *ask, rec *Request) {
	due, ok := s.prefill(r.Context(), a)
	if !ok {
		return
	}
	first := due
	for i := range a.times.stepS {
		due = s.step(a, i, due)
	}
	until(r.Context(), due)
	s.note(a, rec, first, due, a.n)
	rec.FirstS = time.Since(a.t0).Seconds()
	if st := a.script.Stream; st.Gzip {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		json.NewEncoder(z).Encode(s.event(a, 0, a.n, a.finish))
		z.Close()
	} else {
		answer(w, 200, s.event(a, 0, a.n, a.finish))
	}
	rec.LastS = time.Since(a.t0).Seconds()
}

// note records the truth of a request.
func (s *Server) note(a *ask, rec *Request, first, last time.Time, generated int) {
	rec.PrefillS, rec.DecodeS = first.Sub(a.t0).Seconds(), last.Sub(first).Seconds()
	rec.Generated = generated
	k := a.script.Clock.TokensPerStep
	rec.Steps = (max(generated-1, 0) + k - 1) / k
	if k > 1 {
		s.steps.Add(int64(rec.Steps))
		s.accepted.Add(int64(max(generated-1, 0) - rec.Steps))
	}
}

// pipe is how the bytes of a stream leave.
type pipe struct {
	w     http.ResponseWriter
	st    Stream
	held  []byte
	z     *gzip.Writer
	fails bool
}

func (p *pipe) send(raw string) {
	switch {
	case p.st.Held != 0:
		p.held = append(p.held, raw...)
		for p.st.Held > 0 && len(p.held) >= p.st.Held {
			p.write(p.held[:p.st.Held])
			p.held = p.held[p.st.Held:]
		}
	case p.st.Bytewise:
		for i := range len(raw) {
			p.write([]byte{raw[i]})
		}
	default:
		p.write([]byte(raw))
	}
}

func (p *pipe) write(b []byte) {
	var err error
	if p.z != nil {
		_, err = p.z.Write(b)
		p.z.Flush()
	} else {
		_, err = p.w.Write(b)
	}
	if err == nil {
		err = http.NewResponseController(p.w).Flush()
	}
	p.fails = p.fails || err != nil
}

// close lets go what is held.
func (p *pipe) close() {
	if len(p.held) > 0 {
		p.write(p.held)
		p.held = nil
	}
	if p.z != nil {
		p.z.Close()
	}
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// stream answers with a stream, in whatever form and to whatever end.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, a *ask, rec *Request) {
	st := a.script.Stream
	lines := s.script.Face == "ollama"
	kind := "text/event-stream"
	if lines {
		kind = "application/x-ndjson"
	}
	if st.End == "reset-header" {
		s.prefill(r.Context(), a)
		hangUp(w, true)
		return
	}
	w.Header().Set("Content-Type", or(st.Type, kind))
	p := &pipe{w: w, st: st}
	if st.Gzip {
		w.Header().Set("Content-Encoding", "gzip")
		p.z = gzip.NewWriter(w)
	}
	defer p.close()
	count := 0
	event := func(v any) {
		raw, ok := v.(string)
		if !ok {
			b, _ := json.Marshal(v)
			raw = string(b)
		}
		count++
		eol := or(st.EOL, "\n")
		switch {
		case lines:
			p.send(raw + eol)
		case st.TwoLines && count == 2 && strings.Contains(raw, ","): // JSON may be broken at a comma
			head, tail, _ := strings.Cut(raw, ",")
			p.send(or(st.Field, "data: ") + head + "," + eol + or(st.Field, "data: ") + tail + eol + eol)
		default:
			p.send(or(st.Field, "data: ") + raw + eol + eol)
		}
	}
	if a.script.Clock.Instant {
		s.instant(a, rec, p)
		return
	}
	if st.Preamble != "" {
		p.send(st.Preamble)
	}
	if st.EmptyRole {
		event(map[string]any{"choices": []any{map[string]any{"index": 0, "text": "", "delta": map[string]any{"role": "assistant", "content": ""}, "finish_reason": nil}}})
	}
	if st.Comments {
		quiet, cancel := context.WithCancel(r.Context())
		talking := make(chan struct{})
		go func() {
			defer close(talking)
			for until(quiet, time.Now().Add(5*time.Millisecond)) {
				p.send(": prefilling\n\n")
			}
		}()
		until(r.Context(), a.t0.Add(seconds(a.times.prefillS)-2*time.Millisecond))
		cancel()
		<-talking
	}
	due, ok := s.prefill(r.Context(), a)
	if !ok {
		return
	}
	first := due
	rec.PrefillS = first.Sub(a.t0).Seconds()
	at := 0
	defer func() { s.note(a, rec, first, due, at) }()
	for i := 0; at < a.n && !p.fails && r.Context().Err() == nil; i++ {
		if i > 0 {
			due = s.step(a, i-1, due)
			if !until(r.Context(), due) {
				return
			}
		}
		next := min(a.n, at+1)
		if i > 0 {
			next = min(a.n, at+a.script.Clock.TokensPerStep)
		}
		if st.PerChunk > 1 && next < a.n && next%st.PerChunk != 0 && i > 0 { // held back until the chunk is full
			a.hold(&next, st.PerChunk, i, s, &due, r.Context())
		}
		if s.cut(w, r, a, p, event, at, next) {
			return
		}
		finish := ""
		if next == a.n && slices.Contains([]string{"", "no-done", "linger", "reset-done"}, st.End) && !a.lastApart() {
			finish = a.finish
		}
		late := time.Since(due).Seconds()
		rec.LateS = max(rec.LateS, late)
		s.tokens(a, event, at, next, finish, count == 1)
		if at == 0 {
			rec.FirstS = time.Since(a.t0).Seconds()
		}
		rec.LastS = time.Since(a.t0).Seconds()
		at = next
		if st.Flood > 0 && i == 0 {
			flood(p, st.Flood)
		}
	}
	s.close(w, r, a, event)
}

// hold lets steps pass until a chunk of so many tokens is full.
func (a *ask) hold(next *int, per, i int, s *Server, due *time.Time, ctx context.Context) {
	for *next < a.n && *next%per != 0 {
		*due = s.step(a, i, *due)
		until(ctx, *due)
		*next = min(a.n, *next+a.script.Clock.TokensPerStep)
	}
}

// tokens sends the tokens from..to, whole or in fragments of text.
func (s *Server) tokens(a *ask, event func(any), from, to int, finish string, padded bool) {
	if k := a.script.Stream.Fragments; k > 1 {
		for i := range k {
			m := s.fragment(a, from, to, i, k)
			if i == k-1 && finish != "" {
				setFinish(m, finish)
			}
			event(m)
		}
		return
	}
	m := s.event(a, from, to, finish)
	if n := a.script.Stream.Padding; n > 0 && padded {
		m["filler"] = strings.Repeat("x", n)
	}
	if message := a.script.Stream.Abort; message != "" && to == a.n {
		if meta, ok := m["meta_info"].(map[string]any); ok {
			meta["finish_reason"] = map[string]any{"type": "abort", "message": message, "status_code": 400}
		}
	}
	event(m)
}

// cut ends, stalls or spoils a stream before the tokens at..next, where the script
// says so there.
func (s *Server) cut(w http.ResponseWriter, r *http.Request, a *ask, p *pipe, event func(any), at, next int) bool {
	st := a.script.Stream
	switch {
	case st.ErrorAt > 0 && next >= st.ErrorAt:
		message := or(st.Error, "CUDA out of memory")
		if s.script.Face == "ollama" {
			event(map[string]any{"error": message})
		} else {
			event(map[string]any{"error": map[string]any{"message": message, "code": 500}})
			event("[DONE]")
		}
	case st.Stall != 0 && at >= max(st.Stall, 0):
		for r.Context().Err() == nil && !p.fails {
			if st.Comments {
				p.send(": still here\n\n")
			}
			wait(r, 5*time.Millisecond)
		}
	case slices.Contains([]string{"early", "fin", "reset"}, st.End) && at >= st.Cut:
		if st.End != "early" {
			hangUp(w, st.End == "reset")
		}
	default:
		return false
	}
	return true
}

// close sends what follows the last token.
func (s *Server) close(w http.ResponseWriter, r *http.Request, a *ask, event func(any)) {
	st := a.script.Stream
	for _, m := range s.closing(a) {
		event(m)
	}
	switch st.End {
	case "reset-done":
		hangUp(w, true)
	case "no-done":
	default:
		if !a.lastApart() {
			event("[DONE]")
		}
		if st.End == "linger" { // open after its own end
			wait(r, time.Hour)
		}
	}
}

// instant sends events that were made ready, as fast as they are taken.
func (s *Server) instant(a *ask, rec *Request, p *pipe) {
	var ready [][]byte
	put := func(v any) {
		raw, ok := v.(string)
		if !ok {
			b, _ := json.Marshal(v)
			raw = string(b)
		}
		ready = append(ready, []byte("data: "+raw+"\n\n"))
	}
	per := max(1, a.script.Stream.PerChunk)
	for from := 0; from < a.n; from += per {
		finish := ""
		if from+per >= a.n && !a.lastApart() {
			finish = a.finish
		}
		put(s.event(a, from, min(a.n, from+per), finish))
	}
	for _, m := range s.closing(a) {
		put(m)
	}
	if !a.lastApart() {
		put("[DONE]")
	}
	begin := time.Now()
	for i, b := range ready {
		p.write(b)
		if i == 0 {
			rec.FirstS = time.Since(a.t0).Seconds()
		}
	}
	s.note(a, rec, begin, time.Now(), a.n)
	rec.LastS = time.Since(a.t0).Seconds()
}

// hangUp closes the connection under an answer, with a reset or a plain end.
func hangUp(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if st, ok := conn.(*stamped); ok {
		conn = st.Conn
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// flood sends n bytes without an end of line.
func flood(p *pipe, n int64) {
	block := []byte(strings.Repeat("x", 64<<10))
	for p.write([]byte("data: ")); n > 0 && !p.fails; n -= int64(len(block)) {
		p.write(block)
	}
}
