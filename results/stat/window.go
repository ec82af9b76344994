package stat

import (
	"math"

	"twopoint/results/event"
)

// minWindowSteps is the number of arrivals that every request must have in the
// window for its rate to mean anything.
const minWindowSteps = 16

// makespan is the time from the first byte of a leg's earliest request to the
// last byte of its latest, and spread the time from the earliest first token to
// the latest. Both need the requests' common clock.
func makespan(samples []event.Sample) (span, spread *float64) {
	first, last := math.Inf(1), math.Inf(-1)
	earliest, latest := math.Inf(1), math.Inf(-1)
	for _, s := range samples {
		if s.OffsetS == nil {
			return nil, nil
		}
		first = min(first, *s.OffsetS)
		last = max(last, *s.OffsetS+s.TotalS)
		t := math.NaN()
		if x := ttft(s); x != nil {
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
	for _, s := range b {
		if s.OffsetS == nil || chunkTokens(s) == nil {
			p.reason(NotConcurrent, "leg b slot %d: no stream and clock to place its tokens in time", s.Slot)
			return nil
		}
		open = max(open, *s.OffsetS+s.ChunkS[0])
		end = min(end, *s.OffsetS+s.ChunkS[len(s.ChunkS)-1])
	}
	if !(end > open) {
		p.reason(NotConcurrent, "one request of leg b ended %.4g s before another began to decode", open-end)
		return nil
	}
	var rate float64
	steps := math.MaxInt
	for _, s := range b {
		var tokens, first, last float64
		n := -1 // arrivals after the first one
		for i, k := range chunkTokens(s) {
			switch t := *s.OffsetS + s.ChunkS[i]; {
			case t < open || t > end:
				continue
			case n < 0:
				first = t
			default:
				tokens, last = tokens+float64(k), t
			}
			n++
		}
		if tokens <= 0 || last <= first {
			n = 0
		}
		steps = min(steps, n)
		rate += tokens / (last - first)
	}
	if steps < minWindowSteps {
		p.reason(NotConcurrent, "%d steps in the %.4g s in which all %d requests decode, %d needed", steps, end-open, r.requests(), minWindowSteps)
		return nil
	}
	c := float64(r.requests())
	return perSecond(c, &rate)
}
