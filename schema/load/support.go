package load

import (
	"fmt"

	"twopoint/schema"
	"twopoint/schema/diag"
)

// unsupported is what the language can say and this build cannot do yet. A line
// is deleted when the thing is built.
var unsupported = []struct {
	what  string
	paths func(x *schema.Experiment) []string // data paths of the values that ask for it
}{
	{"targets over SSH", when(func(x *schema.Experiment) bool { return x.Target.SSH != nil }, "target")},
	{"targets under Slurm", when(func(x *schema.Experiment) bool { return x.Target.Slurm != nil }, "target")},
	{"targets in Kubernetes", when(func(x *schema.Experiment) bool { return x.Target.Kube != nil }, "target")},
	{"kernel benchmarks from a spec", when(func(x *schema.Experiment) bool { return x.KernelBench != nil }, "kernel_bench")},
	{"containers", variants("container", func(v schema.Variant) bool { return v.Container != nil })},
	{"pipeline parallelism", variants("pp", func(v schema.Variant) bool { return v.PP > 1 })},
	{"the engine trtllm", variants("engine", func(v schema.Variant) bool { return v.Engine == "trtllm" })},
	{"the engine lmdeploy", variants("engine", func(v schema.Variant) bool { return v.Engine == "lmdeploy" })},
}

func when(asked func(x *schema.Experiment) bool, path string) func(*schema.Experiment) []string {
	return func(x *schema.Experiment) []string {
		if asked(x) {
			return []string{path}
		}
		return nil
	}
}

func variants(name string, asked func(schema.Variant) bool) func(*schema.Experiment) []string {
	return func(x *schema.Experiment) (out []string) {
		for _, v := range x.Variants {
			if asked(v) {
				out = append(out, join(join("variants", v.Name), name))
			}
		}
		return out
	}
}

// Unsupported lists, as warnings, what this build on this machine cannot run:
// parts of the language that are not built yet, and a target that no site file
// knows. Looking at such a spec is fine; running it is not.
func (l *Loaded) Unsupported() diag.List {
	var ds diag.List
	for _, u := range unsupported {
		seen := map[diag.Pos]bool{} // one line, however many variants inherit it
		for _, p := range u.paths(&l.Experiment) {
			pos := l.Pos(p)
			if !seen[pos] {
				seen[pos] = true
				ds = append(ds, diag.Diagnostic{Severity: diag.Warning, Pos: pos, Path: p, Rule: fmt.Sprintf("%s: this version cannot run that yet", u.what)})
			}
		}
	}
	if l.unknownTarget != nil {
		ds = append(ds, *l.unknownTarget)
	}
	ds.Sort()
	return ds
}
