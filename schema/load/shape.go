package load

import (
	"fmt"
	"math/big"
	"path"
	"regexp"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
)

// shape is what a definition allows at one place, read off the CUE definitions
// into plain Go. Alternatives of different kinds are one shape: a value is held
// against the alternative of its own kind only, so that no diagnostic speaks of
// branches that the author did not choose.
type shape struct {
	any bool // everything is allowed

	object   bool
	fields   map[string]*shape // closed struct
	names    []string          // its fields in order
	elem     *shape            // value of fields without a name of their own; nil: there are none
	list     bool
	item     *shape
	null     bool
	boolean  bool
	number   bool
	integer  bool
	min, max *big.Rat
	minOpen  bool // > rather than >=
	maxOpen  bool
	text     bool // any string
	enum     []string
	patterns []*regexp.Regexp

	presence presence
	dflt     *node  // for optional fields with a default
	rule     string // @rule, or ""
	size     bool   // @size: tokens, written with K or Ki
}

// presence says what becomes of a field that is not there.
type presence int

const (
	filled   presence = iota // its defaults are used
	optional                 // it stays away
	required                 // a mistake
)

// shapes derives the table once. The definitions are embedded, so an error in
// them is a programming mistake that every test would show.
var shapes = sync.OnceValue(func() map[string]*shape {
	ctx := cuecontext.New()
	v := ctx.BuildInstance(definitions())
	if err := v.Err(); err != nil {
		panic(fmt.Sprintf("embedded definitions: %v", err))
	}
	out := map[string]*shape{}
	for _, name := range []string{"#Experiment", "#Site"} {
		s := &shape{}
		s.add(v.LookupPath(cue.ParsePath(name)))
		out[name] = s
	}
	return out
})

// add makes s allow what v allows as well.
func (s *shape) add(v cue.Value) {
	op, args := v.Expr()
	if op == cue.SelectorOp {
		v = v.Eval()
		op, args = v.Expr()
	}
	if _, preset := v.Default(); preset && op == cue.NoOp && len(args) == 1 && !args[0].IsConcrete() {
		v = args[0] // a default beside one alternative that says what is allowed
		op, args = v.Expr()
	}
	if op == cue.OrOp {
		for _, a := range args {
			s.add(a)
		}
		return
	}
	switch k := v.IncompleteKind(); k {
	case cue.TopKind:
		s.any = true
	case cue.StructKind:
		s.addStruct(v)
	case cue.ListKind:
		s.list = true
		if e := v.LookupPath(cue.MakePath(cue.AnyIndex)); e.Exists() {
			if s.item == nil {
				s.item = &shape{}
			}
			s.item.add(e)
		}
	case cue.NullKind:
		s.null = true
	case cue.BoolKind:
		s.boolean = true
	case cue.StringKind:
		if lit, err := v.String(); err == nil {
			for _, e := range s.enum {
				if e == lit {
					return
				}
			}
			s.enum = append(s.enum, lit)
		} else if op == cue.RegexMatchOp {
			p, err := args[0].String()
			if err != nil {
				panic(err)
			}
			s.patterns = append(s.patterns, regexp.MustCompile(p))
		} else {
			s.text = true
		}
	case cue.IntKind, cue.FloatKind, cue.NumberKind:
		if v.IsConcrete() { // a default; the other alternative says what is allowed
			return
		}
		s.number = true
		s.addNumber(v)
	default:
		panic(fmt.Sprintf("definition %v: kind %v is not provided for", v.Path(), k))
	}
}

func (s *shape) addStruct(v cue.Value) {
	s.object = true
	if s.fields == nil {
		s.fields = map[string]*shape{}
	}
	if e := v.LookupPath(cue.MakePath(cue.AnyString)); e.Exists() {
		s.elem = &shape{}
		s.elem.add(e)
	}
	it, err := v.Fields(cue.Optional(true))
	if err != nil {
		panic(err)
	}
	for it.Next() {
		f, fv := &shape{}, it.Value()
		switch it.Selector().ConstraintType() {
		case cue.OptionalConstraint:
			f.presence = optional
		case cue.RequiredConstraint:
			f.presence = required
		}
		f.add(fv)
		if d, ok := fv.Default(); ok && f.presence == filled && d.IsConcrete() && d.Kind() != cue.StructKind {
			b, err := d.MarshalJSON()
			if err != nil {
				panic(err)
			}
			f.dflt = fromJSON(b)
		}
		if a := fv.Attribute("rule"); a.Err() == nil {
			f.rule, _ = a.String(0)
		}
		if a := fv.Attribute("size"); a.Err() == nil {
			f.size = true
			for _, in := range []*shape{f.item, f.fields["min"], f.fields["max"]} {
				if in != nil {
					in.size = true
				}
			}
		}
		name := it.Selector().Unquoted()
		s.fields[name] = f
		s.names = append(s.names, name)
	}
}

func (s *shape) addNumber(v cue.Value) {
	op, args := v.Expr()
	switch op {
	case cue.AndOp:
		for _, a := range args {
			s.addNumber(a)
		}
	case cue.OrOp:
		for _, a := range args {
			if !a.IsConcrete() {
				s.addNumber(a)
			}
		}
	case cue.SelectorOp:
		s.addNumber(v.Eval())
	case cue.CallOp: // math.MultipleOf(1)
		s.integer = true
	case cue.GreaterThanOp, cue.GreaterThanEqualOp, cue.LessThanOp, cue.LessThanEqualOp:
		if ref, _ := args[0].Expr(); ref != cue.NoOp {
			return // a bound by another field, which resolve checks
		}
		b, err := args[0].MarshalJSON()
		if err != nil {
			panic(err)
		}
		r, _ := rat(string(b))
		if op == cue.GreaterThanOp || op == cue.GreaterThanEqualOp {
			s.min, s.minOpen = r, op == cue.GreaterThanOp
		} else {
			s.max, s.maxOpen = r, op == cue.LessThanOp
		}
	}
}

// allows lists what the shape takes, in words.
func (s *shape) allows() string {
	if s.rule != "" {
		return s.rule
	}
	var parts []string
	if len(s.enum) > 0 && !s.text {
		for _, e := range s.enum {
			parts = append(parts, fmt.Sprintf("%q", e))
		}
		if len(parts) > 1 {
			parts = []string{"one of " + strings.Join(parts, ", ")}
		}
	}
	if s.number {
		parts = append(parts, s.numberRule())
	}
	if s.text {
		parts = append(parts, "a string")
	}
	if s.boolean {
		parts = append(parts, "true or false")
	}
	if s.list {
		what := "a list"
		if s.item != nil && !s.item.any {
			what = "a list, each " + s.item.allows()
		}
		parts = append(parts, what)
	}
	if s.object {
		what := "a struct"
		if len(s.names) > 0 {
			what = "a struct with " + strings.Join(s.names, ", ")
			if len(s.names) > 6 {
				what = "a struct"
			}
		}
		parts = append(parts, what)
	}
	return strings.Join(parts, " or ")
}

func (s *shape) numberRule() string {
	what := "a number"
	if s.integer {
		what = "a whole number"
	}
	bound := func(r *big.Rat) string {
		if r.IsInt() {
			return r.Num().String()
		}
		f, _ := r.Float64()
		return fmt.Sprint(f)
	}
	switch {
	case s.min != nil && s.max != nil && !s.minOpen && !s.maxOpen:
		return what + " from " + bound(s.min) + " to " + bound(s.max)
	case s.min != nil && s.minOpen && s.min.Sign() == 0:
		what += " above 0"
	case s.min != nil:
		what += " of at least " + bound(s.min)
	}
	if s.max != nil {
		what += map[bool]string{true: " below ", false: " up to "}[s.maxOpen] + bound(s.max)
	}
	return what
}

// index maps every field name of the language to the first place where it can
// stand, for suggestions. Names below maps are left out: their paths would hold
// a name that only the author can choose.
func (s *shape) index(prefix string, out map[string]string) {
	for _, name := range s.names {
		f := s.fields[name]
		p := join(prefix, name)
		if _, ok := out[name]; !ok {
			out[name] = p
		}
		if f.object && path.Base(prefix) != "published" {
			f.index(p, out)
		}
	}
}
