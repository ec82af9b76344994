package kernels

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
)

// Case is one launch to verify: a shape, a cache and what is asked for.
type Case struct {
	Shape     Shape
	Len       int // tokens in the cache
	QLen      int
	PageSize  int
	Placement string // Identity where empty
	Options   Options
	Seed      uint64
}

func (c Case) String() string {
	s := c.Shape
	kind := "gqa"
	if s.Latent {
		kind = "mla"
	}
	return fmt.Sprintf("%s=%d/%d,%d/%d ctx=%d q_len=%d page=%d placement=%s splits=%d threads=%d",
		kind, s.Heads, s.KVHeads, s.KDim, s.VDim, c.Len, c.QLen, c.PageSize, c.Placement, c.Options.Splits, c.Options.Threads)
}

// Limits of what counts as correct for float32 values, against float64.
const (
	MaxRelL2 = 1e-5 // of a row's output
	MaxLSE   = 1e-5 // of max(1, |LSE|)
)

// Deviation is how far a result lies from the reference: the worst row.
type Deviation struct {
	RelL2  float64 // ‖o − ref‖ / ‖ref‖ of a row; +Inf where ref is zero and o is not
	MaxAbs float64 // largest |o − ref| of an element
	LSE    float64 // largest |lse − ref| / max(1, |ref|)
}

// Problem is a case with its made-up values and their reference result, to
// which any number of variants can be held.
//
// The values are such that mistakes show. A softmax over long random keys
// averages its values towards zero, which an absolute tolerance lets zeros
// pass, so errors are relative, and high scores are planted in each of many
// ranges of tokens, beside every page border and at both ends: a part left out
// is missing from the result. What must not be read is poisoned: unused rows
// and pages are NaN, unused table entries name a page far outside the pool.
type Problem struct {
	Case
	q      Query
	kv     *PagedKV
	before [][]float32 // copy of the pages
	o, lse []float64
}

// NewProblem makes the values of a case and computes their reference.
func NewProblem(c Case) (*Problem, error) {
	if err := c.Shape.Validate(); err != nil {
		return nil, err
	}
	p := &Problem{Case: c}
	var err error
	if p.q, p.kv, err = c.inputs(); err != nil {
		return nil, fmt.Errorf("make values of %s: %w", c, err)
	}
	if p.o, p.lse, err = Reference(p.q, p.kv); err != nil {
		return nil, fmt.Errorf("reference of %s: %w", c, err)
	}
	p.before = make([][]float32, len(p.kv.Pages))
	for i, page := range p.kv.Pages {
		p.before[i] = slices.Clone(page)
	}
	return p, nil
}

// Verify is NewProblem and its Verify for a single use.
func Verify(ctx context.Context, k Kernel, c Case) (Deviation, error) {
	p, err := NewProblem(c)
	if err != nil {
		return Deviation{}, err
	}
	return p.Verify(ctx, k)
}

// Verify runs a variant and compares it with the reference. The error says what
// is wrong: the kernel refused, a deviation above the limits, a value that is
// not finite, a write outside the output or into the cache, bytes counted
// wrongly, or a panic on the calling goroutine. The output is filled with NaN
// before the run.
func (p *Problem) Verify(ctx context.Context, k Kernel) (Deviation, error) {
	if err := k.Supports(p.Shape, p.QLen); err != nil {
		return Deviation{}, fmt.Errorf("%s does not take %s: %w", k.Name(), p.Case, err)
	}
	d, err := p.compare(ctx, k)
	if err != nil {
		return d, fmt.Errorf("%s on %s: %w", k.Name(), p.Case, err)
	}
	return d, nil
}

func (p *Problem) compare(ctx context.Context, k Kernel) (d Deviation, err error) {
	q, kv, ref, refLSE := p.q, p.kv, p.o, p.lse
	const guard = 64 // elements on both sides of the output that must stay
	buf := func(n int) (all, mid []float32) {
		all = make([]float32, n+2*guard)
		for i := range all {
			all[i] = poison
		}
		return all, all[guard : guard+n : guard+n]
	}
	allO, out := buf(len(ref))
	allLSE, lse := buf(len(refLSE))

	traffic, err := attend(ctx, k, Output{O: out, LSE: lse}, q, kv, p.Options)
	if err != nil {
		return d, err
	}
	for _, all := range [][]float32{allO, allLSE} {
		for i := range guard {
			if bits(all[i]) != bits(poison) || bits(all[len(all)-1-i]) != bits(poison) {
				return d, errors.New("wrote outside the output")
			}
		}
	}
	for i, page := range kv.Pages {
		if !slices.EqualFunc(page, p.before[i], func(a, b float32) bool { return bits(a) == bits(b) }) {
			copy(page, p.before[i]) // the next variant deserves the values
			return d, fmt.Errorf("wrote into page %d of the cache", i)
		}
	}
	if want := int64(kv.Len) * int64(kv.Shape.RowElems()) * 4; traffic.KVBytes != want {
		return d, fmt.Errorf("says %d KV bytes, the cache has %d", traffic.KVBytes, want)
	}

	dim := kv.Shape.VDim
	for r, want := range refLSE {
		var diff, norm float64
		for i, x := range ref[r*dim : (r+1)*dim] {
			e := math.Abs(float64(out[r*dim+i]) - x)
			if math.IsNaN(e) || math.IsInf(e, 0) {
				return d, fmt.Errorf("output of row %d (query %d, head %d) is %v, the reference %g", r, r/kv.Shape.Heads, r%kv.Shape.Heads, out[r*dim+i], x)
			}
			diff, norm = diff+e*e, norm+x*x
			d.MaxAbs = max(d.MaxAbs, e)
		}
		if diff > 0 {
			d.RelL2 = max(d.RelL2, math.Sqrt(diff/norm))
		}
		got := float64(lse[r])
		if got == want {
			continue // −Inf twice, where nothing is seen
		}
		e := math.Abs(got-want) / max(1, math.Abs(want))
		if math.IsNaN(e) || math.IsInf(e, 0) {
			return d, fmt.Errorf("lse of row %d is %g, the reference %g", r, got, want)
		}
		d.LSE = max(d.LSE, e)
	}
	switch {
	case d.RelL2 > MaxRelL2:
		return d, fmt.Errorf("relative L2 error %.3g is above %g", d.RelL2, MaxRelL2)
	case d.LSE > MaxLSE:
		return d, fmt.Errorf("lse error %.3g is above %g", d.LSE, MaxLSE)
	}
	return d, nil
}

// attend turns a panic of the kernel into an error.
func attend(ctx context.Context, k Kernel, out Output, q Query, kv *PagedKV, o Options) (t Traffic, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return k.Attend(ctx, out, q, kv, o)
}

var poison = float32(math.NaN())

func bits(x float32) uint32 { return math.Float32bits(x) }

// plantRanges is the number of ranges of tokens in which a high score is
// planted: more than the splits of any case in use.
const plantRanges = 48

// valueMean is the mean of stored elements. It keeps outputs of few elements
// from being near zero by chance, where no float32 result is relatively close.
const valueMean = 1

// inputs makes the values of a case.
func (c Case) inputs() (Query, *PagedKV, error) {
	s := c.Shape
	if c.PageSize < 1 || c.QLen < 1 || c.Len < 0 {
		return Query{}, nil, fmt.Errorf("page size %d, query rows %d, tokens %d are not possible", c.PageSize, c.QLen, c.Len)
	}
	const spare = 3 // pages and table entries that no token uses
	used := (c.Len + c.PageSize - 1) / c.PageSize
	placement := c.Placement
	if placement == "" {
		placement = Identity
	}
	table, err := Place(placement, used+spare, c.Seed)
	if err != nil {
		return Query{}, nil, err
	}
	for i := used; i < len(table); i++ {
		table[i] = math.MaxInt32 - 7
	}
	kv := &PagedKV{Shape: s, PageSize: c.PageSize, Pages: NewPool(s, c.PageSize, used+spare), Table: table, Len: c.Len}
	for _, page := range kv.Pages {
		for i := range page {
			page[i] = poison
		}
	}

	rng := rand.New(rand.NewPCG(c.Seed, 1))
	normal := func(x []float32) {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	// All queries of a KV head have the same part along one direction, planted
	// keys a larger one, and neither has any other part along it.
	along := make([][]float64, s.KVHeads)
	for h := range along {
		along[h] = make([]float64, s.KDim)
		norm := 0.0
		for i := range along[h] {
			along[h][i] = rng.NormFloat64()
			norm += along[h][i] * along[h][i]
		}
		for i := range along[h] {
			along[h][i] /= math.Sqrt(norm)
		}
	}
	set := func(x []float32, u []float64, part float64) {
		dot := 0.0
		for i := range x {
			dot += float64(x[i]) * u[i]
		}
		for i := range x {
			x[i] += float32((part - dot) * u[i])
		}
	}
	const queryPart = 4
	q := Query{Q: make([]float32, c.QLen*s.Heads*s.KDim), QLen: c.QLen, Scale: float32(1 / math.Sqrt(float64(s.KDim)))}
	normal(q.Q)
	for r := range c.QLen * s.Heads {
		set(q.Q[r*s.KDim:(r+1)*s.KDim], along[r%s.Heads/(s.Heads/s.KVHeads)], queryPart)
	}
	keyPart := (math.Log(float64(c.Len)+1) + 1) * math.Sqrt(float64(s.KDim)) / queryPart
	planted := map[int]bool{0: true, c.Len - 1: true}
	for i := range plantRanges {
		a, b := c.Len*i/plantRanges, c.Len*(i+1)/plantRanges
		if b > a {
			planted[a+rng.IntN(b-a)] = true
		}
	}
	last := c.Len / c.PageSize * c.PageSize
	for _, t := range []int{last - 1, last} {
		planted[t] = true
	}
	for t := range c.Len {
		row, err := kv.Row(t)
		if err != nil {
			return Query{}, nil, err
		}
		normal(row)
		for i := range row {
			row[i] += valueMean
		}
		for h := 0; h < s.KVHeads && planted[t]; h++ {
			set(row[h*s.KDim:(h+1)*s.KDim], along[h], keyPart)
		}
	}
	return q, kv, nil
}
