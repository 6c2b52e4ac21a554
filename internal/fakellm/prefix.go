package fakellm

import (
	"container/list"
	"encoding/json"
	"hash/fnv"
	"strings"
	"sync"
)

// prefixes is the prefix cache of an engine: the beginnings of conversations,
// message by message, of which it keeps the last used.
type prefixes struct {
	room int

	mu    sync.Mutex
	at    map[uint64]*list.Element
	order list.List // of uint64, last used first
}

func newPrefixes(room int) *prefixes { return &prefixes{room: room, at: map[uint64]*list.Element{}} }

// clear forgets everything, as a restart does.
func (p *prefixes) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order.Init()
	clear(p.at)
}

// lookup returns how many words the messages have, and how many of them are
// cached; afterwards all are.
func (p *prefixes) lookup(messages []json.RawMessage) (words, cached int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := fnv.New64a()
	known := true
	for _, m := range messages {
		h.Write(m)
		id := h.Sum64()
		n := len(strings.Fields(string(m)))
		words += n
		e := p.at[id]
		if known = known && e != nil; known {
			cached += n
		}
		if e != nil {
			p.order.MoveToFront(e)
			continue
		}
		p.at[id] = p.order.PushFront(id)
		if p.order.Len() > p.room {
			delete(p.at, p.order.Remove(p.order.Back()).(uint64))
		}
	}
	return words, cached
}
