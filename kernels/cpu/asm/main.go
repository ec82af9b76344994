// Command asm writes the vectorised inner loops of package cpu, one set for
// AVX2 with FMA and one for AVX-512. It is a module of its own so that the
// program does not depend on the assembler generator; run it by go generate in
// package cpu.
//
// Three loops are generated, each for one, two and four query rows at a time,
// so that a stored row that was loaded is used by all of them. Strides and
// offsets are in bytes. A tile's rows come as Go slices, of which only the
// pointers are read. Rows of scratch memory (queries, sums) are filled up to a
// multiple of 16 elements and may be read and written up to there; stored rows
// are never read past their end, so the last part of one is loaded by a mask.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const sliceHeader = 24 // bytes from one element of a [][]float32 to the next

// isa is what the two instruction sets do differently.
type isa struct {
	name   string
	lanes  int // float32 elements of a vector
	vec    func() reg.VecVirtual
	clear  func(v reg.Register)
	mask   func(rem reg.GPVirtual) (loadTail func(m Mem, v reg.Register))
	tokens map[int]int   // query rows → tokens that scores takes at once
	widths map[int][]int // query rows → vectors of columns that accum takes at once
}

var avx2 = isa{
	name:  "AVX2",
	lanes: 8,
	vec:   YMM,
	clear: func(v reg.Register) { VXORPS(v, v, v) },
	mask: func(rem reg.GPVirtual) func(Mem, reg.Register) {
		// Eight ones, then eight zeros: a window of them is the mask.
		at, table, m := GP64(), GP64(), YMM()
		MOVQ(U32(8), at)
		SUBQ(rem, at)
		LEAQ(maskTable, table)
		VMOVDQU(Mem{Base: table, Index: at, Scale: 4}, m)
		return func(src Mem, v reg.Register) { VMASKMOVPS(src, m, v) }
	},
	tokens: map[int]int{1: 8, 2: 4, 4: 2},
	widths: map[int][]int{1: {8, 4, 2, 1}, 2: {4, 2, 1}, 4: {2, 1}},
}

var avx512 = isa{
	name:  "AVX512",
	lanes: 16,
	vec:   ZMM,
	clear: func(v reg.Register) { VPXORD(v, v, v) },
	mask: func(rem reg.GPVirtual) func(Mem, reg.Register) {
		one, all, k := GP32(), GP32(), K()
		MOVL(U32(0xffff), all)
		MOVL(rem.As32(), one)
		BZHIL(one, all, all)
		KMOVW(all, k)
		return func(src Mem, v reg.Register) { VMOVUPS_Z(src, k, v) }
	},
	tokens: map[int]int{1: 8, 2: 4, 4: 4},
	widths: map[int][]int{1: {8, 4, 2, 1}, 2: {8, 4, 2, 1}, 4: {4, 2, 1}},
}

var maskTable Mem

func main() {
	maskTable = GLOBL("tailMask", 8|16) // RODATA, NOPTR
	for i := range 16 {
		v := uint32(0)
		if i < 8 {
			v = 0xffffffff
		}
		DATA(4*i, U32(v))
	}
	for _, a := range []isa{avx2, avx512} {
		for _, nq := range []int{1, 2, 4} {
			a.scores(nq)
			a.accum(nq)
		}
	}
	softmax()
	Generate()
}

func vectors(n int, f func() reg.VecVirtual) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = f()
	}
	return v
}

func param(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// scores: dot products of nq query rows with n stored rows.
func (a isa) scores(nq int) {
	nt := a.tokens[nq]
	TEXT(fmt.Sprintf("scores%d%s", nq, a.name), 4, "func(s *float32, lds int, q *float32, ldq int, rows *[]float32, n, off, dim int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("scores%d%s sets s to the dot products of %d query rows with n stored rows, a multiple of %d.", nq, a.name, nq, nt))
	step := a.lanes * 4

	end, rem := GP64(), param("dim")
	MOVQ(rem, end)
	ANDQ(U32(a.lanes-1), rem)
	SUBQ(rem, end)
	SHLQ(U8(2), end)
	loadTail := a.mask(rem)
	q := make([]reg.GPVirtual, nq)
	q[0] = param("q")
	if nq > 1 {
		ldq := param("ldq")
		for i := 1; i < nq; i++ {
			q[i] = GP64()
			LEAQ(Mem{Base: q[i-1], Index: ldq, Scale: 1}, q[i])
		}
	}
	s, rows, n := param("s"), param("rows"), param("n")

	zero := a.vec()
	a.clear(zero)

	token := "tokens"
	Label(token)
	k := make([]reg.GPVirtual, nt)
	off := NewParamAddr("off", 48)
	for t := range k {
		k[t] = GP64()
		MOVQ(Mem{Base: rows, Disp: t * sliceHeader}, k[t])
		ADDQ(off, k[t])
	}
	acc := vectors(nq*nt, a.vec) // acc[i·nt+t]
	for _, v := range acc {
		VMOVAPS(zero, v)
	}
	c := GP64()
	XORQ(c, c)
	CMPQ(c, end)
	JAE(LabelRef("tail"))

	step4 := func(loadK func(m Mem, v reg.Register)) {
		if nq == 1 { // one use of each stored element: it can stay in memory
			x := a.vec()
			VMOVUPS(Mem{Base: q[0], Index: c, Scale: 1}, x)
			for t := range nt {
				if loadK == nil {
					VFMADD231PS(Mem{Base: k[t], Index: c, Scale: 1}, x, acc[t])
					continue
				}
				y := a.vec()
				loadK(Mem{Base: k[t], Index: c, Scale: 1}, y)
				VFMADD231PS(y, x, acc[t])
			}
			return
		}
		y := vectors(nt, a.vec)
		for t := range nt {
			m := Mem{Base: k[t], Index: c, Scale: 1}
			if loadK == nil {
				VMOVUPS(m, y[t])
			} else {
				loadK(m, y[t])
			}
		}
		for i := range nq {
			x := a.vec()
			VMOVUPS(Mem{Base: q[i], Index: c, Scale: 1}, x)
			for t := range nt {
				VFMADD231PS(x, y[t], acc[i*nt+t])
			}
		}
	}
	Label("elements")
	step4(nil)
	ADDQ(U8(step), c)
	CMPQ(c, end)
	JB(LabelRef("elements"))

	Label("tail")
	// rem is needed in every round of the token loop, so it is looked up again.
	left := param("dim")
	TESTQ(U32(a.lanes-1), left)
	JZ(LabelRef("sums"))
	step4(loadTail)

	Label("sums")
	a.reduce(nq, nt, acc, s)
	ADDQ(U8(4*nt), s)
	ADDQ(U8(sliceHeader*nt), rows)
	SUBQ(U8(nt), n)
	JNZ(LabelRef(token))
	VZEROUPPER()
	RET()
}

// lanes4 sums four vectors within each 128-bit lane: element t of every lane of
// the result is the lane's sum of v[t].
func (a isa) lanes4(v []reg.VecVirtual) reg.VecVirtual {
	u := a.pairs(v[0], v[1])
	w := a.pairs(v[2], v[3])
	return a.quads(u, w)
}

// pairs leaves in every lane a₀+a₂, b₀+b₂, a₁+a₃, b₁+b₃.
func (a isa) pairs(x, y reg.VecVirtual) reg.VecVirtual {
	lo, hi := a.vec(), a.vec()
	VUNPCKLPS(y, x, lo)
	VUNPCKHPS(y, x, hi)
	VADDPS(hi, lo, lo)
	return lo
}

// quads takes two results of pairs to the sums of all four vectors.
func (a isa) quads(u, w reg.VecVirtual) reg.VecVirtual {
	lo, hi := a.vec(), a.vec()
	VUNPCKLPD(w, u, lo)
	VUNPCKHPD(w, u, hi)
	VADDPS(hi, lo, lo)
	return lo
}

// reduce sums every accumulator and stores the nt results of each query row.
func (a isa) reduce(nq, nt int, acc []reg.VecVirtual, s reg.GPVirtual) {
	row := func(i int, lds, lds3 reg.GPVirtual) Mem {
		switch i {
		case 0:
			return Mem{Base: s}
		case 3:
			return Mem{Base: s, Index: lds3, Scale: 1}
		}
		return Mem{Base: s, Index: lds, Scale: uint8(i)}
	}
	var lds, lds3 reg.GPVirtual
	if nq > 1 {
		lds = param("lds")
	}
	if nq > 2 {
		lds3 = GP64()
		LEAQ(Mem{Base: lds, Index: lds, Scale: 2}, lds3)
	}
	switch {
	case a.lanes == 8 && nq == 4: // two tokens of four rows
		w01 := a.quads(a.pairs(acc[0], acc[1]), a.pairs(acc[2], acc[3]))
		w23 := a.quads(a.pairs(acc[4], acc[5]), a.pairs(acc[6], acc[7]))
		lo, hi := YMM(), YMM()
		VPERM2F128(U8(0x20), w23, w01, lo)
		VPERM2F128(U8(0x31), w23, w01, hi)
		VADDPS(hi, lo, lo)
		x := XMM()
		VEXTRACTF128(U8(1), lo, x)
		VMOVLPS(lo.AsX(), row(0, lds, lds3))
		VMOVHPS(lo.AsX(), row(1, lds, lds3))
		VMOVLPS(x, row(2, lds, lds3))
		VMOVHPS(x, row(3, lds, lds3))
	case a.lanes == 8: // eight tokens of one row, or four of two
		b0, b1 := a.lanes4(acc[:4]), a.lanes4(acc[4:])
		lo, hi := YMM(), YMM()
		VPERM2F128(U8(0x20), b1, b0, lo)
		VPERM2F128(U8(0x31), b1, b0, hi)
		VADDPS(hi, lo, lo)
		a.store8(nq, lo, s, lds)
	case nq == 4:
		var b [4]reg.VecVirtual
		for i := range b {
			b[i] = a.lanes4(acc[4*i:][:4])
		}
		halves := func(x, y reg.VecVirtual) reg.VecVirtual {
			lo, hi := ZMM(), ZMM()
			VSHUFF32X4(U8(0x88), y, x, lo)
			VSHUFF32X4(U8(0xdd), y, x, hi)
			VADDPS(hi, lo, lo)
			return lo
		}
		all := halves(halves(b[0], b[1]), halves(b[2], b[3]))
		VMOVUPS(all.AsX(), row(0, lds, lds3))
		for i := 1; i < 4; i++ {
			VEXTRACTF32X4(U8(i), all, row(i, lds, lds3))
		}
	default:
		b0, b1 := a.lanes4(acc[:4]), a.lanes4(acc[4:])
		lo, hi := ZMM(), ZMM()
		VSHUFF32X4(U8(0x88), b1, b0, lo)
		VSHUFF32X4(U8(0xdd), b1, b0, hi)
		VADDPS(hi, lo, lo) // b0's two halves, b1's two halves
		VSHUFF32X4(U8(0xd8), lo, lo, hi)
		// Lanes are now b0a, b1a, b0b, b1b.
		y := YMM()
		VEXTRACTF64X4(U8(1), hi, y)
		VADDPS(hi.AsY(), y, y)
		a.store8(nq, y, s, lds)
	}
}

// store8 stores eight tokens of one row or four of two.
func (a isa) store8(nq int, v reg.VecVirtual, s, lds reg.GPVirtual) {
	if nq == 1 {
		VMOVUPS(v.AsY(), Mem{Base: s})
		return
	}
	VMOVUPS(v.AsX(), Mem{Base: s})
	VEXTRACTF128(U8(1), v.AsY(), Mem{Base: s, Index: lds, Scale: 1})
}

// accum: sums of stored rows weighted by p, for nq query rows.
func (a isa) accum(nq int) {
	TEXT(fmt.Sprintf("accum%d%s", nq, a.name), 4, "func(o *float32, ldo int, corr *float32, p *float32, ldp int, rows *[]float32, n, off, dim int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("accum%d%s scales %d rows of sums by corr, or by zero if it is nil, and adds n stored rows, at least one, weighted by p.", nq, a.name, nq))
	step := a.lanes * 4

	left := param("dim") // elements still to do
	o, off := param("o"), param("off")
	ldp, ldp3 := param("ldp"), GP64()
	LEAQ(Mem{Base: ldp, Index: ldp, Scale: 2}, ldp3)
	at := func(base, ld, ld3 reg.GPVirtual, i, disp int) Mem {
		switch i {
		case 0:
			return Mem{Base: base, Disp: disp}
		case 3:
			return Mem{Base: base, Index: ld3, Scale: 1, Disp: disp}
		}
		return Mem{Base: base, Index: ld, Scale: uint8(i), Disp: disp}
	}

	zero := a.vec()
	a.clear(zero)

	// block does width vectors of columns.
	block := func(label string, width int, load func(m Mem, v reg.Register)) {
		acc := vectors(nq*width, a.vec) // acc[i·width+j]
		ldo, ldo3 := param("ldo"), GP64()
		LEAQ(Mem{Base: ldo, Index: ldo, Scale: 2}, ldo3)
		corr := param("corr")
		TESTQ(corr, corr)
		JZ(LabelRef(label + "_zero"))
		for i := range nq {
			f := a.vec()
			VBROADCASTSS(Mem{Base: corr, Disp: 4 * i}, f)
			for j := range width {
				VMULPS(at(o, ldo, ldo3, i, j*step), f, acc[i*width+j])
			}
		}
		JMP(LabelRef(label + "_add"))
		Label(label + "_zero")
		for _, v := range acc {
			VMOVAPS(zero, v)
		}
		Label(label + "_add")
		rows, n, p := param("rows"), param("n"), param("p")
		Label(label + "_token")
		v := GP64()
		MOVQ(Mem{Base: rows}, v)
		if nq == 1 && load == nil {
			x := a.vec()
			VBROADCASTSS(Mem{Base: p}, x)
			for j := range width {
				VFMADD231PS(Mem{Base: v, Index: off, Scale: 1, Disp: j * step}, x, acc[j])
			}
		} else {
			y := vectors(width, a.vec)
			for j := range width {
				m := Mem{Base: v, Index: off, Scale: 1, Disp: j * step}
				if load == nil {
					VMOVUPS(m, y[j])
				} else {
					load(m, y[j])
				}
			}
			for i := range nq {
				x := a.vec()
				VBROADCASTSS(at(p, ldp, ldp3, i, 0), x)
				for j := range width {
					VFMADD231PS(x, y[j], acc[i*width+j])
				}
			}
		}
		ADDQ(U8(sliceHeader), rows)
		ADDQ(U8(4), p)
		DECQ(n)
		JNZ(LabelRef(label + "_token"))
		ldo, ldo3 = param("ldo"), GP64()
		LEAQ(Mem{Base: ldo, Index: ldo, Scale: 2}, ldo3)
		for i := range nq {
			for j := range width {
				VMOVUPS(acc[i*width+j], at(o, ldo, ldo3, i, j*step))
			}
		}
		ADDQ(U32(width*step), o)
		ADDQ(U32(width*step), off)
	}
	for i, width := range a.widths[nq] {
		label := fmt.Sprintf("columns%d", width*a.lanes)
		next := "tail"
		if i+1 < len(a.widths[nq]) {
			next = fmt.Sprintf("columns%d", a.widths[nq][i+1]*a.lanes)
		}
		Label(label)
		CMPQ(left, U32(width*a.lanes))
		JB(LabelRef(next))
		block(fmt.Sprintf("c%d", width*a.lanes), width, nil)
		SUBQ(U32(width*a.lanes), left)
		JMP(LabelRef(label))
	}
	Label("tail")
	TESTQ(left, left)
	JZ(LabelRef("done"))
	block("t", 1, a.mask(left))
	Label("done")
	VZEROUPPER()
	RET()
}

// softmax: one tile of the online softmax. See exp2 in package cpu for the
// constants.
func softmax() {
	TEXT("softmaxAVX2", 4, "func(s *float32, lds, nq, n int, m, l, corr *float32)")
	Pragma("noescape")
	Doc("softmaxAVX2 takes nq rows of n scores, at least one row and a multiple of 8 scores, to powers of two below the running maximum.")

	constant := func(name string, bits uint32) reg.VecVirtual {
		m := GLOBL(name, 8|16)
		DATA(0, U32(bits))
		v := YMM()
		VBROADCASTSS(m, v)
		return v
	}
	f32 := func(name string, x float32) reg.VecVirtual { return constant(name, bits(x)) }
	low, bias := f32("exp2Low", -127), f32("exp2Round", 1.5*(1<<23))
	// The polynomial's constants stay in memory, sixteen registers being few.
	var coef [7]Mem
	for i, c := range []float32{1, 0.693147215, 0.2402265278, 0.05550310551, 0.009617692976, 0.001340664385, 0.0001559467702} {
		coef[i] = GLOBL(fmt.Sprintf("exp2c%d", i), 8|16)
		for j := range 8 {
			DATA(4*j, U32(bits(c)))
		}
	}
	expBias := GLOBL("exp2Exponent", 8|16)
	for j := range 8 {
		DATA(4*j, U32(127))
	}
	// exp2 of x, in place.
	exp2 := func(x reg.VecVirtual) {
		VMAXPS(x, low, x) // NaN stays
		r, f, y := YMM(), YMM(), YMM()
		VADDPS(bias, x, r)
		VSUBPS(bias, r, f)
		VSUBPS(f, x, f)
		VMOVUPS(coef[6], y)
		for i := 5; i >= 0; i-- {
			VFMADD213PS(coef[i], f, y)
		}
		VPADDD(expBias, r, r)
		VPSLLD(U8(23), r, r)
		VMULPS(r, y, x)
	}
	// everywhere folds a vector so that each element is the result for all.
	everywhere := func(v reg.VecVirtual, op func(a, b, c Op)) {
		x := YMM()
		VPERM2F128(U8(1), v, v, x)
		op(x, v, v)
		VSHUFPS(U8(0x4e), v, v, x)
		op(x, v, v)
		VSHUFPS(U8(0xb1), v, v, x)
		op(x, v, v)
	}

	s, lds, nq := param("s"), param("lds"), param("nq")
	end := param("n")
	SHLQ(U8(2), end)
	m, l, corr := param("m"), param("l"), param("corr")
	Label("row")
	old, top := YMM(), YMM()
	VBROADCASTSS(Mem{Base: m}, old)
	VMOVAPS(old, top)
	c := GP64()
	XORQ(c, c)
	Label("max")
	VMAXPS(Mem{Base: s, Index: c, Scale: 1}, top, top)
	ADDQ(U8(32), c)
	CMPQ(c, end)
	JB(LabelRef("max"))
	everywhere(top, func(a, b, c Op) { VMAXPS(a, b, c) })
	VMOVSS(top.AsX(), Mem{Base: m})
	VSUBPS(top, old, old)
	exp2(old) // what earlier sums shrink by
	VMOVSS(old.AsX(), Mem{Base: corr})

	sum := YMM()
	VXORPS(sum, sum, sum)
	XORQ(c, c)
	Label("exp")
	x := YMM()
	VMOVUPS(Mem{Base: s, Index: c, Scale: 1}, x)
	VSUBPS(top, x, x)
	exp2(x)
	VMOVUPS(x, Mem{Base: s, Index: c, Scale: 1})
	VADDPS(x, sum, sum)
	ADDQ(U8(32), c)
	CMPQ(c, end)
	JB(LabelRef("exp"))
	everywhere(sum, func(a, b, c Op) { VADDPS(a, b, c) })
	// l·corr + sum
	VFMADD231SS(Mem{Base: l}, old.AsX(), sum.AsX())
	VMOVSS(sum.AsX(), Mem{Base: l})

	ADDQ(lds, s)
	ADDQ(U8(4), m)
	ADDQ(U8(4), l)
	ADDQ(U8(4), corr)
	DECQ(nq)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}
