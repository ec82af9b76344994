package load

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"

	"twopoint/schema/diag"
)

// SiteFile is the name of the file that holds what belongs to a place, searched
// upwards from the spec's folder. In the user's configuration folder it is
// twopoint/site.cue.
const SiteFile = "twopoint.site.cue"

// site is what site files say; the nearest one that names a target wins.
type site struct {
	targets map[string]*node
}

func readSite(dir, configDir string) (*site, diag.List) {
	s := &site{targets: map[string]*node{}}
	var ds diag.List
	for d := dir; ; d = filepath.Dir(d) {
		found, more := s.read(filepath.Join(d, SiteFile))
		ds = append(ds, more...)
		if found || d == filepath.Dir(d) {
			break
		}
	}
	if configDir == "" {
		var err error
		if configDir, err = os.UserConfigDir(); err != nil {
			return s, ds // no home, no configuration
		}
	}
	_, more := s.read(filepath.Join(configDir, "twopoint", "site.cue"))
	return s, append(ds, more...)
}

// read adds the targets of one file, if it is there.
func (s *site) read(path string) (bool, diag.List) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, failure(path, err)
	}
	f, err := parser.ParseFile(path, b, parser.ParseComments)
	if err != nil {
		return true, firstSyntaxError(err)
	}
	for spec := range f.ImportSpecs() {
		return true, diag.List{{Pos: place(spec.Pos()), Rule: "a site file imports nothing"}}
	}
	v := cuecontext.New().BuildFile(f)
	if err := v.Validate(cue.Concrete(true)); err != nil {
		return true, evaluation(err)
	}
	e := &evaluator{src: &source{}, errs: map[string][]diag.Diagnostic{}, strict: func() cue.Value { return cue.Value{} }}
	n := e.node(v, nil, diag.Pos{File: shortPath(path)})
	shape := shapes()["#Site"]
	c := &checker{ds: e.ds, where: map[string]string{}}
	n = c.check(shape, n, "")
	r := &resolver{checker: c}
	if t := n.get("targets"); t.is(object) {
		for i, name := range t.keys {
			if _, ok := s.targets[name]; ok || !t.items[i].is(object) {
				continue
			}
			if r.oneOf(t.items[i], join("targets", name), []string{"ssh", "slurm", "kube"}) != nil {
				s.targets[name] = t.items[i]
			}
		}
	}
	return true, c.ds
}
