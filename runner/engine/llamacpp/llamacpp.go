// Package llamacpp speaks to llama.cpp's llama-server over its native
// interface: token ids in, a stream of token ids out, the server's own timings
// in the last event. A variant and a request come in; an argument vector and a
// sample go out.
//
// Facts are from llama.cpp's tools/server (build 11434, tried against it):
// POST /completion takes an array of ids literally; the last event of a stream
// has stop:true and timings, there is no end marker; /health answers 503 while
// the model loads.
package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/pull"
	"twopoint/schema"
)

// Engine is the adapter.
type Engine struct{}

// Name is llamacpp.
func (Engine) Name() string { return "llamacpp" }

// owned are the flags of typed fields, with their aliases.
var owned = map[string]string{
	"-m": "model_path", "--model": "model_path",
	"-a": "served_name", "--alias": "served_name",
	"-c": "context_length", "--ctx-size": "context_length",
	"--host": "host", "--port": "port",
}

// switches are the flags that llama-server has in a --no- form (arg.cpp).
var switches = []string{
	"cache-idle-slots", "cache-prompt", "cont-batching", "context-shift", "escape", "jinja", "kv-offload",
	"kv-unified", "log-prefix", "log-timestamps", "mmap", "mmproj", "mmproj-auto", "mmproj-offload", "op-offload",
	"perf", "prefill-assistant", "repack", "slots", "ui", "warmup", "webui",
}

// values are the flags that are switched off by a value.
var values = []string{"--flash-attn", "-fa", "--fit", "-fit"}

func negative(flag string) []string {
	if name, long := strings.CutPrefix(flag, "--"); long && slices.Contains(switches, name) {
		return []string{"--no-" + name}
	}
	if slices.Contains(values, flag) {
		return []string{flag, "off"}
	}
	return nil
}

var flags = engine.Flags{Owned: owned, Negative: negative}

// Vet implements engine.Engine.
func (Engine) Vet(v schema.Variant) []engine.Problem {
	_, problems := flags.Words(v.Args)
	problems = append(problems, engine.VetPlaceholders(v)...)
	problems = append(problems, engine.OnlyOne(v, "use args: \"split-mode\" and \"tensor-split\"")...)
	if v.URL == "" {
		problems = append(problems, engine.Missing("model_path", v.ModelPath, "llamacpp needs a GGUF file to launch with")...)
	}
	return problems
}

// Args implements engine.Engine. llama-server divides its context among its
// slots, so -c is the context length times the slots (args.parallel, else 1).
// Unless flush is "never", --slot-save-path makes the route that erases a slot
// available; nothing is saved there.
func (Engine) Args(v schema.Variant, host string, port int) (argv, env []string, err error) {
	words, problems := flags.Words(v.Args)
	if err := engine.Refusal(problems); err != nil {
		return nil, nil, err
	}
	argv = []string{"llama-server"}
	if len(v.Command) > 0 {
		argv = slices.Clone(v.Command)
	}
	if v.ModelPath != "" {
		argv = append(argv, "--model", v.ModelPath)
	}
	if v.ServedName != "" {
		argv = append(argv, "--alias", v.ServedName)
	}
	argv = append(argv, "--host", host, "--port", strconv.Itoa(port))
	slots, set := after(words, "--parallel", "-np", "--n-parallel")
	if !set {
		slots = 1
		argv = append(argv, "--parallel", "1")
	}
	if v.ContextLength > 0 {
		if _, unified := after(words, "--kv-unified", "-kvu"); unified || slots < 1 {
			slots = 1
		}
		argv = append(argv, "--ctx-size", strconv.Itoa(v.ContextLength*slots))
	}
	if _, set := after(words, "--slot-save-path"); !set && v.Flush != "never" {
		argv = append(argv, "--slot-save-path", "{workdir}")
	}
	return append(argv, words...), nil, nil
}

// after finds one of the flags among words and the number that follows it.
func after(words []string, names ...string) (n int, found bool) {
	for i, w := range words {
		if slices.Contains(names, w) {
			if i+1 < len(words) {
				n, _ = strconv.Atoi(words[i+1])
			}
			return n, true
		}
	}
	return 0, false
}

// Ready implements engine.Engine: loaded, with the expected model, and it
// answers one token.
func (e Engine) Ready(ctx context.Context, c *engine.Client, v schema.Variant) error {
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/health", nil, nil); err != nil {
		return engine.NotYet(err)
	}
	return engine.Ready(ctx, c, v, func(ctx context.Context, _ string) (int64, error) {
		var answer reply
		_, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/completion",
			completion{Prompt: []int32{0}, NPredict: 1, IgnoreEOS: true, CachePrompt: new(bool)}, &answer)
		if answer.Predicted == nil {
			return 0, err
		}
		return *answer.Predicted, err
	})
}

type props struct {
	Defaults struct {
		NCtx   int            `json:"n_ctx"` // of one slot
		Params map[string]any `json:"params"`
	} `json:"default_generation_settings"`
	TotalSlots int    `json:"total_slots"`
	Alias      string `json:"model_alias"`
	Path       string `json:"model_path"`
	FType      string `json:"model_ftype"`
	Build      string `json:"build_info"`
}

// Info implements engine.Engine. llama-server reports neither its attention
// kernel nor its KV type, and not whether its slots share one pool of KV cells.
func (Engine) Info(ctx context.Context, c *engine.Client, v schema.Variant) (engine.Info, error) {
	var p props
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/props", nil, &p); err != nil {
		return engine.Info{}, err
	}
	models, err := engine.ReadModels(ctx, c)
	if err != nil {
		return engine.Info{}, err
	}
	info := engine.Info{
		Version:       p.Build,
		Model:         models.Model(v),
		ContextLimit:  p.Defaults.NCtx,
		Slots:         p.TotalSlots,
		TokenIDs:      true,
		ExactLength:   true,
		CachedCount:   true,
		EngineDefault: true,
		Settings: map[string]any{
			"model_path":  path.Base(p.Path),
			"model_ftype": p.FType,
			"total_slots": json.Number(strconv.Itoa(p.TotalSlots)),
			"n_ctx":       json.Number(strconv.Itoa(p.Defaults.NCtx)),
		},
	}
	if kinds, says := p.Defaults.Params["speculative.types"].(string); says && kinds != "" { // builds before 2026 do not
		speculates := kinds != "none"
		info.Speculative = &speculates
		info.Settings["speculative.types"] = kinds
	}
	return info, nil
}

// completion is the body of POST /completion.
type completion struct {
	Prompt       any     `json:"prompt,omitempty"` // ids, or text
	NPredict     int     `json:"n_predict"`
	Temperature  float64 `json:"temperature"`
	IgnoreEOS    bool    `json:"ignore_eos"`
	Stream       bool    `json:"stream"`
	ReturnTokens bool    `json:"return_tokens"`
	IDSlot       int     `json:"id_slot"`
	CachePrompt  *bool   `json:"cache_prompt,omitempty"` // nil: the server's default, true

	// Fields keeps the answer to what is read of it: the last event would
	// otherwise repeat the whole prompt as text.
	Fields []string `json:"response_fields,omitempty"`
}

var fields = []string{"content", "tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "truncated", "timings"}

// reply is one event of /completion, or its whole answer.
type reply struct {
	Content   string          `json:"content"`
	Tokens    []int32         `json:"tokens"`
	Stop      bool            `json:"stop"`
	StopType  string          `json:"stop_type"`
	Predicted *int64          `json:"tokens_predicted"`
	Evaluated *int64          `json:"tokens_evaluated"`
	Truncated bool            `json:"truncated"`
	Error     json.RawMessage `json:"error"`
	Timings   *timings        `json:"timings"`
}

type timings struct {
	CacheN      *int64   `json:"cache_n"`
	PromptN     *int64   `json:"prompt_n"`
	PromptMs    *float64 `json:"prompt_ms"`
	PredictedN  *int64   `json:"predicted_n"`
	PredictedMs *float64 `json:"predicted_ms"`
	DraftN      *int64   `json:"draft_n"`
	AcceptedN   *int64   `json:"draft_n_accepted"`
}

// pull reads an event into an empty reply. Where it answers false, as for the
// last event with its timings, encoding/json has to.
func (m *reply) pull(data []byte) bool {
	r := pull.Of(data)
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "content":
			r.String(&m.Content)
		case "tokens":
			r.Int32s(&m.Tokens)
		case "stop":
			r.Bool(&m.Stop)
		case "stop_type":
			r.String(&m.StopType)
		case "tokens_predicted":
			r.Int(&m.Predicted)
		case "tokens_evaluated":
			r.Int(&m.Evaluated)
		case "truncated":
			r.Bool(&m.Truncated)
		case "error":
			r.Raw(&m.Error)
		case "timings":
			r.Refuse()
		default:
			r.Skip()
		}
	}
	return r.Done()
}

// Generate implements engine.Engine.
func (Engine) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	body := completion{NPredict: r.MaxTokens, IgnoreEOS: true, Stream: r.Stream, ReturnTokens: true, IDSlot: r.Slot, Fields: fields}
	if r.IDs == nil {
		body.Prompt = r.Text
	}
	if r.NoReuse {
		body.CachePrompt = new(bool)
	}
	var p parser
	return c.Exchange(ctx, r, "/completion", engine.WithIDs{Fields: body, Name: "prompt", IDs: r.IDs}, p.parse)
}

type parser struct {
	m       reply // of the event, and room for the ids of the next
	counted int64
}

func (p *parser) parse(data []byte, s *event.Sample) (engine.Part, error) {
	m := &p.m
	*m = reply{Tokens: m.Tokens[:0]}
	if !m.pull(data) {
		*m = reply{}
		if err := json.Unmarshal(data, m); err != nil {
			return engine.Part{}, err
		}
	}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		return engine.Part{Failed: engine.ErrorMessage(data)}, nil
	}
	// The count says how many tokens are new: none in the last event of a stream
	// and in a progress report (which has an id nonetheless), several where text
	// was held back for being an incomplete character. Of those only one id comes.
	counted := p.counted
	if n := m.Predicted; n != nil {
		counted = max(counted, *n)
	}
	part := engine.Part{Done: m.Stop, Tokens: int(counted - p.counted)}
	if part.Tokens > 0 {
		part.IDs, part.Text = m.Tokens, m.Content
	}
	p.counted = counted
	if !m.Stop {
		return part, nil
	}
	engine.Count(&s.CompletionTokens, m.Predicted)
	engine.Count(&s.PromptTokens, m.Evaluated)
	part.Finish = map[string]string{"limit": "length", "eos": "stop", "word": "stop"}[m.StopType]
	if m.Truncated {
		s.Notes = append(s.Notes, "truncated by the server: the context was full")
	}
	if t := m.Timings; t != nil {
		engine.Count(&s.CachedTokens, t.CacheN)
		if t.CacheN != nil && t.PromptN != nil {
			whole := *t.CacheN + *t.PromptN
			engine.Count(&s.PromptTokens, &whole)
		}
		s.ServerPrefillS = engine.Seconds(t.PromptMs, 1e3)
		s.ServerDecodeSPerTok = engine.PerToken(engine.Seconds(t.PredictedMs, 1e3), t.PredictedN) // predicted_ms begins when the first token has been sampled
		if t.DraftN != nil && t.AcceptedN != nil && t.PredictedN != nil {
			steps := *t.PredictedN - 1 - *t.AcceptedN // a step yields one token and the accepted ones
			engine.Count(&s.Steps, &steps)
		}
	}
	return part, nil
}

// slots is the answer of GET /slots.
type slots []struct {
	ID   int  `json:"id"`
	Busy bool `json:"is_processing"`
}

// Flush implements engine.Flusher: it erases every slot. That needs
// --slot-save-path, without which llama-server answers 501; cache_prompt:false
// with each request is proof of its own there.
func (Engine) Flush(ctx context.Context, c *engine.Client) event.Flush {
	f := event.Flush{Method: "POST /slots/{id}?action=erase"}
	start := time.Now()
	verdict := func(ok bool, detail string) event.Flush {
		f.OK, f.Detail, f.WaitS = &ok, detail, time.Since(start).Seconds()
		return f
	}
	var p props
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/props", nil, &p); err != nil {
		return verdict(false, err.Error())
	}
	for id := range max(1, p.TotalSlots) {
		f.Attempts++
		// A busy slot's erasure is put off until it is free.
		status, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, fmt.Sprintf("/slots/%d?action=erase", id), nil, nil)
		f.Status = status
		switch {
		case status == http.StatusNotImplemented:
			return verdict(false, "llama-server erases slots only if started with --slot-save-path (501)")
		case err != nil:
			return verdict(false, err.Error())
		}
	}
	return verdict(true, "")
}

// Tokenize implements engine.Tokenizer.
func (Engine) Tokenize(ctx context.Context, c *engine.Client, text string) ([]int32, error) {
	in := map[string]any{"content": text, "add_special": false, "parse_special": false}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	_, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/tokenize", in, &out)
	return out.Tokens, err
}

// WaitIdle implements engine.Idler, from GET /slots, which --no-slots takes away.
func (Engine) WaitIdle(ctx context.Context, c *engine.Client) error {
	for try := 0; ; try++ {
		var all slots
		if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/slots", nil, &all); err != nil {
			var status *engine.StatusError
			if errors.As(err, &status) {
				return fmt.Errorf("%w whether it is idle: %w", engine.ErrUnknown, err)
			}
			return err
		}
		busy := false
		for _, s := range all {
			busy = busy || s.Busy
		}
		if !busy {
			return nil
		}
		if err := engine.BackOff(ctx, try); err != nil {
			return err
		}
	}
}
