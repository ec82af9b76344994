// Package experiments holds the project's own experiments, one folder each: a
// spec, and notebook.md, what a person wants to know and how the spec asks it.
// There is no code but the test that all of them plan.
package experiments

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"twopoint/runner/engine/engines"
	"twopoint/schema/load"
	"twopoint/schema/plan"
)

// TestExperiments: every folder loads without errors and plans, each variant
// that is started has a command line, and a notebook stands beside the spec.
func TestExperiments(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	planned := map[string]plan.Plan{}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			spec, list := load.Load(e.Name(), load.Options{ConfigDir: t.TempDir()})
			if list.HasErrors() {
				t.Fatal(list)
			}
			p, more := plan.New(spec.Experiment, spec.Hash, plan.Options{})
			if more.HasErrors() {
				t.Fatal(more)
			}
			planned[e.Name()] = p
			if p.Title == "" || p.Question == "" {
				t.Errorf("title %q, question %q: an experiment says what it asks", p.Title, p.Question)
			}
			if len(p.Points) == 0 && p.KernelBench == nil && len(p.Published) == 0 {
				t.Error("the plan has nothing to do")
			}
			for _, v := range p.Variants {
				eng, ok := engines.Lookup(v.Engine)
				if !ok {
					t.Errorf("variant %s: no adapter for engine %q", v.Name, v.Engine)
					continue
				}
				for _, problem := range eng.Vet(v.Variant) {
					t.Errorf("variant %s: %s = %s: %s", v.Name, problem.Path, problem.Value, problem.Rule)
				}
				if v.URL == "" {
					if argv, _, err := eng.Args(v.Variant, "127.0.0.1", 30000); err != nil || len(argv) == 0 {
						t.Errorf("variant %s: command line %q, %v", v.Name, argv, err)
					}
				}
			}
			notebook, err := os.ReadFile(filepath.Join(e.Name(), "notebook.md"))
			if err != nil {
				t.Error(err)
			} else if !strings.HasPrefix(string(notebook), "# ") {
				t.Error("notebook.md does not begin with a title")
			}
		})
	}
	for _, name := range []string{"quickstart", "llamacpp-cpu", "kimi-collapse"} {
		if len(planned[name].Points) == 0 {
			t.Errorf("%s plans no point", name)
		}
	}
}
