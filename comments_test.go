package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// standard are methods whose meaning their interface in the standard library
// gives.
var standard = []string{"String", "Error", "Unwrap", "Is", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "Read", "Write", "Close", "Len", "Less", "Swap"}

// uncommented lists what a file exports without a comment.
func uncommented(fset *token.FileSet, f *ast.File) (out []string) {
	say := func(n ast.Node, what string) {
		out = append(out, fmt.Sprintf("%s: %s has no comment", fset.Position(n.Pos()), what))
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				on := receiver(d.Recv.List[0].Type)
				if !ast.IsExported(on) || slices.Contains(standard, name) {
					continue
				}
				if d.Doc == nil && d.Name.IsExported() {
					say(d, on+"."+name)
				}
				continue
			}
			if d.Doc == nil && d.Name.IsExported() {
				say(d, name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
						say(s, s.Name.Name)
					}
				case *ast.ValueSpec: // one comment may stand over a group
					for _, name := range s.Names {
						if name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
							say(s, name.Name)
						}
					}
				}
			}
		}
	}
	return out
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestComments: every package says what it is and every exported name what it
// means, in all files whatever they are built for.
func TestComments(t *testing.T) {
	fset := token.NewFileSet()
	described := map[string][]string{} // by folder: files with a package comment
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "runs" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		test := strings.HasSuffix(path, "_test.go")
		dir := filepath.Dir(path)
		if !test || described[dir] == nil && f.Doc != nil { // a package of tests alone says it in a test
			if _, ok := described[dir]; !ok {
				described[dir] = []string{}
			}
			if f.Doc != nil {
				described[dir] = append(described[dir], path)
			}
		}
		if !test {
			for _, line := range uncommented(fset, f) {
				t.Error(line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(described) < 20 {
		t.Fatalf("only %d packages were found", len(described))
	}
	for dir, files := range described {
		switch len(files) {
		case 0:
			t.Errorf("package %s has no comment: what comes in, what goes out, what it never does", dir)
		case 1:
		default:
			t.Errorf("package %s is described in %v", dir, files)
		}
	}
}

// TestUncommented: the check sees what is missing, and only that.
func TestUncommented(t *testing.T) {
	const src = `// Package p is p.
package p

type T struct{ X int }

func (T) M()             {}
func (*T) String() string { return "" }
func F()                 {}
func f()                 {}

var V = 1

// Doc.
const (
	A = 1
	B = 2
)

const C = 3 // after it

// G is one.
func G[X any]() {}

type hidden struct{}

func (hidden) Seen() {}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range uncommented(fset, f) {
		got = append(got, strings.Fields(line)[1])
	}
	if want := []string{"T", "T.M", "F", "V"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
