// Package kernels holds decode and prefill attention over a paged KV cache as
// named variants that compute the same function by different routes, so that
// what a route costs can be measured. It stands alone: it imports nothing else
// of twopoint.
//
// A variant differs from its siblings in what its name says (heads one after
// another or grouped, KV serial or split, how the page table is walked) and in
// nothing else; all share the inner loops of package cpu.
package kernels

import (
	"context"
	"fmt"
)

// Shape is the attention geometry of one layer on one device, in elements.
type Shape struct {
	Heads   int // query heads
	KVHeads int // key/value heads; divides Heads; 1 when Latent
	KDim    int // elements of a key row of one KV head (MLA: rank + rope)
	VDim    int // elements of a value row of one KV head (MLA: rank)

	// Latent marks MLA: the value row is the first VDim elements of the key
	// row, stored once.
	Latent bool
}

// RowElems is the number of stored elements of one token in one layer: KDim
// when Latent, otherwise KVHeads·(KDim+VDim).
func (s Shape) RowElems() int {
	if s.Latent {
		return s.KDim
	}
	return s.KVHeads * (s.KDim + s.VDim)
}

// Validate reports the first field that no attention could have.
func (s Shape) Validate() error {
	switch {
	case s.Heads < 1 || s.KVHeads < 1 || s.KDim < 1 || s.VDim < 1:
		return fmt.Errorf("shape %+v: heads and dimensions must be at least 1", s)
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("shape %+v: %d KV heads do not divide %d query heads", s, s.KVHeads, s.Heads)
	case s.Latent && s.KVHeads != 1:
		return fmt.Errorf("shape %+v: latent attention has one KV head", s)
	case s.Latent && s.VDim > s.KDim:
		return fmt.Errorf("shape %+v: the latent value is part of the key row, so VDim cannot exceed KDim", s)
	}
	return nil
}

// PagedKV is the KV cache of one sequence in one layer. The row of token t lies
// in page Table[t/PageSize] at row t%PageSize. A row is, for latent attention,
// the KDim elements of the latent key; otherwise all keys (KVHeads × KDim) and
// then all values (KVHeads × VDim) of the token.
//
// The pages belong to the caller; a kernel only reads them, and reads no row at
// or past Len, no page past the table's last used entry.
type PagedKV struct {
	Shape    Shape
	PageSize int         // tokens in a page, at least 1
	Pages    [][]float32 // the pool: each page has PageSize·RowElems elements
	Table    []int32     // page of each run of PageSize tokens
	Len      int         // tokens stored
}

// Row returns the RowElems stored elements of token t, t < Len.
func (kv *PagedKV) Row(t int) ([]float32, error) {
	n := kv.Shape.RowElems()
	p, at := t/kv.PageSize, t%kv.PageSize*n
	if p >= len(kv.Table) {
		return nil, fmt.Errorf("token %d is in page %d of a table of %d", t, p, len(kv.Table))
	}
	id := int(kv.Table[p])
	if id < 0 || id >= len(kv.Pages) {
		return nil, fmt.Errorf("table entry %d names page %d of a pool of %d", p, id, len(kv.Pages))
	}
	if page := kv.Pages[id]; at+n <= len(page) {
		return page[at : at+n : at+n], nil
	}
	return nil, fmt.Errorf("page %d has %d elements, token %d needs %d", id, len(kv.Pages[id]), t, at+n)
}

// Query is QLen consecutive query rows of one sequence, the newest tokens of
// the cache: row i attends to the first Len−QLen+1+i tokens (a chain mask), so
// that QLen 1 is plain decode.
type Query struct {
	Q     []float32 // QLen × Heads × KDim
	QLen  int
	Scale float32 // multiplies every score before the softmax
}

// Output receives the result. LSE is the natural logarithm of the sum of
// exponentials of the scaled scores, what a later merge needs; nil where the
// caller has no use for it. A row that sees no token gets zeros and −Inf.
type Output struct {
	O   []float32 // QLen × Heads × VDim
	LSE []float32 // QLen × Heads, or nil
}

// Options are what a caller may ask of a launch.
type Options struct {
	Splits  int // parts of the KV range computed side by side; 0 lets the kernel choose
	Threads int // goroutines at work; 0 means GOMAXPROCS
}

// MaxSplits bounds the parts that a caller may ask for, since each holds a
// partial result.
const MaxSplits = 4096

// Traffic is what a launch had to touch, for rates in bytes per second.
type Traffic struct {
	KVBytes     int64 // unique KV bytes: every row once, whatever was read again
	IssuedBytes int64 // KV bytes including rows read again by other heads or query tiles
	Splits      int   // parts that were computed
}

// Kernel computes attention of one step over a paged cache. Implementations
// are safe for concurrent use; scratch memory is theirs.
type Kernel interface {
	// Name is the variant's name in rows and flags, such as "split_grouped".
	Name() string
	// Supports returns nil, or the reason why this shape cannot be computed.
	Supports(s Shape, qLen int) error
	// Attend writes O and LSE. Bad sizes are an error; the kernel never writes
	// outside Output and never reads rows past kv.Len.
	Attend(ctx context.Context, out Output, q Query, kv *PagedKV, o Options) (Traffic, error)
}

// Check reports sizes that do not fit each other: what every kernel has to
// refuse before it computes. It does not walk the table.
func Check(out Output, q Query, kv *PagedKV, o Options) error {
	s := kv.Shape
	if err := s.Validate(); err != nil {
		return err
	}
	switch {
	case q.QLen < 1:
		return fmt.Errorf("%d query rows: at least 1 is needed", q.QLen)
	case kv.PageSize < 1:
		return fmt.Errorf("page size %d: at least 1 is needed", kv.PageSize)
	case kv.Len < 0:
		return fmt.Errorf("%d tokens in the cache", kv.Len)
	case len(q.Q) != q.QLen*s.Heads*s.KDim:
		return fmt.Errorf("query has %d elements, %d rows × %d heads × %d need %d", len(q.Q), q.QLen, s.Heads, s.KDim, q.QLen*s.Heads*s.KDim)
	case len(out.O) != q.QLen*s.Heads*s.VDim:
		return fmt.Errorf("output has %d elements, %d rows × %d heads × %d need %d", len(out.O), q.QLen, s.Heads, s.VDim, q.QLen*s.Heads*s.VDim)
	case out.LSE != nil && len(out.LSE) != q.QLen*s.Heads:
		return fmt.Errorf("lse has %d elements, %d rows × %d heads need %d", len(out.LSE), q.QLen, s.Heads, q.QLen*s.Heads)
	case kv.Len > len(kv.Table)*kv.PageSize:
		return fmt.Errorf("%d tokens do not fit a table of %d pages of %d", kv.Len, len(kv.Table), kv.PageSize)
	case o.Splits < 0 || o.Splits > MaxSplits:
		return fmt.Errorf("%d splits: 0 to %d are possible", o.Splits, MaxSplits)
	case o.Threads < 0:
		return fmt.Errorf("%d threads", o.Threads)
	}
	return nil
}
