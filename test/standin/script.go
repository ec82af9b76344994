package standin

import (
	"encoding/json"
	"fmt"
)

// Script is what the server pretends to be and to do. Its zero value, with a
// face, behaves well on the clock of the case log: prefill at 10,000 tok/s, 20 ms
// a token, the first token out of the prefill pass. It is JSON for the command.
type Script struct {
	Face  string `json:"face,omitempty"`  // sglang | vllm | openai | llamacpp | ollama | trtllm
	Model string `json:"model,omitempty"` // name; "": standin
	Key   string `json:"key,omitempty"`   // the bearer token that it wants
	Limit int    `json:"limit,omitempty"` // prompt and answer together, tokens; 0: 1,048,576
	Word  int    `json:"word,omitempty"`  // tokens of a word of text; 0: 1

	Clock  Clock  `json:"clock"`
	Cache  Cache  `json:"cache"`
	Counts Counts `json:"counts"`
	Answer Answer `json:"answer"`
	Stream Stream `json:"stream"`
	Flush  Flush  `json:"flush"`
	Life   Life   `json:"life"`

	// When changes the script for some requests: the later ones win.
	When []When `json:"when,omitempty"`
}

// When lays Then, a part of a script in JSON, over the script for requests that
// all the conditions hold for; those that are 0 hold for all.
type When struct {
	MinContext int `json:"min_context,omitempty"` // prompt tokens
	MaxContext int `json:"max_context,omitempty"`
	MinTokens  int `json:"min_tokens,omitempty"` // tokens asked for
	MaxTokens  int `json:"max_tokens,omitempty"`
	From       int `json:"from,omitempty"` // number of the request, from 1
	To         int `json:"to,omitempty"`
	Every      int `json:"every,omitempty"` // each so manieth request

	Then json.RawMessage `json:"then"`
}

// Clock is the time of a request:
//
//	(prompt − cached) / PrefillTokS + ExtraS + Σ steps
//
// a step being StepS + StepPerContextS·prompt. The first token comes at the end
// of the prefill, every step brings TokensPerStep more. Requests run beside each
// other at full speed unless the last three fields say otherwise.
type Clock struct {
	PrefillTokS     float64 `json:"prefill_tok_s,omitempty"` // 0: 10,000
	StepS           float64 `json:"step_s,omitempty"`        // 0: 0.020
	StepPerContextS float64 `json:"step_per_context_s,omitempty"`
	ColdStepS       float64 `json:"cold_step_s,omitempty"`     // in the place of StepS for a prompt that was not cached; 0: StepS
	TokensPerStep   int     `json:"tokens_per_step,omitempty"` // speculation; 0: 1

	Seed           uint64  `json:"seed,omitempty"`
	PrefillJitterS float64 `json:"prefill_jitter_s,omitempty"` // standard deviation, normal
	StepJitterS    float64 `json:"step_jitter_s,omitempty"`    // of every step

	DriftPerRequest float64 `json:"drift_per_request,omitempty"` // every step is longer by this share, request after request
	DriftMost       float64 `json:"drift_most,omitempty"`        // up to this share

	ExtraS        float64 `json:"extra_s,omitempty"`         // before the first token of each request
	AfterFlushS   float64 `json:"after_flush_s,omitempty"`   // of the first request after a flush
	FlushOnce     bool    `json:"flush_once,omitempty"`      // only after the first flush of the process
	NewContextS   float64 `json:"new_context_s,omitempty"`   // of the first request at each prompt length
	ForgetOnFlush bool    `json:"forget_on_flush,omitempty"` // a flush makes all lengths new

	StepPerRunningS float64 `json:"step_per_running_s,omitempty"` // a step is longer by this for each other request under way
	SerialPrefill   bool    `json:"serial_prefill,omitempty"`     // one prefill at a time
	MaxRunning      int     `json:"max_running,omitempty"`        // more wait in a queue; 0: no bound

	// Instant has no clock at all: answers are made ready first and leave as fast
	// as the connection takes them.
	Instant bool `json:"instant,omitempty"`
}

// Cache is the prefix cache.
type Cache struct {
	Off     bool   `json:"off,omitempty"`
	Block   int    `json:"block,omitempty"`   // tokens; 0: 1
	Report  string `json:"report,omitempty"`  // "": the count | null | omit
	Claim   *int64 `json:"claim,omitempty"`   // the count that is reported, whatever is true
	Workers int    `json:"workers,omitempty"` // requests go round so many caches, of which a flush reaches the first; 0: 1
}

// Counts is what the server says of tokens.
type Counts struct {
	NoUsage       bool `json:"no_usage,omitempty"`        // neither prompt nor answer is counted
	NoStreamUsage bool `json:"no_stream_usage,omitempty"` // only answers that do not stream are counted
	NoPrompt      bool `json:"no_prompt,omitempty"`
	Prompt        int  `json:"prompt,omitempty"`     // the prompt count that is reported
	PromptOff     int  `json:"prompt_off,omitempty"` // added to the prompt count, and to the prefill
	Answer        int  `json:"answer,omitempty"`     // the answer count that is reported
}

// Answer is what is generated.
type Answer struct {
	Stop       int  `json:"stop,omitempty"`        // the model ends by itself after so many tokens
	Extra      int  `json:"extra,omitempty"`       // tokens beyond those asked for
	NeedleLost bool `json:"needle_lost,omitempty"` // a planted fact is not found again

	Vary int `json:"vary,omitempty"` // from this token on the output differs from request to request

	// In place of an answer:
	Status   int    `json:"status,omitempty"` // with Body
	Body     string `json:"body,omitempty"`
	Type     string `json:"type,omitempty"` // content type of Body
	Location string `json:"location,omitempty"`

	Refuse       []string `json:"refuse,omitempty"`        // fields of the request that are refused by name
	RefuseStatus int      `json:"refuse_status,omitempty"` // 0: 400
	NoRoute      []string `json:"no_route,omitempty"`      // paths that do not exist
}

// Stream is how an answer travels.
type Stream struct {
	PerChunk  int    `json:"per_chunk,omitempty"`  // tokens in an event; 0: those of a step
	Fragments int    `json:"fragments,omitempty"`  // text events a token, without ids
	Delta     bool   `json:"delta,omitempty"`      // sglang: events hold what is new, not everything so far
	NoIDs     bool   `json:"no_ids,omitempty"`     // text alone
	Reasoning string `json:"reasoning,omitempty"`  // field of a chat answer that the tokens come in
	EmptyRole bool   `json:"empty_role,omitempty"` // an empty first delta, at once

	Preamble string `json:"preamble,omitempty"`  // raw bytes first
	Comments bool   `json:"comments,omitempty"`  // comments every 5 ms of the prefill and of a stall
	Field    string `json:"field,omitempty"`     // "": "data: "
	EOL      string `json:"eol,omitempty"`       // "": "\n"
	TwoLines bool   `json:"two_lines,omitempty"` // the second event has two data lines
	Padding  int    `json:"padding,omitempty"`   // bytes of filler in the second event
	Bytewise bool   `json:"bytewise,omitempty"`  // every byte leaves alone
	Held     int    `json:"held,omitempty"`      // a proxy lets go so many bytes at a time; −1: all at the end
	Flood    int64  `json:"flood,omitempty"`     // bytes without an end of line after the first event
	Gzip     bool   `json:"gzip,omitempty"`      // compressed, though nobody asked
	Type     string `json:"type,omitempty"`      // content type; "": the right one
	Endless  bool   `json:"endless,omitempty"`   // tokens without end

	End     string `json:"end,omitempty"`      // "" proper | no-done | done-only | null-finish | early | fin | reset | reset-header | linger
	Cut     int    `json:"cut,omitempty"`      // tokens before an end of early, fin or reset
	Stall   int    `json:"stall,omitempty"`    // nothing after so many tokens, while the connection stays; −1: not even one
	ErrorAt int    `json:"error_at,omitempty"` // an error event in place of this token, from 1
	Error   string `json:"error,omitempty"`    // its message; "": CUDA out of memory
	Abort   string `json:"abort,omitempty"`    // sglang: finish with an abort and this message
}

// Flush is how the prefix cache is emptied.
type Flush struct {
	NoRoute bool    `json:"no_route,omitempty"`
	BusyS   float64 `json:"busy_s,omitempty"`  // refused for so long after an answer
	Refuse  int     `json:"refuse,omitempty"`  // so many are refused; −1: all
	Status  int     `json:"status,omitempty"`  // of a refusal; 0: the engine's own
	Text    string  `json:"text,omitempty"`    // of a refusal
	Body    string  `json:"body,omitempty"`    // of a success; vllm and openai: " " says nothing
	Lies    bool    `json:"lies,omitempty"`    // says yes and does nothing
	TakesS  float64 `json:"takes_s,omitempty"` // until it answers
}

// Life is the server's own. LogLine, Exit and Kill need a process of its own.
type Life struct {
	LoadS       float64 `json:"load_s,omitempty"`       // until it is ready
	LoadAnswers int     `json:"load_answers,omitempty"` // requests that are told so before it is ready
	Listen      string  `json:"listen,omitempty"`       // "": as the engine does | early: the port is open at once
	ModelsEarly bool    `json:"models_early,omitempty"` // the list of models is there before it is ready
	NoModels    bool    `json:"no_models,omitempty"`    // an empty list, for ever
	LoadLog     string  `json:"load_log,omitempty"`     // a line of the log, ten times while it loads
	ExitAtS     float64 `json:"exit_at_s,omitempty"`    // ends by itself after so long, with Exit
	IdleCloseS  float64 `json:"idle_close_s,omitempty"` // idle connections are closed after so long

	// What a request does to the server, after LogLine was written.
	LogLine string `json:"log_line,omitempty"`
	Exit    *int   `json:"exit,omitempty"` // ends with this status
	Kill    bool   `json:"kill,omitempty"` // dies of signal 9
	Dead    bool   `json:"dead,omitempty"` // answers 500 to this and all later requests, its health is 503
	Hang    bool   `json:"hang,omitempty"` // answers neither this nor any later request; its health is 200

	// Lock is a file that a process of another session keeps, which ignores TERM.
	// A server that finds it does not start.
	Lock string `json:"lock,omitempty"`
}

func (s Script) withDefaults() Script {
	set := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&s.Clock.PrefillTokS, 10_000)
	set(&s.Clock.StepS, 0.020)
	for p, v := range map[*int]int{&s.Limit: 1 << 20, &s.Word: 1, &s.Clock.TokensPerStep: 1, &s.Cache.Block: 1, &s.Cache.Workers: 1, &s.Answer.RefuseStatus: 400} {
		if *p == 0 {
			*p = v
		}
	}
	if s.Model == "" {
		s.Model = "standin"
	}
	if s.Face == "" {
		s.Face = "sglang"
	}
	return s
}

// at is the script for one request.
func (s Script) at(a *ask) (Script, error) {
	out := s
	for _, w := range s.When {
		switch {
		case len(a.ids) < w.MinContext, w.MaxContext > 0 && len(a.ids) > w.MaxContext,
			a.max < w.MinTokens, w.MaxTokens > 0 && a.max > w.MaxTokens,
			a.number < w.From, w.To > 0 && a.number > w.To, w.Every > 0 && a.number%w.Every != 0:
			continue
		}
		if err := json.Unmarshal(w.Then, &out); err != nil {
			return s, fmt.Errorf("when: then: %w", err)
		}
	}
	out = out.withDefaults()
	return out, nil
}

// Then is a part of a script as When wants it. It panics on what is no JSON.
func Then(text string) json.RawMessage {
	if !json.Valid([]byte(text)) {
		panic("not JSON: " + text)
	}
	return json.RawMessage(text)
}
