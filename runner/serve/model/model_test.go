package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"twopoint/kernels"
	"twopoint/kernels/cpu"
)

// store is a KV cache for one sequence whose pages lie in the order of a
// permutation.
func store(c Config, tokens, pageSize int, shuffled bool) (KV, []int32) {
	n := (tokens + pageSize - 1) / pageSize
	kv := KV{PageSize: pageSize}
	for range c.Layers {
		pages := make([][]float32, n)
		for i := range pages {
			pages[i] = make([]float32, pageSize*c.Shape.RowElems())
		}
		kv.Pages = append(kv.Pages, pages)
	}
	table := make([]int32, n)
	for i := range table {
		table[i] = int32(i)
	}
	if shuffled {
		rand.New(rand.NewPCG(3, 4)).Shuffle(n, func(i, j int) { table[i], table[j] = table[j], table[i] })
	}
	return kv, table
}

func attention(t testing.TB, kernel string, splits int) Attention {
	t.Helper()
	k, err := kernels.Lookup(kernel)
	if err != nil {
		t.Fatal(err)
	}
	return Attention{Kernel: k, Options: kernels.Options{Splits: splits, Threads: 2}}
}

func preset(t testing.TB, name string) *Model {
	t.Helper()
	c, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return New(c, 1, 8192, func(int32) bool { return false })
}

func tokens(n int) []int32 {
	rng := rand.New(rand.NewPCG(5, 6))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(511))
	}
	return out
}

// prefill computes the prompt in chunks and returns the last logits.
func prefill(t testing.TB, p *Pass, prompt []int32, kv KV, table []int32, chunk int) []float32 {
	t.Helper()
	at := attention(t, "prefill_tiled", 0)
	var logits []float32
	for lo := 0; lo < len(prompt); lo += chunk {
		hi := min(lo+chunk, len(prompt))
		var err error
		logits, err = p.Forward(t.Context(), []Run{{Tokens: prompt[lo:hi], Start: lo, Table: table, Logits: hi == len(prompt)}}, kv, at)
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Clone(logits)
}

func apart(a, b []float32) float64 {
	d := 0.0
	for i := range a {
		d = max(d, math.Abs(float64(a[i]-b[i])))
	}
	return d
}

// TestEveryTokenCounts changes one prompt token, and in another run zeroes one
// token's KV rows before a decode step: each must move the next logits by far
// more than rounding, or a kernel that skipped the row would go unseen.
func TestEveryTokenCounts(t *testing.T) {
	const moved = 1e-3
	for _, name := range []string{"tiny-gqa", "tiny-mla", "small-gqa"} {
		for _, n := range []int{512, 2048} {
			t.Run(fmt.Sprintf("model=%s/tokens=%d", name, n), func(t *testing.T) {
				m := preset(t, name)
				p := NewPass(m, 2, n)
				kv, table := store(m.Config, n+1, 16, true)
				prompt := tokens(n)
				want := prefill(t, p, prompt, kv, table, n)

				next := []Run{{Tokens: []int32{7}, Start: n, Table: table, Logits: true}}
				decode := attention(t, "split_grouped", 0)
				step := func() []float32 {
					logits, err := p.Forward(t.Context(), next, kv, decode)
					if err != nil {
						t.Fatal(err)
					}
					return slices.Clone(logits)
				}
				whole := step()
				least := math.Inf(1)
				elems := m.Shape.RowElems()
				for at := 0; at < n; at += n / 16 {
					saved := make([]float32, 0, elems*m.Layers)
					for _, pages := range kv.Pages {
						row := pages[table[at/16]][at%16*elems:][:elems]
						saved = append(saved, row...)
						clear(row)
					}
					d := apart(whole, step())
					least = min(least, d)
					if d < moved {
						t.Errorf("zeroing the rows of token %d moves the logits by %.1e", at, d)
					}
					for l, pages := range kv.Pages {
						copy(pages[table[at/16]][at%16*elems:], saved[l*elems:(l+1)*elems])
					}
				}
				t.Logf("least movement by a zeroed row: %.1e", least)
				for _, at := range []int{0, n / 2, n - 1} {
					changed := slices.Clone(prompt)
					changed[at] = (changed[at] + 1) % 511
					if d := apart(want, prefill(t, p, changed, kv, table, n)); d < moved {
						t.Errorf("changing token %d moves the logits by %.1e", at, d)
					}
				}
			})
		}
	}
}

// TestRouteDoesNotMatter computes one sequence by every decode kernel, page
// size, order of pages, number of splits and chunk size: logits agree far
// within the distance between the first and the second choice.
func TestRouteDoesNotMatter(t *testing.T) {
	const n, steps = 300, 24
	for _, name := range []string{"tiny-gqa", "tiny-mla", "small-gqa"} {
		m := preset(t, name)
		p := NewPass(m, 2, n)
		prompt := tokens(n)
		generate := func(kernel string, splits, pageSize, chunk int, shuffled bool) (out []int32, all []float32) {
			kv, table := store(m.Config, n+steps, pageSize, shuffled)
			logits := prefill(t, p, prompt, kv, table, chunk)
			for i := range steps {
				best := int32(0)
				for j, v := range logits {
					if v > logits[best] {
						best = int32(j)
					}
				}
				out, all = append(out, best), append(all, logits...)
				var err error
				logits, err = p.Forward(t.Context(), []Run{{Tokens: []int32{best}, Start: n + i, Table: table, Logits: true}}, kv, attention(t, kernel, splits))
				if err != nil {
					t.Fatal(err)
				}
			}
			return out, all
		}
		want, logits := generate("serial_perhead", 0, 1, n, false)
		for _, path := range cpu.Paths() {
			if err := cpu.ForcePath(path); err != nil {
				t.Fatal(err)
			}
			if got, _ := generate("split_grouped", 0, 16, n, true); !slices.Equal(got, want) {
				t.Errorf("%s by the %s loops: tokens %v, want %v", name, path, got, want)
			}
		}
		cpu.ForcePath("")
		for _, kernel := range []string{"serial_perhead", "split_grouped"} {
			for _, splits := range []int{0, 1, 3} {
				for _, pageSize := range []int{1, 16, 64} {
					for _, chunk := range []int{n, 77} {
						got, other := generate(kernel, splits, pageSize, chunk, pageSize != 16)
						if !slices.Equal(got, want) {
							t.Errorf("%s %s splits %d page %d chunk %d: tokens %v, want %v", name, kernel, splits, pageSize, chunk, got, want)
						} else if d := apart(logits, other); d > 1e-3 {
							t.Errorf("%s %s splits %d page %d chunk %d: logits differ by %.1e", name, kernel, splits, pageSize, chunk, d)
						}
					}
				}
			}
		}
	}
}

func TestBatchGivesTheSameBits(t *testing.T) {
	m := preset(t, "tiny-gqa")
	p := NewPass(m, 2, 64)
	at := attention(t, "split_grouped", 1)
	kv, table := store(m.Config, 400, 1, false)
	var batch []Run
	var alone []float32
	for i := range 7 {
		run := Run{Tokens: tokens(100)[i*3 : i*3+1+i*7], Table: table[i*50 : (i+1)*50], Logits: true}
		logits, err := p.Forward(t.Context(), []Run{run}, kv, at)
		if err != nil {
			t.Fatal(err)
		}
		alone, batch = append(alone, logits...), append(batch, run)
	}
	together, err := p.Forward(t.Context(), batch, kv, at)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(alone, together) {
		t.Errorf("logits of a batch differ from those of its sequences alone by %.1e", apart(alone, together))
	}
}

func TestMulAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 3, 4, 9} {
		m := newMatrix(37, 48)
		x, y := make([]float32, n*37), make([]float32, n*48)
		for k := range 37 {
			for c := range 48 {
				*m.at(k, c) = float32(rng.NormFloat64())
			}
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		m.mul(y, x, n)
		portable := make([]float32, panel)
		for r := range n {
			for c := range 48 {
				want := 0.0
				for k := range 37 {
					want += float64(x[r*37+k]) * float64(*m.at(k, c))
				}
				if math.Abs(want-float64(y[r*48+c])) > 1e-4 {
					t.Errorf("rows %d: element (%d, %d) is %v, want %v", n, r, c, y[r*48+c], want)
				}
				if c%panel == 0 {
					mulPortable(37, x[r*37:], m.data[c*37:], portable)
				}
				if math.Abs(want-float64(portable[c%panel])) > 1e-4 {
					t.Errorf("portable loop, rows %d: element (%d, %d) is %v, want %v", n, r, c, portable[c%panel], want)
				}
			}
		}
	}
}

func TestForwardRefusesWhatItCannotIndex(t *testing.T) {
	m := preset(t, "tiny-mla")
	p := NewPass(m, 1, 4)
	kv, table := store(m.Config, 8, 4, false)
	for name, run := range map[string]Run{
		"negative token":  {Tokens: []int32{-1}, Table: table},
		"large token":     {Tokens: []int32{512}, Table: table},
		"past the table":  {Tokens: []int32{1}, Start: 8, Table: table},
		"past the limits": {Tokens: []int32{1}, Start: 8192, Table: table},
	} {
		if _, err := p.Forward(t.Context(), []Run{run}, kv, attention(t, "serial_perhead", 0)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Preset("huge"); err == nil {
		t.Error("an unknown preset: no error")
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"tiny-gqa", "tiny-mla", "small-gqa"} {
		m := preset(b, name)
		for _, kernel := range []string{"serial_perhead", "split_grouped"} {
			for _, n := range []int{512, 4096} {
				b.Run(fmt.Sprintf("model=%s/kernel=%s/ctx=%d", name, kernel, n), func(b *testing.B) {
					p := NewPass(m, 2, 1)
					kv, table := store(m.Config, n+1, 1, false)
					for _, pages := range kv.Pages {
						for _, page := range pages {
							for i := range page {
								page[i] = float32(i%7) - 3
							}
						}
					}
					at := attention(b, kernel, 0)
					run := []Run{{Tokens: []int32{9}, Start: n, Table: table, Logits: true}}
					b.ReportAllocs()
					for b.Loop() {
						if _, err := p.Forward(b.Context(), run, kv, at); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(n*m.KVTokenBytes())*float64(b.N)/b.Elapsed().Seconds(), "B/s")
				})
			}
		}
	}
}
