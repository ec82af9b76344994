package stat

import (
	"fmt"

	"twopoint/schema"
)

// KVBytesPerToken is the number of bytes that one more token of context adds to
// what a GPU reads in a decode step, for one request: the sum over full
// attention layers of
//
//	MLA  (rank + rope) · bytes / dcp
//	GQA  2 · ⌈kv_heads/tp⌉ · head_dim · bytes / dcp
//
// MLA's latent row is not divided by tp: every GPU reads it. Window and linear
// layers do not grow with context. A parallelism below 1 counts as 1.
func KVBytesPerToken(m schema.Model, tp, dcp int) (float64, error) {
	size, ok := map[string]float64{"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}[m.DType]
	if !ok {
		return 0, fmt.Errorf("model %s: unknown KV dtype %q", m.Name, m.DType)
	}
	tp, dcp = max(tp, 1), max(dcp, 1)
	var elements int
	switch kv := m.KV; {
	case kv.MLA != nil && kv.GQA == nil:
		elements = kv.MLA.Rank + kv.MLA.Rope
	case kv.GQA != nil && kv.MLA == nil:
		elements = 2 * ((kv.GQA.Heads + tp - 1) / tp) * kv.GQA.HeadDim
	default:
		return 0, fmt.Errorf("model %s: one of mla and gqa describes the KV cache", m.Name)
	}
	b := float64(m.Layers.Full) * float64(elements) * size / float64(dcp)
	if b <= 0 {
		return 0, fmt.Errorf("model %s: no layer whose KV cache grows with context", m.Name)
	}
	return b, nil
}

// KVStream is the rate at which extra context is read, per GPU:
//
//	1e-9 · (c/dp) · B / β_step
//
// in GB/s (10⁹ bytes), with c the concurrency, B from KVBytesPerToken and β_step
// the context slope of seconds per step. It says how fast the marginal token of
// context is read and is not the GPU's utilisation.
type KVStream struct {
	GBs      float64
	Interval *Interval // the inverse of β's; nil where β's reaches 0
	KVBytes  float64   // B
}

// KVStreamGBs turns a fit of seconds per step into a KVStream. It is an error
// where the slope is not positive: then context costs nothing measurable.
func KVStreamGBs(m schema.Model, perStep Fit, tp, dcp, dp, concurrency int) (KVStream, error) {
	bytes, err := KVBytesPerToken(m, tp, dcp)
	if err != nil {
		return KVStream{}, err
	}
	if perStep.Beta.Value <= 0 {
		return KVStream{}, fmt.Errorf("seconds per step do not rise with context (%.3g s per token)", perStep.Beta.Value)
	}
	k := 1e-9 * float64(max(concurrency, 1)) / float64(max(dp, 1)) * bytes
	return KVStream{GBs: k / perStep.Beta.Value, Interval: perStep.Beta.Interval.inverseTimes(k), KVBytes: bytes}, nil
}

func (i Interval) inverseTimes(k float64) *Interval { return (&i).Inverse().times(k) }

// WeightsS is the least time in which a GPU can read its share of the weights that a
// step needs: activeWeightBytes/(tp·peak), with peak in GB/s (10⁹ bytes). It is nil
// without both figures.
func WeightsS(activeWeightBytes int64, tp int, peakGBs *float64) *float64 {
	if activeWeightBytes <= 0 || peakGBs == nil || *peakGBs <= 0 {
		return nil
	}
	return finite(float64(activeWeightBytes) / (float64(max(tp, 1)) * 1e9 * *peakGBs))
}

// BelowWeights tells whether the upper bound of a fit's intercept lies below half of the
// time that reading the weights takes: the line is then no model of a step at a
// short context. It is false where that time is not known.
func BelowWeights(f Fit, weightsS *float64) bool {
	return weightsS != nil && f.Alpha.Interval.Hi < *weightsS/2
}
