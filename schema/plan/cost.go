package plan

import (
	"math"
	"time"
)

// Bounds is a smallest and a largest number.
type Bounds struct {
	Min int64 `json:"min"`
	Max int64 `json:"max"`
}

// Cost is what a plan asks for if nothing fails and no budget cuts it short.
// Min and max differ by the stopping rule: repeats.min or repeats.max pairs a
// point. For methods other than two_point only points and deployments are
// known, the rest is 0.
//
// With c concurrent requests and D deployments of a variant:
//
//	pairs of a point = D warm-ups (if warmup) + 2 pilots (if b is auto) + repeats
//	pairs            = Σ pairs of points + 1 drift pair a deployment
//	requests         = Σ pairs·2·(c + 1 settle request) + 3 cache-probe requests a deployment
//	prompt tokens    = Σ pairs·2·(c·context + settle tokens) + 3·shortest context a deployment
//
// A server that we do not start has one deployment whatever D is. Requests that
// wait for readiness, gates and hang probes are not counted.
type Cost struct {
	Points       int    `json:"points"`
	Deployments  int    `json:"deployments"`
	Pairs        Bounds `json:"pairs"`
	Requests     Bounds `json:"requests"`
	PromptTokens Bounds `json:"prompt_tokens"` // to be processed

	// MinS and MaxS bound the time in seconds; nil without the author's
	// expectations (expect) of both speeds and, for servers that we start, of
	// the load time.
	MinS *float64 `json:"min_s,omitempty"`
	MaxS *float64 `json:"max_s,omitempty"`
}

// What the method asks of a server beside the measured legs (design.md 6).
const (
	PilotPairs   = 2  // where b is auto
	SettleTokens = 24 // prompt of a settle request: long enough for a nonce, short enough to cost nothing

	probeRequests = 3  // cold, again, and again after a flush
	floorTokens   = 32 // least b − a where b is auto, and the pilots'; 96 under speculation
	specTokens    = 96
	specA         = 33 // a by the tool under speculation, otherwise 1
)

// Cost adds up the plan. The points of a run that are left out by filters or
// done already are not known here: restrict p.Points first.
func (p Plan) Cost() Cost {
	cost := Cost{Points: len(p.Points)}
	tp := p.Method.TwoPoint
	byVariant := make(map[string][]Point, len(p.Variants))
	for _, pt := range p.Points {
		byVariant[pt.Variant] = append(byVariant[pt.Variant], pt)
	}
	var minS, maxS float64
	known := p.Expect != nil && p.Expect.PrefillTokS > 0 && p.Expect.DecodeTokS > 0 && tp != nil
	for _, v := range p.Variants {
		points := byVariant[v.Name]
		if len(points) == 0 {
			continue
		}
		lives := 1
		if tp != nil && v.URL == "" {
			lives = max(1, tp.Repeats.Deployments)
		}
		cost.Deployments += lives
		if tp == nil {
			continue
		}
		if v.URL == "" {
			known = known && p.Expect.Load > 0
		}
		if known && v.URL == "" {
			load := float64(lives) * time.Duration(p.Expect.Load).Seconds()
			minS, maxS = minS+load, maxS+load
		}
		add := func(pt Point, pairs Bounds, decodeMin, decodeMax int) {
			settle := 0
			if tp.Settle.Mode == "request" {
				settle = 1
			}
			requests := 2 * int64(pt.Concurrency+settle)
			tokens := 2 * (int64(pt.Concurrency)*int64(pt.Context) + int64(settle*SettleTokens))
			for _, b := range []struct {
				sum *Bounds
				one int64
			}{{&cost.Pairs, 1}, {&cost.Requests, requests}, {&cost.PromptTokens, tokens}} {
				b.sum.Min += pairs.Min * b.one
				b.sum.Max += pairs.Max * b.one
			}
			if known {
				prefill := float64(tokens) / p.Expect.PrefillTokS
				minS += float64(pairs.Min) * (prefill + float64(decodeMin+2*settle)/p.Expect.DecodeTokS)
				maxS += float64(pairs.Max) * (prefill + float64(decodeMax+2*settle)/p.Expect.DecodeTokS)
			}
		}
		shortest := points[0].Context
		for _, pt := range points {
			shortest = min(shortest, pt.Context)
			var extra int64
			if tp.Warmup {
				extra += int64(lives)
			}
			if tp.B == 0 {
				extra += PilotPairs
			}
			pilotMin, pilotMax, legMin, legMax := decodeTokens(tp.A, tp.B, pt.Context)
			add(pt, Bounds{extra, extra}, pilotMin, pilotMax)
			least := int64(max(tp.Repeats.Min, lives))
			add(pt, Bounds{least, max(least, int64(tp.Repeats.Max))}, legMin, legMax)
		}
		_, _, legMin, legMax := decodeTokens(tp.A, tp.B, points[0].Context)
		add(points[0], Bounds{int64(lives), int64(lives)}, legMin, legMax)

		probes := int64(lives * probeRequests)
		cost.Requests.Min += probes
		cost.Requests.Max += probes
		cost.PromptTokens.Min += probes * int64(shortest)
		cost.PromptTokens.Max += probes * int64(shortest)
		if known {
			probe := float64(probes) * float64(shortest) / p.Expect.PrefillTokS
			minS, maxS = minS+probe, maxS+probe
		}
	}
	if known && !math.IsInf(maxS, 0) {
		cost.MinS, cost.MaxS = &minS, &maxS
	}
	return cost
}

// decodeTokens bounds the tokens that the two legs of a pair generate one after
// another, for pilots and warm-ups and for measured pairs: a + b, where what is
// left to the tool lies between its floor and context/8.
func decodeTokens(a, b, context int) (pilotMin, pilotMax, legMin, legMax int) {
	aMin, aMax := a, a
	if a == 0 {
		aMin, aMax = 1, specA
	}
	if b > 0 {
		return aMin + b, aMax + b, aMin + b, aMax + b
	}
	pilotMin, pilotMax = 2*aMin+floorTokens, 2*aMax+floorTokens
	return pilotMin, pilotMax, pilotMin, 2*aMax + max(specTokens, context/8)
}
