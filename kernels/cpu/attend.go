// Package cpu computes attention on the processor. It registers these
// variants with package kernels:
//
//   - serial_perhead: one query head after another, each over the whole KV
//     range, on one goroutine: every KV row is read once per query head.
//   - split_grouped: the query heads that share a KV head work on a row
//     together, and the KV range is cut into parts that run side by side and
//     are merged by their log-sum-exp. One split is serial and grouped.
//   - split_grouped_touch: the same, but every tile of rows is first read once
//     in order, one element per cache line. The loops read several rows side by
//     side, which the processor's own prefetching follows badly where rows are
//     short; this shows it one stream. It pays for long contiguous runs that
//     come from memory, and costs where they come from a cache.
//   - prefill_tiled: query tiles × KV heads side by side, each over the KV
//     range that it sees; made for hundreds to thousands of query rows.
//
// All go through the same inner loops (a tile of scores, one step of the
// online softmax, a tile of weighted sums), which exist for portable Go, AVX2
// and AVX-512; the fastest that the processor has is used unless ForcePath
// says otherwise. What comes in is a query and a paged cache, what goes out is
// an output and the bytes that were touched. The package never writes to the
// cache, never reads a row past its length, and keeps no state but scratch
// memory between calls.
package cpu

import (
	"context"
	"sync"
	"sync/atomic"

	"twopoint/kernels"
)

func init() {
	kernels.Register(serialPerHead{})
	kernels.Register(splitGrouped{})
	kernels.Register(splitGrouped{touch: true})
	kernels.Register(prefillTiled{})
}

// anyShape is the Supports of the variants here: they take every valid shape.
type anyShape struct{}

func (anyShape) Supports(s kernels.Shape, _ int) error { return s.Validate() }

type serialPerHead struct{ anyShape }

func (serialPerHead) Name() string { return "serial_perhead" }

// Attend takes no notice of Splits and Threads: the variant has one of each.
func (serialPerHead) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	if err := kernels.Check(out, q, kv, o); err != nil {
		return kernels.Traffic{}, err
	}
	j := newJob(ctx, out, q, kv, 1)
	defer j.release()
	w := newWorker()
	defer w.release()
	for g := range j.groups {
		b := block{g, g + 1, 0, j.rows}
		st := w.state(b, j)
		if err := j.span(w, st, b, 0, kv.Len); err != nil {
			return kernels.Traffic{}, err
		}
		j.finish(st, b)
	}
	return j.traffic(j.groups*kv.Len, 1), nil
}

type splitGrouped struct {
	anyShape
	touch bool
}

func (k splitGrouped) Name() string {
	if k.touch {
		return "split_grouped_touch"
	}
	return "split_grouped"
}

// splitWork is the number of multiply-adds that make a part worth a goroutine:
// some tens of microseconds on one core.
const splitWork = 1 << 20

// Attend chooses as many splits as threads where o leaves it open, fewer when
// the context is too short to occupy them.
func (k splitGrouped) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	if err := kernels.Check(out, q, kv, o); err != nil {
		return kernels.Traffic{}, err
	}
	s := kv.Shape
	j := newJob(ctx, out, q, kv, s.Heads/s.KVHeads)
	j.touch = k.touch
	defer j.release()
	splits := o.Splits
	if splits == 0 {
		splits = max(1, min(threads(o), kv.Len*q.QLen*s.Heads*(s.KDim+s.VDim)/splitWork))
	}
	all := block{0, j.groups, 0, j.rows}
	workers, parts := make([]*worker, splits), make([]state, splits)
	for i := range workers {
		workers[i] = newWorker()
		defer workers[i].release()
	}
	err := parallel(threads(o), splits, func(i int) error {
		parts[i] = workers[i].state(all, j)
		return j.span(workers[i], parts[i], all, kv.Len*i/splits, kv.Len*(i+1)/splits)
	})
	if err != nil {
		return kernels.Traffic{}, err
	}
	for _, part := range parts[1:] {
		parts[0].merge(part, j.lda)
	}
	j.finish(parts[0], all)
	return j.traffic(j.groups*kv.Len, splits), nil
}

type prefillTiled struct{ anyShape }

func (prefillTiled) Name() string { return "prefill_tiled" }

// prefillRows is the number of query rows (queries × heads of a group) in a
// tile: enough to pay for transposing a tile of keys, few enough for their
// sums to stay in the second-level cache.
// No fewer than prefillRowsMin are taken to make more tiles for more threads.
const (
	prefillRows    = 256
	prefillRowsMin = 64
)

// Attend takes no notice of Splits: every query tile goes over its whole KV
// range.
func (prefillTiled) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	if err := kernels.Check(out, q, kv, o); err != nil {
		return kernels.Traffic{}, err
	}
	j := newJob(ctx, out, q, kv, kv.Shape.Heads/kv.Shape.KVHeads)
	defer j.release()
	n := threads(o)
	queries := max(1, prefillRows/j.heads)
	if n > 1 { // enough tiles that the threads end at about the same time
		queries = min(queries, max(1, prefillRowsMin/j.heads, q.QLen*j.groups/(4*n)))
	}
	tiles := (q.QLen + queries - 1) / queries
	var visited atomic.Int64
	err := parallel(n, tiles*j.groups, func(i int) error {
		// The last tiles see most and go first, so that no thread is left alone
		// with a long one.
		g, tile := i%j.groups, tiles-1-i/j.groups
		end := min(q.QLen, (tile+1)*queries)
		b := block{g, g + 1, tile * queries * j.heads, end * j.heads}
		sees := max(0, j.visible(end-1))
		w := newWorker()
		defer w.release()
		st := w.state(b, j)
		if err := j.span(w, st, b, 0, sees); err != nil {
			return err
		}
		j.finish(st, b)
		visited.Add(int64(sees))
		return nil
	})
	if err != nil {
		return kernels.Traffic{}, err
	}
	return j.traffic(int(visited.Load()), 1), nil
}

// job is one launch. Query rows are regrouped so that the rows which share KV
// rows follow each other: groups × (QLen × heads), all heads of a query before
// the next query.
type job struct {
	in     *inner
	done   <-chan struct{}
	ctx    context.Context
	out    kernels.Output
	kv     *kernels.PagedKV
	qLen   int
	groups int // independent sets of rows: query heads, or KV heads
	heads  int // query heads of a group
	rows   int // query rows of a group: qLen × heads
	tile   int // tokens in a tile

	// transposed says that scores are computed from transposed tiles of keys.
	// It rounds differently, so it is a matter of the launch, not of the block:
	// how work is divided among threads changes no bit of the result.
	transposed bool

	// touch says that a tile's rows are read once, whole and in their order,
	// before the loops go over them.
	touch bool

	q        []float32 // scaled query rows, ldq apart
	ldq, lda int       // stride of query rows and of sums
}

var jobs = sync.Pool{New: func() any { return new(job) }}

// newJob prepares a launch whose groups have that many query heads. Sizes have
// been checked.
func newJob(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, heads int) *job {
	s := kv.Shape
	j := jobs.Get().(*job)
	*j = job{
		in: path.Load(), done: ctx.Done(), ctx: ctx, out: out, kv: kv, qLen: q.QLen,
		groups: s.Heads / heads, heads: heads, rows: q.QLen * heads,
		ldq: roundUp(s.KDim, pad), lda: roundUp(s.VDim, pad), q: j.q,
	}
	perToken := s.KDim + s.VDim
	if s.Latent {
		perToken = s.KDim
	}
	j.transposed = j.rows >= transposeRows && s.KDim <= transposeDim
	j.tile = min(tileMax, max(tileMin, roundUp(tileElems/perToken, tokenStep)))
	j.q = grow(j.q, s.Heads*q.QLen*j.ldq)
	// Scores in units of log 2 make the softmax a matter of powers of two.
	scale := q.Scale * log2e
	for g := range j.groups {
		for i := range q.QLen {
			for h := range heads {
				from := q.Q[(i*s.Heads+g*heads+h)*s.KDim:][:s.KDim]
				to := j.q[(g*j.rows+i*heads+h)*j.ldq:][:j.ldq]
				for c, x := range from {
					to[c] = x * scale
				}
				clear(to[s.KDim:])
			}
		}
	}
	return j
}

func (j *job) release() {
	*j = job{q: j.q}
	jobs.Put(j)
}

const (
	log2e = 1.4426950408889634
	ln2   = 0.6931471805599453

	// A tile's keys and values should stay in the first-level cache while the
	// rows of a group go over it.
	tileElems = 8192
	tileMin   = 16
	tileMax   = 128

	// rowBlock is the number of query rows whose scores against a tile are
	// held at once.
	rowBlock = 64

	// transposeRows is the number of query rows of a group from which it pays
	// to transpose a tile of keys, which saves the horizontal sum at the end of
	// every dot product.
	transposeRows = 32
	transposeDim  = 256 // longest key for which that sum matters
)

// visible is the number of tokens that query i sees; it may be negative.
func (j *job) visible(i int) int { return j.kv.Len - j.qLen + 1 + i }

// traffic accounts for a launch in which groups went over that many KV rows in
// all.
func (j *job) traffic(visited, splits int) kernels.Traffic {
	s := j.kv.Shape
	perRow := s.KDim + s.VDim
	if s.Latent {
		perRow = s.KDim
	}
	return kernels.Traffic{
		KVBytes:     4 * int64(j.kv.Len) * int64(s.RowElems()),
		IssuedBytes: 4 * int64(visited) * int64(perRow),
		Splits:      splits,
	}
}

// block is a rectangle of work: groups [g0, g1), of each the rows [r0, r1).
type block struct{ g0, g1, r0, r1 int }

// state is the online softmax of the rows of a block: the running maximum and
// sum of each, in units of log 2, and the sums of weighted values.
type state struct{ m, l, acc []float32 }

// lowest stands for a maximum over nothing. It is finite so that masked scores,
// which are −Inf, need no branch.
const lowest = -1e38

// merge adds the part b, over other tokens of the same rows.
func (a state) merge(b state, lda int) {
	for r, top := range a.m {
		if b.l[r] == 0 {
			continue
		}
		top = max(top, b.m[r])
		fa, fb := exp2(a.m[r]-top), exp2(b.m[r]-top)
		x, y := a.acc[r*lda:][:lda], b.acc[r*lda:][:lda]
		for c := range x {
			x[c] = x[c]*fa + y[c]*fb
		}
		a.m[r], a.l[r] = top, a.l[r]*fa+b.l[r]*fb
	}
}

// span takes the rows of a block over the tokens [t0, t1).
func (j *job) span(w *worker, st state, b block, t0, t1 int) error {
	s := j.kv.Shape
	elems := s.RowElems()
	n := b.r1 - b.r0
	for t := t0; t < t1; t += j.tile {
		select {
		case <-j.done:
			return j.ctx.Err()
		default:
		}
		tokens := min(j.tile, t1-t)
		if err := w.gather(j.kv, t, tokens, elems); err != nil {
			return err
		}
		if j.touch {
			w.touch()
		}
		// Queries before this one see none of the tile.
		first := max(b.r0, (t-j.kv.Len+j.qLen)*j.heads)
		for g := b.g0; g < b.g1; g++ {
			head := g * j.heads / (s.Heads / s.KVHeads)
			keyAt, valueAt := head*s.KDim, s.KVHeads*s.KDim+head*s.VDim
			if s.Latent {
				valueAt = 0
			}
			if j.transposed {
				w.transpose(keyAt, s.KDim)
			}
			for r := first; r < b.r1; r += rowBlock {
				nq := min(rowBlock, b.r1-r)
				q := j.q[(g*j.rows+r)*j.ldq:]
				if j.transposed {
					j.in.accum(w.s, tileMax, nil, q, j.ldq, nq, w.keys, 0, len(w.rows))
				} else {
					j.in.scores(w.s, tileMax, q, j.ldq, nq, w.rows, keyAt, s.KDim)
				}
				j.mask(w.s, r, nq, t, tokens, len(w.rows))
				at := (g-b.g0)*n + r - b.r0
				j.in.softmax(w.s, tileMax, nq, len(w.rows), st.m[at:], st.l[at:], w.corr[:])
				j.in.accum(st.acc[at*j.lda:], j.lda, w.corr[:], w.s, tileMax, nq, w.rows[:tokens], valueAt, s.VDim)
			}
		}
	}
	return nil
}

// mask removes the scores of tokens that are not there or not to be seen, for
// nq rows from r against a tile of tokens from t, filled up to padded.
func (j *job) mask(s []float32, r, nq, t, tokens, padded int) {
	for i := range nq {
		seen := min(tokens, j.visible((r+i)/j.heads)-t)
		if seen == padded {
			return // and so do all later rows
		}
		for c := max(0, seen); c < padded; c++ {
			s[i*tileMax+c] = negInf
		}
	}
}

// finish normalises the sums of a block into the output.
func (j *job) finish(st state, b block) {
	s := j.kv.Shape
	n := b.r1 - b.r0
	for g := b.g0; g < b.g1; g++ {
		for r := b.r0; r < b.r1; r++ {
			at := (g-b.g0)*n + r - b.r0
			row := r/j.heads*s.Heads + g*j.heads + r%j.heads
			o, lse := j.out.O[row*s.VDim:][:s.VDim], float32(negInf)
			if l := st.l[at]; l == 0 {
				clear(o)
			} else {
				for c, x := range st.acc[at*j.lda:][:s.VDim] {
					o[c] = x / l
				}
				lse = naturalLog(st.m[at], l)
			}
			if j.out.LSE != nil {
				j.out.LSE[row] = lse
			}
		}
	}
}
