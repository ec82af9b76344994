package cpu_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twopoint/kernels"
	"twopoint/kernels/cpu"
)

var variants = []string{"prefill_tiled", "serial_perhead", "split_grouped", "split_grouped_touch"}

var (
	gqa = kernels.Shape{Heads: 4, KVHeads: 2, KDim: 32, VDim: 32}
	mla = kernels.Shape{Heads: 4, KVHeads: 1, KDim: 72, VDim: 64, Latent: true}
)

func lookup(t *testing.T, name string) kernels.Kernel {
	t.Helper()
	k, err := kernels.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// step is a valid launch over zeroes.
func step(s kernels.Shape, ctx, qLen, pageSize int) (kernels.Output, kernels.Query, *kernels.PagedKV) {
	pages := (ctx + pageSize - 1) / pageSize
	table, err := kernels.Place(kernels.Identity, pages, 0)
	if err != nil {
		panic(err)
	}
	return kernels.Output{O: make([]float32, qLen*s.Heads*s.VDim), LSE: make([]float32, qLen*s.Heads)},
		kernels.Query{Q: make([]float32, qLen*s.Heads*s.KDim), QLen: qLen, Scale: 1},
		&kernels.PagedKV{Shape: s, PageSize: pageSize, Pages: kernels.NewPool(s, pageSize, pages), Table: table, Len: ctx}
}

func TestBadSizesAreErrors(t *testing.T) {
	for _, name := range append(variants, "ref_f64") {
		k := lookup(t, name)
		for _, tt := range []struct {
			name string
			bad  func(out *kernels.Output, q *kernels.Query, kv *kernels.PagedKV, o *kernels.Options)
			want string
		}{
			{"no heads", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) { kv.Shape.Heads = 0 }, "at least 1"},
			{"heads that do not divide", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) {
				kv.Shape.KVHeads = 3
			}, "divide"},
			{"no rows", func(_ *kernels.Output, q *kernels.Query, _ *kernels.PagedKV, _ *kernels.Options) { q.QLen = 0 }, "at least 1"},
			{"short query", func(_ *kernels.Output, q *kernels.Query, _ *kernels.PagedKV, _ *kernels.Options) { q.Q = q.Q[1:] }, "query has"},
			{"short output", func(out *kernels.Output, _ *kernels.Query, _ *kernels.PagedKV, _ *kernels.Options) { out.O = out.O[1:] }, "output has"},
			{"short lse", func(out *kernels.Output, _ *kernels.Query, _ *kernels.PagedKV, _ *kernels.Options) {
				out.LSE = out.LSE[1:]
			}, "lse has"},
			{"page size zero", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) { kv.PageSize = 0 }, "page size"},
			{"negative length", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) { kv.Len = -1 }, "tokens"},
			{"short table", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) {
				kv.Table = kv.Table[1:]
			}, "do not fit"},
			{"page outside the pool", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) {
				kv.Table[5] = 1 << 30
			}, "names page"},
			{"negative page", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) { kv.Table[5] = -1 }, "names page"},
			{"short page", func(_ *kernels.Output, _ *kernels.Query, kv *kernels.PagedKV, _ *kernels.Options) {
				kv.Pages[5] = kv.Pages[5][1:]
			}, "elements"},
			{"negative splits", func(_ *kernels.Output, _ *kernels.Query, _ *kernels.PagedKV, o *kernels.Options) { o.Splits = -1 }, "splits"},
			{"endless splits", func(_ *kernels.Output, _ *kernels.Query, _ *kernels.PagedKV, o *kernels.Options) { o.Splits = 1 << 30 }, "splits"},
			{"negative threads", func(_ *kernels.Output, _ *kernels.Query, _ *kernels.PagedKV, o *kernels.Options) { o.Threads = -2 }, "threads"},
		} {
			out, q, kv := step(gqa, 160, 2, 16)
			o := kernels.Options{Splits: 3, Threads: 2}
			if _, err := k.Attend(t.Context(), out, q, kv, o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			tt.bad(&out, &q, kv, &o)
			if _, err := k.Attend(t.Context(), out, q, kv, o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s, %s: error %v, want one with %q", name, tt.name, err, tt.want)
			}
		}
	}
}

func TestUnusedTailOfTheLastPageMayBeMissing(t *testing.T) {
	for _, name := range variants {
		out, q, kv := step(gqa, 19, 1, 16)
		kv.Pages[1] = kv.Pages[1][:3*gqa.RowElems()]
		if _, err := lookup(t, name).Attend(t.Context(), out, q, kv, kernels.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range append(variants, "ref_f64") {
		out, q, kv := step(mla, 160, 2, 16)
		if _, err := lookup(t, name).Attend(ctx, out, q, kv, kernels.Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want %v", name, err, context.Canceled)
		}
	}
}

func TestTraffic(t *testing.T) {
	const ctx, qLen = 200, 3
	for _, tt := range []struct {
		kernel string
		shape  kernels.Shape
		o      kernels.Options
		want   kernels.Traffic
	}{
		// Four heads go over the rows of two KV heads, or of one.
		{"serial_perhead", gqa, kernels.Options{Splits: 4, Threads: 4}, kernels.Traffic{KVBytes: 4 * ctx * 2 * 64, IssuedBytes: 4 * ctx * 4 * 64, Splits: 1}},
		{"serial_perhead", mla, kernels.Options{}, kernels.Traffic{KVBytes: 4 * ctx * 72, IssuedBytes: 4 * ctx * 4 * 72, Splits: 1}},
		{"split_grouped", gqa, kernels.Options{Splits: 4}, kernels.Traffic{KVBytes: 4 * ctx * 2 * 64, IssuedBytes: 4 * ctx * 2 * 64, Splits: 4}},
		{"split_grouped", mla, kernels.Options{Splits: 1, Threads: 8}, kernels.Traffic{KVBytes: 4 * ctx * 72, IssuedBytes: 4 * ctx * 72, Splits: 1}},
		{"split_grouped", mla, kernels.Options{Threads: 8}, kernels.Traffic{KVBytes: 4 * ctx * 72, IssuedBytes: 4 * ctx * 72, Splits: 1}}, // too short to split
		{"prefill_tiled", gqa, kernels.Options{Threads: 1}, kernels.Traffic{KVBytes: 4 * ctx * 2 * 64, IssuedBytes: 4 * ctx * 2 * 64, Splits: 1}},
	} {
		out, q, kv := step(tt.shape, ctx, qLen, 16)
		got, err := lookup(t, tt.kernel).Attend(t.Context(), out, q, kv, tt.o)
		if err != nil || got != tt.want {
			t.Errorf("%s %+v: traffic %+v, error %v, want %+v", tt.kernel, tt.o, got, err, tt.want)
		}
	}
}

func TestSplitsFollowThreadsAndContext(t *testing.T) {
	for _, tt := range []struct{ ctx, threads, want int }{{16, 4, 1}, {60_000, 1, 1}, {60_000, 4, 4}, {60_000, 6, 6}} {
		out, q, kv := step(gqa, tt.ctx, 1, 64)
		got, err := lookup(t, "split_grouped").Attend(t.Context(), out, q, kv, kernels.Options{Threads: tt.threads})
		if err != nil || got.Splits != tt.want {
			t.Errorf("%d tokens, %d threads: %d splits, error %v, want %d", tt.ctx, tt.threads, got.Splits, err, tt.want)
		}
	}
}

// Launches share nothing but pools of scratch memory.
func TestConcurrentLaunches(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 12 {
		k := lookup(t, variants[i%len(variants)])
		c := kernels.Case{
			Shape: []kernels.Shape{gqa, mla}[i%2], Len: 100 + 37*i, QLen: 1 + i*i, PageSize: 16,
			Placement: kernels.Shuffled, Options: kernels.Options{Splits: 3, Threads: 3}, Seed: uint64(i),
		}
		wg.Go(func() {
			for range 3 {
				if _, err := kernels.Verify(t.Context(), k, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Tiles of tokens are the same wherever pages lie and however many threads
// there are.
func TestSameBitsWhateverTheLayoutAndThreads(t *testing.T) {
	for _, shape := range []kernels.Shape{mla, gqa, {Heads: 3, KVHeads: 3, KDim: 20, VDim: 20}} {
		for _, qLen := range []int{2, 150} {
			const ctx = 333
			rows := kernels.NewPool(shape, 1, ctx)
			for i, row := range rows {
				for c := range row {
					row[c] = float32((i*31+c*17)%29)/29 - 0.5
				}
			}
			for _, name := range variants {
				var want []float32
				for _, pageSize := range []int{1, 16, 64, 512} {
					for _, placement := range []string{kernels.Identity, kernels.Shuffled} {
						for _, threads := range []int{1, 3} {
							out, q, kv := step(shape, ctx, qLen, pageSize)
							var err error
							if kv.Table, err = kernels.Place(placement, len(kv.Pages), 9); err != nil {
								t.Fatal(err)
							}
							for i := range q.Q {
								q.Q[i] = float32(i%13) / 13
							}
							for i := range ctx {
								row, err := kv.Row(i)
								if err != nil {
									t.Fatal(err)
								}
								copy(row, rows[i])
							}
							if _, err := lookup(t, name).Attend(t.Context(), out, q, kv, kernels.Options{Splits: 4, Threads: threads}); err != nil {
								t.Fatal(err)
							}
							if want == nil {
								want = out.O
							} else if !slices.Equal(want, out.O) {
								t.Errorf("%s, %d query rows: page size %d, %s, %d threads: other bits", name, qLen, pageSize, placement, threads)
							}
						}
					}
				}
			}
		}
	}
}

func TestForcePath(t *testing.T) {
	for _, p := range cpu.Paths() {
		force(t, p)
		if cpu.Path() != p {
			t.Errorf("path is %q, want %q", cpu.Path(), p)
		}
	}
	if err := cpu.ForcePath("mmx"); err == nil || !strings.Contains(err.Error(), "generic") {
		t.Errorf("error %v does not say what there is", err)
	}
	if err := cpu.ForcePath(""); err != nil || cpu.Path() != cpu.Paths()[0] {
		t.Errorf("path is %q, error %v, want the fastest", cpu.Path(), err)
	}
	if paths := cpu.Paths(); paths[len(paths)-1] != "generic" {
		t.Errorf("paths are %q: the portable one is not the last", paths)
	}
}

func Example() {
	k, err := kernels.Lookup("split_grouped")
	if err != nil {
		fmt.Println(err)
		return
	}
	out, q, kv := step(gqa, 1000, 1, 16)
	t, err := k.Attend(context.Background(), out, q, kv, kernels.Options{Splits: 2})
	fmt.Println(t.KVBytes, t.Splits, err)
	// Output: 512000 2 <nil>
}

func TestMeasurePeak(t *testing.T) {
	for _, path := range cpu.Paths() {
		force(t, path)
		p, err := cpu.MeasurePeak(t.Context(), 2, 1<<20, time.Microsecond)
		if err != nil || p.ReadBytesPerS <= 0 || p.FlopPerS <= 0 {
			t.Errorf("%s: peak %+v, error %v", path, p, err)
		}
	}
	if _, err := cpu.MeasurePeak(t.Context(), 4, 100, time.Microsecond); err == nil {
		t.Error("a buffer of 100 bytes was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cpu.MeasurePeak(ctx, 1, 1<<20, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
