package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// generateRequest is the body of /generate, SGLang's native interface.
type generateRequest struct {
	Text     json.RawMessage `json:"text"`
	InputIDs json.RawMessage `json:"input_ids"`
	Sampling struct {
		MaxNewTokens *int       `json:"max_new_tokens"`
		MinNewTokens int        `json:"min_new_tokens"`
		Temperature  *float64   `json:"temperature"`
		IgnoreEOS    bool       `json:"ignore_eos"`
		Stop         stringList `json:"stop"`
		StopTokenIDs []int32    `json:"stop_token_ids"`
		N            *int       `json:"n"`
	} `json:"sampling_params"`
	Stream        bool       `json:"stream"`
	RID           stringList `json:"rid"`
	ReturnLogprob bool       `json:"return_logprob"`
	TopLogprobs   int        `json:"top_logprobs_num"`
	CacheSalt     string     `json:"cache_salt"`
	ExtraKey      string     `json:"extra_key"`
}

type generateResponse struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	Meta      meta    `json:"meta_info"`
}

type meta struct {
	ID               string      `json:"id"`
	FinishReason     any         `json:"finish_reason"`
	PromptTokens     int         `json:"prompt_tokens"`
	WeightVersion    string      `json:"weight_version"`
	NumRetractions   int         `json:"num_retractions"`
	CompletionTokens int         `json:"completion_tokens"`
	CachedTokens     int         `json:"cached_tokens"`
	E2ELatency       *float64    `json:"e2e_latency,omitempty"` // seconds; last chunk only
	Logprobs         []logprob   `json:"output_token_logprobs,omitempty"`
	TopLogprobs      [][]logprob `json:"output_top_logprobs,omitempty"`
}

// logprob is SGLang's triple [log probability, id, text], the text always null.
type logprob likelihood

func (l logprob) MarshalJSON() ([]byte, error) { return json.Marshal([]any{l.log, l.token, nil}) }

func (f *finish) json() any {
	if f == nil {
		return nil
	}
	m := map[string]any{"type": f.kind}
	switch f.kind {
	case "stop":
		m["matched"] = f.matched
	case "abort":
		m["message"] = f.message
		if f.status != 499 { // the client's own wish has no status
			m["status_code"] = f.status
		}
	}
	return m
}

// space is the namespace of the prefix cache that the two keys name together.
func space(salt, extra string) string {
	if salt == "" && extra == "" {
		return ""
	}
	key, _ := json.Marshal([]string{salt, extra})
	return string(key)
}

// sequences turns the request into sequences that can be computed.
func (s *Server) sequences(req *generateRequest, arrived time.Time) (list []*sequence, batch bool, err error) {
	if present(req.Text) == present(req.InputIDs) {
		return nil, false, bad("exactly one of text and input_ids must be given")
	}
	parse, raw := parseTexts, req.Text
	if present(req.InputIDs) {
		parse, raw = parseIDs, req.InputIDs
	}
	prompts, batch, err := parse(raw)
	if err != nil {
		return nil, false, err
	}
	sp := req.Sampling
	if err := greedy(sp.Temperature, sp.N); err != nil {
		return nil, false, err
	}
	p := params{
		minNew: sp.MinNewTokens, ignoreEOS: sp.IgnoreEOS, stopIDs: sp.StopTokenIDs, stops: sp.Stop,
		space: space(req.CacheSalt, req.ExtraKey), logprobs: req.ReturnLogprob, top: max(req.TopLogprobs, 0),
	}
	if len(prompts) == 0 {
		return nil, false, bad("the batch is empty")
	}
	if len(req.RID) > 0 && len(req.RID) != len(prompts) {
		return nil, false, bad("%d rids for %d prompts", len(req.RID), len(prompts))
	}
	for i, prompt := range prompts {
		p.maxNew = s.budget(sp.MaxNewTokens, 128, len(prompt))
		if err := s.check(prompt, p); err != nil {
			return nil, false, err
		}
		id := newID()
		if len(req.RID) > 0 {
			id = req.RID[i]
		}
		list = append(list, newSequence(id, prompt, p, arrived))
	}
	if batch && req.Stream {
		return nil, false, bad("a batch cannot be streamed")
	}
	return list, batch, nil
}

func (s *Server) generate(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	var req generateRequest
	if err := body(w, r, &req); err != nil {
		replyError(w, err)
		return
	}
	list, batch, err := s.sequences(&req, arrived)
	for i := 0; err == nil && i < len(list); i++ {
		err = s.sched.submit(list[i])
	}
	if err != nil {
		failure := map[string]any{"error": map[string]string{"message": err.Error()}}
		if req.Stream {
			// As SGLang does: the status is out before the error is known.
			t := newStream(w)
			if t.send(failure) == nil {
				t.done()
			}
			return
		}
		reply(w, status(err), failure)
		return
	}
	if req.Stream {
		s.generateStream(r.Context(), w, list[0])
		return
	}
	out := make([]generateResponse, 0, len(list))
	for i, q := range list {
		snap, err := s.wait(r.Context(), q)
		if err != nil {
			for _, rest := range list[i+1:] {
				s.drop(rest)
			}
			return // the client is gone
		}
		if f := snap.finish; f.kind == "abort" && f.status >= 500 {
			replyError(w, &badRequest{f.status, f.message})
			return
		}
		out = append(out, generated(q, snap, 0))
	}
	if batch {
		reply(w, http.StatusOK, out)
		return
	}
	reply(w, http.StatusOK, out[0])
}

// generated is the response that shows what came after the first from tokens.
func generated(q *sequence, snap snapshot, from int) generateResponse {
	g := generateResponse{OutputIDs: snap.out[from:], Meta: meta{
		ID: q.id, FinishReason: snap.finish.json(), PromptTokens: q.prompt, WeightVersion: "default",
		NumRetractions: snap.retractions, CompletionTokens: len(snap.out), CachedTokens: snap.cached,
	}}
	if g.OutputIDs == nil {
		g.OutputIDs = []int32{}
	}
	all := text(snap.out, snap.finish)
	g.Text = all[min(len(text(snap.out[:from], nil)), len(all)):]
	if snap.finish != nil {
		e2e := snap.finished.Sub(q.arrived).Seconds()
		g.Meta.E2ELatency = &e2e
	}
	for _, l := range snap.likely[min(from, len(snap.likely)):] {
		g.Meta.Logprobs = append(g.Meta.Logprobs, logprob(l[0]))
		if len(l) > 1 {
			var top []logprob
			for _, alt := range l[1:] {
				top = append(top, logprob(alt))
			}
			g.Meta.TopLogprobs = append(g.Meta.TopLogprobs, top)
		}
	}
	return g
}

func (s *Server) generateStream(ctx context.Context, w http.ResponseWriter, q *sequence) {
	t := newStream(w)
	from := 0
	s.follow(ctx, q, func(snap snapshot) error {
		g := generated(q, snap, from)
		if s.opt.Incremental {
			from = len(snap.out)
		}
		if err := t.send(g); err != nil {
			return err
		}
		if snap.finish != nil {
			t.done()
		}
		return nil
	})
}
