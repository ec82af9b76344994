package kv

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

func newPool(t *testing.T, tokens, pageSize int, placement Placement) *Pool {
	t.Helper()
	p, err := NewPool(tokens, pageSize, 2, 8, placement)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestPlacement(t *testing.T) {
	for _, placement := range []Placement{Identity, Shuffled} {
		t.Run(string(placement), func(t *testing.T) {
			p := newPool(t, 100, 1, placement)
			first, err := p.Alloc(nil, 100)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.IsSorted(first); got != (placement == Identity) {
				t.Errorf("pages in ascending order: %v", got)
			}
			sorted := slices.Sorted(slices.Values(first))
			if len(slices.Compact(sorted)) != 100 {
				t.Errorf("pages handed out twice: %v", first)
			}
			// The order depends only on which pages are free.
			p.Free(first)
			again, _ := p.Alloc(nil, 100)
			if !slices.Equal(first, again) {
				t.Error("a freed pool hands its pages out in another order")
			}
			if _, err := p.Alloc(nil, 1); !errors.Is(err, ErrFull) {
				t.Errorf("alloc from a full pool: %v", err)
			}
		})
	}
}

func TestPoolGrowsBySlabs(t *testing.T) {
	p, err := NewPool(1<<20, 16, 2, 256, Identity)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.mapped() != 0 {
		t.Errorf("%d pages mapped before the first is asked for", p.mapped())
	}
	if _, err := p.Alloc(nil, 1); err != nil {
		t.Fatal(err)
	}
	if want := slabBytes / (16 * 256 * 4); p.mapped() != want {
		t.Errorf("%d pages mapped for one, want a slab of %d", p.mapped(), want)
	}
	if p.Available() != 1<<16-1 || p.Used() != 1 {
		t.Errorf("available %d, used %d", p.Available(), p.Used())
	}
	a, b := p.Pages[1][0], p.Pages[1][1]
	a[len(a)-1], b[0] = 1, 2
	if len(a) != 16*256 || a[len(a)-1] != 1 || p.Pages[0][0][0] != 0 {
		t.Error("pages overlap")
	}
}

// TestTreeAgainstModel drives a tree with random prefixes and compares it with
// a map of whole prefixes.
func TestTreeAgainstModel(t *testing.T) {
	for _, size := range []int{1, 3} {
		p := newPool(t, 600, size, Shuffled)
		tree := NewTree(p)
		rng := rand.New(rand.NewPCG(7, uint64(size)))
		owner := map[string]int32{} // namespace and ids up to the end of a page → page
		key := func(space string, tokens []int32) string {
			b := []byte(space + ":")
			for _, x := range tokens {
				b = append(b, byte(x))
			}
			return string(b)
		}
		type holder struct {
			node  *Node
			table []int32
		}
		var held []holder
		for step := range 3000 {
			space := string(rune('a' + rng.IntN(2)))
			tokens := make([]int32, rng.IntN(40))
			for i := range tokens {
				tokens[i] = int32(rng.IntN(2))
			}
			whole := len(tokens) / size
			node, table := tree.Match(space, tokens, nil)
			for i, page := range table {
				if want, ok := owner[key(space, tokens[:(i+1)*size])]; !ok || want != page {
					t.Fatalf("step %d: page %d of a match is %d, want %d (known: %v)", step, i, page, want, ok)
				}
			}
			if len(table) < whole {
				if _, ok := owner[key(space, tokens[:(len(table)+1)*size])]; ok {
					t.Fatalf("step %d: match of %d pages stops short", step, len(table))
				}
			}
			need := whole - len(table)
			if need > p.Available() {
				tree.Evict(need - p.Available())
				for k, page := range owner {
					if r := int(p.rank[page]); p.free[r/64]&(1<<(r%64)) != 0 {
						delete(owner, k)
					}
				}
			}
			table, err := p.Alloc(table, need)
			if err != nil {
				t.Fatalf("step %d: %v with %d pages free, %d evictable", step, err, p.Available(), tree.Evictable())
			}
			end := tree.Insert(space, tokens[:whole*size], table)
			tree.Unlock(node)
			for i := range table {
				owner[key(space, tokens[:(i+1)*size])] = table[i]
			}
			held = append(held, holder{end, table})
			if len(held) > 3 {
				tree.Unlock(held[0].node)
				held = held[1:]
			}
			if tree.pages != p.Used() {
				t.Fatalf("step %d: tree owns %d pages, %d are in use", step, tree.pages, p.Used())
			}
			if tree.held < 0 || tree.held > tree.pages {
				t.Fatalf("step %d: %d of %d pages held", step, tree.held, tree.pages)
			}
		}
		for _, h := range held {
			tree.Unlock(h.node)
		}
		tree.Flush()
		if p.Used() != 0 || tree.pages != 0 || tree.held != 0 || len(tree.roots) != 0 {
			t.Errorf("after a flush: %d pages used, %d owned, %d held, %d namespaces", p.Used(), tree.pages, tree.held, len(tree.roots))
		}
	}
}

func TestInsertKeepsTheTreesPages(t *testing.T) {
	p := newPool(t, 16, 2, Identity)
	tree := NewTree(p)
	tokens := []int32{1, 2, 3, 4, 5, 6}
	a, _ := p.Alloc(nil, 2)
	tree.Unlock(tree.Insert("", tokens[:4], a))
	b, _ := p.Alloc(nil, 3)
	mine := slices.Clone(b)
	tree.Unlock(tree.Insert("", tokens, b))
	if want := []int32{a[0], a[1], mine[2]}; !slices.Equal(b, want) {
		t.Errorf("pages after the insert %v, want %v", b, want)
	}
	if p.Used() != 3 {
		t.Errorf("%d pages used, want 3: the doubles were not freed", p.Used())
	}
}

func TestEvictTakesTheLeastRecentlyUsedLeaf(t *testing.T) {
	p := newPool(t, 8, 1, Identity)
	tree := NewTree(p)
	put := func(tokens ...int32) {
		table, _ := p.Alloc(nil, len(tokens))
		tree.Unlock(tree.Insert("", tokens, table))
	}
	put(1, 2)
	put(3, 4)
	n, _ := tree.Match("", []int32{1, 2}, nil)
	tree.Unlock(n)
	tree.Evict(1)
	n, table := tree.Match("", []int32{1, 2}, nil)
	tree.Unlock(n)
	if len(table) != 2 {
		t.Error("the prefix used last was evicted")
	}
	if n, table := tree.Match("", []int32{3, 4}, nil); len(table) != 0 {
		t.Error("the prefix used first was kept")
	} else {
		tree.Unlock(n)
	}
}
