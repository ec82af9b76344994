package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"twopoint/results/stat"
	"twopoint/results/table"
	"twopoint/runner/failure"
)

// statCodes are the constants of type Code in package stat: their values.
func statCodes(t *testing.T) (codes []string) {
	t.Helper()
	files, err := filepath.Glob("results/stat/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if name, ok := spec.Type.(*ast.Ident); !ok || name.Name != "Code" {
				return true
			}
			for _, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok {
					if code, err := strconv.Unquote(lit.Value); err == nil {
						codes = append(codes, code)
					}
				}
			}
			return true
		})
	}
	if len(codes) < 40 {
		t.Fatalf("only %d codes were found: %q", len(codes), codes)
	}
	return codes
}

// TestValidityPage: docs/validity.md explains every reason, doubt, status and kind
// of failure in a row of a table, none that does not exist, and names only columns
// that the tables have.
func TestValidityPage(t *testing.T) {
	text, err := os.ReadFile("docs/validity.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]string{} // first cell of a table's row, by the table's first heading
	heading := ""
	word := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 4:
			heading = ""
		case heading == "":
			heading = strings.TrimSpace(cells[1])
		default:
			for _, m := range word.FindAllStringSubmatch(cells[1], -1) {
				if before, twice := explained[m[1]]; twice && before == heading {
					t.Errorf("%s is explained twice as a %s", m[1], heading)
				}
				explained[m[1]] = heading
			}
		}
	}
	known := map[string]string{}
	for _, code := range statCodes(t) {
		known[code] = "reason or doubt"
	}
	for _, status := range []string{stat.OK, stat.Unresolved, stat.Invalid, stat.Failed, stat.Skipped, stat.Pending} {
		known[status] = "status"
	}
	for _, kind := range failure.Kinds {
		if _, also := known[string(kind)]; !also { // cancelled is a reason too
			known[string(kind)] = "failure_kind"
		}
	}
	for _, method := range []string{"two_point", "multi_point", "stream", "decode_at_depth"} {
		known[method] = "method"
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if explained[name] == "" {
			t.Errorf("docs/validity.md does not explain the %s %s", known[name], name)
		}
	}
	columns := map[string]bool{}
	for _, c := range table.Columns() {
		columns[c.Name], columns[c.Table] = true, true
	}
	for name, heading := range explained {
		if heading == "column" && !columns[name] {
			t.Errorf("docs/validity.md explains the column %s, which no table has", name)
		}
		if heading != "column" && known[name] == "" {
			t.Errorf("docs/validity.md explains %s (under %s), which does not exist", name, heading)
		}
	}
}
