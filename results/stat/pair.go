package stat

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"twopoint/results/event"
	"twopoint/schema"
)

// Rules is what judging a pair needs to know beside its samples.
type Rules struct {
	Method      string       // of the plan, as schema.Method.Name gives it; "": two_point
	Concurrency int          // requests of a leg; below 2: one
	Length      string       // exact | reported: whether counts off the request invalidate a pair
	Tolerance   float64      // for "reported": share of the prompt length that may be off without a doubt
	Flush       string       // auto | require | never
	Nonce       bool         // every prompt begins with tokens of its own
	Probe       *event.Probe // of the deployment's prefix cache; nil: none was taken
	Page        int64        // tokens of one block of the prefix cache; below 1: one token

	// Speculative says whether a forward pass can yield several tokens, as the
	// server reports; nil: it reports nothing of that.
	Speculative *bool
}

func (r Rules) requests() int { return max(r.Concurrency, 1) }

// maxPage is the largest block of a prefix cache that is believed; engines use 1
// to 256. A server that names more gets no allowance for it.
const maxPage = 1024

// cold is the number of cached tokens that a cold prompt may report: those of
// the template that all prompts share, or one block. A block that is a large
// share of the prompt excuses nothing.
func (r Rules) cold(s event.Sample) int64 {
	prompt := int64(s.ContextRequested)
	if n := s.PromptTokens; n != nil && *n > 0 {
		prompt = *n
	}
	allowed := int64(1)
	if r.Page <= min(maxPage, int64(maxTemplate*float64(prompt))) {
		allowed = max(r.Page, 1)
	}
	if r.Probe != nil {
		allowed = max(allowed, r.Probe.Template)
	}
	return allowed
}

func (r Rules) proven() string {
	if r.Probe == nil || r.Probe.Proven == "" {
		return "unknown"
	}
	return r.Probe.Proven
}

// Leg is one side of a pair. Counts are means over its requests; nil means that
// not every request reports it.
type Leg struct {
	TimeS        *float64 // first byte written to last byte read; of several requests: first byte of the first to last byte of the last
	Tokens       *float64 // generated, as the server says
	Steps        *float64 // forward passes of decode
	PromptTokens *float64
	CachedTokens *int64   // the largest
	TTFTS        *float64 // nil where a stream is missing, buffered or held back
	SpreadS      *float64 // from the earliest to the latest first token of several requests
	Chunks       int      // pieces in which the server sent the tokens of all requests
	Arrivals     int      // the same, pieces that were read together counted once
}

// Pair is one repeat of a method. With n the tokens that the server says it
// generated and t the time of a leg, the two-point method's is
//
//	s_per_tok = (t_b − t_a) / (n_b − n_a)
//	prefill_s = t_a − (n_a − 1) · s_per_tok
//
// One token of leg a comes out of the prefill pass, hence n_a − 1; of several
// requests the slope in it is that of their makespans. Legs between
// (multi_point) make the slope a least-squares one, and the prefill time what
// its line gives for one token. The method stream has leg b alone, whose figure
// is SPerTokStream; decode_at_depth measures the slope on a cached prompt and
// has no prefill. With several requests a leg, SPerTok is c / window rate and
// TimeS a makespan (window.go). A figure that the samples do not give is nil. An
// invalid pair keeps its figures for display.
type Pair struct {
	DeploymentID, PointID, Role string
	Repeat, Attempt             int
	Order                       string // ab | ba: which leg ran first
	Requests                    int    // of a leg

	A, B Leg
	Mid  []Leg // of multi_point, ascending

	Main *float64 // what the method estimates: SPerTok, or SPerTokStream of the method stream

	Reasons []Finding // why the pair is invalid; empty: it is valid
	Doubts  []Finding

	SPerTok          *float64 // may be negative: noise is not evidence
	DecodeTokS       *float64 // 1/s_per_tok, per request; nil unless that is positive
	DecodeTotalTokS  *float64 // of all requests of a leg together
	SPerStep         *float64 // (t_b − t_a)/(steps_b − steps_a)
	AcceptLength     *float64 // tokens a step: (n_b − n_a)/(steps_b − steps_a)
	MakespanSPerTok  *float64 // slope of leg makespans over tokens a request; nil at concurrency 1
	PrefillS         *float64
	PrefillTokS      *float64 // prompt tokens of all requests / prefill_s, an average over 0..L
	TTFTS            *float64 // of leg b
	TPOTS            *float64 // of leg b: (t − TTFT)/(n − 1)
	expect           *float64 // seconds per token in the stream, however tokens were held back: good enough to judge an interval by, and no figure
	ITLS             *float64 // of leg b: median gap between two tokens; tokens of one chunk share its gap
	SPerTokStream    *float64 // of leg b: time from first to last chunk / tokens after the first; of several requests c / window rate
	DecodeStreamTokS *float64 // 1/SPerTokStream
	SPerTokServer    *float64 // of leg b, by the engine's own timings
}

// Valid tells whether nothing speaks against the pair.
func (p Pair) Valid() bool { return len(p.Reasons) == 0 }

// Interrupted tells whether the pair was torn or cancelled by us, which says
// nothing about the server; a request that failed by itself does.
func (p Pair) Interrupted() bool {
	return p.has(Torn) || p.has(Cancelled) && !p.has(RequestFailed) && !p.has(FlushRefused)
}

func (p *Pair) has(c Code) bool { return has(p.Reasons, c) }

func has(fs []Finding, c Code) bool {
	return slices.ContainsFunc(fs, func(f Finding) bool { return f.Code == c })
}

// reason and doubt keep the first finding of a code.
func (p *Pair) reason(c Code, format string, args ...any) {
	if !has(p.Reasons, c) {
		p.Reasons = append(p.Reasons, Finding{c, fmt.Sprintf(format, args...)})
	}
}

func (p *Pair) doubt(c Code, format string, args ...any) {
	if !has(p.Doubts, c) {
		p.Doubts = append(p.Doubts, Finding{c, fmt.Sprintf(format, args...)})
	}
}

// suspectRatio: a time to first token below this share of the sibling's means a
// prefix hit, where no cached count says otherwise.
const suspectRatio = 0.6

// nonceSpread is how far two prompts of equal text length may differ in tokens:
// twice the nonce's eight, since text may split and merge at its ends.
const nonceSpread = 16

// fewSteps is the number of steps between the legs below which one step more or
// less is worth a warning.
const fewSteps = 32

// NewPair judges the samples of the legs of one repeat and computes its
// figures; mid are the legs between a and b of multi_point. Each leg needs as
// many samples as the concurrency, in any order; with fewer the pair is torn.
func NewPair(a, b []event.Sample, r Rules, mid ...[]event.Sample) Pair {
	legs := r.legs(a, b, mid)
	p := Pair{Order: "ab", Requests: r.requests(), B: legs[len(legs)-1].of}
	if len(legs) > 1 {
		p.A = legs[0].of
		for _, l := range legs[1 : len(legs)-1] {
			p.Mid = append(p.Mid, l.of)
		}
	}
	for _, l := range legs {
		for _, s := range l.samples {
			p.DeploymentID, p.PointID, p.Role, p.Repeat, p.Attempt = s.DeploymentID, s.PointID, s.Role, s.Repeat, s.Attempt
		}
	}
	if len(a) > 0 && a[0].Second || len(a) == 0 && len(b) > 0 && !b[0].Second {
		p.Order = "ba"
	}
	p.judge(legs, r)
	whole := !slices.ContainsFunc(legs, func(l leg) bool { return len(l.samples) < r.requests() })
	if whole {
		p.measure(legs[len(legs)-1].samples, r)
		if p.Main == nil && p.Valid() {
			p.reason(BadTime, "times and counts give no finite figure")
		}
	}
	return p
}

// leg is a leg to be judged.
type leg struct {
	name    string
	samples []event.Sample
	of      Leg
}

// legs are those that the method has, ascending, their samples by slot.
func (r Rules) legs(a, b []event.Sample, mid [][]event.Sample) []leg {
	var legs []leg
	if r.Method != schema.MethodStream {
		legs = append(legs, leg{name: "a", samples: a})
		for i, m := range mid {
			legs = append(legs, leg{name: fmt.Sprintf("m%d", i+1), samples: m})
		}
	}
	legs = append(legs, leg{name: "b", samples: b})
	for i, l := range legs {
		legs[i].samples = slices.SortedStableFunc(slices.Values(l.samples), func(x, y event.Sample) int { return cmp.Compare(x.Slot, y.Slot) })
		legs[i].of = newLeg(legs[i].samples, r)
	}
	return legs
}

func newLeg(samples []event.Sample, r Rules) Leg {
	var l Leg
	if len(samples) == 0 {
		return l
	}
	l.Tokens = meanCount(samples, func(s event.Sample) *int64 { return s.CompletionTokens })
	l.Steps = meanCount(samples, func(s event.Sample) *int64 { return s.Steps })
	l.PromptTokens = meanCount(samples, func(s event.Sample) *int64 { return s.PromptTokens })
	l.TTFTS = meanOf(samples, r.ttft)
	allCached := true
	for _, s := range samples {
		l.Chunks += len(s.ChunkS)
		l.Arrivals += reads(s)
		if s.CachedTokens == nil {
			allCached = false
		} else if l.CachedTokens == nil || *s.CachedTokens > *l.CachedTokens {
			l.CachedTokens = s.CachedTokens
		}
	}
	if !allCached {
		l.CachedTokens = nil
	}
	if len(samples) == 1 {
		l.TimeS = finite(samples[0].TotalS)
	} else {
		l.TimeS, l.SpreadS = r.makespan(samples)
	}
	return l
}

func meanCount(samples []event.Sample, get func(event.Sample) *int64) *float64 {
	return meanOf(samples, func(s event.Sample) *float64 {
		if n := get(s); n != nil {
			return finite(float64(*n))
		}
		return nil
	})
}

// meanOf is the mean of a figure over samples, nil where one lacks it.
func meanOf(samples []event.Sample, get func(event.Sample) *float64) *float64 {
	var sum float64
	for _, s := range samples {
		x := get(s)
		if x == nil {
			return nil
		}
		sum += *x
	}
	if len(samples) == 0 {
		return nil
	}
	return finite(sum / float64(len(samples)))
}

// judge collects reasons and doubts.
func (p *Pair) judge(legs []leg, r Rules) {
	var all []event.Sample
	short := ""
	for _, l := range legs {
		for _, s := range l.samples {
			name := "leg " + l.name
			if r.requests() > 1 {
				name = fmt.Sprintf("leg %s slot %d", l.name, s.Slot)
			}
			p.judgeSample(name, s, r)
		}
		all = append(all, l.samples...)
		if len(l.samples) < r.requests() {
			short += fmt.Sprintf(", leg %s has %d", l.name, len(l.samples))
		}
	}
	if slices.ContainsFunc(all, unanswered) {
		return // no wonder that a leg is missing, and counts prove nothing more
	}
	if short != "" {
		p.reason(Torn, "of %d requests a leg%s", r.requests(), short)
		return
	}
	p.judgeLegs(legs, r)
	if r.Method != schema.MethodDecodeAtDepth {
		p.judgeRepetition(all, r)
	}
}

// unanswered tells whether a request was not answered whole.
func unanswered(s event.Sample) bool { return s.Error != "" || s.Finish == "abort" }

// A stream that goes on for longer than this after its last token, and for more
// than this share of the time to its first, distorts the prefill time.
const (
	lateEnd   = 0.005 // seconds
	lateShare = 0.1
)

func (p *Pair) judgeSample(name string, s event.Sample, r Rules) {
	exact := r.Length != "reported"
	// off reports a count that is not what was asked.
	off := func(c Code, format string, args ...any) {
		if exact {
			p.reason(c, format, args...)
		} else {
			p.doubt(c, format, args...)
		}
	}
	switch {
	case s.Error == "cancelled" || s.Error == "time-limit":
		p.reason(Cancelled, "%s was interrupted", name)
		return
	case s.Error == "flush-refused":
		p.reason(FlushRefused, "%s: the flush was refused%s", name, after(": ", s.Detail))
		return
	case s.Error != "":
		p.reason(RequestFailed, "%s: %s%s", name, s.Error, after(": ", s.Detail))
		return
	case s.Finish == "abort":
		p.reason(RequestFailed, "%s: the server aborted it%s", name, after(": ", s.Detail))
		return
	}
	if finite(s.TotalS) == nil || s.TotalS <= 0 {
		p.reason(BadTime, "%s took %v s", name, s.TotalS)
	}
	if r.Method == schema.MethodDecodeAtDepth {
		p.judgeDepth(name, s, r)
	} else if s.CachedTokens != nil && *s.CachedTokens > r.cold(s) {
		p.reason(CacheHit, "%s: %d prompt tokens came from the cache, at most %d are common to all prompts", name, *s.CachedTokens, r.cold(s))
	}
	p.judgeFlush(name, s, r)
	if s.Retractions != nil && *s.Retractions > 0 {
		p.reason(Retracted, "%s was preempted %d times", name, *s.Retractions)
	}
	if s.LoadS != nil && *s.LoadS > 0 {
		p.reason(ModelLoaded, "%s: the server spent %.3g s of it loading the model", name, *s.LoadS)
	}
	switch n := s.CompletionTokens; {
	case n == nil:
		p.reason(CountMissing, "%s: no count of generated tokens", name)
	case *n < int64(s.TokensRequested):
		off(ShortGeneration, "%s: %d of %d tokens, finish %q", name, *n, s.TokensRequested, s.Finish)
	case s.TokensRequested > 0 && *n > int64(s.TokensRequested):
		off(LongGeneration, "%s: %d tokens, %d asked for", name, *n, s.TokensRequested)
	}
	switch n := s.PromptTokens; {
	case n == nil || *n <= 0:
		p.doubt(PromptUnreported, "%s: no count of prompt tokens", name)
	case s.ContextRequested > 0:
		d := math.Abs(float64(*n) - float64(s.ContextRequested))
		if exact && d > 0 || d > r.Tolerance*float64(s.ContextRequested) {
			off(PromptLength, "%s: a prompt of %d tokens, %d asked for", name, *n, s.ContextRequested)
		}
	}
	if s.Buffered {
		p.doubt(BufferedStream, "%s: all tokens arrived together", name)
	} else if r.held(s) {
		p.doubt(BufferedStream, "%s: %d pieces with tokens arrived in %d reads", name, len(s.ChunkS), reads(s))
	} else if n := len(s.ChunkS); n > 0 {
		if tail := s.TotalS - s.ChunkS[n-1]; finite(tail) != nil && tail > lateEnd && tail > lateShare*s.ChunkS[0] {
			p.doubt(LateEnd, "%s: the stream ended %.3g s after its last token; the prefill time holds that too", name, tail)
		}
	}
}

// judgeDepth asks that a leg ran on its cached prompt: all of it but one block,
// of which at least a token is always computed anew.
func (p *Pair) judgeDepth(name string, s event.Sample, r Rules) {
	want := int64(s.ContextRequested)
	if n := s.PromptTokens; n != nil && *n > 0 {
		want = *n
	}
	want -= max(1, min(r.Page, maxPage))
	switch n := s.CachedTokens; {
	case n == nil:
		p.reason(NotCached, "%s: no count of cached tokens, which alone proves that decode ran on the cached prompt", name)
	case *n < want:
		p.reason(NotCached, "%s: %d prompt tokens came from the cache, at least %d should", name, *n, want)
	}
}

// judgeFlush applies the flush policy to one request.
func (p *Pair) judgeFlush(name string, s event.Sample, r Rules) {
	if r.Flush == "never" || r.Method == schema.MethodDecodeAtDepth { // which wants its prompt cached
		return
	}
	counted := s.CachedTokens != nil && *s.CachedTokens <= r.cold(s)
	require := r.Flush == "require"
	switch f := s.Flush; {
	case f == nil:
		if require {
			p.reason(FlushRefused, "%s: no flush was made", name)
		}
	case f.OK == nil:
		if require && !counted && r.proven() != "yes" {
			p.reason(FlushRefused, "%s: the flush has no verdict and neither a cached count nor the probe stands in for one", name)
		}
	case *f.OK:
	case require || !counted && !noRoute(f.Status):
		p.reason(FlushRefused, "%s: %s %s refused after %d attempts in %.3g s%s", name, f.Method, status(f.Status), f.Attempts, f.WaitS, after(": ", f.Detail))
	default:
		p.doubt(FlushUnavailable, "%s: %s %s%s", name, f.Method, status(f.Status), after(": ", f.Detail))
	}
}

// noRoute tells a server without this flush from one that refuses it now.
func noRoute(status int) bool {
	return status == 401 || status == 403 || status == 404 || status == 405 || status == 501
}

func status(code int) string {
	if code == 0 {
		return "(no answer)"
	}
	return fmt.Sprintf("(HTTP %d)", code)
}

func after(sep, text string) string {
	if text == "" {
		return ""
	}
	return sep + text
}

// judgeLegs compares the legs with each other.
func (p *Pair) judgeLegs(legs []leg, r Rules) {
	first := legs[0].of
	if r.Method == schema.MethodDecodeAtDepth {
		for _, l := range legs[1:] {
			if x, y := first.CachedTokens, l.of.CachedTokens; x != nil && y != nil && *x != *y {
				p.reason(CachedDiffers, "%d cached tokens in leg a and %d in leg %s", *x, *y, l.name)
			}
		}
	} else {
		if r.proven() == "no" && !r.Nonce {
			p.reason(CacheNotFlushed, "the probe's prompt was still cached when it should not have been, and prompts have no nonce")
		}
		if slices.ContainsFunc(legs, func(l leg) bool { return l.of.CachedTokens == nil }) {
			if !r.shownCold(legs) {
				p.compareFirstTokens(legs)
			}
			if r.proven() != "yes" {
				p.doubt(CacheUnverified, "no count of cached tokens and flush proven: %s", r.proven())
			}
		}
	}
	for i, l := range legs[1:] {
		if pa, pb := positive(first.PromptTokens), positive(l.of.PromptTokens); (pa == nil) != (pb == nil) {
			p.reason(CacheSuspected, "only one leg has a count of prompt tokens: %s and %s", count(first.PromptTokens), count(l.of.PromptTokens))
		} else if pa != nil && *pa != *pb {
			if d := *pb - *pa; math.Abs(d) > nonceSpread {
				p.reason(CacheSuspected, "prompts of %g and %g tokens differ by more than a nonce can", *pa, *pb)
			} else {
				p.doubt(PromptDrift, "prompts of %g and %g tokens", *pa, *pb)
			}
		}
		before := legs[i]
		if x, y := before.of.Tokens, l.of.Tokens; x != nil && y != nil && *y <= *x {
			p.reason(NoSecondPoint, "%g tokens in leg %s and %g in leg %s", *x, before.name, *y, l.name)
		}
	}
}

// shownCold tells whether every prompt began with tokens of its own after a flush that
// the server confirmed and that the probe saw work: a first token that comes much
// sooner than another's is then noise.
func (r Rules) shownCold(legs []leg) bool {
	return r.Nonce && r.proven() == "yes" && !slices.ContainsFunc(legs, func(l leg) bool {
		return slices.ContainsFunc(l.samples, func(s event.Sample) bool { return s.Flush == nil || s.Flush.OK == nil || !*s.Flush.OK })
	})
}

// compareFirstTokens looks for a leg whose first token came much sooner than
// another's.
func (p *Pair) compareFirstTokens(legs []leg) {
	lo, hi := legs[0], legs[0]
	for _, l := range legs {
		switch t := l.of.TTFTS; {
		case t == nil:
			return
		case *t < *lo.of.TTFTS:
			lo = l
		case *t > *hi.of.TTFTS:
			hi = l
		}
	}
	if x, y := *lo.of.TTFTS, *hi.of.TTFTS; x < suspectRatio*y {
		p.reason(CacheSuspected, "first tokens after %.4g s in leg %s and %.4g s in leg %s, a ratio of %.2g", x, lo.name, y, hi.name, x/y)
	}
}

// judgeRepetition looks at prompts that come again: without a nonce they do, and
// where neither a count, a flush nor the probe shows that they were computed anew,
// a cache that answers all of them looks like a server that is fast.
func (p *Pair) judgeRepetition(samples []event.Sample, r Rules) {
	if r.Nonce || r.proven() != "unknown" {
		return
	}
	for _, s := range samples {
		if s.CachedTokens == nil && (s.Flush == nil || s.Flush.OK == nil || !*s.Flush.OK) {
			p.reason(CacheNotFlushed, "prompts have no nonce, nothing emptied the cache and no count of cached tokens is reported")
			return
		}
	}
}

// promptTokens are those of the pair's first leg.
func (p *Pair) promptTokens() *float64 {
	if n := positive(p.A.PromptTokens); n != nil {
		return n
	}
	return positive(p.B.PromptTokens)
}

func positive(x *float64) *float64 {
	if x == nil || *x <= 0 {
		return nil
	}
	return x
}

func count(x *float64) string {
	if x == nil {
		return "none"
	}
	return fmt.Sprintf("%g", *x)
}

// measure computes the figures that the samples give.
func (p *Pair) measure(b []event.Sample, r Rules) {
	c := float64(r.requests())
	p.measureStream(b, r)
	switch {
	case r.Method == schema.MethodStream:
		if p.SPerTokStream == nil && r.requests() == 1 {
			p.reason(NoStream, "leg b: %s", r.whyNoStream(b[0]))
		}
		p.Main = p.SPerTokStream
		p.doubtFewSteps(p.B.Chunks/max(r.requests(), 1)-1, p.B.Tokens)
		return
	case r.requests() == 1:
		p.SPerTok = p.slope()
	default:
		p.MakespanSPerTok, p.SPerTok = p.slope(), p.SPerTokStream
	}
	p.Main = p.SPerTok
	p.measureSteps(r)
	p.DecodeTokS = perSecond(1, p.SPerTok)
	p.DecodeTotalTokS = perSecond(c, p.SPerTok)
	if r.Method == schema.MethodDecodeAtDepth {
		p.TTFTS = nil // of a cached prompt: not a prefill
	} else {
		p.measurePrefill(c)
	}

	if p.SPerTok != nil && *p.SPerTok <= 0 {
		p.doubt(NegativeSlope, "leg a took %.6g s and leg b %.6g s", *p.A.TimeS, *p.B.TimeS)
	}
	if has(p.Doubts, PromptDrift) && p.PrefillTokS != nil && p.SPerTok != nil {
		n := *p.B.Tokens - *p.A.Tokens
		bias := (*p.B.PromptTokens - *p.A.PromptTokens) * c / *p.PrefillTokS / n
		for i := range p.Doubts {
			if p.Doubts[i].Code == PromptDrift {
				p.Doubts[i].Detail += fmt.Sprintf(", worth %.3g s per token", bias)
			}
		}
	}
}

// Legs are those that the slope goes through, ascending by tokens.
func (p *Pair) Legs() []Leg {
	return append(append([]Leg{p.A}, p.Mid...), p.B)
}

// slope is that of leg times over generated tokens: (t_b − t_a)/(n_b − n_a), by
// least squares where there are legs between.
func (p *Pair) slope() *float64 {
	tokens, times := p.line()
	switch {
	case tokens == nil:
		return nil
	case len(tokens) == 2:
		return finite((times[1] - times[0]) / (tokens[1] - tokens[0]))
	}
	mx, my := mean(tokens), mean(times)
	var sxx, sxy float64
	for i := range tokens {
		sxx += (tokens[i] - mx) * (tokens[i] - mx)
		sxy += (tokens[i] - mx) * (times[i] - my)
	}
	return finite(sxy / sxx)
}

// line is the legs' tokens and times; nil where one lacks them or the tokens do
// not grow.
func (p *Pair) line() (tokens, times []float64) {
	for i, l := range p.Legs() {
		if l.TimeS == nil || l.Tokens == nil || i > 0 && *l.Tokens <= tokens[i-1] {
			return nil, nil
		}
		tokens, times = append(tokens, *l.Tokens), append(times, *l.TimeS)
	}
	return tokens, times
}

func mean(xs []float64) float64 {
	var sum float64
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// measureSteps fills SPerStep and AcceptLength from the steps that the server
// reports. Where it reports none, a step is a token only if the server is known not
// to speculate.
func (p *Pair) measureSteps(r Rules) {
	if p.A.Tokens == nil || p.B.Tokens == nil || *p.B.Tokens <= *p.A.Tokens {
		return
	}
	tokens := *p.B.Tokens - *p.A.Tokens
	steps := math.NaN()
	if p.A.Steps != nil && p.B.Steps != nil && *p.B.Steps > *p.A.Steps {
		steps = *p.B.Steps - *p.A.Steps
	} else if r.Speculative != nil && !*r.Speculative {
		steps = tokens
	}
	if steps > 0 {
		p.AcceptLength = finite(tokens / steps)
		if p.SPerTok != nil {
			p.SPerStep = finite(*p.SPerTok * tokens / steps)
		}
	} else if math.IsNaN(steps) && p.B.Chunks > 0 {
		// A chunk holds the tokens of one step or more: not a step, but enough
		// for a warning.
		steps = float64(p.B.Chunks-p.A.Chunks) / float64(max(r.requests(), 1))
	}
	if steps > 0 {
		p.doubtFewSteps(int(steps), &tokens)
	}
}

// doubtFewSteps warns of tokens that came in so few pieces of several that one
// more or less counts.
func (p *Pair) doubtFewSteps(steps int, tokens *float64) {
	if tokens != nil && steps > 0 && steps < fewSteps && float64(steps) < *tokens-1 {
		p.doubt(FewSteps, "%g tokens came in about %d steps (%d chunks in leg b): one more or less is %.2g %%", *tokens, steps, p.B.Chunks, 100/float64(steps))
	}
}

// measurePrefill fills PrefillS and PrefillTokS: what the line through the legs
// gives for one token, which comes out of the prefill pass. Where leg a is that
// one token and there is no leg between, no slope is needed.
func (p *Pair) measurePrefill(c float64) {
	slope := p.SPerTok
	if p.MakespanSPerTok != nil { // of several requests: the line that goes through their makespans
		slope = p.MakespanSPerTok
	}
	switch tokens, times := p.line(); {
	case p.A.TimeS == nil || p.A.Tokens == nil:
		return
	case *p.A.Tokens == 1 && len(p.Mid) == 0:
		p.PrefillS = finite(*p.A.TimeS)
	case slope == nil:
		return
	case len(p.Mid) == 0:
		p.PrefillS = finite(*p.A.TimeS - (*p.A.Tokens-1)**slope)
	case tokens != nil:
		p.PrefillS = finite(mean(times) - (mean(tokens)-1)**slope)
	}
	if p.A.PromptTokens != nil && positive(p.B.PromptTokens) != nil && math.Abs(*p.A.PromptTokens-*p.B.PromptTokens) <= nonceSpread {
		p.PrefillTokS = perSecond(c**p.A.PromptTokens, p.PrefillS)
	}
}
