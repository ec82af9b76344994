// Package kv owns the memory of the embedded server's KV cache: a pool of pages
// that is mapped as it grows, and a radix tree of the prefixes that finished
// requests left in it. Page numbers and token ids come in and go out; what the
// rows contain is none of its business. Nothing here is safe for concurrent
// use: the scheduler's goroutine owns it.
package kv

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"

	"twopoint/kernels"
)

// Placement is the order in which free pages are handed out.
type Placement string

const (
	Identity Placement = kernels.Identity // lowest page first: a fresh sequence lies in one piece
	Shuffled Placement = kernels.Shuffled // a fixed random order over all mapped pages
)

// slabBytes is about how much of one layer is mapped at a time.
const slabBytes = 2 << 20

// A MapError says that the system refused memory for the KV cache.
type MapError struct {
	Bytes int
	Err   error
}

func (e *MapError) Error() string {
	return fmt.Sprintf("cannot map %d bytes of KV cache: %v", e.Bytes, e.Err)
}

func (e *MapError) Unwrap() error { return e.Err }

// ErrFull means that all pages of the pool are in use.
var ErrFull = errors.New("KV cache pool is full")

// Pool hands out pages of PageSize tokens. A page number stands for one page in
// every layer.
type Pool struct {
	PageSize int
	Pages    [][][]float32 // [layer][page], PageSize·rowElems elements each; grows as slabs are mapped

	total     int // pages that the pool may ever have
	rowElems  int
	slabPages int
	slabs     [][]byte

	order []int32  // rank → page
	rank  []int32  // page → rank
	free  []uint64 // a bit for each rank whose page is mapped and free
	first int      // no bit is set in words before this one
	nfree int      // set bits
}

// NewPool returns an empty pool of tokens/pageSize pages. Nothing is mapped
// until pages are asked for.
func NewPool(tokens, pageSize, layers, rowElems int, placement Placement) (*Pool, error) {
	total := tokens / pageSize
	if pageSize < 1 || total < 1 {
		return nil, fmt.Errorf("KV pool of %d tokens has no room for a page of %d", tokens, pageSize)
	}
	p := &Pool{PageSize: pageSize, total: total, rowElems: rowElems}
	p.slabPages = min(max(slabBytes/(4*rowElems*pageSize), 1), total)
	p.Pages = make([][][]float32, layers)
	order, err := kernels.Place(string(placement), total, 1)
	if err != nil {
		return nil, err
	}
	p.order, p.rank = order, make([]int32, total)
	for r, page := range p.order {
		p.rank[page] = int32(r)
	}
	p.free = make([]uint64, (total+63)/64)
	return p, nil
}

// Tokens is the number of tokens that the pool can ever hold.
func (p *Pool) Tokens() int { return p.total * p.PageSize }

// Available is the number of pages that Alloc could hand out now, mapped or not.
func (p *Pool) Available() int { return p.nfree + p.total - p.mapped() }

// Used is the number of pages handed out.
func (p *Pool) Used() int { return p.total - p.Available() }

func (p *Pool) mapped() int { return len(p.Pages[0]) }

// Alloc appends n pages to table. It returns ErrFull, and takes nothing, if
// fewer are available, and a *MapError if the system refuses the memory.
func (p *Pool) Alloc(table []int32, n int) ([]int32, error) {
	if n > p.Available() {
		return table, ErrFull
	}
	for p.nfree < n {
		if err := p.grow(); err != nil {
			return table, err
		}
	}
	for ; n > 0; n-- {
		for p.free[p.first] == 0 {
			p.first++
		}
		bit := bits.TrailingZeros64(p.free[p.first])
		p.free[p.first] &^= 1 << bit
		p.nfree--
		table = append(table, p.order[p.first*64+bit])
	}
	return table, nil
}

// Free takes pages back. Their contents stay as they are until the pages are
// handed out again.
func (p *Pool) Free(pages []int32) {
	for _, page := range pages {
		r := int(p.rank[page])
		if p.free[r/64]&(1<<(r%64)) != 0 {
			panic(fmt.Sprintf("kv: page %d is freed twice", page))
		}
		p.free[r/64] |= 1 << (r % 64)
		p.first = min(p.first, r/64)
	}
	p.nfree += len(pages)
}

// grow maps one more slab: for each layer in turn, the pages of that layer, so
// that neighbouring pages of a layer are neighbours in memory.
func (p *Pool) grow() error {
	n := min(p.slabPages, p.total-p.mapped())
	elems := p.PageSize * p.rowElems
	size := len(p.Pages) * n * elems * 4
	slab, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return &MapError{Bytes: size, Err: err}
	}
	p.slabs = append(p.slabs, slab)
	base := p.mapped()
	floats := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(slab))), size/4)
	for l := range p.Pages {
		for range n {
			p.Pages[l] = append(p.Pages[l], floats[:elems:elems])
			floats = floats[elems:]
		}
	}
	fresh := make([]int32, n)
	for i := range fresh {
		fresh[i] = int32(base + i)
	}
	p.Free(fresh)
	return nil
}

// Close unmaps the pool. No page may be touched afterwards.
func (p *Pool) Close() error {
	var errs []error
	for _, slab := range p.slabs {
		errs = append(errs, unix.Munmap(slab))
	}
	p.slabs = nil
	return errors.Join(errs...)
}
