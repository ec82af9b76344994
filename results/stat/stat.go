// Package stat is all the arithmetic of a measurement: from the samples of a
// pair to its slopes and validity, from pairs to a point with its interval,
// from points to a line over context. Samples come in; pairs, points and fits
// go out. The live stopping rule and the tables call the same functions, so
// that the screen and the files cannot disagree.
//
// Everything here is pure: no clock, no file, no random number. No result
// depends on the order in which pairs are given. No NaN and no infinity leaves
// the package: a figure that does not exist is nil.
package stat

import (
	"math"
	"slices"
	"sync"

	"golang.org/x/perf/benchmath"
	"gonum.org/v1/gonum/stat/distuv"
)

// Level is the confidence level of every interval.
const Level = 0.95

// How an interval of a mean was made; stored beside it.
const (
	MethodPairs       = "student-t over pairs"
	MethodDeployments = "student-t over deployment means"
)

// Interval is a closed range that holds the true value with probability Level.
type Interval struct{ Lo, Hi float64 }

// HalfWidth is half the distance between the ends.
func (i Interval) HalfWidth() float64 { return (i.Hi - i.Lo) / 2 }

// Contains tells whether x lies in the interval, ends included.
func (i Interval) Contains(x float64) bool { return i.Lo <= x && x <= i.Hi }

// Inverse is the interval of 1/x, nil where the interval touches 0 or reaches
// below it: then 1/x has no upper end.
func (i *Interval) Inverse() *Interval {
	if i == nil || i.Lo <= 0 {
		return nil
	}
	return newInterval(1/i.Hi, 1/i.Lo)
}

// Figure is one quantity over repeated measurements.
type Figure struct {
	N        int       // values behind it: pairs, or deployments
	Mean     *float64  // nil where N is 0
	SD       *float64  // sample standard deviation, with n−1; nil below N = 2
	Interval *Interval // of the mean, Student's t with N−1 degrees; nil below N = 3

	Median         *float64
	MedianInterval *Interval // by order statistics; nil below N = 6

	// Disagree: the mean lies outside the median's interval or the median
	// outside the mean's, which outliers or skewed noise do.
	Disagree bool
}

// minInterval is the smallest number of values that has an interval.
const minInterval = 3

// minMedianInterval is the smallest number of values whose extremes enclose the
// median with probability Level: 1 − 2·(1/2)ⁿ ≥ 0.95.
const minMedianInterval = 6

// newFigure summarises values. The interval of the mean is Student's
// (mean ± t·s/√n), the median's is the sign test's, by order statistics
// (benchmath.AssumeNothing).
func newFigure(values []float64) Figure {
	xs := sorted(values)
	f := meanOnly(xs)
	if f.Mean == nil {
		return f
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(xs, &benchmath.DefaultThresholds), Level)
	f.Median = finite(s.Center)
	if f.N < minMedianInterval {
		return f
	}
	f.MedianInterval = newInterval(s.Lo, s.Hi)
	// A hair's breadth of slack keeps rounding from splitting equal values.
	slack := 1e-12 * math.Abs(*f.Mean)
	outside := func(x float64, i *Interval) bool {
		return i != nil && (x < i.Lo-slack || x > i.Hi+slack)
	}
	f.Disagree = outside(*f.Mean, f.MedianInterval) || outside(s.Center, f.Interval)
	return f
}

// sorted is a sorted copy, so that sums do not depend on the order given.
func sorted(values []float64) []float64 {
	xs := slices.Clone(values)
	slices.Sort(xs)
	return xs
}

// meanOnly is the figure of sorted values without its median.
func meanOnly(xs []float64) Figure {
	f := Figure{N: len(xs)}
	if f.N == 0 {
		return f
	}
	mean, sd := moments(xs)
	f.Mean = finite(mean)
	if f.N >= 2 {
		f.SD = finite(sd)
	}
	if f.N >= minInterval {
		half := quantileT(float64(f.N-1)) * sd / math.Sqrt(float64(f.N))
		f.Interval = newInterval(mean-half, mean+half)
	}
	return f
}

// rate turns the figure of a time into the figure of work per second: the mean
// and median are the inverses of the time's, each interval is the inverse of
// the time's interval. SD has no inverse and stays nil.
func (f Figure) rate(work float64) Figure {
	r := Figure{N: f.N, Disagree: f.Disagree}
	r.Mean = perSecond(work, f.Mean)
	r.Median = perSecond(work, f.Median)
	if r.Mean != nil {
		r.Interval = f.Interval.Inverse().times(work)
	}
	if r.Median != nil {
		r.MedianInterval = f.MedianInterval.Inverse().times(work)
	}
	return r
}

func (i *Interval) times(k float64) *Interval {
	if i == nil {
		return nil
	}
	return newInterval(i.Lo*k, i.Hi*k)
}

// relative is the half-width of the interval over the mean, the quantity that a
// target bounds. ok is false without an interval or a positive mean.
func (f Figure) relative() (r float64, ok bool) {
	if f.Interval == nil || f.Mean == nil || *f.Mean <= 0 {
		return 0, false
	}
	return f.Interval.HalfWidth() / *f.Mean, true
}

// moments returns mean and sample standard deviation, in two passes.
func moments(xs []float64) (mean, sd float64) {
	n := float64(len(xs))
	for _, x := range xs {
		mean += x
	}
	mean /= n
	var q float64
	for _, x := range xs {
		q += (x - mean) * (x - mean)
	}
	if len(xs) > 1 {
		sd = math.Sqrt(q / (n - 1))
	}
	return mean, sd
}

// quantileT is the factor of a two-sided interval at Level under Student's t
// with df degrees of freedom.
func quantileT(df float64) float64 {
	if t := smallT(); df >= 1 && df < float64(len(t)) && df == math.Trunc(df) {
		return t[int(df)]
	}
	return inverseT(df)
}

func inverseT(df float64) float64 {
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Quantile(0.5 + Level/2)
}

// smallT holds the factors for few degrees of freedom, which the stopping rule
// asks for after every pair.
var smallT = sync.OnceValue(func() (t [64]float64) {
	for df := 1; df < len(t); df++ {
		t[df] = inverseT(float64(df))
	}
	return t
})

func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func newInterval(lo, hi float64) *Interval {
	if finite(lo) == nil || finite(hi) == nil {
		return nil
	}
	return &Interval{lo, hi}
}

// perSecond is work/t, nil unless both are positive.
func perSecond(work float64, t *float64) *float64 {
	if t == nil || *t <= 0 || work <= 0 {
		return nil
	}
	return finite(work / *t)
}
