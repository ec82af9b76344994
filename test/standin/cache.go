package standin

import "sync"

// cache holds the prompts of each worker by namespace; a prompt's common prefix
// with any of them is cached, in whole blocks, all but one token at most.
type cache struct {
	mu      sync.Mutex
	workers []map[string][][]int32
	next    int
}

// take returns how much of a prompt is cached, and caches it.
func (c *cache) take(a *ask) int {
	if a.script.Cache.Off {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.next % len(c.workers)
	c.next++
	if c.workers[w] == nil {
		c.workers[w] = map[string][][]int32{}
	}
	best := 0
	if !a.noReuse {
		for _, before := range c.workers[w][a.space] {
			n := 0
			for n < min(len(before), len(a.ids)-1) && before[n] == a.ids[n] {
				n++
			}
			best = max(best, n-n%a.script.Cache.Block)
		}
	}
	const kept = 64
	list := append(c.workers[w][a.space], a.ids)
	c.workers[w][a.space] = list[max(0, len(list)-kept):]
	return best
}

// flush empties the first worker's cache.
func (c *cache) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers[0] = nil
}
