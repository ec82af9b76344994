package cases

import (
	"fmt"
	"strings"
	"testing"

	"twopoint/test/standin"
)

// Methods and concurrency against the scripted truth.

func TestConcurrency(t *testing.T) {
	t.Parallel()
	const four = "sweep: {context: [1000], concurrency: [4]}\n\tmethod: two_point: {a: 1, b: 49, warmup: false, repeats: {min: 3, max: 3, target: 0.5}}"
	t.Run("side by side", func(t *testing.T) {
		t.Parallel()
		for _, engine := range []string{"sglang", "vllm"} {
			// A step takes 5 ms longer for each other request: 35 ms with four.
			_, url := standin.Open(t, standin.Script{Face: engine, Clock: standin.Clock{StepPerRunningS: 0.005}})
			o := measure(t, spec(url, engine, four))
			p := o.status(t, "s/1000/4", "ok", "")
			near(t, engine+" s_per_tok", p.SPerTok, 0.035, p.SPerTokLo, p.SPerTokHi)
			near(t, engine+" decode_tok_s", p.DecodeTokS, 1/0.035, p.DecodeTokSLo, p.DecodeTokSHi)
			near(t, engine+" decode_total_tok_s", p.DecodeTotal, 4/0.035)
			near(t, engine+" makespan_s_per_tok", p.Makespan, 0.035)
			near(t, engine+" prefill_tok_s", p.PrefillTokS, 40_000, p.PrefillTokSLo, p.PrefillTokSHi)
			for _, s := range o.samples("s/1000/4", "measure", "b") {
				if s.OffsetS == nil || *s.OffsetS > 0.05 {
					t.Errorf("slot %d began %v s after the first", s.Slot, s.OffsetS)
				}
			}
		}
	})
	t.Run("one prefill after another", func(t *testing.T) {
		t.Parallel()
		// First tokens come at 0.1, 0.2, 0.3 and 0.4 s; 33 steps of the last three lie in the window.
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{SerialPrefill: true}})
		o := measure(t, spec(url, "sglang", four))
		near(t, "s_per_tok", o.status(t, "s/1000/4", "ok", "").SPerTok, 0.020)
	})
	t.Run("one after another", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{MaxRunning: 1, StepS: 0.005}})
		measure(t, spec(url, "sglang", four)).status(t, "s/1000/4", "invalid", "not_concurrent")
	})
	t.Run("two at a time", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{MaxRunning: 2, StepS: 0.005}})
		measure(t, spec(url, "sglang", four)).status(t, "s/1000/4", "invalid", "not_concurrent")
	})
	t.Run("one request fails", func(t *testing.T) {
		t.Parallel()
		srv, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.005}, When: []standin.When{{MinTokens: 49, Every: 7, Then: standin.Then(`{"stream": {"error_at": 5}}`)}}})
		o := measure(t, spec(url, "sglang", four))
		if p := o.point(t, "s/1000/4"); p.Status != "failed" || p.DecodeTokS != nil {
			t.Errorf("%s (%s) with %v tok/s", p.Status, p.Reason, p.DecodeTokS)
		}
		for _, r := range srv.Requests() {
			if r.Asked == 49 && r.Generated != 49 && r.Generated > 5 {
				t.Errorf("request %d was left after %d tokens", r.Number, r.Generated)
			}
		}
	})
	t.Run("auto b for pieces of eight", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "vllm", Clock: standin.Clock{StepS: 0.005}, Stream: standin.Stream{PerChunk: 8}})
		o := measure(t, spec(url, "vllm", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: two_point: {repeats: {min: 3, max: 3, target: 0.5}}"))
		p := o.status(t, "s/1000/4", "ok", "")
		near(t, "s_per_tok", p.SPerTok, 0.005, p.SPerTokLo, p.SPerTokHi)
	})
	t.Run("auto b", func(t *testing.T) {
		t.Parallel()
		// Prefills one after another: b must keep all four decoding for 32 steps.
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{SerialPrefill: true, PrefillTokS: 4000, StepS: 0.01}})
		o := measure(t, spec(url, "sglang", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: two_point: {repeats: {min: 3, max: 3, target: 0.5}}"))
		p := o.status(t, "s/1000/4", "ok", "")
		near(t, "s_per_tok", p.SPerTok, 0.010, p.SPerTokLo, p.SPerTokHi)
		if p.B == nil || *p.B < 1+75+32 {
			t.Errorf("b is %v: 75 steps pass until the last request has its first token", p.B)
		}
	})
}

func TestMethodsTellTheTruth(t *testing.T) {
	t.Parallel()
	const rest = `warmup: false, repeats: {min: 3, max: 3, target: 0.5}`
	for method, fields := range map[string]string{
		"two_point": "two_point: {a: 1, b: 33, " + rest, "multi_point": "multi_point: {a: 1, b: 33, budgets: 4, " + rest,
		"stream": "stream: {tokens: 33, " + rest, "decode_at_depth": "decode_at_depth: {a: 1, b: 33, " + rest,
	} {
		for _, engine := range []string{"sglang", "vllm", "llamacpp"} {
			t.Run(method+"/"+engine, func(t *testing.T) {
				t.Parallel()
				block := 16
				if engine == "llamacpp" { // which matches single tokens
					block = 1
				}
				_, url := standin.Open(t, standin.Script{Face: engine, Cache: standin.Cache{Block: block}, Clock: standin.Clock{StepS: 0.010, StepPerContextS: 5e-6}})
				o := measure(t, spec(url, engine, "sweep: context: [1000, 4000]\n\tmethod: "+fields+"}"))
				for context, want := range map[int]float64{1000: 0.015, 4000: 0.030} {
					key := fmt.Sprintf("s/%d/1", context)
					p := o.status(t, key, "ok", "")
					figure, lo, hi := p.SPerTok, p.SPerTokLo, p.SPerTokHi
					if method == "stream" {
						figure, lo, hi = p.SPerTokStream, p.SPerTokStreamLo, p.SPerTokStreamHi
						near(t, key+" ttft_s", p.TTFTS, float64(context)/10_000)
					}
					near(t, key+" seconds per token", figure, want, lo, hi)
					if measures := method == "two_point" || method == "multi_point"; (p.PrefillS != nil) != measures {
						t.Errorf("%s: prefill_s %v", key, p.PrefillS)
					} else if measures {
						near(t, key+" prefill_tok_s", p.PrefillTokS, 10_000, p.PrefillTokSLo, p.PrefillTokSHi)
					}
				}
			})
		}
	}
}

// What decode_at_depth stands on may be missing: then there is no number.
func TestDecodeAtDepthRefuses(t *testing.T) {
	t.Parallel()
	const depth = "sweep: context: [1000, 2000]\n\tmethod: decode_at_depth: {a: 1, b: 33, warmup: false, repeats: {min: 3, max: 3, target: 0.5}}"
	half := int64(500)
	for name, c := range map[string]struct {
		script standin.Script
		reason string
	}{
		"no cache":         {standin.Script{Cache: standin.Cache{Off: true}}, "not_cached"},
		"no count":         {standin.Script{Cache: standin.Cache{Report: "omit"}}, "not_cached"},
		"half of it":       {standin.Script{Cache: standin.Cache{Claim: &half}}, "not_cached"},
		"legs that differ": {standin.Script{When: []standin.When{{MinTokens: 33, Then: standin.Then(`{"cache": {"claim": 999}}`)}, {MaxTokens: 1, MinContext: 1000, Then: standin.Then(`{"cache": {"claim": 1000}}`)}}}, "cached_differs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, c.script)
			o := measure(t, spec(url, "sglang", depth))
			for _, p := range o.Points[:1] {
				if p.Status != "invalid" || !strings.Contains(p.Reason, c.reason) || p.SPerTok != nil {
					t.Errorf("%s is %s (%s: %s), want %s", p.PointKey, p.Status, p.Reason, p.Detail, c.reason)
				}
			}
		})
	}
	t.Run("the count is false", func(t *testing.T) {
		t.Parallel()
		all := int64(999)
		_, url := standin.Open(t, standin.Script{Cache: standin.Cache{Off: true, Claim: &all}, When: []standin.When{{MinContext: 900, Then: standin.Then(`{"cache": {"claim": 999}}`)}, {MaxContext: 900, Then: standin.Then(`{"cache": {"claim": 0}}`)}}})
		o := measure(t, spec(url, "sglang", strings.Replace(depth, "[1000, 2000]", "[1000]", 1)))
		o.status(t, "s/1000/1", "invalid", "cold_disagrees")
	})
	t.Run("one cold pair is disturbed", func(t *testing.T) {
		t.Parallel()
		script := standin.Script{Clock: standin.Clock{StepS: 0.020}}
		// The long leg of the first cold pair is the first of so many tokens with nothing cached.
		srv, url := standin.Open(t, script)
		measureOnce(t, spec(url, "sglang", depth))
		for _, r := range srv.Requests() {
			if r.Asked == 33 && r.Cached == 0 {
				script.When = []standin.When{{From: r.Number, To: r.Number, Then: standin.Then(`{"clock": {"step_s": 0.060}}`)}}
				break
			}
		}
		var o outcome
		for range 3 { // a busy machine disturbs more than the one
			_, url = standin.Open(t, script)
			if o = measureOnce(t, spec(url, "sglang", depth)); o.Points[0].Status == "ok" {
				break
			}
		}
		cold := 0
		for _, s := range o.Samples {
			if s.Role == "cold" && s.Leg == "b" {
				cold++
			}
		}
		if len(script.When) != 1 || cold != 4 {
			t.Errorf("%d requests disturbed, %d cold pairs: want one and, with the other end's, four", len(script.When), cold)
		}
		for _, p := range o.Points {
			o.status(t, p.PointKey, "ok", "")
		}
	})
	t.Run("the cold pair disagrees", func(t *testing.T) {
		t.Parallel()
		// Fresh prompts decode at 30 ms a token: the cached prompt's 20 are not what this server does.
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.020, ColdStepS: 0.030}})
		o := measure(t, spec(url, "sglang", depth))
		for _, p := range o.Points {
			o.status(t, p.PointKey, "invalid", "cold_disagrees")
		}
	})
}
