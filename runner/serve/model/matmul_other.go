//go:build !amd64

package model

func mul1(k int, x, b, y []float32) { mulPortable(k, x, b, y) }

func mul4(k int, x []float32, ldx int, b, y []float32, ldy int) {
	for r := range 4 {
		mulPortable(k, x[r*ldx:], b, y[r*ldy:])
	}
}
