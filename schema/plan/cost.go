package plan

import (
	"math"
	"time"

	"twopoint/schema"
)

// Bounds is a smallest and a largest number.
type Bounds struct {
	Min int64 `json:"min"`
	Max int64 `json:"max"`
}

// Cost is what a plan asks for if nothing fails and no budget cuts it short.
// Min and max differ by the stopping rule: repeats.min or repeats.max pairs a
// point. A pair is a repeat of whatever method.
//
// With k legs a pair, c concurrent requests and D deployments of a variant:
//
//	pairs of a point = D warm-ups (if warmup) + 2 pilots (if b is auto) + repeats
//	pairs            = Σ pairs of points + 1 drift pair a deployment
//	requests         = Σ pairs·k·(c + 1 settle request) + 3 cache-probe requests a deployment
//	prompt tokens    = Σ pairs·k·(c·context + settle tokens) + 3·shortest context a deployment
//
// With decode_at_depth the legs run on cached prompts: c requests more a pair
// put them there, whose tokens are processed once a point and deployment, and
// two cold two-point pairs a deployment are added, at its shortest and longest
// context.
//
// The output gate adds, once a variant and context, a request for each depth of
// the needle and for each prompt of the agreement, for the baseline's prompts two;
// the second may be answered by the prefix cache.
//
// Pilots of a server whose answers turn out not to stream are not counted where b
// is given. A server that we do not start has one deployment whatever D is. Requests that
// wait for readiness, calibrate prompts or look for a hang are not counted.
type Cost struct {
	Points       int    `json:"points"`
	Deployments  int    `json:"deployments"`
	Pairs        Bounds `json:"pairs"`
	Requests     Bounds `json:"requests"`
	GateRequests int64  `json:"gate_requests,omitempty"` // of Requests, the output gate's
	PromptTokens Bounds `json:"prompt_tokens"`           // to be processed

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
	byVariant := make(map[string][]Point, len(p.Variants))
	for _, pt := range p.Points {
		byVariant[pt.Variant] = append(byVariant[pt.Variant], pt)
	}
	legs := p.Method.Legs()
	s := spending{cost: &cost, known: p.Expect != nil && p.Expect.PrefillTokS > 0 && p.Expect.DecodeTokS > 0}
	if s.known {
		s.prefill, s.decode = p.Expect.PrefillTokS, p.Expect.DecodeTokS
	}
	for _, v := range p.Variants {
		points := byVariant[v.Name]
		if len(points) == 0 {
			continue
		}
		lives := 1
		if v.URL == "" {
			lives = max(1, legs.Repeats.Deployments)
			s.known = s.known && p.Expect.Load > 0
			if s.known {
				load := float64(lives) * time.Duration(p.Expect.Load).Seconds()
				s.minS, s.maxS = s.minS+load, s.maxS+load
			}
		}
		cost.Deployments += lives
		s.variant(p.Method, points, int64(lives))
		if p.Gate != nil {
			s.gate(*p.Gate, points, v.Name == p.Baseline)
		}
	}
	if s.known && !math.IsInf(s.maxS, 0) {
		cost.MinS, cost.MaxS = &s.minS, &s.maxS
	}
	return cost
}

// spending adds up a cost.
type spending struct {
	cost            *Cost
	known           bool    // whether times can be told
	prefill, decode float64 // expected, tok/s
	minS, maxS      float64
}

// requests adds n times requests with prompt tokens to be processed and decode
// tokens to be generated, both of all of them together.
func (s *spending) requests(n Bounds, requests, prompt int64, decodeMin, decodeMax int) {
	for _, b := range []struct {
		sum *Bounds
		one int64
	}{{&s.cost.Requests, requests}, {&s.cost.PromptTokens, prompt}} {
		b.sum.Min += n.Min * b.one
		b.sum.Max += n.Max * b.one
	}
	if s.known {
		prefill := float64(prompt) / s.prefill
		s.minS += float64(n.Min) * (prefill + float64(decodeMin)/s.decode)
		s.maxS += float64(n.Max) * (prefill + float64(decodeMax)/s.decode)
	}
}

// pairs adds n pairs at a point, of so many tokens in all their legs one after
// another.
func (s *spending) pairs(m schema.Method, pt Point, n Bounds, decodeMin, decodeMax int) {
	s.cost.Pairs.Min += n.Min
	s.cost.Pairs.Max += n.Max
	k, c := int64(m.LegCount()), int64(pt.Concurrency)
	if m.DecodeAtDepth != nil {
		s.requests(n, (1+k)*c, 0, decodeMin, decodeMax)
		return
	}
	settle := 0
	if m.Legs().Settle.Mode == "request" {
		settle = 1
	}
	s.requests(n, k*(c+int64(settle)), k*(c*int64(pt.Context)+int64(settle*SettleTokens)), decodeMin+int(k)*settle, decodeMax+int(k)*settle)
}

// variant adds what one variant's points ask for in that many server lives.
func (s *spending) variant(m schema.Method, points []Point, lives int64) {
	l := m.Legs()
	shortest, longest := points[0], points[0]
	for _, pt := range points {
		if pt.Context < shortest.Context {
			shortest = pt
		}
		if pt.Context > longest.Context {
			longest = pt
		}
		extra := int64(0)
		if l.Warmup {
			extra += lives
		}
		if l.B == 0 {
			extra += PilotPairs
		}
		pilotMin, pilotMax, legMin, legMax := decodeTokens(m, pt.Context)
		s.pairs(m, pt, Bounds{extra, extra}, pilotMin, pilotMax)
		least := max(int64(l.Repeats.Min), lives)
		s.pairs(m, pt, Bounds{least, max(least, int64(l.Repeats.Max))}, legMin, legMax)
		if m.DecodeAtDepth != nil {
			s.requests(Bounds{lives, lives}, 0, int64(pt.Concurrency)*int64(pt.Context), 0, 0)
		}
	}
	again := Bounds{lives, lives}
	_, _, legMin, legMax := decodeTokens(m, points[0].Context)
	s.pairs(m, points[0], again, legMin, legMax)
	if m.DecodeAtDepth != nil {
		cold := schema.Method{TwoPoint: &schema.TwoPoint{A: l.A, B: l.B, Settle: schema.Settle{Mode: "request"}}}
		ends := []Point{shortest, longest}
		if shortest.ID == longest.ID {
			ends = ends[:1]
		}
		for _, pt := range ends {
			_, _, legMin, legMax := decodeTokens(cold, pt.Context)
			s.pairs(cold, pt, again, legMin, legMax)
		}
	}
	s.requests(again, probeRequests, probeRequests*int64(shortest.Context), 0, 0)
}

// gate adds the output checks of one variant's points.
func (s *spending) gate(g schema.Gate, points []Point, baseline bool) {
	done := map[int]bool{}
	for _, pt := range points {
		if done[pt.Context] {
			continue
		}
		done[pt.Context] = true
		ask := func(n, tokens int, cached bool) {
			times, context := Bounds{int64(n), int64(n)}, int64(pt.Context)
			s.cost.GateRequests += times.Max
			if cached {
				s.requests(times, 1, 0, tokens, tokens)
				s.requests(Bounds{Max: times.Max}, 0, context, 0, 0)
				return
			}
			s.requests(times, 1, context, tokens, tokens)
		}
		if n := g.Needle; n != nil {
			ask(len(n.Depth), n.Tokens, false)
		}
		if a := g.Agreement; a != nil {
			ask(a.Prompts, a.Tokens, false)
			if baseline {
				ask(a.Prompts, a.Tokens, true)
			}
		}
	}
}

// decodeTokens bounds the tokens that the legs of a pair generate one after
// another, for pilots and warm-ups and for measured pairs: k·(a + b)/2, where
// what is left to the tool lies between its floor and context/8.
func decodeTokens(m schema.Method, context int) (pilotMin, pilotMax, legMin, legMax int) {
	l, k := m.Legs(), m.LegCount()
	if m.Stream != nil {
		return l.B, l.B, l.B, l.B
	}
	aMin, aMax := l.A, l.A
	if l.A == 0 {
		aMin, aMax = 1, specA
	}
	sum := func(a, b int) int { return k * (a + b) / 2 }
	if l.B > 0 {
		legMin, legMax = sum(aMin, l.B), sum(aMax, l.B)
		return legMin, legMax, legMin, legMax
	}
	pilotMin, pilotMax = sum(aMin, aMin+floorTokens), sum(aMax, aMax+floorTokens)
	return pilotMin, pilotMax, pilotMin, sum(aMax, aMax+max(specTokens, context/8))
}
