package history

import (
	"fmt"
	"slices"

	"twopoint/results/event"
	"twopoint/results/stat"
)

// sweep is one variant at one concurrency over its contexts.
type sweep struct {
	variant     string
	concurrency int
}

// ends are the points of each sweep's shortest and longest context; one where
// they are the same.
func ends(points []*Point) map[sweep][]*Point {
	out := map[sweep][]*Point{}
	for _, p := range points {
		s := sweep{p.Variant, p.Concurrency}
		e := out[s]
		switch {
		case len(e) == 0:
			e = []*Point{p, p}
		case p.Context < e[0].Context:
			e[0] = p
		case p.Context > e[1].Context:
			e[1] = p
		}
		out[s] = e
	}
	for s, e := range out {
		out[s] = slices.Compact(e)
	}
	return out
}

// AtEnd tells whether the point has its variant's shortest or longest planned
// context at its concurrency.
func (p *Point) AtEnd() bool {
	return slices.Contains(p.history.ends[sweep{p.Variant, p.Concurrency}], p)
}

// confirmed is the estimate of a point that was measured on a cached prompt, as
// the cold pairs at the ends of its sweep confirm or refuse it.
func (h *History) confirmed(p *Point) stat.Point {
	e := *p.estimate
	doubt := func(format string, args ...any) {
		e.Doubts = append(slices.Clip(e.Doubts), stat.Finding{Code: stat.ColdUnverified, Detail: fmt.Sprintf(format, args...)})
	}
	for _, end := range h.ends[sweep{p.Variant, p.Concurrency}] {
		if end.estimate == nil && end != p {
			end.Estimate()
		}
		seen := false
		for _, pr := range end.of(event.RoleCold) {
			agrees, known, detail := stat.Cold(pr.Pair, end.stats(""))
			known = known && end.estimate.Status == stat.OK // else there is nothing to confirm
			if known && !agrees {
				return e.Refuse(stat.ColdDisagrees, fmt.Sprintf("%s: %s", end.Key, detail))
			}
			seen = seen || known
		}
		if !seen {
			doubt("no cold pair confirms the cached prompt at %s", end.Key)
		}
	}
	return e
}
