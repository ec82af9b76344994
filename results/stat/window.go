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
// where the window rate is the tokens that arrive in the half-open window
// (latest first token, earliest last token], in which all requests decode, over
// its length.
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
	var tokens float64
	steps := math.MaxInt
	for _, s := range b {
		n := 0
		for i, k := range chunkTokens(s) {
			if t := *s.OffsetS + s.ChunkS[i]; t > open && t <= end {
				tokens += float64(k)
				n++
			}
		}
		steps = min(steps, n)
	}
	if steps < minWindowSteps {
		p.reason(NotConcurrent, "%d steps in the %.4g s in which all %d requests decode, %d needed", steps, end-open, r.requests(), minWindowSteps)
		return nil
	}
	window := end - open
	rate := perSecond(tokens, &window)
	if rate == nil {
		return nil
	}
	return finite(float64(r.requests()) / *rate)
}
