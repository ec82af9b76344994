package stat

import "twopoint/results/event"

// A repeated prompt whose time to first token is below suspectRatio of the cold
// one was answered from the cache; above coldRatio it was computed anew.
const coldRatio = 0.8

const maxTemplate = 0.25 // of a prompt's tokens

// ProbeVerdict judges the cache probe: the same prompt cold, again, and again
// after a flush, or without one where none is made: then a hit proves that
// nothing empties the cache. Reported cached counts decide where they are given, times to
// first token (total times where nothing streams) elsewhere. Between the two
// ratios nothing is proven.
//
// template says that what a cold prompt reports as cached may be a template that
// all prompts share: prompts are text, which a server may wrap, and begin with a
// nonce. Token ids are taken literally and share nothing. A share of the prompt
// above maxTemplate is no template but a cache that was not emptied, or a count
// that means something else.
func ProbeVerdict(samples []event.Sample, template bool) event.Probe {
	v := event.Probe{Proven: "unknown"}
	if len(samples) == 0 {
		return v
	}
	v.Context = samples[0].ContextRequested
	if c, n := samples[0].CachedTokens, samples[0].PromptTokens; template && c != nil && n != nil && float64(*c) <= maxTemplate*float64(*n) {
		v.Template = *c
	}
	if len(samples) < 3 {
		return v
	}
	cold, again, flushed := samples[0], samples[1], samples[2]
	v.HitRatio, v.FlushRatio = over(again, cold), over(flushed, cold)
	v.HitCached, v.Flushed = again.CachedTokens, flushed.CachedTokens
	switch {
	case v.HitCached != nil && v.Flushed != nil:
		if *v.Flushed > v.Template {
			v.Proven = "no"
		} else if *v.HitCached > v.Template {
			v.Proven = "yes"
		}
	case v.HitRatio != nil && v.FlushRatio != nil && *v.HitRatio < suspectRatio:
		if *v.FlushRatio > coldRatio {
			v.Proven = "yes"
		} else if *v.FlushRatio < suspectRatio {
			v.Proven = "no"
		}
	}
	if flushed.Flush == nil && v.Proven == "yes" { // not by a flush that was never made
		v.Proven = "unknown"
	}
	return v
}

// over is the ratio of two requests' times to first token.
func over(x, y event.Sample) *float64 {
	a, b := Rules{}.ttft(x), Rules{}.ttft(y)
	if a == nil || b == nil {
		a, b = positive(finite(x.TotalS)), positive(finite(y.TotalS))
	}
	if a == nil || b == nil {
		return nil
	}
	return finite(*a / *b)
}
