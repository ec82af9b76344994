package stat

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

const (
	minFit      = 4    // contexts from which a line is fitted
	minKnee     = 7    // contexts from which a knee is looked for
	minSegment  = 3    // contexts on either side of a knee
	kneeLevel   = 0.01 // significance of a knee
	kneeGrid    = 64   // knee positions tried between two contexts
	stepFactor  = 2    // a step this many times what the line allows is listed
	minFitShare = 0.25 // a fitted value below this share of the mean is not used as a weight's scale
)

// FitPoint is one context of a sweep.
type FitPoint struct {
	Context float64 // prompt tokens L
	A, B    float64 // tokens of the legs, per request
	Mean    float64 // seconds per token or per step
	Var     float64 // sample variance of the values behind Mean
	N       int     // their number
}

// NewFitPoint is a point of a line through a figure in seconds; ok is false
// where the figure has no positive mean or no variance.
func NewFitPoint(context, a, b float64, f Figure) (p FitPoint, ok bool) {
	if f.Mean == nil || *f.Mean <= 0 || f.SD == nil {
		return p, false
	}
	return FitPoint{Context: context, A: a, B: b, Mean: *f.Mean, Var: *f.SD * *f.SD, N: f.N}, true
}

// Depth is the mean number of tokens in the KV cache while the tokens between
// the legs were decoded: L + (a+b−1)/2.
func (p FitPoint) Depth() float64 { return p.Context + (p.A+p.B-1)/2 }

func (p FitPoint) usable() bool {
	return p.Mean > 0 && p.Var >= 0 && p.N > 0 && finite(p.Mean) != nil && finite(p.Var) != nil && finite(p.Depth()) != nil && p.Depth() > 0
}

// Coefficient is a fitted number with its standard error and interval.
type Coefficient struct {
	Value, SE float64
	Interval  Interval
}

// Fit is the line s(L) = α + β·L through a sweep.
type Fit struct {
	K     int         // contexts
	Alpha Coefficient // seconds at no context
	Beta  Coefficient // context slope, seconds per context token

	RelSD float64  // pooled standard deviation of one pair, relative to the line
	Chi2  *float64 // of the means about the line; nil where pairs do not scatter at all
	Nu    int      // its degrees of freedom, K − 2

	// DF is the degrees of freedom of the intervals. Scaled: the means scatter
	// more than their pairs explain, so the standard errors are multiplied by
	// √(χ²/ν) and DF is Nu; otherwise DF is Σ(n_i − 1).
	DF     float64
	Scaled bool

	Residuals []Residual // by context

	Exponent *Coefficient // of a power law s ∝ depth^exponent
	Knee     *Knee        // nil: none found, or fewer than seven contexts
	Steps    []Step       // jumps between neighbours; empty where there is a knee
}

// Residual is how far one context lies from the line.
type Residual struct {
	Context  float64
	Depth    float64
	Relative float64  // (mean − line) / line's scale
	Sigmas   *float64 // over the standard error of the mean; nil where pairs do not scatter
}

// Knee is a change of slope.
type Knee struct {
	Depth         float64 // tokens in the KV cache at which the slope changes
	After, Before float64 // contexts (prompt tokens) between which it lies
	SlopeBelow    float64 // seconds per context token
	SlopeAbove    float64
	P             float64 // of the F test against the line, corrected for the places tried
}

// Step is a jump between neighbouring contexts that the line does not allow.
type Step struct {
	From, To float64 // contexts
	Ratio    float64 // of the means
	Excess   float64 // the jump over what the line allows
}

// FitLine fits s(L) = α + β·L by weighted least squares over the depth
// L + (a+b−1)/2; ok is false with fewer than four different usable contexts.
//
// The standard deviation of a pair is taken to be proportional to s, with one
// factor √v for the sweep: weights are n_i/(v·ŝ_i²), with ŝ the fitted line and
//
//	v = Σ (n_i − 1)·var_i/ŝ_i² / Σ (n_i − 1)
//
// repeated until the line stands still (iteratively reweighted least squares).
// Weights come from the line and not from each context's own few pairs, whose
// variance would reward contexts that happen to scatter little. With
// χ² = Σ weight·residual² and ν = K − 2 the intervals use Student's t with
// Σ(n_i − 1) degrees of freedom where χ²/ν ≤ 1. Otherwise the line misses by
// more than noise explains, and they use ν degrees and standard errors times
// √(χ²/ν), the Birge ratio.
func FitLine(points []FitPoint) (f Fit, ok bool) {
	var ps []FitPoint
	for _, p := range points {
		if p.usable() {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(p, q FitPoint) int {
		return cmp.Or(cmp.Compare(p.Depth(), q.Depth()), cmp.Compare(p.Mean, q.Mean), cmp.Compare(p.N, q.N), cmp.Compare(p.Var, q.Var))
	})
	distinct := map[float64]bool{}
	for _, p := range ps {
		distinct[p.Context] = true
	}
	if len(distinct) < minFit {
		return Fit{}, false
	}

	n := len(ps)
	x, y, scale, w := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	for i, p := range ps {
		x[i], y[i], scale[i] = p.Depth(), p.Mean, p.Mean
	}
	var l line
	for range 100 {
		for i, p := range ps {
			w[i] = float64(p.N) / (scale[i] * scale[i])
		}
		next := fitWeighted(x, y, w)
		still := math.Abs(next.b-l.b) <= 1e-12*math.Abs(next.b) && math.Abs(next.a-l.a) <= 1e-12*math.Abs(next.a)
		l = next
		for i := range ps {
			scale[i] = max(l.at(x[i]), minFitShare*y[i])
		}
		if still {
			break
		}
	}

	var v, free float64
	for i, p := range ps {
		v += float64(p.N-1) * p.Var / (scale[i] * scale[i])
		free += float64(p.N - 1)
	}
	if free > 0 {
		v /= free
	}
	f = Fit{K: n, Nu: n - 2, RelSD: math.Sqrt(v)}
	q := quality{v: v, free: free, nu: float64(f.Nu), rss: l.rss}
	f.Chi2, f.DF, f.Scaled = q.chi2(), q.df(), q.scaled()
	f.Alpha = q.coefficient(l.a, l.varA)
	f.Beta = q.coefficient(l.b, l.varB)
	for i, p := range ps {
		r := Residual{Context: p.Context, Depth: x[i], Relative: (y[i] - l.at(x[i])) / scale[i]}
		if v > 0 {
			r.Sigmas = finite(r.Relative / math.Sqrt(v/float64(p.N)))
		}
		f.Residuals = append(f.Residuals, r)
	}
	for _, c := range []Coefficient{f.Alpha, f.Beta} {
		if finite(c.Value) == nil || newInterval(c.Interval.Lo, c.Interval.Hi) == nil {
			return Fit{}, false
		}
	}
	f.Exponent = exponent(ps, x, y, v, free)
	if f.Knee = knee(ps, x, y, w, l); f.Knee == nil {
		f.Steps = steps(ps, x, y, scale, v, q, l)
	}
	return f, true
}

// quality is what turns the unit variances of a fit with weights n/ŝ² into
// standard errors.
type quality struct {
	v, free float64 // relative variance of a pair and its degrees of freedom
	nu      float64 // degrees of freedom of the residuals
	rss     float64 // weighted residual sum of squares
}

func (q quality) chi2() *float64 {
	if q.v <= 0 {
		return nil
	}
	return finite(q.rss / q.v)
}

func (q quality) scaled() bool { return q.free <= 0 || q.rss/q.nu > q.v }

func (q quality) df() float64 {
	if q.scaled() {
		return q.nu
	}
	return q.free
}

// variance is v, or v·χ²/ν = rss/ν where the residuals exceed it.
func (q quality) variance() float64 {
	if q.scaled() {
		return q.rss / q.nu
	}
	return q.v
}

func (q quality) coefficient(value, unitVar float64) Coefficient {
	se := math.Sqrt(q.variance() * unitVar)
	half := quantileT(q.df()) * se
	return Coefficient{Value: value, SE: se, Interval: Interval{value - half, value + half}}
}

// line is y = a + b·x with variances per unit weight and the weighted residual
// sum of squares.
type line struct{ a, b, varA, varB, rss float64 }

func (l line) at(x float64) float64 { return l.a + l.b*x }

func fitWeighted(x, y, w []float64) line {
	var sw, mx, my float64
	for i := range x {
		sw += w[i]
		mx += w[i] * x[i]
		my += w[i] * y[i]
	}
	mx, my = mx/sw, my/sw
	var sxx, sxy float64
	for i := range x {
		sxx += w[i] * (x[i] - mx) * (x[i] - mx)
		sxy += w[i] * (x[i] - mx) * (y[i] - my)
	}
	l := line{b: sxy / sxx, varB: 1 / sxx, varA: 1/sw + mx*mx/sxx}
	l.a = my - l.b*mx
	for i := range x {
		r := y[i] - l.at(x[i])
		l.rss += w[i] * r * r
	}
	return l
}

// exponent fits ln s over ln depth. The variance of ln s̄_i is about v/n_i (delta
// method), hence weights n_i; intervals as for the line.
func exponent(ps []FitPoint, x, y []float64, v, free float64) *Coefficient {
	lx, ly, w := make([]float64, len(x)), make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		lx[i], ly[i], w[i] = math.Log(x[i]), math.Log(y[i]), float64(ps[i].N)
	}
	l := fitWeighted(lx, ly, w)
	q := quality{v: v, free: free, nu: float64(len(x) - 2), rss: l.rss}
	c := q.coefficient(l.b, l.varB)
	if finite(c.Value) == nil || newInterval(c.Interval.Lo, c.Interval.Hi) == nil {
		return nil
	}
	return &c
}

// knee compares the line with two lines that meet (Hudson's continuous
// two-segment regression): least squares over the place of the knee, then the F
// test with 2 and K − 4 degrees of freedom. Since the place is chosen to look
// best, P is multiplied by the number of intervals tried (Bonferroni).
func knee(ps []FitPoint, x, y, w []float64, l line) *Knee {
	k := len(x)
	if k < minKnee {
		return nil
	}
	best, bestRSS, tried := Knee{}, math.Inf(1), 0
	bent := make([]float64, k)
	for i := minSegment - 1; i+minSegment < k; i++ {
		if x[i] == x[i+1] {
			continue
		}
		tried++
		for g := range kneeGrid + 1 {
			at := x[i] + (x[i+1]-x[i])*float64(g)/kneeGrid
			c, db, rss, ok := hinge(x, y, w, bent, at, l)
			if ok && rss < bestRSS {
				bestRSS = rss
				best = Knee{Depth: at, After: ps[i].Context, Before: ps[i+1].Context, SlopeBelow: l.b + db, SlopeAbove: l.b + db + c}
			}
		}
	}
	// Differences within rounding of a perfect line are no evidence.
	var total float64
	for i := range y {
		total += w[i] * y[i] * y[i]
	}
	gain := l.rss - bestRSS
	if tried == 0 || !(gain > 1e-18*total) {
		return nil
	}
	best.P = 0
	if bestRSS > 1e-18*total {
		free := float64(k - 4)
		best.P = min(1, float64(tried)*distuv.F{D1: 2, D2: free}.Survival(gain/2/(bestRSS/free)))
	}
	if best.P >= kneeLevel {
		return nil
	}
	return &best
}

// hinge adds c·max(0, x − at) to a fitted line. By the Frisch–Waugh theorem c
// is the regression of the line's residuals on what the line leaves of the
// hinge. It returns c, by how much b changes, and the residual sum of squares.
func hinge(x, y, w, bent []float64, at float64, l line) (c, db, rss float64, ok bool) {
	for i := range x {
		bent[i] = max(0, x[i]-at)
	}
	h := fitWeighted(x, bent, w)
	var shr, all float64
	for i := range x {
		shr += w[i] * (bent[i] - h.at(x[i])) * (y[i] - l.at(x[i]))
		all += w[i] * bent[i] * bent[i]
	}
	if h.rss <= 1e-12*all { // the hinge is a line itself
		return 0, 0, 0, false
	}
	c = shr / h.rss
	return c, -c * h.b, max(0, l.rss-c*shr), true
}

// steps lists neighbours whose means differ by more than twice what the line
// allows: its own step there plus what noise does to the difference of the two
// means.
func steps(ps []FitPoint, x, y, scale []float64, v float64, q quality, l line) []Step {
	var out []Step
	for i := 1; i < len(x); i++ {
		if x[i] == x[i-1] {
			continue
		}
		noise := math.Sqrt(v * (scale[i]*scale[i]/float64(ps[i].N) + scale[i-1]*scale[i-1]/float64(ps[i-1].N)))
		if q.free > 0 {
			noise *= quantileT(q.free)
		}
		allowed := math.Abs(l.b)*(x[i]-x[i-1]) + noise
		jump := math.Abs(y[i] - y[i-1])
		if jump > stepFactor*allowed && jump > 1e-9*y[i] {
			s := Step{From: ps[i-1].Context, To: ps[i].Context, Ratio: y[i] / y[i-1]}
			if allowed > 0 {
				s.Excess = min(jump/allowed, 1e6)
			} else {
				s.Excess = 1e6
			}
			out = append(out, s)
		}
	}
	return out
}

// Ratio is the quotient of two estimates. Interval is nil where the denominator
// may be zero: then no interval is bounded.
type Ratio struct {
	Value    float64
	Interval *Interval
	DF       float64
}

// SlopeRatio is the ratio β_f/β_g of two independent fits with the interval of
// Fieller's theorem: all θ with
//
//	(β_f − θ·β_g)² ≤ t²·(V_f + θ²·V_g)
//
// where t has the Welch–Satterthwaite degrees of freedom of that variance at
// the estimate. ok is false where β_g is 0.
func SlopeRatio(f, g Fit) (r Ratio, ok bool) {
	return fieller(f.Beta.Value, f.Beta.SE, f.DF, g.Beta.Value, g.Beta.SE, g.DF)
}

func fieller(x, seX, dfX, y, seY, dfY float64) (Ratio, bool) {
	value := finite(x / y)
	if value == nil || dfX <= 0 || dfY <= 0 {
		return Ratio{}, false
	}
	theta, vx, vy := *value, seX*seX, seY*seY
	r := Ratio{Value: theta, DF: welch(vx, dfX, theta*theta*vy, dfY)}
	t2 := math.Pow(quantileT(r.DF), 2)
	// (y² − t²·vy)·θ² − 2·x·y·θ + (x² − t²·vx) ≤ 0
	a, b, c := y*y-t2*vy, x*y, x*x-t2*vx
	if a <= 0 {
		return r, true
	}
	root := math.Sqrt(max(0, b*b-a*c))
	r.Interval = newInterval((b-root)/a, (b+root)/a)
	return r, true
}
