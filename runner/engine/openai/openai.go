// Package openai speaks to any server with OpenAI's completion routes, known or
// not: it offers what makes a measurement exact (token ids, ignore_eos, usage in
// the stream, a cache salt), withdraws what the server refuses, one field at a
// time, and remembers that for the client's life. A variant and a request come
// in; a sample goes out, whose notes say what was withdrawn. What such a server
// does not report stays nil.
//
// Routes and fields are those of OpenAI's API reference and of vLLM's
// entrypoints/openai (2026), the commonest server behind it.
package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/pull"
	"twopoint/runner/failure"
	"twopoint/schema"
)

// Engine is the adapter.
type Engine struct {
	// Metrics, where set, is given the object "metrics" of an answer, which vLLM
	// adds, once the answer's counts stand in the sample.
	Metrics func(raw json.RawMessage, s *event.Sample)
}

// Name is openai.
func (Engine) Name() string { return "openai" }

// negative is the --no-x form, which vLLM and most others have for a switch.
func negative(flag string) []string {
	if name, long := strings.CutPrefix(flag, "--"); long {
		return []string{"--no-" + name}
	}
	return nil
}

var flags = engine.Flags{Negative: negative}

// Vet implements engine.Engine. There is no launch command of its own: a
// variant has a url, or a command that names {port}.
func (Engine) Vet(v schema.Variant) []engine.Problem {
	_, problems := flags.Words(v.Args)
	problems = append(problems, engine.VetPlaceholders(v)...)
	if v.URL != "" {
		return problems
	}
	if len(v.Command) == 0 {
		problems = append(problems, engine.Problem{Path: "command", Rule: "openai has no launch command of its own",
			Suggest: "give the server's url, or a command that starts it"})
	} else if v.Port == 0 && !engine.Uses(v, "port") {
		problems = append(problems, engine.Problem{Path: "command", Value: strings.Join(v.Command, " "),
			Rule: "says nowhere on which port the server listens", Suggest: "put {port} in command or args, or set port"})
	}
	return problems
}

// Args implements engine.Engine: the variant's command and args, nothing added.
func (Engine) Args(v schema.Variant, host string, port int) (argv, env []string, err error) {
	words, problems := flags.Words(v.Args)
	if err := engine.Refusal(problems); err != nil {
		return nil, nil, err
	}
	if len(v.Command) == 0 {
		return nil, nil, errors.New("command: openai has no launch command of its own")
	}
	return append(slices.Clone(v.Command), words...), nil, nil
}

// Ready implements engine.Engine: the expected model is listed and answers one
// token.
func (e Engine) Ready(ctx context.Context, c *engine.Client, v schema.Variant) error {
	return engine.Ready(ctx, c, v, func(ctx context.Context, model string) (int64, error) {
		s := e.Generate(ctx, c, engine.Request{Model: model, Text: "1", MaxTokens: 1})
		switch {
		case s.Error == "":
			return 1, nil // some report no count
		case s.HTTPStatus != 0 && s.HTTPStatus != http.StatusOK:
			return 0, &engine.StatusError{Method: http.MethodPost, Path: route(c), Status: s.HTTPStatus, Text: s.Detail}
		case s.Error == string(failure.BadResponse):
			return 0, fmt.Errorf("%w: %s", engine.ErrUnreadable, s.Detail)
		}
		return 0, fmt.Errorf("%s: %s", s.Error, s.Detail)
	})
}

// exact are the servers (owned_by in the list of models) that obey ignore_eos.
var exact = []string{"vllm", "sglang", "llamacpp"}

// probeIDs is a short prompt of ids that every vocabulary has.
var probeIDs = []int32{11, 12, 13, 14, 15, 16, 17}

// Info implements engine.Engine. Whether the server takes token ids is tried
// with a short request: it must count as many prompt tokens as were sent.
func (e Engine) Info(ctx context.Context, c *engine.Client, v schema.Variant) (engine.Info, error) {
	models, err := engine.ReadModels(ctx, c)
	if err != nil {
		return engine.Info{}, err
	}
	info := engine.Info{Model: models.Model(v), Settings: map[string]any{}}
	info.ContextLimit = models.Limit(info.Model)
	for _, d := range models.Data {
		if d.ID == info.Model {
			info.Settings["owned_by"] = d.OwnedBy
			info.ExactLength = slices.Contains(exact, d.OwnedBy)
		}
	}
	var version struct{ Version string }
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/version", nil, &version); err == nil {
		info.Version = version.Version
	}
	ctx, cancel := context.WithTimeout(ctx, engine.TokenWithin)
	defer cancel()
	try := engine.Request{Model: info.Model, IDs: probeIDs, MaxTokens: 2, Stream: true}
	s := e.Generate(ctx, c, try)
	if s.Error != "" {
		try.IDs, try.Text = nil, "1 2 3 4 5 6 7"
		s = e.Generate(ctx, c, try)
	}
	if s.Error == "" && (s.PromptTokens == nil || s.CompletionTokens == nil) {
		try.Stream = false
		if whole := e.Generate(ctx, c, try); whole.Error == "" && whole.CompletionTokens != nil {
			s, info.CountsWhole = whole, true
			info.Settings["counts"] = "whole answers only"
			info.Advice = append(info.Advice, "the server counts no tokens in its streams: whole answers are asked for instead, so that there are no times to first token or between tokens")
		}
	}
	info.TokenIDs = try.IDs != nil && s.Error == "" && s.PromptTokens != nil && *s.PromptTokens == int64(len(probeIDs))
	if info.CachedCount = s.CachedTokens != nil; !info.CachedCount {
		info.Advice = append(info.Advice, "the server does not say how many prompt tokens came from its cache: vLLM does with --enable-prompt-tokens-details, SGLang with --enable-cache-report")
	}
	if refused := c.Refused(); len(refused) > 0 {
		info.Settings["refused"] = strings.Join(refused, " ")
		if slices.Contains(refused, "ignore_eos") {
			info.ExactLength = false
		}
	}
	return info, nil
}

// The two routes. Chat is used only where the other is missing: its template
// adds tokens to the prompt.
const (
	completions = "/v1/completions"
	chat        = "/v1/chat/completions"
)

func route(c *engine.Client) string {
	if slices.Contains(c.Refused(), completions) {
		return chat
	}
	return completions
}

// optional are the fields that a server may refuse, each once; another name
// takes the place of max_tokens.
var optional = []string{"stream_options", "cache_salt", "cache_prompt", "min_tokens", "ignore_eos", "return_token_ids", "temperature", "max_tokens"}

// Generate implements engine.Engine. A 400 or 422 that names an optional field,
// and a 404 of the completions route, are answered by one more request without
// it; only the last request is measured.
func (e Engine) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	for {
		refused := c.Refused()
		path, body, err := request(r, refused)
		if err != nil {
			return event.Sample{ContextRequested: len(r.IDs), TokensRequested: r.MaxTokens, Start: time.Now().UTC(),
				Error: "http-error", Detail: err.Error(), Notes: notes(refused)}
		}
		p := parser{metrics: e.Metrics}
		ids := r.IDs
		if path == chat {
			ids = nil
		}
		s := c.Exchange(ctx, r, path, engine.WithIDs{Fields: body, Name: "prompt", IDs: ids}, p.parse)
		s.Notes = append(s.Notes, notes(refused)...)
		field := withdraw(s, path, body)
		if field == "" {
			return s
		}
		// Another request may have found the same at the same time: try again
		// even if it is no news, since this body still held the field.
		c.Refuse(field)
	}
}

func notes(refused []string) []string {
	if len(refused) == 0 {
		return nil
	}
	return []string{"refused by the server and left out: " + strings.Join(refused, ", ")}
}

func request(r engine.Request, refused []string) (string, map[string]any, error) {
	body := map[string]any{
		"stream": r.Stream, "temperature": 0,
		"ignore_eos": true, "min_tokens": r.MaxTokens, "return_token_ids": true,
	}
	if r.Model != "" {
		body["model"] = r.Model
	}
	if r.Stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	if r.NoReuse && r.Salt != "" {
		body["cache_salt"] = r.Salt // vLLM, SGLang
	}
	if r.NoReuse {
		body["cache_prompt"] = false // llama.cpp
	}
	path := completions
	if slices.Contains(refused, completions) {
		path = chat
	}
	switch {
	case path == chat && r.Text == "":
		return "", nil, errors.New("the server takes no token ids: it has only the chat route")
	case path == chat:
		body["messages"] = []any{map[string]any{"role": "user", "content": r.Text}}
	case r.IDs == nil:
		body["prompt"] = r.Text
	}
	for _, field := range refused {
		delete(body, field)
	}
	if slices.Contains(refused, "max_tokens") {
		body["max_completion_tokens"] = r.MaxTokens
	} else {
		body["max_tokens"] = r.MaxTokens
	}
	return path, body, nil
}

// withdraw names what the refused request should be repeated without, or "".
func withdraw(s event.Sample, path string, body map[string]any) string {
	switch {
	case s.Error != "http-error":
	case path == completions && (s.HTTPStatus == http.StatusNotFound || s.HTTPStatus == http.StatusMethodNotAllowed):
		if !strings.Contains(strings.ToLower(s.Detail), "model") { // an unknown model is 404 as well
			return completions
		}
	case s.HTTPStatus == http.StatusBadRequest || s.HTTPStatus == http.StatusUnprocessableEntity:
		for _, field := range optional {
			if _, sent := body[field]; sent && names(s.Detail, field) {
				return field
			}
		}
	}
	return ""
}

// names tells whether text has the field as a word of its own. A message about
// the context length may name max_tokens too; that is no refusal of the field.
func names(text, field string) bool {
	if field == "max_tokens" && !strings.Contains(text, "max_completion_tokens") {
		return false
	}
	return regexp.MustCompile(`\b` + field + `\b`).MatchString(text)
}

type usage struct {
	PromptTokens     *int64   `json:"prompt_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	Details          *details `json:"prompt_tokens_details"`
}

type details struct {
	Cached *int64 `json:"cached_tokens"`
}

// words is a message or a delta. Reasoning comes under one of two names and is
// generated like any other token.
type words struct {
	Content          string `json:"content"`
	ReasoningContent string `json:"reasoning_content"`
	Reasoning        string `json:"reasoning"`
}

type choice struct {
	Text     string  `json:"text"`
	TokenIDs []int32 `json:"token_ids"`
	Delta    words   `json:"delta"`
	Message  words   `json:"message"`
	Finish   string  `json:"finish_reason"`
}

type reply struct {
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Metrics json.RawMessage `json:"metrics"`
	Error   json.RawMessage `json:"error"`

	// older vLLM and SGLang: the error's keys at the top
	Object  json.RawMessage `json:"object"`
	Message string          `json:"message"`
}

// pull reads an event into an empty reply, whose choices may have room. Where it answers false,
// encoding/json has to.
func (m *reply) pull(data []byte) bool {
	r := pull.Of(data)
	listed := false
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "choices":
			if listed { // a second list goes over the first, element by element
				r.Refuse()
			}
			listed = true
			for more := r.Array(); more; more = r.More() {
				n := len(m.Choices)
				m.Choices = slices.Grow(m.Choices, 1)[:n+1]
				c := &m.Choices[n]
				*c = choice{TokenIDs: c.TokenIDs[:0]}
				c.pull(&r)
			}
		case "usage":
			if r.Null() {
				m.Usage = nil
				continue
			}
			if m.Usage == nil {
				m.Usage = new(usage)
			}
			m.Usage.pull(&r)
		case "metrics":
			r.Raw(&m.Metrics)
		case "error":
			r.Raw(&m.Error)
		case "object":
			r.Raw(&m.Object)
		case "message":
			r.String(&m.Message)
		default:
			r.Skip()
		}
	}
	return r.Done()
}

func (c *choice) pull(r *pull.Reader) {
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "text":
			r.String(&c.Text)
		case "token_ids":
			r.Int32s(&c.TokenIDs)
		case "delta":
			c.Delta.pull(r)
		case "message":
			c.Message.pull(r)
		case "finish_reason":
			r.String(&c.Finish)
		default:
			r.Skip()
		}
	}
}

func (w *words) pull(r *pull.Reader) {
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "content":
			r.String(&w.Content)
		case "reasoning_content":
			r.String(&w.ReasoningContent)
		case "reasoning":
			r.String(&w.Reasoning)
		default:
			r.Skip()
		}
	}
}

func (u *usage) pull(r *pull.Reader) {
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "prompt_tokens":
			r.Int(&u.PromptTokens)
		case "completion_tokens":
			r.Int(&u.CompletionTokens)
		case "prompt_tokens_details":
			if r.Null() {
				u.Details = nil
				continue
			}
			if u.Details == nil {
				u.Details = new(details)
			}
			for key := r.Object(); key != nil; key = r.Next() {
				if string(key) == "cached_tokens" {
					r.Int(&u.Details.Cached)
				} else {
					r.Skip()
				}
			}
		default:
			r.Skip()
		}
	}
}

type parser struct {
	metrics func(json.RawMessage, *event.Sample)
	m       reply // of the event, and room for the next
}

func (p *parser) parse(data []byte, s *event.Sample) (engine.Part, error) {
	m := &p.m
	*m = reply{Choices: m.Choices[:0]}
	if !m.pull(data) {
		*m = reply{}
		if err := json.Unmarshal(data, m); err != nil {
			return engine.Part{}, err
		}
	}
	if len(m.Error) > 0 && string(m.Error) != "null" || string(m.Object) == `"error"` {
		failed := engine.ErrorMessage(data)
		if failed == "" {
			failed = "an error without a message"
		}
		return engine.Part{Failed: failed}, nil
	}
	if u := m.Usage; u != nil {
		engine.Count(&s.PromptTokens, u.PromptTokens)
		engine.Count(&s.CompletionTokens, u.CompletionTokens)
		if u.Details != nil {
			engine.Count(&s.CachedTokens, u.Details.Cached)
		}
	}
	if p.metrics != nil && len(m.Metrics) > 0 {
		p.metrics(m.Metrics, s)
	}
	var part engine.Part
	if len(m.Choices) == 0 {
		return part, nil // usage alone, or a ping
	}
	ch := &m.Choices[0]
	part.Finish = ch.Finish
	part.IDs = ch.TokenIDs
	part.Text = ch.Text + ch.Delta.ReasoningContent + ch.Delta.Reasoning + ch.Delta.Content +
		ch.Message.ReasoningContent + ch.Message.Reasoning + ch.Message.Content
	switch {
	case len(part.IDs) > 0:
		part.Tokens = len(part.IDs)
	case part.Text != "":
		part.Tokens = -1
	}
	return part, nil
}

// Flush implements engine.Flusher with vLLM's route. An empty 200 is no
// verdict: vLLM answers so whether or not the reset worked.
func (Engine) Flush(ctx context.Context, c *engine.Client) event.Flush {
	f := event.Flush{Method: "POST /reset_prefix_cache"}
	start := time.Now()
	for try := 0; ; try++ {
		f.Attempts++
		var body string
		status, err := c.Do(ctx, engine.AskWithin, http.MethodPost, "/reset_prefix_cache", nil, &body)
		f.Status, f.WaitS = status, time.Since(start).Seconds()
		no := false
		switch {
		case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
			f.OK = &no
			f.Detail = "the server has no route POST /reset_prefix_cache (" + strconv.Itoa(status) + "): vLLM has it only with VLLM_SERVER_DEV_MODE=1"
			return f
		case err != nil:
			f.OK, f.Detail = &no, err.Error()
			return f
		}
		var verdict struct{ Success *bool }
		json.Unmarshal([]byte(body), &verdict)
		if verdict.Success == nil {
			f.OK, f.Detail = nil, "the server gives no verdict"
			return f
		}
		f.OK = verdict.Success
		if *f.OK || try == flushTries {
			return f
		}
		f.Detail = "the server refused: blocks are still in use"
		if err := engine.BackOff(ctx, try); err != nil {
			f.Detail += "; " + err.Error()
			return f
		}
	}
}

// flushTries are retries of a refused flush: with back-off, about 12 s.
const flushTries = 16

// Tokenize implements engine.Tokenizer with the route of vLLM and SGLang, which
// llama.cpp has as well under other field names.
func (Engine) Tokenize(ctx context.Context, c *engine.Client, text string) ([]int32, error) {
	in := map[string]any{"prompt": text, "add_special_tokens": false, "content": text, "add_special": false}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	if _, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/tokenize", in, &out); err != nil {
		return nil, err
	}
	if len(out.Tokens) == 0 && text != "" {
		return nil, errors.New("POST /tokenize: no tokens in the answer")
	}
	return out.Tokens, nil
}
