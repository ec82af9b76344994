package load

import (
	"path/filepath"
	"slices"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"

	"twopoint/schema"
)

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
