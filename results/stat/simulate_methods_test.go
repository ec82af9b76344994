package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
)

// errors are relative ones, in percent off a truth.
type errors struct{ xs []float64 }

func (a *errors) add(x *float64, truth float64) {
	if x != nil {
		a.xs = append(a.xs, 100*(*x/truth-1))
	}
}

func (a errors) mean() float64 { m, _ := moments(a.xs); return m }

func (a errors) String() string {
	m, sd := moments(a.xs)
	return fmt.Sprintf("%+.2f ± %.2f %%", m, 2*sd/math.Sqrt(float64(max(len(a.xs), 1))))
}

// drafted is an answer under speculation: one token out of the prefill, then steps
// of stepS that yield 1 to 4 tokens with equal chance. The last step is cut at the
// tokens asked for, and takes its time all the same.
func drafted(rnd *rand.Rand, tokens int, prefillS, stepS float64) event.Sample {
	s := clock(1000, 1)
	s.TokensRequested, s.CompletionTokens = tokens, ptr(int64(tokens))
	s.TTFTS, s.ChunkS, s.ChunkTokens = ptr(prefillS), []float64{prefillS}, []int32{1}
	t, n := prefillS, 1
	var steps int64
	for n < tokens {
		k := min(1+rnd.IntN(4), tokens-n)
		t, n, steps = t+stepS, n+k, steps+1
		s.ChunkS, s.ChunkTokens = append(s.ChunkS, t), append(s.ChunkTokens, int32(k))
	}
	s.TotalS, s.Steps = t, &steps
	return s
}

// TestSpeculationFigures: under speculation only a last step that both legs waste
// cancels. With a = 1 leg b alone wastes part of one, and s_per_tok is 6 % too
// high at b = 17; with a = 33, what the tool chooses, it is right. s_per_step is
// right in either case, since wasted steps are counted as steps.
func TestSpeculationFigures(t *testing.T) {
	const stepS, accept = 0.060, 2.5
	rules := exact
	rules.Speculative = ptr(true)
	for _, c := range []struct {
		a, b      int
		low, high float64 // of the error of s_per_tok, percent
	}{{1, 17, 5, 7.5}, {1, 33, 2, 4.5}, {1, 97, 0.5, 1.6}, {33, 65, -1, 1}, {33, 129, -0.4, 0.4}, {33, 257, -0.3, 0.3}} {
		rnd := rand.New(rand.NewPCG(31, uint64(c.b)))
		var perTok, perStep, length errors
		for range draws(4000) {
			jitter := func() float64 { return 0.1 * (1 + 0.01*rnd.NormFloat64()) }
			p := NewPair(one(drafted(rnd, c.a, jitter(), stepS)), one(drafted(rnd, c.b, jitter(), stepS)), rules)
			if !p.Valid() {
				t.Fatal(p.Reasons)
			}
			perTok.add(p.SPerTok, stepS/accept)
			perStep.add(p.SPerStep, stepS)
			length.add(p.AcceptLength, accept)
		}
		t.Logf("a = %2d, b = %3d: s_per_tok off by %v, s_per_step by %v, accept length by %v", c.a, c.b, perTok, perStep, length)
		if m := perTok.mean(); !testing.Short() && (m < c.low || m > c.high) {
			t.Errorf("a = %d, b = %d: s_per_tok is off by %+.2f %%, %g to %g expected", c.a, c.b, m, c.low, c.high)
		}
		if m := perStep.mean(); math.Abs(m) > 0.1 {
			t.Errorf("a = %d, b = %d: s_per_step is off by %+.2f %%", c.a, c.b, m)
		}
	}
}

// crowd is a server under several requests.
type crowd struct {
	name     string
	c        int
	prefillS float64 // one prompt after another, while decode waits
	together bool    // or all prompts in one pass
	stepS    float64 // one forward pass with all running; fewer are faster
	drafts   bool    // a pass yields 1 to 4 tokens
	apart    bool    // every request has a clock of its own, and no passes are shared
}

// perTok is the seconds per token of a request while all run.
func (w crowd) perTok() float64 {
	if w.drafts {
		return w.stepS / 2.5
	}
	return w.stepS
}

// leg is what a client sees of c requests of the same number of tokens: passes
// vary by 5 %, arrivals by 0.2 ms.
func (w crowd) leg(rnd *rand.Rand, tokens int) (leg []event.Sample) {
	const perRequest = 0.5 // of a step's time grows with the number that run
	left := make([]int, w.c)
	for slot := range w.c {
		s := clock(1000, 1)
		s.Slot, s.OffsetS, s.TokensRequested, s.CompletionTokens = slot, ptr(0.001*rnd.Float64()), tokens, ptr(int64(tokens))
		s.ChunkS, s.ChunkTokens = nil, nil
		leg = append(leg, s)
		left[slot] = tokens
	}
	yields := func(slot int, t float64, most int) {
		s, k := &leg[slot], 1
		if w.drafts && len(s.ChunkS) > 0 {
			k = 1 + rnd.IntN(4)
		}
		k = min(k, most)
		at := t + 0.0002*rnd.Float64() - *s.OffsetS
		if n := len(s.ChunkS); n > 0 {
			at = max(at, s.ChunkS[n-1])
		}
		s.ChunkS, s.ChunkTokens = append(s.ChunkS, at), append(s.ChunkTokens, int32(k))
		left[slot] -= k
	}
	pass := func() float64 { return 1 + 0.05*rnd.NormFloat64() }
	t, waiting := 0.002, rnd.Perm(w.c)
	if w.apart {
		for slot := range w.c {
			for t := 0.002 + w.prefillS*(1+rnd.Float64()); left[slot] > 0; t += w.stepS * pass() {
				yields(slot, t, left[slot])
			}
		}
	}
	for !w.apart && slices.Max(left) > 0 {
		if len(waiting) > 0 { // prompts go first, and decode waits
			t += w.prefillS * pass()
			n := 1
			if w.together {
				n = len(waiting)
			}
			for _, slot := range waiting[:n] {
				yields(slot, t, left[slot])
			}
			waiting = waiting[n:]
			if len(waiting)%2 == 0 && len(waiting) > 0 {
				continue
			}
		}
		running := 0
		for slot := range left {
			if left[slot] > 0 && left[slot] < tokens {
				running++
			}
		}
		if running == 0 {
			continue
		}
		t += w.stepS * (1 - perRequest + perRequest*float64(running)/float64(w.c)) * pass()
		for slot := range left {
			if left[slot] > 0 && left[slot] < tokens {
				yields(slot, t, left[slot])
			}
		}
	}
	for slot := range leg {
		s := &leg[slot]
		s.TTFTS, s.TotalS = ptr(s.ChunkS[0]), s.ChunkS[len(s.ChunkS)-1]
		steps := int64(len(s.ChunkS) - 1)
		s.Steps = &steps
	}
	return leg
}

// TestWindowFigures: the window rate is the rate while all requests decode, also
// where first tokens come one after the other and where requests end at different
// times. The slope of makespans, which holds ramp-up and end, is printed beside it.
func TestWindowFigures(t *testing.T) {
	for _, w := range []crowd{
		{name: "prompts in one pass", c: 4, prefillS: 0.1, together: true, stepS: 0.020},
		{name: "prompts one by one", c: 4, prefillS: 0.1, stepS: 0.020},
		{name: "prompts one by one", c: 16, prefillS: 0.1, stepS: 0.020},
		{name: "prompts one by one", c: 64, prefillS: 0.02, stepS: 0.030},
		{name: "no shared passes", c: 8, prefillS: 0.3, apart: true, stepS: 0.020},
		{name: "speculation", c: 4, prefillS: 0.1, drafts: true, stepS: 0.060},
		{name: "speculation", c: 16, prefillS: 0.1, drafts: true, stepS: 0.060},
	} {
		rnd := rand.New(rand.NewPCG(33, uint64(w.c)))
		rules := exact
		rules.Concurrency, rules.Speculative = w.c, ptr(w.drafts)
		a := 1
		if w.drafts {
			a = speculativeA
		}
		var pilot []Pair
		for range pilots {
			pilot = append(pilot, NewPair(w.leg(rnd, a), w.leg(rnd, a+floorTokens), rules))
		}
		size, err := Size(pilot, SizeRequest{Target: 0.03, Context: 1000, Concurrency: w.c, Speculative: w.drafts})
		if err != nil {
			t.Fatal(err)
		}
		var window, span, step errors
		refused := 0
		n := draws(6000 / w.c)
		for range n {
			p := NewPair(w.leg(rnd, size.A), w.leg(rnd, size.B), rules)
			if !p.Valid() {
				refused++
				continue
			}
			window.add(p.SPerTok, w.perTok())
			span.add(p.MakespanSPerTok, w.perTok())
			step.add(p.SPerStep, w.stepS)
		}
		t.Logf("%-19s c = %2d, a = %2d, b = %3d: window off by %v, s_per_step by %v, makespans by %v; %d of %d not concurrent", w.name, w.c, size.A, size.B, window, step, span, refused, n)
		if len(window.xs) < n/2 {
			t.Errorf("%s, c = %d: only %d of %d pairs are valid", w.name, w.c, len(window.xs), n)
		}
		if m := window.mean(); math.Abs(m) > 0.5 {
			t.Errorf("%s, c = %d: the window rate is off by %+.2f %%", w.name, w.c, m)
		}
	}
}

// TestDoubtRates: on servers without fault each doubt about a point comes as
// often as its level says, with the stopping rule running, and a drift of 1 % a
// repeat is found (C-56).
func TestDoubtRates(t *testing.T) {
	rate := func(rule schema.Repeats, draw func(*rand.Rand) float64, spread, drift, order float64) (found map[Code]float64) {
		rnd := rand.New(rand.NewPCG(35, 36))
		found = map[Code]float64{}
		n := draws(2000)
		for range n {
			var ps []Pair
			for done := false; !done; done, _ = Done(ps, rule) {
				s := truth * (1 + spread*draw(rnd)) * (1 + drift*float64(len(ps)))
				p := Pair{DeploymentID: "o1-d1", Repeat: len(ps) + 1, Requests: 1, Order: []string{"ab", "ba"}[len(ps)%2], Main: &s, SPerTok: &s}
				if p.Order == "ba" {
					s *= 1 + order
				}
				ps = append(ps, p)
			}
			for _, d := range Estimate(ps, rule, ptr(truth)).Doubts {
				found[d.Code] += 1 / float64(n)
			}
		}
		return found
	}
	percent := func(f map[Code]float64) string {
		return fmt.Sprintf("order_effect %5.1f %%, trend %5.1f %%, median_disagrees %5.1f %%", 100*f[OrderEffect], 100*f[Trend], 100*f[MedianDisagrees])
	}
	twelve, stopping := schema.Repeats{Min: 12, Max: 12, Target: 0.03}, schema.Repeats{Min: 6, Max: 12, Target: 0.03}
	for _, shape := range shapes {
		for name, r := range map[string]schema.Repeats{"12 pairs": twelve, "6 to 12 pairs": stopping} {
			for _, spread := range []float64{0.01, 0.05} {
				f := rate(r, shape.draw, spread, 0, 0)
				t.Logf("no fault: %s, %s, spread %g %%: %s", name, shape.name, 100*spread, percent(f))
				most := 0.02 // the level is 1 %
				if testing.Short() {
					most = 0.05
				}
				if shape.name == "normal" && (f[OrderEffect] > most || f[Trend] > most || f[MedianDisagrees] > most) {
					t.Errorf("%s, spread %g: %s", name, spread, percent(f))
				}
			}
		}
	}
	for name, r := range map[string]schema.Repeats{"12 pairs": twelve, "6 to 12 pairs": stopping} {
		for _, c := range []struct{ spread, drift, order float64 }{
			{0.003, 0.01, 0}, {0.003, 0.001, 0}, {0.01, 0.01, 0}, {0.03, 0.01, 0}, {0.003, 0, 0.01}, {0.01, 0, 0.03}, {0.01, 0, 0.05},
		} {
			f := rate(r, shapes[0].draw, c.spread, c.drift, c.order)
			t.Logf("%s, spread %.1f %%, %+.1f %% a repeat, %+.1f %% where leg b is first: %s", name, 100*c.spread, 100*c.drift, 100*c.order, percent(f))
			if c.spread == 0.003 && c.drift == 0.01 && f[Trend] < 0.90 {
				t.Errorf("%s: a drift of 1 %% a repeat is found in %.0f %% only", name, 100*f[Trend])
			}
		}
	}
}

// TestLives: where lives of a server differ by a random effect, the interval over
// their means covers what it says, and one over all pairs does not.
func TestLives(t *testing.T) {
	const between, within = 0.03, 0.01
	for _, lives := range []int{3, 5, 8} {
		rule := schema.Repeats{Min: 6, Max: 12, Target: 0.03, Deployments: lives}
		rnd := rand.New(rand.NewPCG(37, uint64(lives)))
		var over, pooled tally
		var off errors
		for range draws(2000) {
			var all []Pair
			for life := range lives {
				mean := truth * (1 + between*rnd.NormFloat64())
				var ps []Pair
				for done := false; !done; done, _ = Done(ps, Share(rule)) {
					s := mean * (1 + within*rnd.NormFloat64())
					ps = append(ps, Pair{DeploymentID: fmt.Sprintf("o1-d%d", life+1), Repeat: len(all) + len(ps) + 1, Requests: 1, Main: &s, SPerTok: &s})
				}
				all = append(all, ps...)
			}
			pt := Estimate(all, rule, ptr(truth))
			if pt.Status != OK || pt.Method != MethodDeployments {
				t.Fatalf("%s (%s), %s", pt.Status, pt.Detail, pt.Method)
			}
			over.add(pt.Values.SPerTok.Interval.Contains(truth))
			off.add(pt.Values.SPerTok.Mean, truth)
			rule := rule
			rule.Deployments = 1
			pooled.add(Estimate(all, rule, ptr(truth)).Values.SPerTok.Interval.Contains(truth))
		}
		t.Logf("%d lives that differ by %g %%, pairs by %g %%: over lives %v, mean off by %v; over all pairs %v", lives, 100*between, 100*within, over, off, pooled)
		if p := over.percent(); !testing.Short() && (p < 93 || p > 97) {
			t.Errorf("%d lives: intervals over lives cover %.1f %%", lives, p)
		}
	}
}

// TestEvidenceDoesNotSelect: pairs that are taken out by evidence leave the mean
// of the others where it was: a cache that answers one leg in ten, by its count or
// (where none is reported) by the first token, and preemptions. A hit that is too
// small for the first token to show is no evidence, and its bias is printed.
func TestEvidenceDoesNotSelect(t *testing.T) {
	const context, b, prefillS = 8192, 129, 0.8
	rule := schema.Repeats{Min: 6, Max: 12, Target: 0.03}
	for _, c := range []struct {
		name   string
		hidden bool    // no cached count
		share  float64 // of legs that are spoilt
		hit    float64 // share of the prompt that the cache then has
		jitter float64
		judge  bool // the bias must be small
	}{
		{"nothing", false, 0, 0, 0.02, true},
		{"hits that are counted", false, 0.05, 0.9, 0.02, true},
		{"hits that are counted, of a fifth of the prompt", false, 0.05, 0.2, 0.02, true},
		{"hits that are counted, of a fifth of the pairs", false, 0.106, 0.9, 0.02, true},
		{"hits that are not counted", true, 0.05, 0.9, 0.02, true},
		{"no hit, not counted, a wild prefill", true, 0, 0, 0.25, true},
		{"hits that are not counted, of a fifth of the prompt", true, 0.05, 0.2, 0.02, false},
	} {
		for _, shape := range shapes {
			rnd := rand.New(rand.NewPCG(39, 40))
			m := machine{prefillS: prefillS, jitterS: c.jitter * prefillS, sPerTok: 0.020, decode: 0.003, hidden: c.hidden}
			var off errors
			states := map[string]int{}
			removed, pairs := 0, 0
			leg := func(tokens, k int, second bool) event.Sample {
				x := shape.draw(rnd)
				x = max(min(x, 3.5), -3.5)
				s := m.answer(context, tokens, x, rnd.NormFloat64())
				s.Repeat, s.Second = k, second
				if rnd.Float64() < c.share {
					saved := c.hit * *s.TTFTS
					s.TotalS, s.TTFTS = s.TotalS-saved, ptr(*s.TTFTS-saved)
					if !c.hidden {
						s.CachedTokens = ptr(int64(c.hit * context))
					}
				}
				return s
			}
			n := draws(400)
			for range n {
				var ps []Pair
				for done := false; !done; done, _ = Done(ps, rule) {
					k := len(ps) + 1
					ps = append(ps, NewPair(one(leg(1, k, k%2 == 0)), one(leg(b, k, k%2 == 1)), exact))
				}
				pt := Estimate(ps, rule, &m.sPerTok)
				states[pt.Status]++
				removed, pairs = removed+pt.NInvalid, pairs+pt.N+pt.NInvalid
				if pt.Status == OK {
					off.add(pt.Values.SPerTok.Mean, m.sPerTok)
				}
			}
			t.Logf("%s, %s: %.0f %% of pairs removed; %.0f %% of points ok, off by %v", c.name, shape.name, 100*float64(removed)/float64(pairs), 100*float64(states[OK])/float64(n), off)
			if m := off.mean(); c.judge && !testing.Short() && len(off.xs) >= n/20 && math.Abs(m) > 0.5 {
				t.Errorf("%s, %s: ok points are off by %+.2f %%", c.name, shape.name, m)
			}
		}
	}
}

// TestMethodFigures: the other methods estimate without bias too, and their
// intervals cover what they say, with the stopping rule running.
func TestMethodFigures(t *testing.T) {
	const context, prefillS = 8192, 0.8
	rule := schema.Repeats{Min: 6, Max: 12, Target: 0.01}
	var all tally
	for _, method := range []string{schema.MethodTwoPoint, schema.MethodMultiPoint, schema.MethodStream, schema.MethodDecodeAtDepth} {
		for _, shape := range shapes {
			rnd := rand.New(rand.NewPCG(41, 42))
			rules := under(method)
			leg := func(k, tokens int) []event.Sample {
				first := prefillS * (1 + 0.01*shape.draw(rnd))
				s := event.Sample{DeploymentID: "o1-d1", Repeat: k, ContextRequested: context, TokensRequested: tokens, Streamed: true, Finish: "length",
					PromptTokens: ptr(int64(context)), CompletionTokens: ptr(int64(tokens)), CachedTokens: ptr(int64(0))}
				if method == schema.MethodDecodeAtDepth {
					first /= 100
					s.CachedTokens = ptr(int64(context - 1))
				}
				// A step's time wanders by 2 % within a request and by 0.5 % between requests.
				slow := 1 + 0.005*rnd.NormFloat64()
				at := first
				for range tokens {
					s.ChunkS, s.ChunkTokens = append(s.ChunkS, at), append(s.ChunkTokens, 1)
					at += truth * slow * (1 + 0.02*shape.draw(rnd))
				}
				s.TTFTS, s.TotalS = &s.ChunkS[0], s.ChunkS[tokens-1]
				return one(s)
			}
			var cover, prefill tally
			var off errors
			lack := 0
			n := draws(400)
			for range n {
				var ps []Pair
				for done := false; !done; done, _ = Done(ps, rule) {
					var p Pair
					switch k := len(ps) + 1; method {
					case schema.MethodStream:
						p = NewPair(nil, leg(k, 129), rules)
					case schema.MethodMultiPoint:
						p = NewPair(leg(k, 1), leg(k, 129), rules, leg(k, 33), leg(k, 65), leg(k, 97))
					default:
						p = NewPair(leg(k, 1), leg(k, 129), rules)
					}
					if !p.Valid() {
						t.Fatal(method, p.Reasons)
					}
					ps = append(ps, p)
				}
				pt := Estimate(ps, rule, ptr(truth))
				if pt.Status != OK {
					t.Fatalf("%s: %s (%s)", method, pt.Status, pt.Detail)
				}
				hit := pt.Values.Main.Interval.Contains(truth)
				cover.add(hit)
				if shape.name != "skewed" {
					all.add(hit)
				}
				off.add(pt.Values.Main.Mean, truth)
				if i := pt.Values.PrefillS.Interval; i != nil {
					prefill.add(i.Contains(prefillS))
				}
				if has(pt.Doubts, LackOfFit) {
					lack++
				}
			}
			t.Logf("%-15s %-12s off by %v; intervals of the estimate cover %v, of prefill %v; lack_of_fit in %d", method, shape.name, off, cover, prefill, lack)
			if m := off.mean(); math.Abs(m) > 0.5 {
				t.Errorf("%s, %s: points are off by %+.2f %%", method, shape.name, m)
			}
		}
	}
	t.Logf("normal and contaminated noise, all methods: %v", all)
	if p := all.percent(); !testing.Short() && (p < 93 || p > 97) {
		t.Errorf("intervals cover %.1f %%", p)
	}
}

// TestColdVerdict: a cold pair that confirms decode on a cached prompt seldom
// refuses one that is right, and finds one that is not.
func TestColdVerdict(t *testing.T) {
	rule := schema.Repeats{Min: 6, Max: 12, Target: 0.03}
	deep := under(schema.MethodDecodeAtDepth)
	for _, shape := range shapes {
		for _, c := range []struct {
			context        int
			jitter, decode float64
		}{{32768, 0.005, 0.003}, {32768, 0.01, 0.003}, {32768, 0.02, 0.003}, {32768, 0.01, 0.02}, {1024, 0.01, 0.003}, {1024, 0.01, 0.02}} {
			context, jitter := c.context, c.jitter
			prefillS := float64(context) / 10_000
			rnd := rand.New(rand.NewPCG(43, 44))
			m := machine{prefillS: prefillS, jitterS: jitter * prefillS, sPerTok: 0.020, decode: c.decode}
			warm := machine{prefillS: 0.01, jitterS: 0.0003, sPerTok: 0.020, decode: c.decode}
			verdict := func(colder float64) float64 {
				refused, n := 0, draws(400)
				for range n {
					var ps []Pair
					for done := false; !done; done, _ = Done(ps, rule) {
						leg := func(tokens int) []event.Sample {
							s := warm.answer(context, tokens, max(-3, shape.draw(rnd)), rnd.NormFloat64())
							s.CachedTokens = ptr(int64(context - 1))
							return one(s)
						}
						ps = append(ps, NewPair(leg(1), leg(1+floorTokens), deep))
					}
					pt := Estimate(ps, rule, &warm.sPerTok)
					m := m
					m.sPerTok *= colder
					b := 1 + ColdTokens(floorTokens, prefillS, &warm.sPerTok, SizeRequest{Target: rule.Target, Context: context})
					p := NewPair(one(m.answer(context, 1, shape.draw(rnd), 0)), one(m.answer(context, b, shape.draw(rnd), rnd.NormFloat64())), exact)
					excess, known, _ := Cold(p, ps)
					agrees := excess <= 0
					if !known {
						t.Fatal(pt.Status, pt.Detail, p.Reasons)
					}
					if !agrees {
						refused++
					}
				}
				return float64(refused) / float64(n)
			}
			same, ten, fifty := verdict(1), verdict(1.10), verdict(1.50)
			t.Logf("%s, context %d, prefill wanders by %g %% and decode by %g %%: refused where both are the same %.1f %%, where cold decode is 10 %% slower %.1f %%, 50 %% slower %.1f %%", shape.name, context, 100*jitter, 100*c.decode, 100*same, 100*ten, 100*fifty)
			if jitter <= 0.01 && same > 0.03 || fifty < 0.9 {
				t.Errorf("%s, jitter %g: %.3f refused wrongly, %.3f found", shape.name, jitter, same, fifty)
			}
		}
	}
}
