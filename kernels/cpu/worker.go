package cpu

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"twopoint/kernels"
)

var negInf = float32(math.Inf(-1))

// naturalLog is ln(2^m · l).
func naturalLog(m, l float32) float32 {
	return float32((float64(m) + math.Log2(float64(l))) * ln2)
}

// worker is the scratch memory of one goroutine.
type worker struct {
	rows [][]float32 // rows of the tile; the last one repeats up to a multiple of tokenStep
	keys [][]float32 // the tile's keys transposed: one row per key element

	s    []float32 // scores, rowBlock × tileMax
	corr [rowBlock]float32
	kt   []float32 // what keys points into
	st   []float32 // memory of state

	touched uint32 // keeps the compiler from leaving out the reads of touch
}

var workers = sync.Pool{New: func() any {
	return &worker{s: make([]float32, rowBlock*tileMax), rows: make([][]float32, 0, tileMax)}
}}

func newWorker() *worker { return workers.Get().(*worker) }

// release gives the memory back, without hold on the caller's pages.
func (w *worker) release() {
	clear(w.rows[:cap(w.rows)])
	w.rows = w.rows[:0]
	workers.Put(w)
}

// state returns an empty state for a block's rows, valid until the worker's
// next one.
func (w *worker) state(b block, j *job) state {
	n := (b.g1 - b.g0) * (b.r1 - b.r0)
	w.st = grow(w.st, n*(2+j.lda))
	st := state{m: w.st[:n], l: w.st[n : 2*n], acc: w.st[2*n:]}
	for i := range st.m {
		st.m[i] = lowest
	}
	clear(st.l)
	clear(st.acc)
	return st
}

// gather looks up the rows of n tokens from t.
func (w *worker) gather(kv *kernels.PagedKV, t, n, elems int) error {
	w.rows = w.rows[:0]
	for end := t + n; t < end; {
		run := min(kv.PageSize-t%kv.PageSize, end-t) // tokens of this page
		if _, err := kv.Row(t + run - 1); err != nil {
			return err
		}
		page := kv.Pages[kv.Table[t/kv.PageSize]]
		at := t % kv.PageSize * elems
		for range run {
			w.rows = append(w.rows, page[at:at+elems:at+elems])
			at += elems
		}
		t += run
	}
	for len(w.rows)%tokenStep != 0 {
		w.rows = append(w.rows, w.rows[n-1])
	}
	return nil
}

// touch reads one element of every cache line of the tile.
func (w *worker) touch() {
	const line = 16 // elements of a cache line
	var x uint32
	for _, row := range w.rows {
		for c := 0; c < len(row); c += line {
			x ^= math.Float32bits(row[c])
		}
	}
	w.touched = x
}

// transpose fills keys from the dim elements at off of every row.
func (w *worker) transpose(off, dim int) {
	n := len(w.rows)
	w.kt = grow(w.kt, dim*tileMax)
	w.keys = w.keys[:0]
	for c := range dim {
		w.keys = append(w.keys, w.kt[c*tileMax:][:n])
	}
	for t := 0; t < n; t += tokenStep {
		r := w.rows[t:][:tokenStep]
		k0, k1, k2, k3 := r[0][off:][:dim], r[1][off:][:dim], r[2][off:][:dim], r[3][off:][:dim]
		k4, k5, k6, k7 := r[4][off:][:dim], r[5][off:][:dim], r[6][off:][:dim], r[7][off:][:dim]
		for c := range dim {
			to := w.kt[c*tileMax+t:][:tokenStep]
			to[0], to[1], to[2], to[3] = k0[c], k1[c], k2[c], k3[c]
			to[4], to[5], to[6], to[7] = k4[c], k5[c], k6[c], k7[c]
		}
	}
}

// grow returns a slice of n elements, reusing b's memory where it suffices.
// Its contents are arbitrary.
func grow(b []float32, n int) []float32 {
	if cap(b) < n {
		return make([]float32, n)
	}
	return b[:n]
}

func threads(o kernels.Options) int {
	if o.Threads > 0 {
		return o.Threads
	}
	return runtime.GOMAXPROCS(0)
}

// parallel calls f(0) to f(n−1) from at most that many goroutines, one of them
// the caller's, and returns once all have ended. After an error no further
// call begins.
func parallel(threads, n int, f func(i int) error) error {
	var (
		next   atomic.Int64
		once   sync.Once
		first  error
		worker = func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					once.Do(func() { first = err })
					next.Store(int64(n))
					return
				}
			}
		}
		wg sync.WaitGroup
	)
	for range min(threads, n) - 1 {
		wg.Go(worker)
	}
	worker()
	wg.Wait()
	return first
}
