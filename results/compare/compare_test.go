package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"twopoint/results/stat"
)

func ptr[T any](x T) *T { return &x }

// quantity is the mean of values with Student's interval.
func quantity(xs []float64) Quantity {
	var mean, q float64
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		q += (x - mean) * (x - mean)
	}
	n := float64(len(xs))
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975) * math.Sqrt(q/(n-1)/n)
	return Quantity{ptr(mean), ptr(mean - half), ptr(mean + half)}
}

func point(context int64, xs ...float64) Point {
	return Point{
		Key: fmt.Sprintf("v/%d/1", context), Variant: "v", Context: context, Concurrency: 1, Status: stat.OK, Method: "two_point",
		PromptTokens: &context, AcceptLength: ptr(1.0), N: int64(len(xs)), Lives: 3, Of: quantity(xs), PerStep: quantity(xs),
	}
}

func with(p Point, change func(*Point)) Point {
	change(&p)
	return p
}

func TestVerdicts(t *testing.T) {
	steady := point(1000, 0.0199, 0.0200, 0.0201)
	for name, c := range map[string]struct {
		a, b    Point
		verdict string
		why     string
	}{
		"a tenth faster":              {steady, point(1000, 0.0181, 0.0182, 0.0183), Faster, ""},
		"a tenth slower":              {steady, point(1000, 0.0219, 0.0220, 0.0221), Slower, ""},
		"the same":                    {steady, point(1000, 0.0199, 0.0200, 0.0202), Same, ""},
		"too much scatter":            {steady, point(1000, 0.015, 0.019, 0.024), Ambiguous, ""},
		"3 % between single lives":    {with(steady, func(p *Point) { p.Lives = 1 }), with(point(1000, 0.01939, 0.0194, 0.01941), func(p *Point) { p.Lives = 1 }), Ambiguous, ""},
		"10 % between single lives":   {with(steady, func(p *Point) { p.Lives = 1 }), with(point(1000, 0.0179, 0.0180, 0.0181), func(p *Point) { p.Lives = 1 }), Faster, ""},
		"no spread at all":            {point(1000, 0.02, 0.02, 0.02), point(1000, 0.02, 0.02, 0.02), Same, ""},
		"a failed point":              {steady, with(steady, func(p *Point) { p.Status, p.Reason = stat.Failed, "gpu-oom" }), NotComparable, "failed (gpu-oom)"},
		"another method":              {steady, with(steady, func(p *Point) { p.Method = "stream" }), NotComparable, "stream"},
		"other prompts":               {steady, with(steady, func(p *Point) { p.PromptTokens = ptr(int64(1400)) }), NotComparable, "1400"},
		"other accept lengths":        {steady, with(point(1000, 0.0099, 0.0100, 0.0101), func(p *Point) { p.AcceptLength, p.PerStep = ptr(2.0), quantity([]float64{0.0199, 0.02, 0.0201}) }), Same, ""},
		"accept lengths, but no step": {steady, with(point(1000, 0.0099, 0.01, 0.0101), func(p *Point) { p.AcceptLength, p.PerStep = ptr(2.0), Quantity{} }), NotComparable, "accept"},
		"no figure":                   {steady, with(steady, func(p *Point) { p.Of = Quantity{} }), NotComparable, "no such figure"},
		"no interval":                 {steady, with(steady, func(p *Point) { p.Of.Lo = nil }), NotComparable, "interval"},
	} {
		r := Points([]Point{c.a}, []Point{c.b}, Margin)
		if len(r) != 1 || r[0].Verdict != c.verdict || !strings.Contains(r[0].Why, c.why) || (r[0].Why == "") != (c.verdict != NotComparable) || (math.IsNaN(r[0].Speedup)) != (c.verdict == NotComparable) {
			t.Errorf("%s: %+v, want %s (%s)", name, r, c.verdict, c.why)
		}
	}
	r := Points([]Point{steady}, []Point{point(2000, 1, 2, 3)}, Margin)
	if len(r) != 2 || r[0].Verdict != NotComparable || r[1].Verdict != NotComparable || r[0].B != nil || r[1].A != nil {
		t.Errorf("points of one run alone: %+v", r)
	}
}

func TestCrossovers(t *testing.T) {
	flat := func(x float64) []float64 { return []float64{0.999 * x, x, 1.001 * x} }
	var a, b []Point
	for i, x := range []float64{0.8, 0.8, 1, 1.3, 1.3} {
		context := int64(1000 << i)
		a, b = append(a, point(context, flat(0.02)...)), append(b, point(context, flat(0.02*x)...))
	}
	got := Crossovers(Points(b, a, Margin)) // the second is slower first
	if len(got) != 1 || got[0].From != 2000 || got[0].To != 8000 || got[0].Before != Slower {
		t.Errorf("%+v", got)
	}
}

// A run and its own repetition are called different at few points, in whichever way
// their lives differ, and a true difference of 10 % at 2 % of noise is named.
func TestSimulated(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	run := func(points int, factor, noise, life float64) (out []Point) {
		life = 1 + life*rnd.NormFloat64() // all points of a run share it
		for i := range points {
			xs := make([]float64, 6)
			for k := range xs {
				xs[k] = 0.02 * factor * life * (1 + noise*rnd.NormFloat64())
			}
			out = append(out, with(point(int64(1000*(i+1)), xs...), func(p *Point) { p.Lives = 1 }))
		}
		return out
	}
	const repeats = 400
	for _, points := range []int{1, 6, 24} {
		for _, noise := range []float64{0.002, 0.02} {
			share := func(factor, life float64, verdicts string) float64 {
				n, hits := 0, 0
				for range repeats {
					for _, r := range Points(run(points, 1, noise, life), run(points, factor, noise, life), Margin) {
						n++
						if strings.Contains(verdicts, r.Verdict) {
							hits++
						}
					}
				}
				return float64(hits) / float64(n)
			}
			different := Faster + Slower
			alike, shifted, ten := share(1, 0, different), share(1, 0.015, different), share(1.10, 0, Slower)
			t.Logf("%d points, noise %g %%: called different %.2f %% where lives are alike, %.2f %% where they differ by 1.5 %%; 10 %% slower is named at %.1f %%", points, 100*noise, 100*alike, 100*shifted, 100*ten)
			if alike > 0.05 || shifted > 0.05 || ten < 0.90 {
				t.Errorf("%d points, noise %g: %g, %g, %g", points, noise, alike, shifted, ten)
			}
		}
	}
}
