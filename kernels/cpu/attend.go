// Package cpu computes attention on the processor. It registers these
// variants with package kernels:
//
//   - serial_perhead: one query head after another, each over the whole KV
//     range, on one goroutine: every KV row is read once per query head.
//   - split_grouped: the query heads that share a KV head work on a row
//     together, and the KV range is cut into parts that run side by side and
//     are merged by their log-sum-exp. One split is serial and grouped.
//   - prefill_tiled: query tiles × KV heads side by side, each over the KV
//     range that it sees; made for hundreds to thousands of query rows.
//
// All three go through the same inner loops (a tile of scores, one step of the
// online softmax, a tile of weighted sums), which exist for portable Go, AVX2
// and AVX-512; the fastest that the processor has is used unless ForcePath
// says otherwise. What comes in is a query and a paged cache, what goes out is
// an output and the bytes that were touched. The package never writes to the
// cache, never reads a row past its length, and keeps no state but scratch
// memory between calls.
package cpu

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"twopoint/kernels"
)

func init() {
	kernels.Register(serialPerHead{})
	kernels.Register(splitGrouped{})
	kernels.Register(prefillTiled{})
}

// checked is what the variants have in common: they take every valid shape.
type checked struct{}

func (checked) Supports(s kernels.Shape, qLen int) error { return s.Validate() }

type serialPerHead struct{ checked }

func (serialPerHead) Name() string { return "serial_perhead" }

// Attend ignores Splits and Threads: the variant has one of each.
func (serialPerHead) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	if err := kernels.Check(out, q, kv, o); err != nil {
		return kernels.Traffic{}, err
	}
	j := newJob(ctx, q, kv, 1)
	defer j.release()
	w := getWorker(j)
	defer w.release()
	st := w.state(j.rows, j.lda)
	for g := range j.groups {
		if err := j.span(w, st, g, g+1, 0, j.rows, 0, kv.Len); err != nil {
			return kernels.Traffic{}, err
		}
		j.finish(out, st.of(0, 1), g, 0, j.rows)
	}
	return j.traffic(int64(j.groups)*int64(kv.Len), 1), nil
}

type splitGrouped struct{ checked }

func (splitGrouped) Name() string { return "split_grouped" }

// splitWork is the number of multiply-adds that make a part worth a goroutine:
// some tens of microseconds on one core.
const splitWork = 1 << 20

func (splitGrouped) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	if err := kernels.Check(out, q, kv, o); err != nil {
		return kernels.Traffic{}, err
	}
	s := kv.Shape
	j := newJob(ctx, q, kv, s.Heads/s.KVHeads)
	defer j.release()
	threads := threads(o)
	splits := o.Splits
	if splits == 0 {
		splits = max(1, min(threads, kv.Len*q.QLen*s.Heads*(s.KDim+s.VDim)/splitWork))
	}
	all := j.groups * j.rows
	keep := getWorker(j) // holds the parts' results
	defer keep.release()
	parts := keep.state(splits*all, j.lda)
	err := parallel(min(threads, splits), splits, func(part int) error {
		w := getWorker(j)
		defer w.release()
		st := parts.of(part*all, all)
		st.reset(j.lda)
		return j.span(w, st, 0, j.groups, 0, j.rows, kv.Len*part/splits, kv.Len*(part+1)/splits)
	})
	if err != nil {
		return kernels.Traffic{}, err
	}
	for part := 1; part < splits; part++ {
		parts.merge(part*all, all, j.lda)
	}
	for g := range j.groups {
		j.finish(out, parts.of(g*j.rows, j.rows), g, 0, j.rows)
	}
	return j.traffic(int64(j.groups)*int64(kv.Len), splits), nil
}
