package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// reader decodes a GGUF file by the specification alone, sharing nothing with
// the encoder.
type reader struct {
	t *testing.T
	b []byte
	i int
}

func (r *reader) take(n int) []byte {
	r.t.Helper()
	if n < 0 || r.i+n > len(r.b) {
		r.t.Fatalf("%d bytes wanted at offset %d of %d", n, r.i, len(r.b))
	}
	r.i += n
	return r.b[r.i-n : r.i]
}
func (r *reader) u32() uint32    { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64    { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) string() string { return string(r.take(int(r.u64()))) }

func (r *reader) value(kind uint32) any {
	switch kind {
	case 4:
		return r.u32()
	case 5:
		return int32(r.u32())
	case 6:
		return math.Float32frombits(r.u32())
	case 7:
		return r.take(1)[0] == 1
	case 8:
		return r.string()
	case 9:
		of, n := r.u32(), r.u64()
		list := make([]any, n)
		for i := range list {
			list[i] = r.value(of)
		}
		return list
	}
	r.t.Fatalf("value type %d at offset %d", kind, r.i)
	return nil
}

type matrix struct {
	in, rows int
	data     []float32
}

func decode(t *testing.T, b []byte) (map[string]any, map[string]matrix) {
	t.Helper()
	r := &reader{t: t, b: b}
	if got := string(r.take(4)); got != "GGUF" {
		t.Fatalf("magic %q", got)
	}
	if got := r.u32(); got != 3 {
		t.Fatalf("version %d", got)
	}
	nTensors, nMeta := int(r.u64()), int(r.u64())
	meta := map[string]any{}
	for range nMeta {
		key := r.string()
		if _, twice := meta[key]; twice {
			t.Errorf("key %s twice", key)
		}
		meta[key] = r.value(r.u32())
	}
	type entry struct {
		name     string
		in, rows int
		offset   uint64
	}
	var index []entry
	for range nTensors {
		e := entry{name: r.string(), rows: 1}
		dims := r.u32()
		e.in = int(r.u64())
		for range dims - 1 {
			e.rows *= int(r.u64())
		}
		if kind := r.u32(); kind != 0 {
			t.Errorf("%s has type %d, want 0 (F32)", e.name, kind)
		}
		e.offset = r.u64()
		index = append(index, e)
	}
	start := (r.i + 31) / 32 * 32
	tensors := map[string]matrix{}
	for _, e := range index {
		if e.offset%32 != 0 {
			t.Errorf("%s at offset %d, not a multiple of 32", e.name, e.offset)
		}
		r.i = start + int(e.offset)
		m := matrix{in: e.in, rows: e.rows, data: make([]float32, e.in*e.rows)}
		for i := range m.data {
			m.data[i] = math.Float32frombits(r.u32())
		}
		tensors[e.name] = m
	}
	if end := (r.i + 31) / 32 * 32; end != len(b) {
		t.Errorf("the last tensor ends at %d, the file at %d", end, len(b))
	}
	return meta, tensors
}

func encode(t *testing.T, m Model) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFileHoldsTheModel(t *testing.T) {
	m := Model{Name: "odd", Seed: 7, Layers: 3, Width: 48, Heads: 6, KVHeads: 3, FFN: 40, Context: 4096}
	meta, tensors := decode(t, encode(t, m))

	for key, want := range map[string]any{
		"general.architecture":                   "llama",
		"general.name":                           "odd",
		"llama.block_count":                      uint32(3),
		"llama.context_length":                   uint32(4096),
		"llama.embedding_length":                 uint32(48),
		"llama.feed_forward_length":              uint32(40),
		"llama.attention.head_count":             uint32(6),
		"llama.attention.head_count_kv":          uint32(3),
		"llama.rope.dimension_count":             uint32(8),
		"tokenizer.ggml.eos_token_id":            uint32(2),
		"tokenizer.ggml.add_bos_token":           true,
		"llama.vocab_size":                       uint32(VocabularySize),
		"tokenizer.ggml.unknown_token_id":        uint32(0),
		"llama.rope.freq_base":                   float32(10000),
		"tokenizer.ggml.model":                   "llama",
		"general.file_type":                      uint32(0),
		"tokenizer.ggml.bos_token_id":            uint32(1),
		"tokenizer.ggml.pre":                     "default",
		"llama.attention.layer_norm_rms_epsilon": float32(1e-5),
	} {
		if got := meta[key]; got != want {
			t.Errorf("%s = %v (%T), want %v (%T)", key, got, got, want, want)
		}
	}
	for _, key := range []string{"tokens", "scores", "token_type"} {
		if got := len(meta["tokenizer.ggml."+key].([]any)); got != VocabularySize {
			t.Errorf("%d %s, want %d", got, key, VocabularySize)
		}
	}

	shapes := map[string][2]int{"token_embd.weight": {48, VocabularySize}, "output_norm.weight": {48, 1}, "output.weight": {48, VocabularySize}}
	for layer := range 3 {
		b := fmt.Sprintf("blk.%d.", layer)
		for name, shape := range map[string][2]int{
			"attn_norm": {48, 1}, "attn_q": {48, 48}, "attn_k": {48, 24}, "attn_v": {48, 24}, "attn_output": {48, 48},
			"ffn_norm": {48, 1}, "ffn_gate": {48, 40}, "ffn_up": {48, 40}, "ffn_down": {40, 48},
		} {
			shapes[b+name+".weight"] = shape
		}
	}
	if len(tensors) != len(shapes) {
		t.Errorf("%d tensors, want %d", len(tensors), len(shapes))
	}
	for name, shape := range shapes {
		got, ok := tensors[name]
		if !ok || got.in != shape[0] || got.rows != shape[1] {
			t.Errorf("%s is %d×%d (present: %v), want %d×%d", name, got.in, got.rows, ok, shape[0], shape[1])
			continue
		}
		if strings.Contains(name, "norm") {
			continue
		}
		var sum, squares float64
		for _, x := range got.data {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		if n := float64(len(got.data)); squares == 0 || math.Abs(sum/n) > 0.1 {
			t.Errorf("%s: mean %g, sum of squares %g: not random around zero", name, sum/n, squares)
		}
	}
}

func TestModelNeverSaysItsSilentTokens(t *testing.T) {
	const comma = VocabularySize - 1
	for _, c := range []struct {
		rawBytes bool
		silent   []int
		spoken   []int
	}{
		{false, []int{0, 1, 2, firstByte, firstByte + '\n', firstByte + 0x7f, firstByte + 0x80, firstByte + 0xff}, []int{firstByte + ' ', firstByte + 'A', firstByte + '~', firstByte + 256, comma}},
		{true, []int{0, 1, 2, firstByte, firstByte + '\n', firstByte + 0x7f}, []int{firstByte + 'A', firstByte + 0x80, firstByte + 0xff, comma}},
	} {
		m := Small()
		m.RawBytes = c.rawBytes
		_, tensors := decode(t, encode(t, m))
		out := tensors["output.weight"]
		zero := func(id int) bool {
			for _, x := range out.data[id*out.in : (id+1)*out.in] {
				if x != 0 {
					return false
				}
			}
			return true
		}
		for _, id := range c.silent {
			if !zero(id) {
				t.Errorf("raw bytes %v: token %d can be said", c.rawBytes, id)
			}
		}
		for _, id := range c.spoken {
			if zero(id) {
				t.Errorf("raw bytes %v: token %d cannot be said", c.rawBytes, id)
			}
		}
	}
}

func TestBytesDependOnTheModelAlone(t *testing.T) {
	sum := func(m Model) string { return fmt.Sprintf("%x", sha256.Sum256(encode(t, m)))[:16] }
	// A changed number here changes what every recorded measurement of the
	// model was about: give the new model another name.
	const want = "1c8ff2f663c2a5fa"
	if got := sum(Small()); got != want {
		t.Errorf("Small() hashes to %s, want %s", got, want)
	}
	other := Small()
	other.Seed = 2
	if sum(other) == want {
		t.Error("another seed gives the same file")
	}
}

func TestBadShapesWriteNothing(t *testing.T) {
	for _, c := range []struct {
		change func(*Model)
		want   string
	}{
		{func(m *Model) { m.Layers = 0 }, "must all be positive"},
		{func(m *Model) { m.Context = -1 }, "must all be positive"},
		{func(m *Model) { m.Width = 60 }, "not a multiple of 2·heads = 8"},
		{func(m *Model) { m.KVHeads = 3 }, "heads 4 is not a multiple of kv heads 3"},
	} {
		m := Small()
		c.change(&m)
		var b bytes.Buffer
		if err := m.Write(&b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", m, err, c.want)
		}
		if b.Len() > 0 {
			t.Errorf("%+v: %d bytes written", m, b.Len())
		}
	}
}

func TestWriteReportsAFullDisk(t *testing.T) {
	full := errors.New("disk full")
	if err := Small().Write(failing{full}); !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
