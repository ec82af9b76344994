package load

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"twopoint/schema/diag"
)

// merge lays a variant over a server: args and env key by key, everything else
// whole. null takes away.
func merge(server, variant *node) *node {
	out := newObject()
	if variant != nil {
		out = out.at(variant)
	} else if server != nil {
		out = out.at(server)
	}
	for _, layer := range []*node{server, variant} {
		if !layer.is(object) {
			continue
		}
		for i, k := range layer.keys {
			v := layer.items[i]
			switch {
			case v.kind == null:
				out.set(k, nil)
			case (k == "args" || k == "env") && v.is(object):
				below := out.get(k)
				m := newObject().at(v)
				if below.is(object) {
					m = below.copy().at(v)
				}
				for j, key := range v.keys {
					if v.items[j].kind == null {
						m.set(key, nil)
					} else {
						m.set(key, v.items[j])
					}
				}
				out.set(k, m)
			default:
				out.set(k, v)
			}
		}
	}
	return out
}

// mergeAll resolves each declared variant over its server, or makes one of each
// server where no variants are declared.
func (r *resolver) mergeAll() {
	servers, variants := r.root.get("servers"), r.root.get("variants")
	r.merged = newObject()
	var serverNames []string
	if servers.is(object) {
		serverNames = servers.keys
	}
	if variants == nil {
		for _, name := range serverNames {
			if !servers.get(name).is(object) {
				continue
			}
			v := merge(servers.get(name), nil)
			v.set("server", newText(name))
			r.finish(name, v, nil, servers.get(name), name)
		}
		return
	}
	if !variants.is(object) {
		return
	}
	for i, name := range variants.keys {
		v := variants.items[i]
		if !v.is(object) {
			continue
		}
		path := join("variants", name)
		var server *node
		serverName := ""
		switch s := v.get("server"); {
		case s.is(text):
			server, serverName = servers.get(s.text), s.text
			if server == nil && servers != nil && !servers.is(object) {
				continue
			}
			if server == nil {
				d := r.errorf(s, join(path, "server"), "no server has this name; there is %s", strings.Join(serverNames, ", "))
				d.Value = s.shown()
				if len(serverNames) == 0 {
					d.Rule = "no server has this name; the experiment declares none"
				}
				if m := near(s.text, serverNames); m != "" {
					d.Suggest = strconv.Quote(m)
				}
				continue
			}
		case s != nil: // bad, and reported
			continue
		case len(serverNames) == 1:
			serverName = serverNames[0]
			server = servers.get(serverName)
		case len(serverNames) > 1 && v.get("engine") == nil:
			r.errorf(v, join(path, "server"), "is missing; there are several servers: %s", strings.Join(serverNames, ", "))
			continue
		}
		if server != nil && !server.is(object) {
			continue
		}
		m := merge(server, v)
		if serverName != "" {
			m.set("server", newText(serverName))
		}
		r.finish(name, m, v, server, serverName)
	}
}

// launchFields start a server, and make no sense beside a url.
var launchFields = []string{"args", "env", "files", "build", "setup", "cwd", "command", "container", "host", "port", "ready_timeout"}

// finish fills in a merged variant's defaults and checks it.
func (r *resolver) finish(name string, m, variant, server *node, serverName string) {
	// A value is reported where it was written: once, if several variants
	// inherit it.
	path := func(field string) string {
		if variant == nil || variant.get(field) == nil && server.get(field) != nil {
			return join(join("servers", serverName), field)
		}
		return join(join("variants", name), field)
	}
	if name == "" || strings.ContainsAny(name, "/[]\n") {
		d := r.errorf(m, path(""), "a variant's name must not be empty or hold /, [ or ]; keys of points are made of it")
		d.Pos, d.Path, d.Value = m.key, "variants", strconv.Quote(name)
	}
	if m.get("engine") == nil {
		at, p := m, path("engine")
		if server != nil {
			at, p = server, join(join("servers", serverName), "engine")
		}
		r.errorf(at, p, "is missing; it must be %s", r.shape.fields["servers"].elem.fields["engine"].allows())
	}
	if u := m.get("url"); u.is(text) {
		if withUser(u.text) {
			r.errorf(u, path("url"), "must hold no user or password; give the key in the environment, as TWOPOINT_API_KEY").Value = ""
		} else if !validURL(u.text) {
			r.errorf(u, path("url"), "must be the address of a server, such as \"http://127.0.0.1:30000\"").Value = u.shown()
		}
		for _, f := range launchFields {
			if v := m.get(f); v != nil && v.kind != bad && !((f == "args" || f == "env") && len(v.keys) == 0) {
				d := r.errorf(v, path(f), "twopoint does not start a server that has a url, so this would have no effect; leave it away")
				d.Pos, d.Also = v.key, []diag.Pos{u.pos}
			}
		}
		if m.get("flush") == nil {
			d := r.errorf(u, strings.TrimSuffix(path("url"), "url")+"flush", "must be said for a server that has a url: \"require\" or \"auto\" empties its prefix cache, \"never\" leaves it alone")
			d.Pos = u.pos
		}
	}
	if m.get("ready_timeout") == nil && m.get("url") == nil {
		m.set("ready_timeout", newText(defaultReadyTimeout))
	}
	if m.get("flush") == nil {
		m.set("flush", newText(defaultFlush))
	}
	if e := m.get("env"); e.is(object) {
		for i, k := range e.keys {
			if k == "" || strings.ContainsAny(k, "=\x00") {
				d := r.errorf(e.items[i], join(path("env"), k), "is not a name of an environment variable")
				d.Pos = e.items[i].key
			}
		}
	}
	r.placeholders(m, path)
	if f := m.get("files"); f.is(list) {
		var paths []string
		for i := range f.items {
			paths = append(paths, index(path("files"), i))
		}
		if sum, ok := r.hashFiles(f.items, paths); ok {
			r.hashes[name] = sum
		} else {
			r.unsound[name] = true
		}
	}
	r.merged.set(name, m)
}

var placeholder = regexp.MustCompile(`(^|[^$])\{([A-Za-z_][A-Za-z0-9_]*)\}`)

var knownPlaceholders = []string{"files", "port", "workdir"}

// placeholders checks the braces in everything that reaches the target. A shell
// line may hold its own.
func (r *resolver) placeholders(m *node, path func(string) string) {
	var visit func(n *node, path string)
	visit = func(n *node, path string) {
		for i, e := range n.items {
			if n.kind == object {
				visit(e, join(path, n.keys[i]))
			} else {
				visit(e, index(path, i))
			}
		}
		if n.kind != text {
			return
		}
		for _, hit := range placeholder.FindAllStringSubmatch(n.text, -1) {
			switch name := hit[2]; {
			case name == "files" && m.get("files") == nil:
				r.errorf(n, path, "{files} needs files: [...], which this variant does not have").Value = n.shown()
			case !slices.Contains(knownPlaceholders, name):
				d := r.errorf(n, path, "{%s} is no placeholder; there is {files}, {port} and {workdir}", name)
				d.Value = n.shown()
				if s := near(name, knownPlaceholders); s != "" {
					d.Suggest = "{" + s + "}"
				}
			}
		}
	}
	for _, f := range []string{"args", "env", "command", "build", "cwd", "model_path"} {
		if n := m.get(f); n != nil {
			visit(n, path(f))
		}
	}
}

// bareServers declares the names of servers that merged variants refer to.
func (r *resolver) bareServers() *node {
	s := r.root.get("servers")
	if !s.is(object) {
		return nil
	}
	out := newObject()
	for _, k := range s.keys {
		out.set(k, newObject())
	}
	return out
}

// cells expands matrices. The result has name, base and cell beside a variant's
// own fields.
func (r *resolver) cells() []*node {
	var out []*node
	common, commonOK := r.matrix(r.root.get("matrix"), "matrix")
	for i, name := range r.merged.keys {
		v := r.merged.items[i]
		own, ownOK := r.matrix(v.get("matrix"), join(join("variants", name), "matrix"))
		r.unsound[name] = r.unsound[name] || !commonOK || !ownOK
		axes := newObject()
		for _, m := range []*node{common, own} {
			for j, k := range m.keys {
				axes.set(k, m.items[j])
			}
		}
		plain := v.copy()
		plain.set("matrix", nil)
		if sum := r.hashes[name]; sum != "" {
			plain.set("files_hash", newText(sum))
		}
		if len(axes.keys) == 0 {
			plain.set("name", newText(name))
			out = append(out, plain)
			continue
		}
		if u := v.get("url"); u != nil {
			r.errorf(u, join(join("variants", name), "matrix"), "varies args, which a server with a url does not take")
			continue
		}
		keys := slices.Clone(axes.keys)
		sort.Strings(keys)
		cells := []*node{newObject()}
		for _, k := range keys {
			var next []*node
			for _, c := range cells {
				for _, val := range axes.get(k).items {
					next = append(next, c.with(k, val))
				}
			}
			cells = next
		}
		for _, c := range cells {
			cell := plain.copy()
			var label []string
			for j, k := range c.keys {
				label = append(label, k+"="+cellText(c.items[j]))
			}
			cell.set("args", merge(newObject().with("args", orEmpty(v.get("args"))), newObject().with("args", c)).get("args"))
			cell.set("name", newText(name+"["+strings.Join(label, ",")+"]"))
			cell.set("base", newText(name))
			cell.set("cell", c)
			out = append(out, cell)
		}
	}
	return out
}

func orEmpty(n *node) *node {
	if n.is(object) {
		return n
	}
	return newObject()
}

func cellText(n *node) string {
	if n.kind == text {
		return n.text
	}
	return string(n.appendJSON(nil))
}

// matrix checks one matrix and returns its usable axes, and whether that is all.
func (r *resolver) matrix(n *node, path string) (*node, bool) {
	out, sound := newObject(), true
	if !n.is(object) {
		return out, n == nil
	}
	typed := r.shape.fields["servers"].elem.fields
	for i, k := range n.keys {
		v, p := n.items[i], join(path, k)
		if !v.is(list) {
			sound = false
			continue
		}
		if _, ok := typed[k]; ok {
			d := r.errorf(v, p, "a matrix varies args; %s is a field of its own, so declare a variant for each value", k)
			d.Pos = v.key
			sound = false
			continue
		}
		if len(v.items) == 0 {
			r.errorf(v, p, "is an empty list and would leave no variant")
			sound = false
			continue
		}
		ok := true
		seen := map[string]bool{}
		for j, e := range v.items {
			if e.kind == list || e.kind == object {
				r.errorf(e, index(p, j), "a matrix holds numbers, strings, true, false and null").Value = e.shown()
				ok = false
			} else if s := string(e.appendJSON(nil)); seen[s] {
				r.errorf(e, index(p, j), "is there twice").Value = e.shown()
				ok = false
			} else {
				seen[s] = true
			}
		}
		if ok {
			out.set(k, v)
		}
		sound = sound && ok
	}
	return out, sound
}

// variantDoc is schema.Variant as JSON.
func (r *resolver) variantDoc(v *node) *node {
	if e := v.get("env"); e.is(object) {
		env := newObject()
		for i, k := range e.keys {
			val := e.items[i]
			if val.is(text) {
				val = newObject().with("value", val)
			}
			env.set(k, val)
		}
		v = v.with("env", env)
	}
	return v
}

// hashFiles is the SHA-256 in hex over names, modes and contents of files and
// folders below the spec's folder. Symbolic links count by their text.
func (r *resolver) hashFiles(names []*node, paths []string) (string, bool) {
	h := sha256.New()
	ok := true
	for i, n := range names {
		if !n.is(text) {
			continue
		}
		bad := func(format string, args ...any) {
			ok = false
			r.errorf(n, paths[i], format, args...).Value = n.shown()
		}
		if n.text == "" || filepath.IsAbs(n.text) || !filepath.IsLocal(filepath.Clean(n.text)) {
			bad("must lie in the spec's folder and be relative to it")
			continue
		}
		root := filepath.Join(r.dir, n.text)
		if _, err := os.Stat(root); err != nil {
			bad("there is no such file or folder below %s", shortPath(r.dir))
			continue
		}
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(r.dir, p)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%s\x00%v\x00%d\x00", filepath.ToSlash(rel), info.Mode()&0o111 != 0, info.Size())
			switch {
			case info.Mode()&fs.ModeSymlink != 0:
				link, err := os.Readlink(p)
				if err != nil {
					return err
				}
				io.WriteString(h, link)
			case info.Mode().IsRegular():
				f, err := os.Open(p)
				if err != nil {
					return err
				}
				defer f.Close()
				if _, err := io.Copy(h, f); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			bad("cannot be read: %v", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), ok
}
