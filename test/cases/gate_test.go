package cases

import (
	"fmt"
	"strings"
	"testing"

	"twopoint/test/standin"
)

// fast is a clock whose answers take no time: gates measure nothing.
var fast = standin.Clock{PrefillTokS: 100_000, StepS: 0.002}

// A planted fact is asked for, with and without token ids: found; lost, a doubt or,
// where the spec says so, an invalid point; or not known, which fails nothing.
func TestGateNeedle(t *testing.T) {
	for _, face := range []string{"sglang", "vllm", "llamacpp", "openai"} {
		t.Run(face, func(t *testing.T) {
			t.Parallel()
			_, good := standin.Open(t, standin.Script{Face: face, Clock: fast})
			_, bad := standin.Open(t, standin.Script{Face: face, Clock: fast, Answer: standin.Answer{NeedleLost: true}})
			for _, c := range []struct {
				name, url, onFail string
			}{{"found", good, "invalid"}, {"lost", bad, "warn"}, {"lost", bad, "invalid"}} {
				o := measure(t, spec(c.url, face, quick+fmt.Sprintf("\nsweep: context: [300, 1000], gate: needle: {depth: [0.1, 0.9], on_fail: %q}", c.onFail)))
				for _, key := range []string{"s/300/1", "s/1000/1"} {
					p := o.point(t, key)
					asked := o.samples(key, "gate", "")
					if len(asked) != 2 || asked[0].Leg != "needle@0.1" || asked[1].Leg != "needle@0.9" {
						t.Errorf("%s, %s: %d requests of the gate", c.name, key, len(asked))
					}
					want := map[string]float64{"found": 1, "lost": 0}[c.name]
					if p.GateNeedle == nil || *p.GateNeedle != want || has(p.Doubts, "gate_needle_failed") != (want == 0) || has(p.Doubts, "gate_unknown") {
						t.Errorf("%s, %s: needle %v, doubts %s\n%s", c.name, key, p.GateNeedle, p.Doubts, p.DoubtDetail)
					}
					if invalid := p.Reason == "gate_needle_failed"; invalid != (want == 0 && c.onFail == "invalid" && p.Status == "invalid") || p.Status == "ok" && want == 0 && c.onFail == "invalid" {
						t.Errorf("%s, on_fail %s: %s is %s (%s)", c.name, c.onFail, key, p.Status, p.Reason)
					}
				}
				if said := strings.Contains(o.Stdout, "gate_needle_failed"); said != (c.name == "lost") {
					t.Errorf("%s: said %v", c.name, said)
				}
			}
		})
	}
}

// A check that gets no answer proves nothing: where the spec says that only what was
// checked counts, the point has no values.
func TestGatePrevented(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{"an error": `{"answer": {"status": 500, "body": "no"}}`, "no end": `{"stream": {"end": "reset", "cut": 3}}`} {
		for onFail, status := range map[string]string{"warn": "ok", "invalid": "invalid"} {
			t.Run(name+"/"+onFail, func(t *testing.T) {
				t.Parallel()
				_, url := standin.Open(t, standin.Script{Clock: fast, When: []standin.When{{MinTokens: 32, MaxTokens: 64, Then: standin.Then(then)}}})
				o := measure(t, spec(url, "sglang", "baseline: \"s\"\n"+quick+fmt.Sprintf("\ngate: {needle: on_fail: %q, agreement: on_fail: %q}", onFail, onFail)))
				p := o.point(t, "s/1000/1")
				if p.Status != status || onFail == "invalid" && p.Reason != "gate_unknown" || (p.SPerTok != nil) != (status == "ok") || p.SPerTokRaw == nil || !has(p.Doubts, "gate_unknown") {
					t.Errorf("%s (%s), %v s per token, doubts %s", p.Status, p.Reason, p.SPerTok, p.Doubts)
				}
			})
		}
	}
}

// Greedy answers are compared with the baseline's, and those with its own
// repetitions: what differs from request to request on the baseline as well is no
// disagreement.
func TestGateAgreement(t *testing.T) {
	for _, face := range []string{"sglang", "vllm"} {
		t.Run(face, func(t *testing.T) {
			t.Parallel()
			same, restless := standin.Script{Face: face, Clock: fast}, standin.Script{Face: face, Clock: fast, Answer: standin.Answer{Vary: 4}}
			late, other := restless, restless
			late.Answer.Vary, other.Answer.Vary = 60, 5
			for _, c := range []struct {
				name           string
				base, variant  standin.Script
				code           string
				baseline, most float64
			}{
				{"the same", same, same, "", 1, 1},
				{"wrong soon", same, restless, "gate_disagrees", 1, 0.1},
				{"late in the answer", same, late, "gate_differs", 1, 0.97},
				{"both restless", restless, other, "gate_differs", 0.0625, 0.1},
			} {
				_, base := standin.Open(t, c.base)
				_, variant := standin.Open(t, c.variant)
				o := measure(t, fmt.Sprintf(`experiment: {
					servers: {
						base:  {engine: %[1]q, url: %[2]q, flush: "auto"}
						other: {engine: %[1]q, url: %[3]q, flush: "auto"}
					}
					baseline: "base"
					sweep: context: [300]
					%[4]s
					gate: agreement: on_fail: "invalid"
				}`, face, base, variant, quick))
				p, b := o.point(t, "other/300/1"), o.point(t, "base/300/1")
				if p.GateAgreement == nil || p.GateSelf == nil || *p.GateAgreement > c.most || c.most == 1 && *p.GateAgreement != 1 || *p.GateSelf < c.baseline-0.01 || *p.GateSelf > c.baseline+0.01 || b.GateAgreement != nil || *b.GateSelf != *p.GateSelf {
					t.Errorf("%s: agreement %v, baseline %v\n%s", c.name, p.GateAgreement, p.GateSelf, p.DoubtDetail)
				}
				for _, code := range []string{"gate_disagrees", "gate_differs", "gate_unknown"} {
					if has(p.Doubts, code) != (code == c.code) {
						t.Errorf("%s: doubts %s, want %q\n%s", c.name, p.Doubts, c.code, p.DoubtDetail)
					}
				}
				if p.Status == "ok" && c.code == "gate_disagrees" || p.Reason == "gate_disagrees" && c.code != "gate_disagrees" {
					t.Errorf("%s: %s (%s)", c.name, p.Status, p.Reason)
				}
			}
		})
	}
}
