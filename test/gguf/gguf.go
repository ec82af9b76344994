// Package gguf writes small language models with random weights as GGUF
// files, so that tests and experiments can drive real inference servers
// without any download.
//
// In comes a Model: a seed and a shape. Out goes a GGUF version 3 file of the
// llama architecture in 32-bit floats, with a tokenizer of 288 tokens. The
// same Model gives the same bytes on every machine. The models are as fast or
// slow as their shape makes them and they say nothing sensible; nothing here
// trains, quantizes or reads a model.
//
// The container's layout (magic, version, counts, metadata, tensor index,
// aligned data) follows docs/gguf.md of ggml-org/ggml; the keys and tensor
// names are those that llama.cpp's src/llama-arch.cpp and
// src/models/llama.cpp ask for.
package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
)

const (
	magic     = "GGUF"
	version   = 3
	alignment = 32 // bytes; GGUF's default, so it needs no key
)

// Model is the shape of a random llama-architecture model. The zero value is
// not valid; Small is a place to start.
type Model struct {
	Name    string // general.name, shown by servers
	Seed    uint64 // the weights depend on this and the shape alone
	Layers  int
	Width   int // embedding length; a multiple of 2·Heads
	Heads   int // query heads; Width/Heads is the head dimension
	KVHeads int // key-value heads; divides Heads
	FFN     int // feed-forward length
	Context int // tokens that the model claims to have been trained for

	// RawBytes lets the model also say the 128 bytes that are not UTF-8 on
	// their own. Servers hold the text of such tokens back until a character
	// is complete, so several tokens may share one event of a stream. Without
	// it every token that the model says is one printable character.
	RawBytes bool
}

// Small is a model that answers within milliseconds on one CPU core:
// 2 layers, width 64, 4 query heads over 2 key-value heads, 65,536 tokens of
// context, about half a megabyte.
func Small() Model {
	return Model{Name: "twopoint-random", Seed: 1, Layers: 2, Width: 64, Heads: 4, KVHeads: 2, FFN: 128, Context: 65536}
}

// Write writes the model to w. It fails on a shape that no server could load,
// before anything is written, and when w does.
func (m Model) Write(w io.Writer) error {
	if err := m.check(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	e := &encoder{w: bufio.NewWriterSize(w, 1<<20)}
	meta, tensors := m.metadata(), m.tensors()

	e.bytes([]byte(magic))
	e.put(uint32(version))
	e.put(uint64(len(tensors)))
	e.put(uint64(len(meta)))
	for _, kv := range meta {
		e.string(kv.key)
		e.value(kv.value)
	}
	var offset uint64
	for _, t := range tensors {
		e.string(t.name)
		e.put(uint32(len(t.dims)))
		for _, d := range t.dims {
			e.put(uint64(d))
		}
		e.put(uint32(typeF32))
		e.put(offset)
		offset += aligned(4 * uint64(t.len()))
	}
	e.pad()
	rng := rand.New(rand.NewPCG(m.Seed, 0))
	for _, t := range tensors {
		e.weights(t, rng)
		e.pad()
	}
	if e.err == nil {
		e.err = e.w.Flush()
	}
	if e.err != nil {
		return fmt.Errorf("gguf: %w", e.err)
	}
	return nil
}

func (m Model) check() error {
	switch {
	case m.Layers < 1 || m.Width < 1 || m.Heads < 1 || m.KVHeads < 1 || m.FFN < 1 || m.Context < 1:
		return fmt.Errorf("layers %d, width %d, heads %d, kv heads %d, ffn %d and context %d must all be positive",
			m.Layers, m.Width, m.Heads, m.KVHeads, m.FFN, m.Context)
	case m.Width%(2*m.Heads) != 0:
		return fmt.Errorf("width %d is not a multiple of 2·heads = %d: rotary embedding needs an even head dimension", m.Width, 2*m.Heads)
	case m.Heads%m.KVHeads != 0:
		return fmt.Errorf("heads %d is not a multiple of kv heads %d", m.Heads, m.KVHeads)
	}
	return nil
}

// keyValue is one metadata entry. The value's Go type is its GGUF type.
type keyValue struct {
	key   string
	value any
}

func (m Model) metadata() []keyValue {
	v := vocabulary()
	return []keyValue{
		{"general.architecture", "llama"},
		{"general.name", m.Name},
		{"general.file_type", uint32(0)}, // all F32
		{"llama.block_count", uint32(m.Layers)},
		{"llama.context_length", uint32(m.Context)},
		{"llama.embedding_length", uint32(m.Width)},
		{"llama.feed_forward_length", uint32(m.FFN)},
		{"llama.attention.head_count", uint32(m.Heads)},
		{"llama.attention.head_count_kv", uint32(m.KVHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(m.Width / m.Heads)},
		{"llama.rope.freq_base", float32(10000)},
		{"llama.vocab_size", uint32(len(v.text))},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.pre", "default"},
		{"tokenizer.ggml.tokens", v.text},
		{"tokenizer.ggml.scores", v.score},
		{"tokenizer.ggml.token_type", v.kind},
		{"tokenizer.ggml.unknown_token_id", uint32(unknownID)},
		{"tokenizer.ggml.bos_token_id", uint32(beginID)},
		{"tokenizer.ggml.eos_token_id", uint32(endID)},
		{"tokenizer.ggml.add_bos_token", true},
	}
}

// tensor is one weight matrix; dims are in GGUF's order, the contiguous one
// first. Every dims[0] values are one row, and fill gives the half-width of the
// uniform distribution of row i, or a constant.
type tensor struct {
	name string
	dims []int
	fill func(row int) (halfWidth, constant float32)
}

func (t tensor) len() int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

func (m Model) tensors() []tensor {
	kv := m.Width / m.Heads * m.KVHeads
	voc := vocabulary()
	norm := func(name string) tensor {
		return tensor{name, []int{m.Width}, func(int) (float32, float32) { return 0, 1 }}
	}
	// Variance 1/in keeps activations near one through any number of layers.
	matrix := func(name string, in, out int) tensor {
		h := float32(math.Sqrt(3 / float64(in)))
		return tensor{name, []int{in, out}, func(int) (float32, float32) { return h, 0 }}
	}
	embedding := tensor{"token_embd.weight", []int{m.Width, len(voc.text)}, func(int) (float32, float32) { return 1, 0 }}
	output := matrix("output.weight", m.Width, len(voc.text))
	spoken := output.fill
	output.fill = func(row int) (float32, float32) {
		if voc.silent(row, m.RawBytes) {
			return 0, 0 // a logit of zero is never the largest of many random ones
		}
		return spoken(row)
	}

	ts := []tensor{embedding}
	for i := range m.Layers {
		b := fmt.Sprintf("blk.%d.", i)
		ts = append(ts,
			norm(b+"attn_norm.weight"),
			matrix(b+"attn_q.weight", m.Width, m.Width),
			matrix(b+"attn_k.weight", m.Width, kv),
			matrix(b+"attn_v.weight", m.Width, kv),
			matrix(b+"attn_output.weight", m.Width, m.Width),
			norm(b+"ffn_norm.weight"),
			matrix(b+"ffn_gate.weight", m.Width, m.FFN),
			matrix(b+"ffn_up.weight", m.Width, m.FFN),
			matrix(b+"ffn_down.weight", m.FFN, m.Width),
		)
	}
	return append(ts, norm("output_norm.weight"), output)
}

// GGUF's numbers for value types (gguf_type in ggml's gguf.h); typeF32 is
// ggml_type's number for a 32-bit float tensor.
const (
	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9

	typeF32 = 0
)

// encoder writes little-endian values and keeps the first error.
type encoder struct {
	w   *bufio.Writer
	n   uint64
	err error
}

func (e *encoder) bytes(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
		e.n += uint64(len(b))
	}
}

// put writes a number or a slice of numbers.
func (e *encoder) put(v any) {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if e.err == nil {
		e.err = err
	}
	e.bytes(b)
}

func (e *encoder) string(s string) {
	e.put(uint64(len(s)))
	e.bytes([]byte(s))
}

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case uint32:
		e.put(uint32(typeUint32))
		e.put(v)
	case float32:
		e.put(uint32(typeFloat32))
		e.put(v)
	case bool:
		e.put(uint32(typeBool))
		e.put(v)
	case string:
		e.put(uint32(typeString))
		e.string(v)
	case []string:
		e.array(typeString, len(v))
		for _, s := range v {
			e.string(s)
		}
	case []float32:
		e.array(typeFloat32, len(v))
		e.put(v)
	case []int32:
		e.array(typeInt32, len(v))
		e.put(v)
	default:
		e.err = fmt.Errorf("no GGUF type for a %T", v)
	}
}

func (e *encoder) array(of uint32, n int) {
	e.put(uint32(typeArray))
	e.put(of)
	e.put(uint64(n))
}

func (e *encoder) pad() { e.bytes(make([]byte, aligned(e.n)-e.n)) }

func aligned(n uint64) uint64 { return (n + alignment - 1) / alignment * alignment }

// weights draws from a uniform distribution, since it needs no function whose
// last bit differs between machines.
func (e *encoder) weights(t tensor, rng *rand.Rand) {
	row := make([]float32, t.dims[0])
	for i := range t.len() / len(row) {
		half, constant := t.fill(i)
		for j := range row {
			row[j] = constant
			if half != 0 {
				row[j] = half * (2*rng.Float32() - 1)
			}
		}
		e.put(row)
	}
}
