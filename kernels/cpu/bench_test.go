package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"twopoint/kernels"
	"twopoint/kernels/cpu"
)

var benchShapes = []struct {
	name  string
	shape kernels.Shape
}{
	{"gqa", kernels.Shape{Heads: 8, KVHeads: 2, KDim: 64, VDim: 64}},
	{"mla", kernels.Shape{Heads: 8, KVHeads: 1, KDim: 576, VDim: 512, Latent: true}},
	{"gqa128", kernels.Shape{Heads: 4, KVHeads: 1, KDim: 128, VDim: 128}},
}

// launch is what one call of Attend needs.
type launch struct {
	out kernels.Output
	q   kernels.Query
	kvs []*kernels.PagedKV // equal but for where they lie
}

func newLaunch(b *testing.B, s kernels.Shape, ctx, qLen, pageSize, pools int, placement string) launch {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	fill := func(x []float32) {
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
	}
	l := launch{
		out: kernels.Output{O: make([]float32, qLen*s.Heads*s.VDim)},
		q:   kernels.Query{Q: make([]float32, qLen*s.Heads*s.KDim), QLen: qLen, Scale: 0.1},
	}
	fill(l.q.Q)
	n := (ctx + pageSize - 1) / pageSize
	for i := range pools {
		table, err := kernels.Place(placement, n, uint64(i))
		if err != nil {
			b.Fatal(err)
		}
		kv := &kernels.PagedKV{Shape: s, PageSize: pageSize, Pages: kernels.NewPool(s, pageSize, n), Table: table, Len: ctx}
		for _, page := range kv.Pages {
			fill(page)
		}
		l.kvs = append(l.kvs, kv)
	}
	return l
}

// BenchmarkDecode is one decode step of one layer; the caches of successive
// steps rotate, as the layers of a model do. GB/s counts every row once.
func BenchmarkDecode(b *testing.B) {
	for _, kernel := range []string{"serial_perhead", "split_grouped", "split_grouped_touch"} {
		k, err := kernels.Lookup(kernel)
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range benchShapes {
			for _, ctx := range []int{1024, 8192} {
				for _, threads := range []int{1, 2} {
					if kernel == "serial_perhead" && threads > 1 {
						continue
					}
					pools := max(2, 256<<20/(4*ctx*s.shape.RowElems())) // beyond the last-level cache
					l := newLaunch(b, s.shape, ctx, 1, 16, pools, kernels.Identity)
					for _, path := range cpu.Paths() {
						b.Run(fmt.Sprintf("kernel=%s/shape=%s/ctx=%d/threads=%d/path=%s", kernel, s.name, ctx, threads, path), func(b *testing.B) {
							force(b, path)
							var bytes int64
							for i := 0; b.Loop(); i++ {
								t, err := k.Attend(b.Context(), l.out, l.q, l.kvs[i%pools], kernels.Options{Threads: threads, Splits: threads})
								if err != nil {
									b.Fatal(err)
								}
								bytes += t.KVBytes
							}
							b.ReportMetric(float64(bytes)/1e9/b.Elapsed().Seconds(), "GB/s")
						})
					}
				}
			}
		}
	}
}

// BenchmarkPrefill is a chunk of a prompt after a cached prefix. GFLOP/s counts
// the multiplications and additions of the scores and sums that the mask lets
// through.
func BenchmarkPrefill(b *testing.B) {
	const qLen = 512
	k, err := kernels.Lookup("prefill_tiled")
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range benchShapes {
		for _, prefix := range []int{0, 2048} {
			l := newLaunch(b, s.shape, prefix+qLen, qLen, 16, 1, kernels.Identity)
			flops := 2 * float64(s.shape.Heads*(s.shape.KDim+s.shape.VDim)) * qLen * (float64(prefix) + (qLen+1)/2.0)
			for _, threads := range []int{1, 2} {
				for _, path := range cpu.Paths() {
					b.Run(fmt.Sprintf("shape=%s/prefix=%d/q_len=%d/threads=%d/path=%s", s.name, prefix, qLen, threads, path), func(b *testing.B) {
						force(b, path)
						for b.Loop() {
							if _, err := k.Attend(b.Context(), l.out, l.q, l.kvs[0], kernels.Options{Threads: threads}); err != nil {
								b.Fatal(err)
							}
						}
						b.ReportMetric(flops*float64(b.N)/1e9/b.Elapsed().Seconds(), "GFLOP/s")
					})
				}
			}
		}
	}
}

// force makes the rest of a test or benchmark use one path.
func force(tb testing.TB, path string) {
	tb.Helper()
	before := cpu.Path()
	if err := cpu.ForcePath(path); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := cpu.ForcePath(before); err != nil {
			tb.Error(err)
		}
	})
}

// BenchmarkPeak is what the other rows are to be compared with.
func BenchmarkPeak(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, path := range cpu.Paths() {
			b.Run(fmt.Sprintf("threads=%d/path=%s", threads, path), func(b *testing.B) {
				force(b, path)
				var best cpu.Peak
				for b.Loop() {
					p, err := cpu.MeasurePeak(b.Context(), threads, 256<<20, 20*time.Millisecond)
					if err != nil {
						b.Fatal(err)
					}
					best.ReadBytesPerS = max(best.ReadBytesPerS, p.ReadBytesPerS)
					best.FlopPerS = max(best.FlopPerS, p.FlopPerS)
				}
				b.ReportMetric(best.ReadBytesPerS/1e9, "GB/s")
				b.ReportMetric(best.FlopPerS/1e9, "GFLOP/s")
			})
		}
	}
}
