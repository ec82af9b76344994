package load

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"

	"twopoint/schema"
)

// write puts a spec with that body into a fresh folder outside of any module.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustLoad(t *testing.T, arg string, opt Options) *Loaded {
	t.Helper()
	if opt.ConfigDir == "" {
		opt.ConfigDir = t.TempDir()
	}
	l, ds := Load(arg, opt)
	if ds.HasErrors() {
		t.Fatalf("refused:\n%s", format(ds))
	}
	return l
}

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

func TestStdin(t *testing.T) {
	for name, text := range map[string]string{
		"cue":  base,
		"json": `{"experiment": {"servers": {"s": {"engine": "sglang", "args": {"f": 0.88}}}, "sweep": {"context": [512]}}}`,
		"yaml": "experiment:\n  servers:\n    s: {engine: sglang, args: {f: 0.88}}\n  sweep:\n    context: [512]\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := mustLoad(t, "-", Options{Stdin: strings.NewReader(text)})
			if l.Experiment.Name != "stdin" || len(l.Experiment.Variants) == 0 || len(l.SourceFiles) != 1 {
				t.Errorf("got %+v, files %v", l.Experiment, sortedKeys(l.SourceFiles))
			}
		})
	}
	_, ds := Load("-", Options{Stdin: strings.NewReader("experiment: sweep: contxt: [1]\n"), ConfigDir: t.TempDir()})
	if len(ds) != 2 || ds[1].String() != "-:1:20: sweep.contxt: unknown field; did you mean context?" {
		t.Errorf("a mistake on standard input gives\n%s", format(ds))
	}
	for name, opt := range map[string]Options{
		"none":    {},
		"neither": {Stdin: strings.NewReader("{{{")},
		"empty":   {Stdin: strings.NewReader("")},
	} {
		if _, ds := Load("-", opt); !ds.HasErrors() {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestOffline(t *testing.T) {
	t.Setenv("CUE_REGISTRY", "registry.invalid:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	dir := write(t, map[string]string{
		"spec.cue":    base,
		"scratch.cue": "x: 1\nx: 2\n",
		"broken.cue":  "this is {{ not CUE",
		"other.cue":   "package other\n\nx: 1 & 2\n",
	})
	mustLoad(t, dir, Options{})
	mustLoad(t, filepath.Join(dir, "spec.cue"), Options{})

	dir = write(t, map[string]string{"spec.cue": "package p\n\nimport \"example.org/far/away\"\n\nexperiment: away.X\n"})
	_, ds := Load(dir, Options{ConfigDir: t.TempDir()})
	if len(ds) != 1 || !strings.Contains(ds[0].String(), "module example.org/far/away is not here") {
		t.Errorf("a third-party import gives\n%s", format(ds))
	}
	dir = write(t, map[string]string{
		"spec.cue":                              "package p\n\nimport \"example.org/near\"\n\nexperiment: near.X\n",
		"cue.mod/usr/example.org/near/near.cue": "package near\n\nX: {servers: s: engine: \"twopoint\", sweep: context: [512]}\n",
	})
	mustLoad(t, dir, Options{})
}

func TestPos(t *testing.T) {
	dir := write(t, map[string]string{"spec.cue": base})
	t.Chdir(dir)
	l := mustLoad(t, ".", Options{})
	for path, want := range map[string]string{
		"variants.a.args.page-size": "spec.cue:9:35",
		"variants.b.args.page-size": "spec.cue:8:53", // inherited from the server
		"variants.b.args.x":         "spec.cue:13:35",
		"variants.a.engine":         "spec.cue:8:23",
		"sweep.context[1]":          "spec.cue:10:24",
		"sweep.context[9]":          "spec.cue:10:18",
		"baseline":                  "spec.cue:12:23",
		"prompt.seed":               "spec.cue:13:13",
	} {
		if got := l.Pos(path).String(); got != want {
			t.Errorf("%s is at %s, want %s", path, got, want)
		}
	}
	l = mustLoad(t, ".", Options{Set: []string{"variants.b.matrix={\"page-size\": [1, 64]}"}})
	if got := l.Pos("variants.b[page-size=64].args.other").String(); got != "spec.cue:8:63" {
		t.Errorf("a cell's inherited arg is at %s", got)
	}
}

func TestSourceFilesAndFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"cue.mod/module.cue": "module: \"example.com/m\"\nlanguage: version: \"v0.17.0\"\n",
		"common/common.cue":  "package common\n\nengine: \"twopoint\"\n",
		"x/spec.cue":         "package x\n\nimport \"example.com/m/common\"\n\nexperiment: {servers: s: {engine: common.engine, files: [\"k\"]}, sweep: context: [512], prompt: {source: \"file\", file: \"c.txt\"}}\n",
		"x/k/a.cu":           "one",
		"x/k/sub/b.cu":       "two",
		"x/c.txt":            "corpus",
	})
	l := mustLoad(t, filepath.Join(dir, "x"), Options{})
	if got := sortedKeys(l.SourceFiles); !slices.Equal(got, []string{"common/common.cue", "x/spec.cue"}) {
		t.Errorf("source files are %v", got)
	}
	v := l.Experiment.Variants[0]
	if len(v.FilesHash) != 64 || len(l.Experiment.Prompt.FileHash) != 64 {
		t.Fatalf("hashes are %q and %q", v.FilesHash, l.Experiment.Prompt.FileHash)
	}
	for name, text := range map[string]string{"x/k/sub/b.cu": "Two", "x/c.txt": "Corpus"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	again := mustLoad(t, filepath.Join(dir, "x"), Options{})
	if again.Experiment.Variants[0].FilesHash == v.FilesHash || again.Experiment.Prompt.FileHash == l.Experiment.Prompt.FileHash {
		t.Error("an edit does not change the hash")
	}
	if again.Hash != l.Hash {
		t.Error("the spec's hash changed without an edit of the spec")
	}
}

func TestNumbersKeepTheirText(t *testing.T) {
	l := mustLoad(t, "testdata/good/matrix.cue", Options{})
	v := l.Experiment.Variants[0]
	if v.Args["mem-fraction-static"] != json.Number("0.880") || v.Args["page-size"] != json.Number("4") {
		t.Errorf("args are %#v", v.Args)
	}
	if l := mustLoad(t, "testdata/good/spec_yaml.yaml", Options{}); l.Experiment.Prompt.Seed != 9007199254740993 {
		t.Errorf("seed is %d", l.Experiment.Prompt.Seed)
	}
}

func TestMatrix(t *testing.T) {
	l := mustLoad(t, "testdata/good/matrix.cue", Options{})
	var names []string
	for _, v := range l.Experiment.Variants {
		names = append(names, v.Name)
		if want, _, _ := strings.Cut(v.Name, "["); v.Base != want {
			t.Errorf("%s has base %q", v.Name, v.Base)
		}
		for k, val := range v.Cell {
			if val != nil && v.Args[k] != val {
				t.Errorf("%s: cell %s=%v, args %v", v.Name, k, val, v.Args)
			}
		}
	}
	want := []string{
		"plain[attention-backend=null]",
		"paged[attention-backend=triton,page-size=1]", "paged[attention-backend=triton,page-size=16]",
		"paged[attention-backend=fa3,page-size=1]", "paged[attention-backend=fa3,page-size=16]",
	}
	if !slices.Equal(names, want) {
		t.Errorf("cells are %q", names)
	}
}

func TestSite(t *testing.T) {
	config := write(t, map[string]string{"twopoint/site.cue": `targets: {far: slurm: partition: "gpu", box: ssh: host: "shadowed"}`})
	dir := write(t, map[string]string{
		"twopoint.site.cue": `targets: box: ssh: {host: "near", port: 2222}`,
		"x/spec.cue":        "package x\n\nexperiment: {target: \"box\", servers: s: engine: \"twopoint\", sweep: context: [512]}\n",
	})
	l := mustLoad(t, filepath.Join(dir, "x"), Options{ConfigDir: config})
	if tg := l.Experiment.Target; tg.Name != "box" || tg.SSH["host"] != "near" || tg.SSH["port"] != json.Number("2222") {
		t.Errorf("target is %+v", tg)
	}
	l = mustLoad(t, filepath.Join(dir, "x"), Options{ConfigDir: config, Set: []string{"target=far"}})
	if tg := l.Experiment.Target; tg.Name != "far" || tg.Slurm["partition"] != "gpu" {
		t.Errorf("target is %+v", tg)
	}
	l = mustLoad(t, filepath.Join(dir, "x"), Options{ConfigDir: config, Set: []string{"target=nowhere"}})
	if ds := l.Unsupported(); len(ds) != 1 || ds.HasErrors() {
		t.Errorf("an unknown target gives\n%s", format(ds))
	}
	l = mustLoad(t, filepath.Join(dir, "x"), Options{ConfigDir: config, Set: []string{"target=local"}})
	if !l.Experiment.Target.IsLocal() || len(l.Unsupported()) != 0 {
		t.Errorf("target is %+v", l.Experiment.Target)
	}
}

// The table that this package checks with and the definitions as CUE itself
// applies them must not drift apart.
func TestDefinitionsAgree(t *testing.T) {
	valid := func(t *testing.T, spec string) error {
		t.Helper()
		src, ds := open(spec, Options{})
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		inst, ds := src.instance(true)
		if inst == nil {
			t.Fatal(ds)
		}
		ctx := cuecontext.New()
		def := ctx.BuildInstance(definitions()).LookupPath(cue.ParsePath("#Experiment"))
		v := ctx.BuildInstance(inst)
		if v.Err() != nil && !v.LookupPath(cue.ParsePath("experiment")).Exists() {
			return v.Err()
		}
		return def.Unify(v.LookupPath(cue.ParsePath("experiment"))).Validate(cue.Concrete(true))
	}
	for _, spec := range specs(t, "good") {
		if err := valid(t, spec); err != nil {
			t.Errorf("CUE refuses %s:\n%s", spec, errors.Details(err, nil))
		}
	}
	for _, name := range []string{
		"engine_port.cue", "unknown_field.cue", "many_at_once.cue", "conflict.cue", "default_escapes_bound.cue",
		"min_above_default_max.cue", "durations.cue", "fractional_sizes.cue", "seed_too_large.cue", "env.cue", "published.cue",
		"kernel_bench.cue", "list_for_scalar.cue", "null_where_none.cue", "wrong_place.cue", "through_import.cue", "mistakes.json",
	} {
		if valid(t, filepath.Join("testdata", "bad", name)) == nil {
			t.Errorf("CUE accepts %s", name)
		}
	}
}

func TestMetricsAreCells(t *testing.T) {
	block := shapes()["#Experiment"].fields["published"].elem
	metric := block.fields["claims"].elem.fields["metric"]
	for _, name := range metric.enum {
		if name != "context_slope_s" && block.fields[name] == nil {
			t.Errorf("metric %s has no column of cells", name)
		}
	}
	for name, f := range block.fields {
		if f.elem != nil && f.elem.elem != nil && !slices.Contains(metric.enum, name) {
			t.Errorf("cells %s are no metric", name)
		}
	}
}

func TestPresets(t *testing.T) {
	for _, name := range schema.Presets() {
		m, ok := schema.Preset(name)
		if !ok || m.Preset != name || m.Heads == 0 || m.Layers.Full == 0 || (m.KV.MLA == nil) == (m.KV.GQA == nil) {
			t.Errorf("%s is %+v", name, m)
		}
	}
	if m, _ := schema.Preset("kimi-k2.6"); 2*m.Layers.Full*(m.KV.MLA.Rank+m.KV.MLA.Rope) != 70272 {
		t.Errorf("kimi-k2.6 is %+v", m)
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, ds := Load("testdata/good/design", Options{ConfigDir: b.TempDir()}); ds.HasErrors() {
			b.Fatal(ds)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, kind := range []string{"good", "bad"} {
		paths, err := filepath.Glob("testdata/" + kind + "/*.*")
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range paths {
			b, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			if ext := filepath.Ext(p); ext != ".golden" {
				f.Add(b, ext == ".yaml")
			}
		}
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte, yaml bool) {
		if len(text) > 2000 {
			return
		}
		name := filepath.Join(dir, "spec.cue")
		if yaml {
			name = filepath.Join(dir, "spec.yaml")
		}
		if err := os.WriteFile(name, text, 0o666); err != nil {
			t.Fatal(err)
		}
		l, ds := Load(name, Options{ConfigDir: dir})
		for _, d := range ds {
			if strings.Contains(d.String(), "\n") || d.Pos.File == "" {
				t.Errorf("%q is not one line with a place", d)
			}
		}
		if l != nil {
			l.Unsupported()
			l.Pos("variants.x.args.y")
		}
		if (l == nil || l.Resolved == nil) && !ds.HasErrors() {
			t.Error("nothing came out and nothing was said")
		}
	})
}
