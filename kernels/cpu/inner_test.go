package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestExp2(t *testing.T) {
	check := func(x, got float32) {
		t.Helper()
		want := math.Exp2(float64(x))
		switch {
		case x <= -127 && got != 0:
			t.Errorf("exp2(%g) = %g, want 0", x, got)
		case x > -126 && math.Abs(float64(got)-want) > 1.5e-7*want:
			t.Errorf("exp2(%g) = %g, want %g: relative error %.3g", x, got, want, math.Abs(float64(got)-want)/want)
		}
	}
	var xs []float32
	for x := float32(-130); x <= 0; x += 1.0 / 512 {
		xs = append(xs, x, math.Nextafter32(x, 1), x+1.0/1531)
	}
	xs = append(xs, 0, -0.5, -1, -1e-9, -1e30, float32(math.Inf(-1)))
	xs = xs[:len(xs)/tokenStep*tokenStep]
	for _, p := range paths {
		s := append([]float32(nil), xs...)
		for i, x := range s {
			if x > 0 {
				s[i], xs[i] = 0, 0
			}
		}
		m, l, corr := []float32{0}, []float32{0}, []float32{0}
		p.softmax(s, len(s), 1, len(s), m, l, corr)
		for i, x := range xs {
			check(x, s[i])
		}
		if m[0] != 0 || corr[0] != 1 {
			t.Errorf("%s: maximum %g, correction %g, want 0 and 1", p.name, m[0], corr[0])
		}
	}
	if got := exp2(float32(math.NaN())); got == got {
		t.Errorf("exp2(NaN) = %g", got)
	}
	if exp2(0) != 1 {
		t.Errorf("exp2(0) = %g", exp2(0))
	}
}

func TestSoftmaxGoesOn(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range paths {
		for _, n := range []int{8, 16, 40, 128} {
			const nq, lds, tiles = 3, 131, 4
			m, l, corr := []float32{lowest, lowest, lowest}, make([]float32, nq), make([]float32, nq)
			var all [nq][]float64
			for range tiles {
				s := make([]float32, nq*lds)
				for i := range s {
					s[i] = float32(rng.NormFloat64() * 9)
				}
				s[1*lds] = negInf // one masked, and one row that sees nothing
				for c := range n {
					s[2*lds+c] = negInf
				}
				before, old := append([]float32(nil), s...), append([]float32(nil), m...)
				p.softmax(s, lds, nq, n, m, l, corr)
				for i := range nq {
					for c := range n {
						all[i] = append(all[i], float64(before[i*lds+c]))
						want := math.Exp2(float64(before[i*lds+c] - m[i]))
						if got := float64(s[i*lds+c]); math.Abs(got-want) > 2e-7*want+1e-38 {
							t.Fatalf("%s: weight %g, want %g", p.name, got, want)
						}
					}
					if want := math.Exp2(float64(old[i] - m[i])); math.Abs(float64(corr[i])-want) > 2e-7*want+1e-38 {
						t.Fatalf("%s: correction %g, want %g", p.name, corr[i], want)
					}
					for c := n; c < lds; c++ {
						if i*lds+c < len(s) && s[i*lds+c] != before[i*lds+c] {
							t.Fatalf("%s: wrote behind the row", p.name)
						}
					}
				}
			}
			for i := range nq {
				want := 0.0
				for _, x := range all[i] {
					want += math.Exp2(x - float64(m[i]))
				}
				if math.Abs(float64(l[i])-want) > 1e-6*want {
					t.Errorf("%s: row %d sums to %g, want %g", p.name, i, l[i], want)
				}
			}
		}
	}
}

func TestNaNScoresStay(t *testing.T) {
	for _, p := range paths {
		s := make([]float32, 16)
		s[3] = float32(math.NaN())
		m, l, corr := []float32{lowest}, []float32{0}, []float32{0}
		p.softmax(s, 16, 1, 16, m, l, corr)
		if l[0] == l[0] {
			t.Errorf("%s: a NaN score gave the sum %g", p.name, l[0])
		}
	}
}

// tile makes rows that end where memory that may be read ends.
func tile(t *testing.T, rng *rand.Rand, n, elems int) [][]float32 {
	rows := make([][]float32, n)
	for i := range rows {
		rows[i] = atEnd(t, elems)
		for c := range rows[i] {
			rows[i][c] = float32(rng.NormFloat64())
		}
	}
	return rows
}

func TestLoopsAgainstFloat64(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			for _, dim := range []int{1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 72, 96, 127, 128, 129, 192, 200, 255, 576} {
				const off = 5
				for nq := 1; nq <= 9; nq++ {
					n := tokenStep * (1 + nq%3)
					rows := tile(t, rng, n, off+dim)
					where := fmt.Sprintf("dim=%d nq=%d n=%d", dim, nq, n)

					ldq, lds := roundUp(dim, pad)+pad, n+3
					q, s := random(nq*ldq), random(nq*lds)
					for i := range nq {
						clear(q[i*ldq+dim : i*ldq+roundUp(dim, pad)])
					}
					before := append([]float32(nil), s...)
					p.scores(s, lds, q, ldq, nq, rows, off, dim)
					for i := range nq {
						for c := range lds {
							got := s[i*lds+c]
							if c >= n {
								if got != before[i*lds+c] {
									t.Fatalf("%s: scores wrote behind row %d", where, i)
								}
								continue
							}
							var want, size float64
							for e := range dim {
								x := float64(q[i*ldq+e]) * float64(rows[c][off+e])
								want, size = want+x, size+math.Abs(x)
							}
							if e := math.Abs(float64(got) - want); !(e <= 1e-6*size) {
								t.Fatalf("%s: score of row %d, token %d is %g, want %g", where, i, c, got, want)
							}
						}
					}

					m := 1 + nq*5%n // accum takes any number of tokens
					ldo := roundUp(dim, pad)
					o, w, corr := random(nq*ldo+7), random(nq*lds), random(nq)
					for _, f := range [][]float32{corr, nil} {
						before := append([]float32(nil), o...)
						p.accum(o, ldo, f, w, lds, nq, rows[:m], off, dim)
						for i := range nq {
							for c := range dim {
								want, size := 0.0, 0.0
								if f != nil {
									want = float64(f[i]) * float64(before[i*ldo+c])
									size = math.Abs(want)
								}
								for k := range m {
									x := float64(w[i*lds+k]) * float64(rows[k][off+c])
									want, size = want+x, size+math.Abs(x)
								}
								if e := math.Abs(float64(o[i*ldo+c]) - want); !(e <= 1e-6*size) {
									t.Fatalf("%s: sum of row %d, column %d over %d tokens is %g, want %g", where, i, c, m, o[i*ldo+c], want)
								}
							}
						}
						for c := nq * ldo; c < len(o); c++ {
							if o[c] != before[c] {
								t.Fatalf("%s: accum wrote behind the rows", where)
							}
						}
					}
				}
			}
		})
	}
}
