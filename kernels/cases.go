package kernels

// Cases are launches at which attention kernels are known to go wrong: empty
// caches and caches around a page border, more query rows than tokens, odd
// numbers of heads, widths that no vector divides, more parts than tokens, and
// the shapes of real models.
func Cases() []Case {
	gqa := func(heads, kvHeads, dim int) Shape {
		return Shape{Heads: heads, KVHeads: kvHeads, KDim: dim, VDim: dim}
	}
	mla := func(heads, rank, rope int) Shape {
		return Shape{Heads: heads, KVHeads: 1, KDim: rank + rope, VDim: rank, Latent: true}
	}
	var cases []Case
	add := func(c Case) {
		c.Seed = uint64(len(cases))
		cases = append(cases, c)
	}
	both := []Shape{gqa(4, 2, 32), mla(4, 64, 8)}
	for _, s := range both {
		for _, page := range []int{1, 16, 64} {
			for _, n := range []int{0, 1, page - 1, page, page + 1, 5*page + 3, 700} {
				for _, qLen := range []int{1, 4} {
					add(Case{Shape: s, Len: n, QLen: qLen, PageSize: page, Placement: Shuffled, Options: Options{Threads: 2}})
				}
			}
		}
		for _, splits := range []int{1, 2, 3, 7, 16, 40} {
			for _, n := range []int{0, 5, 129, 600} {
				add(Case{Shape: s, Len: n, QLen: 2, PageSize: 16, Options: Options{Splits: splits, Threads: 2}})
			}
		}
		for qLen := 1; qLen <= 33; qLen++ {
			add(Case{Shape: s, Len: 20 + qLen*3, QLen: qLen, PageSize: 16, Placement: Shuffled, Options: Options{Splits: 1 + qLen%3, Threads: 2}})
		}
		for _, qLen := range []int{100, 200} { // part of a prompt, with and without a cached prefix
			for _, prefix := range []int{0, 77, 300} {
				add(Case{Shape: s, Len: prefix + qLen, QLen: qLen, PageSize: 16, Placement: Shuffled, Options: Options{Threads: 2}})
			}
		}
	}
	for _, s := range []Shape{
		gqa(1, 1, 64), gqa(3, 1, 64), gqa(3, 3, 16), gqa(9, 3, 32), gqa(9, 9, 8), gqa(63, 9, 16),
		mla(1, 32, 16), mla(3, 64, 16), mla(9, 40, 8), mla(63, 32, 8),
	} {
		add(Case{Shape: s, Len: 203, QLen: 1, PageSize: 16, Placement: Shuffled, Options: Options{Splits: 2, Threads: 2}})
		add(Case{Shape: s, Len: 203, QLen: 5, PageSize: 1, Placement: Shuffled, Options: Options{Splits: 3, Threads: 1}})
		add(Case{Shape: s, Len: 103, QLen: 70, PageSize: 64})
	}
	for _, dim := range []int{1, 2, 3, 7, 9, 15, 17, 20, 31, 33, 47, 63, 65, 80, 96, 130, 257} {
		add(Case{Shape: Shape{Heads: 5, KVHeads: 1, KDim: dim, VDim: dim + 3}, Len: 77, QLen: 3, PageSize: 4, Placement: Shuffled, Options: Options{Splits: 2, Threads: 2}})
		add(Case{Shape: Shape{Heads: 7, KVHeads: 1, KDim: dim + 9, VDim: dim + 4, Latent: true}, Len: 77, QLen: 20, PageSize: 4, Placement: Shuffled, Options: Options{Splits: 2, Threads: 2}})
	}
	for _, s := range []Shape{gqa(8, 2, 64), gqa(8, 2, 128), mla(8, 512, 64)} {
		add(Case{Shape: s, Len: 1000, QLen: 1, PageSize: 16, Placement: Shuffled, Options: Options{Splits: 4, Threads: 2}})
		add(Case{Shape: s, Len: 200, QLen: 33, PageSize: 1, Placement: Shuffled, Options: Options{Threads: 2}})
	}
	return cases
}
