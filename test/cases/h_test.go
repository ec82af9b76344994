package cases

import (
	"fmt"
	"strings"
	"testing"

	"twopoint/test/standin"
)

// Statistics and reproducibility.

func TestC57FirstTimeAtANewShape(t *testing.T) {
	t.Parallel()
	method := func(warmup bool) string {
		return fmt.Sprintf("sweep: context: [1000, 4000, 8000]\n\tmethod: two_point: {a: 1, b: 17, warmup: %v, repeats: {min: 3, max: 3, target: 0.5}}", warmup)
	}
	slow := standin.Script{Clock: standin.Clock{NewContextS: 2.7}}
	t.Run("warm-up off", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, slow)
		o := measure(t, spec(url, "sglang", method(false)))
		for _, p := range o.Points {
			if p.ContextRequested != nil && *p.ContextRequested == 1000 {
				continue // the probe was there before
			}
			if p.Status == "ok" {
				t.Errorf("%s is ok with %v tok/s", p.PointKey, *p.DecodeTokS)
			}
			if !has(p.Doubts, "negative_slope") && !has(p.Reason, "cache_suspected") {
				t.Errorf("%s (%s): doubts %s", p.PointKey, p.Reason, p.Doubts)
			}
		}
	})
	t.Run("warm-up on", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, slow)
		o := measure(t, spec(url, "sglang", method(true)))
		for _, key := range []string{"s/1000/1", "s/4000/1", "s/8000/1"} {
			o.ok(t, key)
			if n := len(o.samples(key, "warmup", "")); n != 2 {
				t.Errorf("%s: %d warm-up requests are kept", key, n)
			}
		}
	})
	t.Run("after each flush", func(t *testing.T) {
		t.Parallel()
		// Both legs pay after their own flush: decode is right, prefill is what it is.
		_, url := standin.Open(t, standin.Script{Clock: standin.Clock{NewContextS: 0.5, ForgetOnFlush: true}})
		o := measure(t, spec(url, "sglang", quick))
		p := o.status(t, "s/1000/1", "ok", "")
		near(t, "decode_tok_s", p.DecodeTokS, 50, p.DecodeTokSLo, p.DecodeTokSHi)
		near(t, "prefill_s", p.PrefillS, 0.6, p.PrefillSLo, p.PrefillSHi)
	})
}

func TestC58ImpossibleNumbers(t *testing.T) {
	t.Parallel()
	// One context that generates nothing, one whose b side comes sooner, one that is fine.
	_, url := standin.Open(t, standin.Script{When: []standin.When{
		{MinContext: 2000, MaxContext: 2000, Then: standin.Then(`{"counts": {"answer": 0}, "answer": {"stop": 1}}`)},
		{MinContext: 3000, MaxContext: 3000, MaxTokens: 1, Then: standin.Then(`{"clock": {"extra_s": 0.45}}`)},
	}})
	o := measure(t, spec(url, "sglang", quick+"\n\tsweep: context: [1000, 2000, 3000]"))
	o.ok(t, "s/1000/1")
	o.status(t, "s/2000/1", "invalid", "no_second_point")
	o.status(t, "s/3000/1", "unresolved", "not_positive")
	if o.Exit != 3 {
		t.Errorf("exit %d", o.Exit)
	}
	for _, r := range o.Repeats {
		for name, v := range map[string]*float64{"decode_tok_s": r.DecodeTokS, "prefill_tok_s": r.PrefillTokS, "decode_stream_tok_s": r.DecodeStream} {
			if v != nil && !(*v > 0 && *v < 1e6) {
				t.Errorf("%s: %s is %g", r.PointKey, name, *v)
			}
		}
	}
}

func TestC60TheCollapseCurve(t *testing.T) {
	t.Parallel()
	// A is flat; B collapses between 4,000 and 8,000 tokens and dies at 32,000; C is slower than A below, faster above.
	fast := standin.Clock{PrefillTokS: 200_000}
	clock := func(step, perContext float64) standin.Clock {
		c := fast
		c.StepS, c.StepPerContextS = step, perContext
		return c
	}
	kill := 3
	_, a := standin.Open(t, standin.Script{Clock: clock(0.009, 0)})
	_, c := standin.Open(t, standin.Script{Clock: clock(0.012, -0.15e-6)})
	b := managed(t, "sglang", standin.Script{Clock: clock(0.009, 0), When: []standin.When{
		{MinContext: 8000, Then: standin.Then(`{"clock": {"step_s": 0.0725}}`)},
		{MinContext: 32_000, Then: standin.Then(fmt.Sprintf(`{"life": {"log_line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", "exit": %d}}`, kill))},
	}}, `flush: "auto"`)
	o := measure(t, experiment(fmt.Sprintf(`servers: {A: {engine: "sglang", url: %q, flush: "auto"}, C: {engine: "sglang", url: %q, flush: "auto"}, B: %s}`, a, c, b),
		`baseline: "A"`, `sweep: context: [1000, 2000, 4000, 8000, 16000, 32000]`,
		`method: two_point: {a: 1, b: 33, warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`))
	near(t, "B at 4k", o.status(t, "B/4000/1", "ok", "").SPerTok, 0.009)
	near(t, "B at 8k", o.status(t, "B/8000/1", "ok", "").SPerTok, 0.0725)
	dead := o.status(t, "B/32000/1", "failed", "gpu-oom")
	if !strings.Contains(dead.Evidence, "CUDA out of memory") {
		t.Errorf("evidence %q", dead.Evidence)
	}
	for _, f := range o.Fits {
		if f.Variant == "B" && f.Quantity == "s_per_tok" && f.Steps == "" && f.Knee == nil {
			t.Error("the cliff between 4,000 and 8,000 is not pointed out")
		}
	}
	for _, line := range strings.Split(o.Stdout, "\n") {
		if strings.Contains(line, "fastest") || strings.Contains(line, "winner") {
			t.Errorf("a single winner: %s", line)
		}
	}
	if !strings.Contains(o.Stdout, "failed: gpu-oom") {
		t.Error("the dead point is not beside the living")
	}
	backend := map[string]bool{}
	for _, s := range o.Settings {
		if s.Source == "effective" && s.Name == "attention_backend" {
			backend[s.Variant] = s.Value == "triton"
		}
	}
	if len(backend) != 3 || !backend["B"] {
		t.Errorf("backends as the servers say: %v", backend)
	}
}
