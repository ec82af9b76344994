// Package load reads a spec: a folder, a file or standard input in CUE, YAML or
// JSON goes in, and out come plain Go values with every default filled in, the
// place of each value in the author's text, and diagnostics: every mistake at
// once. It evaluates CUE offline, executes nothing, and opens no connection. It
// plans nothing and knows no engine's flags.
package load

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"cuelang.org/go/cue/build"

	"twopoint/schema"
	"twopoint/schema/diag"
)

// Options change how a spec is read.
type Options struct {
	// Set holds path=value settings, with paths below experiment such as
	// sweep.context=[1024]. They edit the source before it is evaluated, so
	// that references to the field follow. A value that is no CUE literal is a
	// string.
	Set []string

	// Stdin is what the argument - reads.
	Stdin io.Reader

	// ConfigDir holds the user's own site file in its folder twopoint; empty
	// means os.UserConfigDir.
	ConfigDir string
}

// Loaded is a spec that could be read. With errors beside it, it holds what was
// usable: enough for further vetting, too little to plan.
type Loaded struct {
	Experiment schema.Experiment
	Dir        string // the spec's folder, absolute; files and prompt.file are relative to it

	// SourceFiles are the spec's own files as read, by slash path relative to
	// the spec's folder or, if some lie above it, to the folder that holds all.
	SourceFiles map[string][]byte

	Hash     string // SHA-256 in hex over SourceFiles and settings
	Resolved []byte // the spec as JSON with every default; loading it gives the same experiment. Empty after errors.

	root          *node
	unknownTarget *diag.Diagnostic
}

// Load reads the spec that arg names: a folder with one CUE package that has
// the field experiment, a .cue, .yaml or .json file, or - for standard input.
// The list is sorted and holds errors, warnings and hints; Loaded is nil where
// nothing could be evaluated.
func Load(arg string, opt Options) (*Loaded, diag.List) {
	sets, ds := parseSets(opt.Set)
	src, more := open(arg, opt)
	if ds = append(ds, more...); ds.HasErrors() {
		ds.Sort()
		return nil, ds
	}
	src.sets = sets
	root, inst, ds := guarded(src)
	if root == nil {
		return nil, tidy(ds, diag.Pos{})
	}
	l := &Loaded{Dir: src.dir}
	if files, err := src.sources(inst); err != nil {
		ds = append(ds, failure(arg, err)...)
	} else {
		l.SourceFiles = relative(src.dir, files)
	}
	l.Hash = hash(l.SourceFiles, opt.Set)

	site, more := readSite(src.dir, opt.ConfigDir)
	ds = append(ds, more...)

	s := shapes()["#Experiment"]
	c := &checker{ds: ds, data: src.data != "", where: map[string]string{}}
	s.index("", c.where)
	if root.kind != object {
		if root.kind != bad {
			c.check(s, root, "experiment")
		}
		return nil, tidy(c.ds, root.pos)
	}
	r := &resolver{checker: c, shape: s, dir: src.dir, site: site}
	r.resolve(c.check(s, root, ""), src.name)
	l.root, l.unknownTarget = r.placed, r.unknownTarget
	if err := decode(r.doc, &l.Experiment); err != nil {
		c.ds = append(c.ds, diag.Diagnostic{Pos: root.pos, Rule: "cannot be read as an experiment: " + err.Error()})
	}
	r.conflicts(&l.Experiment)
	ds = tidy(c.ds, root.pos)
	if !ds.HasErrors() {
		var b bytes.Buffer
		if err := json.Indent(&b, newObject().with("experiment", r.language).appendJSON(nil), "", "  "); err != nil {
			return nil, failure(arg, err)
		}
		b.WriteByte('\n')
		l.Resolved = b.Bytes()
	}
	return l, ds
}

// guarded keeps a panic of the CUE evaluator, which foreign text can provoke,
// from ending the program.
func guarded(src *source) (n *node, inst *build.Instance, ds diag.List) {
	defer func() {
		if p := recover(); p != nil {
			n, inst = nil, nil
			ds = diag.List{{Pos: diag.Pos{File: shortPath(src.dir)}, Rule: "CUE cannot evaluate this spec: " + oneLine(fmt.Sprint(p))}}
		}
	}()
	return evaluate(src)
}

// Pos is the place in the author's text of the value at a data path such as
// variants.split.args.page-size, wherever it was merged from; for a value that
// was not written, of the nearest one above it that was.
func (l *Loaded) Pos(path string) diag.Pos { return l.root.lookup(path).pos }

func decode(n *node, into any) error {
	dec := json.NewDecoder(bytes.NewReader(n.appendJSON(nil)))
	dec.UseNumber()
	return dec.Decode(into)
}

// tidy gives diagnostics without a place the experiment's, drops repetitions
// and sorts.
func tidy(ds diag.List, root diag.Pos) diag.List {
	seen := map[string]bool{}
	var out diag.List
	for _, d := range ds {
		if d.Pos.File == "" {
			d.Pos = root
		}
		key := fmt.Sprint(d.Severity, d.String())
		if !seen[key] {
			seen[key] = true
			out = append(out, d)
		}
	}
	out.Sort()
	return out
}

func hash(files map[string][]byte, sets []string) string {
	h := sha256.New()
	for _, name := range sortedKeys(files) {
		fmt.Fprintf(h, "%s\x00%d\x00", name, len(files[name]))
		h.Write(files[name])
	}
	fmt.Fprintf(h, "\x00%s", strings.Join(sets, "\x00"))
	return hex.EncodeToString(h.Sum(nil))
}
