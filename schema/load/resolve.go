package load

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/schema"
	"twopoint/schema/diag"
)

const (
	defaultReadyTimeout = "10m"
	defaultFlush        = "auto"
)

// resolver turns a checked spec into the experiment: servers and variants
// merged, matrices expanded, presets and targets looked up.
type resolver struct {
	*checker
	shape *shape
	dir   string
	site  *site

	root     *node             // the checked spec
	merged   *node             // variants over their servers, before matrices
	hashes   map[string]string // of files, by declared variant
	unsound  map[string]bool   // declared variants with a faulty matrix or files
	placed   *node             // the spec with variants as they are run; for places
	doc      *node             // schema.Experiment as JSON
	language *node             // the spec with every default
	byName   map[string]*node  // variants as they are run

	unknownTarget *diag.Diagnostic
}

func (r *resolver) errorf(n *node, path, format string, args ...any) *diag.Diagnostic {
	d := diag.Diagnostic{Path: path, Rule: fmt.Sprintf(format, args...)}
	if n != nil {
		d.Pos = n.pos
	}
	r.ds = append(r.ds, d)
	return &r.ds[len(r.ds)-1]
}

func (r *resolver) resolve(root *node, name string) {
	r.root, r.hashes, r.unsound = root, map[string]string{}, map[string]bool{}
	lang, doc := root.copy(), root.copy()
	doc.set("name", newText(name))
	if root.get("title") == nil {
		lang.set("title", newText(name))
		doc.set("title", newText(name))
	}

	if m := r.model(root.get("model")); m != nil {
		lang.set("model", m)
		doc.set("model", m)
	} else {
		doc.set("model", nil)
	}
	doc.set("target", r.target(root.get("target")))

	method := r.method(root.get("method"))
	lang.set("method", method)
	for _, name := range methodNames {
		if m := method.get(name); m.is(object) && !m.get("b").is(number) { // "auto"
			method = method.with(name, m.with("b", nil))
		}
	}
	doc.set("method", method)

	gate := r.gate(root.get("gate"))
	lang.set("gate", gate)
	doc.set("gate", gate)

	r.mergeAll()
	lang.set("servers", r.bareServers())
	lang.set("variants", r.merged)
	cells := r.cells()
	doc.set("servers", nil)
	doc.set("matrix", nil)
	list, all := &node{kind: list}, newObject()
	r.byName = map[string]*node{}
	for _, v := range cells {
		name := v.get("name").text
		list.items = append(list.items, r.variantDoc(v))
		r.byName[name] = v
		all.keys, all.items = append(all.keys, name), append(all.items, v)
	}
	doc.set("variants", list)
	if d := root.get("variants"); d.is(object) {
		all.pos = d.pos
		for i, k := range d.keys {
			if r.byName[k] == nil { // a matrix, or faulty
				all.keys, all.items = append(all.keys, k), append(all.items, d.items[i])
			}
		}
	}
	r.placed = root.with("method", lang.get("method")).with("variants", all)

	names := r.names(cells)
	r.variantName("baseline", root.get("baseline"), names, false)
	doc.set("sweep", r.sweep(root.get("sweep"), names))
	doc.set("prompt", r.prompt(root.get("prompt")))
	if p := root.get("published"); p.is(object) {
		doc.set("published", r.published(p, names))
	}
	r.purpose(cells)
	r.language, r.doc = lang, withoutBad(doc)
}

// withoutBad drops what cannot be used.
func withoutBad(n *node) *node {
	if n.kind != object && n.kind != list {
		return n
	}
	out := &node{kind: n.kind, pos: n.pos, key: n.key, src: n.src}
	for i, e := range n.items {
		if e == nil || e.kind == bad {
			continue
		}
		if n.kind == object {
			out.keys = append(out.keys, n.keys[i])
		}
		out.items = append(out.items, withoutBad(e))
	}
	return out
}

// purpose warns of an experiment that does nothing.
func (r *resolver) purpose(cells []*node) {
	sweep := r.root.get("sweep")
	kb, pub := r.root.get("kernel_bench"), r.root.get("published")
	d := diag.Diagnostic{Severity: diag.Warning, Pos: r.root.pos}
	switch {
	case len(cells) > 0 && sweep == nil:
		d.Path, d.Rule = "sweep", "is missing, so no server is measured; say which contexts"
	case len(cells) == 0 && kb == nil && pub == nil && r.root.get("servers") == nil && r.root.get("variants") == nil:
		d.Rule = "declares nothing to measure and nothing published; add servers and a sweep"
	default:
		return
	}
	r.ds = append(r.ds, d)
}

// model is the geometry with its preset filled in, or nil.
func (r *resolver) model(n *node) *node {
	preset := func(name *node, path string) *node {
		m, ok := schema.Preset(name.text)
		if !ok {
			d := r.errorf(name, path, "no model preset has this name; there is %s, or give the geometry as a struct", strings.Join(schema.Presets(), ", "))
			d.Value = name.shown()
			if s := near(name.text, schema.Presets()); s != "" {
				d.Suggest = strconv.Quote(s)
			}
			return nil
		}
		b, err := json.Marshal(m)
		if err != nil {
			panic(err) // a preset always marshals
		}
		return fromJSON(b)
	}
	switch {
	case n.is(text):
		if m := preset(n, "model"); m != nil {
			return m.at(n)
		}
		return nil
	case n.is(object):
		if kv := n.get("kv"); kv.is(object) {
			r.oneOf(kv, "model.kv", []string{"mla", "gqa"})
		}
		out := newObject()
		if p := n.get("preset"); p.is(text) {
			if out = preset(p, "model.preset"); out == nil {
				return nil
			}
		} else if p == nil {
			for _, k := range []string{"name", "heads", "layers", "kv"} {
				if n.get(k) == nil {
					r.errorf(n, join("model", k), "is missing; a model without preset needs name, heads, layers and kv")
				}
			}
			out.set("dtype", newText("bf16"))
		}
		for i, k := range n.keys {
			out.set(k, n.items[i])
		}
		return out.at(n)
	}
	return nil
}

// oneOf reports a struct that does not hold exactly one of the names, and
// returns the one.
func (r *resolver) oneOf(n *node, path string, names []string) *node {
	var have []string
	var one *node
	for _, k := range names {
		if v := n.get(k); v != nil {
			have, one = append(have, k), v
		}
	}
	switch len(have) {
	case 1:
		return one
	case 0:
		if n.partial {
			return nil // the unknown field was reported
		}
		r.errorf(n, path, "must say one of %s", strings.Join(names, ", "))
	default:
		d := r.errorf(n, path, "says %s; only one can hold", strings.Join(have, " and "))
		for _, k := range have {
			d.Also = append(d.Also, n.get(k).key)
		}
	}
	return nil
}

// target is schema.Target: the name looked up in the site files.
func (r *resolver) target(n *node) *node {
	kinds := []string{"ssh", "slurm", "kube"}
	switch {
	case n.is(object):
		out := newObject()
		if one := r.oneOf(n, "target", kinds); one != nil {
			for i, k := range n.keys {
				if n.items[i] == one {
					out.set("name", newText(k))
					out.set(k, one)
				}
			}
		}
		return out
	case n.is(text) && n.text != "local":
		out := newObject().with("name", newText(n.text))
		if t, ok := r.site.targets[n.text]; ok {
			for i, k := range t.keys {
				out.set(k, t.items[i])
			}
			return out
		}
		d := diag.Diagnostic{Severity: diag.Warning, Pos: n.pos, Path: "target", Value: n.shown(),
			Rule: "no " + SiteFile + " above the spec and none of the user's knows this target"}
		if m := near(n.text, append(sortedKeys(r.site.targets), "local")); m != "" {
			d.Suggest = strconv.Quote(m)
		}
		r.unknownTarget = &d
		return out
	}
	return newObject().with("name", newText("local"))
}

var methodNames = []string{schema.MethodTwoPoint, schema.MethodStream, schema.MethodMultiPoint, schema.MethodDecodeAtDepth}

// method is the one way of measuring, two_point unless another is said.
func (r *resolver) method(n *node) *node {
	if !n.is(object) {
		return newObject()
	}
	said := 0
	for _, k := range methodNames {
		if n.get(k) != nil {
			said++
		}
	}
	if said > 1 {
		r.oneOf(n, "method", methodNames)
	}
	if said == 0 {
		n = n.with("two_point", r.check(r.shape.fields["method"].fields["two_point"], newObject(), "method.two_point"))
	}
	for _, k := range methodNames {
		r.legs(n.get(k), "method."+k)
	}
	return n
}

// legs checks what a method asks of its legs and when it stops.
func (r *resolver) legs(m *node, path string) {
	if a, b := m.get("a"), m.get("b"); a.is(number) && b.is(number) && b.int() <= a.int() {
		d := r.errorf(b, path+".b", "must be above a, which is %s", a.text)
		d.Value, d.Also = b.shown(), []diag.Pos{a.pos}
	} else if b.is(number) && a == nil && b.int() <= 1 {
		r.errorf(b, path+".b", "must be above a, which is at least 1").Value = b.shown()
	}
	rep := m.get("repeats")
	if lo, hi := rep.get("min"), rep.get("max"); lo.is(number) && hi.is(number) && hi.int() < lo.int() {
		path, at, other := path+".repeats.max", hi, lo
		rule := fmt.Sprintf("must be at least min, which is %s", lo.text)
		if hi.pos.File == "" {
			at, other = lo, nil
			path, rule = strings.TrimSuffix(path, "max")+"min", fmt.Sprintf("is above max, which is %s unless you say otherwise", hi.text)
		} else if lo.pos.File == "" {
			other = nil
			rule += " unless you say otherwise"
		}
		d := r.errorf(at, path, "%s", rule)
		d.Value = at.shown()
		if other != nil {
			d.Also = []diag.Pos{other.pos}
		}
	}
	lives := max(1, rep.get("deployments").int())
	if hi := rep.get("max"); hi.is(number) && (hi.int()+lives-1)/lives*lives < 3 {
		r.ds = append(r.ds, diag.Diagnostic{Severity: diag.Warning, Pos: hi.pos, Path: path + ".repeats.max", Value: hi.shown(),
			Rule: "fewer than 3 pairs have no interval: every point can only end unresolved"})
	}
}

// gate is the checks that are asked for, each with its settings in full.
func (r *resolver) gate(n *node) *node {
	if !n.is(object) {
		return nil
	}
	out := n.copy()
	out.keys, out.items = nil, nil
	for i, k := range n.keys {
		check, path := n.items[i], "gate."+k
		switch {
		case check.is(boolean) && check.text == "true":
			check = r.check(r.shape.fields["gate"].fields[k], newObject(), path).at(check)
		case !check.is(object):
			continue
		}
		if d := check.get("depth"); d.is(number) {
			check = check.with("depth", &node{kind: list, items: []*node{d}, pos: d.pos})
		} else if d.is(list) {
			r.depths(d, path+".depth")
		}
		if k == "agreement" && r.root.get("baseline") == nil && !n.partial {
			r.errorf(n.items[i], path, "compares with the baseline; say baseline: and the name of that variant")
		}
		out.set(k, check)
	}
	if len(out.keys) == 0 {
		return nil
	}
	return out
}

// maxDepths bounds the needles of a context.
const maxDepths = 32

func (r *resolver) depths(n *node, path string) {
	if len(n.items) == 0 {
		r.errorf(n, path, "is an empty list")
	} else if len(n.items) > maxDepths {
		r.errorf(n, path, "has %d depths; %d is the most", len(n.items), maxDepths)
	}
	first := map[string]*node{}
	for i, e := range n.items {
		q, ok := rat(e.text)
		if !e.is(number) || !ok {
			continue
		}
		if o := first[q.RatString()]; o != nil {
			d := r.errorf(e, index(path, i), "is there twice")
			d.Value, d.Also = e.shown(), []diag.Pos{o.pos}
		}
		first[q.RatString()] = e
	}
}

// names are all names that a variant answers to: cells by their own and by
// their declared variant's.
func (r *resolver) names(cells []*node) map[string]bool {
	out := map[string]bool{}
	for _, v := range cells {
		out[v.get("name").text] = true
		if b := v.get("base"); b != nil {
			out[b.text] = false
		}
	}
	return out
}

// variantName checks a reference to a variant. Where group is set, the declared
// variant of matrix cells stands for all of them.
func (r *resolver) variantName(path string, n *node, names map[string]bool, group bool) {
	if !n.is(text) {
		return
	}
	single, known := names[n.text]
	if known && (single || group) {
		return
	}
	d := r.errorf(n, path, "no variant has this name; there is %s", strings.Join(clip(sortedKeys(names), 8), ", "))
	d.Value = n.shown()
	switch {
	case len(names) == 0:
		d.Rule = "no variant has this name; the experiment has none"
	case known:
		d.Rule = "is a matrix; name one of its cells"
		for _, k := range sortedKeys(names) {
			if strings.HasPrefix(k, n.text+"[") {
				d.Suggest = strconv.Quote(k)
				break
			}
		}
	default:
		if m := near(n.text, sortedKeys(names)); m != "" {
			d.Suggest = strconv.Quote(m)
		}
	}
}

func clip(s []string, n int) []string {
	if len(s) > n {
		return append(s[:n:n], "…")
	}
	return s
}

// sweep is schema.Sweep: ranges and names of exclusions in their one form.
func (r *resolver) sweep(n *node, names map[string]bool) *node {
	out := newObject()
	if !n.is(object) {
		return out.with("context", &node{kind: list}).with("concurrency", &node{kind: list, items: []*node{newNumber("1")}})
	}
	nonce := r.root.find("prompt", "nonce")
	for _, axis := range []string{"context", "concurrency"} {
		l := n.get(axis)
		if !l.is(list) {
			continue
		}
		path := join("sweep", axis)
		if len(l.items) == 0 {
			r.errorf(l, path, "is an empty list")
		}
		first := map[string]*node{}
		for i, e := range l.items {
			if !e.is(number) {
				continue
			}
			if o := first[e.text]; o != nil {
				d := r.errorf(e, index(path, i), "is there twice")
				d.Value = e.text
				if o.pos != e.pos {
					d.Also = []diag.Pos{o.pos}
				}
			}
			first[e.text] = e
			if axis == "context" && nonce.is(boolean) && nonce.text == "true" && e.int() <= schema.NonceTokens {
				r.errorf(e, index(path, i), "must be above %d: the nonce alone takes that many tokens", schema.NonceTokens).Value = e.shown()
			}
		}
		out.set(axis, l)
	}
	zip := n.get("zip")
	out.set("zip", zip)
	if c, k := n.get("context"), n.get("concurrency"); zip.is(boolean) && zip.text == "true" && c.is(list) && k.is(list) && len(c.items) != len(k.items) {
		r.errorf(zip, "sweep.zip", "pairs the axes, so they need equal lengths; context has %d values and concurrency %d", len(c.items), len(k.items))
	}
	if ex := n.get("exclude"); ex.is(list) {
		l := &node{kind: list}
		for i, e := range ex.items {
			if !e.is(object) {
				continue
			}
			path := index("sweep.exclude", i)
			if len(e.keys) == 0 && !e.partial {
				r.errorf(e, path, "is empty and would exclude every point; say variant, context or concurrency")
			}
			o := newObject()
			if v := e.get("variant"); v != nil {
				vl := v
				if v.is(text) {
					vl = &node{kind: list, items: []*node{v}}
				}
				for j, name := range vl.items {
					p := join(path, "variant")
					if v.is(list) {
						p = index(p, j)
					}
					r.variantName(p, name, names, true)
				}
				o.set("variant", vl)
			}
			for _, axis := range []string{"context", "concurrency"} {
				if rg := e.get(axis); rg != nil {
					o.set(axis, r.rangeDoc(rg, join(path, axis)))
				}
			}
			l.items = append(l.items, o)
		}
		out.set("exclude", l)
	}
	return out
}

func (r *resolver) rangeDoc(n *node, path string) *node {
	switch n.kind {
	case number:
		return newObject().with("values", &node{kind: list, items: []*node{n}})
	case list:
		if len(n.items) == 0 {
			r.errorf(n, path, "is an empty list and excludes nothing")
		}
		return newObject().with("values", n)
	case object:
		if lo, hi := n.get("min"), n.get("max"); lo.is(number) && hi.is(number) && lo.int() > hi.int() {
			d := r.errorf(hi, join(path, "max"), "is below min, which is %s", lo.text)
			d.Value, d.Also = hi.shown(), []diag.Pos{lo.pos}
		} else if len(n.keys) == 0 && !n.partial {
			r.errorf(n, path, "must say min, max or both")
		}
	}
	return n
}

// prompt is schema.Prompt with the file's hash.
func (r *resolver) prompt(n *node) *node {
	if !n.is(object) {
		return newObject()
	}
	src, file := n.get("source"), n.get("file")
	switch {
	case src.str() == "file" && file == nil:
		r.errorf(src, "prompt.file", "is missing; source \"file\" needs one")
	case src.is(text) && src.text != "file" && file != nil:
		d := r.errorf(file, "prompt.file", "is only read with source: \"file\"; source is %q", src.text)
		d.Value = file.shown()
	case file.is(text):
		if sum, ok := r.hashFiles([]*node{file}, []string{"prompt.file"}); ok {
			n = n.with("file_hash", newText(sum))
		}
	}
	return n
}

// published splits tables into cells and the rest.
func (r *resolver) published(n *node, names map[string]bool) *node {
	out := newObject().at(n)
	named := map[string]bool{}
	for _, k := range []string{"source", "definition", "measured_on", "scope", "claims"} {
		named[k] = true
	}
	for i, block := range n.items {
		if !block.is(object) {
			continue
		}
		b, cells := newObject(), newObject()
		for j, k := range block.keys {
			v := block.items[j]
			if named[k] {
				b.set(k, v)
				if k == "claims" {
					r.claims(v, join(join("published", n.keys[i]), k), names)
				}
				continue
			}
			path := join(join("published", n.keys[i]), k)
			r.cellValues(v, k, path)
			for l, variant := range v.keys {
				r.mentioned(variant, join(path, variant), v.items[l].key, names)
			}
			cells.set(k, v)
		}
		if len(cells.keys) > 0 {
			b.set("cells", cells)
		}
		out.set(n.keys[i], b)
	}
	return out
}

// claims looks at the variants that claims name.
func (r *resolver) claims(n *node, path string, names map[string]bool) {
	if !n.is(object) {
		return
	}
	for i, id := range n.keys {
		c, p := n.items[i], join(path, id)
		for _, k := range []string{"of", "order"} {
			v := c.get(k)
			if v.is(text) {
				r.mentioned(v.text, join(p, k), v.pos, names)
			}
			for j, e := range v.elements() {
				r.mentioned(e.str(), index(join(p, k), j), e.pos, names)
			}
		}
		for _, k := range []string{"at", "num", "den"} {
			if v := c.find(k, "variant"); v.is(text) {
				r.mentioned(v.text, join(join(p, k), "variant"), v.pos, names)
			}
		}
	}
}

// mentioned hints at a published variant that is probably one of the spec's own,
// misspelt. Others are fine: a table may have more than is run.
func (r *resolver) mentioned(variant, path string, at diag.Pos, names map[string]bool) {
	if _, ok := names[variant]; ok {
		return
	}
	if m := near(variant, sortedKeys(names)); m != "" {
		r.ds = append(r.ds, diag.Diagnostic{Severity: diag.Hint, Pos: at, Path: path, Rule: "no variant has this name", Suggest: m})
	}
}

var digits = regexp.MustCompile(`^[1-9][0-9]*$`)

func (r *resolver) cellValues(metric *node, name, path string) {
	if !metric.is(object) {
		return
	}
	for i, variant := range metric.items {
		if !variant.is(object) {
			continue
		}
		for j, label := range variant.keys {
			v, p := variant.items[j], join(join(path, metric.keys[i]), label)
			if !digits.MatchString(label) {
				d := r.errorf(v, p, "a cell is named by its prompt tokens in plain digits, such as \"1424\"; put the source's own label in label:")
				d.Pos = v.key
			}
			if v.is(object) {
				v, p = v.get("value"), join(p, "value")
			}
			switch {
			case name == "event" && v.is(number):
				r.errorf(v, p, "must be a failure kind or \"ok\"").Value = v.shown()
			case name != "event" && v.is(text):
				r.errorf(v, p, "must be a number, or null for a value that the source leaves out").Value = v.shown()
			}
		}
	}
}

// conflicts checks what only the whole experiment shows.
func (r *resolver) conflicts(x *schema.Experiment) {
	r.twins(x)
	r.limits(x)
	r.deadlines(x)
	r.idleServers(x)
	r.embedded(x)
	for _, v := range x.Variants {
		if v.URL == "" {
			continue
		}
		place := r.byName[v.Name].get("url")
		if d := r.root.find("method", x.Method.Name(), "repeats", "deployments"); d.int() > 1 {
			e := r.errorf(d, "method."+x.Method.Name()+".repeats.deployments", "must be 1: variant %s is a running server that twopoint does not restart", v.Name)
			e.Value, e.Also = d.shown(), []diag.Pos{place.pos}
		}
		if f := r.root.get("on_failure"); f.str() == "restart" {
			e := r.errorf(f, "on_failure", "cannot be done: variant %s is a running server that twopoint does not restart", v.Name)
			e.Value, e.Also = f.shown(), []diag.Pos{place.pos}
		}
		break
	}
}

// embedded lets the embedded server load the spec's model, whose geometry every
// derived figure rests on.
func (r *resolver) embedded(x *schema.Experiment) {
	if x.Model == nil || x.Model.Preset == "" {
		return
	}
	for i := range x.Variants {
		v := &x.Variants[i]
		if v.Engine != "twopoint" || v.URL != "" || v.ModelPath == x.Model.Preset {
			continue
		}
		if v.ModelPath == "" {
			v.ModelPath = x.Model.Preset
			continue
		}
		n := r.byName[v.Name].get("model_path")
		e := r.errorf(n, "variants."+v.Name+".model_path", "is not the model of the spec, %s, whose geometry is used for derived figures", x.Model.Preset)
		e.Value, e.Suggest, e.Also = n.shown(), fmt.Sprintf("%q", x.Model.Preset), []diag.Pos{r.root.get("model").pos}
	}
}

// idleServers warns of servers that no variant uses.
func (r *resolver) idleServers(x *schema.Experiment) {
	servers := r.root.get("servers")
	if r.ds.HasErrors() || !servers.is(object) {
		return // a variant that is faulty may be the one
	}
	used := map[string]bool{}
	for _, v := range x.Variants {
		used[v.Server] = true
	}
	for i, name := range servers.keys {
		if !used[name] {
			r.ds = append(r.ds, diag.Diagnostic{Severity: diag.Warning, Pos: servers.items[i].pos, Path: join("servers", name), Rule: "no variant uses this server"})
		}
	}
}

// twins reports variants that come to the same configuration.
func (r *resolver) twins(x *schema.Experiment) {
	seen := map[string]string{}
	for _, v := range x.Variants {
		name := v.Name
		if declared := cmp.Or(v.Base, name); r.unsound[declared] || !r.merged.get(declared).sound() {
			continue
		}
		v.Name, v.Base, v.Server, v.Host, v.Port, v.Cell, v.ReadyTimeout = "", "", "", "", 0, nil, 0
		b, err := schema.CanonicalJSON(v)
		if err != nil {
			continue // a number that no engine takes; reported where it is used
		}
		if other, ok := seen[string(b)]; ok {
			a, o := r.byName[name], r.byName[other]
			d := r.errorf(a, join("variants", name), "is the same configuration as %s, so it would be measured twice under one identity", other)
			if o.pos != a.pos {
				d.Also = []diag.Pos{o.pos}
			}
			continue
		}
		seen[string(b)] = name
	}
}

// shortestLimit is the least that a limit of a request can be: below it every
// request fails, however good the server.
const shortestLimit = schema.Duration(time.Millisecond)

// deadlines reports limits that no request can keep.
func (r *resolver) deadlines(x *schema.Experiment) {
	for name, d := range map[string]schema.Duration{"connect": x.Limits.Connect, "first_token": x.Limits.FirstToken, "total": x.Limits.Total} {
		if n := r.root.find("limits", name); n != nil && d > 0 && d < shortestLimit {
			r.errorf(n, "limits."+name, "must be at least %s; leave it out for no limit of your own", shortestLimit).Value = n.shown()
		}
	}
}

// limits reports contexts that do not fit a server or the model.
func (r *resolver) limits(x *schema.Experiment) {
	places := r.root.find("sweep", "context")
	reported := map[string]bool{}
	room := max(1, x.Method.Legs().B)
	report := func(i, limit int, what string, at diag.Pos) {
		n := x.Sweep.Context[i]
		key := fmt.Sprint(i, limit, at)
		if reported[key] {
			return
		}
		reported[key] = true
		e := places.items[i]
		d := r.errorf(e, index("sweep.context", i), "%s", "")
		d.Value = e.shown()
		if n > limit {
			d.Rule = fmt.Sprintf("is above %s of %d; lower it or raise the limit", what, limit)
		} else {
			d.Rule = fmt.Sprintf("leaves no room for %d generated tokens under %s of %d; lower it or raise the limit", room, what, limit)
		}
		if at.File != "" {
			d.Also = []diag.Pos{at}
		}
	}
	if len(places.elements()) != len(x.Sweep.Context) {
		return // some contexts are bad, and indices no longer agree
	}
	for _, v := range x.Variants {
		if v.ContextLength == 0 && (x.Model == nil || x.Model.ContextLength == 0) {
			continue
		}
		limit, what, at := v.ContextLength, "the context_length", r.byName[v.Name].get("context_length")
		if limit == 0 {
			limit, what, at = x.Model.ContextLength, "the model's limit", r.root.get("model")
			if c := at.get("context_length"); c != nil {
				at = c
			}
		}
		for i, n := range x.Sweep.Context {
			if n+room > limit && !excluded(x, v, i, n) {
				report(i, limit, what, at.pos)
			}
		}
	}
}

func (n *node) elements() []*node {
	if n.is(list) {
		return n.items
	}
	return nil
}

// excluded tells whether a context is excluded for a variant at every
// concurrency.
func excluded(x *schema.Experiment, v schema.Variant, i, context int) bool {
	for j, c := range x.Sweep.Concurrency {
		if x.Sweep.Zip && i != j {
			continue
		}
		if !slices.ContainsFunc(x.Sweep.Exclude, func(e schema.Exclude) bool { return e.Matches(v, context, c) }) {
			return false
		}
	}
	return true
}

// withUser tells whether an address holds what a plan must not keep.
func withUser(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.User != nil
}

func validURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
