package schema

import "sort"

// presets are geometries of known models, unsharded. ActiveWeightBytes is
// computed from the checkpoints' own configurations in the format in which they
// are published (Kimi K2.6: routed experts in INT4 with a scale for each 32
// weights, the rest in BF16; DeepSeek-V3: FP8; gpt-oss: experts in MXFP4): all
// weights that one token passes through, without the input embedding.
// ContextLength is left out where a model is commonly run beyond its
// configuration. The tiny models are the embedded server's.
var presets = map[string]Model{
	"kimi-k2.6": {Name: "Kimi K2.6", Heads: 64, Layers: Layers{Full: 61}, KV: KV{MLA: &MLA{Rank: 512, Rope: 64}}, DType: "bf16",
		ContextLength: 262144, ActiveWeightBytes: 33.0e9},
	"dsv3": {Name: "DeepSeek-V3", Heads: 128, Layers: Layers{Full: 61}, KV: KV{MLA: &MLA{Rank: 512, Rope: 64}}, DType: "bf16",
		ContextLength: 163840, ActiveWeightBytes: 37.4e9},
	"llama3-8b": {Name: "Llama 3 8B", Heads: 32, Layers: Layers{Full: 32}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16",
		ActiveWeightBytes: 15.0e9},
	"llama3-70b": {Name: "Llama 3 70B", Heads: 64, Layers: Layers{Full: 80}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16",
		ActiveWeightBytes: 139.0e9},
	"qwen3-8b": {Name: "Qwen3-8B", Heads: 32, Layers: Layers{Full: 36}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16",
		ActiveWeightBytes: 15.1e9},
	"qwen3-30b-a3b": {Name: "Qwen3-30B-A3B", Heads: 32, Layers: Layers{Full: 48}, KV: KV{GQA: &GQA{Heads: 4, HeadDim: 128}}, DType: "bf16",
		ActiveWeightBytes: 6.1e9},
	"gpt-oss-20b": {Name: "gpt-oss-20b", Heads: 64, Layers: Layers{Full: 12, Window: &Window{Count: 12, Tokens: 128}}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 64}}, DType: "bf16",
		ContextLength: 131072, ActiveWeightBytes: 3.7e9},
	"gpt-oss-120b": {Name: "gpt-oss-120b", Heads: 64, Layers: Layers{Full: 18, Window: &Window{Count: 18, Tokens: 128}}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 64}}, DType: "bf16",
		ContextLength: 131072, ActiveWeightBytes: 5.0e9},
	"tiny-gqa": {Name: "tiny-gqa", Heads: 8, Layers: Layers{Full: 2}, KV: KV{GQA: &GQA{Heads: 2, HeadDim: 64}}, DType: "f32"},
	"tiny-mla": {Name: "tiny-mla", Heads: 8, Layers: Layers{Full: 2}, KV: KV{MLA: &MLA{Rank: 64, Rope: 16}}, DType: "f32"},
}

// Preset is a known model's geometry by its name in the language. Every call
// returns its own copy.
func Preset(name string) (Model, bool) {
	m, ok := presets[name]
	m.Preset = name
	if m.Layers.Window != nil {
		w := *m.Layers.Window
		m.Layers.Window = &w
	}
	if m.KV.MLA != nil {
		k := *m.KV.MLA
		m.KV.MLA = &k
	}
	if m.KV.GQA != nil {
		k := *m.KV.GQA
		m.KV.GQA = &k
	}
	return m, ok
}

// Presets lists the known models, sorted.
func Presets() []string {
	var names []string
	for n := range presets {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}
