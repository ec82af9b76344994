package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	cuejson "cuelang.org/go/encoding/json"
	"cuelang.org/go/encoding/yaml"

	"twopoint/schema"
	"twopoint/schema/diag"
)

const (
	ownModule  = "twopoint.local"
	importPath = ownModule + "/schema"
	openSchema = "twopoint-allows-everything.cue" // stands in for the definitions
)

// source is where a spec's text comes from.
type source struct {
	dir     string   // the spec's folder, absolute
	name    string   // of the experiment
	args    []string // for cue/load; nil for data files
	pkg     string   // the package to load from a folder
	ignore  []string // files of the folder that are no CUE and no part of the spec
	stdin   []byte
	data    string // path of a YAML or JSON file, or "" for CUE
	content []byte // of the data file
	sets    []setting
}

// open decides what arg names and which of a folder's files are the spec.
func open(arg string, opt Options) (*source, diag.List) {
	if arg == "-" {
		return openStdin(opt)
	}
	abs, err := filepath.Abs(arg)
	if err != nil {
		return nil, failure(arg, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, diag.List{{Pos: diag.Pos{File: arg}, Rule: "there is no such spec; give a folder, a .cue, .yaml or .json file, or - for standard input"}}
		}
		return nil, failure(arg, err)
	}
	if info.IsDir() {
		return openFolder(abs)
	}
	base := filepath.Base(abs)
	s := &source{dir: filepath.Dir(abs), name: strings.TrimSuffix(base, filepath.Ext(base))}
	if s.name == "spec" {
		s.name = filepath.Base(s.dir)
	}
	switch filepath.Ext(base) {
	case ".cue":
		s.args = []string{"./" + base}
		return s, syntax(abs)
	case ".yaml", ".yml", ".json":
		s.data = abs
		if s.content, err = os.ReadFile(abs); err != nil {
			return nil, failure(arg, err)
		}
		return s, nil
	}
	return nil, diag.List{{Pos: diag.Pos{File: arg}, Rule: "a spec is a folder or a .cue, .yaml or .json file"}}
}

// openStdin takes CUE, of which JSON is a part, or else YAML.
func openStdin(opt Options) (*source, diag.List) {
	if opt.Stdin == nil {
		return nil, diag.List{{Pos: diag.Pos{File: "-"}, Rule: "there is no standard input to read"}}
	}
	b, err := io.ReadAll(opt.Stdin)
	if err != nil {
		return nil, failure("-", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, failure("-", err)
	}
	s := &source{dir: dir, name: "stdin"}
	f, err := parser.ParseFile("-", b, parser.ParseComments)
	if err != nil || len(f.Unresolved) > 0 { // plain words of YAML are references in CUE
		if y, yerr := yaml.Extract("-", b); yerr == nil && declares(y, "experiment") {
			s.data, s.content = "-.yaml", b
			return s, nil
		}
	}
	if err != nil {
		return nil, firstSyntaxError(err)
	}
	s.args, s.stdin = []string{"-"}, b
	return s, nil
}

// openFolder finds the one package that declares an experiment. Files without a
// package are not the spec unless nothing else is; nor are test and tool files.
func openFolder(dir string) (*source, diag.List) {
	paths, err := filepath.Glob(filepath.Join(globQuote(dir), "*.cue"))
	if err != nil {
		return nil, failure(dir, err)
	}
	s := &source{dir: dir, name: filepath.Base(dir)}
	packages := map[string]bool{}
	var loose []string // files without a package that declare an experiment
	broken := map[string]diag.List{}
	var other diag.List
	for _, p := range paths {
		base := filepath.Base(p)
		if base == SiteFile || strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".") || strings.HasSuffix(base, "_test.cue") || strings.HasSuffix(base, "_tool.cue") {
			continue
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, failure(p, err)
		}
		f, err := parser.ParseFile(p, b, parser.ParseComments)
		pkg := ""
		if f != nil {
			pkg = f.PackageName()
		}
		if err != nil {
			if pkg == "" && !bytes.Contains(b, []byte("experiment")) {
				s.ignore = append(s.ignore, p) // a scratch file
				continue
			}
			broken[pkg] = append(broken[pkg], firstSyntaxError(err)...)
			other = append(other, firstSyntaxError(err)...)
			continue
		}
		if declares(f, "experiment") {
			if pkg == "" {
				loose = append(loose, "./"+base)
			} else {
				packages[pkg] = true
			}
		}
	}
	switch names := sortedKeys(packages); {
	case len(names) == 1:
		s.pkg, s.args = names[0], []string{"."}
		return s, broken[s.pkg]
	case len(names) > 1:
		return nil, diag.List{{Pos: diag.Pos{File: shortPath(dir)}, Rule: fmt.Sprintf("several packages declare an experiment (%s); keep one a folder, or give a file", strings.Join(names, ", "))}}
	case len(other) > 0:
		return nil, other
	case len(loose) > 0:
		s.args = loose
		return s, nil
	}
	for _, name := range []string{"spec.yaml", "spec.yml", "spec.json"} {
		p := filepath.Join(dir, name)
		if b, err := os.ReadFile(p); err == nil {
			s.data, s.content = p, b
			return s, nil
		}
	}
	return nil, diag.List{{Pos: diag.Pos{File: shortPath(dir)}, Rule: "no .cue file here declares the field experiment"}}
}

// syntax checks one CUE file.
func syntax(path string) diag.List {
	b, err := os.ReadFile(path)
	if err != nil {
		return failure(path, err)
	}
	if _, err := parser.ParseFile(path, b, parser.ParseComments); err != nil {
		return firstSyntaxError(err)
	}
	return nil
}

// declares tells whether a file has that field at the top.
func declares(f *ast.File, name string) bool {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.Field:
			if l, _, err := ast.LabelName(d.Label); err == nil && l == name {
				return true
			}
		case *ast.EmbedDecl:
			if st, ok := d.Expr.(*ast.StructLit); ok && declares(&ast.File{Decls: st.Elts}, name) {
				return true
			}
		}
	}
	return false
}

// instance reads the spec into a CUE instance, ready to be evaluated. With
// strict, the schema that it imports is the real one; otherwise it is one that
// allows everything, so that evaluating shows only what the author wrote and
// this package's own check finds every mistake at once.
func (s *source) instance(strict bool) (*build.Instance, diag.List) {
	if s.data != "" {
		return s.dataInstance()
	}
	root, module, err := enclosingModule(s.dir)
	if err != nil {
		return nil, failure(s.dir, err)
	}
	overlay := map[string]cueload.Source{}
	files := definitionFiles(strict)
	schemaDir := filepath.Join(root, "cue.mod", "usr", importPath)
	switch module {
	case "":
		root = s.dir
		schemaDir = filepath.Join(root, "cue.mod", "usr", importPath)
		overlay[filepath.Join(root, "cue.mod", "module.cue")] = cueload.FromString("module: \"local.invalid/spec@v0\"\nlanguage: version: \"v0.17.0\"\n")
	case ownModule:
		schemaDir = filepath.Join(root, "schema")
	}
	if onDisk, err := filepath.Glob(filepath.Join(globQuote(schemaDir), "*.cue")); err == nil {
		for _, p := range onDisk {
			overlay[p] = cueload.FromString("package schema\n")
		}
	}
	for name, text := range files {
		overlay[filepath.Join(schemaDir, name)] = cueload.FromBytes(text)
	}
	for _, p := range s.ignore {
		overlay[p] = cueload.FromString("")
	}
	cfg := &cueload.Config{
		Dir:       s.dir,
		Package:   s.pkg,
		Overlay:   overlay,
		Env:       offline(os.Environ()),
		Stdin:     bytes.NewReader(s.stdin),
		DataFiles: false,
	}
	list := cueload.Instances(s.args, cfg)
	if len(list) != 1 {
		return nil, failure(s.dir, fmt.Errorf("%d packages where one was expected", len(list)))
	}
	inst := list[0]
	ds := append(imports(inst, module), selections(inst.Files)...)
	if inst.Err != nil && len(ds) == 0 {
		ds = evaluation(inst.Err)
	}
	if inst.Err != nil {
		return inst, ds
	}
	return inst, append(ds, s.applySets(inst.Files)...)
}

func (s *source) dataInstance() (*build.Instance, diag.List) {
	var f *ast.File
	var err error
	if filepath.Ext(s.data) == ".json" {
		var x ast.Expr
		if x, err = cuejson.Extract(s.data, s.content); err == nil {
			f = &ast.File{Filename: s.data}
			if st, ok := x.(*ast.StructLit); ok {
				f.Decls = st.Elts
			} else {
				f.Decls = []ast.Decl{&ast.EmbedDecl{Expr: x}}
			}
		} else if d, ok := jsonError(s.data, s.content); ok {
			return nil, diag.List{d}
		}
	} else {
		f, err = yaml.Extract(s.data, s.content)
	}
	if err != nil {
		return nil, firstSyntaxError(err)
	}
	if ds := s.applySets([]*ast.File{f}); ds.HasErrors() {
		return nil, ds
	}
	inst := build.NewContext().NewInstance(s.dir, nil)
	if err := inst.AddSyntax(f); err != nil {
		return nil, evaluation(err)
	}
	return inst, nil
}

// jsonError says where JSON text stops being JSON.
func jsonError(path string, content []byte) (diag.Diagnostic, bool) {
	var v any
	var se *json.SyntaxError
	if !errors.As(json.Unmarshal(content, &v), &se) {
		return diag.Diagnostic{}, false
	}
	before := content[:min(max(int(se.Offset)-1, 0), len(content))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return diag.Diagnostic{Pos: diag.Pos{File: shortPath(path), Line: line, Column: column}, Rule: se.Error()}, true
}

// offline is the environment in which no import reaches for a network.
func offline(env []string) []string {
	out := []string{"CUE_REGISTRY=none"}
	for _, kv := range env {
		if !strings.HasPrefix(kv, "CUE_REGISTRY=") {
			out = append(out, kv)
		}
	}
	return out
}

// imports reports what a spec may not import: whatever is not on this disk.
func imports(inst *build.Instance, module string) diag.List {
	var ds diag.List
	have := map[string]bool{importPath: true}
	for _, in := range inst.Imports {
		if in.Err == nil {
			have[strings.Split(in.ImportPath, "@")[0]] = true
			have[in.ImportPath] = true
		}
	}
	for _, f := range inst.Files {
		for spec := range f.ImportSpecs() {
			var p string
			if json.Unmarshal([]byte(spec.Path.Value), &p) != nil {
				continue
			}
			p, _, _ = strings.Cut(p, ":")
			first, _, _ := strings.Cut(p, "/")
			if !strings.Contains(first, ".") || have[p] {
				continue
			}
			d := diag.Diagnostic{Pos: place(spec.Path.Pos()), Value: spec.Path.Value}
			switch {
			case strings.HasPrefix(p, ownModule):
				d.Rule, d.Suggest = "there is no such package in twopoint", fmt.Sprintf("%q", importPath)
			case module != "" && strings.HasPrefix(p, module+"/"):
				d.Rule = fmt.Sprintf("module %s has no such package", module)
			default:
				d.Rule = fmt.Sprintf("module %s is not here, and reading a spec uses no network; put the package under cue.mod/usr/%s", p, p)
			}
			ds = append(ds, d)
		}
	}
	return ds
}

// selections reports names taken from the schema package that it does not have;
// the stand-in for the definitions takes no notice of them.
func selections(files []*ast.File) diag.List {
	names := definitionNames()
	var ds diag.List
	for _, f := range files {
		local := ""
		for spec := range f.ImportSpecs() {
			if info, err := astutil.ParseImportSpec(spec); err == nil && info.Dir == importPath {
				local = info.Ident
			}
		}
		if local == "" {
			continue
		}
		ast.Walk(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, isIdent := sel.X.(*ast.Ident)
			name, _, err := ast.LabelName(sel.Sel)
			if isIdent && err == nil && id.Name == local && !slices.Contains(names, name) {
				d := diag.Diagnostic{Pos: place(sel.Sel.Pos()), Value: name, Rule: "the schema has no such definition"}
				d.Suggest = near(name, names)
				ds = append(ds, d)
			}
			return true
		}, nil)
	}
	return ds
}

// definitionNames are the definitions of the schema.
func definitionNames() []string {
	var names []string
	for _, text := range definitionFiles(true) {
		f, err := parser.ParseFile("schema", text)
		if err != nil {
			panic(err) // embedded
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.Field); ok {
				name, _, _ := ast.LabelName(f.Label)
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	return names
}

// definitionFiles is the schema package: the definitions, or the same names
// without any rule.
func definitionFiles(strict bool) map[string][]byte {
	if !strict {
		var open bytes.Buffer
		open.WriteString("package schema\n")
		for _, name := range definitionNames() {
			fmt.Fprintf(&open, "%s: _\n", name)
		}
		return map[string][]byte{openSchema: open.Bytes()}
	}
	out := map[string][]byte{}
	entries, err := schema.Definitions.ReadDir(".")
	if err != nil {
		panic(err) // embedded
	}
	for _, e := range entries {
		if out[e.Name()], err = schema.Definitions.ReadFile(e.Name()); err != nil {
			panic(err)
		}
	}
	return out
}

// definitions is the schema package by itself.
func definitions() *build.Instance {
	inst := build.NewContext().NewInstance("schema", nil)
	files := definitionFiles(true)
	for _, name := range sortedKeys(files) {
		if err := inst.AddFile(name, files[name]); err != nil {
			panic(err)
		}
	}
	if err := inst.Complete(); err != nil {
		panic(err)
	}
	return inst
}

// enclosingModule finds the CUE module that a folder lies in; module is "" if
// there is none.
func enclosingModule(dir string) (root, module string, err error) {
	for d := dir; ; d = filepath.Dir(d) {
		p := filepath.Join(d, "cue.mod", "module.cue")
		b, err := os.ReadFile(p)
		if err == nil {
			f, err := parser.ParseFile(p, b)
			if err != nil {
				return "", "", err
			}
			for _, decl := range f.Decls {
				if fl, ok := decl.(*ast.Field); ok {
					if name, _, _ := ast.LabelName(fl.Label); name == "module" {
						if lit, ok := fl.Value.(*ast.BasicLit); ok && json.Unmarshal([]byte(lit.Value), &module) == nil {
							module, _, _ = strings.Cut(module, "@")
							return d, module, nil
						}
					}
				}
			}
			return "", "", fmt.Errorf("%s names no module", p)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return "", "", err
		}
		if d == filepath.Dir(d) {
			return "", "", nil
		}
	}
}

// sources are the files that an instance was read from, by absolute path.
func (s *source) sources(inst *build.Instance) (map[string][]byte, error) {
	out := map[string][]byte{}
	switch {
	case s.stdin != nil:
		out[filepath.Join(s.dir, "stdin.cue")] = s.stdin
	case s.data == "-.yaml":
		out[filepath.Join(s.dir, "stdin.yaml")] = s.content
		return out, nil
	case s.data != "":
		out[s.data] = s.content
		return out, nil
	}
	seen := map[*build.Instance]bool{}
	var visit func(in *build.Instance) error
	visit = func(in *build.Instance) error {
		if seen[in] || strings.HasPrefix(in.ImportPath, importPath) {
			return nil
		}
		seen[in] = true
		for _, f := range in.BuildFiles {
			if f.Filename == "-" {
				continue
			}
			b, err := os.ReadFile(f.Filename)
			if err != nil {
				return err
			}
			out[f.Filename] = b
		}
		for _, i := range in.Imports {
			if err := visit(i); err != nil {
				return err
			}
		}
		return nil
	}
	return out, visit(inst)
}

// relative renames files to slash paths below one folder: the spec's, or, where
// some lie outside of it, the nearest that holds all.
func relative(dir string, files map[string][]byte) map[string][]byte {
	for !holdsAll(dir, files) {
		dir = filepath.Dir(dir)
	}
	out := map[string][]byte{}
	for p, b := range files {
		r, _ := filepath.Rel(dir, p)
		out[filepath.ToSlash(r)] = b
	}
	return out
}

func holdsAll(dir string, files map[string][]byte) bool {
	for p := range files {
		if r, err := filepath.Rel(dir, p); err != nil || !filepath.IsLocal(r) {
			return dir == filepath.Dir(dir)
		}
	}
	return true
}

func failure(what string, err error) diag.List {
	return diag.List{{Pos: diag.Pos{File: shortPath(what)}, Rule: "cannot be read: " + err.Error()}}
}

func globQuote(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
