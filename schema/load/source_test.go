package load

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write puts files into a fresh folder outside of any module.
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
