package stat

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"twopoint/results/event"
)

// ptr is a pointer to a literal.
func ptr[T any](x T) *T { return &x }

// clock is the stand-in server of the case log: prefill at 10 000 tok/s, 0.020 s
// a token, the first token out of the prefill pass.
func clock(context, tokens int) event.Sample {
	prefill := float64(context) / 10_000
	s := event.Sample{
		DeploymentID: "o1-d1", PointID: "p", Role: event.RoleMeasure, Repeat: 1, Attempt: 1,
		ContextRequested: context, TokensRequested: tokens,
		Streamed: true, TTFTS: ptr(prefill), TotalS: prefill + 0.020*float64(tokens-1),
		PromptTokens: ptr(int64(context)), CompletionTokens: ptr(int64(tokens)), CachedTokens: ptr(int64(0)),
		Finish: "length",
	}
	for i := range tokens {
		s.ChunkS = append(s.ChunkS, prefill+0.020*float64(i))
		s.ChunkTokens = append(s.ChunkTokens, 1)
	}
	return s
}

var exact = Rules{Length: "exact", Flush: "auto", Nonce: true, Speculative: ptr(false)}

func one(s event.Sample) []event.Sample { return []event.Sample{s} }

func near(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is nil, want %g", what, want)
	} else if math.Abs(*got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s = %g, want %g", what, *got, want)
	}
}

func absent(t *testing.T, what string, got *float64) {
	t.Helper()
	if got != nil {
		t.Errorf("%s = %g, want nil", what, *got)
	}
}

func codes(fs []Finding) string {
	var s []string
	for _, f := range fs {
		s = append(s, string(f.Code))
	}
	return strings.Join(s, " ")
}

func TestPairFigures(t *testing.T) {
	for _, context := range []int{1000, 8000} {
		a, b := clock(context, 1), clock(context, 17)
		b.ServerDecodeSPerTok = ptr(0.0195)
		p := NewPair(one(a), one(b), exact)
		if !p.Valid() || len(p.Doubts) > 0 {
			t.Fatalf("context %d: reasons %v, doubts %v", context, p.Reasons, p.Doubts)
		}
		near(t, "s_per_tok", p.SPerTok, 0.020)
		near(t, "decode_tok_s", p.DecodeTokS, 50)
		near(t, "decode_total_tok_s", p.DecodeTotalTokS, 50)
		near(t, "s_per_step", p.SPerStep, 0.020)
		near(t, "accept length", p.AcceptLength, 1)
		near(t, "prefill_s", p.PrefillS, float64(context)/10_000)
		near(t, "prefill_tok_s", p.PrefillTokS, 10_000)
		near(t, "ttft_s", p.TTFTS, float64(context)/10_000)
		near(t, "tpot_s", p.TPOTS, 0.020)
		near(t, "itl_s", p.ITLS, 0.020)
		near(t, "decode_stream_tok_s", p.DecodeStreamTokS, 50)
		near(t, "s_per_tok_server", p.SPerTokServer, 0.0195)
		absent(t, "makespan slope", p.MakespanSPerTok)
	}
	// a = 33: prefill is t_a less 32 decode tokens.
	p := NewPair(one(clock(1000, 33)), one(clock(1000, 129)), exact)
	near(t, "prefill_s", p.PrefillS, 0.1)
	near(t, "s_per_tok", p.SPerTok, 0.02)
}

// For a = 1, in-stream and two-point figures differ exactly by prefill jitter
// over b − 1, since they share the decode of leg b.
func TestStreamAndSlopeShareDecode(t *testing.T) {
	a, b := clock(1000, 1), clock(1000, 17)
	const jitter = 0.008
	b.TotalS += jitter
	*b.TTFTS += jitter
	p := NewPair(one(a), one(b), exact)
	near(t, "difference", ptr(*p.SPerTok-*p.TPOTS), jitter/16)
}

func TestPairValidity(t *testing.T) {
	reported := exact
	reported.Length, reported.Tolerance = "reported", 0.02
	with := func(r Rules, change func(*Rules)) Rules { change(&r); return r }
	refused := &event.Flush{Method: "/flush_cache", Attempts: 9, WaitS: 2, Status: 400, OK: ptr(false), Detail: "not idle"}
	uncounted := func(a, b *event.Sample) { a.CachedTokens, b.CachedTokens = nil, nil }

	for _, c := range []struct {
		name            string
		rules           Rules
		change          func(a, b *event.Sample)
		reasons, doubts string
		check           func(t *testing.T, p Pair)
	}{
		{name: "C-04 zero is not null", rules: exact, change: func(a, b *event.Sample) {}},
		{name: "C-04 cached tokens reported", rules: exact, change: func(a, b *event.Sample) {
			*b.CachedTokens = 960
			b.TotalS -= 0.096
			*b.TTFTS -= 0.096
		}, reasons: "cache_hit", check: func(t *testing.T, p Pair) {
			// The quiet lie: 71 tok/s with a perfect prefill rate.
			near(t, "s_per_tok", p.SPerTok, 0.014)
			near(t, "prefill_tok_s", p.PrefillTokS, 10_000)
			if !strings.Contains(p.Reasons[0].Detail, "960") {
				t.Errorf("detail %q lacks the count", p.Reasons[0].Detail)
			}
		}},
		{name: "template prefix is no hit", rules: with(exact, func(r *Rules) { r.Probe = &event.Probe{Template: 30, Proven: "yes"} }), change: func(a, b *event.Sample) {
			*a.CachedTokens, *b.CachedTokens = 30, 30
		}},
		{name: "one block is no hit", rules: with(exact, func(r *Rules) { r.Page = 16 }), change: func(a, b *event.Sample) { *b.CachedTokens = 16 }},
		{name: "two blocks are", rules: with(exact, func(r *Rules) { r.Page = 16 }), change: func(a, b *event.Sample) { *b.CachedTokens = 32 }, reasons: "cache_hit"},
		{name: "a block as large as the prompt excuses nothing", rules: with(exact, func(r *Rules) { r.Page = 512 }), change: func(a, b *event.Sample) {
			*a.CachedTokens, *b.CachedTokens = 500, 500
		}, reasons: "cache_hit"},
		{name: "the stream is held open after its last token", rules: exact, change: func(a, b *event.Sample) {
			a.TotalS += 0.5
			b.TotalS += 0.5
		}, doubts: "late_end", check: func(t *testing.T, p Pair) { near(t, "s_per_tok", p.SPerTok, 0.020) }},
		{name: "not reported, TTFT alike", rules: exact, change: uncounted, doubts: "cache_unverified"},
		{name: "not reported, flush proven", rules: with(exact, func(r *Rules) { r.Probe = &event.Probe{Proven: "yes"} }), change: uncounted},
		{name: "not reported, TTFT of b at half", rules: exact, change: func(a, b *event.Sample) {
			uncounted(a, b)
			*b.TTFTS *= 0.5
		}, reasons: "cache_suspected", doubts: "cache_unverified"},
		{name: "not reported, TTFT of b at half after a flush that works", rules: with(exact, func(r *Rules) { r.Probe = &event.Probe{Proven: "yes"} }), change: func(a, b *event.Sample) {
			uncounted(a, b)
			*b.TTFTS *= 0.5
			a.Flush, b.Flush = &event.Flush{OK: ptr(true)}, &event.Flush{OK: ptr(true)}
		}},
		{name: "the same, the nonce off", rules: with(exact, func(r *Rules) { r.Probe, r.Nonce = &event.Probe{Proven: "yes"}, false }), change: func(a, b *event.Sample) {
			uncounted(a, b)
			*b.TTFTS *= 0.5
			a.Flush, b.Flush = &event.Flush{OK: ptr(true)}, &event.Flush{OK: ptr(true)}
		}, reasons: "cache_suspected"},
		{name: "the same, a flush without a verdict", rules: with(exact, func(r *Rules) { r.Probe = &event.Probe{Proven: "yes"} }), change: func(a, b *event.Sample) {
			uncounted(a, b)
			*b.TTFTS *= 0.5
			a.Flush, b.Flush = &event.Flush{OK: ptr(true)}, &event.Flush{}
		}, reasons: "cache_suspected"},
		{name: "reported cold, TTFT of b at half", rules: exact, change: func(a, b *event.Sample) { *b.TTFTS *= 0.5 }},
		{name: "no nonce, no flush, no count", rules: with(exact, func(r *Rules) { r.Nonce, r.Flush = false, "never" }), change: uncounted,
			reasons: "cache_not_flushed", doubts: "cache_unverified"},
		{name: "no nonce, flushed, no count", rules: with(exact, func(r *Rules) { r.Nonce = false }), change: func(a, b *event.Sample) {
			uncounted(a, b)
			a.Flush, b.Flush = &event.Flush{OK: ptr(true)}, &event.Flush{OK: ptr(true)}
		}, doubts: "cache_unverified"},
		{name: "no nonce, counted cold", rules: with(exact, func(r *Rules) { r.Nonce = false }), change: func(a, b *event.Sample) {}},
		{name: "probe says no, no nonce", rules: with(exact, func(r *Rules) { r.Nonce, r.Probe = false, &event.Probe{Proven: "no"} }),
			change: func(a, b *event.Sample) {}, reasons: "cache_not_flushed"},
		{name: "probe says no, nonce", rules: with(exact, func(r *Rules) { r.Probe = &event.Probe{Proven: "no"} }), change: func(a, b *event.Sample) {}},

		{name: "C-01 refused flush", rules: exact, change: func(a, b *event.Sample) { uncounted(a, b); b.Flush = refused },
			reasons: "flush_refused", doubts: "cache_unverified", check: func(t *testing.T, p Pair) {
				if d := p.Reasons[0].Detail; !strings.Contains(d, "not idle") || !strings.Contains(d, "400") {
					t.Errorf("detail %q lacks the server's words", d)
				}
			}},
		{name: "refused flush, counted cold", rules: exact, change: func(a, b *event.Sample) { b.Flush = refused }, doubts: "flush_unavailable"},
		{name: "refused flush, required", rules: with(exact, func(r *Rules) { r.Flush = "require" }), change: func(a, b *event.Sample) {
			a.Flush = &event.Flush{OK: ptr(true)}
			b.Flush = refused
		}, reasons: "flush_refused"},
		{name: "C-03 no such route", rules: exact, change: func(a, b *event.Sample) {
			uncounted(a, b)
			b.Flush = &event.Flush{Method: "/reset_prefix_cache", Status: 404, OK: ptr(false)}
		}, doubts: "flush_unavailable cache_unverified"},
		{name: "no flush, required", rules: with(exact, func(r *Rules) { r.Flush = "require" }), change: func(a, b *event.Sample) {}, reasons: "flush_refused"},
		{name: "no verdict, required, counted", rules: with(exact, func(r *Rules) { r.Flush = "require" }), change: func(a, b *event.Sample) {
			a.Flush, b.Flush = &event.Flush{}, &event.Flush{}
		}},
		{name: "no verdict, required, not counted", rules: with(exact, func(r *Rules) { r.Flush = "require" }), change: func(a, b *event.Sample) {
			uncounted(a, b)
			a.Flush, b.Flush = &event.Flush{}, &event.Flush{}
		}, reasons: "flush_refused", doubts: "cache_unverified"},
		{name: "flush never", rules: with(exact, func(r *Rules) { r.Flush = "never" }), change: func(a, b *event.Sample) { b.Flush = refused }},

		{name: "C-05 only leg a was slow", rules: exact, change: func(a, b *event.Sample) { a.TotalS += 0.5; *a.TTFTS += 0.5 },
			doubts: "negative_slope", check: func(t *testing.T, p Pair) {
				near(t, "s_per_tok", p.SPerTok, -0.01125)
				absent(t, "decode_tok_s", p.DecodeTokS)
			}},
		{name: "C-05 both legs were slow", rules: exact, change: func(a, b *event.Sample) { a.TotalS += 0.5; b.TotalS += 0.5 },
			check: func(t *testing.T, p Pair) {
				near(t, "s_per_tok", p.SPerTok, 0.020)
				near(t, "prefill_tok_s", p.PrefillTokS, 1000/0.6)
			}},
		{name: "C-57 first time at a shape", rules: exact, change: func(a, b *event.Sample) { a.TotalS += 2.7 },
			doubts: "negative_slope", check: func(t *testing.T, p Pair) { near(t, "s_per_tok", p.SPerTok, -2.38/16) }},

		{name: "C-06 count vanished", rules: reported, change: func(a, b *event.Sample) { b.PromptTokens = nil },
			reasons: "cache_suspected", doubts: "prompt_unreported", check: func(t *testing.T, p Pair) { absent(t, "prefill_tok_s", p.PrefillTokS) }},
		{name: "C-06 count became 0", rules: reported, change: func(a, b *event.Sample) { *b.PromptTokens = 0 },
			reasons: "cache_suspected", doubts: "prompt_unreported", check: func(t *testing.T, p Pair) { absent(t, "prefill_tok_s", p.PrefillTokS) }},
		{name: "C-06 count became 1", rules: reported, change: func(a, b *event.Sample) { *b.PromptTokens = 1 },
			reasons: "cache_suspected", doubts: "prompt_length", check: func(t *testing.T, p Pair) { absent(t, "prefill_tok_s", p.PrefillTokS) }},

		{name: "C-07 stopped early, reported", rules: reported, change: func(a, b *event.Sample) {
			*b = clock(1000, 9)
			b.TokensRequested, b.Finish = 17, "stop"
		}, doubts: "short_generation", check: func(t *testing.T, p Pair) { near(t, "decode_tok_s", p.DecodeTokS, 50) }},
		{name: "C-07 stopped early, exact", rules: exact, change: func(a, b *event.Sample) {
			*b = clock(1000, 9)
			b.TokensRequested, b.Finish = 17, "stop"
		}, reasons: "short_generation", check: func(t *testing.T, p Pair) { near(t, "decode_tok_s", p.DecodeTokS, 50) }},
		{name: "C-07 one token each", rules: reported, change: func(a, b *event.Sample) {
			*b = clock(1000, 1)
			b.TokensRequested = 17
		}, reasons: "no_second_point", doubts: "short_generation", check: func(t *testing.T, p Pair) {
			absent(t, "s_per_tok", p.SPerTok)
			near(t, "prefill_s", p.PrefillS, 0.1)
			near(t, "ttft_s", p.TTFTS, 0.1)
		}},
		{name: "more tokens than asked", rules: exact, change: func(a, b *event.Sample) { *b.CompletionTokens = 18 }, reasons: "long_generation"},
		{name: "C-09 no usage", rules: exact, change: func(a, b *event.Sample) { b.CompletionTokens = nil },
			reasons: "count_missing", check: func(t *testing.T, p Pair) { absent(t, "s_per_tok", p.SPerTok) }},

		{name: "C-12 longer prompt, reported", rules: reported, change: func(a, b *event.Sample) { *a.PromptTokens, *b.PromptTokens = 1083, 1083 },
			doubts: "prompt_length", check: func(t *testing.T, p Pair) { near(t, "prefill_tok_s", p.PrefillTokS, 10_830) }},
		{name: "C-12 longer prompt, exact", rules: exact, change: func(a, b *event.Sample) { *a.PromptTokens, *b.PromptTokens = 1083, 1083 }, reasons: "prompt_length"},
		{name: "C-12 nonce of another length", rules: reported, change: func(a, b *event.Sample) {
			a.TotalS, b.TotalS = 1.000, 1.005+0.32
			*b.PromptTokens = 1005
		}, doubts: "prompt_drift", check: func(t *testing.T, p Pair) {
			if !strings.Contains(p.Doubts[0].Detail, "worth 0.00031") {
				t.Errorf("detail %q lacks the bias of 0.31 ms", p.Doubts[0].Detail)
			}
		}},

		{name: "C-31 buffered stream", rules: exact, change: func(a, b *event.Sample) {
			b.Buffered = true
			b.TTFTS = ptr(b.TotalS)
		}, doubts: "buffered_stream", check: func(t *testing.T, p Pair) {
			near(t, "decode_tok_s", p.DecodeTokS, 50)
			absent(t, "ttft_s", p.TTFTS)
			absent(t, "tpot_s", p.TPOTS)
			absent(t, "itl_s", p.ITLS)
			absent(t, "decode_stream_tok_s", p.DecodeStreamTokS)
		}},
		{name: "C-58 no time at all", rules: exact, change: func(a, b *event.Sample) { a.TotalS, b.TotalS = 0, 0 },
			reasons: "bad_time", doubts: "negative_slope", check: func(t *testing.T, p Pair) {
				absent(t, "decode_tok_s", p.DecodeTokS)
				absent(t, "prefill_tok_s", p.PrefillTokS)
			}},
		{name: "C-58 no tokens", rules: reported, change: func(a, b *event.Sample) { *a.CompletionTokens, *b.CompletionTokens = 0, 0 },
			reasons: "no_second_point", doubts: "short_generation"},
		{name: "not a number", rules: exact, change: func(a, b *event.Sample) { a.TotalS, b.TotalS = math.NaN(), math.Inf(1) }, reasons: "bad_time"},

		{name: "a model load", rules: exact, change: func(a, b *event.Sample) { a.LoadS = ptr(0.4) }, reasons: "model_loaded"},
		{name: "retracted", rules: exact, change: func(a, b *event.Sample) { b.Retractions = ptr(int64(1)) }, reasons: "retracted"},
		{name: "cut stream", rules: exact, change: func(a, b *event.Sample) {
			b.Error, b.Detail, b.CompletionTokens = "stream-cut", "closed early", nil
		}, reasons: "request_failed"},
		{name: "cancelled", rules: exact, change: func(a, b *event.Sample) { b.Error = "cancelled" }, reasons: "cancelled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := clock(1000, 1), clock(1000, 17)
			tail := c.doubts == "late_end"
			c.change(&a, &b)
			for _, s := range []*event.Sample{&a, &b} {
				if n := len(s.ChunkS); n > 0 && !tail {
					s.ChunkS[n-1] = s.TotalS // the last token ends the stream
				}
			}
			p := NewPair(one(a), one(b), c.rules)
			if got := codes(p.Reasons); got != c.reasons {
				t.Errorf("reasons %q, want %q: %v", got, c.reasons, p.Reasons)
			}
			if got := codes(p.Doubts); got != c.doubts {
				t.Errorf("doubts %q, want %q: %v", got, c.doubts, p.Doubts)
			}
			if c.check != nil {
				c.check(t, p)
			}
		})
	}
}

func TestTornPair(t *testing.T) {
	p := NewPair(one(clock(1000, 1)), nil, exact)
	if codes(p.Reasons) != "torn" || !p.Interrupted() || p.SPerTok != nil {
		t.Errorf("got %+v", p)
	}
	if p := NewPair(nil, nil, Rules{}); !p.Interrupted() {
		t.Errorf("a pair of nothing is %+v", p)
	}
	// A leg that was not tried because the other failed is no interruption.
	cut, stopped := clock(1000, 1), clock(1000, 1)
	cut.Error, stopped.Error = "http-error", "cancelled"
	if p := NewPair(one(cut), nil, exact); codes(p.Reasons) != "request_failed" || p.Interrupted() || p.Valid() {
		t.Errorf("got %v", p.Reasons)
	}
	cut.Error, cut.Detail = "flush-refused", "still busy"
	if p := NewPair(nil, one(cut), exact); codes(p.Reasons) != "flush_refused" || p.Interrupted() || p.Order != "ba" {
		t.Errorf("got %v", p.Reasons)
	}
	two := exact
	two.Concurrency = 2
	if p := NewPair([]event.Sample{cut, stopped}, nil, two); p.Interrupted() {
		t.Errorf("got %v", p.Reasons)
	}
}

// speculative delivers up to four tokens in a step of 0.060 s.
func speculative(context, tokens int) event.Sample {
	s := clock(context, 1)
	s.TokensRequested, s.CompletionTokens = tokens, ptr(int64(tokens))
	steps := int64(0)
	for done := 1; done < tokens; {
		k := min(4, tokens-done)
		done += k
		steps++
		s.ChunkS = append(s.ChunkS, s.ChunkS[0]+0.060*float64(steps))
		s.ChunkTokens = append(s.ChunkTokens, int32(k))
	}
	s.TotalS += 0.060 * float64(steps)
	s.Steps = &steps
	return s
}

func TestChunksAreNotTokens(t *testing.T) { // C-08
	rules := exact
	rules.Speculative = ptr(true)
	rate := map[int]float64{}
	for _, c := range []struct {
		b      int
		doubts string
	}{{17, "few_steps"}, {18, "few_steps"}, {129, ""}, {130, ""}} {
		for _, reported := range []bool{true, false} {
			a, b := speculative(1000, 1), speculative(1000, c.b)
			if !reported {
				a.Steps, b.Steps = nil, nil
			}
			p := NewPair(one(a), one(b), rules)
			if !p.Valid() || codes(p.Doubts) != c.doubts {
				t.Errorf("b = %d, steps reported %v: reasons %v, doubts %v", c.b, reported, p.Reasons, p.Doubts)
			}
			if reported {
				near(t, "s_per_step", p.SPerStep, 0.060)
			} else {
				absent(t, "s_per_step", p.SPerStep)
			}
			rate[c.b] = *p.DecodeTokS
		}
	}
	near(t, "b = 17", ptr(rate[17]), 16/0.24)
	near(t, "b = 18", ptr(rate[18]), 17/0.30)
	if d := rate[129]/rate[130] - 1; d < 0 || d > 0.025 {
		t.Errorf("b = 129 and 130 differ by %.1f %%", 100*d)
	}
	// Peak, from the median gap, is not below the average.
	p := NewPair(one(speculative(1000, 1)), one(speculative(1000, 129)), rules)
	near(t, "itl_s", p.ITLS, 0.015)
}

func TestChunkTokensUnknown(t *testing.T) { // C-09: 24 fragments of 16 tokens
	a, b := clock(1000, 1), clock(1000, 17)
	b.ChunkTokens = nil
	b.ChunkS = append(b.ChunkS, 0.5, 0.6)
	p := NewPair(one(a), one(b), exact)
	absent(t, "itl_s", p.ITLS)
	absent(t, "decode_stream_tok_s", p.DecodeStreamTokS)
	near(t, "tpot_s", p.TPOTS, 0.020)
	near(t, "decode_tok_s", p.DecodeTokS, 50)
}

// concurrent is a leg of c requests whose prefills follow each other and that
// all decode at 0.020 s a token.
func concurrent(c, tokens int) (leg []event.Sample) {
	for slot := range c {
		s := clock(1000, tokens)
		s.Slot, s.OffsetS = slot, ptr(0.001*float64(slot))
		wait := 0.1*float64(slot) - *s.OffsetS // queued behind the others' prefills
		s.TotalS += wait
		*s.TTFTS += wait
		for i := range s.ChunkS {
			s.ChunkS[i] += wait
		}
		leg = append(leg, s)
	}
	return leg
}

func TestWindowRate(t *testing.T) {
	rules := exact
	rules.Concurrency = 4
	p := NewPair(concurrent(4, 1), concurrent(4, 65), rules)
	if !p.Valid() {
		t.Fatal(p.Reasons)
	}
	near(t, "s_per_tok", p.SPerTok, 0.020)
	near(t, "decode_tok_s", p.DecodeTokS, 50)
	near(t, "decode_total_tok_s", p.DecodeTotalTokS, 200)
	near(t, "makespan slope", p.MakespanSPerTok, 0.020)
	near(t, "prefill_s", p.PrefillS, 0.4)
	near(t, "prefill_tok_s", p.PrefillTokS, 10_000)
	near(t, "spread", p.B.SpreadS, 0.3)

	for _, c := range []struct {
		name   string
		b      int
		change func(leg []event.Sample)
		want   string
	}{
		{"too few steps", 30, func([]event.Sample) {}, "not_concurrent"},
		{"no overlap", 10, func([]event.Sample) {}, "not_concurrent"},
		{"no clock", 65, func(l []event.Sample) { l[2].OffsetS = nil }, "not_concurrent"},
		{"no stream", 65, func(l []event.Sample) { l[2].Streamed = false }, "not_concurrent"},
		{"one cut", 65, func(l []event.Sample) { l[3].Error = "stream-cut" }, "request_failed not_concurrent"},
	} {
		leg := concurrent(4, c.b)
		c.change(leg)
		if c.name == "one cut" {
			leg[3].ChunkS, leg[3].ChunkTokens = nil, nil
		}
		p := NewPair(concurrent(4, 1), leg, rules)
		if got := codes(p.Reasons); got != c.want {
			t.Errorf("%s: reasons %q, want %q", c.name, got, c.want)
		}
		absent(t, c.name+": s_per_tok", p.SPerTok)
	}
	if p := NewPair(concurrent(4, 1), concurrent(3, 65), rules); codes(p.Reasons) != "torn" {
		t.Errorf("three of four: %v", p.Reasons)
	}
	// The order of the samples says nothing.
	leg := concurrent(4, 65)
	leg[0], leg[3] = leg[3], leg[0]
	if q := NewPair(concurrent(4, 1), leg, rules); *q.SPerTok != *p.SPerTok {
		t.Errorf("%v after a swap, %v before", *q.SPerTok, *p.SPerTok)
	}
}

// Scaling time scales times and divides rates; a constant added to both legs
// moves only prefill.
func TestPairProperties(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	scale := func(s event.Sample, k float64) event.Sample {
		s.TotalS *= k
		s.TTFTS = ptr(*s.TTFTS * k)
		s.ChunkS = append([]float64(nil), s.ChunkS...)
		for i := range s.ChunkS {
			s.ChunkS[i] *= k
		}
		return s
	}
	for range 200 {
		context, na := 500+rnd.IntN(8000), 1+rnd.IntN(40)
		a, b := clock(context, na), clock(context, na+1+rnd.IntN(100))
		a.TotalS *= 1 + 0.01*rnd.NormFloat64()
		b.TotalS *= 1 + 0.01*rnd.NormFloat64()
		p := NewPair(one(a), one(b), exact)

		k := math.Exp(rnd.NormFloat64())
		q := NewPair(one(scale(a, k)), one(scale(b, k)), exact)
		near(t, "scaled s_per_tok", q.SPerTok, k**p.SPerTok)
		near(t, "scaled prefill_s", q.PrefillS, k**p.PrefillS)
		near(t, "scaled tpot_s", q.TPOTS, k**p.TPOTS)
		if p.DecodeTokS != nil {
			near(t, "scaled decode_tok_s", q.DecodeTokS, *p.DecodeTokS/k)
		}

		d := rnd.Float64()
		a.TotalS += d
		b.TotalS += d
		r := NewPair(one(a), one(b), exact)
		near(t, "shifted s_per_tok", r.SPerTok, *p.SPerTok)
		near(t, "shifted prefill_s", r.PrefillS, *p.PrefillS+d)
	}
}

// Whatever foreign numbers a sample holds, nothing non-finite comes out.
func FuzzPair(f *testing.F) {
	f.Add(0.1, 0.42, 0.1, 0.1, int64(1), int64(17), int64(1000), int64(0), 1)
	f.Add(math.Inf(1), math.NaN(), -1.0, 0.0, int64(-5), int64(0), int64(math.MaxInt64), int64(math.MinInt64), 2)
	f.Fuzz(func(t *testing.T, ta, tb, fa, fb float64, na, nb, prompt, cached int64, c int) {
		c = 1 + (c%3+3)%3
		leg := func(total, first float64, n int64) (out []event.Sample) {
			for slot := range c {
				out = append(out, event.Sample{
					Slot: slot, TotalS: total, TTFTS: &first, Streamed: true, OffsetS: &fa,
					PromptTokens: &prompt, CompletionTokens: &n, CachedTokens: &cached, Steps: &na,
					ChunkS: []float64{first, total, fb}, ChunkTokens: []int32{1, int32(n), -1},
					ServerDecodeSPerTok: &tb,
				})
			}
			return out
		}
		p := NewPair(leg(ta, fa, na), leg(tb, fb, nb), Rules{Concurrency: c, Length: "reported"})
		for _, x := range []*float64{
			p.SPerTok, p.DecodeTokS, p.DecodeTotalTokS, p.SPerStep, p.AcceptLength, p.MakespanSPerTok, p.PrefillS, p.PrefillTokS,
			p.TTFTS, p.TPOTS, p.ITLS, p.DecodeStreamTokS, p.SPerTokServer, p.A.TimeS, p.B.TimeS, p.A.SpreadS,
		} {
			if x != nil && (math.IsNaN(*x) || math.IsInf(*x, 0)) {
				t.Fatalf("non-finite figure in %+v", p)
			}
		}
		if p.Valid() && p.SPerTok == nil {
			t.Fatalf("a valid pair without a slope: %+v", p)
		}
	})
}
