package main

import "math"

func bits(x float32) uint32 { return math.Float32bits(x) }
