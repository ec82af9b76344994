// Package plan turns an experiment into everything that will be done: variants
// with their identities, points, and work orders. It is pure: it reads no file,
// no clock and no network. A run follows the plan in its folder and nothing
// else, so a plan is complete and round-trips through plan.json.
package plan

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"

	"twopoint/schema"
	"twopoint/schema/diag"
)

// FormatVersion is the version of plan.json.
const FormatVersion = 1

// Plan is a spec fully resolved. Title, Question and Published are for
// display; everything else is acted on.
type Plan struct {
	Format     int    `json:"format"`
	Experiment string `json:"experiment"`
	SpecHash   string `json:"spec_hash"` // of the spec's files as read

	Title    string `json:"title,omitempty"`
	Question string `json:"question,omitempty"`

	Seed      int64             `json:"seed"` // orders variants; bodies of prompts have their own
	Model     *schema.Model     `json:"model,omitempty"`
	Prompt    schema.Prompt     `json:"prompt"`
	Method    schema.Method     `json:"method"`
	Budget    schema.Budget     `json:"budget"`
	Limits    schema.Limits     `json:"limits"`
	Host      schema.HostPolicy `json:"host"`
	Gate      *schema.Gate      `json:"gate,omitempty"`
	OnFailure string            `json:"on_failure,omitempty"`
	Expect    *schema.Expect    `json:"expect,omitempty"`
	Baseline  string            `json:"baseline,omitempty"`

	KernelBench *schema.KernelBench         `json:"kernel_bench,omitempty"`
	Published   map[string]schema.Published `json:"published,omitempty"`

	Variants []Variant `json:"variants"` // as declared
	Points   []Point   `json:"points"`   // by variant as declared, then concurrency, then context, ascending
	Orders   []Order   `json:"orders"`
}

// Variant is a resolved server configuration with its identity: 12 hex digits
// of SHA-256 over canonical JSON of what reaches the server (design.md 2).
type Variant struct {
	ID string `json:"id"`
	schema.Variant
}

// Point is one cell to be measured. ID adds method, prompt, context and
// concurrency to the variant's identity; Key = variant/context/concurrency is
// its readable name, which survives an edit of the variant.
type Point struct {
	ID          string `json:"point_id"`
	Key         string `json:"point_key"`
	Variant     string `json:"variant"` // name
	Context     int    `json:"context"` // prompt tokens asked for
	Concurrency int    `json:"concurrency"`
}

// Order is the part of a plan that one machine executes, by reference.
type Order struct {
	ID       string        `json:"id"` // o1, o2, …; names the event file
	Target   schema.Target `json:"target"`
	Variants []string      `json:"variants"` // in the order in which they are deployed
}

// WorkOrder is an order with everything in it that an agent needs: a plan
// restricted to the order's variants and points.
type WorkOrder struct {
	RunID string `json:"run_id"`
	Order Order  `json:"order"`
	Plan  Plan   `json:"plan"`
}

// Options are the choices that a spec leaves to the command line.
type Options struct {
	Seed int64 // of the variants' order; 0: 1
}

// MaxPoints bounds what New expands, so that a slip in a spec is a diagnostic
// and not an exhausted machine.
const MaxPoints = 1_000_000

// OrderID is the id of the one work order that New makes.
const OrderID = "o1"

// New plans an experiment. The points are the product of variants, concurrency
// and context (paired where the sweep says zip) less what is excluded. The plan
// is usable if the list holds no errors.
//
// Variants are deployed in an order drawn from the seed and their identities,
// so that renaming a variant or adding one does not reorder the others.
func New(exp schema.Experiment, specHash string, opt Options) (Plan, diag.List) {
	p := Plan{
		Format: FormatVersion, Experiment: exp.Name, SpecHash: specHash,
		Title: exp.Title, Question: exp.Question,
		Seed: cmp.Or(opt.Seed, 1), Model: exp.Model, Prompt: exp.Prompt, Method: exp.Method,
		Budget: exp.Budget, Limits: exp.Limits, Host: exp.Host, Gate: exp.Gate,
		OnFailure: exp.OnFailure, Expect: exp.Expect, Baseline: exp.Baseline,
		KernelBench: exp.KernelBench, Published: exp.Published,
		Variants: []Variant{}, Points: []Point{}, Orders: []Order{},
	}
	var ds diag.List
	fail := func(path, value, rule string) {
		ds = append(ds, diag.Diagnostic{Path: path, Value: value, Rule: rule})
	}

	names := map[string]bool{}
	owner := map[string]string{} // variant id → name
	for _, v := range exp.Variants {
		path := "variants." + v.Name
		if names[v.Name] {
			fail(path, "", "this name is taken by another variant")
			continue
		}
		names[v.Name] = true
		if len(v.Files) > 0 && v.FilesHash == "" {
			fail(path+".files", "", "the content of these files is part of the variant's identity and was not read")
		}
		id, err := variantID(v, exp.Model)
		if err != nil {
			fail(path, "", err.Error())
			continue
		}
		if other, dup := owner[id]; dup {
			fail(path, "", fmt.Sprintf("has the same content as variants.%s, so its points would be the same points; change a setting, or drop it and raise method.two_point.repeats.deployments to measure one configuration in several server lives", other))
			continue
		}
		owner[id] = v.Name
		p.Variants = append(p.Variants, Variant{ID: id, Variant: v})
	}
	if p.Prompt.File != "" && p.Prompt.FileHash == "" && len(p.Variants) > 0 {
		fail("prompt.file", p.Prompt.File, "the content of this file is part of every point's identity and was not read")
	}

	cells, list := expand(exp.Sweep, len(p.Variants))
	ds = append(ds, list...)
	used := make([]bool, len(exp.Sweep.Exclude))
	idOf, err := pointIDs(exp.Method, exp.Prompt)
	if err != nil {
		fail("method", "", err.Error())
		return p, ds
	}
	p.Points = make([]Point, 0, len(cells)*len(p.Variants))
	seen := make(map[string]int, cap(p.Points))
	for _, v := range p.Variants {
		from := len(p.Points)
		for _, c := range cells {
			if excluded(exp.Sweep.Exclude, used, v, c) {
				continue
			}
			pt := Point{
				ID:      idOf(v.ID, c),
				Key:     v.Name + "/" + strconv.Itoa(c.context) + "/" + strconv.Itoa(c.concurrency),
				Variant: v.Name, Context: c.context, Concurrency: c.concurrency,
			}
			if i, dup := seen[pt.ID]; dup {
				fail("variants."+v.Name, "", fmt.Sprintf("%s and %s have the same id %s", p.Points[i].Key, pt.Key, pt.ID))
				continue
			}
			seen[pt.ID] = len(p.Points)
			p.Points = append(p.Points, pt)
		}
		if from == len(p.Points) && len(cells) > 0 {
			ds = append(ds, diag.Diagnostic{Severity: diag.Warning, Path: "variants." + v.Name, Rule: "every point of this variant is excluded"})
		}
	}
	for i, u := range used {
		if !u && len(p.Variants) > 0 && len(cells) > 0 {
			ds = append(ds, diag.Diagnostic{Severity: diag.Warning, Path: fmt.Sprintf("sweep.exclude[%d]", i), Rule: "excludes no point"})
		}
	}
	p.Points = slices.Clip(p.Points)

	if len(p.Variants) > 0 || p.KernelBench != nil {
		p.Orders = append(p.Orders, Order{ID: OrderID, Target: exp.Target, Variants: shuffled(p.Variants, p.Seed)})
	}
	return p, ds
}

// cell is one combination of the axes.
type cell struct{ context, concurrency int }

// expand is the sweep's cells by concurrency, then context, for that many
// variants.
func expand(s schema.Sweep, variants int) (cells []cell, ds diag.List) {
	fail := func(path, value, rule string) {
		ds = append(ds, diag.Diagnostic{Path: path, Value: value, Rule: rule})
	}
	for _, axis := range []struct {
		name   string
		values []int
	}{{"context", s.Context}, {"concurrency", s.Concurrency}} {
		for i, v := range axis.values {
			if v < 1 {
				fail(fmt.Sprintf("sweep.%s[%d]", axis.name, i), strconv.Itoa(v), "must be at least 1")
			}
		}
	}
	n := len(s.Context) * len(s.Concurrency)
	if s.Zip {
		n = len(s.Context)
		if len(s.Context) != len(s.Concurrency) {
			fail("sweep.zip", "true", fmt.Sprintf("pairs the axes one to one, but context has %d values and concurrency %d", len(s.Context), len(s.Concurrency)))
			return nil, ds
		}
	}
	if n*variants > MaxPoints {
		fail("sweep", "", fmt.Sprintf("expands to %d points for %d variants; %d is the most", n*variants, variants, MaxPoints))
		return nil, ds
	}
	cells = make([]cell, 0, n)
	for i, ctx := range s.Context {
		if s.Zip {
			cells = append(cells, cell{ctx, s.Concurrency[i]})
			continue
		}
		for _, c := range s.Concurrency {
			cells = append(cells, cell{ctx, c})
		}
	}
	slices.SortFunc(cells, func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.concurrency, b.concurrency), cmp.Compare(a.context, b.context))
	})
	unique := slices.Compact(slices.Clone(cells))
	if len(unique) < len(cells) {
		for i := 1; i < len(cells); i++ {
			if cells[i] == cells[i-1] {
				fail("sweep", "", fmt.Sprintf("lists context %d with concurrency %d more than once", cells[i].context, cells[i].concurrency))
				break
			}
		}
	}
	for i, e := range s.Exclude {
		if len(e.Variant) == 0 && e.Context == nil && e.Concurrency == nil {
			fail(fmt.Sprintf("sweep.exclude[%d]", i), "", "names no variant, context or concurrency, so it would exclude everything")
		}
	}
	return unique, ds
}

// excluded tells whether any exclude matches, and marks those that do.
func excluded(excludes []schema.Exclude, used []bool, v Variant, c cell) bool {
	hit := false
	for i, e := range excludes {
		if e.Matches(v.Variant, c.context, c.concurrency) {
			used[i], hit = true, true
		}
	}
	return hit
}

// shuffled is the variants' names by a hash of seed and identity.
func shuffled(variants []Variant, seed int64) []string {
	type keyed struct {
		key  [sha256.Size]byte
		name string
	}
	list := make([]keyed, len(variants))
	for i, v := range variants {
		list[i] = keyed{sha256.Sum256(fmt.Appendf(nil, "%d/%s", seed, v.ID)), v.Name}
	}
	slices.SortFunc(list, func(a, b keyed) int { return slices.Compare(a.key[:], b.key[:]) })
	names := make([]string, len(list))
	for i, k := range list {
		names[i] = k.name
	}
	return names
}

// Variant is the variant of that name.
func (p Plan) Variant(name string) (Variant, bool) {
	i := slices.IndexFunc(p.Variants, func(v Variant) bool { return v.Name == name })
	if i < 0 {
		return Variant{}, false
	}
	return p.Variants[i], true
}

// WorkOrder is the order with that id, with the part of the plan that its agent
// needs: its own variants and points, without what is only displayed or judged
// afterwards.
func (p Plan) WorkOrder(id, runID string) (WorkOrder, error) {
	i := slices.IndexFunc(p.Orders, func(o Order) bool { return o.ID == id })
	if i < 0 {
		return WorkOrder{}, fmt.Errorf("the plan of %s has no order %q", p.Experiment, id)
	}
	o := p.Orders[i]
	mine := make(map[string]bool, len(o.Variants))
	for _, name := range o.Variants {
		mine[name] = true
	}
	variants, points := p.Variants, p.Points
	p.Variants, p.Points, p.Orders, p.Published = []Variant{}, []Point{}, []Order{o}, nil
	for _, v := range variants {
		if mine[v.Name] {
			p.Variants = append(p.Variants, v)
		}
	}
	for _, pt := range points {
		if mine[pt.Variant] {
			p.Points = append(p.Points, pt)
		}
	}
	return WorkOrder{RunID: runID, Order: o, Plan: p}, nil
}
