package history

import (
	"cmp"
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

// coldChecked is the estimate of a point that was measured on a cached prompt, as
// the cold pairs at the ends of its sweep confirm or refuse it.
func (h *History) coldChecked(p *Point) stat.Point {
	e := *p.estimate
	doubt := func(format string, args ...any) {
		e.Doubts = append(slices.Clip(e.Doubts), stat.Finding{Code: stat.ColdUnverified, Detail: fmt.Sprintf(format, args...)})
	}
	for _, end := range h.ends[sweep{p.Variant, p.Concurrency}] {
		if end.estimate == nil && end != p {
			end.Estimate()
		}
		switch v, detail := end.cold(); {
		case v == refuted, v == denied && end.estimate.Status == stat.OK: // else there is nothing to confirm
			return e.Refuse(stat.ColdDisagrees, fmt.Sprintf("%s: %s", end.Key, detail))
		case v != confirmed || end.estimate.Status != stat.OK:
			doubt("no cold pair confirms the cached prompt at %s", end.Key)
		}
	}
	return e
}

// verdict is what the cold pairs of a point say of its cached prompt.
type verdict int

const (
	unheard   verdict = iota // none is valid, or there are too few pairs to hold it against
	confirmed                // decode is the same after a cold prefill
	denied                   // it is not
	refuted                  // the count of cached tokens, on which all rests, is false
)

// maxCold is the number of cold pairs that a point gets at most.
const maxCold = 3

// ColdDue tells whether a point at an end of its sweep wants another cold pair: it
// has no valid one, or those that it has deny what one that was disturbed may have
// denied.
func (p *Point) ColdDue() bool {
	pairs := p.of(event.RoleCold)
	if !p.AtEnd() || len(pairs) >= maxCold {
		return false
	}
	v, _ := p.cold()
	valid := slices.ContainsFunc(pairs, func(pr *Pair) bool { return pr.Valid() })
	return v == denied || v != refuted && !valid
}

// cold is the verdict of the middle one of the point's cold pairs, so that one that
// was disturbed does not decide alone; of two the one that speaks against it more. A
// fresh prompt that was answered from the cache, by the server's word, refutes that
// word.
func (p *Point) cold() (v verdict, detail string) {
	type opinion struct {
		excess float64
		detail string
	}
	var said []opinion
	for _, pr := range p.of(event.RoleCold) {
		if i := slices.IndexFunc(pr.Pair.Reasons, func(f stat.Finding) bool { return f.Code == stat.CacheHit }); i >= 0 && p.history.Plan.Prompt.Nonce {
			return refuted, "the server reports cached tokens where there can be none, so that its count proves nothing: " + pr.Pair.Reasons[i].Detail
		}
		if excess, known, detail := stat.Cold(pr.Pair, p.stats("")); known {
			said = append(said, opinion{excess, detail})
		}
	}
	if len(said) == 0 {
		return unheard, ""
	}
	slices.SortFunc(said, func(x, y opinion) int { return cmp.Compare(x.excess, y.excess) })
	middle := said[len(said)/2]
	if middle.excess > 0 {
		return denied, middle.detail
	}
	return confirmed, middle.detail
}
