package history

import (
	"strings"

	"twopoint/results/event"
	"twopoint/results/stat"
)

// watch is what is known of an order's machine since its last reading.
type watch struct {
	span  stat.Span // the last reading between pairs, and those in the course of one since
	pairs []watched // that ended since
}

type watched struct {
	point *Point
	pair  *Pair
}

// telemetry takes a reading. It ends the span of the pairs that ended since the
// reading before, and begins the next one.
func (h *History) telemetry(e event.Event) {
	h.Readings = append(h.Readings, e)
	if h.watches == nil {
		h.watches = map[string]*watch{}
	}
	w := h.watches[e.Order]
	if w == nil {
		w = &watch{}
		h.watches[e.Order] = w
	}
	if e.Telemetry.Moment != event.MomentLaunch { // another life, perhaps another day: it says nothing about the pairs before
		w.span = append(w.span, *e.Telemetry)
	}
	if e.Telemetry.Moment == event.MomentDuring {
		return
	}
	span := w.span
	for _, p := range w.pairs {
		p.pair.span, p.pair.judged, p.point.estimate = span, false, nil
	}
	*w = watch{span: stat.Span{*e.Telemetry}}
}

// ended notes that a pair is over. The reading before it may have been made for
// another: readings are left out where they would cost too much.
func (h *History) ended(order string, p *Point, pr *Pair) {
	if w := h.watches[order]; w != nil {
		w.pairs = append(w.pairs, watched{p, pr})
	}
}

// disturb adds what the machine's sensors say against the pair.
func (pr *Pair) disturb(policy string) {
	found := pr.span.Foreign()
	if len(found) == 0 {
		return
	}
	f := stat.Finding{Code: stat.ForeignProcess, Detail: "another process computed on a GPU: " + strings.Join(found, "; ")}
	if policy == "stop" {
		pr.Pair.Reasons = append(pr.Pair.Reasons, f)
	} else {
		pr.Pair.Doubts = append(pr.Pair.Doubts, f)
	}
}

// Machine is what the readings around the point's pairs say, those of warm-up
// and pilots included: they ran under the same load.
func (p *Point) Machine() stat.Machine {
	var spans []stat.Span
	for _, k := range p.order {
		s := p.pairs[k].span
		if k.role == event.RoleDrift || len(s) == 0 {
			continue
		}
		if n := len(spans); n > 0 && &spans[n-1][0] == &s[0] {
			continue
		}
		spans = append(spans, s)
	}
	return stat.NewMachine(spans, p.history.Plan.Host.PowerW)
}

// PowerLimits are the caps in force that were read in lives of a variant's
// server, by GPU; empty where no sensor tells.
func (h *History) PowerLimits(variant string) map[int]float64 {
	out := map[int]float64{}
	for _, e := range h.Readings {
		t := e.Telemetry
		if l := h.lives[t.DeploymentID]; l == nil || l.Variant != variant {
			continue
		}
		for _, g := range t.GPUs {
			if g.PowerLimitW != nil {
				out[g.Index] = *g.PowerLimitW
			}
		}
	}
	return out
}
