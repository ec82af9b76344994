// Package ollama speaks to Ollama over its native interface: text in, lines of
// JSON out, counts and the server's own durations in the last one. A variant and
// a request come in; the environment that starts the server and a sample go out.
//
// Facts are from Ollama's server/routes.go, server/sched.go, llm and envconfig
// (v0.17.4, tried against it, and its main branch of August 2026). A model is
// loaded by the first request for it and loaded anew when an option of its
// runner changes, num_ctx among them: each request repeats the context length
// that the loaded model has. Ollama takes no token ids, has no tokenizer, cannot
// be made to go on after the model's own end, and does not say what its prefix
// cache gave.
package ollama

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/failure"
	"twopoint/schema"
)

// Engine is the adapter.
type Engine struct{}

// Name is ollama.
func (Engine) Name() string { return "ollama" }

// owned are the environment variables that the adapter sets, with the fields
// that they come from.
var owned = [][2]string{{"OLLAMA_HOST", "host and port"}, {"OLLAMA_CONTEXT_LENGTH", "context_length"}, {"OLLAMA_KEEP_ALIVE", "nothing: models stay loaded"}}

// Vet implements engine.Engine. ollama serve has no flags.
func (Engine) Vet(v schema.Variant) []engine.Problem {
	words, problems := engine.Flags{Negative: func(string) []string { return nil }}.Words(v.Args)
	if len(words) > 0 || len(problems) > 0 {
		problems = []engine.Problem{{Path: "args", Value: strings.Join(words, " "), Rule: "ollama serve takes no flags",
			Suggest: "its settings are environment variables: env: OLLAMA_FLASH_ATTENTION: \"1\""}}
	}
	for _, o := range owned {
		if value, set := v.Env[o[0]]; set {
			problems = append(problems, engine.Problem{Path: "env." + o[0], Value: value.Value, Rule: "is set by " + o[1]})
		}
	}
	problems = append(problems, engine.VetPlaceholders(v)...)
	problems = append(problems, engine.OnlyOne(v, "Ollama spreads a model over GPUs itself; env: OLLAMA_SCHED_SPREAD: \"1\" makes it use all")...)
	if v.URL == "" {
		problems = append(problems, engine.Missing("model_path", v.ModelPath, "ollama needs the name of a model, such as llama3.1:8b")...)
		if v.ServedName != "" {
			problems = append(problems, engine.Problem{Path: "served_name", Value: v.ServedName, Rule: "Ollama serves a model under its own name", Suggest: "leave it out"})
		}
	}
	return problems
}

// Args implements engine.Engine: ollama serve, or the variant's command in its
// place, and everything else by environment.
func (e Engine) Args(v schema.Variant, host string, port int) (argv, env []string, err error) {
	words, problems := engine.Flags{}.Words(v.Args)
	if len(words) > 0 {
		return nil, nil, errors.New("args: ollama serve takes no flags")
	}
	if err := engine.Refusal(problems); err != nil {
		return nil, nil, err
	}
	argv = []string{"ollama", "serve"}
	if len(v.Command) > 0 {
		argv = append([]string{}, v.Command...)
	}
	env = []string{"OLLAMA_HOST=" + net.JoinHostPort(host, strconv.Itoa(port)), "OLLAMA_KEEP_ALIVE=-1"}
	if v.ContextLength > 0 {
		env = append(env, "OLLAMA_CONTEXT_LENGTH="+strconv.Itoa(v.ContextLength))
	}
	return argv, env, nil
}

// loadWithin is how long a model may take to load in one try of Ready or a flush:
// Ollama gives up by itself after five minutes without progress.
const loadWithin = 10 * time.Minute

// generate is the body of POST /api/generate. raw leaves the prompt as it is,
// truncate and shift false make a prompt that is too long an error.
type generate struct {
	Model     string  `json:"model"`
	Prompt    string  `json:"prompt,omitempty"`
	Raw       bool    `json:"raw,omitempty"`
	Stream    bool    `json:"stream"`
	Truncate  bool    `json:"truncate"`
	Shift     bool    `json:"shift"`
	KeepAlive int     `json:"keep_alive"` // -1: for ever; 0: unload
	Options   options `json:"options"`
}

type options struct {
	NumCtx      int     `json:"num_ctx,omitempty"` // a change loads the model anew
	NumPredict  int     `json:"num_predict,omitempty"`
	Temperature float64 `json:"temperature"`
	Seed        int     `json:"seed"`
}

// reply is one line of an answer, or a whole answer. Durations are nanoseconds;
// those that are zero are left out.
type reply struct {
	Response   string          `json:"response"`
	Thinking   string          `json:"thinking"`
	Done       bool            `json:"done"`
	DoneReason string          `json:"done_reason"`
	Error      json.RawMessage `json:"error"`

	TotalNs  *int64 `json:"total_duration"`
	LoadNs   *int64 `json:"load_duration"`
	PromptN  *int64 `json:"prompt_eval_count"`
	PromptNs *int64 `json:"prompt_eval_duration"`
	EvalN    *int64 `json:"eval_count"`
	EvalNs   *int64 `json:"eval_duration"`
}

// loaded is a model in memory.
type loaded struct {
	Name          string         `json:"name"`
	ContextLength int            `json:"context_length"` // since 2025
	Size          json.Number    `json:"size"`
	SizeVRAM      json.Number    `json:"size_vram"`
	Digest        string         `json:"digest"`
	Details       map[string]any `json:"details"`
}

// errNoText: a prompt of token ids, or none, with which Ollama would only load
// the model.
var errNoText = errors.New("Ollama takes no token ids, and an empty prompt generates nothing")

func ps(ctx context.Context, c *engine.Client) ([]loaded, error) {
	var out struct{ Models []loaded }
	_, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/api/ps", nil, &out)
	return out.Models, err
}

// tagged is a model's name with its tag: latest where it has none.
func tagged(name string) string {
	if strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		return name
	}
	return name + ":latest"
}

// errNotLoaded: something has unloaded the model.
var errNotLoaded = errors.New("the model is not loaded")

// find returns the named model as it is loaded; an empty name stands for the
// only one.
func find(ctx context.Context, c *engine.Client, name string) (loaded, error) {
	models, err := ps(ctx, c)
	if err != nil {
		return loaded{}, err
	}
	if name == "" && len(models) > 1 {
		return loaded{}, fmt.Errorf("%d models are loaded, not one", len(models))
	}
	for _, m := range models {
		if name == "" || tagged(m.Name) == tagged(name) {
			return m, nil
		}
	}
	return loaded{}, errNotLoaded
}

func load(ctx context.Context, c *engine.Client, name string, numCtx int) error {
	var answer reply
	_, err := c.Do(ctx, loadWithin, http.MethodPost, "/api/generate", generate{Model: name, KeepAlive: -1, Options: options{NumCtx: numCtx}}, &answer)
	return err
}

// want is the model that the variant names; a server that we do not start may
// be asked for whatever it has loaded, or else lists first.
func want(ctx context.Context, c *engine.Client, v schema.Variant) (string, error) {
	for _, name := range []string{v.ServedName, v.ModelPath} {
		if name != "" {
			return name, nil
		}
	}
	if m, err := find(ctx, c, ""); err == nil {
		return m.Name, nil
	}
	var tags struct{ Models []loaded }
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/api/tags", nil, &tags); err != nil {
		return "", err
	}
	if len(tags.Models) == 0 {
		return "", fmt.Errorf("%w: the server has no model", engine.ErrNotYet)
	}
	return tags.Models[0].Name, nil
}

// Ready implements engine.Engine: the model is loaded with the context length
// that timed requests will name, and answers one token.
func (e Engine) Ready(ctx context.Context, c *engine.Client, v schema.Variant) error {
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/api/version", nil, nil); err != nil {
		return engine.NotYet(err)
	}
	name, err := want(ctx, c, v)
	if err != nil {
		return engine.NotYet(err)
	}
	if err := load(ctx, c, name, v.ContextLength); err != nil {
		return engine.NotYet(err)
	}
	m, err := find(ctx, c, name)
	if err != nil {
		return engine.NotYet(err)
	}
	if m.ContextLength != v.ContextLength && v.ContextLength > 0 && m.ContextLength > 0 {
		return fmt.Errorf("the model was loaded with a context of %d tokens, context_length says %d: Ollama takes no more than the model was trained for",
			m.ContextLength, v.ContextLength)
	}
	// A context length that Ollama chose itself is said in so many words from here
	// on: where it had cut its own choice down, that is one more load.
	if err := load(ctx, c, name, m.ContextLength); err != nil {
		return engine.NotYet(err)
	}
	return warm(ctx, c, name, m.ContextLength, 1)
}

// warm has a few tokens generated: what runs first after a load is slow.
func warm(ctx context.Context, c *engine.Client, name string, numCtx, n int) error {
	var answer reply
	_, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/api/generate",
		generate{Model: name, Prompt: "1", Raw: true, KeepAlive: -1, Options: options{NumCtx: numCtx, NumPredict: n}}, &answer)
	if err != nil {
		return engine.NotYet(err)
	}
	if !answer.Done || answer.EvalN == nil || *answer.EvalN < 1 {
		return errors.New("the server answered a request for a token without one")
	}
	return nil
}

// Info implements engine.Engine. Ollama reports neither its attention kernel nor
// the type of its KV cache.
func (e Engine) Info(ctx context.Context, c *engine.Client, v schema.Variant) (engine.Info, error) {
	name, err := want(ctx, c, v)
	if err != nil {
		return engine.Info{}, err
	}
	m, err := find(ctx, c, name)
	if err != nil {
		return engine.Info{}, fmt.Errorf("%s: %w", name, err)
	}
	var version struct{ Version string }
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/api/version", nil, &version); err != nil {
		return engine.Info{}, err
	}
	settings := map[string]any{"digest": m.Digest, "details": m.Details}
	delete(m.Details, "parent_model") // a path of the machine
	for k, n := range map[string]json.Number{"size": m.Size, "size_vram": m.SizeVRAM} {
		if n != "" {
			settings[k] = n
		}
	}
	var show struct {
		Model map[string]any `json:"model_info"`
	}
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodPost, "/api/show", map[string]string{"model": m.Name}, &show); err == nil {
		settings["model_info"] = show.Model
	}
	info := engine.Info{
		Version:       version.Version,
		Model:         m.Name,
		ContextLimit:  m.ContextLength,
		EngineDefault: true,
		FlushReloads:  true,
		Settings:      engine.Flat(settings),
	}
	if info.ContextLimit == 0 {
		info.ContextLimit = v.ContextLength
	}
	return info, nil
}

// reloadS is the load_duration above which the model was loaded within a request.
// It is never zero: of a model that is there it is the time to find that out, 1
// to 40 ms where it was tried, and to start the runner of the smallest model took
// 300 ms.
const reloadS = 0.2

// maxRepeats is after how many equal pieces Ollama ends an answer without its
// last line (llm/server.go).
const maxRepeats = 30

// Generate implements engine.Engine. The context length that the model is loaded
// with is asked for before the clock starts.
func (Engine) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	m, err := find(ctx, c, r.Model)
	var status *engine.StatusError
	if r.Text == "" {
		err = errNoText
	}
	if errors.As(err, &status) || errors.Is(err, errNotLoaded) || errors.Is(err, errNoText) { // of any other the exchange says more
		s := event.Sample{ContextRequested: len(r.IDs), TokensRequested: r.MaxTokens, Start: time.Now().UTC(),
			Error: string(failure.HTTPError), Transport: string(failure.HTTP), Detail: c.Excerpt(err.Error())}
		if status != nil {
			s.HTTPStatus = status.Status
		}
		return s
	}
	name := r.Model
	if name == "" {
		name = m.Name
	}
	body := generate{Model: name, Prompt: r.Text, Raw: true, Stream: r.Stream, KeepAlive: -1,
		Options: options{NumCtx: m.ContextLength, NumPredict: r.MaxTokens}}
	var p parser
	s := c.Exchange(ctx, r, "/api/generate", body, p.parse)
	if s.Error == string(failure.StreamCut) && p.repeats >= maxRepeats {
		s.Detail += fmt.Sprintf("; the last %d pieces were the same, at which Ollama ends an answer: use a prompt of text, or b of at most %d", p.repeats, maxRepeats)
	}
	return s
}

type parser struct {
	last    string
	repeats int
}

func (p *parser) parse(data []byte, s *event.Sample) (engine.Part, error) {
	var m reply
	if err := json.Unmarshal(data, &m); err != nil {
		return engine.Part{}, err
	}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		return engine.Part{Failed: engine.ErrorMessage(data)}, nil
	}
	part := engine.Part{Text: m.Thinking + m.Response, Done: m.Done}
	if part.Text != "" {
		part.Tokens = -1 // a piece is a token, or several that make a character
		if piece := strings.TrimSpace(part.Text); piece == p.last {
			p.repeats++
		} else {
			p.last, p.repeats = piece, 1
		}
	}
	if !m.Done {
		return part, nil
	}
	if m.DoneReason == "load" || m.DoneReason == "unload" {
		return engine.Part{Failed: "the server took the request for one to " + m.DoneReason + " the model"}, nil
	}
	part.Finish = m.DoneReason
	engine.Count(&s.PromptTokens, m.PromptN)
	engine.Count(&s.CompletionTokens, m.EvalN)
	s.ServerTotalS = seconds(m.TotalNs)
	s.ServerPrefillS = seconds(m.PromptNs)
	if l := seconds(m.LoadNs); l != nil && *l > reloadS {
		s.LoadS = l
	}
	// eval_duration begins when the first token, which the prompt yields, is there:
	// it spans eval_count − 1 steps, and is left out of an answer of one token.
	s.ServerDecodeSPerTok = engine.PerToken(seconds(m.EvalNs), m.EvalN)
	return part, nil
}

// seconds is a duration that the server reports, nil where it does not.
func seconds(ns *int64) *float64 {
	if ns == nil || *ns <= 0 {
		return nil
	}
	s := float64(*ns) / 1e9
	return &s
}

// Flush implements engine.Flusher: Ollama has no way to empty its cache, so the
// model is unloaded and loaded again with the same context length, and generates
// a few tokens. Which model, is clear only while no other is loaded.
func (Engine) Flush(ctx context.Context, c *engine.Client) event.Flush {
	f := event.Flush{Method: "POST /api/generate keep_alive 0, and load", Attempts: 1}
	start := time.Now()
	verdict := func(ok bool, detail string) event.Flush {
		f.OK, f.Detail, f.WaitS = &ok, detail, time.Since(start).Seconds()
		return f
	}
	m, err := find(ctx, c, "")
	if err != nil {
		return verdict(false, err.Error())
	}
	var answer reply
	status, err := c.Do(ctx, engine.TokenWithin, http.MethodPost, "/api/generate", generate{Model: m.Name}, &answer)
	f.Status = status
	switch {
	case err != nil:
		return verdict(false, err.Error())
	case answer.DoneReason != "unload":
		return verdict(false, fmt.Sprintf("the server did not unload the model: done_reason %q", answer.DoneReason))
	}
	// The answer comes before the deed, and a load in between is served by the
	// runner that is about to go.
	for try := 0; ; try++ {
		if _, err := find(ctx, c, m.Name); errors.Is(err, errNotLoaded) {
			break
		} else if err != nil {
			return verdict(false, err.Error())
		}
		if err := engine.BackOff(ctx, try); err != nil {
			return verdict(false, "the model is still loaded; "+err.Error())
		}
	}
	if err := load(ctx, c, m.Name, m.ContextLength); err != nil {
		return verdict(false, err.Error())
	}
	if err := warm(ctx, c, m.Name, m.ContextLength, 8); err != nil {
		return verdict(false, err.Error())
	}
	return verdict(true, "")
}
