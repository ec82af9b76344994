package engines

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"twopoint/runner/engine"
	"twopoint/schema"
)

var update = flag.Bool("update", false, "write the golden files anew")

type args = map[string]any

var cases = []struct {
	name    string
	engines []string // nil: all
	variant schema.Variant
}{
	{"bare", nil, schema.Variant{}},
	{"model", nil, schema.Variant{ModelPath: "/models/m"}},
	{"full", nil, schema.Variant{
		ModelPath: "/models/m", ServedName: "m", ContextLength: 200000, TP: 8, DP: 2, PP: 1, DCP: 2,
		Args: args{"attention-backend": "triton", "page-size": json.Number("1"), "mem-fraction-static": json.Number("0.94"), "trust-remote-code": true},
	}},
	{"command", nil, schema.Variant{
		ModelPath: "m", Command: []string{"{files}/wrap", "--port", "{port}"}, Args: args{"x": []any{"a", json.Number("1e3")}},
	}},
	{"switched off", nil, schema.Variant{ModelPath: "m", Args: args{"warmup": false, "nosuch": false}}},
	{"off by value", []string{"llamacpp"}, schema.Variant{ModelPath: "m", Args: args{"flash-attn": false, "-fit": false}}},
	{"owned", nil, schema.Variant{ModelPath: "m", Args: args{
		"port": json.Number("1"), "host": "h", "--model-path": "x", "-m": "x", "-c": json.Number("2"), "ctx_size": json.Number("2"),
		"tensor-parallel-size": json.Number("2"), "--tp": json.Number("2"), "context-length": json.Number("5"),
	}}},
	{"slots", []string{"llamacpp"}, schema.Variant{ModelPath: "m", ContextLength: 4096, Args: args{"parallel": json.Number("4")}}},
	{"slots, short", []string{"llamacpp"}, schema.Variant{ModelPath: "m", ContextLength: 4096, Args: args{"-np": json.Number("4"), "kv-unified": true}}},
	{"never flushed", []string{"llamacpp", "vllm"}, schema.Variant{ModelPath: "m", Flush: "never"}},
	{"own save path", []string{"llamacpp"}, schema.Variant{ModelPath: "m", Args: args{"slot-save-path": "/tmp"}}},
	{"own report", []string{"vllm"}, schema.Variant{ModelPath: "m", Args: args{"enable-prompt-tokens-details": false, "-tp": json.Number("2")}}},
	{"own report, allowed", []string{"vllm"}, schema.Variant{ModelPath: "m", Args: args{"enable-prompt-tokens-details": false, "speculative-config": args{"method": "mtp", "num_speculative_tokens": json.Number("3")}}}},
	{"one model", []string{"ollama"}, schema.Variant{ModelPath: "llama3.1:8b", ContextLength: 8192}},
	{"server elsewhere", nil, schema.Variant{URL: "http://box:8000"}},
	{"fixed port", []string{"openai"}, schema.Variant{Command: []string{"serve"}, Port: 8000}},
	{"no port", []string{"openai"}, schema.Variant{Command: []string{"serve"}}},
	{"port in args", []string{"openai"}, schema.Variant{Command: []string{"serve"}, Args: args{"port": "{port}", "prefix-caching": false}}},
	{"placeholders", nil, schema.Variant{ModelPath: "{model}", Command: []string{"run", "{port}"}, Args: args{"f": "{files}/{what}"}, Setup: "cd {workdir}"}},
}

// TestCommandLines holds every engine's command lines and refusals against
// golden files.
func TestCommandLines(t *testing.T) {
	for _, e := range all {
		name := e.Name()
		if found, ok := Lookup(name); !ok || found.Name() != name {
			t.Fatalf("engine %q", name)
		}
		var b bytes.Buffer
		for _, c := range cases {
			if c.engines != nil && !slices.Contains(c.engines, name) {
				continue
			}
			v := c.variant
			v.Engine = name
			fmt.Fprintf(&b, "== %s\n", c.name)
			for _, p := range e.Vet(v) {
				fmt.Fprintf(&b, "problem %s: %q: %s; %s\n", p.Path, p.Value, p.Rule, p.Suggest)
			}
			argv, env, err := e.Args(v, "127.0.0.1", 31000)
			if err != nil {
				fmt.Fprintf(&b, "error %v\n", err)
				continue
			}
			line, _ := json.Marshal(argv)
			fmt.Fprintf(&b, "argv %s\nenv %q\n", line, env)
			again, _, _ := e.Args(v, "127.0.0.1", 31000)
			if !slices.Equal(argv, again) {
				t.Errorf("%s, %s: not pure: %q, then %q", name, c.name, argv, again)
			}
		}
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s differs from %s; -update writes it anew. Now:\n%s", name, file, b.Bytes())
		}
	}
}

func TestAbilities(t *testing.T) {
	for name, want := range map[string][3]bool{ // flush, tokenize, idle
		"llamacpp": {true, true, true}, "ollama": {true, false, false}, "openai": {true, true, false},
		"sglang": {true, true, true}, "twopoint": {true, true, true}, "vllm": {true, true, true},
	} {
		e, _ := Lookup(name)
		_, flush := e.(engine.Flusher)
		_, tokenize := e.(engine.Tokenizer)
		_, idle := e.(engine.Idler)
		if got := [3]bool{flush, tokenize, idle}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if _, ok := Lookup("nosuch"); ok {
		t.Error("found an engine that is none")
	}
}
