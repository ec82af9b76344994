package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
)

var rule = schema.Repeats{Min: 6, Max: 12, Target: 0.03, Deployments: 1}

// pairsOf makes valid pairs with the given slopes, alternating the order of legs.
func pairsOf(slopes ...float64) (ps []Pair) {
	for i, s := range slopes {
		a, b := clock(1000, 1), clock(1000, 17)
		a.Repeat, b.Repeat = i+1, i+1
		a.Second, b.Second = i%2 == 1, i%2 == 0
		a.TotalS += max(0, -16*s)
		b.TotalS = a.TotalS + 16*s
		a.ChunkS[0], b.ChunkS[16] = a.TotalS, b.TotalS
		ps = append(ps, NewPair(one(a), one(b), exact))
	}
	return ps
}

func invalidated(p Pair, c Code) Pair {
	p.Reasons = append([]Finding{}, Finding{c, "for a test"})
	return p
}

func TestEstimateByHand(t *testing.T) {
	// Mean 10, standard deviation √3.5, t(5) = 2.570582: half-width 1.963287.
	pt := Estimate(pairsOf(0.0075, 0.0085, 0.0095, 0.0105, 0.0115, 0.0125), rule, nil)
	if pt.Status != OK || pt.N != 6 || pt.NInvalid != 0 || pt.Method != MethodPairs || pt.Level != 0.95 || pt.Raw != nil {
		t.Fatalf("%+v", pt)
	}
	f := pt.Values.SPerTok
	near(t, "mean", f.Mean, 0.010)
	near(t, "sd", f.SD, 0.001*math.Sqrt(3.5))
	const half = 2.570581835636314 * 0.0018708286933869707 / 2.449489742783178
	near(t, "lo", &f.Interval.Lo, 0.010-half)
	near(t, "hi", &f.Interval.Hi, 0.010+half)
	near(t, "median", f.Median, 0.010)
	near(t, "median lo", &f.MedianInterval.Lo, 0.0075)
	near(t, "median hi", &f.MedianInterval.Hi, 0.0125)
	if f.Disagree {
		t.Error("mean and median of a symmetric sample disagree")
	}
	r := pt.Values.DecodeTokS
	near(t, "rate", r.Mean, 100)
	near(t, "rate lo", &r.Interval.Lo, 1/(0.010+half))
	near(t, "rate hi", &r.Interval.Hi, 1/(0.010-half))
	near(t, "prefill_tok_s", pt.Values.PrefillTokS.Mean, 10_000)
	near(t, "ttft_s", pt.Values.TTFTS.Mean, 0.1)
	near(t, "n_b", pt.Values.TokensB, 17)
}

func TestEstimateStatus(t *testing.T) {
	same := func(n int) []Pair { return pairsOf(make([]float64, n)...) }
	good := pairsOf(0.0100, 0.0101, 0.0099, 0.0100, 0.0101, 0.0099, 0.0100, 0.0101)
	mark := func(n int, c Code) (ps []Pair) {
		for i, p := range good {
			if i < n {
				p = invalidated(p, c)
			}
			ps = append(ps, p)
		}
		return ps
	}
	lives := func(n int) (ps []Pair) {
		for i, p := range good {
			p.DeploymentID = fmt.Sprint("o1-d", i%n)
			ps = append(ps, p)
		}
		return ps
	}
	three := rule
	three.Deployments = 3
	for _, c := range []struct {
		name   string
		pairs  []Pair
		rule   schema.Repeats
		s0     *float64
		status string
		reason Code
	}{
		{"clean", good, rule, nil, OK, ""},
		{"none", nil, rule, nil, Unresolved, TooFewPairs},
		{"two", good[:2], rule, nil, Unresolved, TooFewPairs},
		{"three", good[:3], rule, nil, OK, ""},
		{"one invalid of eight", mark(1, CacheHit), rule, nil, OK, ""},
		{"two invalid of eight", mark(2, CacheHit), rule, nil, Invalid, CacheHit},
		{"all invalid", mark(8, FlushRefused), rule, nil, Invalid, FlushRefused},
		{"two torn of eight", mark(2, Torn), rule, nil, OK, ""},
		{"two cancelled of eight", mark(2, Cancelled), rule, nil, OK, ""},
		{"wide", pairsOf(0.004, 0.016, 0.010, 0.004, 0.016, 0.010), rule, nil, Unresolved, WideInterval},
		{"wide by the pilot alone", pairsOf(0.0080, 0.0120, 0.0100, 0.0080, 0.0120, 0.0100), rule, ptr(0.004), Unresolved, WideInterval},
		{"same, by its own mean", pairsOf(0.0080, 0.0120, 0.0100, 0.0080, 0.0120, 0.0100), rule, nil, OK, ""},
		{"C-57 every leg a slow", pairsOf(-0.149, -0.149, -0.149, -0.149, -0.149, -0.149), rule, ptr(0.02), Unresolved, NotPositive},
		{"zero", same(6), rule, ptr(0.02), Unresolved, NotPositive},
		{"two lives of three", lives(2), three, nil, Unresolved, TooFewDeployments},
		{"three lives", lives(3), three, nil, OK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			pt := Estimate(c.pairs, c.rule, c.s0)
			if pt.Status != c.status || pt.Reason != c.reason {
				t.Errorf("%s %s (%s), want %s %s", pt.Status, pt.Reason, pt.Detail, c.status, c.reason)
			}
			if (pt.Values != nil) != (c.status == OK) || (pt.Raw != nil) == (c.status == OK) {
				t.Errorf("values %v, raw %v", pt.Values, pt.Raw)
			}
			if (pt.Detail == "") != (c.status == OK) {
				t.Errorf("detail %q", pt.Detail)
			}
		})
	}
}

// One pair with a negative slope stays in the mean, and so does an outlier.
func TestNothingIsDropped(t *testing.T) {
	pt := Estimate(pairsOf(0.020, 0.020, 0.020, 0.020, 0.020, -0.05), rule, ptr(0.02))
	f := pt.Raw.SPerTok
	near(t, "mean", f.Mean, (5*0.020-0.05)/6)
	if pt.N != 6 || pt.Reason != WideInterval {
		t.Errorf("%+v", pt)
	}
	if !strings.Contains(codes(pt.Doubts), "negative_slope") {
		t.Errorf("doubts %v", pt.Doubts)
	}
	if pt.Raw.DecodeTokS.Mean == nil || pt.Raw.DecodeTokS.Interval != nil {
		t.Errorf("rate %+v of an interval that reaches below zero", pt.Raw.DecodeTokS)
	}
}

func TestIntervalOverDeployments(t *testing.T) {
	three := rule
	three.Deployments = 3
	var ps []Pair
	for i, s := range []float64{0.009, 0.011, 0.010, 0.012, 0.011, 0.013} {
		p := pairsOf(s)[0]
		p.DeploymentID = fmt.Sprint("o1-d", i/2)
		ps = append(ps, p)
	}
	pt := Estimate(ps, three, nil)
	if pt.Status != OK {
		t.Fatalf("%+v", pt)
	}
	f := pt.Values.SPerTok // means of 10, 11 and 12 ms: 11 ± t(2)·1/√3
	if f.N != 3 || pt.Method != MethodDeployments || pt.Deployments != 3 || pt.N != 6 {
		t.Errorf("%+v", pt)
	}
	near(t, "mean", f.Mean, 0.011)
	near(t, "half-width", ptr(f.Interval.HalfWidth()), 4.302652729696142*0.001/math.Sqrt(3))
}

// timed are pairs whose server says how long a token took it.
func timed(pairs []Pair, perTok float64) []Pair {
	for i := range pairs {
		pairs[i].SPerTokServer = ptr(perTok)
	}
	return pairs
}

func TestDoubtsOfAPoint(t *testing.T) {
	noise := []float64{0.2, -0.1, 0.05, -0.2, 0.1, -0.05}
	vary := func(f func(i int) float64) []Pair {
		var s []float64
		for i := range 6 {
			s = append(s, f(i)*(1+0.01*noise[i]))
		}
		return pairsOf(s...)
	}
	for _, c := range []struct {
		name  string
		pairs []Pair
		want  string
	}{
		{"quiet", vary(func(int) float64 { return 0.02 }), "one_server_life"},
		{"C-05 the first request pays", vary(func(i int) float64 { return []float64{-0.01125, 0.05125}[i%2] }), "order_effect one_server_life negative_slope"},
		{"C-56 one percent slower a repeat", vary(func(i int) float64 { return 0.02 * (1 + 0.01*float64(i)) }), "trend one_server_life"},
		{"one outlier of twelve", pairsOf(0.02, 0.0201, 0.02, 0.0201, 0.02, 0.0201, 0.02, 0.0201, 0.02, 0.0201, 0.02, 0.03), "median_disagrees one_server_life"},
		{"the server's own timings agree", timed(vary(func(int) float64 { return 0.02 }), 0.0195), "one_server_life"},
		{"the server's own timings do not", timed(vary(func(int) float64 { return 0.02 }), 0.0185), "second_opinion_differs one_server_life"},
	} {
		if got := codes(Estimate(c.pairs, rule, ptr(0.02)).Doubts); got != c.want {
			t.Errorf("%s: doubts %q, want %q", c.name, got, c.want)
		}
	}
}

func TestEstimateIgnoresOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var s []float64
		for range 3 + rnd.IntN(10) {
			s = append(s, 0.01*(1+0.05*rnd.NormFloat64()))
		}
		ps := pairsOf(s...)
		if len(ps) > 8 {
			ps[2] = invalidated(ps[2], CacheHit)
		}
		want := Estimate(ps, rule, ptr(0.01))
		_, wantWhy := Done(ps, rule)
		wantExcess := Excess(ps, rule)
		rnd.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
		if got := Estimate(ps, rule, ptr(0.01)); !reflect.DeepEqual(got, want) {
			t.Fatalf("shuffled: %+v\nin order: %+v", got, want)
		}
		if _, why := Done(ps, rule); why != wantWhy || Excess(ps, rule) != wantExcess {
			t.Fatalf("stop %q, %g after a shuffle, %q, %g before", why, Excess(ps, rule), wantWhy, wantExcess)
		}
	}
}

func TestDone(t *testing.T) {
	tight := func(n int) []Pair { return pairsOf(alternating(n, 0.001)...) }
	loose := func(n int) []Pair { return pairsOf(alternating(n, 0.2)...) }
	bad := func(ps []Pair, n int, c Code) []Pair {
		for i := range n {
			ps[i] = invalidated(ps[i], c)
		}
		return ps
	}
	for _, c := range []struct {
		name  string
		pairs []Pair
		why   string
	}{
		{"none", nil, ""},
		{"five tight", tight(5), ""},
		{"six tight", tight(6), StopTarget},
		{"six loose", loose(6), ""},
		{"eleven loose", loose(11), ""},
		{"twelve loose", loose(12), StopMax},
		{"seven, one invalid", bad(tight(7), 1, CacheHit), StopTarget},
		{"eight, two invalid: may still mend", bad(tight(8), 2, CacheHit), ""},
		{"ten, two invalid", bad(tight(10), 2, CacheHit), StopTarget},
		{"three invalid: cannot mend", bad(tight(3), 3, CacheHit), StopInvalid},
		{"three torn", bad(tight(3), 3, Torn), ""},
		{"nine, three torn", bad(tight(9), 3, Torn), StopTarget},
	} {
		done, why := Done(c.pairs, rule)
		if why != c.why || done != (c.why != "") {
			t.Errorf("%s: %v %q, want %q", c.name, done, why, c.why)
		}
		if x := Excess(c.pairs, rule); (x == 0) != done || math.IsInf(x, 0) || math.IsNaN(x) {
			t.Errorf("%s: excess %g", c.name, x)
		}
	}
	if !(Excess(nil, rule) > Excess(loose(2), rule) && Excess(loose(2), rule) > Excess(loose(8), rule) && Excess(loose(8), rule) > 1) {
		t.Errorf("excess %g, %g, %g", Excess(nil, rule), Excess(loose(2), rule), Excess(loose(8), rule))
	}
	if s := Share(schema.Repeats{Min: 6, Max: 10, Target: 0.03, Deployments: 3}); s.Min != 2 || s.Max != 4 {
		t.Errorf("share %+v", s)
	}
}

// alternating is n slopes around 0.01 that alternate by the given share.
func alternating(n int, share float64) (s []float64) {
	for i := range n {
		s = append(s, 0.01*(1+share*float64(i%2*2-1)))
	}
	return s
}

func TestStatus(t *testing.T) {
	pt := Estimate(pairsOf(0.01, 0.01, 0.01), rule, nil)
	for _, c := range []struct {
		facts          Facts
		status, reason string
	}{
		{Facts{Done: true}, OK, ""},
		{Facts{}, Pending, ""},
		{Facts{Failure: "gpu-oom"}, Failed, "gpu-oom"},
		{Facts{Failure: "gpu-oom", Done: true}, Failed, "gpu-oom"},
		{Facts{Skip: "skip_longer"}, Skipped, "skip_longer"},
	} {
		if s, r := Status(pt, c.facts); s != c.status || r != c.reason {
			t.Errorf("%+v: %s %s", c.facts, s, r)
		}
	}
}

func TestDrift(t *testing.T) {
	ps := pairsOf(0.010, 0.0115, -0.01)
	near(t, "drift", Drift(ps[0], ps[1]), 1.15)
	absent(t, "drift to a negative slope", Drift(ps[0], ps[2]))
	absent(t, "drift of an invalid pair", Drift(invalidated(ps[0], CacheHit), ps[1]))
	x, far, near := 2.0, 2.2, 2.1
	if SameAcceptLength(&x, &far) || !SameAcceptLength(&x, &near) || !SameAcceptLength(&x, nil) {
		t.Error("accept lengths agree within 5 %")
	}
}

func TestSize(t *testing.T) {
	// Two pilot pairs with times to first token of 30.0, 30.3, 30.0, 30.0 s and
	// 20 ms a token.
	pilots := func(jitter float64, streamed bool) (ps []Pair) {
		for i := range 2 {
			a, b := clock(300_000, 1), clock(300_000, 33)
			if i == 0 {
				b.TotalS += jitter
				*b.TTFTS += jitter
			}
			a.Streamed, b.Streamed = streamed, streamed
			a.Role, b.Role = event.RolePilot, event.RolePilot
			ps = append(ps, NewPair(one(a), one(b), exact))
		}
		return ps
	}
	base := SizeRequest{Target: 0.03, Context: 300_000}
	with := func(change func(*SizeRequest)) SizeRequest { r := base; change(&r); return r }
	for _, c := range []struct {
		name   string
		pilots []Pair
		req    SizeRequest
		a, b   int
		wanted int
		capped string
	}{
		{"1 % of TTFT", pilots(0, true), base, 1, 1501, 1500, ""},     // 3·0.3/(0.03·0.02)
		{"range of TTFT", pilots(0.6, true), base, 1, 3001, 3000, ""}, // 3·0.6/(0.03·0.02)
		{"no stream: t_a and slope", pilots(0, false), base, 1, 1501, 1500, ""},
		{"an eighth of the context", pilots(0.6, true), with(func(r *SizeRequest) { r.Context = 8000 }), 1, 1001, 3000, CappedByContext},
		{"the floor above an eighth", pilots(0.6, true), with(func(r *SizeRequest) { r.Context = 100 }), 1, 33, 3000, CappedByContext},
		{"the floor", pilots(0, true), with(func(r *SizeRequest) { r.Target = 10 }), 1, 33, 5, ""},
		{"speculation", pilots(0, true), with(func(r *SizeRequest) { r.Target, r.Speculative = 10, true }), 33, 129, 5, ""},
		{"speculation, a obeyed", pilots(0, true), with(func(r *SizeRequest) { r.Target, r.Speculative, r.A = 10, true, 1 }), 1, 97, 5, ""},
		{"kv pool", pilots(0, true), with(func(r *SizeRequest) { r.Pool = 300_564 }), 1, 500, 1500, CappedByPool},
		{"a pool too small is the server's to refuse", pilots(0, true), with(func(r *SizeRequest) { r.Pool = 1000 }), 1, 33, 1500, CappedByPool},
		{"context limit", pilots(0, true), with(func(r *SizeRequest) { r.ContextLimit = 300_564 }), 1, 500, 1500, CappedByLimit},
		{"both, the tighter is named", pilots(0, true), with(func(r *SizeRequest) { r.Pool, r.ContextLimit = 300_564, 300_164 }), 1, 100, 1500, CappedByLimit},
		{"limit far away", pilots(0, true), with(func(r *SizeRequest) { r.ContextLimit = 1 << 20 }), 1, 1501, 1500, ""},
		{"fixed, enough", pilots(0, true), with(func(r *SizeRequest) { r.A, r.B = 1, 2000 }), 1, 2000, 1500, ""},
		{"fixed, too short", pilots(0, true), with(func(r *SizeRequest) { r.A, r.B = 1, 17 }), 1, 17, 1500, CappedByRequest},
		{"no pilot", nil, base, 1, 37_501, 0, CappedByContext},
		{"several requests", pilots(0, true), with(func(r *SizeRequest) { r.Target, r.Concurrency = 10, 4 }), 1, 33, 5, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Size(c.pilots, c.req)
			if err != nil || s.A != c.a || s.B != c.b || s.Wanted != c.wanted || s.Capped != c.capped {
				t.Errorf("%+v, %v; want a %d, b %d, wanted %d, capped %q", s, err, c.a, c.b, c.wanted, c.capped)
			}
		})
	}
	s, _ := Size(pilots(0, true), base)
	near(t, "s0", s.S0S, 0.020)
	near(t, "jitter", &s.JitterS, 0.3)

	if _, err := Size(nil, with(func(r *SizeRequest) { r.ContextLimit = 300_065 })); err == nil {
		t.Error("no error without room for a token")
	}
	if _, err := Size(nil, with(func(r *SizeRequest) { r.A, r.B = 17, 17 })); err == nil {
		t.Error("no error for b = a")
	}
	for _, c := range []struct {
		req  SizeRequest
		a, b int
		ok   bool
	}{
		{SizeRequest{Speculative: true}, 33, 65, true},
		{SizeRequest{Context: 1000, ContextLimit: 1074}, 1, 10, true},
		{SizeRequest{B: 17}, 1, 17, true},
		{SizeRequest{B: 17, Speculative: true}, 33, 17, false},
		{SizeRequest{A: 1, B: 17, Speculative: true}, 1, 17, true},
	} {
		if a, b, err := PilotSize(c.req); a != c.a || b != c.b || (err == nil) != c.ok {
			t.Errorf("%+v: pilot legs of %d and %d tokens, %v", c.req, a, b, err)
		}
	}

	// Several requests whose prefills follow each other: the first must still
	// decode 32 steps after the last began.
	rules := exact
	rules.Concurrency = 4
	p := NewPair(concurrent(4, 1), concurrent(4, 65), rules)
	s, err := Size([]Pair{p, p}, SizeRequest{Target: 10, Context: 1000, Concurrency: 4})
	if err != nil || s.B-s.A < 32+15 || s.B-s.A > 32+20 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TooSmall does not speak where rule.Max pairs reach the target easily, and nearly
// always where they miss it by three times.
func TestTooSmall(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	// Pairs of a 20 ms token whose slopes have the standard deviation with which
	// twelve give the target times miss.
	pairs := func(n int, miss float64) (ps []Pair) {
		sd := miss * rule.Target * 0.020 * math.Sqrt(12) / quantileT(11)
		for range n {
			a, b := clock(8000, 1), clock(8000, 17)
			wander := 16 * sd * rng.NormFloat64()
			b.TotalS += wander
			*b.TTFTS += wander
			ps = append(ps, NewPair(one(a), one(b), exact))
		}
		return ps
	}
	share := func(miss float64) float64 {
		said := 0
		for range 1000 {
			all := pairs(12, miss)
			for n := 3; n <= 12; n++ { // as the runner asks: after each pair
				if TooSmall(all[:n], rule) != "" {
					said++
					break
				}
			}
		}
		return float64(said) / 1000
	}
	easy, just, far := share(0.5), share(1), share(3)
	t.Logf("said of points that reach the target easily in %.1f %%, just in %.1f %%, by no means in %.1f %%", 100*easy, 100*just, 100*far)
	if easy > 0.01 || far < 0.99 {
		t.Errorf("said in %g, %g and %g", easy, just, far)
	}
	text := TooSmall(pairs(12, 3), rule)
	if !strings.Contains(text, "b − a = 16 ") || !strings.Contains(text, "12 of them give ±") {
		t.Error(text)
	}
	for name, ps := range map[string][]Pair{"two pairs": pairs(2, 50), "none": nil, "no scatter": pairs(6, 0)} {
		if text := TooSmall(ps, rule); text != "" {
			t.Errorf("%s: %s", name, text)
		}
	}
}
