package stat

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
)

func under(method string) Rules {
	r := exact
	r.Method = method
	return r
}

// Three legs on a line give what two give; prefill is the line's value at one token.
func TestMultiPoint(t *testing.T) {
	a, m, b := clock(1000, 9), clock(1000, 17), clock(1000, 33)
	p := NewPair(one(a), one(b), under(schema.MethodMultiPoint), one(m))
	if !p.Valid() {
		t.Fatalf("%v", p.Reasons)
	}
	near(t, "s_per_tok", p.SPerTok, 0.020)
	near(t, "main", p.Main, 0.020)
	near(t, "prefill_s", p.PrefillS, 0.1)
	near(t, "prefill_tok_s", p.PrefillTokS, 10_000)

	// Least squares by hand: x = 9, 17, 33, y moved by 1, −2 and 1 ms.
	a.TotalS, m.TotalS, b.TotalS = a.TotalS+0.001, m.TotalS-0.002, b.TotalS+0.001
	p = NewPair(one(a), one(b), under(schema.MethodMultiPoint), one(m))
	mx := (9 + 17 + 33) / 3.0
	sxx := (9-mx)*(9-mx) + (17-mx)*(17-mx) + (33-mx)*(33-mx)
	slope := 0.020 + ((9-mx)*0.001-(17-mx)*0.002+(33-mx)*0.001)/sxx
	near(t, "s_per_tok", p.SPerTok, slope)
	near(t, "prefill_s", p.PrefillS, (a.TotalS+m.TotalS+b.TotalS)/3-(mx-1)*slope)

	if p := NewPair(one(a), one(b), under(schema.MethodMultiPoint), nil); !p.Interrupted() || p.Main != nil {
		t.Errorf("a missing leg: %v, %v", p.Reasons, p.Main)
	}
	same := m
	same.CompletionTokens, same.TokensRequested = b.CompletionTokens, 33
	if p := NewPair(one(a), one(b), under(schema.MethodMultiPoint), one(same)); codes(p.Reasons) != string(NoSecondPoint) || p.SPerTok != nil {
		t.Errorf("two legs of equal length: %v", p.Reasons)
	}
	hit := m
	hit.CachedTokens = ptr(int64(900))
	if p := NewPair(one(a), one(b), under(schema.MethodMultiPoint), one(hit)); !strings.Contains(codes(p.Reasons), string(CacheHit)) {
		t.Errorf("a cache hit between: %v", p.Reasons)
	}
}

// The F test of lack of fit has its level on lines, also where prefill wanders
// from repeat to repeat, and sees a bend.
func TestLackOfFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	point := func(bend float64) []*Pair {
		var pairs []*Pair
		for range 8 {
			wander := 0.005 * rng.NormFloat64()
			leg := func(n int) event.Sample {
				s := clock(1000, n)
				x := float64(n-1) / 64
				s.TotalS += wander + 0.001*rng.NormFloat64() + bend*x*(1-x)
				return s
			}
			p := NewPair(one(leg(1)), one(leg(65)), under(schema.MethodMultiPoint), one(leg(17)), one(leg(33)), one(leg(49)))
			pairs = append(pairs, &p)
		}
		return pairs
	}
	share := func(bend float64) float64 {
		found := 0
		for range 1000 {
			if _, yes := lackOfFit(point(bend)); yes {
				found++
			}
		}
		return float64(found) / 1000
	}
	flat, bent := share(0), share(0.010)
	t.Logf("found on lines in %.1f %%, on a bend of 2.5 ms in %.1f %% (noise 1 ms, 8 repeats of 5 budgets)", 100*flat, 100*bent)
	if flat > 0.02 || bent < 0.95 {
		t.Errorf("found on lines in %g, on a bend in %g", flat, bent)
	}
}

func TestStream(t *testing.T) {
	b := clock(8000, 129)
	p := NewPair(nil, one(b), under(schema.MethodStream))
	if !p.Valid() || p.Order != "ba" && p.Order != "ab" {
		t.Fatalf("%v", p.Reasons)
	}
	near(t, "main", p.Main, 0.020)
	near(t, "s_per_tok_stream", p.SPerTokStream, 0.020)
	near(t, "decode_stream_tok_s", p.DecodeStreamTokS, 50)
	near(t, "ttft_s", p.TTFTS, 0.8)
	absent(t, "s_per_tok", p.SPerTok)
	absent(t, "decode_tok_s", p.DecodeTokS)
	absent(t, "prefill_s", p.PrefillS)
	absent(t, "prefill_tok_s", p.PrefillTokS)

	for name, spoil := range map[string]func(*event.Sample){
		"buffered":       func(s *event.Sample) { s.Buffered = true },
		"no stream":      func(s *event.Sample) { s.Streamed, s.ChunkS, s.ChunkTokens, s.TTFTS = false, nil, nil, nil },
		"unknown counts": func(s *event.Sample) { s.ChunkTokens, s.ChunkS = nil, s.ChunkS[:40] },
	} {
		s := clock(8000, 129)
		spoil(&s)
		p := NewPair(nil, one(s), under(schema.MethodStream))
		if codes(p.Reasons) != string(NoStream) || p.Main != nil {
			t.Errorf("%s: %v, main %v", name, p.Reasons, p.Main)
		}
	}
	cached := b
	cached.CachedTokens = ptr(int64(7990))
	if p := NewPair(nil, one(cached), under(schema.MethodStream)); codes(p.Reasons) != string(CacheHit) {
		t.Errorf("a cached prompt: %v", p.Reasons)
	}

	rule := schema.Repeats{Min: 3, Max: 6, Target: 0.03, Deployments: 1}
	var pairs []Pair
	for range 3 {
		pairs = append(pairs, p)
	}
	if done, why := Done(pairs, rule); !done || why != StopTarget {
		t.Errorf("three equal streams: %v, %s", done, why)
	}
	e := Estimate(pairs, rule, nil)
	if e.Status != OK {
		t.Fatalf("%s: %s", e.Status, e.Detail)
	}
	near(t, "estimate", e.Values.Main.Mean, 0.020)
	near(t, "prompt tokens", e.Values.PromptTokens, 8000)
	absent(t, "estimated s_per_tok", e.Values.SPerTok.Mean)
}

// atDepth is a leg on a cached prompt of the clock.
func atDepth(context, tokens, cached int) event.Sample {
	s := clock(context, tokens)
	saved := float64(cached) / 10_000
	s.TotalS -= saved
	*s.TTFTS -= saved
	for i := range s.ChunkS {
		s.ChunkS[i] -= saved
	}
	s.CachedTokens = ptr(int64(cached))
	return s
}

func TestDecodeAtDepth(t *testing.T) {
	r := under(schema.MethodDecodeAtDepth)
	r.Page = 16
	pair := func(cachedA, cachedB int) Pair {
		return NewPair(one(atDepth(8000, 1, cachedA)), one(atDepth(8000, 33, cachedB)), r)
	}
	p := pair(7984, 7984)
	if !p.Valid() {
		t.Fatalf("%v", p.Reasons)
	}
	near(t, "s_per_tok", p.SPerTok, 0.020)
	near(t, "main", p.Main, 0.020)
	absent(t, "prefill_s", p.PrefillS)
	absent(t, "prefill_tok_s", p.PrefillTokS)
	absent(t, "ttft_s", p.TTFTS)

	unreported := atDepth(8000, 33, 7984)
	unreported.CachedTokens = nil
	for _, c := range []struct {
		name string
		p    Pair
		want string
	}{
		{"cold", pair(0, 0), "not_cached"},
		{"one leg cold", pair(7984, 0), "not_cached cached_differs"},
		{"a block less than allowed", pair(7968, 7968), "not_cached"},
		{"legs differ", pair(7984, 7999), "cached_differs"},
		{"not reported", NewPair(one(atDepth(8000, 1, 7984)), one(unreported), r), "not_cached"},
	} {
		if got := codes(c.p.Reasons); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestCold(t *testing.T) {
	r := under(schema.MethodDecodeAtDepth)
	var pairs []Pair
	for range 4 {
		pairs = append(pairs, NewPair(one(atDepth(8000, 1, 7999)), one(atDepth(8000, 33, 7999)), r))
	}
	pt := Estimate(pairs, schema.Repeats{Min: 3, Max: 6, Target: 0.03, Deployments: 1}, ptr(0.020))
	if pt.Status != OK {
		t.Fatal(pt.Status, pt.Detail)
	}
	cold := func(sPerTok float64) Pair {
		a, b := clock(8000, 1), clock(8000, 129)
		b.TotalS = *b.TTFTS + sPerTok*128
		return NewPair(one(a), one(b), exact)
	}
	// j = 1 % of 0.8 s; 3·√2·8 ms/128 = 0.265 ms.
	for s, want := range map[float64]bool{0.020: true, 0.02026: true, 0.02028: false, 0.019: false} {
		excess, known, detail := Cold(cold(s), pairs)
		agrees := excess <= 0
		if !known || agrees != want {
			t.Errorf("%g s: agrees %v, known %v (%s)", s, agrees, known, detail)
		}
	}
	if _, known, _ := Cold(NewPair(nil, nil, exact), pairs); known {
		t.Error("a torn pair says something")
	}
	if _, known, _ := Cold(cold(0.020), pairs[:2]); known {
		t.Error("two pairs say something")
	}
	refused := pt.Refuse(ColdDisagrees, "x")
	if refused.Status != Invalid || refused.Values != nil || refused.Raw == nil || pt.Values == nil {
		t.Errorf("%+v", refused)
	}
	if n := ColdTokens(32, 10, ptr(0.020), SizeRequest{Target: 0.03, Context: 131072, ContextLimit: 140000}); n != 500 {
		t.Errorf("%d tokens, want 3·0.1/(0.03·0.02) = 500", n)
	}
	if n := ColdTokens(32, 10, ptr(0.020), SizeRequest{Target: 0.03, Context: 1024}); n != 128 {
		t.Errorf("%d tokens, want an eighth of the context", n)
	}
	if n := ColdTokens(32, 10, ptr(0.020), SizeRequest{Target: 0.03, Context: 1024, ContextLimit: 1024 + 64 + 1 + 20}); n != 20 {
		t.Errorf("%d tokens, want what the limit leaves", n)
	}
}

func TestFaster(t *testing.T) {
	v := func(perTok, perStep, accept float64) *Values {
		f := func(x float64) Figure { return newFigure(slices.Repeat([]float64{x}, 3)) }
		return &Values{Main: f(perTok), SPerStep: f(perStep), AcceptLength: f(accept)}
	}
	ratio, perStep := Faster(v(0.020, 0.020, 1), v(0.010, 0.010, 1))
	near(t, "without speculation", ratio, 2)
	if perStep {
		t.Error("equal accept lengths compare by tokens")
	}
	ratio, perStep = Faster(v(0.020, 0.020, 1), v(0.010, 0.025, 2.5))
	near(t, "accept lengths differ", ratio, 0.8)
	if !perStep {
		t.Error("other accept lengths compare by steps only")
	}
	if ratio, _ := Faster(nil, v(1, 1, 1)); ratio != nil {
		t.Error("nothing to compare with")
	}
}
