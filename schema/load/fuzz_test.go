package load

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
