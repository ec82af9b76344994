package load

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"twopoint/schema"
	"twopoint/schema/diag"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares text with a file, or rewrites the file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update to accept):\n--- got\n%s--- want\n%s", path, got, want)
	}
}

func format(ds diag.List) string {
	var b strings.Builder
	for _, d := range ds {
		b.WriteString(d.Severity.String() + ": " + d.String() + "\n")
	}
	return b.String()
}

// specs are the folders and files below testdata/<kind> that are specs.
func specs(t *testing.T, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", kind))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.IsDir() || ext == ".cue" || ext == ".yaml" || ext == ".json" {
			out = append(out, filepath.Join("testdata", kind, e.Name()))
		}
	}
	return out
}

func options(t *testing.T) Options { return Options{ConfigDir: t.TempDir()} }

func TestGood(t *testing.T) {
	for _, spec := range specs(t, "good") {
		t.Run(filepath.Base(spec), func(t *testing.T) {
			l, ds := Load(spec, options(t))
			if ds.HasErrors() {
				t.Fatalf("refused:\n%s", format(ds))
			}
			golden(t, spec+".golden", format(append(ds, l.Unsupported()...))+string(l.Resolved))

			// What --resolved prints loads as the same experiment, and prints
			// the same again.
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(l.Dir)); err != nil {
				t.Fatal(err)
			}
			back := filepath.Join(dir, "resolved.json")
			if err := os.WriteFile(back, l.Resolved, 0o666); err != nil {
				t.Fatal(err)
			}
			again, ds := Load(back, options(t))
			if ds.HasErrors() {
				t.Fatalf("its own resolved form is refused:\n%s", format(ds))
			}
			again.Experiment.Name = l.Experiment.Name
			if !reflect.DeepEqual(l.Experiment, again.Experiment) {
				t.Errorf("the resolved form is another experiment:\n%s\n%s", toJSON(t, l.Experiment), toJSON(t, again.Experiment))
			}
			if !bytes.Equal(l.Resolved, again.Resolved) {
				t.Errorf("resolving twice differs:\n%s\n%s", l.Resolved, again.Resolved)
			}
		})
	}
}

func toJSON(t *testing.T, x schema.Experiment) string {
	t.Helper()
	b, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBad(t *testing.T) {
	for _, spec := range specs(t, "bad") {
		t.Run(filepath.Base(spec), func(t *testing.T) {
			l, ds := Load(spec, options(t))
			if l != nil {
				ds = append(ds, l.Unsupported()...)
			}
			if len(ds) == 0 {
				t.Fatal("nothing was found wrong")
			}
			if l != nil && ds.HasErrors() && l.Resolved != nil {
				t.Error("a spec with errors was resolved")
			}
			for _, d := range ds {
				if s := d.String(); strings.Contains(s, "\n") || strings.Contains(s, "incomplete value") || strings.Contains(s, "disjunction") {
					t.Errorf("not in the author's terms: %q", s)
				}
				if d.Pos.File == "" || strings.Contains(d.Pos.File, "cue.mod") {
					t.Errorf("no place in the author's text: %q", d)
				}
			}
			golden(t, spec+".golden", format(ds))
		})
	}
}
