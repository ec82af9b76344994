package cpu

import "golang.org/x/sys/cpu"

//go:generate go -C asm run . -out ../inner_amd64.s -stubs ../inner_amd64.go -pkg cpu

// machinePaths are the vectorised paths that this processor and its operating
// system support, fastest first.
func machinePaths() []*inner {
	x := &cpu.X86
	var found []*inner
	if x.HasAVX512F && x.HasAVX2 && x.HasFMA && x.HasBMI2 {
		found = append(found, vectorised("avx512",
			scoresAsm{1: scores1AVX512, 2: scores2AVX512, 4: scores4AVX512},
			accumAsm{1: accum1AVX512, 2: accum2AVX512, 4: accum4AVX512}))
	}
	if x.HasAVX2 && x.HasFMA {
		found = append(found, vectorised("avx2",
			scoresAsm{1: scores1AVX2, 2: scores2AVX2, 4: scores4AVX2},
			accumAsm{1: accum1AVX2, 2: accum2AVX2, 4: accum4AVX2}))
	}
	return found
}

// The generated loops by the number of query rows that they take: 1, 2 and 4.
// Strides and offsets are in bytes.
type (
	scoresAsm [5]func(s *float32, lds int, q *float32, ldq int, rows *[]float32, n, off, dim int)
	accumAsm  [5]func(o *float32, ldo int, corr, p *float32, ldp int, rows *[]float32, n, off, dim int)
)

// rowsAtOnce is the largest of 1, 2 and 4 that is at most n.
func rowsAtOnce(n int) int {
	switch {
	case n >= 4:
		return 4
	case n >= 2:
		return 2
	}
	return 1
}

// vectorised wraps generated loops. The slice expressions check that what the
// loops will touch lies inside the slices.
func vectorised(name string, scores scoresAsm, accum accumAsm) *inner {
	return &inner{
		name: name,
		scores: func(s []float32, lds int, q []float32, ldq, nq int, rows [][]float32, off, dim int) {
			if nq == 0 || len(rows) == 0 {
				return
			}
			n := len(rows)
			_, _ = s[:(nq-1)*lds+n], q[:(nq-1)*ldq+roundUp(dim, pad)]
			for i := 0; i < nq; {
				k := rowsAtOnce(nq - i)
				scores[k](&s[i*lds], 4*lds, &q[i*ldq], 4*ldq, &rows[0], n, 4*off, dim)
				i += k
			}
		},
		softmax: func(s []float32, lds, nq, n int, m, l, corr []float32) {
			if nq == 0 || n == 0 {
				return
			}
			_, _, _, _ = s[:(nq-1)*lds+n], m[:nq], l[:nq], corr[:nq]
			softmaxAVX2(&s[0], 4*lds, nq, n, &m[0], &l[0], &corr[0])
		},
		accum: func(o []float32, ldo int, corr []float32, p []float32, ldp, nq int, rows [][]float32, off, dim int) {
			if nq == 0 || len(rows) == 0 || dim == 0 {
				return
			}
			n := len(rows)
			_, _ = o[:(nq-1)*ldo+roundUp(dim, pad)], p[:(nq-1)*ldp+n]
			for i := 0; i < nq; {
				k := rowsAtOnce(nq - i)
				var f *float32
				if corr != nil {
					f = &corr[i : i+k][0]
				}
				accum[k](&o[i*ldo], 4*ldo, f, &p[i*ldp], 4*ldp, &rows[0], n, 4*off, dim)
				i += k
			}
		},
	}
}
