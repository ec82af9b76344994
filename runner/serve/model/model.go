// Package model is the transformer that the embedded server computes: weights
// from a seed, and one forward pass over a ragged batch of token runs. Tokens
// and page tables come in, KV rows are written into the caller's pages, and
// logits come out. Attention is done by a kernel of package kernels; the package
// never samples, schedules, or owns a page.
//
// The weights are random, and shaped so that a wrong read of the cache shows in
// the output: scores spread enough that some tokens count far more than others,
// and attention's output is normalised before it joins the residual stream, so
// that one row among thousands still moves the logits.
package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"twopoint/kernels"
)

// Config is a model's geometry. All counts are elements.
type Config struct {
	Name   string
	Layers int
	Width  int // residual stream
	Hidden int // inner width of the MLP
	Vocab  int
	Rope   int // rotated elements at the end of each key row; even
	Shape  kernels.Shape
}

var presets = []Config{
	{
		Name: "tiny-gqa", Layers: 2, Width: 128, Hidden: 256, Vocab: 512, Rope: 64,
		Shape: kernels.Shape{Heads: 8, KVHeads: 2, KDim: 64, VDim: 64},
	},
	{
		Name: "tiny-mla", Layers: 2, Width: 128, Hidden: 256, Vocab: 512, Rope: 16,
		Shape: kernels.Shape{Heads: 8, KVHeads: 1, KDim: 80, VDim: 64, Latent: true},
	},
	{ // attention that is worth a second core at a few thousand tokens
		Name: "small-gqa", Layers: 1, Width: 128, Hidden: 256, Vocab: 512, Rope: 128,
		Shape: kernels.Shape{Heads: 16, KVHeads: 2, KDim: 128, VDim: 128},
	},
}

// Preset returns the named geometry. The error lists the names there are.
func Preset(name string) (Config, error) {
	i := slices.IndexFunc(presets, func(c Config) bool { return c.Name == name })
	if i < 0 {
		var names []string
		for _, c := range presets {
			names = append(names, c.Name)
		}
		return Config{}, fmt.Errorf("model %q not found; there are %s", name, strings.Join(names, ", "))
	}
	return presets[i], nil
}

// KVTokenBytes is the size of one token's KV rows in all layers.
func (c Config) KVTokenBytes() int { return c.Layers * c.Shape.RowElems() * 4 }

// Gains that shape the random model. scoreGain is the standard deviation of
// attention scores after scaling; logitGain that of the logits.
const (
	scoreGain = 1.5
	logitGain = 8
)

type layer struct {
	query matrix // width → heads·KDim
	kv    matrix // width → RowElems
	out   matrix // heads·VDim → width
	up    matrix // width → hidden
	down  matrix // hidden → width
}

// Model is a set of weights. It is read-only after New and safe for concurrent
// use by several passes.
type Model struct {
	Config
	embed     []float32 // vocab × width
	layers    []layer
	head      matrix // width → vocab
	bias      []float32
	cos, sin  []float32 // positions × rope/2
	positions int
}

// New draws the weights of c from seed, for sequences of up to positions
// tokens. Tokens for which never reports true are never the most likely one.
func New(c Config, seed uint64, positions int, never func(token int32) bool) *Model {
	rng := rand.New(rand.NewPCG(seed, 0x74776f706f696e74))
	random := func(in, out int, gain float64) matrix {
		m := newMatrix(in, out)
		std := gain / math.Sqrt(float64(in))
		for k := range in {
			for j := range out {
				*m.at(k, j) = float32(rng.NormFloat64() * std)
			}
		}
		return m
	}
	m := &Model{Config: c, positions: positions}
	m.embed = make([]float32, c.Vocab*c.Width)
	for i := range m.embed {
		m.embed[i] = float32(rng.NormFloat64())
	}
	for range c.Layers {
		m.layers = append(m.layers, layer{
			query: random(c.Width, c.Shape.Heads*c.Shape.KDim, scoreGain),
			kv:    random(c.Width, c.Shape.RowElems(), 1),
			out:   random(c.Shape.Heads*c.Shape.VDim, c.Width, 1),
			up:    random(c.Width, c.Hidden, 1),
			down:  random(c.Hidden, c.Width, 1),
		})
	}
	m.head = random(c.Width, c.Vocab, logitGain)
	m.bias = make([]float32, c.Vocab)
	for t := range m.bias {
		if never(int32(t)) {
			m.bias[t] = -1e6
		}
	}
	half := c.Rope / 2
	m.cos, m.sin = make([]float32, positions*half), make([]float32, positions*half)
	for i := range half {
		freq := math.Pow(10000, -float64(i)/float64(half))
		for p := range positions {
			s, c := math.Sincos(float64(p) * freq)
			m.cos[p*half+i], m.sin[p*half+i] = float32(c), float32(s)
		}
	}
	return m
}

// normalise writes x scaled to a root mean square of 1 into y; x and y may be
// the same slice.
func normalise(y, x []float32) {
	var sum float32
	for _, v := range x {
		sum += v * v
	}
	scale := float32(1 / math.Sqrt(float64(sum)/float64(len(x))+1e-6))
	for i, v := range x {
		y[i] = v * scale
	}
}

// rotate applies the rotary embedding of position pos (RoFormer, Su et al.
// 2021, in the half-split form) to x, which has Rope elements.
func (m *Model) rotate(x []float32, pos int) {
	half := m.Rope / 2
	cos, sin := m.cos[pos*half:(pos+1)*half], m.sin[pos*half:(pos+1)*half]
	lo, hi := x[:half], x[half:2*half]
	for i := range lo {
		a, b := lo[i], hi[i]
		lo[i], hi[i] = a*cos[i]-b*sin[i], a*sin[i]+b*cos[i]
	}
}
