// Package engines knows every engine adapter by the name that a spec uses. It
// is apart from package engine, which the adapters import.
package engines

import (
	"slices"

	"twopoint/runner/engine"
	"twopoint/runner/engine/llamacpp"
	"twopoint/runner/engine/ollama"
	"twopoint/runner/engine/openai"
	"twopoint/runner/engine/sglang"
	"twopoint/runner/engine/twopoint"
	"twopoint/runner/engine/vllm"
)

var all = []engine.Engine{llamacpp.Engine{}, ollama.Engine{}, openai.Engine{}, sglang.Engine{}, twopoint.New(), vllm.Engine{}}

// Lookup finds an engine by the language's field engine.
func Lookup(name string) (engine.Engine, bool) {
	i := slices.IndexFunc(all, func(e engine.Engine) bool { return e.Name() == name })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}
