package claim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"twopoint/results/stat"
	"twopoint/schema"
)

// shape tests a predicate on a whole sweep. A claim may make several at once.
func (j *judgement) shape() {
	if x := j.c.Crossover; x != nil {
		j.crossover(*x)
		return
	}
	variant := j.variant()
	if variant == "" {
		j.say(NotMeasured, "the claim does not say which variant it is about")
		return
	}
	if !j.inScope(j.engine(variant)) {
		return
	}
	if share := j.c.AtMostFractionOfPeak; share != nil {
		j.fractionOfPeak(variant, *share)
		return
	}
	if s := j.c.Slowdown; s != nil {
		j.slowdown(variant, *s)
		return
	}
	line := j.curve(variant)
	if line == nil {
		return
	}
	switch {
	case j.c.Monotone != "":
		j.r.Published = j.c.Monotone
		var steps []step
		for i := 1; i < len(line); i++ {
			s := step{fmt.Sprintf("%s at %.0f over %.0f tokens", j.c.Metric, line[i].x, line[i-1].x), over(line[i].f, line[i-1].f), 1, math.Inf(1)}
			if j.c.Monotone == "decreasing" {
				s.lo, s.hi = math.Inf(-1), 1
			}
			steps = append(steps, s)
		}
		j.all(steps)
	case j.c.FlatWithin != nil:
		j.r.Published = fmt.Sprintf("flat within %g", *j.c.FlatWithin)
		var steps []step
		for i := range line {
			for k := range i {
				steps = append(steps, step{fmt.Sprintf("%s at %.0f over %.0f tokens", j.c.Metric, line[i].x, line[k].x), over(line[i].f, line[k].f), 1 / (1 + *j.c.FlatWithin), 1 + *j.c.FlatWithin})
			}
		}
		j.all(steps)
	case j.c.LinearIn != "":
		least := leastR2
		if x := j.c.R2AtLeast; x != nil {
			least = *x
		}
		j.r.Published = fmt.Sprintf("linear, R² at least %g", least)
		j.hold(drawn(line, determination), least, 1)
	default:
		j.say(NotMeasured, "the claim states no shape")
	}
}

// leastR2 is what makes a line, where a claim does not say (published.md).
const leastR2 = 0.99

// place is a figure of a curve at a number of tokens.
type place struct {
	x float64
	f Figure
}

// curve is the claim's metric of a variant over prompt tokens, at concurrency 1.
// Points that have no value count against the claim's being tested, unless they are
// longer than all that have: a server may die at the end of its sweep.
func (j *judgement) curve(variant string) []place {
	var points []Point
	for _, p := range j.e.Points {
		if p.Variant == variant && p.Concurrency == 1 {
			points = append(points, p)
		}
	}
	slices.SortFunc(points, func(x, y Point) int { return cmp.Compare(x.Tokens, y.Tokens) })
	for len(points) > 0 && points[len(points)-1].Status != stat.OK {
		points = points[:len(points)-1]
	}
	var out []place
	for _, p := range points {
		f, ok := j.value(p, j.c.Metric)
		if !ok {
			return nil
		}
		j.r.PointKeys = append(j.r.PointKeys, p.Key)
		out = append(out, place{p.Tokens, f})
	}
	if len(out) < 3 {
		j.say(NotMeasured, "%d points of %s have a value: a shape needs three", len(out), variant)
		return nil
	}
	return out
}

// slowdown is how many times longer a token takes at one context than at another.
func (j *judgement) slowdown(variant string, s schema.Slowdown) {
	lo, hi := math.Inf(-1), math.Inf(1)
	if s.AtLeast != nil {
		lo = *s.AtLeast
	}
	if s.AtMost != nil {
		hi = *s.AtMost
	}
	j.r.Published = "slowdown of " + span(lo, hi)
	from, ok := j.at(schema.At{Variant: variant, Context: s.From})
	if !ok {
		return
	}
	to, ok := j.at(schema.At{Variant: variant, Context: s.To})
	if !ok {
		return
	}
	r := over(to, from)
	if isRate(j.c.Metric) {
		r = over(from, to)
	}
	j.hold(r, lo, hi)
}

// isRate tells a metric that is the larger the better from a time.
func isRate(metric string) bool {
	switch metric {
	case "decode_tok_s", "decode_stream_tok_s", "prefill_tok_s", "output_tok_s", "kv_stream_gb_s", "eff_kv_gb_s":
		return true
	}
	return false
}

// crossover is one variant ahead of another at one context, and behind it at a longer
// one.
func (j *judgement) crossover(x schema.Crossover) {
	if len(x.Between) != 2 {
		j.say(NotMeasured, "a crossover lies between two contexts")
		return
	}
	j.r.Published = fmt.Sprintf("%s ahead of %s at %d, behind at %d", x.A, x.B, x.Between[0], x.Between[1])
	var steps []step
	for i, tokens := range x.Between {
		a, ok := j.at(schema.At{Variant: x.A, Context: tokens})
		if !ok {
			return
		}
		b, ok := j.at(schema.At{Variant: x.B, Context: tokens})
		if !ok {
			return
		}
		s := step{fmt.Sprintf("%s over %s at %d tokens", x.A, x.B, tokens), over(a, b), 1, math.Inf(1)}
		if (i == 1) == isRate(j.c.Metric) {
			s.lo, s.hi = math.Inf(-1), 1
		}
		steps = append(steps, s)
	}
	j.r.Variant = ""
	j.all(steps)
}

func (j *judgement) fractionOfPeak(variant string, share float64) {
	j.r.Published = fmt.Sprintf("at most %g of the device's read rate", share)
	j.c.Metric = ReadRate
	f, ok := j.fit(variant, 1)
	if !ok {
		return
	}
	if f.PeakGBs == 0 {
		j.say(NotMeasured, "the read rate of the device is not known")
		return
	}
	x := f.Figures[ReadRate]
	j.hold(Figure{Value: x.Value / f.PeakGBs, Lo: x.Lo / f.PeakGBs, Hi: x.Hi / f.PeakGBs, By: x.By}, math.Inf(-1), share)
}
