package stat

import (
	"fmt"
	"strings"

	"gonum.org/v1/gonum/mathext"

	"twopoint/results/event"
	"twopoint/schema"
)

// Findings of the output gate.
const (
	// GateNeedle: a fact that stood in the prompt was asked for, and the answer does
	// not hold it.
	GateNeedle Code = "gate_needle_failed"
	// GateDisagrees: greedy outputs leave the baseline's sooner than the baseline's
	// own repetitions and rounding explain.
	GateDisagrees Code = "gate_disagrees"
	// GateDiffers: greedy outputs differ from the baseline's (or the baseline's from
	// its own) at some token, no sooner than rounding explains.
	GateDiffers Code = "gate_differs"
	// GateUnknown: a check that was asked for has no result, or not all of it.
	GateUnknown Code = "gate_unknown"
)

// Gated is what the output checks say of a variant and context.
type Gated struct {
	Needle    *float64  // share of the planted facts that were found; nil: none is known
	Agreement *float64  // share of an output before its first difference from the baseline's, mean over prompts; nil for the baseline
	Self      *float64  // the same of the baseline's outputs and their repetitions
	Findings  []Finding // one line a code at most
	Invalid   *Finding  // the first for which the spec calls the point invalid: a check that failed or has no result
}

// Gate judges the checks that were asked for. own is what the variant answered
// and base what the baseline did, which may be the same; nil: not (yet) known.
func Gate(asked schema.Gate, own, base *event.Gate, baseline bool) Gated {
	var g Gated
	find := func(onFail string, c Code, detail string) {
		f := Finding{c, detail}
		g.Findings = add(g.Findings, f)
		if onFail == "invalid" && g.Invalid == nil && c != GateDiffers {
			g.Invalid = &f
		}
	}
	if n := asked.Needle; n != nil {
		share, lost, why := needles(own, len(n.Depth))
		g.Needle = share
		if lost != "" {
			if baseShare, _, _ := needles(base, len(n.Depth)); !baseline && baseShare != nil && *baseShare < 1 {
				lost += "; the baseline does not find all either"
			}
			find(n.OnFail, GateNeedle, lost)
		}
		if why != "" {
			find(n.OnFail, GateUnknown, "needle: "+why)
		}
	}
	if a := asked.Agreement; a != nil {
		self, why := compareAll(outputs(base, false), outputs(base, true), a.Prompts)
		g.Self = meanShare(self)
		if baseline {
			if d, _ := differences(self); d > 0 {
				find(a.OnFail, GateDiffers, "the baseline's greedy outputs differ when it is asked again: "+words(self))
			}
		} else {
			var with []Compared
			if len(self) == 0 {
				why = "the baseline's agreement with itself is not known: " + why
			} else {
				with, why = compareAll(outputs(own, false), outputs(base, false), a.Prompts)
				g.Agreement = meanShare(with)
			}
			switch d, _ := differences(with); {
			case disagree(with, self):
				find(a.OnFail, GateDisagrees, words(with)+"; the baseline with itself: "+words(self))
			case d > 0:
				find(a.OnFail, GateDiffers, words(with)+"; the baseline with itself: "+words(self))
			}
		}
		if why != "" {
			find(a.OnFail, GateUnknown, "agreement: "+why)
		}
	}
	return g
}

// notAsked is why there is no result of a gate that has not run.
const notAsked = "the requests were not made"

// needles is the share of planted facts that were found, the depths of the lost
// ones, and why some are not known.
func needles(g *event.Gate, asked int) (share *float64, lost, why string) {
	if g == nil {
		return nil, "", notAsked
	}
	known, found := 0, 0
	var at []string
	for _, n := range g.Needles {
		switch {
		case n.Found == nil:
			why = n.Detail
			continue
		case *n.Found:
			found++
		default:
			at = append(at, fmt.Sprintf("%g", n.Depth))
		}
		known++
	}
	if known < asked && why == "" {
		why = notAsked
	}
	if known == 0 {
		return nil, "", why
	}
	s := float64(found) / float64(known)
	if len(at) > 0 {
		lost = fmt.Sprintf("the fact at depth %s of the prompt is not in the answer (%d of %d found)", strings.Join(at, ", "), found, known)
	}
	return &s, lost, why
}

// outputs are a gate's outputs by prompt, of the first requests or of their
// repetitions.
func outputs(g *event.Gate, again bool) map[int]event.Output {
	out := map[int]event.Output{}
	if g != nil {
		for _, o := range g.Outputs {
			if o.Again == again {
				out[o.Prompt] = o
			}
		}
	}
	return out
}

// Compared is what two greedy outputs of one prompt have in common. After their
// first difference they answer different prompts, so that nothing behind it
// counts; where it lies is the divergence index of Yuan et al.,
// arXiv:2506.09501.
type Compared struct {
	Same int // tokens before the first difference
	Of   int // tokens that can be compared, the end of an output being a difference
}

func (c Compared) differs() bool { return c.Same < c.Of }

// Compare counts how many tokens two outputs have in common from the start: by
// their ids, or, where one has none, by the share of equal bytes. why is the
// reason for none.
func Compare(x, y event.Output) (c Compared, why string) {
	switch {
	case x.Detail != "":
		return c, x.Detail
	case y.Detail != "":
		return c, y.Detail
	case x.SHA256 != y.SHA256:
		return c, "the prompts differ, as tokenizers or their absence make them"
	}
	asked := min(x.Asked, y.Asked)
	switch {
	case len(x.IDs) > 0 && len(y.IDs) > 0:
		c = Compared{common(x.IDs, y.IDs), max(len(x.IDs), len(y.IDs))}
	case x.Text != "" && y.Text != "":
		tokens := asked
		if x.Tokens != nil && y.Tokens != nil {
			tokens = int(min(max(*x.Tokens, *y.Tokens), int64(asked)))
		}
		same, of := common([]byte(x.Text), []byte(y.Text)), max(len(x.Text), len(y.Text))
		c = Compared{int(float64(tokens) * float64(same) / float64(of)), tokens}
	default:
		return c, "the server shows no output"
	}
	c.Same, c.Of = min(c.Same, asked), min(c.Of, asked)
	if c.Of < 1 {
		return c, "nothing was generated"
	}
	return c, ""
}

func common[T comparable](x, y []T) int {
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return n
}

// compareAll compares the outputs of prompts 1 to n; why tells of one that could
// not be.
func compareAll(x, y map[int]event.Output, n int) (list []Compared, why string) {
	for i := 1; i <= n; i++ {
		a, ok := x[i]
		b, also := y[i]
		if !ok || !also {
			why = notAsked
			continue
		}
		c, reason := Compare(a, b)
		if reason != "" {
			why = reason
			continue
		}
		list = append(list, c)
	}
	return list, why
}

func meanShare(list []Compared) *float64 {
	if len(list) == 0 {
		return nil
	}
	sum := 0.0
	for _, c := range list {
		sum += float64(c.Same) / float64(c.Of)
	}
	return finite(sum / float64(len(list)))
}

// words say where outputs differ.
func words(list []Compared) string {
	var at []string
	most := 0
	for _, c := range list {
		if most = max(most, c.Of); c.differs() {
			at = append(at, fmt.Sprint(c.Same))
		}
	}
	if len(at) == 0 {
		return fmt.Sprintf("%d of %d outputs the same over %d tokens", len(list), len(list), most)
	}
	return fmt.Sprintf("%d of %d outputs the same, others for %s of %d tokens", len(list)-len(at), len(list), strings.Join(at, ", "), most)
}

const (
	// gateLevel is the chance of a false alarm that either test of disagree allows.
	gateLevel = 0.01
	// rounding is the chance of a first difference, per token, that sums in another
	// order may have: one in 64. Of a thousand greedy answers of a model of 235
	// billion parameters 992 went on together and 8 apart at their 103rd token
	// (Thinking Machines Lab, Defeating Nondeterminism in LLM Inference, September
	// 2025), which is rarer; coarse KV formats come closer.
	rounding = 1.0 / 64
)

// differences counts first differences and the tokens that had the chance of
// one.
func differences(list []Compared) (d, tokens int) {
	for _, c := range list {
		tokens += c.Same
		if c.differs() {
			d, tokens = d+1, tokens+1
		}
	}
	return d, tokens
}

// disagree tells whether a variant's outputs leave the baseline's sooner than can
// be explained. A first difference is taken to have the same chance at every
// token, and that chance must be significantly above both the baseline's with
// itself (of all first differences, so many fall to the variant's share of the
// tokens: the conditional test of two Poisson rates) and what rounding may do.
func disagree(with, self []Compared) bool {
	d, tokens := differences(with)
	d0, tokens0 := differences(self)
	if d == 0 || tokens0 == 0 {
		return false
	}
	share := float64(tokens) / float64(tokens+tokens0)
	return atLeast(d, d+d0, share) < gateLevel && atLeast(d, tokens, rounding) < gateLevel
}

// atLeast is the probability of k or more successes in n trials of chance p.
func atLeast(k, n int, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n:
		return 0
	}
	return mathext.RegIncBeta(float64(k), float64(n-k+1), p)
}
