package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"twopoint/schema"
	"twopoint/schema/diag"
)

// Extend adds to the plan of a run what a later plan has beyond it. Old points
// keep their ids and stay even where the later spec no longer has them; order,
// seed and name of the run stay; stopping rule, budgets, limits, policies, claims and
// texts are the later plan's. It refuses, with one diagnostic a difference, if
// anything that old points were measured under changed under the same name.
func Extend(old, later Plan) (Plan, diag.List) {
	var ds diag.List
	differ := func(path string, before, after any, advice string) {
		for _, c := range changes(path, before, after) {
			ds = append(ds, diag.Diagnostic{Path: c.path, Value: c.after, Rule: c.was() + " when the run was planned; " + advice})
		}
	}
	const newRun = "start a new run for it"

	points := make(map[string]bool, len(old.Points))
	measured := map[string]bool{} // variants with old points
	byKey := make(map[string]string, len(old.Points))
	for _, pt := range old.Points {
		measured[pt.Variant] = true
		byKey[pt.Key] = pt.ID
		points[pt.ID] = true
	}
	if len(old.Points) > 0 {
		differ("model", geometryOf(old.Model), geometryOf(later.Model), newRun)
		differ("method", methodContent(old.Method), methodContent(later.Method), newRun)
		differ("prompt", promptContent(old.Prompt), promptContent(later.Prompt), newRun)
	}
	laterVariant := make(map[string]Variant, len(later.Variants))
	for _, w := range later.Variants {
		laterVariant[w.Name] = w
	}
	nameOf := make(map[string]string, len(old.Variants)) // variant id → old name
	for _, v := range old.Variants {
		nameOf[v.ID] = v.Name
		if w, ok := laterVariant[v.Name]; ok && measured[v.Name] {
			differ("variants."+v.Name, contentOf(v.Variant), contentOf(w.Variant), "give the changed variant a name of its own, or start a new run for it")
		}
	}
	for _, w := range later.Variants {
		if name, ok := nameOf[w.ID]; ok && name != w.Name {
			ds = append(ds, diag.Diagnostic{Path: "variants." + w.Name, Rule: fmt.Sprintf("has the content of the run's variant %s; keep that name, or change a setting", name)})
		}
	}
	for _, o := range old.Orders {
		for _, n := range later.Orders {
			if n.ID == o.ID && len(old.Points) > 0 {
				differ("target", o.Target, n.Target, "one run measures on one machine, so start a new run for the other")
			}
		}
	}
	if ds.HasErrors() {
		return old, ds
	}

	p := later
	p.Experiment, p.Seed = old.Experiment, old.Seed
	p.Baseline = cmp.Or(later.Baseline, old.Baseline)
	p.Variants = nil
	rank := map[string]int{} // variant → place in the merged plan
	for _, v := range append(slices.Clone(old.Variants), later.Variants...) {
		if _, dup := rank[v.Name]; dup {
			continue
		}
		if w, ok := laterVariant[v.Name]; ok {
			v = w // equal, or never measured
		}
		rank[v.Name] = len(p.Variants)
		p.Variants = append(p.Variants, v)
	}
	p.Points = slices.Clone(old.Points)
	for _, pt := range later.Points {
		switch id, dup := byKey[pt.Key]; {
		case !dup && !points[pt.ID]:
			p.Points = append(p.Points, pt)
		case id != pt.ID:
			ds = append(ds, diag.Diagnostic{Path: "variants." + pt.Variant, Value: pt.Key, Rule: fmt.Sprintf("is point %s in the run and %s by this version of twopoint, though nothing was changed; extend it with the version that planned it", id, pt.ID)})
			return old, ds
		}
	}
	slices.SortStableFunc(p.Points, func(a, b Point) int {
		return cmp.Or(
			cmp.Compare(rank[a.Variant], rank[b.Variant]),
			cmp.Compare(a.Concurrency, b.Concurrency),
			cmp.Compare(a.Context, b.Context))
	})
	p.Orders = nil
	for _, o := range old.Orders {
		o.Variants = slices.Clone(o.Variants)
		for _, n := range later.Orders {
			if n.ID != o.ID {
				continue
			}
			o.Target = n.Target // equal, or never used
			for _, name := range n.Variants {
				if !slices.Contains(o.Variants, name) {
					o.Variants = append(o.Variants, name)
				}
			}
		}
		p.Orders = append(p.Orders, o)
	}
	for _, n := range later.Orders {
		if !slices.ContainsFunc(old.Orders, func(o Order) bool { return o.ID == n.ID }) {
			p.Orders = append(p.Orders, n)
		}
	}
	return p, ds
}

// change is a difference between two values at a data path, as JSON text; an
// empty text is "not set".
type change struct{ path, before, after string }

func (c change) was() string {
	if c.before == "" {
		return "was not set"
	}
	if c.after == "" {
		return "is gone and was " + c.before
	}
	return "was " + c.before
}

// changes compares values by their canonical JSON and lists the innermost
// differences, sorted by path.
func changes(path string, before, after any) []change {
	return compare(path, decoded(before), decoded(after))
}

func decoded(v any) (out any) {
	b, err := schema.CanonicalJSON(v)
	if err != nil { // planned values have been encoded before
		return fmt.Sprint(v)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&out); err != nil {
		return string(b)
	}
	return out
}

func compare(path string, before, after any) (list []change) {
	b, okB := before.(map[string]any)
	a, okA := after.(map[string]any)
	if okA && okB {
		keys := slices.Collect(maps.Keys(b))
		for k := range a {
			if _, both := b[k]; !both {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			list = append(list, compare(path+"."+k, b[k], a[k])...)
		}
		return list
	}
	c := change{path, text(before), text(after)}
	if c.before != c.after {
		list = append(list, c)
	}
	return list
}

// text is a decoded value as JSON, or empty for none.
func text(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
