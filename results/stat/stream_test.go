package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
)

// heldStream is a sample whose pieces were sent at given times and pass a proxy,
// which tells when one arrives by the times and its own state.
func heldStream(sent []float64, pass func(i int, sent []float64) float64) event.Sample {
	n := int64(len(sent))
	s := event.Sample{Streamed: true, CompletionTokens: &n, TotalS: sent[n-1], OffsetS: new(float64)}
	for i := range sent {
		s.ChunkS = append(s.ChunkS, pass(i, sent))
	}
	s.TTFTS = &s.ChunkS[0]
	return s
}

// However tokens are held back on the way, an in-stream figure is right or absent.
func TestHeldBackIsRightOrAbsent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const step, prefill = 0.010, 0.5
	shown := 0
	for range 4000 {
		n := 8 + r.IntN(600)
		sent := make([]float64, n)
		for i := range sent {
			sent[i] = prefill + float64(i)*step
		}
		k := 1 + r.IntN(20)       // pieces to a buffer
		bytes := 100 + r.IntN(50) // of a piece
		hold := k*bytes + r.IntN(bytes)
		every := step * (1.2 + 10*r.Float64()) // between two looks at the buffer
		last := sent[n-1]
		proxies := map[string]func(int, []float64) float64{
			"bytes": func(i int, sent []float64) float64 { // the release that completes piece i
				end := (i + 1) * bytes
				releases := (end + hold - 1) / hold
				j := (releases*hold + bytes - 1) / bytes // pieces sent until then
				if j > len(sent) {
					return last
				}
				return sent[j-1]
			},
			"looks": func(i int, sent []float64) float64 {
				return math.Min(last, math.Ceil(sent[i]/every)*every)
			},
			"first": func(i int, sent []float64) float64 { return math.Max(sent[i], sent[min(k, n)-1]) },
			"tail": func(i int, sent []float64) float64 { // the end of a piece waits for the next one, the last for the end
				if i == n-1 {
					return last + 0.0002
				}
				return sent[i+1]
			},
			"next": func(i int, sent []float64) float64 { return sent[min(i+1, n-1)] },
		}
		for name, proxy := range proxies {
			s := heldStream(sent, proxy)
			rules := Rules{Method: schema.MethodStream}
			what := fmt.Sprintf("%s, %d pieces of %d bytes, %d held, a look each %.3g s", name, n, bytes, hold, every)
			if per := rules.inStream(s); per != nil {
				shown++
				if off := math.Abs(*per/step - 1); off > 1.05*heldError {
					t.Fatalf("%s: the in-stream rate is off by %.2g %%", what, 100*off)
				}
			}
			if itl := rules.medianITL(s); itl != nil && name != "looks" && math.Abs(*itl/step-1) > 1e-6 {
				t.Fatalf("%s: ITL %g", what, *itl)
			}
			if ttft := rules.ttft(s); ttft != nil && *ttft > prefill*(1+heldError) {
				t.Fatalf("%s: TTFT %g", what, *ttft)
			}

			four := []event.Sample{s, s, s, s}
			for i := range four {
				o := float64(i) * step * r.Float64()
				four[i].OffsetS, four[i].Slot = &o, i
			}
			p := Pair{}
			if perTok := p.window(four, Rules{Concurrency: 4}); perTok != nil {
				shown++
				if off := math.Abs(*perTok/step - 1); off > 1.05*heldError {
					t.Fatalf("%s: the window rate is off by %.2g %%", what, 100*off)
				}
			}
		}
	}
	if shown < 1000 {
		t.Errorf("only %d figures were shown", shown)
	}
}
