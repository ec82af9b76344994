package load

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue/literal"

	"twopoint/schema/diag"
)

// checker holds a node against a shape and collects what is wrong.
type checker struct {
	ds    diag.List
	data  bool              // the spec is YAML or JSON
	where map[string]string // where each field of the language stands
}

// check returns n with defaults filled in and whole numbers in plain digits.
// What is wrong is reported and comes back bad, so that later stages neither
// use it nor call it missing.
func (c *checker) check(s *shape, n *node, path string) *node {
	if s.any || n.kind == bad {
		return n
	}
	switch {
	case n.kind == object && s.object:
		return c.object(s, n, path)
	case n.kind == list && s.list:
		out := n.copy()
		for i, e := range n.items {
			if s.item != nil {
				out.items[i] = c.check(s.item, e, index(path, i))
			}
		}
		return out
	case n.kind == null && s.null, n.kind == boolean && s.boolean:
		return n
	case n.kind == text && (s.text || len(s.enum)+len(s.patterns) > 0):
		return c.text(s, n, path)
	case n.kind == number && s.number:
		return c.number(s, n, path)
	}
	d := diag.Diagnostic{Pos: n.pos, Path: path, Value: n.shown(), Rule: "must be " + s.allows()}
	switch {
	case n.kind == text && s.number:
		var info literal.NumInfo
		digits := strings.TrimLeft(n.text, "0")
		if literal.ParseNum(digits, &info) == nil {
			d.Suggest = digits
			if c.data {
				d.Rule += "; numbers have no quotes, and YAML and JSON know no K or Ki"
				d.Suggest = info.String()
			}
		}
	case n.kind == text && s.boolean:
		switch strings.ToLower(n.text) {
		case "on", "yes", "y", "true":
			d.Suggest = "true"
		case "off", "no", "n", "false":
			d.Suggest = "false"
		}
	case (n.kind == number || n.kind == boolean) && (s.text || len(s.enum)+len(s.patterns) > 0):
		d.Rule += "; a string is written in quotes"
		if s.text {
			d.Suggest = strconv.Quote(n.shown())
		}
	case n.kind != list && s.list && n.kind != object && n.kind != null:
		d.Suggest = "[" + n.shown() + "]"
	}
	return c.wrong(d, n)
}

func (c *checker) wrong(d diag.Diagnostic, n *node) *node {
	c.ds = append(c.ds, d)
	return (&node{kind: bad}).at(n)
}

func (c *checker) object(s *shape, n *node, path string) *node {
	out := n.copy()
	out.keys, out.items = nil, nil
	claimed := map[string]bool{} // fields that a misspelt one was probably meant to be
	for i, k := range n.keys {
		v := n.items[i]
		switch f := s.fields[k]; {
		case f != nil:
			out.set(k, c.check(f, v, join(path, k)))
			if f.size {
				c.hintSize(v, join(path, k))
			}
		case s.elem != nil:
			out.set(k, c.check(s.elem, v, join(path, k)))
		default:
			out.partial = true
			d := diag.Diagnostic{Pos: v.key, Path: join(path, k), Rule: "unknown field"}
			d.Suggest = near(k, s.names)
			if d.Suggest != "" {
				claimed[d.Suggest] = true
			} else if w, ok := c.elsewhere(k, path); ok {
				d.Suggest = w
			} else if len(s.names) <= 12 {
				d.Rule += "; there is " + strings.Join(s.names, ", ")
			}
			c.ds = append(c.ds, d)
		}
	}
	for _, h := range n.hiddenKeys {
		if m := near(strings.TrimLeft(h.name, "_#"), s.names); m != "" {
			c.ds = append(c.ds, diag.Diagnostic{Severity: diag.Warning, Pos: h.pos, Path: join(path, h.name),
				Rule: "a name that begins with _ is hidden and sets nothing", Suggest: m})
		}
	}
	for _, name := range s.names {
		f := s.fields[name]
		if out.get(name) != nil {
			continue
		}
		switch {
		case f.presence == optional:
		case claimed[name]:
			out.set(name, &node{kind: bad})
		case f.presence == required:
			c.ds = append(c.ds, diag.Diagnostic{Pos: n.pos, Path: join(path, name), Rule: "is missing; it must be " + f.allows()})
			out.set(name, &node{kind: bad, pos: n.pos})
		case f.dflt != nil:
			out.set(name, f.dflt)
		case f.object:
			out.set(name, c.object(f, newObject(), join(path, name)))
		}
	}
	return out
}

// elsewhere suggests the place where a field of that name belongs, if it is not
// here.
func (c *checker) elsewhere(name, path string) (string, bool) {
	if s, ok := synonyms[strings.ToLower(strings.ReplaceAll(name, "-", "_"))]; ok {
		return s, true
	}
	w, ok := c.where[name]
	return w, ok && w != join(path, name)
}

// synonyms are other programs' words for fields of the language.
var synonyms = map[string]string{
	"max_token": "method.two_point.a and b", "max_tokens": "method.two_point.a and b", "max_new_tokens": "method.two_point.a and b",
	"flags": "args", "arguments": "args", "options": "args", "environment": "env",
	"tensor_parallel_size": "tp", "tp_size": "tp", "data_parallel_size": "dp", "pipeline_parallel_size": "pp",
	"ctx": "context", "contexts": "sweep.context", "max_model_len": "context_length", "n_ctx": "context_length",
	"served_model_name": "served_name", "image": "container.image", "endpoint": "url", "base_url": "url",
	"iterations": "method.two_point.repeats", "warmup_requests": "method.two_point.warmup",
}

func (c *checker) text(s *shape, n *node, path string) *node {
	if s.text {
		return n
	}
	for _, e := range s.enum {
		if n.text == e {
			return n
		}
	}
	for _, p := range s.patterns {
		if p.MatchString(n.text) {
			if _, err := time.ParseDuration(n.text); err == nil {
				return n
			}
		}
	}
	d := diag.Diagnostic{Pos: n.pos, Path: path, Value: n.shown(), Rule: "must be " + s.allows()}
	if m := near(n.text, s.enum); m != "" {
		d.Suggest = strconv.Quote(m)
	}
	if _, err := strconv.ParseFloat(n.text, 64); err == nil && len(s.patterns) > 0 {
		d.Suggest = strconv.Quote(n.text + "s")
	}
	return c.wrong(d, n)
}

func (c *checker) number(s *shape, n *node, path string) *node {
	r, ok := rat(n.text)
	switch {
	case !ok,
		s.integer && !r.IsInt(),
		s.integer && !r.Num().IsInt64(),
		s.min != nil && (r.Cmp(s.min) < 0 || s.minOpen && r.Cmp(s.min) == 0),
		s.max != nil && (r.Cmp(s.max) > 0 || s.maxOpen && r.Cmp(s.max) == 0):
		rule := "must be " + s.allows()
		if ok && s.integer && r.IsInt() && !r.Num().IsInt64() {
			rule += " and fit 63 bits"
		}
		return c.wrong(diag.Diagnostic{Pos: n.pos, Path: path, Value: n.shown(), Rule: rule}, n)
	}
	if s.integer {
		return newNumber(r.Num().String()).at(n)
	}
	return n
}

// hintSize speaks up where K may have meant Ki: 32K is 32000.
func (c *checker) hintSize(n *node, path string) {
	if n.kind == list {
		for i, e := range n.items {
			c.hintSize(e, index(path, i))
		}
		return
	}
	unit, ok := map[string]int64{"K": 1000, "M": 1000 * 1000}[n.src[max(0, len(n.src)-1):]]
	if !ok || n.kind != number {
		return
	}
	r, ok := rat(n.text)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return
	}
	count := new(big.Rat).Quo(r, new(big.Rat).SetInt64(unit))
	if k := count.Num().Int64(); count.IsInt() && k > 0 && k&(k-1) == 0 {
		binary := map[int64]int64{1000: 1 << 10, 1000 * 1000: 1 << 20}[unit] * k
		c.ds = append(c.ds, diag.Diagnostic{Severity: diag.Hint, Pos: n.pos, Path: path, Value: n.src,
			Rule: fmt.Sprintf("is %s tokens; %si is %d", r.Num(), n.src, binary)})
	}
}

// near is the candidate that a misspelt name was probably meant to be, or "".
func near(name string, candidates []string) string {
	clean := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	best, dist := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		a, b := clean(name), clean(c)
		d := distance(a, b)
		if a+"s" == b || b+"s" == a {
			d = min(d, 1)
		}
		if len(name) <= 2 && d > 0 && a != b { // a is not a near miss of b
			continue
		}
		if d < dist {
			best, dist = c, d
		}
	}
	return best
}

// distance counts insertions, deletions, changes and swaps of neighbours that
// turn a into b (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}
