package load

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"twopoint/schema"
)

const base = `package p

import "twopoint.local/schema"

_top: 2048
experiment: schema.#Experiment & {
	title: "contexts up to \(sweep.context[1])"
	servers: s: {engine: "sglang", args: {"page-size": 1, other: sweep.context[0]}}
	variants: {a: args: "page-size": 16, b: {}}
	sweep: context: [512, _top]
}
experiment: baseline: "a"
experiment: variants: b: args: x: 1
`

func TestSet(t *testing.T) {
	dir := write(t, map[string]string{"spec.cue": base})
	cases := []struct {
		name string
		set  []string
		path []string // into the experiment as JSON
		want string
	}{
		{"number", []string{"servers.s.tp=8"}, []string{"variants", "0", "tp"}, "8"},
		{"replace", []string{"baseline=b"}, []string{"baseline"}, `"b"`},
		{"list", []string{"sweep.context=[1Ki, 4Ki]"}, []string{"sweep", "context"}, "[1024,4096]"},
		{"references follow", []string{"sweep.context=[1Ki, 4Ki]"}, []string{"title"}, `"contexts up to 4096"`},
		{"args follow", []string{"sweep.context=[1Ki, 4Ki]"}, []string{"variants", "1", "args", "other"}, "1024"},
		{"fraction as written", []string{"servers.s.args.mem=0.880"}, []string{"variants", "1", "args", "mem"}, "0.880"},
		{"key with a dash", []string{"variants.a.args.page-size=64"}, []string{"variants", "0", "args", "page-size"}, "64"},
		{"key with a dot", []string{`variants.a.args."x.y"=true`}, []string{"variants", "0", "args", "x.y"}, "true"},
		{"declared twice", []string{"variants.b.args.x=3"}, []string{"variants", "1", "args", "x"}, "3"},
		{"string that CUE would compute", []string{"model=kimi-k2.6"}, []string{"model", "preset"}, `"kimi-k2.6"`},
		{"quoted string", []string{`title="12"`}, []string{"title"}, `"12"`},
		{"equals sign in the value", []string{"servers.s.args.kv=a=b"}, []string{"variants", "1", "args", "kv"}, `"a=b"`},
		{"nothing there yet", []string{"method.two_point.repeats.max=20"}, []string{"method", "two_point", "repeats", "max"}, "20"},
		{"null takes away", []string{"variants.b.args.other=null"}, []string{"variants", "1", "args"}, `{"page-size":1,"x":1}`},
		{"whole struct", []string{"servers={t: {engine: \"twopoint\"}}"}, []string{"variants", "0", "engine"}, `"twopoint"`},
		{"later wins", []string{"servers.s.tp=2", "servers.s.tp=4"}, []string{"variants", "0", "tp"}, "4"},
		{"experiment may lead", []string{"experiment.servers.s.tp=2"}, []string{"variants", "0", "tp"}, "2"},
	}
	plain := mustLoad(t, dir, Options{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := mustLoad(t, dir, Options{Set: c.set})
			if got := dig(t, l.Experiment, c.path); got != c.want {
				t.Errorf("%v gives %s, want %s", c.set, got, c.want)
			}
			if l.Hash == plain.Hash {
				t.Error("the hash does not show the setting")
			}
		})
	}
}

// dig is the JSON at a path of an experiment.
func dig(t *testing.T, x schema.Experiment, path []string) string {
	t.Helper()
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	n := fromJSON(b)
	for _, p := range path {
		if n.kind == list {
			p = "[" + p + "]"
		}
		next, _ := n.step(p)
		if next == nil {
			t.Fatalf("nothing at %v of %s", path, b)
		}
		n = next
	}
	return string(n.appendJSON(nil))
}

func TestSetMistakes(t *testing.T) {
	dir := write(t, map[string]string{"spec.cue": base})
	for set, want := range map[string]string{
		"sweep.contxt=[1024]":    "--set sweep.contxt=[1024]: sweep.contxt: unknown field; did you mean context?",
		"servers.s.port=abc":     `--set servers.s.port=abc: servers.s.port: "abc": must be a whole number from 1 to 65535`,
		"title":                  "--set title: write --set path=value, such as --set 'sweep.context=[1024, 4096]'",
		"a..b=1":                 "--set a..b=1: write --set path=value, such as --set 'sweep.context=[1024, 4096]'",
		"sweep.context[0]=1":     `--set sweep.context[0]=1: sweep.context[0]: unknown field; did you mean context?`,
		"budget.total=5 minutes": `--set budget.total=5 minutes: budget.total: "5 minutes": must be a duration such as "90s", "5m" or "1h30m"`,
	} {
		_, ds := Load(dir, Options{Set: []string{set}, ConfigDir: t.TempDir()})
		if len(ds) != 1 || ds[0].String() != want {
			t.Errorf("--set %s gives\n%swant\n%s", set, format(ds), want)
		}
	}
}

func TestSetInData(t *testing.T) {
	dir := write(t, map[string]string{
		"spec.yaml": "experiment:\n  servers: {s: {engine: sglang}}\n  sweep: {context: [512]}\n",
		"spec.json": `{"experiment": {"servers": {"s": {"engine": "sglang"}}, "sweep": {"context": [512]}}}`,
	})
	for _, name := range []string{"spec.yaml", "spec.json"} {
		l := mustLoad(t, filepath.Join(dir, name), Options{Set: []string{"sweep.context=[1Ki]", "servers.s.tp=2"}})
		if c := l.Experiment.Sweep.Context; len(c) != 1 || c[0] != 1024 || l.Experiment.Variants[0].TP != 2 {
			t.Errorf("%s: --set has no effect: %+v", name, l.Experiment)
		}
	}
}
