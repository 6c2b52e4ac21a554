package sticky

import (
	"encoding/binary"
	"sync"

	"sluice/experiment"
)

// cached is a pin that this replica has served. life is the store's life in
// which it was stored, 0 when it was not seen stored; queued says that it
// waits in the queue.
type cached struct {
	pin    experiment.Pin
	life   uint32
	queued bool
}

const cacheParts = 16

// cache remembers the pins used last, approximately: each part has a young
// and an old half; a hit in the old half moves to the young one, and when the
// young half is full the old one is forgotten. Constant time, no lists.
type cache struct {
	parts [cacheParts]struct {
		mu         sync.Mutex
		young, old map[unit]cached
	}
	half int // entries of one half of one part
}

func newCache(entries int) *cache {
	c := &cache{half: max(1, entries/cacheParts/2)}
	for i := range c.parts {
		c.parts[i].young = map[unit]cached{}
	}
	return c
}

// part spreads by the unit's field, which is a piece of a cryptographic hash.
func (c *cache) part(u unit) int { return int(binary.BigEndian.Uint64(u.field[:]) % cacheParts) }

func (c *cache) get(u unit) (cached, bool) {
	p := &c.parts[c.part(u)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := p.young[u]; ok {
		return v, true
	}
	v, ok := p.old[u]
	if ok {
		c.insert(c.part(u), u, v)
	}
	return v, ok
}

func (c *cache) put(u unit, v cached) {
	p := &c.parts[c.part(u)]
	p.mu.Lock()
	defer p.mu.Unlock()
	c.insert(c.part(u), u, v)
}

// insert runs under the part's lock.
func (c *cache) insert(i int, u unit, v cached) {
	p := &c.parts[i]
	if _, ok := p.young[u]; !ok && len(p.young) >= c.half {
		p.old, p.young = p.young, make(map[unit]cached, c.half/4)
	}
	delete(p.old, u)
	p.young[u] = v
}

// unqueue notes that u's pin is not on its way to the store any more.
func (c *cache) unqueue(u unit) {
	p := &c.parts[c.part(u)]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range []map[unit]cached{p.young, p.old} {
		if v, ok := m[u]; ok {
			v.queued = false
			m[u] = v
		}
	}
}

func (c *cache) drop(exp string) {
	for i := range c.parts {
		p := &c.parts[i]
		p.mu.Lock()
		for _, m := range []map[unit]cached{p.young, p.old} {
			for u := range m {
				if u.exp == exp {
					delete(m, u)
				}
			}
		}
		p.mu.Unlock()
	}
}

func (c *cache) len() (n int) {
	for i := range c.parts {
		p := &c.parts[i]
		p.mu.Lock()
		n += len(p.young) + len(p.old)
		p.mu.Unlock()
	}
	return n
}
