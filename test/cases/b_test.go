package cases

import (
	"fmt"
	"strings"
	"testing"

	"twopoint/test/standin"
)

// Counting tokens.

// reported is quick for servers whose counts are taken as they are.
const reported = quick + "\n\tprompt: length: \"reported\""

func TestC07TheModelStoppedEarly(t *testing.T) {
	t.Parallel()
	t.Run("at 9 of 17, counts as reported", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Answer: standin.Answer{Stop: 9}})
		o := measure(t, spec(url, "openai", reported))
		p := o.ok(t, "s/1000/1") // 50 tok/s by the 9 tokens, not 100 by the 17
		if !has(p.Doubts, "short_generation") {
			t.Errorf("doubts %s", p.Doubts)
		}
		for _, s := range o.samples("s/1000/1", "measure", "b") {
			if *s.CompletionTokens != 9 || *s.TokensRequested != 17 || s.Finish != "stop" {
				t.Errorf("%d of %d tokens, finish %q", *s.CompletionTokens, *s.TokensRequested, s.Finish)
			}
		}
	})
	t.Run("at 9 of 17, where the engine can be forced", func(t *testing.T) {
		t.Parallel()
		srv, url := standin.Open(t, standin.Script{Answer: standin.Answer{Stop: 9}})
		measure(t, spec(url, "sglang", quick)).status(t, "s/1000/1", "invalid", "short_generation")
		for _, body := range srv.Bodies() {
			if sampling, _ := body["sampling_params"].(map[string]any); sampling["ignore_eos"] != true {
				t.Errorf("the request does not say ignore_eos: %v", sampling)
			}
		}
	})
	t.Run("after the first token", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Answer: standin.Answer{Stop: 1}})
		o := measure(t, spec(url, "openai", reported))
		p := o.status(t, "s/1000/1", "invalid", "no_second_point")
		near(t, "prefill_tok_s_raw", p.PrefillTokRaw, 10_000)
		near(t, "ttft_s_raw", p.TTFTSRaw, 0.1)
	})
}

func TestC08OneChunkIsNotOneToken(t *testing.T) {
	t.Parallel()
	// The first token, then up to four every 60 ms.
	script := func(face string) standin.Script {
		return standin.Script{Face: face, Clock: standin.Clock{StepS: 0.060, TokensPerStep: 4}}
	}
	for _, c := range []struct {
		b     int
		tokS  float64
		doubt bool
	}{{17, 66.7, true}, {18, 56.7, true}, {129, 66.7, false}, {130, 129 / 33.0 / 0.060, false}} {
		for _, face := range []string{"sglang", "vllm"} {
			t.Run(fmt.Sprintf("b=%d/%s", c.b, face), func(t *testing.T) {
				t.Parallel()
				_, url := standin.Open(t, script(face))
				o := measure(t, spec(url, face, fmt.Sprintf(`method: two_point: {a: 1, b: %d, warmup: %v, repeats: {min: 3, max: 3, target: 0.5}}`, c.b, c.b < 100)))
				p := o.status(t, "s/1000/1", "ok", "")
				near(t, "decode_tok_s", p.DecodeTokS, c.tokS, p.DecodeTokSLo, p.DecodeTokSHi)
				if has(p.Doubts, "few_steps") != c.doubt {
					t.Errorf("doubts %s: %s", p.Doubts, p.DoubtDetail)
				}
				near(t, "s_per_step", p.SPerStep, 0.060, p.SPerStepLo, p.SPerStepHi)
				near(t, "accept_length", p.AcceptLength, c.tokS*0.060)
			})
		}
	}
	t.Run("a = 33 where the server speculates", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, script("sglang"))
		o := measure(t, spec(url, "sglang", `method: two_point: {warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`))
		p := o.status(t, "s/1000/1", "ok", "")
		if p.A == nil || *p.A != 33 || *p.B < 129 {
			t.Errorf("a %v, b %v", p.A, p.B)
		}
		near(t, "s_per_step", p.SPerStep, 0.060, p.SPerStepLo, p.SPerStepHi)
		near(t, "decode_tok_s", p.DecodeTokS, 66.7, p.DecodeTokSLo, p.DecodeTokSHi)
	})
}

// A server may speculate and not say so: then a step is what it reports, and where it
// reports none, nothing.
func TestC08SpeculationThatIsNotAnnounced(t *testing.T) {
	t.Parallel()
	for face, steps := range map[string]bool{"openai": false, "trtllm": false, "ollama": false, "llamacpp": true, "vllm": true} {
		for _, auto := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/auto=%v", face, auto), func(t *testing.T) {
				t.Parallel()
				script := standin.Script{Face: face, Clock: standin.Clock{StepS: 0.060, TokensPerStep: 4}}
				engine := face
				switch face {
				case "vllm": // without its metrics, each answer still tells its steps
					script.Answer.NoRoute = []string{"/metrics"}
				case "trtllm":
					engine = "openai"
				}
				_, url := standin.Open(t, script)
				method := `method: two_point: {a: 1, b: 129, warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`
				if auto {
					method = `method: two_point: {warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`
				}
				o := measure(t, spec(url, engine, method))
				p := o.status(t, "s/1000/1", "ok", "")
				near(t, "s_per_tok", p.SPerTok, 0.015, p.SPerTokLo, p.SPerTokHi)
				if steps {
					near(t, "s_per_step", p.SPerStep, 0.060, p.SPerStepLo, p.SPerStepHi)
					near(t, "accept_length", p.AcceptLength, 4)
				} else if p.SPerStep != nil || p.AcceptLength != nil {
					t.Errorf("nobody reports steps: s_per_step %v, accept length %v", p.SPerStep, p.AcceptLength)
				}
				if auto && steps && (p.A == nil || *p.A != 33) {
					t.Errorf("a is %v where the pilots show speculation", p.A)
				}
			})
		}
	}
}

// Rows of variants that accept tokens at other lengths compare by steps alone.
func TestC08AcceptLengthsThatDiffer(t *testing.T) {
	t.Parallel()
	_, plain := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.010}})
	_, drafts := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.020, TokensPerStep: 4}})
	o := measure(t, experiment(fmt.Sprintf(`servers: {plain: {engine: "sglang", url: %q, flush: "auto"}, drafts: {engine: "sglang", url: %q, flush: "auto"}}`, plain, drafts),
		`baseline: "plain"`, `method: two_point: {a: 33, b: 97, warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`, `sweep: context: [250, 500, 750, 1000]`))
	for _, p := range o.Points {
		if p.Status != "ok" || has(p.Doubts, "accept_length_differs") != (p.Variant == "drafts") {
			t.Errorf("%s %s: doubts %s", p.PointKey, p.Status, p.Doubts)
		}
	}
	for _, f := range o.Fits {
		if f.Variant == "drafts" && f.Quantity == "s_per_tok" && (f.BetaGain != nil || !has(f.Doubts, "accept_length_differs")) {
			t.Errorf("slopes over tokens compared: %v, doubts %s", f.BetaGain, f.Doubts)
		}
	}
}

func TestC09ChunksThatSplitAToken(t *testing.T) {
	t.Parallel()
	fragments := standin.Stream{Fragments: 2, NoIDs: true}
	t.Run("usage counts", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Stream: fragments})
		o := measure(t, spec(url, "openai", reported))
		o.ok(t, "s/1000/1")
		for _, s := range o.samples("s/1000/1", "measure", "b") {
			if *s.CompletionTokens != 17 || len(s.ChunkTokens) == len(s.ChunkS) {
				t.Errorf("%d tokens, %d chunks of %d known counts", *s.CompletionTokens, len(s.ChunkS), len(s.ChunkTokens))
			}
		}
	})
	t.Run("nobody counts", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Stream: fragments, Counts: standin.Counts{NoUsage: true}})
		o := measure(t, spec(url, "openai", reported))
		p := o.point(t, "s/1000/1")
		if p.Status == "ok" || p.DecodeTokS != nil {
			t.Errorf("%s with %v tok/s, from tokens that nobody counted", p.Status, p.DecodeTokS)
		}
		for _, s := range o.samples("s/1000/1", "measure", "") {
			if s.CompletionTokens != nil {
				t.Errorf("%d tokens", *s.CompletionTokens)
			}
		}
	})
}

func TestC10TheFirstVisibleWordIsNotTheFirstToken(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"reasoning_content", "reasoning"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: "openai", Stream: standin.Stream{Reasoning: field}, Answer: standin.Answer{NoRoute: []string{"/v1/completions"}}})
			o := measure(t, spec(url, "openai", reported))
			p := o.ok(t, "s/1000/1")
			near(t, "ttft_s", p.TTFTS, 0.1, p.TTFTSLo, p.TTFTSHi)
		})
	}
}

func TestC11TheFirstEventIsNotAToken(t *testing.T) {
	t.Parallel()
	_, url := standin.Open(t, standin.Script{Face: "vllm", Stream: standin.Stream{EmptyRole: true}})
	o := measure(t, spec(url, "openai", quick))
	p := o.ok(t, "s/1000/1")
	near(t, "ttft_s", p.TTFTS, 0.1, p.TTFTSLo, p.TTFTSHi)
	for _, s := range o.samples("s/1000/1", "measure", "b") {
		if *s.CompletionTokens != 17 || len(s.ChunkS) != 17 {
			t.Errorf("%d tokens in %d chunks", *s.CompletionTokens, len(s.ChunkS))
		}
	}
}

func TestC12ThePromptIsNotTheLengthAskedFor(t *testing.T) {
	t.Parallel()
	longer := standin.Counts{PromptOff: 83}
	t.Run("exact", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Counts: longer})
		measure(t, spec(url, "sglang", quick)).status(t, "s/1000/1", "invalid", "prompt_length")
	})
	t.Run("reported", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Counts: longer})
		o := measure(t, spec(url, "sglang", reported))
		p := o.ok(t, "s/1000/1") // 10,000 tok/s by the 1,083 tokens
		if *p.PromptTokens != 1083 || *p.ContextRequested != 1000 || !has(p.Doubts, "prompt_length") {
			t.Errorf("%d prompt tokens, %d asked for, doubts %s", *p.PromptTokens, *p.ContextRequested, p.Doubts)
		}
	})
	t.Run("within the tolerance", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Counts: longer})
		o := measure(t, spec(url, "sglang", strings.Replace(reported, `prompt: `, "prompt: tolerance: 0.1\n\tprompt: ", 1)))
		if p := o.ok(t, "s/1000/1"); has(p.Doubts, "prompt_length") {
			t.Errorf("doubts %s", p.Doubts)
		}
	})
	t.Run("the legs differ by 5", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{PrefillTokS: 1000}, When: []standin.When{{MinTokens: 17, Then: standin.Then(`{"counts": {"prompt_off": 5}}`)}}})
		o := measure(t, spec(url, "sglang", reported))
		p := o.point(t, "s/1000/1")
		if !has(p.Doubts, "prompt_drift") || !strings.Contains(p.DoubtDetail, "worth 0.0003") {
			t.Errorf("doubts %s: %s", p.Doubts, p.DoubtDetail)
		}
		for _, r := range o.Repeats {
			if *r.PromptTokens != 1000 || *r.PromptTokensB != 1005 {
				t.Errorf("prompts of %d and %d tokens", *r.PromptTokens, *r.PromptTokensB)
			}
		}
	})
}

func TestC14NoUsageInTheStream(t *testing.T) {
	t.Parallel()
	t.Run("the option is ignored", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "openai", Counts: standin.Counts{NoStreamUsage: true}, Stream: standin.Stream{NoIDs: true}})
		o := measure(t, spec(url, "openai", reported))
		p := o.ok(t, "s/1000/1") // counts of whole answers
		if p.TTFTS != nil || p.DecodeStream != nil {
			t.Errorf("in-stream figures of answers that do not stream: %v, %v", p.TTFTS, p.DecodeStream)
		}
		if !strings.Contains(o.Stderr, "counts no tokens in its streams") {
			t.Error("nobody says so")
		}
	})
	t.Run("the option is refused", func(t *testing.T) {
		t.Parallel()
		srv, url := standin.Open(t, standin.Script{Face: "openai", Counts: standin.Counts{NoStreamUsage: true}, Stream: standin.Stream{NoIDs: true},
			Answer: standin.Answer{Refuse: []string{"stream_options"}, RefuseStatus: 422}})
		o := measure(t, spec(url, "openai", reported))
		o.ok(t, "s/1000/1")
		tries := 0
		for _, body := range srv.Bodies() {
			if _, sent := body["stream_options"]; sent {
				tries++
			}
		}
		if tries != 1 {
			t.Errorf("the option was tried %d times", tries)
		}
		for _, s := range o.samples("s/1000/1", "measure", "") {
			if !strings.Contains(s.Notes, "stream_options") {
				t.Errorf("notes %q", s.Notes)
			}
		}
	})
}
