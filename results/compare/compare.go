// Package compare puts two runs beside each other: points with the same readable
// key come in, with their figures; the ratio of each with an interval and a verdict
// goes out, and where one run overtakes the other. It reads no file, and it names no
// winner of a sweep.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"twopoint/results/stat"
)

// Verdicts on the second run by the first, a closed list.
const (
	Faster        = "faster"
	Slower        = "slower"
	Same          = "same" // the interval of the ratio lies within the margin
	Ambiguous     = "ambiguous"
	NotComparable = "not comparable"
)

// Verdicts in the order in which they are counted.
var Verdicts = []string{Faster, Slower, Same, Ambiguous, NotComparable}

const (
	// level is the chance that any point of two runs of the same is called faster or
	// slower, over all points together.
	level = 0.05

	// betweenLives is how far two starts of one server may differ, as a share, where a
	// run's intervals know nothing of it: of fewer than three lives none does. It is
	// added to the interval of the ratio once for each such run, in quadrature. Starts
	// differ by placement in memory, by autotuning and by heat; 1 to 3 % is usual, and
	// whoever wants to tell less apart has `deployments: 3`.
	betweenLives = 0.02

	// Margin is the share within which two points are the same, where nobody says
	// otherwise.
	Margin = 0.05

	// samePrompt is how far prompts may differ in tokens, as a share.
	samePrompt = 0.02
)

// Quantity is a time that points are compared by, the smaller the better.
type Quantity struct {
	Mean, Lo, Hi *float64 // with a 95 % interval by Student's t; nil: none
}

// Point is one side of a comparison.
type Point struct {
	Key          string
	Variant      string
	Context      int64 // prompt tokens asked for
	Concurrency  int64
	Status       string
	Reason       string
	Method       string
	PromptTokens *int64
	AcceptLength *float64
	N            int64 // values behind an interval: pairs, or server lives
	Lives        int64

	Of      Quantity // what is compared
	PerStep Quantity // the same a forward pass; only for decode
}

// Ratio is one point of two runs.
type Ratio struct {
	Key         string
	Variant     string
	Context     int64
	Concurrency int64
	A, B        *Point // nil where a run has no such point

	Speedup float64 // time of A over time of B: above 1 B is faster; NaN where they cannot be compared
	Lo, Hi  float64 // of it, at a level that is corrected for the number of points
	P       float64 // that chance alone makes the two differ so, before correction
	PerStep bool    // compared by seconds a forward pass, since accept lengths differ
	Verdict string
	Why     string
}

// Points joins two runs by key and judges every point of either. margin is the share
// within which points are the same.
func Points(a, b []Point, margin float64) []Ratio {
	byKey := map[string]*Ratio{}
	var order []string
	at := func(p Point) *Ratio {
		if byKey[p.Key] == nil {
			byKey[p.Key] = &Ratio{Key: p.Key, Variant: p.Variant, Context: p.Context, Concurrency: p.Concurrency, Speedup: math.NaN(), Lo: math.NaN(), Hi: math.NaN(), P: math.NaN()}
			order = append(order, p.Key)
		}
		return byKey[p.Key]
	}
	for i := range a {
		at(a[i]).A = &a[i]
	}
	for i := range b {
		at(b[i]).B = &b[i]
	}
	out := make([]Ratio, len(order))
	m := 0
	for i, key := range order {
		out[i] = *byKey[key]
		if out[i].Why = out[i].obstacle(); out[i].Why == "" {
			m++
		}
	}
	for i := range out {
		if out[i].Why != "" {
			out[i].Verdict = NotComparable
			continue
		}
		out[i].judge(m, margin)
	}
	return out
}

// obstacle is why two points cannot be compared.
func (r *Ratio) obstacle() string {
	switch {
	case r.A == nil:
		return "the first run has no such point"
	case r.B == nil:
		return "the second run has no such point"
	case r.A.Status != stat.OK || r.B.Status != stat.OK:
		return fmt.Sprintf("%s and %s", said(r.A), said(r.B))
	case r.A.Method != r.B.Method:
		return fmt.Sprintf("measured by %s and by %s", r.A.Method, r.B.Method)
	}
	if x, y := r.A.PromptTokens, r.B.PromptTokens; x != nil && y != nil && math.Abs(float64(*x-*y)) > samePrompt*float64(max(*x, *y)) {
		return fmt.Sprintf("prompts of %d and %d tokens", *x, *y)
	}
	if !stat.SameAcceptLength(r.A.AcceptLength, r.B.AcceptLength) {
		if r.A.PerStep.Mean == nil || r.B.PerStep.Mean == nil {
			return fmt.Sprintf("accept lengths of %.3g and %.3g, and no seconds per step", *r.A.AcceptLength, *r.B.AcceptLength)
		}
		r.PerStep = true
	}
	x, y := r.quantities()
	if x.Mean == nil || y.Mean == nil || *x.Mean <= 0 || *y.Mean <= 0 {
		return "a run has no such figure there"
	}
	if x.Lo == nil || x.Hi == nil || y.Lo == nil || y.Hi == nil {
		return "a figure has no interval"
	}
	return ""
}

func said(p *Point) string {
	if p.Reason != "" && p.Status != stat.OK {
		return p.Status + " (" + p.Reason + ")"
	}
	return p.Status
}

func (r *Ratio) quantities() (x, y Quantity) {
	if r.PerStep {
		return r.A.PerStep, r.B.PerStep
	}
	return r.A.Of, r.B.Of
}

// judge computes the ratio with Welch's t on logarithms, where a standard error is a
// share, and its interval at the level of one of m points (Bonferroni's: simple, and
// right however points depend on each other).
func (r *Ratio) judge(m int, margin float64) {
	x, y := r.quantities()
	vx, dx := share(x, r.A.N)
	vy, dy := share(y, r.B.N)
	var lives float64
	for _, p := range []*Point{r.A, r.B} {
		if p.Lives < 3 {
			lives += betweenLives * betweenLives
		}
	}
	d := math.Log(*x.Mean / *y.Mean)
	se := math.Sqrt(vx + vy)
	df := dx + dy
	if se > 0 {
		df = max(min(dx, dy), (vx+vy)*(vx+vy)/(vx*vx/dx+vy*vy/dy))
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}
	// How lives differ is one chance for all points of a run, and not one for each.
	half := math.Hypot(t.Quantile(1-level/2/float64(m))*se, distuv.UnitNormal.Quantile(1-level/2)*math.Sqrt(lives))
	r.Speedup, r.Lo, r.Hi = math.Exp(d), math.Exp(d-half), math.Exp(d+half)
	r.P = 2 * distuv.UnitNormal.Survival(math.Abs(d)/max(math.Sqrt(se*se+lives), math.SmallestNonzeroFloat64))
	switch {
	case r.Lo > 1:
		r.Verdict = Faster
	case r.Hi < 1:
		r.Verdict = Slower
	case r.Lo >= 1/(1+margin) && r.Hi <= 1+margin:
		r.Verdict = Same
	default:
		r.Verdict = Ambiguous
	}
}

// share is the squared relative standard error of a mean, and its degrees of freedom.
func share(q Quantity, n int64) (v, df float64) {
	df = max(float64(n-1), 1)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Quantile(0.5 + stat.Level/2)
	se := (*q.Hi - *q.Lo) / 2 / t / *q.Mean
	return se * se, df
}

// Crossover is where two runs change places along a variant's contexts.
type Crossover struct {
	Variant     string
	Concurrency int64
	From, To    int64  // contexts between which it lies
	Before      string // verdict on the second run at From; at To it is the other one
}

// Crossovers finds neighbouring contexts, points without a clear verdict left out, at
// which the verdict turns from faster to slower or back.
func Crossovers(ratios []Ratio) []Crossover {
	type curve struct {
		variant     string
		concurrency int64
	}
	sorted := slices.Clone(ratios)
	slices.SortStableFunc(sorted, func(x, y Ratio) int { return cmp.Compare(x.Context, y.Context) })
	last := map[curve]Ratio{}
	var out []Crossover
	for _, r := range sorted {
		if r.Verdict != Faster && r.Verdict != Slower {
			continue
		}
		c := curve{r.Variant, r.Concurrency}
		if before, ok := last[c]; ok && before.Verdict != r.Verdict {
			out = append(out, Crossover{r.Variant, r.Concurrency, before.Context, r.Context, before.Verdict})
		}
		last[c] = r
	}
	return out
}
