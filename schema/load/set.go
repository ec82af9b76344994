package load

import (
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"twopoint/schema/diag"
)

// setting is one --set path=value. The path is below experiment.
type setting struct {
	text string
	path []string
}

func parseSets(sets []string) ([]setting, diag.List) {
	var out []setting
	var ds diag.List
	for _, s := range sets {
		path, _, ok := strings.Cut(s, "=")
		names, valid := splitPath(path)
		if !ok || !valid {
			ds = append(ds, diag.Diagnostic{Pos: diag.Pos{File: setPrefix + s}, Rule: "write --set path=value, such as --set 'sweep.context=[1024, 4096]'"})
			continue
		}
		if names[0] == "experiment" && len(names) > 1 {
			names = names[1:]
		}
		out = append(out, setting{s, names})
	}
	return out, ds
}

// splitPath splits at dots outside of quotes.
func splitPath(p string) ([]string, bool) {
	var names []string
	var cur strings.Builder
	quoted, any := false, false
	for _, r := range p {
		switch {
		case r == '"':
			quoted, any = !quoted, true
		case r == '.' && !quoted:
			if cur.Len() == 0 && !any {
				return nil, false
			}
			names = append(names, cur.String())
			cur.Reset()
			any = false
		default:
			cur.WriteRune(r)
		}
	}
	names = append(names, cur.String())
	return names, !quoted && (cur.Len() > 0 || any)
}

// value parses the right side afresh, since a syntax tree belongs to one file:
// a literal of CUE, or else a string.
func (s setting) value() ast.Expr {
	_, v, _ := strings.Cut(s.text, "=")
	x, err := parser.ParseExpr(setPrefix+s.text, v)
	if err == nil && isLiteral(x) {
		return x
	}
	lit := ast.NewString(v)
	if id, err := parser.ParseExpr(setPrefix+s.text, "x"); err == nil {
		ast.SetPos(lit, id.Pos())
	}
	return lit
}

// isLiteral tells whether x holds no references and no expressions.
func isLiteral(x ast.Expr) bool {
	ok := true
	ast.Walk(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Value != nil && !isLiteral(n.Value) {
				ok = false
			}
			return false // a label is no reference
		case *ast.BasicLit, *ast.StructLit, *ast.ListLit, *ast.UnaryExpr, *ast.CommentGroup, *ast.Comment:
		default:
			ok = false
		}
		return ok
	}, nil)
	return ok
}

// applySets edits the files: the value of the field at each path is replaced
// wherever it is written out, and a field that is nowhere is added.
func (s *source) applySets(files []*ast.File) diag.List {
	var ds diag.List
	for _, set := range s.sets {
		full := append([]string{"experiment"}, set.path...)
		ed := &editor{value: set.value()}
		var home *[]ast.Decl
		for _, f := range files {
			ed.edit(&f.Decls, full)
			if declares(f, "experiment") && home == nil {
				home = &f.Decls
			}
		}
		if ed.done {
			continue
		}
		if ed.deepest == nil {
			ed.deepest, ed.rest = home, full
		}
		if ed.deepest == nil {
			ds = append(ds, diag.Diagnostic{Pos: diag.Pos{File: setPrefix + set.text}, Rule: "there is no experiment to set this in"})
			continue
		}
		x := ed.value
		for i := len(ed.rest) - 1; i > 0; i-- {
			x = &ast.StructLit{Elts: []ast.Decl{field(ed.rest[i], x)}}
		}
		*ed.deepest = append(*ed.deepest, field(ed.rest[0], x))
	}
	return ds
}

func field(name string, x ast.Expr) *ast.Field {
	f := &ast.Field{Label: ast.NewString(name), Value: x}
	ast.SetPos(f.Label, x.Pos())
	return f
}

// editor replaces the values of the fields at one path.
type editor struct {
	value   ast.Expr
	done    bool
	deepest *[]ast.Decl // the innermost struct on the path that is written out
	rest    []string    // of the path, below deepest
}

func (e *editor) edit(decls *[]ast.Decl, path []string) {
	for i := 0; i < len(*decls); i++ {
		switch d := (*decls)[i].(type) {
		case *ast.EmbedDecl:
			e.enter(d.Expr, path)
		case *ast.Field:
			name, _, err := ast.LabelName(d.Label)
			if err != nil || name != path[0] {
				continue
			}
			switch {
			case len(path) > 1:
				e.enter(d.Value, path[1:])
			case !e.done:
				d.Value, e.done = e.value, true
			default:
				*decls = append((*decls)[:i:i], (*decls)[i+1:]...)
				i--
			}
		}
	}
}

func (e *editor) enter(x ast.Expr, path []string) {
	switch x := x.(type) {
	case *ast.StructLit:
		if e.deepest == nil || len(path) < len(e.rest) {
			e.deepest, e.rest = &x.Elts, path
		}
		e.edit(&x.Elts, path)
	case *ast.BinaryExpr:
		e.enter(x.X, path)
		e.enter(x.Y, path)
	case *ast.ParenExpr:
		e.enter(x.X, path)
	}
}
