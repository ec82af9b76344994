package kernels_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"twopoint/kernels"
	"twopoint/kernels/cpu"
)

func TestEveryVariantAgreesWithTheReference(t *testing.T) {
	defer func() {
		if err := cpu.ForcePath(""); err != nil {
			t.Error(err)
		}
	}()
	worst := make(map[string]kernels.Deviation)
	for _, c := range kernels.Cases() {
		p, err := kernels.NewProblem(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range cpu.Paths() {
			if err := cpu.ForcePath(path); err != nil {
				t.Fatal(err)
			}
			for _, k := range kernels.All() {
				if k.Name() == "ref_f64" && path != "generic" {
					continue // knows no paths
				}
				d, err := p.Verify(t.Context(), k)
				if err != nil {
					t.Errorf("%s: %v", path, err)
				}
				name := k.Name() + " on " + path
				w := worst[name]
				worst[name] = kernels.Deviation{RelL2: max(w.RelL2, d.RelL2), MaxAbs: max(w.MaxAbs, d.MaxAbs), LSE: max(w.LSE, d.LSE)}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("%s: relative L2 %.2g, absolute %.2g, lse %.2g", name, worst[name].RelL2, worst[name].MaxAbs, worst[name].LSE)
	}
}

// mutant computes attention by way of the float64 reference and then does one
// thing wrong.
type mutant struct {
	kernels.Kernel
	attend func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error
}

func (mutant) Name() string { return "mutant" }

func (m mutant) Attend(_ context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, _ kernels.Options) (kernels.Traffic, error) {
	err := m.attend(out, q, kv)
	return kernels.Traffic{KVBytes: int64(kv.Len * kv.Shape.RowElems() * 4)}, err
}

func TestVerifyCatchesMutants(t *testing.T) {
	ref, err := kernels.Lookup("ref_f64")
	if err != nil {
		t.Fatal(err)
	}
	right := func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
		_, err := ref.Attend(context.Background(), out, q, kv, kernels.Options{})
		return err
	}
	// without computes as if tokens [a, b) were not in the cache.
	without := func(a, b int) func(kernels.Output, kernels.Query, *kernels.PagedKV) error {
		return func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			n := kv.Len - (b - a)
			cut := &kernels.PagedKV{Shape: kv.Shape, PageSize: 1, Pages: kernels.NewPool(kv.Shape, 1, n), Len: n}
			for t := range kv.Len {
				if t < a || t >= b {
					row, err := kv.Row(t)
					if err != nil {
						return err
					}
					copy(cut.Pages[len(cut.Table)], row)
					cut.Table = append(cut.Table, int32(len(cut.Table)))
				}
			}
			return right(out, q, cut)
		}
	}
	const ctx = 163 // ten full pages and three tokens
	for _, tt := range []struct {
		name   string
		attend func(kernels.Output, kernels.Query, *kernels.PagedKV) error
		want   string
	}{
		{"nothing wrong", right, ""},
		{"skips the first of four splits", without(0, ctx/4), "relative L2"},
		{"skips a middle split", without(ctx/2, 3*ctx/4), "relative L2"},
		{"skips one of sixteen splits", without(ctx*5/16, ctx*6/16), "relative L2"},
		{"skips the last partial page", without(160, ctx), "relative L2"},
		{"skips the last token", without(ctx-1, ctx), "relative L2"},
		{"reads a row past the end", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			longer := *kv
			longer.Len++
			return right(out, q, &longer)
		}, "NaN"},
		{"follows an unused table entry", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			_ = kv.Pages[kv.Table[len(kv.Table)-1]]
			return right(out, q, kv)
		}, "panic"},
		{"ignores the chain mask", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			s, h := kv.Shape, kv.Shape.Heads
			for i := range q.QLen {
				one := kernels.Query{Q: q.Q[i*h*s.KDim : (i+1)*h*s.KDim], QLen: 1, Scale: q.Scale}
				if err := right(kernels.Output{O: out.O[i*h*s.VDim : (i+1)*h*s.VDim], LSE: out.LSE[i*h : (i+1)*h]}, one, kv); err != nil {
					return err
				}
			}
			return nil
		}, "relative L2"},
		{"returns zeros", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			err := right(out, q, kv)
			clear(out.O)
			return err
		}, "relative L2"},
		{"writes nothing", func(kernels.Output, kernels.Query, *kernels.PagedKV) error { return nil }, "NaN"},
		{"forgets one head", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			err := right(out, q, kv)
			clear(out.O[:kv.Shape.VDim])
			return err
		}, "relative L2"},
		{"lse in powers of two", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			err := right(out, q, kv)
			for i := range out.LSE {
				out.LSE[i] *= math.Log2E
			}
			return err
		}, "lse"},
		{"writes into the cache", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			err := right(out, q, kv)
			kv.Pages[len(kv.Pages)-1][0] = 1
			return err
		}, "wrote into page"},
		{"writes behind the output", func(out kernels.Output, q kernels.Query, kv *kernels.PagedKV) error {
			*(*float32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(out.O)), 4*len(out.O))) = 0
			return right(out, q, kv)
		}, "outside the output"},
		{"refuses", func(kernels.Output, kernels.Query, *kernels.PagedKV) error { return errors.New("too hard") }, "too hard"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range []kernels.Shape{
				{Heads: 4, KVHeads: 2, KDim: 32, VDim: 32},
				{Heads: 4, KVHeads: 1, KDim: 72, VDim: 64, Latent: true},
			} {
				for _, qLen := range []int{2, 5} {
					c := kernels.Case{Shape: s, Len: ctx, QLen: qLen, PageSize: 16, Placement: kernels.Shuffled, Seed: 3}
					_, err := kernels.Verify(t.Context(), mutant{ref, tt.attend}, c)
					if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
						t.Errorf("%s: got error %q, want one with %q", c, got, tt.want)
					}
				}
			}
		})
	}
}
