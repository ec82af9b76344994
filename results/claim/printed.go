package claim

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"twopoint/results/stat"
	"twopoint/schema"
)

// Printed is a published table as the evidence of its own claims: each cell a point
// with the interval that is printed or, failing that, that of its last digit. What a
// table says is thereby held to what its text says.
func Printed(p schema.Published) Evidence {
	e := Evidence{Published: true}
	points := map[string]*Point{}
	at := func(variant, tokens string) *Point {
		key := variant + "/" + tokens + "/1"
		if points[key] == nil {
			n, _ := strconv.ParseFloat(tokens, 64)
			points[key] = &Point{Key: key, Variant: variant, Tokens: n, Concurrency: 1, Status: stat.OK, Figures: map[string]Figure{}}
		}
		return points[key]
	}
	for metric, variants := range p.Cells {
		for variant, cells := range variants {
			for tokens, cell := range cells {
				c, ok := cellClaim(metric, variant, tokens, cell)
				switch {
				case !ok:
				case c.Kind == "event":
					if c.Event != stat.OK {
						pt := at(variant, tokens)
						pt.Status, pt.FailureKind = stat.Failed, c.Event
					}
				default:
					x, _ := number(c.Expect)
					f := Figure{Value: x, Lo: x - Rounding(c.Expect), Hi: x + Rounding(c.Expect), By: ByRounding}
					if pm := c.PlusMinus; pm != nil {
						f = Figure{Value: x, Lo: x - *pm, Hi: x + *pm, By: ByPrinted}
					}
					at(variant, tokens).Figures[metric] = f
				}
			}
		}
	}
	lines := map[string][]place{}
	for _, key := range slices.Sorted(maps.Keys(points)) {
		pt := points[key]
		inverse(pt.Figures, "decode_tok_s", "s_per_tok")
		inverse(pt.Figures, "s_per_tok", "decode_tok_s")
		e.Points = append(e.Points, *pt)
		if f, ok := pt.Figures["s_per_tok"]; ok {
			lines[pt.Variant] = append(lines[pt.Variant], place{pt.Tokens, f})
		}
	}
	for _, variant := range slices.Sorted(maps.Keys(lines)) {
		if line := lines[variant]; len(line) >= 4 {
			slices.SortFunc(line, func(x, y place) int { return int(x.x - y.x) })
			e.Fits = append(e.Fits, Fit{
				Variant: variant, Concurrency: 1, ContextMin: line[0].x, ContextMax: line[len(line)-1].x,
				Figures: map[string]Figure{Slope: drawn(line, slopeOf)},
			})
		}
	}
	return e
}

// inverse adds a metric that is one over another where the table has the other alone.
func inverse(figures map[string]Figure, of, name string) {
	f, ok := figures[of]
	if _, has := figures[name]; ok && !has && f.Lo > 0 {
		figures[name] = Figure{Value: 1 / f.Value, Lo: 1 / f.Hi, Hi: 1 / f.Lo, By: f.By}
	}
}

// drawn is a figure over a curve, with the interval in which 95 of 100 lie whose
// points are drawn from theirs. The seed is fixed, so that a verdict does not change
// from one look to the next.
func drawn(line []place, of func(xs, ys []float64) float64) Figure {
	xs, ys := make([]float64, len(line)), make([]float64, len(line))
	for i, a := range line {
		xs[i], ys[i] = a.x, a.f.Value
	}
	f := Figure{Value: of(xs, ys), Lo: math.NaN(), Hi: math.NaN(), By: line[0].f.By}
	if slices.ContainsFunc(line, func(a place) bool { return math.IsNaN(a.f.Lo) }) {
		return f
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	draws := make([]float64, 999)
	for i := range draws {
		for k, a := range line {
			ys[k] = a.f.Value + rnd.NormFloat64()*(a.f.Hi-a.f.Lo)/(2*1.96)
		}
		draws[i] = of(xs, ys)
	}
	slices.Sort(draws)
	f.Lo, f.Hi = min(f.Value, draws[24]), max(f.Value, draws[974])
	return f
}

func sums(xs, ys []float64) (sxx, sxy, syy float64) {
	var mx, my float64
	for i := range xs {
		mx += xs[i] / float64(len(xs))
		my += ys[i] / float64(len(ys))
	}
	for i := range xs {
		sxx += (xs[i] - mx) * (xs[i] - mx)
		sxy += (xs[i] - mx) * (ys[i] - my)
		syy += (ys[i] - my) * (ys[i] - my)
	}
	return sxx, sxy, syy
}

func slopeOf(xs, ys []float64) float64 {
	sxx, sxy, _ := sums(xs, ys)
	return sxy / sxx
}

// determination is R² of a straight line.
func determination(xs, ys []float64) float64 {
	sxx, sxy, syy := sums(xs, ys)
	if sxx == 0 || syy == 0 {
		return 0
	}
	return sxy * sxy / (sxx * syy)
}
