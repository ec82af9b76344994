package stat

import (
	"math"
	"slices"

	"twopoint/results/event"
)

// minWindowSteps is the number of arrivals that every request must have in the
// window for its rate to mean anything.
const minWindowSteps = 16

// makespan is the time from the first byte of a leg's earliest request to the
// last byte of its latest, and spread the time from the earliest first token to
// the latest. Both need the requests' common clock.
func (r Rules) makespan(samples []event.Sample) (span, spread *float64) {
	first, last := math.Inf(1), math.Inf(-1)
	earliest, latest := math.Inf(1), math.Inf(-1)
	for _, s := range samples {
		if s.OffsetS == nil {
			return nil, nil
		}
		first = min(first, *s.OffsetS)
		last = max(last, *s.OffsetS+s.TotalS)
		t := math.NaN()
		if x := r.ttft(s); x != nil {
			t = *s.OffsetS + *x
		}
		earliest, latest = math.Min(earliest, t), math.Max(latest, t)
	}
	return finite(last - first), finite(latest - earliest)
}

// window is the seconds per token of a leg of several requests: c / window rate,
// where the window rate is that of the tokens that arrive in the window from the
// latest first token to the earliest last token, in which all requests decode. It
// is the sum over requests of tokens after the first arrival in the window over the
// time from that to the last one.
//
// Dividing all tokens in the window by its length would lose a part of a step: a
// step ends all requests' tokens at once, the earliest last token is the first of
// them to arrive, and the other c − 1 lie just outside. That made the rate of 16
// requests over 32 steps 2.9 % too low.
func (p *Pair) window(b []event.Sample, r Rules) *float64 {
	open, end := math.Inf(-1), math.Inf(1)
	streams := make([][]arrival, len(b))
	for i, s := range b {
		as := arrivals(s)
		if s.OffsetS == nil || as == nil {
			p.reason(NotConcurrent, "leg b slot %d: no stream and clock to place its tokens in time", s.Slot)
			return nil
		}
		streams[i] = as
		open = max(open, *s.OffsetS+as[0].s)
		end = min(end, *s.OffsetS+as[len(as)-1].s)
	}
	if !(end > open) {
		p.reason(NotConcurrent, "one request of leg b ended %.4g s before another began to decode", open-end)
		return nil
	}
	c := float64(r.requests())
	var rate, edges float64 // sums over requests
	steps := math.MaxInt
	for i, s := range b {
		in := within(streams[i], open-*s.OffsetS, end-*s.OffsetS)
		steps = min(steps, len(in)-1)
		per := perToken(in)
		if per == nil {
			steps = 0
			continue
		}
		rate += 1 / *per
		edges += r.edgeError(s, in) / c
	}
	switch {
	case steps < minWindowSteps:
		p.reason(NotConcurrent, "%d steps in the %.4g s in which all %d requests decode, %d needed", max(steps, 0), end-open, r.requests(), minWindowSteps)
	case edges > heldError:
		p.reason(NotConcurrent, "tokens were held back on the way and arrived several together: the rate in the %.4g s in which all %d requests decode is uncertain by %.2g %%", end-open, r.requests(), 100*edges)
	default:
		return perSecond(c, &rate)
	}
	return nil
}

// within are the arrivals from open to end, with a nanosecond for rounding.
func within(as []arrival, open, end float64) []arrival {
	const tick = 1e-9
	lo := slices.IndexFunc(as, func(a arrival) bool { return a.s >= open-tick })
	if lo < 0 {
		return nil
	}
	n := slices.IndexFunc(as[lo:], func(a arrival) bool { return a.s > end+tick })
	if n < 0 {
		return as[lo:]
	}
	return as[lo : lo+n]
}
