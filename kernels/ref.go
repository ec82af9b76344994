package kernels

import (
	"context"
	"math"
)

// Reference computes attention in float64 from the stored values, in two
// passes: all scores of a row, then their softmax and the weighted sum. It is
// the oracle that Verify compares with. The results are laid out as in Output.
func Reference(q Query, kv *PagedKV) (o, lse []float64, err error) {
	s := kv.Shape
	o = make([]float64, q.QLen*s.Heads*s.VDim)
	lse = make([]float64, q.QLen*s.Heads)
	group := s.Heads / s.KVHeads
	rows := make([][]float32, kv.Len)
	for t := range rows {
		if rows[t], err = kv.Row(t); err != nil {
			return nil, nil, err
		}
	}
	scores := make([]float64, kv.Len)
	for i := range q.QLen {
		visible := max(0, kv.Len-q.QLen+1+i)
		for h := range s.Heads {
			r := i*s.Heads + h
			keyAt := h / group * s.KDim
			valueAt := s.KVHeads*s.KDim + h/group*s.VDim
			if s.Latent {
				valueAt = 0
			}
			query := q.Q[r*s.KDim : (r+1)*s.KDim]
			top := math.Inf(-1)
			for t := range visible {
				dot := 0.0
				for c, x := range rows[t][keyAt : keyAt+s.KDim] {
					dot += float64(query[c]) * float64(x)
				}
				scores[t] = dot * float64(q.Scale)
				top = max(top, scores[t])
			}
			if visible == 0 {
				lse[r] = top
				continue
			}
			sum := 0.0
			for t := range visible {
				scores[t] = math.Exp(scores[t] - top)
				sum += scores[t]
			}
			lse[r] = top + math.Log(sum)
			out := o[r*s.VDim : (r+1)*s.VDim]
			for t := range visible {
				w := scores[t] / sum
				for c, x := range rows[t][valueAt : valueAt+s.VDim] {
					out[c] += w * float64(x)
				}
			}
		}
	}
	return o, lse, nil
}

// reference is Reference as a variant, rounded to float32 at the end.
type reference struct{}

func init() { Register(reference{}) }

func (reference) Name() string { return "ref_f64" }

func (reference) Supports(s Shape, _ int) error { return s.Validate() }

func (reference) Attend(ctx context.Context, out Output, q Query, kv *PagedKV, o Options) (Traffic, error) {
	if err := Check(out, q, kv, o); err != nil {
		return Traffic{}, err
	}
	if err := ctx.Err(); err != nil {
		return Traffic{}, err
	}
	res, lse, err := Reference(q, kv)
	if err != nil {
		return Traffic{}, err
	}
	for i, x := range res {
		out.O[i] = float32(x)
	}
	for i := range out.LSE {
		out.LSE[i] = float32(lse[i])
	}
	bytes := int64(kv.Len) * int64(kv.Shape.RowElems()) * 4
	return Traffic{KVBytes: bytes, IssuedBytes: bytes * int64(q.QLen), Splits: 1}, nil
}
