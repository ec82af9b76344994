// Package sglang speaks to SGLang servers over their native interface: token
// ids in, a stream of token ids out, with the server's counts in each event. A
// variant and a request come in; an argument vector and a sample go out.
//
// Facts are from SGLang's server_args.py, http_server.py, io_struct.py and
// tokenizer_manager.py (2026): POST /generate takes input_ids and
// sampling_params; each event holds meta_info with prompt_tokens,
// completion_tokens and cached_tokens; text and output_ids hold everything so
// far unless --incremental-streaming-output is set; an error in a stream comes
// as an event within a 200 answer.
package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/pull"
	"twopoint/schema"
)

// Engine is the adapter. Its zero value is SGLang itself.
type Engine struct {
	// Dialect replaces the name, the launch command and the vetting for a
	// program that speaks the same interface.
	Dialect *Dialect
}

// Dialect is another program with SGLang's interface.
type Dialect struct {
	Name     string
	Launch   []string                              // argv[0] and subcommand
	Negative func(flag string) []string            // words for a flag set to false
	Vet      func(schema.Variant) []engine.Problem // beyond the common rules
	Sizes    bool                                  // takes --tp-size and its kin
}

var sglang = &Dialect{
	Name:   "sglang",
	Launch: []string{"python3", "-m", "sglang.launch_server"},
	Sizes:  true,
}

func (e Engine) dialect() *Dialect {
	if e.Dialect != nil {
		return e.Dialect
	}
	return sglang
}

// Name is sglang, or the dialect's.
func (e Engine) Name() string { return e.dialect().Name }

// owned are the flags of typed fields, with the aliases of server_args.py.
var owned = map[string]string{
	"--model-path": "model_path", "--model": "model_path",
	"--served-model-name": "served_name",
	"--context-length":    "context_length",
	"--tp":                "tp", "--tp-size": "tp", "--tensor-parallel-size": "tp",
	"--dp": "dp", "--dp-size": "dp", "--data-parallel-size": "dp",
	"--pp": "pp", "--pp-size": "pp", "--pipeline-parallel-size": "pp",
	"--dcp": "dcp", "--dcp-size": "dcp", "--decode-context-parallel-size": "dcp",
	"--host": "host", "--port": "port",
}

func (e Engine) words(v schema.Variant) ([]string, []engine.Problem) {
	return engine.Flags{Owned: owned, Negative: e.dialect().Negative}.Words(v.Args)
}

// Vet implements engine.Engine.
func (e Engine) Vet(v schema.Variant) []engine.Problem {
	_, problems := e.words(v)
	problems = append(problems, engine.VetPlaceholders(v)...)
	if d := e.dialect(); d.Vet != nil {
		return append(problems, d.Vet(v)...)
	}
	if v.URL == "" {
		problems = append(problems, engine.Missing("model_path", v.ModelPath, "sglang needs a model to launch with")...)
	}
	return problems
}

// Args implements engine.Engine. The variant's command, if any, stands in place
// of python3 -m sglang.launch_server; the flags follow either.
func (e Engine) Args(v schema.Variant, host string, port int) (argv, env []string, err error) {
	words, problems := e.words(v)
	if err := engine.Refusal(problems); err != nil {
		return nil, nil, err
	}
	d := e.dialect()
	argv = append(argv, d.Launch...)
	if len(v.Command) > 0 {
		argv = append([]string{}, v.Command...)
	}
	text := func(flag, value string) {
		if value != "" {
			argv = append(argv, flag, value)
		}
	}
	size := func(flag string, n int) {
		if n > 0 {
			argv = append(argv, flag, strconv.Itoa(n))
		}
	}
	text("--model-path", v.ModelPath)
	text("--served-model-name", v.ServedName)
	text("--host", host)
	size("--port", port)
	size("--context-length", v.ContextLength)
	if d.Sizes {
		size("--tp-size", v.TP)
		size("--dp-size", v.DP)
		size("--pp-size", v.PP)
		size("--dcp-size", v.DCP)
	}
	return append(argv, words...), nil, nil
}

// Ready implements engine.Engine: the expected model is listed and answers one
// token.
func (e Engine) Ready(ctx context.Context, c *engine.Client, v schema.Variant) error {
	return engine.Ready(ctx, c, v, func(ctx context.Context, _ string) (n int64, err error) {
		var answer reply
		_, err = c.Do(ctx, engine.TokenWithin, http.MethodPost, "/generate",
			generate{InputIDs: []int32{0}, Sampling: sampling{MaxNewTokens: 1, IgnoreEOS: true}}, &answer)
		if got := answer.Meta.CompletionTokens; got != nil {
			n = *got
		}
		return n, err
	})
}

// Info implements engine.Engine. It reads /server_info (before 2026
// /get_server_info).
func (e Engine) Info(ctx context.Context, c *engine.Client, v schema.Variant) (engine.Info, error) {
	var settings map[string]any
	_, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/server_info", nil, &settings)
	var status *engine.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		_, err = c.Do(ctx, engine.AskWithin, http.MethodGet, "/get_server_info", nil, &settings)
	}
	if err != nil {
		return engine.Info{}, err
	}
	models, err := engine.ReadModels(ctx, c)
	if err != nil {
		return engine.Info{}, err
	}
	states, _ := settings["internal_states"].([]any)
	if len(states) > 0 {
		if first, is := states[0].(map[string]any); is {
			settings["internal_state"] = first
		}
	}
	flat := engine.Flat(settings)
	text := func(names ...string) string {
		for _, n := range names {
			if s, _ := flat[n].(string); s != "" {
				return s
			}
		}
		return ""
	}
	whole := func(names ...string) int64 {
		for _, n := range names {
			if v, is := flat[n].(json.Number); is {
				if i, err := v.Int64(); err == nil && i > 0 {
					return i
				}
			}
		}
		return 0
	}
	off, _ := flat["disable_radix_cache"].(bool)
	info := engine.Info{
		Version:       text("version"),
		Model:         models.Model(v),
		KVPoolTokens:  whole("max_total_num_tokens", "internal_state.memory_usage.token_capacity"),
		Backend:       text("decode_attention_backend", "attention_backend"),
		PageSize:      int(whole("page_size")),
		KVDType:       text("kv_cache_dtype"),
		TP:            int(whole("tp_size")),
		DP:            int(whole("dp_size")),
		DCP:           int(whole("dcp_size", "decode_context_parallel_size")),
		TokenIDs:      true,
		ExactLength:   true,
		CachedCount:   true,
		EngineDefault: !off,
		Settings:      flat,
	}
	if shared, _ := flat["enable_dp_attention"].(bool); shared && info.DP > 1 { // attention is split over what is left of tp
		info.TP = max(info.TP/info.DP, 1)
	}
	if algorithm, says := settings["speculative_algorithm"]; says {
		speculates := algorithm != nil && algorithm != ""
		info.Speculative = &speculates
	}
	info.ContextLimit = models.Limit(info.Model)
	if info.ContextLimit == 0 {
		info.ContextLimit = int(whole("context_length", "max_req_input_len"))
	}
	if incremental, says := flat["incremental_streaming_output"].(bool); says && !incremental {
		info.Advice = append(info.Advice, "each event of a stream repeats the whole answer so far, which server and client pay for with every token: --incremental-streaming-output ends that")
	}
	return info, nil
}

// generate is the body of POST /generate.
type generate struct {
	InputIDs []int32  `json:"input_ids,omitempty"`
	Text     string   `json:"text,omitempty"`
	Sampling sampling `json:"sampling_params"`
	Stream   bool     `json:"stream"`
	ExtraKey string   `json:"extra_key,omitempty"` // a namespace of the prefix cache
}

type sampling struct {
	MaxNewTokens int     `json:"max_new_tokens"`
	Temperature  float64 `json:"temperature"` // sent also as 0: the model's own default may differ
	IgnoreEOS    bool    `json:"ignore_eos"`
}

// reply is one event of /generate, or its whole answer.
type reply struct {
	Text      string          `json:"text"`
	OutputIDs []int32         `json:"output_ids"`
	Error     json.RawMessage `json:"error"`
	Meta      meta            `json:"meta_info"`
}

type meta struct {
	Finish           json.RawMessage `json:"finish_reason"`
	PromptTokens     *int64          `json:"prompt_tokens"`
	CompletionTokens *int64          `json:"completion_tokens"`
	CachedTokens     *int64          `json:"cached_tokens"`
	Retractions      *int64          `json:"num_retractions"`
	VerifySteps      *int64          `json:"spec_verify_ct"`
	LatencyS         *float64        `json:"e2e_latency"`
}

// pull reads an event into an empty reply. Where it answers false,
// encoding/json has to.
func (m *reply) pull(data []byte) bool {
	r := pull.Of(data)
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "text":
			r.String(&m.Text)
		case "output_ids":
			r.Int32s(&m.OutputIDs)
		case "error":
			r.Raw(&m.Error)
		case "meta_info":
			m.Meta.pull(&r)
		default:
			r.Skip()
		}
	}
	return r.Done()
}

func (m *meta) pull(r *pull.Reader) {
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "finish_reason":
			r.Raw(&m.Finish)
		case "prompt_tokens":
			r.Int(&m.PromptTokens)
		case "completion_tokens":
			r.Int(&m.CompletionTokens)
		case "cached_tokens":
			r.Int(&m.CachedTokens)
		case "num_retractions":
			r.Int(&m.Retractions)
		case "spec_verify_ct":
			r.Int(&m.VerifySteps)
		case "e2e_latency":
			r.Float(&m.LatencyS)
		default:
			r.Skip()
		}
	}
}

// Generate implements engine.Engine.
func (e Engine) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	body := generate{
		Text: r.Text, Stream: r.Stream,
		Sampling: sampling{MaxNewTokens: r.MaxTokens, IgnoreEOS: true},
	}
	if r.NoReuse {
		body.ExtraKey = r.Salt
	}
	var p parser
	return c.Exchange(ctx, r, "/generate", engine.WithIDs{Fields: body, Name: "input_ids", IDs: r.IDs}, p.parse)
}

// parser turns events that hold everything so far, or only what is new, into
// parts. Which of the two it is shows in the first event after a token: its ids
// are as many as all tokens or as the new ones. Text, which no count describes,
// is everything so far if it continues the text before.
type parser struct {
	m       reply // of the event, and room for the ids of the next
	ids     engine.Pieces[int32]
	text    engine.Pieces[byte]
	counted int64
}

func (p *parser) parse(data []byte, s *event.Sample) (engine.Part, error) {
	m := &p.m
	*m = reply{OutputIDs: m.OutputIDs[:0]}
	if !m.pull(data) {
		*m = reply{}
		if err := json.Unmarshal(data, m); err != nil {
			return engine.Part{}, err
		}
	}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		return engine.Part{Failed: engine.ErrorMessage(data)}, nil
	}
	meta := m.Meta
	finish, failed := finishReason(meta.Finish)
	if failed != "" {
		s.Finish = finish
		return engine.Part{Failed: failed}, nil
	}
	engine.Count(&s.PromptTokens, meta.PromptTokens)
	engine.Count(&s.CachedTokens, meta.CachedTokens)
	engine.Count(&s.CompletionTokens, meta.CompletionTokens)
	engine.Count(&s.Retractions, meta.Retractions)
	engine.Count(&s.Steps, meta.VerifySteps)
	if meta.LatencyS != nil && *meta.LatencyS > 0 {
		s.ServerTotalS = meta.LatencyS
	}

	total := int64(-1)
	if meta.CompletionTokens != nil {
		total = *meta.CompletionTokens
	}
	part := engine.Part{Finish: finish}
	part.IDs = p.ids.New(m.OutputIDs, total)
	part.Text = m.Text[len(m.Text)-len(p.text.New([]byte(m.Text), -1)):]
	switch {
	case total >= 0:
		part.Tokens = int(max(0, total-p.counted))
		p.counted = max(p.counted, total)
	case len(part.IDs) > 0:
		part.Tokens = len(part.IDs)
	case part.Text != "":
		part.Tokens = -1
	}
	return part, nil
}

// finishReason reads {"type":"length",…}; older servers write the bare word. An
// abort is a failure with the server's words.
func finishReason(raw json.RawMessage) (finish, failed string) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", ""
	}
	var reason struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Status  any    `json:"status_code"`
	}
	if json.Unmarshal(raw, &reason) != nil {
		json.Unmarshal(raw, &reason.Type)
	}
	if reason.Type == "abort" {
		failed = "aborted by the server"
		if reason.Status != nil {
			failed += fmt.Sprintf(" (%v)", reason.Status)
		}
		if reason.Message != "" {
			failed += ": " + reason.Message
		}
	}
	return reason.Type, failed
}

// flushWait is how long the server is asked to wait for itself to be idle, in
// each try; versions before 2026 ignore it and answer at once.
const flushWait = 5 * time.Second

// flushWithin bounds all tries where the context does not.
const flushWithin = 30 * time.Second

// Flush implements engine.Flusher: POST /flush_cache, again with back-off while
// the server answers 400 because it is not idle. Only the status is a verdict:
// the body reads the same for both in some versions.
func (e Engine) Flush(ctx context.Context, c *engine.Client) event.Flush {
	ctx, cancel := context.WithTimeoutCause(ctx, flushWithin, fmt.Errorf("still refused after %v", flushWithin))
	defer cancel()
	f := event.Flush{Method: "POST /flush_cache"}
	start := time.Now()
	verdict := func(ok bool, detail string) event.Flush {
		f.OK, f.Detail, f.WaitS = &ok, detail, time.Since(start).Seconds()
		return f
	}
	path := "/flush_cache?timeout=" + strconv.Itoa(int(flushWait.Seconds()))
	for try := 0; ; try++ {
		f.Attempts++
		status, err := c.Do(ctx, flushWait+engine.AskWithin, http.MethodPost, path, nil, nil)
		if status != 0 {
			f.Status = status
		}
		switch {
		case status == http.StatusOK:
			return verdict(true, "")
		case status == http.StatusNotFound:
			return verdict(false, "the server has no route POST /flush_cache (404): it is not SGLang, or something before it hides the route")
		case status == http.StatusUnauthorized, status == http.StatusForbidden:
			return verdict(false, fmt.Sprintf("POST /flush_cache needs the admin key (%d): %v", status, err))
		case status == 0 && ctx.Err() == nil:
			return verdict(false, err.Error())
		case status != 0 && status != http.StatusBadRequest:
			return verdict(false, err.Error())
		}
		if status == http.StatusBadRequest {
			f.Detail = err.Error()
		}
		if stop := engine.BackOff(ctx, try); stop != nil {
			return verdict(false, strings.TrimPrefix(f.Detail+"; "+stop.Error(), "; "))
		}
	}
}

// Tokenize implements engine.Tokenizer.
func (e Engine) Tokenize(ctx context.Context, c *engine.Client, text string) ([]int32, error) {
	in := struct {
		Prompt     string `json:"prompt"`
		AddSpecial bool   `json:"add_special_tokens"`
	}{Prompt: text}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	_, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/tokenize", in, &out)
	return out.Tokens, err
}

// WaitIdle implements engine.Idler, from the gauges of /metrics, which are there
// only with --enable-metrics. (A flush with its timeout waits as well.)
func (e Engine) WaitIdle(ctx context.Context, c *engine.Client) error {
	return engine.WaitGauges(ctx, c, "sglang:num_running_reqs", "sglang:num_queue_reqs")
}
