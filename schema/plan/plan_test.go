package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"twopoint/schema"
	"twopoint/schema/diag"
)

var update = flag.Bool("update", false, "rewrite golden files")

// experiment is a spec as the loader resolves it, with most of the language in
// use. Each call gives a fresh one.
func experiment() schema.Experiment {
	args := map[string]any{
		"mem-fraction-static": json.Number("0.94"), "max-running-requests": json.Number("8"),
		"attention-backend": "triton", "page-size": json.Number("1"), "enable-mixed-chunk": true,
		"lora-paths": []any{"a", "b"}, "override": map[string]any{"rope": json.Number("1e6"), "seed": json.Number("9007199254740993")},
	}
	split := maps.Clone(args)
	split["attention-backend"] = "sm120"
	base := schema.Variant{
		Server: "sglang", Engine: "sglang", ContextLength: 200_000, TP: 8, Args: args,
		ReadyTimeout: schema.Duration(20 * time.Minute), Flush: "auto", Host: "127.0.0.1", Port: 30000,
	}
	stock, fast, remote := base, base, schema.Variant{Name: "remote", Server: "remote", Engine: "openai", URL: "http://box:8000", Flush: "never"}
	stock.Name = "stock"
	fast.Name, fast.Args = "split", split
	fast.Files, fast.FilesHash = []string{"kernel/"}, "sha256:00ff"
	fast.Build = [][]string{{"make", "-C", "{files}/kernel"}}
	fast.Env = map[string]schema.EnvValue{"PYTHONPATH": {Value: "{files}/kernel/python"}, "HF_TOKEN": {Secret: "HF_TOKEN"}}
	fast.Container = &schema.Container{Image: "lmsysorg/sglang:v0.5", Runtime: "docker", Args: []string{"--shm-size", "32g"}}
	fast.Setup, fast.Cwd, fast.Command = "ulimit -n 65535", "{workdir}", []string{"python3", "-m", "fork"}
	return schema.Experiment{
		Name: "collapse", Title: "Decode collapse at long context", Question: "Does it <survive> & why?",
		Model: &schema.Model{Preset: "kimi-k2.6", Name: "kimi-k2.6", Heads: 64, Layers: schema.Layers{Full: 61},
			KV: schema.KV{MLA: &schema.MLA{Rank: 512, Rope: 64}}, DType: "bf16"},
		Target:   schema.Target{Name: "local"},
		Variants: []schema.Variant{stock, fast, remote}, Baseline: "stock",
		Sweep:  schema.Sweep{Context: []int{11405, 1424, 2848}, Concurrency: []int{4, 1}},
		Prompt: schema.Prompt{Source: "text", Seed: 7, Nonce: true, Length: "exact"},
		Method: schema.Method{TwoPoint: &schema.TwoPoint{A: 1, Warmup: true, Settle: schema.Settle{Mode: "request"},
			Repeats: schema.Repeats{Min: 6, Max: 12, Target: 0.03, Deployments: 1}}},
		Budget: schema.Budget{PerPoint: schema.Duration(5 * time.Minute)},
		Host:   schema.HostPolicy{Foreign: "warn"},
		Published: map[string]schema.Published{"origin": {Source: schema.Source{Title: "t", Where: "w"},
			Cells: map[string]map[string]map[string]any{"decode_tok_s": {"stock": {"1424": json.Number("109.20")}}}}},
	}
}

func mustPlan(t testing.TB, exp schema.Experiment) Plan {
	t.Helper()
	p, ds := New(exp, "sha256:spec", Options{})
	if len(ds) > 0 {
		t.Fatalf("diagnostics: %v", ds)
	}
	return p
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update rewrites it):\n%s", path, got)
	}
}

// Identities are on disk in every run ever made: this file may grow, and
// must not change.
func TestGoldenIDs(t *testing.T) {
	p := mustPlan(t, experiment())
	var b bytes.Buffer
	for _, v := range p.Variants {
		c := contentOf(v.Variant)
		c.Model = geometryOf(p.Model)
		text, err := schema.CanonicalJSON(c)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s\n  %s\n", v.ID, v.Name, text)
	}
	for _, pt := range p.Points {
		fmt.Fprintf(&b, "%s %s\n", pt.ID, pt.Key)
	}
	golden(t, "ids.txt", b.Bytes())
}

// A point's id is the hash of what the documentation says, however it was put
// together.
func TestPointIDIsOverCanonicalJSON(t *testing.T) {
	p := mustPlan(t, experiment())
	for _, pt := range p.Points {
		v, _ := p.Variant(pt.Variant)
		text, err := schema.CanonicalJSON(map[string]any{
			"variant_id": v.ID, "method": methodContent(p.Method), "prompt": promptContent(p.Prompt),
			"context": pt.Context, "concurrency": pt.Concurrency,
		})
		if err != nil {
			t.Fatal(err)
		}
		if id := hash(text); id != pt.ID || len(id) != 12 {
			t.Errorf("%s is %s, its content hashes to %s", pt.Key, pt.ID, id)
		}
	}
}

func TestPointsAndOrder(t *testing.T) {
	p := mustPlan(t, experiment())
	var keys []string
	for _, pt := range p.Points {
		keys = append(keys, pt.Key)
	}
	var want []string
	for _, v := range []string{"stock", "split", "remote"} {
		for _, c := range []string{"1", "4"} {
			for _, ctx := range []string{"1424", "2848", "11405"} {
				want = append(want, v+"/"+ctx+"/"+c)
			}
		}
	}
	if !slices.Equal(keys, want) {
		t.Errorf("points are %v", keys)
	}
	if len(p.Orders) != 1 || p.Orders[0].ID != "o1" || p.Orders[0].Target.Name != "local" {
		t.Errorf("orders are %+v", p.Orders)
	}

	// All orders of three variants come up, each deterministic, and a renamed
	// or added variant leaves the rest in place.
	seen := map[string]bool{}
	for seed := int64(1); seed <= 60; seed++ {
		a, _ := New(experiment(), "", Options{Seed: seed})
		b, _ := New(experiment(), "other", Options{Seed: seed})
		if a.Seed != seed || !slices.Equal(a.Orders[0].Variants, b.Orders[0].Variants) {
			t.Errorf("seed %d: %v and %v", seed, a.Orders, b.Orders)
		}
		seen[strings.Join(a.Orders[0].Variants, " ")] = true

		exp := experiment()
		exp.Variants[0].Name = "renamed"
		extra := exp.Variants[0]
		extra.Name, extra.TP = "extra", 4
		exp.Variants = append(exp.Variants, extra)
		c, _ := New(exp, "", Options{Seed: seed})
		got := slices.DeleteFunc(slices.Clone(c.Orders[0].Variants), func(n string) bool { return n == "extra" })
		for i, n := range a.Orders[0].Variants {
			if got[i] != n && !(n == "stock" && got[i] == "renamed") {
				t.Errorf("seed %d: %v became %v", seed, a.Orders[0].Variants, c.Orders[0].Variants)
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("60 seeds gave %d of 6 orders", len(seen))
	}
	if p.Seed != 1 {
		t.Errorf("default seed is %d", p.Seed)
	}
}

// ids is what a run is joined on.
func ids(p Plan) (variants, points []string) {
	for _, v := range p.Variants {
		variants = append(variants, v.ID)
	}
	for _, pt := range p.Points {
		points = append(points, pt.ID)
	}
	return variants, points
}

// Every field of a variant either is in its identity or is listed here as not
// in it; a field that is added to the language has to choose.
func TestVariantIdentityFields(t *testing.T) {
	notIn := map[string]bool{"Name": true, "Base": true, "Server": true, "Host": true, "Port": true,
		"Files": true, "ReadyTimeout": true, "Cell": true}
	for i := range reflect.TypeFor[schema.Variant]().NumField() {
		field := reflect.TypeFor[schema.Variant]().Field(i)
		exp := experiment()
		before, pointsBefore := ids(mustPlan(t, exp))
		v := reflect.ValueOf(&exp.Variants[1]).Elem().Field(i)
		switch {
		case field.Name == "Args":
			exp.Variants[1].Args = maps.Clone(exp.Variants[1].Args)
			exp.Variants[1].Args["page-size"] = json.Number("16")
		case field.Name == "Env":
			exp.Variants[1].Env = map[string]schema.EnvValue{"PYTHONPATH": {Value: "other"}, "HF_TOKEN": {Secret: "HF_TOKEN"}}
		case field.Name == "Cell":
			exp.Variants[1].Cell = map[string]any{"page-size": json.Number("1")}
		case field.Name == "Build":
			exp.Variants[1].Build = [][]string{{"make"}}
		case field.Name == "Container":
			exp.Variants[1].Container = &schema.Container{Image: "other", Runtime: "docker", Args: []string{"--shm-size", "32g"}}
		case v.Kind() == reflect.String:
			v.SetString("other")
		case v.CanInt():
			v.SetInt(v.Int() + 1)
		case v.Type() == reflect.TypeFor[[]string]():
			v.Set(reflect.ValueOf([]string{"other"}))
		default:
			t.Errorf("%s: no change known for a %v", field.Name, v.Type())
			continue
		}
		after, pointsAfter := ids(mustPlan(t, exp))
		changed := before[1] != after[1]
		if changed == notIn[field.Name] {
			t.Errorf("changing %s changed the variant's id: %v", field.Name, changed)
		}
		for i := range pointsBefore {
			if inVariant := i/6 == 1; (pointsBefore[i] != pointsAfter[i]) != (changed && inVariant) {
				t.Errorf("changing %s: point %d was %s and is %s", field.Name, i, pointsBefore[i], pointsAfter[i])
			}
		}
	}
}

// The same for the other parts of an experiment: a new field of these types has
// to be put into an identity or declared to be in none.
func TestIdentityKnowsAllFields(t *testing.T) {
	for _, c := range []struct {
		typ       reflect.Type
		in, notIn string
	}{
		{reflect.TypeFor[schema.Model](), "Name Heads Layers KV DType", "Preset ActiveWeightBytes ContextLength"},
		{reflect.TypeFor[schema.Prompt](), "Source FileHash Seed Nonce Length Tolerance", "File"},
		{reflect.TypeFor[schema.TwoPoint](), "A B Warmup Settle", "Repeats"},
		{reflect.TypeFor[schema.Method](), "TwoPoint Stream MultiPoint DecodeAtDepth", ""},
		{reflect.TypeFor[schema.Container](), "Image Args", "Runtime"},
		{reflect.TypeFor[schema.EnvValue](), "Value Secret", ""},
		{reflect.TypeFor[schema.Sweep](), "Context Concurrency", "Zip Exclude"},
		{reflect.TypeFor[schema.Experiment](), "Model Variants Sweep Prompt Method",
			"Name Title Question Target Baseline Budget Limits OnFailure Host Gate Expect KernelBench Published"},
	} {
		known := strings.Fields(c.in + " " + c.notIn)
		for i := range c.typ.NumField() {
			if name := c.typ.Field(i).Name; !slices.Contains(known, name) {
				t.Errorf("is %v.%s part of an identity? identity.go must decide", c.typ, name)
			}
		}
	}
}

func TestWhatChangesIDs(t *testing.T) {
	for name, c := range map[string]struct {
		edit             func(*schema.Experiment)
		variants, points bool // whether these ids change
	}{
		"title":  {func(e *schema.Experiment) { e.Title, e.Question, e.Name = "x", "y", "z" }, false, false},
		"target": {func(e *schema.Experiment) { e.Target = schema.Target{Name: "gpu-box"} }, false, false},
		"budget": {func(e *schema.Experiment) { e.Budget.Total = 1 }, false, false},
		"limits": {func(e *schema.Experiment) { e.Limits.Total = 1 }, false, false},
		"repeats": {func(e *schema.Experiment) {
			e.Method.TwoPoint.Repeats = schema.Repeats{Min: 3, Max: 4, Target: 1, Deployments: 3}
		}, false, false},
		"claims":      {func(e *schema.Experiment) { e.Published = nil }, false, false},
		"host":        {func(e *schema.Experiment) { e.Host.PowerW = 300 }, false, false},
		"on_failure":  {func(e *schema.Experiment) { e.OnFailure = "restart" }, false, false},
		"expect":      {func(e *schema.Experiment) { e.Expect = &schema.Expect{DecodeTokS: 1} }, false, false},
		"sweep order": {func(e *schema.Experiment) { slices.Reverse(e.Sweep.Context) }, false, false},
		"preset":      {func(e *schema.Experiment) { e.Model.Preset, e.Model.ActiveWeightBytes = "", 1 }, false, false},
		"number form": {func(e *schema.Experiment) { e.Variants[0].Args["mem-fraction-static"] = json.Number("9.40e-1") }, false, false},
		"runtime":     {func(e *schema.Experiment) { e.Variants[1].Container.Runtime = "podman" }, false, false},
		"prompt path": {func(e *schema.Experiment) { e.Prompt.File, e.Prompt.FileHash = "", "" }, false, false},

		"model":      {func(e *schema.Experiment) { e.Model.DType = "fp8" }, true, true},
		"no model":   {func(e *schema.Experiment) { e.Model = nil }, true, true},
		"nested arg": {func(e *schema.Experiment) { setAll(e, "override", map[string]any{"rope": json.Number("2e6")}) }, true, true},
		"last digit": {func(e *schema.Experiment) { setAll(e, "mem-fraction-static", json.Number("0.940000000000000001")) }, true, true},
		"63-bit integer": {func(e *schema.Experiment) {
			setAll(e, "override", map[string]any{"seed": json.Number("9007199254740992")})
		}, true, true},
		"false for true": {func(e *schema.Experiment) { setAll(e, "enable-mixed-chunk", false) }, true, true},
		"text for num":   {func(e *schema.Experiment) { setAll(e, "page-size", "1") }, true, true},

		"prompt seed":    {func(e *schema.Experiment) { e.Prompt.Seed++ }, false, true},
		"nonce":          {func(e *schema.Experiment) { e.Prompt.Nonce = false }, false, true},
		"prompt content": {func(e *schema.Experiment) { e.Prompt.File, e.Prompt.FileHash = "a", "h" }, false, true},
		"a":              {func(e *schema.Experiment) { e.Method.TwoPoint.A = 2 }, false, true},
		"b":              {func(e *schema.Experiment) { e.Method.TwoPoint.B = 64 }, false, true},
		"warmup":         {func(e *schema.Experiment) { e.Method.TwoPoint.Warmup = false }, false, true},
		"settle":         {func(e *schema.Experiment) { e.Method.TwoPoint.Settle = schema.Settle{Mode: "none"} }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			beforeV, beforeP := ids(mustPlan(t, experiment()))
			exp := experiment()
			c.edit(&exp)
			if name == "nested arg" || c.variants && exp.Model != nil && exp.Model.DType == "bf16" {
				exp.Variants, beforeV, beforeP = exp.Variants[:2], beforeV[:2], beforeP[:12] // remote has no args
			}
			afterV, afterP := ids(mustPlan(t, exp))
			for i := range beforeV {
				if (beforeV[i] != afterV[i]) != c.variants {
					t.Errorf("variant %d: %s → %s", i, beforeV[i], afterV[i])
				}
			}
			for i := range beforeP {
				if (beforeP[i] != afterP[i]) != c.points {
					t.Errorf("point %d: %s → %s", i, beforeP[i], afterP[i])
				}
			}
		})
	}
}

func setAll(e *schema.Experiment, key string, v any) {
	for i := range e.Variants[:2] {
		e.Variants[i].Args = maps.Clone(e.Variants[i].Args)
		e.Variants[i].Args[key] = v
	}
}

func TestOtherMethods(t *testing.T) {
	exp := experiment()
	idsOf := func(m schema.Method) []string {
		exp.Method = m
		_, points := ids(mustPlan(t, exp))
		return points
	}
	few, many := schema.Repeats{Min: 3}, schema.Repeats{Min: 9}
	ab := func(a, b int, r schema.Repeats) schema.TwoPoint { return schema.TwoPoint{A: a, B: b, Repeats: r} }
	methods := []schema.Method{
		{Stream: &schema.Stream{Tokens: 64, Repeats: few}}, {Stream: &schema.Stream{Tokens: 65}},
		{MultiPoint: &schema.MultiPoint{TwoPoint: ab(1, 65, few), Budgets: 3}}, {MultiPoint: &schema.MultiPoint{TwoPoint: ab(1, 65, few), Budgets: 4}},
		{DecodeAtDepth: &schema.DecodeAtDepth{A: 1, B: 65}}, {DecodeAtDepth: &schema.DecodeAtDepth{A: 2, B: 65}}, {TwoPoint: ptr(ab(1, 65, few))},
	}
	seen := map[string]string{}
	for _, m := range methods {
		id := idsOf(m)[0]
		if seen[id] != "" {
			t.Errorf("%s and %s share the id %s", m.Name(), seen[id], id)
		}
		seen[id] = m.Name()
	}
	if a, b := idsOf(schema.Method{Stream: &schema.Stream{Tokens: 64, Repeats: few}}), idsOf(schema.Method{Stream: &schema.Stream{Tokens: 64, Repeats: many}}); !slices.Equal(a, b) {
		t.Errorf("repeats change the id: %s, %s", a[0], b[0])
	}
}

func TestBudgets(t *testing.T) {
	multi := func(n int) schema.Method { return schema.Method{MultiPoint: &schema.MultiPoint{Budgets: n}} }
	for _, c := range []struct {
		m    schema.Method
		a, b int
		want []int
	}{
		{schema.Method{TwoPoint: &schema.TwoPoint{}}, 1, 33, []int{1, 33}},
		{schema.Method{DecodeAtDepth: &schema.DecodeAtDepth{}}, 33, 129, []int{33, 129}},
		{schema.Method{Stream: &schema.Stream{}}, 0, 129, []int{129}},
		{multi(3), 1, 33, []int{1, 17, 33}},
		{multi(4), 1, 33, []int{1, 12, 22, 33}},
		{multi(5), 1, 3, []int{1, 2, 3}},
	} {
		if got := c.m.Budgets(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%s from %d to %d: %v, want %v", c.m.Name(), c.a, c.b, got, c.want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestSweep(t *testing.T) {
	for name, c := range map[string]struct {
		sweep  schema.Sweep
		points string // of variants a (base of cells: m) and b
		diags  string
	}{
		"product": {schema.Sweep{Context: []int{2, 1}, Concurrency: []int{1, 8}},
			"a/1/1 a/2/1 a/1/8 a/2/8 b/1/1 b/2/1 b/1/8 b/2/8", ""},
		"zip": {schema.Sweep{Context: []int{1, 2}, Concurrency: []int{8, 4}, Zip: true},
			"a/2/4 a/1/8 b/2/4 b/1/8", ""},
		"zip of unequal axes": {schema.Sweep{Context: []int{1, 2}, Concurrency: []int{8}, Zip: true},
			"", "sweep.zip: true: pairs the axes one to one, but context has 2 values and concurrency 1"},
		"exclude a variant at a range": {schema.Sweep{Context: []int{1, 2, 3}, Concurrency: []int{1},
			Exclude: []schema.Exclude{{Variant: []string{"b"}, Context: &schema.Range{Min: ptr(2)}}}},
			"a/1/1 a/2/1 a/3/1 b/1/1", ""},
		"exclude by base, values and concurrency": {schema.Sweep{Context: []int{1, 2, 3}, Concurrency: []int{1, 2},
			Exclude: []schema.Exclude{{Variant: []string{"m"}, Context: &schema.Range{Values: []int{1, 3}}, Concurrency: &schema.Range{Max: ptr(1)}}}},
			"a/2/1 a/1/2 a/2/2 a/3/2 b/1/1 b/2/1 b/3/1 b/1/2 b/2/2 b/3/2", ""},
		"exclude all of one": {schema.Sweep{Context: []int{1}, Concurrency: []int{1}, Exclude: []schema.Exclude{{Variant: []string{"a"}}}},
			"b/1/1", "variants.a: every point of this variant is excluded"},
		"exclude nothing": {schema.Sweep{Context: []int{1}, Concurrency: []int{1}, Exclude: []schema.Exclude{{Context: &schema.Range{Values: []int{9}}}}},
			"a/1/1 b/1/1", "sweep.exclude[0]: excludes no point"},
		"empty exclude": {schema.Sweep{Context: []int{1}, Concurrency: []int{1}, Exclude: []schema.Exclude{{}}},
			"*", "sweep.exclude[0]: names no variant, context or concurrency, so it would exclude everything"},
		"twice": {schema.Sweep{Context: []int{1, 2, 1}, Concurrency: []int{1}},
			"*", "sweep: lists context 1 with concurrency 1 more than once"},
		"zero": {schema.Sweep{Context: []int{1, 0}, Concurrency: []int{1}},
			"*", "sweep.context[1]: 0: must be at least 1"},
		"too many": {schema.Sweep{Context: make([]int, 2000), Concurrency: make([]int, 2000)},
			"*", "sweep: expands to 8000000 points for 2 variants; 1000000 is the most"},
		"none": {schema.Sweep{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, ds := New(schema.Experiment{Variants: []schema.Variant{{Name: "a", Base: "m", Engine: "x"}, {Name: "b", Engine: "y"}}, Sweep: c.sweep}, "", Options{})
			var keys []string
			for _, pt := range p.Points {
				keys = append(keys, pt.Key)
			}
			if got := strings.Join(keys, " "); got != c.points && c.points != "*" {
				t.Errorf("points %s, want %s", got, c.points)
			}
			var got string
			if i := slices.IndexFunc(ds, func(d diag.Diagnostic) bool { return d.String() == c.diags }); i >= 0 {
				got = ds[i].String()
			} else if len(ds) > 0 {
				got = ds[0].String()
			}
			if got != c.diags {
				t.Errorf("diagnostics %v, want %s", ds, c.diags)
			}
			if c.points == "*" && !ds.HasErrors() {
				t.Error("no error")
			}
		})
	}
}

func TestEqualVariants(t *testing.T) {
	exp := experiment()
	twin := exp.Variants[0]
	twin.Name, twin.Port = "twin", 1
	exp.Variants = append(exp.Variants, twin, exp.Variants[1])
	_, ds := New(exp, "", Options{})
	if len(ds) != 2 || !ds.HasErrors() || ds[0].Path != "variants.twin" || !strings.Contains(ds[0].Rule, "same content as variants.stock") ||
		ds[1].Path != "variants.split" || !strings.Contains(ds[1].Rule, "name is taken") {
		t.Errorf("%v", ds)
	}
}

func TestContentMustBeRead(t *testing.T) {
	exp := experiment()
	exp.Variants[1].FilesHash = ""
	exp.Prompt.Source, exp.Prompt.File = "file", "prompts.txt"
	if _, ds := New(exp, "", Options{}); len(ds) != 2 || !ds.HasErrors() {
		t.Errorf("%v", ds)
	}
}

// Experiments without servers have no points; kernels still need an order.
func TestNoServers(t *testing.T) {
	p := mustPlan(t, schema.Experiment{Name: "k", KernelBench: &schema.KernelBench{}, Sweep: schema.Sweep{Context: []int{1024}}})
	if len(p.Points) != 0 || len(p.Orders) != 1 {
		t.Errorf("%+v", p)
	}
	if p := mustPlan(t, schema.Experiment{Name: "p"}); len(p.Orders) != 0 {
		t.Errorf("%+v", p)
	}
}

func TestWorkOrder(t *testing.T) {
	p := mustPlan(t, experiment())
	p.Orders = []Order{{ID: "o1", Variants: []string{"split"}}, {ID: "o2", Variants: []string{"remote", "stock"}}}
	w, err := p.WorkOrder("o2", "run-1")
	if err != nil {
		t.Fatal(err)
	}
	if w.RunID != "run-1" || w.Order.ID != "o2" || len(w.Plan.Variants) != 2 || w.Plan.Variants[0].Name != "stock" ||
		len(w.Plan.Points) != 12 || len(w.Plan.Orders) != 1 || w.Plan.Published != nil || w.Plan.Prompt != p.Prompt {
		t.Errorf("%+v", w)
	}
	if err := w.Plan.check(); err != nil {
		t.Error(err)
	}
	if len(p.Points) != 18 || len(p.Variants) != 3 || len(p.Orders) != 2 {
		t.Error("the plan itself changed")
	}
	if _, err := p.WorkOrder("o9", "run-1"); err == nil || !strings.Contains(err.Error(), `no order "o9"`) {
		t.Errorf("unknown order: %v", err)
	}
}

func BenchmarkNew(b *testing.B) {
	exp := experiment()
	exp.Sweep.Context, exp.Sweep.Concurrency = nil, []int{1, 2, 4, 8, 16}
	for i := range 2000 {
		exp.Sweep.Context = append(exp.Sweep.Context, 1024+i)
	}
	exp.Variants = exp.Variants[:1]
	for i := range 9 {
		v := exp.Variants[0]
		v.Name, v.TP = fmt.Sprintf("tp-%d", i), 16+i
		exp.Variants = append(exp.Variants, v)
	}
	p, ds := New(exp, "", Options{})
	text, err := p.Encode()
	if len(ds) > 0 || len(p.Points) != 100_000 || err != nil {
		b.Fatal(len(p.Points), ds, err)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"new", func() error { New(exp, "", Options{}); return nil }},
		{"encode", func() error { _, err := p.Encode(); return err }},
		{"decode", func() error { _, err := Decode("plan.json", text); return err }},
	} {
		b.Run("step="+step.name+"/points=100000", func(b *testing.B) {
			for b.Loop() {
				if err := step.do(); err != nil {
					b.Fatal(err)
				}
			}
			// All that the Go runtime ever mapped: a bound on the peak.
			mapped := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
			metrics.Read(mapped)
			b.ReportMetric(float64(mapped[0].Value.Uint64())/1e6, "peak-MB")
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/op")
		})
	}
}
