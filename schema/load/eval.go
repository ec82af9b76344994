package load

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"twopoint/schema/diag"
)

// setPrefix begins the file name of a value that came from the command line.
const setPrefix = "--set "

// place is a position of CUE in the terms of diag; positions inside the schema
// are none of the author's.
func place(p token.Pos) diag.Pos {
	if !p.IsValid() || filepath.Base(p.Filename()) == openSchema || strings.Contains(filepath.ToSlash(p.Filename()), importPath) {
		return diag.Pos{}
	}
	if strings.HasPrefix(p.Filename(), setPrefix) {
		return diag.Pos{File: p.Filename()}
	}
	name := shortPath(p.Filename())
	if name == "-.yaml" {
		name = "-"
	}
	return diag.Pos{File: name, Line: p.Line(), Column: p.Column()}
}

// shortPath is a path from the working directory, if it lies below it.
func shortPath(p string) string {
	if !filepath.IsAbs(p) {
		return p
	}
	if wd, err := os.Getwd(); err == nil {
		if r, err := filepath.Rel(wd, p); err == nil && filepath.IsLocal(r) {
			return r
		}
	}
	return p
}

// firstSyntaxError is one line: what follows a syntax error is guesswork.
func firstSyntaxError(err error) diag.List {
	return evaluation(err)[:1]
}

// evaluation turns CUE's errors into diagnostics, one line each, the author's
// own position first.
func evaluation(err error) diag.List {
	var ds diag.List
	for _, e := range errors.Errors(err) {
		ds = append(ds, describe(e))
	}
	if len(ds) == 0 {
		ds = diag.List{{Rule: oneLine(err.Error())}}
	}
	return ds
}

func describe(e errors.Error) diag.Diagnostic {
	format, args := e.Msg()
	d := diag.Diagnostic{Path: dataPath(e.Path()), Rule: oneLine(fmt.Sprintf(format, args...))}
	if d.Rule == "" {
		d.Rule = oneLine(e.Error())
	}
	// Errors of YAML carry "name:line: " in their text, and no position.
	seen := map[diag.Pos]bool{}
	for _, p := range append([]token.Pos{e.Position()}, e.InputPositions()...) {
		at := place(p)
		if at.File == "" || seen[at] {
			continue
		}
		seen[at] = true
		if d.Pos.File == "" {
			d.Pos = at
		} else if len(d.Also) < 2 {
			d.Also = append(d.Also, at)
		}
	}
	if m := linePrefix.FindStringSubmatch(d.Rule); m != nil && d.Pos.Line == 0 {
		d.Pos = diag.Pos{File: shortPath(m[1])}
		if line, err := strconv.Atoi(m[2]); err == nil {
			d.Pos.Line, d.Pos.Column = line, 1
		}
		if d.Pos.File == "-.yaml" {
			d.Pos.File = "-"
		}
		d.Rule = m[3]
	}
	if strings.HasPrefix(format, "undefined field") {
		d.Rule = "refers to " + strings.TrimPrefix(d.Rule, "undefined field: ") + ", which is not there"
	}
	return d
}

var linePrefix = regexp.MustCompile(`^(.*?\.ya?ml)(?::(\d+))?: (.*)$`)

func oneLine(s string) string {
	s = strings.TrimSuffix(strings.Join(strings.Fields(s), " "), ".")
	if r := []rune(s); len(r) > 200 {
		s = string(r[:197]) + "..."
	}
	return s
}

// dataPath is CUE's path below experiment.
func dataPath(labels []string) string {
	if len(labels) > 0 && labels[0] == "experiment" {
		labels = labels[1:]
	}
	p := ""
	for _, l := range labels {
		if i, err := strconv.Atoi(l); err == nil {
			p = index(p, i)
			continue
		}
		if u, err := strconv.Unquote(l); err == nil {
			l = u
		}
		p = join(p, l)
	}
	return p
}

// evaluator reads an evaluated spec into nodes.
type evaluator struct {
	src    *source
	errs   map[string][]diag.Diagnostic // by CUE path
	silent map[diag.Pos]bool            // places that were already reported
	ds     diag.List
	strict func() cue.Value // the experiment under the real schema, for references to defaults
}

// evaluate builds the instance and returns the experiment as a node.
func evaluate(src *source) (*node, *build.Instance, diag.List) {
	inst, ds := src.instance(false)
	if inst == nil || inst.Err != nil {
		return nil, inst, ds
	}
	ctx := cuecontext.New()
	v := ctx.BuildInstance(inst)
	e := &evaluator{src: src, errs: map[string][]diag.Diagnostic{}, silent: map[diag.Pos]bool{}, ds: ds}
	if v.Err() != nil && !v.LookupPath(cue.ParsePath("experiment")).Exists() {
		// References to nothing stop CUE before it evaluates anything. They are
		// reported, put out of the way, and the rest is looked at as well.
		bad := evaluation(v.Err())
		e.ds = append(e.ds, bad...)
		if inst, _ = src.instance(false); inst == nil {
			return nil, inst, e.ds
		}
		for _, d := range bad {
			e.silent[d.Pos] = true
		}
		e.blank(inst.Files)
		v = ctx.BuildInstance(inst)
	}
	e.strict = lazily(func() cue.Value {
		inst, _ := src.instance(true)
		if inst == nil || inst.Err != nil {
			return cue.Value{}
		}
		return cuecontext.New().BuildInstance(inst)
	})
	if err := v.Validate(); err != nil {
		for _, ce := range errors.Errors(err) {
			d := describe(ce)
			if d.Rule == "" || e.silent[d.Pos] {
				continue
			}
			key := strings.Join(ce.Path(), "\x00")
			e.errs[key] = append(e.errs[key], d)
		}
	}
	x := v.LookupPath(cue.ParsePath("experiment"))
	if !x.Exists() {
		if !e.ds.HasErrors() && len(e.errs) == 0 {
			e.ds = append(e.ds, noExperiment(v, src))
		}
		e.flush()
		return nil, inst, e.ds
	}
	n := e.node(x, []string{"experiment"}, diag.Pos{})
	e.flush()
	return n, inst, e.ds
}

// flush reports the errors that no node claimed.
func (e *evaluator) flush() {
	for _, k := range sortedKeys(e.errs) {
		e.ds = append(e.ds, e.errs[k]...)
	}
}

func lazily(f func() cue.Value) func() cue.Value {
	var v cue.Value
	done := false
	return func() cue.Value {
		if !done {
			v, done = f(), true
		}
		return v
	}
}

func noExperiment(v cue.Value, src *source) diag.Diagnostic {
	d := diag.Diagnostic{Rule: "there is no field experiment; a spec is experiment: {...}"}
	if it, err := v.Fields(); err == nil {
		for it.Next() {
			name := it.Selector().Unquoted()
			if near(name, []string{"experiment"}) != "" {
				d.Pos, d.Path, d.Suggest = keyPlace(it.Value()), name, "experiment"
				d.Rule = "unknown field where experiment was expected"
			}
		}
	}
	if d.Pos.File == "" {
		d.Pos = diag.Pos{File: shortPath(src.dir)}
		if src.data != "" {
			d.Pos = diag.Pos{File: shortPath(src.data)}
		} else if len(src.args) > 0 && src.args[0] != "." {
			d.Pos = diag.Pos{File: shortPath(filepath.Join(src.dir, src.args[0]))}
			if src.args[0] == "-" {
				d.Pos = diag.Pos{File: "-"}
			}
		}
	}
	return d
}

// blank replaces references at reported places by "anything".
func (e *evaluator) blank(files []*ast.File) {
	for _, f := range files {
		astutil.Apply(f, func(c astutil.Cursor) bool {
			x, ok := c.Node().(ast.Expr)
			if !ok || !e.silent[place(x.Pos())] || !isReference(x) {
				return true
			}
			top := ast.NewIdent("_")
			ast.SetPos(top, x.Pos())
			c.Replace(top)
			return false
		}, nil)
	}
}

// isReference tells whether x is a name, or a selection from one.
func isReference(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isReference(x.X)
	case *ast.IndexExpr:
		return isReference(x.X)
	}
	return false
}

// keyPlace is where a field's name stands.
func keyPlace(v cue.Value) diag.Pos {
	if f, ok := v.Source().(*ast.Field); ok {
		return place(f.Label.Pos())
	}
	return place(v.Pos())
}

// node reads one value. up is the place of the nearest value above it.
func (e *evaluator) node(v cue.Value, path []string, up diag.Pos) *node {
	n := &node{pos: place(v.Pos()), key: keyPlace(v)}
	expr, _ := v.Source().(ast.Expr)
	if f, ok := v.Source().(*ast.Field); ok {
		expr = f.Value
	}
	if expr != nil && place(expr.Pos()).File != "" {
		n.pos = place(expr.Pos())
	}
	if n.pos.File == "" {
		n.pos = up
	}
	if n.key.File == "" {
		n.key = n.pos
	}
	key := strings.Join(path, "\x00")
	if ds := e.errs[key]; ds != nil {
		delete(e.errs, key)
		e.ds = append(e.ds, ds...)
		return n
	}
	if d, ok := v.Default(); ok && v.IncompleteKind() != cue.StructKind && v.IncompleteKind() != cue.ListKind {
		v = d
	}
	switch v.IncompleteKind() {
	case cue.NullKind:
		n.kind = null
	case cue.BoolKind:
		if b, err := v.Bool(); err == nil {
			n.kind, n.text = boolean, strconv.FormatBool(b)
		}
	case cue.StringKind:
		if s, err := v.String(); err == nil {
			n.kind, n.text = text, s
		}
	case cue.IntKind, cue.FloatKind, cue.NumberKind:
		if b, err := v.MarshalJSON(); err == nil && v.IsConcrete() {
			n.kind, n.text = number, string(b)
		}
	case cue.BytesKind:
		e.report(n, path, "bytes are not a value of this language; write a string")
		return n
	case cue.ListKind:
		return e.list(n, v, path)
	case cue.StructKind:
		return e.object(n, v, path)
	default:
		// A struct or list in which something is wrong has no kind.
		if v.LookupPath(cue.MakePath(cue.Index(0))).Exists() {
			return e.list(n, v, path)
		}
		if it, err := v.Fields(); err == nil && it.Next() {
			return e.object(n, v, path)
		}
	}
	if lit, ok := expr.(*ast.BasicLit); ok {
		n.src = lit.Value
		if n.kind == number && json.Valid([]byte(lit.Value)) {
			n.text = lit.Value
		}
		if zero := leadingZero(e.src.content, lit.Pos()); n.kind == number && zero != "" {
			n.src = zero
			e.report(n, path, "a number that begins with 0 means different things to different readers; leave the 0 away, or quote it if it is a name")
			n.kind = bad
			return n
		}
	}
	if n.kind == bad && !e.silent[n.pos] {
		return e.unset(n, v, path)
	}
	return n
}

// unset handles a value that is only a constraint, or a reference to something
// that has no value: the real schema's defaults may give it one.
func (e *evaluator) unset(n *node, v cue.Value, path []string) *node {
	var sel []cue.Selector
	for _, p := range path {
		if i, err := strconv.Atoi(p); err == nil {
			sel = append(sel, cue.Index(i))
		} else if u, err := strconv.Unquote(p); err == nil {
			sel = append(sel, cue.Str(u))
		} else {
			sel = append(sel, cue.Str(p))
		}
	}
	if s := e.strict(); s.Exists() {
		if s = s.LookupPath(cue.MakePath(sel...)); s.Exists() {
			if b, err := s.MarshalJSON(); err == nil {
				return fromJSON(b).at(n)
			}
		}
	}
	rule := fmt.Sprintf("has no value, only the constraint %s", oneLine(fmt.Sprint(v)))
	if err := v.Err(); err != nil {
		rule = describe(errors.Errors(err)[0]).Rule
	}
	e.report(n, path, rule)
	return n
}

func (e *evaluator) report(n *node, path []string, rule string) {
	e.ds = append(e.ds, diag.Diagnostic{Pos: n.pos, Path: dataPath(path), Value: n.src, Rule: rule})
}

func (e *evaluator) list(n *node, v cue.Value, path []string) *node {
	n.kind = list
	for i := 0; ; i++ {
		x := v.LookupPath(cue.MakePath(cue.Index(i)))
		if !x.Exists() {
			return n
		}
		p := append(path[:len(path):len(path)], strconv.Itoa(i))
		n.items = append(n.items, e.node(x, p, n.pos))
	}
}

func (e *evaluator) object(n *node, v cue.Value, path []string) *node {
	n.kind = object
	it, err := v.Fields(cue.Hidden(true))
	if err != nil {
		e.report(n, path, oneLine(err.Error()))
		n.kind = bad
		return n
	}
	for it.Next() {
		sel := it.Selector()
		name := sel.String()
		if sel.LabelType() == cue.StringLabel {
			name = sel.Unquoted()
		}
		label := sel.String()
		if sel.LabelType() != cue.StringLabel {
			if strings.HasPrefix(name, "_") {
				n.hidden(name, keyPlace(it.Value()))
			}
			continue
		}
		n.keys = append(n.keys, name)
		n.items = append(n.items, e.node(it.Value(), append(path[:len(path):len(path)], label), n.pos))
	}
	return n
}

// leadingZero is the number at p as a data file has it, if it begins with a zero
// and goes on with digits; otherwise "".
func leadingZero(content []byte, p token.Pos) string {
	o := p.Offset()
	if !p.IsValid() || o < 0 || o >= len(content) || content[o] != '0' {
		return ""
	}
	end := o
	for end < len(content) && content[end] >= '0' && content[end] <= '9' {
		end++
	}
	if end-o < 2 {
		return ""
	}
	return string(content[o:end])
}

// fromJSON is a JSON value as a node without a place.
func fromJSON(b []byte) *node {
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	tok, err := dec.Token()
	if err != nil {
		return &node{}
	}
	return fromTokens(dec, tok)
}

func fromTokens(dec *json.Decoder, tok json.Token) *node {
	n := &node{}
	switch t := tok.(type) {
	case nil:
		n.kind = null
	case bool:
		n.kind, n.text = boolean, strconv.FormatBool(t)
	case json.Number:
		n.kind, n.text = number, t.String()
	case string:
		n.kind, n.text = text, t
	case json.Delim:
		n.kind = map[json.Delim]kind{'[': list, '{': object}[t]
		for dec.More() {
			if t == '{' {
				k, _ := dec.Token()
				n.keys = append(n.keys, fmt.Sprint(k))
			}
			next, err := dec.Token()
			if err != nil {
				return &node{}
			}
			n.items = append(n.items, fromTokens(dec, next))
		}
		dec.Token() // the closing delimiter
	}
	return n
}
