package load

import (
	"path/filepath"
	"testing"
)

// Every experiment of the repository loads without mistakes.
func TestExperiments(t *testing.T) {
	paths, err := filepath.Glob("../../experiments/*/spec.cue")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no experiments: %v", err)
	}
	for _, p := range paths {
		dir := filepath.Dir(p)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			l, ds := Load(dir, options(t))
			if len(ds) > 0 {
				t.Errorf("\n%s", format(ds))
			}
			if l != nil {
				t.Logf("\n%s", format(l.Unsupported()))
			}
		})
	}
}
