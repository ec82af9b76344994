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
