package kernels

import (
	"fmt"
	"math/rand/v2"
)

// The placements that Place knows.
const (
	Identity = "identity" // page i of the sequence is page i of the pool
	Shuffled = "shuffled" // pages lie in the pool in random order
)

// Place returns a page table over a pool of that many pages. How finely a
// shuffled sequence is scattered follows from the page size of the pool: rows
// within a page stay together. The same seed gives the same table.
func Place(placement string, pages int, seed uint64) ([]int32, error) {
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(i)
	}
	switch placement {
	case Identity:
	case Shuffled:
		rng := rand.New(rand.NewPCG(seed, uint64(pages)))
		rng.Shuffle(pages, func(i, j int) { table[i], table[j] = table[j], table[i] })
	default:
		return nil, fmt.Errorf("unknown placement %q (known: %q, %q)", placement, Identity, Shuffled)
	}
	return table, nil
}

// NewPool allocates zeroed pages that follow each other in memory, so that an
// identity placement is one contiguous run of rows.
func NewPool(s Shape, pageSize, pages int) [][]float32 {
	n := pageSize * s.RowElems()
	all := make([]float32, n*pages)
	pool := make([][]float32, pages)
	for i := range pool {
		pool[i] = all[i*n : (i+1)*n : (i+1)*n]
	}
	return pool
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

// MaxSplits bounds the parts that a caller may ask for, since each holds a
// partial result.
const MaxSplits = 4096
