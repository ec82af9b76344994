package load

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"twopoint/schema/diag"
)

// kind is the type of a node's value.
type kind int

const (
	bad kind = iota // said, but not usable; a diagnostic tells why
	null
	boolean
	number
	text
	list
	object
)

func (k kind) String() string {
	return [...]string{"nothing usable", "null", "a truth value", "a number", "a string", "a list", "a struct"}[k]
}

// node is one value of a spec as evaluated, with its place in the author's
// text. Defaults are nodes without a place. Nodes are never changed once they
// are shared; merging and checking make new ones.
type node struct {
	kind  kind
	text  string // boolean, number: JSON text; text: the string
	src   string // as the author wrote it, if that is known
	pos   diag.Pos
	key   diag.Pos // of the field's name, if it is in a struct
	keys  []string // object: field names in order
	items []*node  // list: elements; object: the fields' values

	hiddenKeys []hiddenKey // object: hidden fields, which are not data
	partial    bool        // object: unknown fields were reported and left out
}

type hiddenKey struct {
	name string
	pos  diag.Pos
}

func (n *node) hidden(name string, pos diag.Pos) {
	n.hiddenKeys = append(n.hiddenKeys, hiddenKey{name, pos})
}

func newObject() *node         { return &node{kind: object} }
func newText(s string) *node   { return &node{kind: text, text: s} }
func newNumber(s string) *node { return &node{kind: number, text: s} }

// at is the same value with another value's place.
func (n *node) at(o *node) *node {
	c := *n
	c.pos, c.key, c.src = o.pos, o.key, o.src
	return &c
}

// get is the field of that name, or nil. A field that is bad is returned.
func (n *node) get(name string) *node {
	if n == nil || n.kind != object {
		return nil
	}
	for i, k := range n.keys {
		if k == name {
			return n.items[i]
		}
	}
	return nil
}

// find follows several names.
func (n *node) find(names ...string) *node {
	for _, name := range names {
		n = n.get(name)
	}
	return n
}

// set replaces or appends a field; nil takes it away. The node must not be
// shared yet.
func (n *node) set(name string, v *node) {
	for i, k := range n.keys {
		if k == name {
			if v == nil {
				n.keys = append(n.keys[:i:i], n.keys[i+1:]...)
				n.items = append(n.items[:i:i], n.items[i+1:]...)
			} else {
				n.items[i] = v
			}
			return
		}
	}
	if v != nil {
		n.keys = append(n.keys, name)
		n.items = append(n.items, v)
	}
}

// copy is a node whose fields can be set without changing n.
func (n *node) copy() *node {
	c := *n
	c.keys = append([]string(nil), n.keys...)
	c.items = append([]*node(nil), n.items...)
	return &c
}

// with is n with one field replaced.
func (n *node) with(name string, v *node) *node {
	c := n.copy()
	c.set(name, v)
	return c
}

// sound tells whether nothing below n is bad.
func (n *node) sound() bool {
	if n.kind == bad || n.partial {
		return false
	}
	for _, e := range n.items {
		if !e.sound() {
			return false
		}
	}
	return true
}

// is tells whether n is there and has that kind.
func (n *node) is(k kind) bool { return n != nil && n.kind == k }

// str is the string, or "".
func (n *node) str() string {
	if n.is(text) {
		return n.text
	}
	return ""
}

// int is the whole number, or 0.
func (n *node) int() int {
	if !n.is(number) {
		return 0
	}
	i, _ := strconv.Atoi(n.text)
	return i
}

// shown is the value for a diagnostic: as written where that is known, and
// never long.
func (n *node) shown() string {
	s := n.src
	if s == "" {
		b, err := json.Marshal(n.value())
		if err != nil {
			return ""
		}
		s = string(b)
	}
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	return s
}

// value is the node as encoding/json would decode it, with json.Number. Bad
// nodes are left out.
func (n *node) value() any {
	switch n.kind {
	case boolean:
		return n.text == "true"
	case number:
		return json.Number(n.text)
	case text:
		return n.text
	case list:
		out := []any{}
		for _, e := range n.items {
			if e.kind != bad {
				out = append(out, e.value())
			}
		}
		return out
	case object:
		out := map[string]any{}
		for i, k := range n.keys {
			if n.items[i].kind != bad {
				out[k] = n.items[i].value()
			}
		}
		return out
	}
	return nil
}

// appendJSON writes the node with fields in their order.
func (n *node) appendJSON(b []byte) []byte {
	switch n.kind {
	case list:
		b = append(b, '[')
		for i, e := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendJSON(b)
		}
		return append(b, ']')
	case object:
		b = append(b, '{')
		for i, k := range n.keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(newText(k).appendJSON(b), ':')
			b = n.items[i].appendJSON(b)
		}
		return append(b, '}')
	case number, boolean:
		return append(b, n.text...)
	case text:
		var s strings.Builder
		enc := json.NewEncoder(&s)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(n.text); err != nil {
			panic(err) // a string always encodes
		}
		return append(b, strings.TrimSuffix(s.String(), "\n")...)
	}
	return append(b, "null"...)
}

// rat is a number's exact value. Exponents that no setting needs are refused,
// so that 1e999999999 costs nothing.
func rat(s string) (*big.Rat, bool) {
	if _, exp, ok := strings.Cut(strings.ToLower(s), "e"); ok && len(strings.TrimLeft(exp, "+-0")) > 3 {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// join adds a name or [index] to a data path. Names that a path would split are
// quoted.
func join(path, name string) string {
	if name == "" || strings.ContainsAny(name, ". \t\n\"") {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// lookup finds the node at a data path, and failing that the nearest one above
// it that has a place. The second result is the place of the field's name.
func (n *node) lookup(path string) *node {
	best := n
	for {
		if n.pos.File != "" {
			best = n
		}
		path = strings.TrimPrefix(path, ".")
		if path == "" {
			return best
		}
		next, rest := n.step(path)
		if next == nil {
			return best
		}
		n, path = next, rest
	}
}

// step takes the longest field name or the index that path begins with.
func (n *node) step(path string) (*node, string) {
	if n.kind == list {
		s, rest := strings.TrimPrefix(path, "["), ""
		if i := strings.IndexAny(s, "]."); i >= 0 {
			s, rest = s[:i], strings.TrimPrefix(s[i:], "]")
		}
		i, err := strconv.Atoi(s)
		if err != nil || i < 0 || i >= len(n.items) {
			return nil, ""
		}
		return n.items[i], rest
	}
	var best *node
	length := -1
	for i, k := range n.keys {
		for _, name := range []string{k, strconv.Quote(k)} {
			rest, ok := strings.CutPrefix(path, name)
			if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') && len(name) > length {
				best, length = n.items[i], len(name)
			}
		}
	}
	if best == nil {
		return nil, ""
	}
	return best, path[length:]
}
