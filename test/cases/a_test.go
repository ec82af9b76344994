package cases

import (
	"strings"
	"testing"

	"twopoint/test/standin"
)

// Prefix cache, flushing, cached-token reporting.

func TestC01FlushRefusedWhileNotIdle(t *testing.T) {
	t.Parallel()
	t.Run("for 300 ms", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Flush: standin.Flush{BusyS: 0.3}})
		o := measure(t, spec(url, "sglang", quick))
		o.ok(t, "s/1000/1")
		waited := 0
		for _, s := range o.samples("s/1000/1", "measure", "") {
			if s.FlushOK == nil || !*s.FlushOK || s.FlushAttempts == nil || s.FlushWaitS == nil {
				t.Errorf("flush of a leg: %v", s)
				continue
			}
			if *s.FlushAttempts > 1 && *s.FlushWaitS > 0.1 {
				waited++
			}
			if *s.TotalS > 0.6 {
				t.Errorf("the flush is in the leg's time: %g s", *s.TotalS)
			}
		}
		if waited == 0 {
			t.Error("no leg waited for its flush")
		}
	})
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Flush: standin.Flush{Refuse: -1, Text: "still 3 requests in the radix tree"}, Cache: standin.Cache{Report: "omit"}})
		o := measure(t, spec(url, "sglang", quick))
		p := o.status(t, "s/1000/1", "invalid", "flush_refused")
		if !strings.Contains(p.Detail, "still 3 requests in the radix tree") {
			t.Errorf("the server's words are lost: %s", p.Detail)
		}
		if o.Exit != 4 {
			t.Errorf("exit %d", o.Exit)
		}
	})
}

func TestC03ResetRouteMissing(t *testing.T) {
	t.Parallel()
	t.Run("404", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "vllm", Flush: standin.Flush{NoRoute: true}})
		o := measure(t, spec(url, "openai", quick))
		p := o.ok(t, "s/1000/1") // the nonce and the counts prove it cold
		if !has(p.Doubts, "flush_unavailable") || !strings.Contains(p.DoubtDetail, "/reset_prefix_cache") || !strings.Contains(p.DoubtDetail, "404") || !strings.Contains(p.DoubtDetail, "VLLM_SERVER_DEV_MODE=1") {
			t.Errorf("doubts %s: %s", p.Doubts, p.DoubtDetail)
		}
		for _, s := range o.samples("s/1000/1", "measure", "") {
			if s.FlushMethod == "" || s.FlushStatus == nil || *s.FlushStatus != 404 || s.FlushOK == nil || *s.FlushOK {
				t.Errorf("flush of a leg: %q %v %v", s.FlushMethod, s.FlushStatus, s.FlushOK)
			}
		}
	})
	t.Run("required", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "vllm", Flush: standin.Flush{NoRoute: true}})
		o := measure(t, strings.Replace(spec(url, "openai", quick), `"auto"`, `"require"`, 1))
		if p := o.point(t, "s/1000/1"); p.Status == "ok" || !strings.Contains(p.Detail+p.FailureMessage, "VLLM_SERVER_DEV_MODE=1") {
			t.Errorf("%s (%s): %s %s", p.Status, p.Reason, p.Detail, p.FailureMessage)
		}
	})
	t.Run("one of two workers", func(t *testing.T) {
		t.Parallel()
		// Neither a nonce nor a salt keeps prompts apart: only a flush could, and it reaches one worker.
		_, url := standin.Open(t, standin.Script{Face: "vllm", Cache: standin.Cache{Workers: 2}, Answer: standin.Answer{Refuse: []string{"cache_salt"}}})
		o := measure(t, spec(url, "openai", strings.Replace(quick, "a: 1", `settle: "none", a: 1`, 1)+"\n\tprompt: nonce: false"))
		o.status(t, "s/1000/1", "invalid", "cache_hit")
	})
}

func TestC04NoCachedTokensAndNotReported(t *testing.T) {
	t.Parallel()
	claim := int64(960)
	for name, c := range map[string]struct {
		cache  standin.Cache
		when   []standin.When
		status string
		reason string
		cached *int64
	}{
		"reports 0":    {cache: standin.Cache{Off: true}, status: "ok", cached: new(int64)},
		"reports null": {cache: standin.Cache{Off: true, Report: "null"}, status: "ok"},
		"omits it":     {cache: standin.Cache{Off: true, Report: "omit"}, status: "ok"},
		"reports 960": {cache: standin.Cache{Off: true}, status: "invalid", reason: "cache_hit", cached: &claim,
			when: []standin.When{{MinTokens: 17, Then: standin.Then(`{"cache": {"claim": 960}}`)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: "vllm", Cache: c.cache, When: c.when})
			o := measure(t, spec(url, "openai", quick))
			p := o.status(t, "s/1000/1", c.status, c.reason)
			if (p.CachedMax == nil) != (c.cached == nil) || c.cached != nil && *p.CachedMax != *c.cached {
				t.Errorf("cached_tokens_max %v", p.CachedMax)
			}
			for _, s := range o.samples("s/1000/1", "measure", "b") {
				if (s.CachedTokens == nil) != (c.cached == nil) || c.cached != nil && *s.CachedTokens != *c.cached {
					t.Errorf("cached_tokens %v", s.CachedTokens)
				}
			}
			if c.cached == nil && !strings.Contains(o.Stderr+o.Stdout, "--enable-prompt-tokens-details") {
				t.Error("nobody says which flag makes the server report cached tokens")
			}
		})
	}
}

func TestC05FlushMakesTheNextRequestSlow(t *testing.T) {
	t.Parallel()
	slow := standin.Script{Clock: standin.Clock{AfterFlushS: 0.5}}
	for name, c := range map[string]struct {
		settle string
		check  func(t *testing.T, o outcome)
	}{
		"settled": {`"request"`, func(t *testing.T, o outcome) {
			o.ok(t, "s/1000/1")
			o.ok(t, "s/8000/1")
		}},
		"not settled": {`"none"`, func(t *testing.T, o outcome) {
			// Both legs pay: decode is right and prefill holds the cost, as it is.
			for key, want := range map[string]float64{"s/1000/1": 1667, "s/8000/1": 6154} {
				p := o.status(t, key, "ok", "")
				near(t, key+" decode_tok_s", p.DecodeTokS, 50, p.DecodeTokSLo, p.DecodeTokSHi)
				near(t, key+" prefill_tok_s", p.PrefillTokS, want, p.PrefillTokSLo, p.PrefillTokSHi)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, slow)
			c.check(t, measure(t, spec(url, "sglang", `
	sweep: context: [1000, 8000]
	method: two_point: {a: 1, b: 17, settle: `+c.settle+`, repeats: {min: 3, max: 3, target: 0.5}}`)))
		})
	}
	t.Run("first flush only", func(t *testing.T) {
		t.Parallel()
		// The probe and the warm-up take the first flush.
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{AfterFlushS: 0.5, FlushOnce: true}})
		measure(t, spec(url, "sglang", quick)).ok(t, "s/1000/1")
	})
	t.Run("one leg only", func(t *testing.T) {
		t.Parallel()
		// Every other request after a flush is slow: leg a where a runs first.
		_, url := standin.Open(t, standin.Script{When: []standin.When{{MaxTokens: 1, Then: standin.Then(`{"clock": {"extra_s": 0.5}}`)}}})
		o := measure(t, spec(url, "sglang", `method: two_point: {a: 1, b: 17, settle: "none", warmup: false, repeats: {min: 3, max: 4, target: 0.01}}`))
		p := o.status(t, "s/1000/1", "unresolved", "not_positive")
		if p.SPerTokRaw == nil || *p.SPerTokRaw > 0 {
			t.Errorf("s_per_tok_raw %v", p.SPerTokRaw)
		}
	})
	t.Run("whichever comes first", func(t *testing.T) {
		t.Parallel()
		// The first leg of a pair pays 0.1 s: orders disagree, and that is said.
		_, url := standin.Open(t, standin.Script{When: []standin.When{{Every: 2, Then: standin.Then(`{"clock": {"extra_s": 0.1}}`)}}})
		o := measure(t, spec(url, "sglang", `method: two_point: {a: 1, b: 33, settle: "none", warmup: false, repeats: {min: 6, max: 6, target: 0.01}}`))
		p := o.point(t, "s/1000/1")
		if !has(p.Doubts, "order_effect") {
			t.Errorf("%s (%s), doubts %s", p.Status, p.Reason, p.Doubts)
		}
	})
}

func TestC06PromptCountMissingOrOnlyTheNewPart(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{
		"missing": `{"counts": {"no_prompt": true}}`,
		"zero":    `{"counts": {"prompt": 0, "prompt_off": -1000}, "clock": {"extra_s": 0.1}}`,
		"one":     `{"counts": {"prompt": 1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: "openai", When: []standin.When{{MinTokens: 17, Then: standin.Then(then)}}})
			o := measure(t, spec(url, "openai", quick+"\n\tprompt: length: \"reported\""))
			o.status(t, "s/1000/1", "invalid", "cache_suspected")
			for _, r := range o.Repeats {
				if r.PrefillTokS != nil {
					t.Errorf("prefill_tok_s %g from a count that nobody made", *r.PrefillTokS)
				}
			}
		})
	}
}
