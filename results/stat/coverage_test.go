package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"twopoint/schema"
)

// noises are distributions of a pair's slope about its true value, with mean 0.
// Contaminated: one pair in ten scatters five times as far. Skewed: exponential.
var noises = []struct {
	name string
	draw func(r *rand.Rand) float64
}{
	{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }},
	{"contaminated", func(r *rand.Rand) float64 {
		x := r.NormFloat64()
		if r.Float64() < 0.1 {
			x *= 5
		}
		return x
	}},
	{"skewed", func(r *rand.Rand) float64 { return r.ExpFloat64() - 1 }},
}

// spreads are standard deviations of a pair's slope over its true value, from
// "met at once" to "never met" for a target of 3 %.
var spreads = []float64{0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.15, 0.20}

// truth is the seconds per token that simulated servers have.
const truth = 0.0123

// tally counts intervals that hold the truth.
type tally struct{ hits, of int }

func (c *tally) add(hit bool) {
	c.of++
	if hit {
		c.hits++
	}
}

func (c tally) percent() float64 { return 100 * float64(c.hits) / float64(max(c.of, 1)) }

func (c tally) String() string { return fmt.Sprintf("%5.1f %% of %5d", c.percent(), c.of) }

// simulate measures one point as a run does: pair after pair until Done, then
// Estimate.
func simulate(r *rand.Rand, rule schema.Repeats, draw func(*rand.Rand) float64, spread float64) (pt Point, why string) {
	var ps []Pair
	for {
		s := truth * (1 + spread*draw(r))
		ps = append(ps, Pair{DeploymentID: "o1-d1", Repeat: len(ps) + 1, Requests: 1, Order: []string{"ab", "ba"}[len(ps)%2], Main: &s, SPerTok: &s})
		if done, why := Done(ps, rule); done {
			return Estimate(ps, rule, ptr(truth)), why
		}
	}
}

// TestCoverage runs the stopping rule: over all points together the interval of
// the mean holds the true value in 93 to 97 % of points on normal and on
// contaminated noise, and the mean of the points reported as ok is off by less
// than 0.5 %. Points that met their target and points that did not are printed
// apart, as is skewed noise, for which Student's t is known to cover less.
func TestCoverage(t *testing.T) {
	const each = 1000
	for _, min := range []int{6, 3} {
		rule := schema.Repeats{Min: min, Max: 12, Target: 0.03}
		for _, noise := range noises {
			rnd := rand.New(rand.NewPCG(11, 12))
			var all, met, missed, okOnly, median tally
			var bias float64
			doubts := map[Code]int{}
			line := ""
			for _, spread := range spreads {
				var here tally
				for range each {
					pt, why := simulate(rnd, rule, noise.draw, spread)
					v := pt.Raw
					if pt.Status == OK {
						v = pt.Values
						bias += *v.SPerTok.Mean/truth - 1
						okOnly.add(v.SPerTok.Interval.Contains(truth))
					}
					hit := v.SPerTok.Interval.Contains(truth)
					here.add(hit)
					all.add(hit)
					if why == StopTarget {
						met.add(hit)
					} else {
						missed.add(hit)
					}
					if i := v.SPerTok.MedianInterval; i != nil {
						median.add(i.Contains(truth))
					}
					for _, d := range pt.Doubts {
						doubts[d.Code]++
					}
				}
				line += fmt.Sprintf("  %.3g:%.0f", 100*spread, here.percent())
			}
			bias /= float64(max(okOnly.of, 1))
			t.Logf("min %d, %s: all %v; met %v; missed %v; ok %v, bias %+.3f %%; median's interval %v; doubts %v", min, noise.name, all, met, missed, okOnly, 100*bias, median, doubts)
			t.Logf("    by spread in %%:%s", line)
			if met.of < all.of/4 || missed.of < all.of/4 || okOnly.of < all.of/2 {
				t.Errorf("min %d, %s: %d points met their target, %d missed it, %d are ok: the rule was not put to the test", min, noise.name, met.of, missed.of, okOnly.of)
			}
			if noise.name == "skewed" || min != 6 {
				continue
			}
			if p := all.percent(); p < 93 || p > 97 {
				t.Errorf("%s: intervals cover %.1f %%", noise.name, p)
			}
			if math.Abs(bias) > 0.005 {
				t.Errorf("%s: points reported as ok are off by %.2f %%", noise.name, 100*bias)
			}
		}
	}
}

// TestSlopeCoverage does the same for the context slope: sweeps whose contexts
// have unequal numbers of pairs, on a true line and on one that each context
// misses by 2 % for reasons of its own.
func TestSlopeCoverage(t *testing.T) {
	const sweeps = 1000
	const alpha, beta = 0.009, 1e-6
	for _, c := range []struct {
		name    string
		k       int
		scatter float64 // of each context's own true value about the line
		stopped bool    // numbers of pairs by the stopping rule, not drawn
	}{
		{"8 contexts", 8, 0, false}, {"8 contexts, stopping rule", 8, 0, true}, {"4 contexts", 4, 0, false}, {"4 contexts, stopping rule", 4, 0, true},
		{"8 contexts off the line", 8, 0.02, false}, {"4 contexts off the line", 4, 0.02, false},
	} {
		for _, noise := range noises {
			rnd := rand.New(rand.NewPCG(13, 14))
			var slope, intercept, quotient tally
			scaled := 0
			sweep := func(beta float64) Fit {
				spread := 0.02 * math.Exp(0.5*rnd.NormFloat64())
				var ps []FitPoint
				for _, context := range eight[8-c.k:] {
					p := FitPoint{Context: context, A: 1, B: 33}
					s := (alpha + beta*p.Depth()) * (1 + c.scatter*rnd.NormFloat64())
					n := 3 + rnd.IntN(13)
					var pairs []Pair
					var xs []float64
					for {
						x := s * (1 + spread*noise.draw(rnd))
						pairs, xs = append(pairs, Pair{Main: &x, SPerTok: &x}), append(xs, x)
						if !c.stopped {
							if len(pairs) == n {
								break
							}
						} else if done, _ := Done(pairs, rule); done {
							break
						}
					}
					p, _ = NewFitPoint(context, 1, 33, newFigure(xs))
					ps = append(ps, p)
				}
				f, ok := FitLine(ps)
				if !ok {
					t.Fatal("no fit")
				}
				return f
			}
			for range sweeps {
				f, g := sweep(beta), sweep(3*beta)
				slope.add(f.Beta.Interval.Contains(beta))
				intercept.add(f.Alpha.Interval.Contains(alpha))
				if r, ok := SlopeRatio(g, f); ok {
					quotient.add(r.Interval == nil || r.Interval.Contains(3))
				}
				if f.Scaled {
					scaled++
				}
			}
			t.Logf("%s, %s: β %v; α %v; ratio of β %v; scaled %.0f %%", c.name, noise.name, slope, intercept, quotient, 100*float64(scaled)/sweeps)
			if noise.name == "skewed" {
				continue
			}
			// Off the line the model is wrong by little more than the noise, and
			// whether χ² notices is chance: with four contexts 2 to 3 points are
			// lost.
			least := 93.0
			if c.scatter > 0 {
				least = 90
			}
			for what, got := range map[string]tally{"β": slope, "α": intercept, "ratio": quotient} {
				if p := got.percent(); p < least || p > 99 {
					t.Errorf("%s, %s: intervals of %s cover %.1f %%", c.name, noise.name, what, p)
				}
			}
		}
	}
}
