package stat

import "twopoint/schema"

// Why a point needs no further pair.
const (
	StopTarget  = "target"  // the interval is as narrow as the target asks
	StopMax     = "max"     // as many pairs as the rule allows
	StopInvalid = "invalid" // whatever follows, too many pairs are invalid
)

// Done is the stopping rule of a point in one server life: from rule.Min valid
// pairs on, stop once half-width over mean is at most rule.Target; at rule.Max
// pairs, stop in any case. Interrupted pairs do not count. While too many pairs
// are invalid the target does not count either, and once rule.Max pairs could no
// longer mend that, nothing is left to measure. With several deployments give it
// the pairs of one life and the rule's Share.
//
// A rule that looks at the width after every pair stops early on pairs that
// happen to lie close together, so that its intervals cover less than their
// level. The minimum is the remedy: with Min = 6 this costs at most 2 points of
// the 95 %, where the noise lets the target be met by luck only, and half a
// point over all; with Min = 3 it costs up to 5 and 2.5 (the tests print the
// table). Student's t is therefore left as it is.
func Done(pairs []Pair, rule schema.Repeats) (done bool, why string) {
	valid, finished := split(pairs)
	invalid := len(finished) - len(valid)
	switch {
	case rule.Max > 0 && tooManyInvalid(invalid, rule.Max):
		return true, StopInvalid
	case rule.Max > 0 && len(finished) >= rule.Max:
		return true, StopMax
	case len(valid) < max(rule.Min, minInterval) || tooManyInvalid(invalid, len(finished)):
		return false, ""
	}
	if r, ok := meanOnly(sorted(slopes(valid))).relative(); ok && r <= rule.Target {
		return true, StopTarget
	}
	return false, ""
}

// farBehind is the Excess of a point per missing pair.
const farBehind = 1e6

// Excess says how far a point is from its target, for choosing which to measure
// next: the larger, the farther. It is 0 when the point is done, otherwise
// half-width over mean over the target, and above all others for points that
// lack valid pairs, the more the farther.
func Excess(pairs []Pair, rule schema.Repeats) float64 {
	if done, _ := Done(pairs, rule); done {
		return 0
	}
	valid, _ := split(pairs)
	if missing := max(rule.Min, minInterval) - len(valid); missing > 0 {
		return farBehind * float64(1+missing)
	}
	r, ok := meanOnly(sorted(slopes(valid))).relative()
	if !ok || rule.Target <= 0 {
		return farBehind
	}
	return min(r/rule.Target, farBehind)
}

// Share is the part of a rule that one of its server lives takes.
func Share(rule schema.Repeats) schema.Repeats {
	if d := rule.Deployments; d > 1 {
		rule.Min, rule.Max = (rule.Min+d-1)/d, (rule.Max+d-1)/d
	}
	return rule
}
