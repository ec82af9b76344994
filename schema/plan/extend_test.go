package plan

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"twopoint/schema"
)

func TestExtendAdds(t *testing.T) {
	old := mustPlan(t, experiment())
	exp := experiment()
	exp.Title, exp.Name = "Longer", "elsewhere"
	exp.Sweep.Context = []int{2848, 32768} // 1424 and 11405 are no longer asked for
	exp.Method.TwoPoint.Repeats.Max = 24
	extra := exp.Variants[0]
	extra.Name, extra.TP = "wide", 16
	exp.Variants = []schema.Variant{extra, exp.Variants[0], exp.Variants[1]} // remote is gone
	later, ds := New(exp, "sha256:later", Options{Seed: 99})
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	p, ds := Extend(old, later)
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	if err := p.check(); err != nil {
		t.Error(err)
	}
	if p.Title != "Longer" || p.SpecHash != "sha256:later" || p.Experiment != "collapse" || p.Seed != 1 || p.Method.TwoPoint.Repeats.Max != 24 {
		t.Errorf("%+v", p)
	}
	var names, keys []string
	for _, v := range p.Variants {
		names = append(names, v.Name)
	}
	id := map[string]string{}
	for _, pt := range p.Points {
		id[pt.Key] = pt.ID
		if pt.Variant == "stock" || pt.Variant == "wide" {
			keys = append(keys, pt.Key)
		}
	}
	if got := strings.Join(names, " "); got != "stock split remote wide" {
		t.Errorf("variants %s", got)
	}
	if got := strings.Join(keys, " "); got != "stock/1424/1 stock/2848/1 stock/11405/1 stock/32768/1 stock/1424/4 stock/2848/4 stock/11405/4 stock/32768/4 "+
		"wide/2848/1 wide/32768/1 wide/2848/4 wide/32768/4" {
		t.Errorf("points %s", got)
	}
	for _, pt := range old.Points {
		if id[pt.Key] != pt.ID {
			t.Errorf("%s was %s and is %q", pt.Key, pt.ID, id[pt.Key])
		}
	}
	if got, want := p.Orders[0].Variants, append(slices.Clone(old.Orders[0].Variants), "wide"); len(p.Orders) != 1 || !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if len(old.Points) != 18 || len(old.Orders[0].Variants) != 3 {
		t.Error("the old plan changed")
	}
	again, ds := Extend(p, later)
	if len(ds) > 0 || len(again.Points) != len(p.Points) {
		t.Errorf("extending twice: %d points, %v", len(again.Points), ds)
	}
}

func TestExtendRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*schema.Experiment)
		want []string // the diagnostics, by beginning
	}{
		"argument": {func(e *schema.Experiment) {
			e.Variants[0].Args = maps.Clone(e.Variants[0].Args)
			e.Variants[0].Args["page-size"] = json.Number("16")
			delete(e.Variants[0].Args, "attention-backend")
			e.Variants[0].Args["new"] = true
		}, []string{
			`variants.stock.args.attention-backend: is gone and was "triton" when the run was planned; give`,
			`variants.stock.args.new: true: was not set when`,
			`variants.stock.args.page-size: 16: was 1 when`,
		}},
		"files":  {func(e *schema.Experiment) { e.Variants[1].FilesHash = "sha256:1" }, []string{`variants.split.files: "sha256:1": was "sha256:00ff" when`}},
		"env":    {func(e *schema.Experiment) { e.Variants[1].Env = nil }, []string{`variants.split.env: is gone and was {"HF_TOKEN"`}},
		"model":  {func(e *schema.Experiment) { e.Model.DType = "fp8" }, []string{`model.dtype: "fp8": was "bf16" when the run was planned; start a new run`}},
		"prompt": {func(e *schema.Experiment) { e.Prompt.Seed = 8 }, []string{"prompt.seed: 8: was 7 when"}},
		"method": {func(e *schema.Experiment) { e.Method.TwoPoint.A = 2 }, []string{"method.two_point.a: 2: was 1 when"}},
		"target": {func(e *schema.Experiment) { e.Target.Name = "box" }, []string{`target.name: "box": was "local" when`}},
		"rename": {func(e *schema.Experiment) { e.Variants[0].Name = "classic" }, []string{"variants.classic: has the content of the run's variant stock"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := mustPlan(t, experiment())
			exp := experiment()
			exp.Sweep.Context = append(exp.Sweep.Context, 32768)
			c.edit(&exp)
			p, ds := Extend(old, mustPlan(t, exp))
			if !ds.HasErrors() || len(ds) != len(c.want) {
				t.Fatalf("diagnostics:\n%v", ds.Error())
			}
			for i, w := range c.want {
				if !strings.HasPrefix(ds[i].String(), w) {
					t.Errorf("%s\nwant %s", ds[i], w)
				}
			}
			if len(p.Points) != len(old.Points) {
				t.Error("a refused extension changed the plan")
			}
		})
	}
}

// A variant that has no points yet may still change.
func TestExtendChangesWhatWasNotMeasured(t *testing.T) {
	exp := experiment()
	exp.Sweep.Exclude = []schema.Exclude{{Variant: []string{"split"}}}
	old, _ := New(exp, "", Options{})
	exp = experiment()
	exp.Variants[1].TP = 4
	p, ds := Extend(old, mustPlan(t, exp))
	if len(ds) > 0 || len(p.Points) != 18 {
		t.Fatalf("%d points, %v", len(p.Points), ds)
	}
	if v, _ := p.Variant("split"); v.TP != 4 {
		t.Errorf("%+v", v)
	}
}
