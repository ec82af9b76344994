// Package twopoint drives the embedded server: the sglang adapter with our own
// program as launch command. It adds no protocol of its own, so that a run of
// the quick start exercises the adapter that measures SGLang.
package twopoint

import (
	"twopoint/runner/engine"
	"twopoint/runner/engine/sglang"
	"twopoint/schema"
)

// Program is the first word of the launch command. It stands for our own
// executable: whoever launches replaces it with os.Executable on the machine
// where the server runs, so that plans do not depend on where the binary lies.
const Program = "twopoint"

// New returns the adapter.
func New() engine.Engine {
	return sglang.Engine{Dialect: &sglang.Dialect{
		Name: "twopoint",
		// A cumulative stream costs the client more with each token, on the cores that the server computes on.
		Launch:   []string{Program, "serve", "--incremental-streaming-output"},
		Negative: func(flag string) []string { return []string{flag + "=false"} },
		Vet: func(v schema.Variant) []engine.Problem {
			return engine.OnlyOne(v, "the embedded server runs on one machine's cores")
		},
	}}
}
