package schema

import "sort"

// presets are geometries of known models, unsharded, as the models' own
// configurations give them. What is not known for certain is left out (context
// limits, the weights that one token reads): a spec may add it. The tiny and
// small models are the embedded server's.
var presets = map[string]Model{
	"kimi-k2.6":     {Name: "Kimi K2.6", Heads: 64, Layers: Layers{Full: 61}, KV: KV{MLA: &MLA{Rank: 512, Rope: 64}}, DType: "bf16", ContextLength: 262144},
	"dsv3":          {Name: "DeepSeek-V3", Heads: 128, Layers: Layers{Full: 61}, KV: KV{MLA: &MLA{Rank: 512, Rope: 64}}, DType: "bf16"},
	"llama3-8b":     {Name: "Llama 3 8B", Heads: 32, Layers: Layers{Full: 32}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16"},
	"llama3-70b":    {Name: "Llama 3 70B", Heads: 64, Layers: Layers{Full: 80}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16"},
	"qwen3-8b":      {Name: "Qwen3-8B", Heads: 32, Layers: Layers{Full: 36}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 128}}, DType: "bf16"},
	"qwen3-30b-a3b": {Name: "Qwen3-30B-A3B", Heads: 32, Layers: Layers{Full: 48}, KV: KV{GQA: &GQA{Heads: 4, HeadDim: 128}}, DType: "bf16"},
	"gpt-oss-20b":   {Name: "gpt-oss-20b", Heads: 64, Layers: Layers{Full: 12, Window: &Window{Count: 12, Tokens: 128}}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 64}}, DType: "bf16"},
	"gpt-oss-120b":  {Name: "gpt-oss-120b", Heads: 64, Layers: Layers{Full: 18, Window: &Window{Count: 18, Tokens: 128}}, KV: KV{GQA: &GQA{Heads: 8, HeadDim: 64}}, DType: "bf16"},
	"small-gqa":     {Name: "small-gqa", Heads: 16, Layers: Layers{Full: 1}, KV: KV{GQA: &GQA{Heads: 2, HeadDim: 128}}, DType: "f32"},
	"tiny-gqa":      {Name: "tiny-gqa", Heads: 8, Layers: Layers{Full: 2}, KV: KV{GQA: &GQA{Heads: 2, HeadDim: 64}}, DType: "f32"},
	"tiny-mla":      {Name: "tiny-mla", Heads: 8, Layers: Layers{Full: 2}, KV: KV{MLA: &MLA{Rank: 64, Rope: 16}}, DType: "f32"},
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
