package stat

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"twopoint/schema"
)

// Bounds of b − a, in tokens (design.md 6, "b").
const (
	floorTokens      = 32 // also what the pilot pairs use
	floorSpeculative = 96
	contextReserve   = 64 // tokens kept free below the context limit
	windowSteps      = 32 // steps wanted in the window of several requests
	speculativeA     = 33 // both legs then waste part of a last step
)

// SizeRequest is what the sizes of the legs depend on beside the pilot.
type SizeRequest struct {
	A            int     // tokens of leg a; 0: 1, or 33 under speculation
	B            int     // tokens of leg b; 0: by the pilot
	Target       float64 // wanted half-width over mean, such as 0.03
	Context      int     // prompt tokens
	Concurrency  int     // requests of a leg; below 2: one
	Speculative  bool    // known before the pilots, which may show it too
	ContextLimit int     // tokens of prompt and answer together; 0: none known
	Pool         int     // tokens of the KV pool for each of the simultaneous requests; 0: not known
}

// Reasons for a b below what the target asks for.
const (
	CappedByContext = "context/8"
	CappedByLimit   = "context limit"
	CappedByPool    = "kv pool"
	CappedByRequest = "fixed" // b was given
)

// Sizing is the number of tokens of either leg, fixed for a point.
type Sizing struct {
	A, B    int
	S0S     *float64 // seconds per token seen by the pilot; nil: none that is positive
	JitterS float64  // how far prefill times wander, seconds
	Wanted  int      // the b − a that the target asks for; 0: unknown
	Capped  string   // why B − A is below Wanted; empty: it is not
}

// PilotSize is the sizes of the legs of warm-up and pilot pairs: those that were
// given, or 32 tokens apart, less only where there is no room. An error means
// that the b that was given leaves nothing between the legs.
func PilotSize(r SizeRequest) (a, b int, err error) {
	a = r.a()
	if r.B > 0 {
		return a, r.B, r.fixed()
	}
	return a, a + int(max(1, min(floorTokens, r.room()))), nil
}

// fixed is an error where the b that was given leaves nothing between the legs.
func (r SizeRequest) fixed() error {
	if a := r.a(); r.B > 0 && r.B <= a {
		return fmt.Errorf("leg b of %d tokens is no longer than leg a of %d, which is %d where the server speculates unless you say otherwise", r.B, a, speculativeA)
	}
	return nil
}

// room is the largest b − a that the context limit leaves.
func (r SizeRequest) room() float64 { return r.left(r.ContextLimit) }

// left is the largest b − a that fits into so many tokens beside the prompt; of 0
// nothing is known.
func (r SizeRequest) left(tokens int) float64 {
	if tokens <= 0 {
		return math.Inf(1)
	}
	return float64(tokens - contextReserve - r.Context - r.a())
}

func (r SizeRequest) a() int {
	switch {
	case r.A > 0:
		return r.A
	case r.Speculative:
		return speculativeA
	}
	return 1
}

// Size chooses b. The error of s_per_tok is √2·sd(t)/(b − a), so that a target
// needs
//
//	b − a = ⌈3·j / (target·s₀)⌉
//
// with s₀ the pilot's seconds per token (in-stream; without a stream its slope)
// and j = max(range of the legs' times to first token, 1 % of them, 0.5 ms); t_a
// stands in where there is no stream. b − a is at most L/8 and what the KV pool
// holds, but not below the floor: servers count their pools in more ways than one,
// and one that is too small says so itself. It stays within the context limit.
// Several requests need a window of 32 steps after the latest first token as well.
// An error means that there is no room for a single token between the legs.
func Size(pilots []Pair, r SizeRequest) (Sizing, error) {
	r.Speculative = r.Speculative || speculate(pilots)
	s := Sizing{A: r.a()}
	s.S0S, s.JitterS = pilotTimes(pilots)

	floor := floorTokens
	if r.Speculative {
		floor = floorSpeculative
	}
	d, capped := float64(floor), ""
	if s.S0S != nil && r.Target > 0 {
		if want := math.Ceil(3*s.JitterS/(r.Target**s.S0S) - 1e-9); want < math.MaxInt32 {
			s.Wanted = int(want)
			d = max(d, want)
		} else {
			d = math.Inf(1)
		}
	} else {
		d = math.Inf(1) // nothing known: as long as may be
	}
	if r.B > 0 {
		s.B = r.B
		if err := r.fixed(); err != nil {
			return s, err
		}
		if s.Wanted > s.B-s.A {
			s.Capped = CappedByRequest
		}
		return s, nil
	}

	least := float64(floor)
	if r.Concurrency > 1 {
		least = max(least, windowTokens(pilots, s.S0S))
	}
	d = max(d, least)
	if most := max(float64(r.Context/8), least); d > most {
		d, capped = most, CappedByContext
	}
	if most := max(r.left(r.Pool), least); most < d {
		d, capped = most, CappedByPool
	}
	if most := r.room(); most < d {
		d, capped = most, CappedByLimit
	}
	if d < 1 {
		return s, fmt.Errorf("a prompt of %d and a leg a of %d tokens leave no room for leg b below a context limit of %d, of which %d stay free", r.Context, s.A, r.ContextLimit, contextReserve)
	}
	s.B, s.Capped = s.A+int(d), capped
	return s, nil
}

// speculate tells whether the pilots' steps yielded several tokens each.
func speculate(pilots []Pair) bool {
	return slices.ContainsFunc(pilots, func(p Pair) bool { return p.AcceptLength != nil && !SameAcceptLength(p.AcceptLength, &oneToken) })
}

var oneToken = 1.0

// windowTokens is the b − a that keeps every request decoding for windowSteps
// steps after the latest first token of the pilots. A server that sends the tokens
// of several steps together shows as many of them as it sends pieces.
func windowTokens(pilots []Pair, s0 *float64) float64 {
	accept, stagger := 1.0, 0.0
	for _, p := range pilots {
		if p.AcceptLength != nil {
			accept = max(accept, *p.AcceptLength)
		}
		if p.B.Tokens != nil && p.B.Arrivals > 0 {
			accept = max(accept, *p.B.Tokens*float64(p.Requests)/float64(p.B.Arrivals))
		}
		if p.B.SpreadS != nil && s0 != nil {
			stagger = max(stagger, *p.B.SpreadS / *s0)
		}
	}
	return math.Ceil(min(stagger+windowSteps*accept, math.MaxInt32))
}

// pilotTimes returns s₀, nil where the pilots show no positive one, and j.
func pilotTimes(pilots []Pair) (s0 *float64, jitter float64) {
	var inStream, slopes, first []float64
	for _, p := range pilots {
		if p.expect != nil {
			inStream = append(inStream, *p.expect)
		}
		if p.SPerTok != nil {
			slopes = append(slopes, *p.SPerTok)
		}
		switch {
		case p.A.TTFTS != nil && p.B.TTFTS != nil:
			first = append(first, *p.A.TTFTS, *p.B.TTFTS)
		case p.A.TimeS != nil:
			first = append(first, *p.A.TimeS)
		}
	}
	s0 = positive(newFigure(inStream).Mean)
	if s0 == nil {
		s0 = positive(newFigure(slopes).Mean)
	}
	jitter = 0.5e-3
	if f := newFigure(first); f.Mean != nil {
		lo, hi := minMax(first)
		jitter = max(jitter, hi-lo, 0.01**f.Mean)
	}
	return s0, jitter
}

func minMax(xs []float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, x := range xs {
		lo, hi = min(lo, x), max(hi, x)
	}
	return lo, hi
}

// ColdTokens is the b − a of a cold pair that is to confirm pairs on a cached
// prompt: enough for the target if a prefill of primeS seconds wanders by 1 %, at
// least what the pairs themselves have, at most an eighth of the context.
func ColdTokens(least int, primeS float64, s0 *float64, r SizeRequest) int {
	d := float64(least)
	if s0 != nil && *s0 > 0 && r.Target > 0 {
		d = max(d, math.Ceil(3*coldJitter(primeS)/(r.Target**s0)-1e-9))
	}
	d = min(d, max(float64(r.Context/8), float64(least)))
	if most := r.room(); most < d {
		d = max(1, most)
	}
	return int(d)
}

// coldJitter is how far a prefill of that length is taken to wander: j of a
// pilot, as far as one request can tell.
func coldJitter(prefillS float64) float64 { return max(0.01*prefillS, 0.5e-3) }

// TooSmall tells in a line, of valid pairs whose b was given, that rule.Max of them
// would not make the interval as narrow as rule.Target asks; empty: nothing shows
// that. The pairs' spread is taken at the lower end of its interval (χ² with n − 1
// degrees, one-sided), so that pairs that happen to lie far apart seldom say so. The
// b − a that it names is right where prefill is what wanders: the spread of slopes
// then falls as b − a grows.
func TooSmall(pairs []Pair, rule schema.Repeats) string {
	valid, _ := split(pairs)
	n := len(valid)
	if n < minInterval || rule.Max < minInterval || rule.Target <= 0 {
		return ""
	}
	v := values(valid, schema.Repeats{})
	expect := positive(v.expect)
	if expect == nil {
		expect = positive(v.Main.Mean)
	}
	if expect == nil || v.Main.SD == nil || v.TokensA == nil || v.TokensB == nil {
		return ""
	}
	df := float64(n - 1)
	least := *v.Main.SD * math.Sqrt(df/distuv.ChiSquared{K: df}.Quantile(Level))
	relative := func(sd float64) float64 {
		return quantileT(float64(rule.Max-1)) * sd / math.Sqrt(float64(rule.Max)) / *expect
	}
	if relative(least) <= rule.Target {
		return ""
	}
	reach, apart := relative(*v.Main.SD), *v.TokensB-*v.TokensA
	return fmt.Sprintf("b − a = %.0f is too small for a target of %.3g %%: as these %d pairs scatter, %d of them give ±%.2g %%; about %.0f tokens would do, if prefill is what wanders",
		apart, 100*rule.Target, n, rule.Max, 100*reach, math.Ceil(apart*reach/rule.Target))
}
