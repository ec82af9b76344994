package stat

import (
	"fmt"
	"math"
)

// Cold compares the pairs of a point that was measured on a cached prompt with one
// cold two-point pair at the same point: whether the cold pair's seconds per token
// lie where one more of those pairs would, give or take what a cold prefill adds: by
// how many seconds it is farther off (excess, not positive where they agree), and the
// numbers. One more pair lies within t·s·√(1 + 1/n) of the mean of n; the mean's
// own interval would be too narrow for it, and refused one right point in five where
// decode wanders by 2 % and prefill is short. What a cold prefill adds is the error
// of two legs whose prefills wander by j, the larger of 1 % and the difference of
// their first tokens: 3·√2·j/(n_b − n_a). known is false where either has no figure.
func Cold(pair Pair, pairs []Pair) (excess float64, known bool, detail string) {
	valid, _ := split(pairs)
	warm := meanOnly(sorted(slopes(valid)))
	if warm.Interval == nil || warm.SD == nil || !pair.Valid() || pair.SPerTok == nil {
		return 0, false, ""
	}
	first := []*float64{pair.A.TTFTS, pair.B.TTFTS}
	if first[0] == nil || first[1] == nil {
		first = []*float64{pair.A.TimeS, pair.A.TimeS}
	}
	j := max(coldJitter(*first[0]), math.Abs(*first[0]-*first[1]))
	n := float64(warm.N)
	slack := quantileT(n-1) * *warm.SD * math.Sqrt(1+1/n)
	if pair.Requests == 1 { // a window rate holds no prefill
		slack += 3 * math.Sqrt2 * j / (*pair.B.Tokens - *pair.A.Tokens)
	} else {
		slack += 3 * 0.01 * *warm.Mean
	}
	off := *pair.SPerTok - *warm.Mean
	return math.Abs(off) - slack, true, fmt.Sprintf("%.4g s per token after a cold prefill and %.4g on the cached prompt, at most %.2g apart expected", *pair.SPerTok, *warm.Mean, slack)
}

// Refuse is a point whose values are withdrawn for a reason beyond its own pairs:
// invalid, with what was measured kept as raw.
func (pt Point) Refuse(c Code, detail string) Point {
	if pt.Status != OK {
		return pt
	}
	pt.Status, pt.Reason, pt.Detail = Invalid, c, detail
	pt.Raw, pt.Values = pt.Values, nil
	return pt
}
