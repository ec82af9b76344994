// Package vllm speaks to vLLM's server over OpenAI's completion route with the
// fields that vLLM adds: token ids in, a stream of token ids out, counts in the
// last event. A variant and a request come in; an argument vector and a sample
// go out. What a single answer does not say (steps of speculation, preemptions)
// comes from the counters of /metrics, read before and after the request, never
// within it.
//
// Facts are from vLLM's entrypoints/openai/completion (protocol.py, serving.py),
// entrypoints/serve/dev, v1/metrics/loggers.py, v1/spec_decode/metrics.py and
// v1/core/sched/scheduler.py (2025 and 2026).
package vllm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/openai"
	"twopoint/schema"
)

// Engine is the adapter. What it does not do itself (flushing, tokenising) is
// as openai does it.
type Engine struct{ openai.Engine }

// Name is vllm.
func (Engine) Name() string { return "vllm" }

// owned are the flags of typed fields, with their aliases (arg_utils.py).
var owned = map[string]string{
	"--model": "model_path", "--model-tag": "model_path",
	"--served-model-name": "served_name",
	"--max-model-len":     "context_length",
	"-tp":                 "tp", "--tensor-parallel-size": "tp",
	"-dp": "dp", "--data-parallel-size": "dp",
	"-pp": "pp", "--pipeline-parallel-size": "pp",
	"-dcp": "dcp", "--decode-context-parallel-size": "dcp",
	"--host": "host", "--port": "port",
}

// negative is the --no- form that every switch has.
func negative(flag string) []string {
	if name, long := strings.CutPrefix(flag, "--"); long {
		return []string{"--no-" + name}
	}
	return nil
}

var flags = engine.Flags{Owned: owned, Negative: negative}

// Vet implements engine.Engine.
func (Engine) Vet(v schema.Variant) []engine.Problem {
	_, problems := flags.Words(v.Args)
	problems = append(problems, engine.VetPlaceholders(v)...)
	if v.URL == "" {
		problems = append(problems, engine.Missing("model_path", v.ModelPath, "vllm needs a model to launch with")...)
	}
	return problems
}

// details has the server say with each answer how many prompt tokens came from
// its cache.
const details = "--enable-prompt-tokens-details"

// Args implements engine.Engine. The variant's command, if any, stands in place
// of vllm serve; the model and the flags follow either. Unless flush is "never",
// the server is told to report cached tokens and to open the route that empties
// its prefix cache.
func (Engine) Args(v schema.Variant, host string, port int) (argv, env []string, err error) {
	words, problems := flags.Words(v.Args)
	if err := engine.Refusal(problems); err != nil {
		return nil, nil, err
	}
	argv = []string{"vllm", "serve"}
	if len(v.Command) > 0 {
		argv = slices.Clone(v.Command)
	}
	if v.ModelPath != "" {
		argv = append(argv, v.ModelPath)
	}
	if v.ServedName != "" {
		argv = append(argv, "--served-model-name", v.ServedName)
	}
	argv = append(argv, "--host", host, "--port", strconv.Itoa(port))
	for _, f := range []struct {
		flag string
		n    int
	}{
		{"--max-model-len", v.ContextLength}, {"--tensor-parallel-size", v.TP}, {"--data-parallel-size", v.DP},
		{"--pipeline-parallel-size", v.PP}, {"--decode-context-parallel-size", v.DCP},
	} {
		if f.n > 0 {
			argv = append(argv, f.flag, strconv.Itoa(f.n))
		}
	}
	if v.Flush != "never" {
		env = []string{"VLLM_SERVER_DEV_MODE=1"}
		if !slices.Contains(words, details) && !slices.Contains(words, negative(details)[0]) {
			argv = append(argv, details)
		}
	}
	return append(argv, words...), env, nil
}

// Ready implements engine.Engine: the engine behind the server is alive, has the
// expected model and answers one token. /health alone does not generate; a
// front end may lack it.
func (e Engine) Ready(ctx context.Context, c *engine.Client, v schema.Variant) error {
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/health", nil, nil); err != nil && !engine.NoRoute(err) {
		return engine.NotYet(err)
	}
	return e.Engine.Ready(ctx, c, v)
}

// Info implements engine.Engine. The KV cache is described by the labels of the
// metric cache_config_info. vLLM names the attention backend that it chose in
// its log alone; one that was asked for stands in /server_info, where the server
// has that route.
func (e Engine) Info(ctx context.Context, c *engine.Client, v schema.Variant) (engine.Info, error) {
	info, err := e.Engine.Info(ctx, c, v)
	if err != nil {
		return info, err
	}
	refused := c.Refused()
	info.ExactLength = !slices.Contains(refused, "ignore_eos")
	info.EngineDefault = true

	var server struct {
		Config any `json:"vllm_config"` // older: one long text
	}
	if _, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/server_info?config_format=json", nil, &server); err == nil {
		if config, is := server.Config.(map[string]any); is {
			for k, v := range engine.Flat(config) {
				info.Settings[k] = v
			}
			if spec, says := config["speculative_config"]; says {
				speculates := spec != nil
				info.Speculative = &speculates
			}
		}
	}
	info.Backend, _ = info.Settings["attention_config.backend"].(string)
	parallel := func(name string) int { return int(whole(fmt.Sprint(info.Settings["parallel_config."+name]))) }
	info.TP, info.DP, info.DCP = parallel("tensor_parallel_size"), parallel("data_parallel_size"), parallel("decode_context_parallel_size")

	if m, err := scrape(ctx, c); err == nil {
		for k, v := range m.cache {
			if k != "engine" && v != "None" {
				info.Settings["cache."+k] = v
			}
		}
		info.PageSize = int(whole(m.cache["block_size"]))
		info.KVDType = m.cache["cache_dtype"]
		info.KVPoolTokens = whole(m.cache["kv_cache_size_tokens"])
		if info.KVPoolTokens == 0 { // not said before 2026, and then wrong for models with several kinds of layers
			info.KVPoolTokens = whole(m.cache["num_gpu_blocks"]) * int64(info.PageSize)
		}
		info.EngineDefault = !strings.EqualFold(m.cache["enable_prefix_caching"], "false")
		if info.Speculative == nil && m.cache != nil { // the counter is registered with speculation alone
			_, counts := m.sum["vllm:spec_decode_num_drafts_total"]
			info.Speculative = &counts
		}
	}
	probe, cancel := context.WithTimeout(ctx, engine.TokenWithin)
	defer cancel()
	s := e.Generate(probe, c, engine.Request{Model: info.Model, Text: "1", MaxTokens: 2, Stream: true})
	if s.Error == "" && s.ServerPrefillS == nil {
		info.Advice = append(info.Advice, "the server does not report its own times of a request: vLLM of 2026 does with --enable-per-request-metrics")
	}
	return info, nil
}

// whole is a positive number in text, or 0.
func whole(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0
	}
	return n
}

// request is the object "metrics" of an answer, with
// --enable-per-request-metrics. Times are of the engine: first token less
// scheduling, last token less first, scheduling less arrival. verify is there for
// single sequences under speculation.
type request struct {
	FirstTokenMs *float64 `json:"time_to_first_token_ms"`
	DecodeMs     *float64 `json:"generation_time_ms"`
	QueueMs      *float64 `json:"queue_time_ms"`
	Verify       *struct {
		Steps    *int64 `json:"num_spec_steps"`
		Accepted *int64 `json:"num_accepted_draft_tokens"`
	} `json:"speculative_decoding"`
}

// times keeps the engine's own times of a request.
func (r request) times(s *event.Sample) {
	first, decode := engine.Seconds(r.FirstTokenMs, 1e3), engine.Seconds(r.DecodeMs, 1e3)
	s.ServerPrefillS = first
	s.ServerDecodeSPerTok = engine.PerToken(decode, s.CompletionTokens)
	if q := r.QueueMs; first != nil && decode != nil && q != nil && *q >= 0 { // nothing need be in the queue
		if total := *q/1e3 + *first + *decode; total < 1e9 {
			s.ServerTotalS = &total
		}
	}
}

// Generate implements engine.Engine. Of simultaneous requests only what each
// answer itself says is taken: the counters are the server's, not a request's,
// and reading them would disturb those that still run.
func (e Engine) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	r.Salt = salt(r.Salt)
	var own request
	ask := openai.Engine{Metrics: func(raw json.RawMessage, s *event.Sample) {
		if own = (request{}); json.Unmarshal(raw, &own) == nil {
			own.times(s)
		}
	}}
	alone := r.Begin == nil
	var before metrics
	if alone {
		before, _ = scrape(ctx, c)
		_, counts := before.sum[finished]
		alone = counts && before.idle()
	}
	s := ask.Generate(ctx, c, r)
	if s.Error != "" {
		return s
	}
	var drafts, accepted *int64
	if v := own.Verify; v != nil && v.Steps != nil && v.Accepted != nil {
		drafts, accepted = v.Steps, v.Accepted
	}
	if alone {
		if after, ok := settled(ctx, c, before); ok {
			if n, ok := after.delta(before, "vllm:num_preemptions_total"); ok {
				s.Retractions = &n
			}
			d, hasD := after.delta(before, "vllm:spec_decode_num_drafts_total")
			a, hasA := after.delta(before, "vllm:spec_decode_num_accepted_tokens_total")
			if drafts == nil && hasD && hasA {
				drafts, accepted = &d, &a
			}
		} else {
			s.Notes = append(s.Notes, "the server's counters do not show this request alone: they say nothing of its steps and preemptions")
		}
	}
	if drafts != nil && s.CompletionTokens != nil {
		if n, ok := steps(*s.CompletionTokens, *drafts, *accepted, len(s.ChunkS)); ok {
			s.Steps = &n
		} else {
			s.Notes = append(s.Notes, "some steps had no draft, and vLLM counts those that had one: the number of steps is not known")
		}
	}
	return s
}

// settleTries are readings of the counters after a request, with back-off about
// three seconds: they follow the last token by a moment.
const settleTries = 8

// settled reads the counters until one request more has ended than before. Were
// it two, or is one running, somebody else's is among the rest.
func settled(ctx context.Context, c *engine.Client, before metrics) (metrics, bool) {
	for try := range settleTries {
		after, err := scrape(ctx, c)
		if err != nil {
			return metrics{}, false
		}
		n, ok := after.delta(before, finished)
		if !ok || n > 1 {
			return metrics{}, false
		}
		if n == 1 && after.idle() {
			return after, true
		}
		if engine.BackOff(ctx, try) != nil {
			break
		}
	}
	return metrics{}, false
}

// steps is the number of decode steps in which n tokens were generated, where it
// follows from what vLLM counts. Its scheduler counts a step only if it had a
// draft to verify (update_from_output); prompt lookup has none for many steps. A
// verified step yields the accepted tokens and one more, any other yields one,
// and the prefill the first. Of the last step's tokens those beyond n are dropped
// but counted as accepted, so that
//
//	n − 1 = drafts + accepted + steps without a draft − dropped
//
// has two unknowns. Steps are as many as drafts if these account for all the
// tokens and no more pieces arrived than there were drafts: a step sends one
// piece at most. Without an accepted token each step has yielded one.
func steps(n, drafts, accepted int64, pieces int) (int64, bool) {
	switch {
	case n < 1 || drafts < 0 || accepted < 0:
		return 0, false
	case accepted == 0:
		return n - 1, true
	case drafts+accepted < n-1, int64(pieces)-1 > drafts:
		return 0, false
	}
	return drafts, true
}

// salt is a cache salt that vLLM takes: at most 128 bytes, none of @, /, \ and
// NUL (validate_cache_salt). Any other is replaced by its hash.
func salt(s string) string {
	if len(s) <= 128 && !strings.ContainsAny(s, "@/\\\x00") {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// WaitIdle implements engine.Idler.
func (Engine) WaitIdle(ctx context.Context, c *engine.Client) error {
	return engine.WaitGauges(ctx, c, "vllm:num_requests_running", "vllm:num_requests_waiting")
}
