package kv

import (
	"cmp"
	"slices"
	"unsafe"
)

// Tree remembers which pages hold the rows of which token prefixes, a page at a
// time. It owns the pages that were inserted until they are evicted or the tree
// is flushed.
type Tree struct {
	pool  *Pool
	roots map[string]*Node // one for each namespace
	clock int64
	pages int // pages owned
	held  int // pages on paths that are locked
}

// Node is an edge of the tree together with the point that it leads to.
type Node struct {
	parent   *Node
	tokens   []int32 // len(pages)·PageSize ids; none at a root
	pages    []int32
	children map[string]*Node // by the bytes of the first page's ids
	locks    int              // requests that use this node or one below
	used     int64            // clock of the last use
}

// NewTree returns an empty tree over pool.
func NewTree(pool *Pool) *Tree { return &Tree{pool: pool, roots: map[string]*Node{}} }

// Evictable is the number of pages that Evict could free now.
func (t *Tree) Evictable() int { return t.pages - t.held }

// key is the child key of a run of ids: the bytes of its first page. It shares
// the memory of tokens, so a stored key must be made of stored tokens.
func (t *Tree) key(tokens []int32) string {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*t.pool.PageSize)
}

// Match appends to table the pages of the longest stored prefix of tokens, in
// whole pages, and returns the node where it ends, locked; Unlock releases it.
func (t *Tree) Match(space string, tokens, table []int32) (*Node, []int32) {
	n, _ := t.descend(t.root(space), tokens, func(pages []int32) { table = append(table, pages...) })
	t.lock(n)
	return n, table
}

// root returns the root of a namespace and counts a use of the tree.
func (t *Tree) root(space string) *Node {
	t.clock++
	n := t.roots[space]
	if n == nil {
		n = &Node{children: map[string]*Node{}}
		t.roots[space] = n
	}
	return n
}

// descend walks from n along tokens, calls visit with the pages of each step,
// splits the edge on which the walk ends, and returns the node reached and the
// ids left over.
func (t *Tree) descend(n *Node, tokens []int32, visit func(pages []int32)) (*Node, []int32) {
	size := t.pool.PageSize
	n.used = t.clock
	for len(tokens) >= size {
		c := n.children[t.key(tokens)]
		if c == nil {
			break
		}
		same := 0
		for same < len(c.tokens) && same < len(tokens) && c.tokens[same] == tokens[same] {
			same++
		}
		whole := same / size
		if whole < len(c.pages) {
			c = t.split(c, whole)
		}
		c.used = t.clock
		visit(c.pages)
		tokens = tokens[whole*size:]
		n = c
	}
	return n, tokens
}

// split cuts the edge to n after its first pages and returns the upper part.
func (t *Tree) split(n *Node, pages int) *Node {
	cut := pages * t.pool.PageSize
	up := &Node{parent: n.parent, tokens: n.tokens[:cut:cut], pages: n.pages[:pages:pages], children: map[string]*Node{}, locks: n.locks, used: n.used}
	n.parent.children[t.key(up.tokens)] = up
	n.tokens, n.pages, n.parent = n.tokens[cut:], n.pages[pages:], up
	up.children[t.key(n.tokens)] = n
	return up
}

// Insert stores that pages hold the rows of tokens, len(pages)·PageSize of
// them, and returns the node at their end, locked. Where the tree has a prefix
// already, its pages replace those given in the slice, and those given are
// freed unless they are the tree's own. The rest becomes the tree's.
func (t *Tree) Insert(space string, tokens, pages []int32) *Node {
	done := 0
	n, rest := t.descend(t.root(space), tokens, func(have []int32) {
		for i, page := range have {
			if mine := pages[done+i]; mine != page {
				t.pool.Free([]int32{mine})
				pages[done+i] = page
			}
		}
		done += len(have)
	})
	if len(rest) > 0 {
		leaf := &Node{parent: n, tokens: slices.Clone(rest), pages: slices.Clone(pages[done:]), children: map[string]*Node{}, used: t.clock}
		n.children[t.key(leaf.tokens)] = leaf
		t.pages += len(leaf.pages)
		n = leaf
	}
	t.lock(n)
	return n
}

func (t *Tree) lock(n *Node) {
	for ; n != nil; n = n.parent {
		if n.locks == 0 {
			t.held += len(n.pages)
		}
		n.locks++
	}
}

// Unlock releases what Match or Insert returned.
func (t *Tree) Unlock(n *Node) {
	for ; n != nil; n = n.parent {
		n.locks--
		if n.locks == 0 {
			t.held -= len(n.pages)
		}
	}
}

// Evict frees whole leaves that nobody holds, least recently used first, until
// at least n pages are freed or none is left, and returns the number freed.
func (t *Tree) Evict(n int) int {
	var leaves []*Node // most recently used first
	for _, root := range t.roots {
		root.leaves(func(leaf *Node) {
			if leaf.locks == 0 {
				leaves = append(leaves, leaf)
			}
		})
	}
	slices.SortFunc(leaves, newerFirst)
	freed := 0
	for freed < n && len(leaves) > 0 {
		leaf := leaves[len(leaves)-1]
		leaves = leaves[:len(leaves)-1]
		t.pool.Free(leaf.pages)
		t.pages -= len(leaf.pages)
		freed += len(leaf.pages)
		up := leaf.parent
		delete(up.children, t.key(leaf.tokens))
		if len(up.children) == 0 && up.locks == 0 && up.parent != nil {
			i, _ := slices.BinarySearchFunc(leaves, up, newerFirst)
			leaves = slices.Insert(leaves, i, up)
		}
	}
	return freed
}

func newerFirst(a, b *Node) int { return cmp.Compare(b.used, a.used) }

// leaves calls f with every childless node under n but n itself.
func (n *Node) leaves(f func(*Node)) {
	for _, c := range n.children {
		if len(c.children) == 0 {
			f(c)
		} else {
			c.leaves(f)
		}
	}
}

// Flush evicts everything that nobody holds and forgets empty namespaces.
func (t *Tree) Flush() {
	t.Evict(t.Evictable())
	for space, root := range t.roots {
		if len(root.children) == 0 && root.locks == 0 {
			delete(t.roots, space)
		}
	}
}
