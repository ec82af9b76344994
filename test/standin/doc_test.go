package standin_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the switches in docs/standin.md")

// TestPage keeps the switches in docs/standin.md equal to those of Script.
func TestPage(t *testing.T) {
	const page, head = "../../docs/standin.md", "## Switches\n"
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	written, _, ok := strings.Cut(string(have), head)
	if !ok {
		t.Fatalf("%s has no %q", page, head)
	}
	want := written + head + switches(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(have) != want {
		t.Error("docs/standin.md is not what script.go says; repair it with: go test ./test/standin -update")
	}
}

var words = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)

// key is a field's name in JSON.
func key(t *testing.T, f *ast.Field) string {
	t.Helper()
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
	return name
}

// switches are the fields of a script, by their names in JSON, with the comments
// of script.go.
func switches(t *testing.T) string {
	file, err := parser.ParseFile(token.NewFileSet(), "script.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]*ast.TypeSpec{}
	docs := map[string]string{}
	for _, d := range file.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		types[spec.Name.Name], docs[spec.Name.Name] = spec, gen.Doc.Text()
	}
	keys := map[string]string{} // of fields, by their names in Go
	for _, spec := range types {
		fields, is := spec.Type.(*ast.StructType)
		if !is {
			continue
		}
		for _, f := range fields.Fields.List {
			for _, n := range f.Names {
				keys[n.Name] = key(t, f)
			}
		}
	}
	inJSON := func(text string) string {
		lines := strings.SplitAfter(text, "\n")
		for i, line := range lines {
			lines[i] = words.ReplaceAllStringFunc(line, func(w string) string {
				switch k, is := keys[w]; {
				case !is:
					return w
				case strings.HasPrefix(line, "\t"):
					return k
				default:
					return "`" + k + "`"
				}
			})
		}
		return strings.Join(lines, "")
	}
	var out strings.Builder
	var table func(of, name string)
	table = func(of, name string) {
		s := types[of].Type.(*ast.StructType)
		fmt.Fprintf(&out, "\n### %s\n\n%s\n| switch | meaning |\n|---|---|\n", name, inJSON(docs[of]))
		var below [][2]string
		for _, f := range s.Fields.List {
			key, kind := key(t, f), f.Type
			if list, is := kind.(*ast.ArrayType); is {
				kind = list.Elt
			}
			if id, is := kind.(*ast.Ident); is && types[id.Name] != nil {
				below = append(below, [2]string{id.Name, key})
				continue
			}
			text := strings.TrimSpace(f.Comment.Text())
			if text == "" {
				text = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
			fmt.Fprintf(&out, "| `%s` | %s |\n", key, strings.ReplaceAll(inJSON(text), "|", "·"))
		}
		for _, b := range below {
			table(b[0], b[1])
		}
	}
	table("Script", "script")
	return out.String()
}
