package cpu

import "math"

// inner is one implementation of the three loops that all variants share. A
// tile is up to tileMax tokens; rows[t] is the stored row of token t.
type inner struct {
	name string

	// scores sets s[i·lds+t] to the dot product of q[i·ldq:][:dim] with
	// rows[t][off:][:dim], for nq query rows and every token of the tile, whose
	// number is a multiple of tokenStep. The rows of q end in zeros up to a
	// multiple of pad.
	scores func(s []float32, lds int, q []float32, ldq, nq int, rows [][]float32, off, dim int)

	// softmax goes one tile further in the online softmax of each of nq rows:
	// s holds scores in units of log 2 and receives 2^(s−m), m the running
	// maximum, l the running sum; corr receives the factor by which earlier
	// sums shrink. n is a multiple of tokenStep.
	softmax func(s []float32, lds, nq, n int, m, l, corr []float32)

	// accum sets o[i·ldo+c] to corr[i]·o[i·ldo+c] + Σ_t p[i·ldp+t]·rows[t][off+c]
	// for nq rows and c < dim; a nil corr starts from zero. It may write o up to
	// a multiple of pad.
	accum func(o []float32, ldo int, corr []float32, p []float32, ldp, nq int, rows [][]float32, off, dim int)
}

const (
	tokenStep = 8  // tokens that scores takes at once
	pad       = 16 // elements to which rows of scratch memory are filled up
)

// roundUp is the least multiple of m that is at least n.
func roundUp(n, m int) int { return (n + m - 1) / m * m }

// generic is the portable path. Two query rows against two or four tokens at a
// time keep several independent sums in registers and load each row once for
// both queries.
var generic = &inner{name: "generic", scores: scoresGeneric, softmax: softmaxGeneric, accum: accumGeneric}

func scoresGeneric(s []float32, lds int, q []float32, ldq, nq int, rows [][]float32, off, dim int) {
	i := 0
	for ; i+2 <= nq; i += 2 {
		q0, q1 := q[i*ldq:][:dim], q[(i+1)*ldq:][:dim]
		s0, s1 := s[i*lds:][:len(rows)], s[(i+1)*lds:][:len(rows)]
		for t := 0; t+2 <= len(rows); t += 2 {
			k0, k1 := rows[t][off:][:dim], rows[t+1][off:][:dim]
			var a00, a01, a10, a11 float32
			for c := range k0 {
				x0, x1, y0, y1 := q0[c], q1[c], k0[c], k1[c]
				a00 += x0 * y0
				a01 += x0 * y1
				a10 += x1 * y0
				a11 += x1 * y1
			}
			s0[t], s0[t+1], s1[t], s1[t+1] = a00, a01, a10, a11
		}
	}
	if i == nq {
		return
	}
	q0, s0 := q[i*ldq:][:dim], s[i*lds:][:len(rows)]
	for t := 0; t+4 <= len(rows); t += 4 {
		k0, k1, k2, k3 := rows[t][off:][:dim], rows[t+1][off:][:dim], rows[t+2][off:][:dim], rows[t+3][off:][:dim]
		var a0, a1, a2, a3 float32
		for c, x := range q0 {
			a0 += x * k0[c]
			a1 += x * k1[c]
			a2 += x * k2[c]
			a3 += x * k3[c]
		}
		s0[t], s0[t+1], s0[t+2], s0[t+3] = a0, a1, a2, a3
	}
}

func accumGeneric(o []float32, ldo int, corr []float32, p []float32, ldp, nq int, rows [][]float32, off, dim int) {
	for i := range nq {
		o := o[i*ldo:][:dim]
		if corr == nil {
			clear(o)
		} else if f := corr[i]; f != 1 {
			for c := range o {
				o[c] *= f
			}
		}
	}
	t := 0
	for ; t+4 <= len(rows); t += 4 {
		v0, v1, v2, v3 := rows[t][off:][:dim], rows[t+1][off:][:dim], rows[t+2][off:][:dim], rows[t+3][off:][:dim]
		i := 0
		for ; i+2 <= nq; i += 2 {
			o0, o1 := o[i*ldo:][:dim], o[(i+1)*ldo:][:dim]
			p0, p1 := p[i*ldp+t:][:4], p[(i+1)*ldp+t:][:4]
			a0, a1, a2, a3 := p0[0], p0[1], p0[2], p0[3]
			b0, b1, b2, b3 := p1[0], p1[1], p1[2], p1[3]
			for c := range o0 {
				x0, x1, x2, x3 := v0[c], v1[c], v2[c], v3[c]
				o0[c] += a0*x0 + a1*x1 + (a2*x2 + a3*x3)
				o1[c] += b0*x0 + b1*x1 + (b2*x2 + b3*x3)
			}
		}
		if i < nq {
			o0 := o[i*ldo:][:dim]
			a := p[i*ldp+t:][:4]
			a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
			for c := range o0 {
				o0[c] += a0*v0[c] + a1*v1[c] + (a2*v2[c] + a3*v3[c])
			}
		}
	}
	for ; t < len(rows); t++ {
		v := rows[t][off:][:dim]
		for i := range nq {
			o := o[i*ldo:][:dim]
			a := p[i*ldp+t]
			for c := range o {
				o[c] += a * v[c]
			}
		}
	}
}

func softmaxGeneric(s []float32, lds, nq, n int, m, l, corr []float32) {
	for i := range nq {
		row := s[i*lds:][:n]
		top := m[i]
		for _, x := range row {
			top = max(top, x)
		}
		f := exp2(m[i] - top)
		var a, b, c, d float32
		for t := 0; t+4 <= len(row); t += 4 {
			r := row[t:][:4]
			p0, p1, p2, p3 := exp2(r[0]-top), exp2(r[1]-top), exp2(r[2]-top), exp2(r[3]-top)
			r[0], r[1], r[2], r[3] = p0, p1, p2, p3
			a += p0
			b += p1
			c += p2
			d += p3
		}
		m[i], l[i], corr[i] = top, l[i]*f+((a+b)+(c+d)), f
	}
}

// Coefficients of 2^f on [−½, ½] by powers of f, a minimax fit of the relative
// error (below 3e-9 before rounding); every path evaluates the same polynomial.
const (
	exp2c1 = 0.693147215
	exp2c2 = 0.2402265278
	exp2c3 = 0.05550310551
	exp2c4 = 0.009617692976
	exp2c5 = 0.001340664385
	exp2c6 = 0.0001559467702

	// exp2Low is where results become exactly zero: the scale factor 2^n is
	// made by writing n+127 into the exponent, and 0 there is the number 0.
	exp2Low = -127

	// roundBias added to x leaves round(x) in the low bits of the sum.
	roundBias = 1.5 * (1 << 23)
)

// exp2 is 2^x for x ≤ 0, to a relative error of about 1e-7; 0 below −126.5.
// NaN stays NaN.
func exp2(x float32) float32 {
	if x < exp2Low {
		x = exp2Low
	}
	r := x + roundBias
	n := math.Float32bits(r)
	f := x - (r - roundBias)
	y := float32(exp2c6)
	y = y*f + exp2c5
	y = y*f + exp2c4
	y = y*f + exp2c3
	y = y*f + exp2c2
	y = y*f + exp2c1
	y = y*f + 1
	return y * math.Float32frombits((n+127)<<23)
}
