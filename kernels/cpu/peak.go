package cpu

import (
	"context"
	"fmt"
	"time"

	"twopoint/kernels"
)

// Peak is the best that the machine gave the inner loops of the path in use:
// what a roofline is drawn from.
type Peak struct {
	ReadBytesPerS float64 // reading memory, each element in one dot product
	FlopPerS      float64 // multiplications and additions on cached rows
}

// MeasurePeak measures with that many goroutines (0 means GOMAXPROCS), reading
// a buffer of that many bytes in all, which should be several times the
// last-level cache. It repeats each measurement for about the given time and
// keeps the fastest pass.
func MeasurePeak(ctx context.Context, threadCount int, bytes int, each time.Duration) (Peak, error) {
	const (
		rowElems = 1024
		tileSize = tokenStep * rowElems
		nq       = 4
	)
	n := threads(kernels.Options{Threads: threadCount})
	tiles := bytes / 4 / n / tileSize // of a goroutine
	if tiles < 1 {
		return Peak{}, fmt.Errorf("measure peak: %d bytes for %d threads: at least %d are needed", bytes, n, 4*tileSize*n)
	}
	in := path.Load()
	buf := make([]float32, n*tiles*tileSize)
	for i := range buf {
		buf[i] = 1 // a page that was never written is a page of zeroes, read from cache
	}
	read := func(i int) {
		q, s := make([]float32, rowElems), make([]float32, tokenStep)
		rows := make([][]float32, tokenStep)
		for share := buf[i*tiles*tileSize:][:tiles*tileSize]; len(share) > 0; share = share[tileSize:] {
			for r := range rows {
				rows[r] = share[r*rowElems:][:rowElems]
			}
			in.scores(s, tokenStep, q, rowElems, 1, rows, 0, rowElems)
		}
	}
	const repeats, dim = 2000, 64
	compute := func(int) {
		o, p := make([]float32, nq*dim), make([]float32, nq*tileMax)
		rows := make([][]float32, tileMax)
		for r := range rows {
			rows[r] = buf[r%16*dim:][:dim]
		}
		for range repeats {
			in.accum(o, dim, nil, p, tileMax, nq, rows, 0, dim)
		}
	}
	fastest := func(f func(int)) (time.Duration, error) {
		best := time.Duration(0)
		for begin := time.Now(); best == 0 || time.Since(begin) < each; {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			start := time.Now()
			if err := parallel(n, n, func(i int) error { f(i); return nil }); err != nil {
				return 0, err
			}
			if d := time.Since(start); best == 0 || d < best {
				best = d
			}
		}
		return max(best, 1), nil
	}
	var p Peak
	d, err := fastest(read)
	if err != nil {
		return p, fmt.Errorf("measure read peak: %w", err)
	}
	p.ReadBytesPerS = float64(4*len(buf)) / d.Seconds()
	if d, err = fastest(compute); err != nil {
		return p, fmt.Errorf("measure arithmetic peak: %w", err)
	}
	p.FlopPerS = float64(n) * repeats * 2 * nq * tileMax * dim / d.Seconds()
	return p, nil
}
