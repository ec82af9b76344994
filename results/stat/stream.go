package stat

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"twopoint/results/event"
)

// heldReads: where fewer reads than this share of the pieces with tokens brought
// them, something on the way held tokens back.
const heldReads = 0.9

// heldError is the error of an in-stream figure that is let pass where tokens were
// held back: then neither end of the stream is known to better than a step. That is
// the most; by half of it the figure is off on average.
const heldError = 0.01

// arrival is what one read of a stream brought: tokens in pieces that the server
// sent one by one, and of which only the last can have been sent just then.
type arrival struct {
	s      float64 // since the first byte of the request
	tokens float64
	chunks int
}

// arrivals are those of a stream whose times mean something, nil where that or the
// number of tokens in a piece is unknown.
func arrivals(s event.Sample) []arrival {
	var out []arrival
	for i, k := range chunkTokens(s) {
		if n := len(out); n > 0 && out[n-1].s == s.ChunkS[i] {
			out[n-1].tokens += float64(k)
			out[n-1].chunks++
			continue
		}
		out = append(out, arrival{s.ChunkS[i], float64(k), 1})
	}
	return out
}

// perToken is the seconds per token over arrivals: the time from the first to the last
// over the tokens after the first, whose own came in the time before it. It is nil
// where there are fewer than two.
func perToken(as []arrival) *float64 {
	if len(as) < 2 {
		return nil
	}
	var tokens float64
	for _, a := range as[1:] {
		tokens += a.tokens
	}
	return positive(finite((as[len(as)-1].s - as[0].s) / tokens))
}

// reads is the number of reads that brought pieces with tokens.
func reads(s event.Sample) int {
	return len(slices.Compact(slices.Clone(s.ChunkS)))
}

// together: pieces that come within this share of the mean gap of a stream left at
// one time. A proxy that holds back the end of a piece lets the last two go one right
// after the other.
const together = 0.1

// held tells whether tokens of a stream were held back on the way and let go
// together with later ones, as a proxy does that waits for a buffer to be full:
// the first two pieces or the last two came at one time, or many shared a read. A
// reader that was late for a moment looks the same, and its times are as doubtful.
// Where a forward pass yields several tokens, each in a piece of its own, a read of
// several says nothing.
func (r Rules) held(s event.Sample) bool {
	n := len(s.ChunkS)
	if n < 2 || s.Buffered || !r.pieceIsStep(s) {
		return false
	}
	least := 0.0 // a shorter gap is none
	if total := s.ChunkS[n-1] - s.ChunkS[0]; total > 0 && !math.IsInf(total, 1) {
		least = together * total / float64(n-1)
	}
	near := func(i int) bool { gap := s.ChunkS[i] - s.ChunkS[i-1]; return gap >= 0 && gap <= least }
	return near(1) || near(n-1) || float64(reads(s)) < heldReads*float64(n)
}

// pieceIsStep tells whether each piece of a stream is at least a step. Of a server that
// says nothing of speculation that is taken to be so: it can take a figure away, and
// makes none.
func (r Rules) pieceIsStep(s event.Sample) bool {
	if r.Speculative == nil || !*r.Speculative {
		return true
	}
	return s.Steps != nil && int64(len(s.ChunkS)) <= *s.Steps+1 // and the token of the prefill
}

// ttft is the time to first token where the stream's inner times mean something.
func (r Rules) ttft(s event.Sample) *float64 {
	if !s.Streamed || s.Buffered || s.TTFTS == nil || *s.TTFTS <= 0 {
		return nil
	}
	if r.held(s) {
		first, n := 1, len(s.ChunkS)
		for first < n && s.ChunkS[first] == s.ChunkS[0] {
			first++
		}
		// Late by up to as many steps as the first read brought pieces.
		if late := float64(first) * (s.ChunkS[n-1] - s.ChunkS[0]) / float64(n-first); !(late <= heldError**s.TTFTS) {
			return nil
		}
	}
	return finite(*s.TTFTS)
}

// measureStream fills what the stream of leg b shows, averaged over requests.
func (p *Pair) measureStream(b []event.Sample, r Rules) {
	p.TTFTS = p.B.TTFTS
	p.TPOTS = meanOf(b, func(s event.Sample) *float64 {
		t := r.ttft(s)
		if t == nil || s.CompletionTokens == nil || *s.CompletionTokens < 2 {
			return nil
		}
		return finite((s.TotalS - *t) / float64(*s.CompletionTokens-1))
	})
	p.expect = meanOf(b, r.roughly)
	p.ITLS = meanOf(b, r.medianITL)
	if len(b) == 1 {
		p.SPerTokStream = r.inStream(b[0])
	} else {
		p.SPerTokStream = p.window(b, r)
	}
	p.DecodeStreamTokS = perSecond(1, p.SPerTokStream)
	p.SPerTokServer = meanOf(b, func(s event.Sample) *float64 { return positive(finiteOf(s.ServerDecodeSPerTok)) })
}

// roughly is the seconds per token of a stream, good enough to judge an interval by:
// where tokens were held back, those after the first read over the time from it to
// the last.
func (r Rules) roughly(s event.Sample) *float64 {
	if r.held(s) {
		return perToken(arrivals(s))
	}
	if !s.Streamed || s.Buffered || s.TTFTS == nil || s.CompletionTokens == nil || *s.CompletionTokens < 2 {
		return nil
	}
	return positive(finite((s.TotalS - *s.TTFTS) / float64(*s.CompletionTokens-1)))
}

func finiteOf(x *float64) *float64 {
	if x == nil {
		return nil
	}
	return finite(*x)
}

// chunkTokens is the number of tokens in each chunk of a stream whose times mean
// something, nil where that is unknown: a chunk is not a token.
func chunkTokens(s event.Sample) []int32 {
	if !s.Streamed || s.Buffered || len(s.ChunkS) == 0 {
		return nil
	}
	if len(s.ChunkTokens) == len(s.ChunkS) {
		return s.ChunkTokens
	}
	if s.CompletionTokens != nil && *s.CompletionTokens == int64(len(s.ChunkS)) {
		return slices.Repeat([]int32{1}, len(s.ChunkS))
	}
	return nil
}

// inStream is the seconds per token of one stream, nil where what was held back makes
// it too uncertain.
func (r Rules) inStream(s event.Sample) *float64 {
	as := arrivals(s)
	if len(as) < 2 || r.edgeError(s, as) > heldError {
		return nil
	}
	return perToken(as)
}

// edgeError is the error of a rate over arrivals of a stream: that of a step, where
// tokens were held back.
func (r Rules) edgeError(s event.Sample, as []arrival) float64 {
	if !r.held(s) {
		return 0
	}
	steps := 0
	for _, a := range as[1:] {
		steps += a.chunks
	}
	return 1 / float64(steps)
}

// medianITL is the median gap between two tokens of a stream, every token of an
// arrival taking an equal share of its gap.
func (r Rules) medianITL(s event.Sample) *float64 {
	if r.held(s) {
		return nil
	}
	type gap struct{ s, tokens float64 }
	as := arrivals(s)
	var gaps []gap
	var total float64
	for i := 1; i < len(as); i++ {
		if k := as[i].tokens; k > 0 {
			gaps = append(gaps, gap{(as[i].s - as[i-1].s) / k, k})
			total += k
		}
	}
	slices.SortFunc(gaps, func(x, y gap) int { return cmp.Compare(x.s, y.s) })
	var below float64
	for i, g := range gaps {
		below += g.tokens
		switch {
		case 2*below > total:
			return finite(g.s)
		case 2*below == total:
			return finite((g.s + gaps[i+1].s) / 2)
		}
	}
	return nil
}

// whyNoStream says what keeps a stream's inner times from being a figure.
func (r Rules) whyNoStream(s event.Sample) string {
	as := arrivals(s)
	switch {
	case !s.Streamed:
		return "the answer did not stream"
	case s.Buffered:
		return "all tokens arrived together"
	case as == nil:
		return "the stream does not say how many tokens each piece holds"
	case len(as) > 1 && r.edgeError(s, as) > heldError:
		return fmt.Sprintf("tokens were held back: %d pieces arrived in %d reads", len(s.ChunkS), len(as))
	}
	return fmt.Sprintf("%d pieces are too few", len(s.ChunkS))
}
