package stat

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"twopoint/schema"
)

// curve is a sweep whose means are exactly s(depth), with a relative standard
// deviation of rel between pairs.
func curve(contexts []float64, n int, rel float64, s func(depth float64) float64) (ps []FitPoint) {
	for _, c := range contexts {
		p := FitPoint{Context: c, A: 1, B: 33, N: n}
		p.Mean = s(p.Depth())
		p.Var = rel * rel * p.Mean * p.Mean
		ps = append(ps, p)
	}
	return ps
}

var eight = []float64{512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}

func TestFitExactLine(t *testing.T) {
	line := func(x float64) float64 { return 0.009 + 1.25e-6*x }
	for _, k := range []int{4, 8} {
		f, ok := FitLine(curve(eight[:k], 6, 0.01, line))
		if !ok || f.K != k || f.Nu != k-2 || f.Scaled || f.DF != float64(5*k) {
			t.Fatalf("%+v, %v", f, ok)
		}
		near(t, "α", &f.Alpha.Value, 0.009)
		near(t, "β·1e6", ptr(1e6*f.Beta.Value), 1.25)
		near(t, "relative sd", &f.RelSD, 0.01)
		if !f.Beta.Interval.Contains(1.25e-6) || !f.Alpha.Interval.Contains(0.009) || *f.Chi2 > 1e-12 || len(f.Steps) > 0 || f.Knee != nil {
			t.Errorf("%+v", f)
		}
	}
	if d := (FitPoint{Context: 1000, A: 1, B: 33}).Depth(); d != 1016.5 {
		t.Errorf("depth %g", d)
	}
	if _, ok := FitLine(curve(eight[:3], 6, 0.01, line)); ok {
		t.Error("a fit of three contexts")
	}
	if _, ok := FitLine(curve([]float64{512, 512, 1024, 2048}, 6, 0.01, line)); ok {
		t.Error("a fit of three different contexts")
	}
	flat, ok := FitLine(curve(eight, 6, 0.01, func(float64) float64 { return 0.009 }))
	if !ok || math.Abs(flat.Beta.Value) > 1e-18 || !flat.Beta.Interval.Contains(0) {
		t.Errorf("%+v, %v", flat.Beta, ok)
	}
	// Without any scatter between pairs or about the line, intervals are points.
	none, ok := FitLine(curve(eight, 6, 0, line))
	if !ok || none.Chi2 != nil || none.Beta.Interval.HalfWidth() > 1e-12*none.Beta.Value {
		t.Errorf("%+v, %v", none, ok)
	}
}

func TestFitByHand(t *testing.T) {
	// Four contexts whose relative weights are equal because the line is all but
	// flat: depths 1, 2, 3, 4 thousand, means 1000, 1001, 1001, 1002 units.
	var ps []FitPoint
	for i, s := range []float64{1000, 1001, 1001, 1002} {
		ps = append(ps, FitPoint{Context: 1000*float64(i+1) - 1, A: 1, B: 2, Mean: s, Var: 4, N: 4})
	}
	f, ok := FitLine(ps)
	if !ok || f.Scaled || f.DF != 12 {
		t.Fatalf("%+v, %v", f, ok)
	}
	// β = 3/5 per thousand; se = √(4/4 / 5) per thousand.
	if math.Abs(1000*f.Beta.Value-0.6) > 1e-3 || math.Abs(1000*f.Beta.SE-math.Sqrt(0.2)) > 1e-3 {
		t.Errorf("β %g ± %g", f.Beta.Value, f.Beta.SE)
	}
	// χ² = Σ residual² of −0.1, 0.3, −0.3, 0.1 over a variance of 1.
	if math.Abs(*f.Chi2-0.2) > 1e-3 {
		t.Errorf("χ² %g", *f.Chi2)
	}
}

func TestFitScalesWhereTheLineMisses(t *testing.T) {
	f, ok := FitLine(curve(eight, 6, 0.001, func(x float64) float64 { return 0.009 + 1e-11*x*x }))
	if !ok || !f.Scaled || f.DF != 6 || *f.Chi2 < 6 {
		t.Errorf("%+v, %v", f, ok)
	}
}

func TestExponent(t *testing.T) {
	f, ok := FitLine(curve(eight, 6, 0.01, func(x float64) float64 { return 1e-4 * math.Pow(x, 0.7) }))
	if !ok || f.Exponent == nil {
		t.Fatalf("%+v, %v", f, ok)
	}
	near(t, "exponent", &f.Exponent.Value, 0.7)
}

func TestFitProperties(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		ps := curve(eight, 6, 0.02, func(x float64) float64 { return (0.009 + 1e-6*x) * (1 + 0.01*rnd.NormFloat64()) })
		f, _ := FitLine(ps)
		rnd.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
		if g, _ := FitLine(ps); !reflect.DeepEqual(f, g) {
			t.Fatal("the order of the points matters")
		}
		k := math.Exp(rnd.NormFloat64())
		for i := range ps {
			ps[i].Mean *= k
			ps[i].Var *= k * k
		}
		g, _ := FitLine(ps)
		near(t, "scaled β", ptr(g.Beta.Value/(k*f.Beta.Value)), 1)
		near(t, "scaled interval", ptr(g.Beta.Interval.Hi/(k*f.Beta.Interval.Hi)), 1)
		near(t, "χ²", g.Chi2, *f.Chi2)
	}
}

func TestKnee(t *testing.T) {
	bent := func(x float64) float64 { return 0.009 + 1e-7*x + 2e-6*max(0, x-6000) }
	rnd := rand.New(rand.NewPCG(7, 8))
	ps := curve(eight, 6, 0.005, bent)
	for i := range ps {
		ps[i].Mean *= 1 + 0.002*rnd.NormFloat64()
	}
	f, ok := FitLine(ps)
	if !ok || f.Knee == nil {
		t.Fatalf("no knee in %+v", f)
	}
	k := *f.Knee
	if k.After != 4096 || k.Before != 8192 || math.Abs(k.Depth-6000) > 600 || math.Abs(k.SlopeAbove-2.1e-6) > 1e-7 || k.P >= 0.01 || len(f.Steps) > 0 {
		t.Errorf("%+v, steps %v", k, f.Steps)
	}
	if f, _ := FitLine(ps[:6]); f.Knee != nil {
		t.Error("a knee of six contexts")
	}
}

// Straight lines with noise rarely show a knee: the test's level is 1 %.
func TestNoKneeInNoise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	const sweeps = 2000
	knees, stepped := 0, 0
	for range sweeps {
		ps := curve(eight, 6, 0.03, func(x float64) float64 { return (0.009 + 1e-6*x) * (1 + 0.03/math.Sqrt(6)*rnd.NormFloat64()) })
		f, _ := FitLine(ps)
		if f.Knee != nil {
			knees++
		}
		if len(f.Steps) > 0 {
			stepped++
		}
	}
	t.Logf("of %d straight sweeps %.2f %% show a knee, %.2f %% a step", sweeps, 100*float64(knees)/sweeps, 100*float64(stepped)/sweeps)
	if knees > sweeps*15/1000 || stepped > sweeps/100 {
		t.Errorf("%d knees, %d with steps", knees, stepped)
	}
}

func TestCliff(t *testing.T) { // C-60
	cliff := func(contexts ...float64) []FitPoint {
		return curve(contexts, 6, 0.01, func(x float64) float64 {
			if x > 6000 {
				return 0.0725
			}
			return 0.009
		})
	}
	for _, contexts := range [][]float64{{1000, 2000, 4000, 8000}, {512, 1024, 2048, 4096, 8192}} {
		f, ok := FitLine(cliff(contexts...))
		if !ok || len(f.Steps) != 1 || f.Steps[0].To != contexts[len(contexts)-1] || math.Abs(f.Steps[0].Ratio-0.0725/0.009) > 1e-9 {
			t.Errorf("%v: steps %+v of %+v", contexts, f.Steps, f)
		}
	}
}

func TestSlopeRatio(t *testing.T) {
	f := Fit{Beta: Coefficient{Value: 3, SE: 0.03}, DF: 20}
	g := Fit{Beta: Coefficient{Value: 1, SE: 0.01}, DF: 20}
	r, ok := SlopeRatio(f, g)
	if !ok || r.Value != 3 || r.Interval == nil {
		t.Fatalf("%+v, %v", r, ok)
	}
	// To first order: 3 ± t·√(0.03² + 3²·0.01²), t(40) = 2.021.
	half := 2.0210753903062737 * 0.03 * math.Sqrt2
	if math.Abs(r.DF-40) > 1e-9 || math.Abs(r.Interval.HalfWidth()-half) > 0.01*half {
		t.Errorf("%+v ± %g, want ± %g", r, r.Interval.HalfWidth(), half)
	}
	if r, ok := SlopeRatio(f, Fit{Beta: Coefficient{Value: 1, SE: 1}, DF: 20}); !ok || r.Interval != nil {
		t.Errorf("a denominator that may be zero: %+v, %v", r, ok)
	}
	if _, ok := SlopeRatio(f, Fit{DF: 20}); ok {
		t.Error("a ratio to zero")
	}
}

func TestKVStream(t *testing.T) {
	k2 := schema.Model{Name: "kimi-k2.6", DType: "bf16", Layers: schema.Layers{Full: 61}, KV: schema.KV{MLA: &schema.MLA{Rank: 512, Rope: 64}}}
	qwen := schema.Model{Name: "qwen3-8b", DType: "bf16", Layers: schema.Layers{Full: 36}, KV: schema.KV{GQA: &schema.GQA{Heads: 8, HeadDim: 128}}}
	for _, c := range []struct {
		m       schema.Model
		tp, dcp int
		want    float64
	}{{k2, 8, 1, 70_272}, {k2, 8, 8, 8_784}, {qwen, 1, 1, 147_456}, {qwen, 2, 1, 73_728}, {qwen, 16, 1, 18_432}, {qwen, 0, 0, 147_456}} {
		got, err := KVBytesPerToken(c.m, c.tp, c.dcp)
		if err != nil || got != c.want {
			t.Errorf("%s tp %d dcp %d: %g, %v; want %g", c.m.Name, c.tp, c.dcp, got, err, c.want)
		}
	}
	// The origin: from 109.2 to 13.8 tok/s between 1424 and 11405 tokens.
	beta := (1/13.8 - 1/109.2) / (11405 - 1424)
	fit := Fit{Beta: Coefficient{Value: beta, Interval: Interval{0.9 * beta, 1.1 * beta}}}
	s, err := KVStreamGBs(k2, fit, 8, 1, 1, 1)
	if err != nil || math.Abs(s.GBs-11.1) > 0.05 {
		t.Errorf("%+v, %v; the origin reads 11.1 GB/s", s, err)
	}
	near(t, "lower bound", &s.Interval.Lo, s.GBs/1.1)
	if s2, _ := KVStreamGBs(k2, fit, 8, 1, 2, 8); math.Abs(s2.GBs/s.GBs-4) > 1e-12 {
		t.Errorf("eight requests on two replicas read %g times", s2.GBs/s.GBs)
	}
	if _, err := KVStreamGBs(k2, Fit{Beta: Coefficient{Value: -1}}, 8, 1, 1, 1); err == nil {
		t.Error("no error for a falling line")
	}
	for _, bad := range []schema.Model{{}, {DType: "bf16"}, {DType: "int3", KV: k2.KV, Layers: k2.Layers}, {DType: "bf16", KV: k2.KV}} {
		if _, err := KVBytesPerToken(bad, 1, 1); err == nil {
			t.Errorf("no error for %+v", bad)
		}
	}
	// 32e9 bytes over 8 GPUs at 1.8 TB/s take 2.2 ms.
	low := Fit{Alpha: Coefficient{Interval: Interval{0, 1.0e-3}}}
	high := Fit{Alpha: Coefficient{Interval: Interval{0, 1.2e-3}}}
	peak := 1800.0
	if !BelowWeights(low, WeightsS(32e9, 8, &peak)) || BelowWeights(high, WeightsS(32e9, 8, &peak)) || BelowWeights(low, WeightsS(0, 8, &peak)) || BelowWeights(low, WeightsS(32e9, 8, nil)) {
		t.Error("an intercept is too low below half of the weights' time")
	}
}
