package model

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"twopoint/kernels"
)

// Run is a stretch of consecutive tokens of one sequence.
type Run struct {
	Tokens []int32
	Start  int     // position of Tokens[0]; the rows before it are stored already
	Table  []int32 // pages of the sequence, at least up to Start+len(Tokens)
	Logits bool    // whether the logits of the last token are wanted
}

// KV is where the rows of all sequences are stored: Pages[layer][page].
type KV struct {
	PageSize int
	Pages    [][][]float32
}

// Attention says how a pass computes attention.
type Attention struct {
	Kernel  kernels.Kernel
	Options kernels.Options
}

// blockRows is the number of rows that one thread carries through the linear
// layers at a time.
const blockRows = 32

// Pass computes forward passes and owns the scratch memory they need, which
// grows to the largest batch seen. It is for one goroutine.
type Pass struct {
	m       *Model
	threads int

	x, h, q, row, o, a, u []float32 // residual, normed, queries, KV row, attention, width-wide, hidden-wide
	seq, pos              []int32   // of each row: run index and position
	logits                []float32
	cache                 kernels.PagedKV
}

// NewPass returns a pass over m whose linear layers use up to threads
// goroutines; rows is the batch size to make room for at once.
func NewPass(m *Model, threads, rows int) *Pass {
	p := &Pass{m: m, threads: max(threads, 1)}
	p.grow(rows)
	return p
}

func (p *Pass) grow(rows int) {
	if rows*p.m.Width <= len(p.x) {
		return
	}
	c := p.m.Config
	p.x, p.h, p.a = make([]float32, rows*c.Width), make([]float32, rows*c.Width), make([]float32, rows*c.Width)
	p.q = make([]float32, rows*c.Shape.Heads*c.Shape.KDim)
	p.row = make([]float32, rows*c.Shape.RowElems())
	p.o = make([]float32, rows*c.Shape.Heads*c.Shape.VDim)
	p.u = make([]float32, rows*c.Hidden)
	p.seq, p.pos = make([]int32, rows), make([]int32, rows)
}

// Forward computes all runs of a batch in one pass, storing their KV rows. It
// returns the logits of those runs that asked for them, one row of Vocab each
// in the order of batch; the slice is valid until the next call. Two runs of a
// batch must not belong to one sequence. A token outside the vocabulary, or a
// position past the model's, is an error.
func (p *Pass) Forward(ctx context.Context, batch []Run, kv KV, at Attention) ([]float32, error) {
	m, rows, wanted := p.m, 0, 0
	for _, r := range batch {
		rows += len(r.Tokens)
		if r.Logits {
			wanted++
		}
		if end := r.Start + len(r.Tokens); end > m.positions || end > len(r.Table)*kv.PageSize {
			return nil, fmt.Errorf("forward pass: position %d is past the model's %d or the table's %d", end, m.positions, len(r.Table)*kv.PageSize)
		}
	}
	p.grow(rows)
	n := 0
	for i, r := range batch {
		for j, t := range r.Tokens {
			if t < 0 || int(t) >= m.Vocab {
				return nil, fmt.Errorf("forward pass: token %d is outside the vocabulary of %d", t, m.Vocab)
			}
			copy(p.x[n*m.Width:(n+1)*m.Width], m.embed[int(t)*m.Width:])
			p.seq[n], p.pos[n] = int32(i), int32(r.Start+j)
			n++
		}
	}
	for l := range m.layers {
		p.parallel(rows, func(lo, hi int) { p.project(&m.layers[l], batch, kv.Pages[l], kv.PageSize, lo, hi) })
		if err := p.attend(ctx, batch, kv.Pages[l], kv.PageSize, at); err != nil {
			return nil, fmt.Errorf("attention in layer %d: %w", l, err)
		}
		p.parallel(rows, func(lo, hi int) { p.mix(&m.layers[l], lo, hi) })
	}
	if need := wanted * m.Vocab; need > len(p.logits) {
		p.logits = make([]float32, need)
	}
	out := p.logits[:0]
	n = 0
	for _, r := range batch {
		n += len(r.Tokens)
		if !r.Logits {
			continue
		}
		h := p.h[:m.Width]
		normalise(h, p.x[(n-1)*m.Width:n*m.Width])
		row := p.logits[len(out) : len(out)+m.Vocab]
		m.head.mul(row, h, 1)
		for i, b := range m.bias {
			row[i] += b
		}
		out = p.logits[:len(out)+m.Vocab]
	}
	return out, nil
}

// parallel calls f on blocks of rows, on as many goroutines as there are
// threads and blocks.
func (p *Pass) parallel(rows int, f func(lo, hi int)) {
	workers := min(p.threads, (rows+blockRows-1)/blockRows)
	if workers <= 1 {
		f(0, rows)
		return
	}
	var next atomic.Int64
	work := func() {
		for {
			hi := int(next.Add(blockRows))
			lo := hi - blockRows
			if lo >= rows {
				return
			}
			f(lo, min(hi, rows))
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// project computes queries and KV rows of rows lo to hi and stores the latter
// in their pages.
func (p *Pass) project(l *layer, batch []Run, pages [][]float32, pageSize, lo, hi int) {
	m := p.m
	s := m.Shape
	n, w, qw, rw := hi-lo, m.Width, s.Heads*s.KDim, s.RowElems()
	h, q, rows := p.h[lo*w:hi*w], p.q[lo*qw:hi*qw], p.row[lo*rw:hi*rw]
	for r := range n {
		normalise(h[r*w:(r+1)*w], p.x[(lo+r)*w:(lo+r+1)*w])
	}
	l.query.mul(q, h, n)
	l.kv.mul(rows, h, n)
	for r := range n {
		pos := int(p.pos[lo+r])
		for k := range s.Heads {
			m.rotate(q[r*qw+(k+1)*s.KDim-m.Rope:], pos)
		}
		row := rows[r*rw : (r+1)*rw]
		if s.Latent {
			// As in DeepSeek-V2, the latent is normalised and the rope part is not.
			normalise(row[:s.VDim], row[:s.VDim])
		}
		for k := range s.KVHeads {
			m.rotate(row[(k+1)*s.KDim-m.Rope:], pos)
		}
		page := batch[p.seq[lo+r]].Table[pos/pageSize]
		copy(pages[page][pos%pageSize*rw:], row)
	}
}

func (p *Pass) attend(ctx context.Context, batch []Run, pages [][]float32, pageSize int, at Attention) error {
	s := p.m.Shape
	qw, ow := s.Heads*s.KDim, s.Heads*s.VDim
	lo := 0
	for _, r := range batch {
		hi := lo + len(r.Tokens)
		p.cache = kernels.PagedKV{Shape: s, PageSize: pageSize, Pages: pages, Table: r.Table, Len: r.Start + len(r.Tokens)}
		query := kernels.Query{Q: p.q[lo*qw : hi*qw], QLen: len(r.Tokens), Scale: float32(1 / math.Sqrt(float64(s.KDim)))}
		if _, err := at.Kernel.Attend(ctx, kernels.Output{O: p.o[lo*ow : hi*ow]}, query, &p.cache, at.Options); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// mix adds attention's output and the MLP's to the residual stream of rows lo
// to hi.
func (p *Pass) mix(l *layer, lo, hi int) {
	m := p.m
	n, w, ow, hw := hi-lo, m.Width, m.Shape.Heads*m.Shape.VDim, m.Hidden
	x, h, a, u := p.x[lo*w:hi*w], p.h[lo*w:hi*w], p.a[lo*w:hi*w], p.u[lo*hw:hi*hw]
	l.out.mul(a, p.o[lo*ow:hi*ow], n)
	for r := range n {
		xr, hr, ar := x[r*w:(r+1)*w], h[r*w:(r+1)*w], a[r*w:(r+1)*w]
		normalise(ar, ar)
		for i, v := range ar {
			xr[i] += v
		}
		normalise(hr, xr)
	}
	l.up.mul(u, h, n)
	for i, v := range u {
		u[i] = max(v, 0) * v // squared ReLU (Primer, So et al. 2021)
	}
	l.down.mul(a, u, n)
	for r := range n {
		xr, ar := x[r*w:(r+1)*w], a[r*w:(r+1)*w]
		normalise(ar, ar)
		for i, v := range ar {
			xr[i] += v
		}
	}
}
