package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// completionRequest is the body of /v1/completions, with SGLang's extensions.
type completionRequest struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	MaxTokens     *int            `json:"max_tokens"`
	MinTokens     int             `json:"min_tokens"`
	Temperature   *float64        `json:"temperature"`
	IgnoreEOS     bool            `json:"ignore_eos"`
	Stop          stringList      `json:"stop"`
	StopTokenIDs  []int32         `json:"stop_token_ids"`
	N             *int            `json:"n"`
	RID           string          `json:"rid"`
	CacheSalt     string          `json:"cache_salt"`
	ExtraKey      string          `json:"extra_key"`
	Stream        bool            `json:"stream"`
	StreamOptions struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage"`
}

type choice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Logprobs     any     `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	MatchedStop  any     `json:"matched_stop,omitempty"`
}

type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *cachedDetails `json:"prompt_tokens_details"`
}

type cachedDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

func (s *Server) known(model string) error {
	if model == "" || model == s.opt.ServedModelName {
		return nil
	}
	return &badRequest{http.StatusNotFound, fmt.Sprintf("The model '%s' does not exist; this server has '%s'", model, s.opt.ServedModelName)}
}

func (s *Server) completionSequence(req *completionRequest, arrived time.Time) (*sequence, error) {
	if err := s.known(req.Model); err != nil {
		return nil, err
	}
	if err := greedy(req.Temperature, req.N); err != nil {
		return nil, err
	}
	if !present(req.Prompt) {
		return nil, bad("prompt is missing")
	}
	prompts, _, err := parseTexts(req.Prompt)
	if err != nil {
		if prompts, _, err = parseIDs(req.Prompt); err != nil {
			return nil, bad("prompt must be a string, or a list of token ids")
		}
	}
	if len(prompts) != 1 {
		return nil, bad("prompt must be one prompt, not %d", len(prompts))
	}
	p := params{
		maxNew: s.budget(req.MaxTokens, 16, len(prompts[0])), minNew: req.MinTokens, ignoreEOS: req.IgnoreEOS, stopIDs: req.StopTokenIDs, stops: req.Stop,
		space: space(req.CacheSalt, req.ExtraKey),
	}
	if err := s.check(prompts[0], p); err != nil {
		return nil, err
	}
	id := req.RID
	if id == "" {
		id = "cmpl-" + newID()
	}
	return newSequence(id, prompts[0], p, arrived), nil
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	var req completionRequest
	if err := body(w, r, &req); err != nil {
		replyError(w, err)
		return
	}
	q, err := s.completionSequence(&req, arrived)
	if err == nil {
		err = s.sched.submit(q)
	}
	if err != nil {
		replyError(w, err)
		return
	}
	chunk := func(snap snapshot, from int) completion {
		all := text(snap.out, snap.finish)
		c := choice{Text: all[min(len(text(snap.out[:from], nil)), len(all)):]}
		if f := snap.finish; f != nil {
			c.FinishReason, c.MatchedStop = &f.kind, f.matched
		}
		return completion{ID: q.id, Object: "text_completion", Created: arrived.Unix(), Model: s.opt.ServedModelName, Choices: []choice{c}}
	}
	count := func(snap snapshot, cached bool) *usage {
		u := &usage{PromptTokens: q.prompt, CompletionTokens: len(snap.out), TotalTokens: q.prompt + len(snap.out)}
		if cached && s.opt.EnableCacheReport {
			u.Details = &cachedDetails{snap.cached}
		}
		return u
	}
	if !req.Stream {
		snap, err := s.wait(r.Context(), q)
		if err != nil {
			return // the client is gone
		}
		if f := snap.finish; f.kind == "abort" && f.status >= 500 {
			replyError(w, &badRequest{f.status, f.message})
			return
		}
		c := chunk(snap, 0)
		c.Usage = count(snap, true)
		reply(w, http.StatusOK, c)
		return
	}
	t := newStream(w)
	from := 0
	s.follow(r.Context(), q, func(snap snapshot) error {
		if f := snap.finish; f != nil && f.kind == "abort" {
			_, e := newAPIError(&badRequest{f.status, f.message})
			if err := t.send(map[string]any{"error": e}); err != nil {
				return err
			}
			t.done()
			return nil
		}
		c := chunk(snap, from)
		if req.StreamOptions.ContinuousUsage {
			c.Usage = count(snap, false)
		}
		if err := t.send(c); err != nil {
			return err
		}
		from = len(snap.out)
		if snap.finish == nil {
			return nil
		}
		if req.StreamOptions.IncludeUsage {
			c.Choices, c.Usage = []choice{}, count(snap, true)
			if err := t.send(c); err != nil {
				return err
			}
		}
		t.done()
		return nil
	})
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	card := map[string]any{
		"id": s.opt.ServedModelName, "object": "model", "created": s.start.Unix(), "owned_by": "twopoint",
		"root": s.opt.ModelPath, "parent": nil, "max_model_len": s.opt.ContextLength,
	}
	if id := r.PathValue("id"); id != "" {
		if err := s.known(id); err != nil {
			replyError(w, err)
			return
		}
		reply(w, http.StatusOK, card)
		return
	}
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{card}})
}
