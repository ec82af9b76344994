package claim

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"twopoint/results/stat"
	"twopoint/schema"
)

func fig(x, half float64) Figure { return Figure{Value: x, Lo: x - half, Hi: x + half, By: ByPairs} }

func num(text string) any { return json.Number(text) }

func ptr[T any](x T) *T { return &x }

// evidence is two variants over four contexts: fast is flat, slow falls from 100 to
// 20 tok/s, and neither is measured beyond.
func evidence() Evidence {
	e := Evidence{Model: "m", GPUs: []string{"NVIDIA H100 80GB HBM3"}, CPU: "EPYC"}
	for i, tokens := range []float64{1000, 2000, 4000, 16000} {
		for _, v := range []struct {
			name string
			tokS float64
		}{{"fast", 90}, {"slow", []float64{100, 80, 50, 20}[i]}} {
			e.Points = append(e.Points, Point{
				Key: fmt.Sprintf("%s/%.0f/1", v.name, tokens), Variant: v.name, Engine: "sglang", Tokens: tokens, Concurrency: 1, Status: stat.OK,
				Figures: map[string]Figure{"decode_tok_s": fig(v.tokS, 0.005*v.tokS), "s_per_tok": fig(1/v.tokS, 0.005/v.tokS), "itl_s": {Value: 1 / v.tokS, Lo: math.NaN(), Hi: math.NaN()}},
			})
		}
	}
	e.Points = append(e.Points,
		Point{Key: "slow/32000/1", Variant: "slow", Engine: "sglang", Tokens: 32000, Concurrency: 1, Status: stat.Failed, FailureKind: "gpu-oom", FailureStage: "decode", Evidence: "CUDA out of memory"},
		Point{Key: "fast/32000/1", Variant: "fast", Engine: "sglang", Tokens: 32000, Concurrency: 1, Status: stat.Invalid, Reason: "cache_hit"},
		Point{Key: "fast/64000/1", Variant: "fast", Engine: "sglang", Tokens: 64000, Concurrency: 1, Status: stat.Unresolved, Reason: "wide_interval"},
		Point{Key: "slow/64000/1", Variant: "slow", Engine: "sglang", Tokens: 64000, Concurrency: 1, Status: stat.Skipped, Reason: "skip_longer"},
	)
	e.Fits = []Fit{{Variant: "slow", Engine: "sglang", Concurrency: 1, ContextMin: 1000, ContextMax: 16000, Figures: map[string]Figure{Slope: fig(2.7e-6, 1e-7), ReadRate: fig(30, 1)}, PeakGBs: 3350}}
	return e
}

func at(variant string, context int) *schema.At {
	return &schema.At{Variant: variant, Context: context}
}

func TestVerdicts(t *testing.T) {
	on := map[string]any{"gpu": "H100", "engine": "sglang", "model": "m"}
	absolute := func(expect string, tol float64) schema.Claim {
		return schema.Claim{Kind: "absolute", Metric: "decode_tok_s", At: at("slow", 1000), Expect: num(expect), Tolerance: &tol}
	}
	relative := func(variant string, context int, expect string) schema.Claim {
		return schema.Claim{Kind: "relative", Metric: "decode_tok_s", At: at(variant, context), Expect: num(expect)}
	}
	shape := func(c schema.Claim) schema.Claim {
		c.Kind, c.Metric = "shape", "decode_tok_s"
		return c
	}
	for name, c := range map[string]struct {
		claim   schema.Claim
		on      map[string]any
		verdict string
	}{
		"absolute":                        {absolute("100", 2), on, Reproduced},
		"absolute, beside it":             {absolute("110", 2), on, Deviates},
		"absolute, across":                {absolute("100.6", 0.6), on, Inconclusive},
		"no finer than printed":           {absolute("100", 0), on, Reproduced},
		"relative":                        {relative("slow", 1000, "105"), on, Reproduced},
		"relative, too far":               {relative("slow", 1000, "120"), on, Deviates},
		"a label that is off by 4 %":      {relative("slow", 1040, "105"), on, Reproduced},
		"a label that is off by 40 %":     {relative("slow", 1400, "105"), on, NotMeasured},
		"without an interval":             {schema.Claim{Kind: "relative", Metric: "itl_s", At: at("slow", 1000), Expect: num("0.010")}, on, Inconclusive},
		"of no column":                    {schema.Claim{Kind: "relative", Metric: "mem_bytes", At: at("slow", 1000), Expect: num("1")}, on, NotMeasured},
		"of no variant":                   {relative("nobody", 1000, "100"), on, NotMeasured},
		"of any variant":                  {relative("", 1000, "100"), on, NotMeasured},
		"of no context":                   {relative("slow", 0, "100"), on, NotMeasured},
		"of a failed point":               {relative("slow", 32000, "10"), on, NotMeasured},
		"of an invalid point":             {relative("fast", 32000, "90"), on, Invalid},
		"of an unresolved point":          {relative("fast", 64000, "90"), on, Inconclusive},
		"on another card":                 {relative("slow", 1000, "100"), map[string]any{"gpu": "A100"}, OutOfScope},
		"on a card that is not told":      {relative("slow", 1000, "100"), nil, OutOfScope},
		"for another engine":              {relative("slow", 1000, "100"), map[string]any{"gpu": "H100", "engine": "vllm"}, OutOfScope},
		"for another model":               {relative("slow", 1000, "100"), map[string]any{"gpu": "H100", "model": "other"}, OutOfScope},
		"on more cards":                   {relative("slow", 1000, "100"), map[string]any{"gpu": "H100", "count": json.Number("8")}, OutOfScope},
		"a ratio on another card":         {schema.Claim{Kind: "ratio", Metric: "decode_tok_s", Num: at("fast", 16000), Den: at("slow", 16000), Expect: num("4.5")}, map[string]any{"gpu": "A100"}, Reproduced},
		"a ratio, off":                    {schema.Claim{Kind: "ratio", Metric: "decode_tok_s", Num: at("fast", 16000), Den: at("slow", 16000), Expect: num("6")}, nil, Deviates},
		"a ratio of at least":             {schema.Claim{Kind: "ratio", Metric: "decode_tok_s", Num: at("fast", 16000), Den: at("slow", 16000), AtLeast: ptr(4.0)}, nil, Reproduced},
		"an order":                        {schema.Claim{Kind: "order", Metric: "decode_tok_s", At: at("", 1000), Order: []string{"slow", "fast"}}, nil, Reproduced},
		"an order, the other way round":   {schema.Claim{Kind: "order", Metric: "decode_tok_s", At: at("", 1000), Order: []string{"fast", "slow"}}, nil, Deviates},
		"a slowdown":                      {shape(schema.Claim{Of: "slow", Slowdown: &schema.Slowdown{From: 1000, To: 16000, AtLeast: ptr(4.0)}}), nil, Reproduced},
		"a slowdown of more":              {shape(schema.Claim{Of: "slow", Slowdown: &schema.Slowdown{From: 1000, To: 16000, AtLeast: ptr(7.0)}}), nil, Deviates},
		"falling":                         {shape(schema.Claim{Of: "slow", Monotone: "decreasing"}), nil, Reproduced},
		"rising":                          {shape(schema.Claim{Of: "slow", Monotone: "increasing"}), nil, Deviates},
		"flat, with a hole":               {shape(schema.Claim{Of: "fast", FlatWithin: ptr(0.05)}), nil, Reproduced},
		"flat, which it is not":           {shape(schema.Claim{Of: "slow", FlatWithin: ptr(0.05)}), nil, Deviates},
		"a line":                          {schema.Claim{Kind: "shape", Metric: "s_per_tok", Of: "slow", LinearIn: "context", R2AtLeast: ptr(0.97)}, nil, Reproduced},
		"no line":                         {shape(schema.Claim{Of: "slow", LinearIn: "context"}), nil, Deviates},
		"a crossover":                     {shape(schema.Claim{Crossover: &schema.Crossover{A: "slow", B: "fast", Between: []int{1000, 4000}}}), nil, Reproduced},
		"a crossover too soon":            {shape(schema.Claim{Crossover: &schema.Crossover{A: "slow", B: "fast", Between: []int{2000, 4000}}}), nil, Deviates},
		"a slope":                         {schema.Claim{Kind: "slope", Of: "slow", Expect: num("2.7e-6")}, on, Reproduced},
		"a slope, off":                    {schema.Claim{Kind: "slope", Of: "slow", Expect: num("6.3e-6")}, on, Deviates},
		"a slope of nothing":              {schema.Claim{Kind: "slope", Of: "fast", Expect: num("6.3e-6")}, on, NotMeasured},
		"a share of the peak":             {schema.Claim{Kind: "shape", Of: "slow", AtMostFractionOfPeak: ptr(0.02)}, nil, Reproduced},
		"a bound":                         {schema.Claim{Kind: "bound", Metric: ReadRate, Of: "slow", AtMost: ptr(3350.0)}, on, Reproduced},
		"a bound that is broken":          {schema.Claim{Kind: "bound", Metric: ReadRate, Of: "slow", AtMost: ptr(20.0)}, on, Invalid},
		"a crash":                         {schema.Claim{Kind: "event", At: at("slow", 32000), Event: "gpu-oom", Match: "CUDA out of memory", Stage: "decode"}, nil, Reproduced},
		"a crash in another stage":        {schema.Claim{Kind: "event", At: at("slow", 32000), Event: "gpu-oom", Stage: "load"}, nil, Deviates},
		"a crash with other words":        {schema.Claim{Kind: "event", At: at("slow", 32000), Event: "gpu-oom", Match: "NCCL"}, nil, Inconclusive},
		"no crash":                        {schema.Claim{Kind: "event", At: at("slow", 16000), Event: "gpu-oom"}, nil, Deviates},
		"it lives":                        {schema.Claim{Kind: "event", At: at("slow", 16000), Event: "ok"}, nil, Reproduced},
		"skipped":                         {schema.Claim{Kind: "event", At: at("slow", 64000), Event: "gpu-oom"}, nil, NotMeasured},
		"recomputed":                      {schema.Claim{Kind: "recompute", Formula: "16/(t_b-t_a)", Inputs: map[string]any{"t_a": num("0.46"), "t_b": num("0.60")}, Expect: num("109.2")}, nil, Reproduced},
		"recomputed, wrong":               {schema.Claim{Kind: "recompute", Formula: "16/(t_b-t_a)", Inputs: map[string]any{"t_a": num("0.46"), "t_b": num("0.60")}, Expect: num("13.8")}, nil, Deviates},
		"recomputed by zero":              {schema.Claim{Kind: "recompute", Formula: "1/(t_b-t_a)", Inputs: map[string]any{"t_a": num("0.46"), "t_b": num("0.46")}, Expect: num("13.8")}, nil, NotMeasured},
		"recomputed by what is not there": {schema.Claim{Kind: "recompute", Formula: "os.Exit(1)", Expect: num("13.8")}, nil, NotMeasured},
		"of no kind":                      {schema.Claim{Kind: "vibe"}, nil, NotMeasured},
	} {
		r := Judge(map[string]schema.Published{"p": {MeasuredOn: c.on, Claims: map[string]schema.Claim{name: c.claim}}}, evidence())
		if len(r) != 1 || r[0].Verdict != c.verdict || r[0].Detail == "" {
			t.Errorf("%s: %+v, want %s", name, r, c.verdict)
		}
	}
}

// A scope may be narrowed or widened by the claim.
func TestScope(t *testing.T) {
	for name, c := range map[string]struct {
		scope   schema.Scope
		on      string
		gpus    []string
		dummy   bool
		verdict string
	}{
		"any":                              {schema.Scope{Hardware: "any"}, "A100", []string{"NVIDIA H100"}, false, Reproduced},
		"the same family":                  {schema.Scope{Hardware: "arch"}, "H200", []string{"NVIDIA H100 80GB HBM3"}, false, Reproduced},
		"another family":                   {schema.Scope{Hardware: "arch"}, "A100", []string{"NVIDIA H100"}, false, OutOfScope},
		"a family that nobody knows":       {schema.Scope{Hardware: "arch"}, "X9", []string{"Y7"}, false, OutOfScope},
		"no GPU":                           {schema.Scope{}, "H100", nil, false, OutOfScope},
		"random weights":                   {schema.Scope{}, "H100", []string{"NVIDIA H100"}, true, OutOfScope},
		"random weights of the same shape": {schema.Scope{Model: "shape"}, "H100", []string{"NVIDIA H100"}, true, Reproduced},
		"a longer name":                    {schema.Scope{}, "RTX PRO 6000 Blackwell", []string{"NVIDIA RTX PRO 6000 Blackwell Server Edition"}, false, Reproduced},
		"not its elder":                    {schema.Scope{}, "RTX PRO 6000 Blackwell", []string{"NVIDIA RTX 6000 Ada Generation"}, false, OutOfScope},
	} {
		e := evidence()
		e.GPUs, e.Dummy = c.gpus, c.dummy
		claim := schema.Claim{Kind: "relative", Metric: "decode_tok_s", At: at("slow", 1000), Expect: num("100"), Scope: c.scope}
		r := Judge(map[string]schema.Published{"p": {MeasuredOn: map[string]any{"gpu": c.on}, Claims: map[string]schema.Claim{"c": claim}}}, e)
		if r[0].Verdict != c.verdict {
			t.Errorf("%s: %s (%s), want %s", name, r[0].Verdict, r[0].Detail, c.verdict)
		}
	}
}

// Each cell is a claim of its own, held with the tolerance of its definition.
func TestCells(t *testing.T) {
	p := schema.Published{MeasuredOn: map[string]any{"gpu": "H100"}, Cells: map[string]map[string]map[string]any{
		"decode_tok_s": {"slow": {"1000": num("108"), "2000": map[string]any{"value": num("70.0"), "plus_minus": num("5")}, "4000": nil, "16000": num("30")}},
		"event":        {"slow": {"32000": "gpu-oom"}},
	}}
	want := map[string]string{
		"p/decode_tok_s/slow/1000": Reproduced, "p/decode_tok_s/slow/2000": Reproduced, "p/decode_tok_s/slow/16000": Deviates, "p/event/slow/32000": Reproduced,
	}
	for _, r := range Judge(map[string]schema.Published{"p": p}, evidence()) {
		if r.Verdict != want[r.ID] {
			t.Errorf("%s: %s (%s), want %s", r.ID, r.Verdict, r.Detail, want[r.ID])
		}
		delete(want, r.ID)
	}
	if len(want) > 0 {
		t.Errorf("no verdict on %v", want)
	}
	p.Definition = "llama_bench" // which measures something else: 25 % instead of 10
	for _, r := range Judge(map[string]schema.Published{"p": p}, evidence()) {
		if r.ID == "p/decode_tok_s/slow/1000" && (math.Abs(r.Lo-0.75*108) > 1e-9 || math.Abs(r.Hi-1.25*108) > 1e-9) {
			t.Errorf("accepted %g to %g", r.Lo, r.Hi)
		}
	}
}

func TestRounding(t *testing.T) {
	for text, want := range map[string]float64{"109.2": 0.05, "3181": 0.5, "0.60": 0.005, "6.34e-6": 5e-9, "1e3": 500, "-2.50": 0.005, "": 0, "x": 0} {
		if got := Rounding(num(text)); math.Abs(got-want) > 1e-12*math.Max(want, 1e-6) {
			t.Errorf("%q: %g, want %g", text, got, want)
		}
	}
}

// Printed tables are evidence with the intervals that they print.
func TestPrinted(t *testing.T) {
	e := Printed(schema.Published{Cells: map[string]map[string]map[string]any{
		"decode_tok_s": {"v": {"1000": num("100"), "2000": map[string]any{"value": num("50.0"), "plus_minus": num("2")}, "4000": num("25"), "8000": num("12.5")}},
		"event":        {"v": {"16000": "gpu-oom", "8000": "ok"}},
	}})
	said := map[string]string{}
	for _, p := range e.Points {
		f := p.Figures["decode_tok_s"]
		said[p.Key] = strings.TrimSpace(fmt.Sprintf("%s%s %g %g %s", p.Status, p.FailureKind, f.Lo, f.Hi, f.By))
	}
	for key, want := range map[string]string{"v/1000/1": "ok 99.5 100.5 rounding", "v/2000/1": "ok 48 52 printed ±", "v/8000/1": "ok 12.45 12.55 rounding", "v/16000/1": "failedgpu-oom 0 0"} {
		if said[key] != want {
			t.Errorf("%s: %q, want %q", key, said[key], want)
		}
	}
	if len(e.Fits) != 1 || e.Fits[0].Figures[Slope].Value <= 0 || !(e.Fits[0].Figures[Slope].Lo <= e.Fits[0].Figures[Slope].Value) {
		t.Errorf("fits %+v", e.Fits)
	}
}

// No claim, however odd, ends the judging.
func FuzzFormula(f *testing.F) {
	for _, s := range []string{"16/(t_b-t_a)", "a*-b", "(", "1/0", "a[0]", "x()", "1e999", "((((a))))", "a+a+a"} {
		f.Add(s, "0.46", "0.60")
	}
	f.Fuzz(func(t *testing.T, formula, a, b string) {
		c := schema.Claim{Kind: "recompute", Formula: formula, Inputs: map[string]any{"a": num(a), "t_a": num(a), "t_b": num(b), "b": num(b)}, Expect: num(a)}
		r := Judge(map[string]schema.Published{"p": {Claims: map[string]schema.Claim{"c": c}}}, Evidence{})
		if r[0].Verdict == "" {
			t.Errorf("no verdict on %q", formula)
		}
	})
}
