package model

import "golang.org/x/sys/cpu"

var hasFMA = cpu.X86.HasAVX2 && cpu.X86.HasFMA

//go:noescape
func mul1FMA(k int, x, b, y *float32)

//go:noescape
func mul4FMA(k int, x *float32, ldx int, b, y *float32, ldy int)

func mul1(k int, x, b, y []float32) {
	if !hasFMA {
		mulPortable(k, x, b, y)
		return
	}
	mul1FMA(k, &x[0], &b[0], &y[0])
}

func mul4(k int, x []float32, ldx int, b, y []float32, ldy int) {
	if !hasFMA {
		for r := range 4 {
			mulPortable(k, x[r*ldx:], b, y[r*ldy:])
		}
		return
	}
	mul4FMA(k, &x[0], ldx, &b[0], &y[0], ldy)
}
