package plan

import (
	"math"
	"testing"
	"time"

	"twopoint/schema"
)

func TestCost(t *testing.T) {
	base := func() schema.Experiment {
		return schema.Experiment{
			Variants: []schema.Variant{{Name: "v", Engine: "x"}},
			Sweep:    schema.Sweep{Context: []int{1000, 8000}, Concurrency: []int{1}},
			Method: schema.Method{TwoPoint: &schema.TwoPoint{A: 1, Warmup: true, Settle: schema.Settle{Mode: "request"},
				Repeats: schema.Repeats{Min: 3, Max: 5, Deployments: 1}}},
		}
	}
	for name, c := range map[string]struct {
		edit func(*schema.Experiment)
		want Cost
	}{
		// A point: 1 + 2 + 3…5 pairs; 1 drift pair. A pair: 2 legs of 1 request and 1 settle.
		"auto b": {func(e *schema.Experiment) {}, Cost{Points: 2, Deployments: 1,
			Pairs: Bounds{13, 17}, Requests: Bounds{13*4 + 3, 17*4 + 3},
			PromptTokens: Bounds{2*(7*1000+6*8000) + 13*48 + 3000, 2*(9*1000+8*8000) + 17*48 + 3000}}},
		"fixed b, no settle, no warm-up": {func(e *schema.Experiment) {
			e.Method.TwoPoint.B, e.Method.TwoPoint.Warmup, e.Method.TwoPoint.Settle = 65, false, schema.Settle{Mode: "none"}
		}, Cost{Points: 2, Deployments: 1,
			Pairs: Bounds{7, 11}, Requests: Bounds{17, 25}, PromptTokens: Bounds{2*(4*1000+3*8000) + 3000, 2*(6*1000+5*8000) + 3000}}},
		"concurrency 4": {func(e *schema.Experiment) { e.Sweep.Context, e.Sweep.Concurrency = []int{1000}, []int{4} },
			Cost{Points: 1, Deployments: 1, Pairs: Bounds{7, 9}, Requests: Bounds{7*10 + 3, 9*10 + 3},
				PromptTokens: Bounds{7*(8000+48) + 3000, 9*(8000+48) + 3000}}},
		"four lives": {func(e *schema.Experiment) {
			e.Sweep.Context, e.Method.TwoPoint.Repeats.Deployments = []int{1000}, 4
		}, Cost{Points: 1, Deployments: 4, // 4 warm-ups + 2 pilots + 4…5 + 4 drift pairs
			Pairs: Bounds{14, 15}, Requests: Bounds{14*4 + 12, 15*4 + 12}, PromptTokens: Bounds{14*2048 + 12000, 15*2048 + 12000}}},
		"a server that we do not start": {func(e *schema.Experiment) {
			e.Sweep.Context, e.Method.TwoPoint.Repeats.Deployments, e.Variants[0].URL = []int{1000}, 4, "http://x"
		}, Cost{Points: 1, Deployments: 1,
			Pairs: Bounds{7, 9}, Requests: Bounds{31, 39}, PromptTokens: Bounds{7*2048 + 3000, 9*2048 + 3000}}},
		// A point: 1 + 3…5 repeats; 1 for drift. A repeat: 1 leg of 1 request and 1 settle.
		"stream": {func(e *schema.Experiment) {
			tp := e.Method.TwoPoint
			e.Method = schema.Method{Stream: &schema.Stream{Tokens: 129, Repeats: tp.Repeats, Warmup: true, Settle: tp.Settle}}
		}, Cost{Points: 2, Deployments: 1,
			Pairs: Bounds{9, 13}, Requests: Bounds{9*2 + 3, 13*2 + 3}, PromptTokens: Bounds{5*1000 + 4*8000 + 9*24 + 3000, 7*1000 + 6*8000 + 13*24 + 3000}}},
		"multi_point of 4 budgets": {func(e *schema.Experiment) {
			e.Method = schema.Method{MultiPoint: &schema.MultiPoint{TwoPoint: *e.Method.TwoPoint, Budgets: 4}}
		}, Cost{Points: 2, Deployments: 1,
			Pairs: Bounds{13, 17}, Requests: Bounds{13*8 + 3, 17*8 + 3}, PromptTokens: Bounds{4*(7*1000+6*8000) + 13*96 + 3000, 4*(9*1000+8*8000) + 17*96 + 3000}}},
		// A point: 1 + 2 + 3…5 repeats of 3 requests on one prefill; 1 for drift; a cold pair at either end.
		"decode_at_depth": {func(e *schema.Experiment) {
			e.Method = schema.Method{DecodeAtDepth: &schema.DecodeAtDepth{Repeats: e.Method.TwoPoint.Repeats, Warmup: true}}
		}, Cost{Points: 2, Deployments: 1,
			Pairs: Bounds{15, 19}, Requests: Bounds{13*3 + 2*4 + 3, 17*3 + 2*4 + 3}, PromptTokens: Bounds{3*9000 + 2*48 + 3000, 3*9000 + 2*48 + 3000}}},
		// Two contexts, each 2 + 3 requests of variant v and 3 more of it as the baseline,
		// whatever the concurrencies; those of the second round may be cached.
		"gate": {func(e *schema.Experiment) {
			tp := e.Method.TwoPoint
			tp.B, tp.Warmup, tp.Settle, tp.Repeats.Max = 65, false, schema.Settle{Mode: "none"}, 3
			e.Gate, e.Baseline = &schema.Gate{Needle: &schema.Needle{Depth: []float64{0.1, 0.9}, Tokens: 32}, Agreement: &schema.Agreement{Prompts: 3, Tokens: 64}}, "v"
			e.Sweep.Concurrency = []int{1, 2}
		}, Cost{Points: 4, Deployments: 1, GateRequests: 16,
			Pairs: Bounds{13, 13}, Requests: Bounds{7*2 + 6*4 + 3 + 16, 7*2 + 6*4 + 3 + 16},
			PromptTokens: Bounds{2*(4*1000+3*8000) + 4*(3*1000+3*8000) + 3000 + 5*9000, 2*(4*1000+3*8000) + 4*(3*1000+3*8000) + 3000 + 8*9000}}},
		"gate of a variant that is not the baseline": {func(e *schema.Experiment) {
			tp := e.Method.TwoPoint
			tp.B, tp.Warmup, tp.Settle, tp.Repeats.Max = 65, false, schema.Settle{Mode: "none"}, 3
			e.Sweep.Context, e.Gate = []int{1000}, &schema.Gate{Agreement: &schema.Agreement{Prompts: 3, Tokens: 64}}
		}, Cost{Points: 1, Deployments: 1, GateRequests: 3,
			Pairs: Bounds{4, 4}, Requests: Bounds{8 + 3 + 3, 8 + 3 + 3}, PromptTokens: Bounds{8000 + 3000 + 3000, 8000 + 3000 + 3000}}},
		"nothing": {func(e *schema.Experiment) { e.Variants = nil }, Cost{}},
	} {
		t.Run(name, func(t *testing.T) {
			exp := base()
			c.edit(&exp)
			if got := mustPlan(t, exp).Cost(); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestCostTime(t *testing.T) {
	exp := schema.Experiment{
		Variants: []schema.Variant{{Name: "v", Engine: "x"}},
		Sweep:    schema.Sweep{Context: []int{1000}, Concurrency: []int{1}},
		Method:   schema.Method{TwoPoint: &schema.TwoPoint{A: 1, B: 33, Repeats: schema.Repeats{Min: 3, Max: 5, Deployments: 1}}},
		Expect:   &schema.Expect{PrefillTokS: 1000, DecodeTokS: 34, Load: schema.Duration(time.Minute)},
	}
	// 60 s load, 3 s of probes, 4…6 pairs (one for drift) of 2 s prefill and 1 s decode.
	c := mustPlan(t, exp).Cost()
	if c.MinS == nil || math.Abs(*c.MinS-75) > 1e-9 || math.Abs(*c.MaxS-81) > 1e-9 {
		t.Errorf("%+v", c)
	}
	// 2 needles of 1 s prefill and 1 s decode.
	exp.Gate = &schema.Gate{Needle: &schema.Needle{Depth: []float64{0.1, 0.9}, Tokens: 34}}
	if g := mustPlan(t, exp).Cost(); math.Abs(*g.MinS-79) > 1e-9 || math.Abs(*g.MaxS-85) > 1e-9 {
		t.Errorf("with a gate %g to %g s", *g.MinS, *g.MaxS)
	}
	exp.Gate = nil
	// What the tool chooses widens the bounds: a 1…33, b − a 32…125.
	exp.Method.TwoPoint.A, exp.Method.TwoPoint.B = 0, 0
	auto := mustPlan(t, exp).Cost()
	if *auto.MinS >= *auto.MaxS || *auto.MaxS <= *c.MaxS {
		t.Errorf("%v … %v", *auto.MinS, *auto.MaxS)
	}
	exp.Expect.Load = 0
	if c := mustPlan(t, exp).Cost(); c.MinS != nil || c.MaxS != nil {
		t.Errorf("load unknown: %+v", c)
	}
	exp.Variants[0].URL = "http://x"
	if c := mustPlan(t, exp).Cost(); c.MinS == nil {
		t.Error("a server that we do not start needs no load time")
	}
	exp.Expect = nil
	if c := mustPlan(t, exp).Cost(); c.MinS != nil {
		t.Error("nothing expected, yet a time")
	}
}
