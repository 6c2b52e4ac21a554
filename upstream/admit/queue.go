package admit

import (
	"container/list"
	"slices"
)

// waiter is one request in the queue.
type waiter struct {
	key  *keyQueue     // nil when it is not in the queue (any more)
	at   *list.Element // in key.waiters
	done chan struct{} // closed when it has a place, or err
	err  error
}

// end tells the waiter what it has got.
func (w *waiter) end(err error) {
	w.err = err
	close(w.done)
}

// keyQueue is those of one key and priority, in the order they came.
type keyQueue struct {
	name    string
	level   *level
	waiters list.List
	turn    *list.Element // in level.turns
	size    *list.Element // in level.sizes[waiters.Len()]
}

// level is those of one priority.
type level struct {
	priority int
	n        int
	keys     map[string]*keyQueue
	turns    list.List    // of *keyQueue: the front's turn is next
	sizes    []*list.List // of *keyQueue by how many wait, so that the largest is found at once
}

// queue holds the waiting. Every operation takes constant time but for the
// search among the priorities, of which there are a handful.
type queue struct {
	n      int
	levels []*level // highest priority first
}

// push appends a waiter for t.
func (q *queue) push(t Ticket) *waiter {
	l := q.level(t.Priority)
	k := l.keys[t.Key]
	if k == nil {
		k = &keyQueue{name: t.Key, level: l}
		k.turn = l.turns.PushBack(k)
		l.keys[t.Key] = k
	}
	w := &waiter{key: k, done: make(chan struct{})}
	w.at = k.waiters.PushBack(w)
	k.resized(k.waiters.Len() - 1)
	l.n++
	q.n++
	return w
}

// level returns the level of a priority, making it when it is not there.
func (q *queue) level(priority int) *level {
	i, ok := slices.BinarySearchFunc(q.levels, priority, func(l *level, p int) int { return p - l.priority })
	if !ok {
		q.levels = slices.Insert(q.levels, i, &level{priority: priority, keys: map[string]*keyQueue{}, sizes: []*list.List{list.New()}})
	}
	return q.levels[i]
}

// first is whose turn it is; the queue must not be empty. The key moves to the
// end of the round.
func (q *queue) first() *waiter {
	l := q.levels[0]
	k := l.turns.Front().Value.(*keyQueue)
	l.turns.MoveToBack(k.turn)
	return k.waiters.Front().Value.(*waiter)
}

// remove takes w out, and what is empty then.
func (q *queue) remove(w *waiter) {
	k := w.key
	l := k.level
	w.key = nil
	k.waiters.Remove(w.at)
	k.resized(k.waiters.Len() + 1)
	l.n--
	q.n--
	if k.waiters.Len() == 0 {
		l.turns.Remove(k.turn)
		delete(l.keys, k.name)
	}
	if l.n == 0 {
		q.levels = slices.DeleteFunc(q.levels, func(x *level) bool { return x == l })
	}
}

// resized moves k to where keys of its size are.
func (k *keyQueue) resized(was int) {
	l, now := k.level, k.waiters.Len()
	if k.size != nil {
		l.sizes[was].Remove(k.size)
		k.size = nil
	}
	for len(l.sizes) <= now {
		l.sizes = append(l.sizes, list.New())
	}
	if now > 0 {
		k.size = l.sizes[now].PushBack(k)
	}
	for last := len(l.sizes) - 1; last > 0 && l.sizes[last].Len() == 0; last-- {
		l.sizes = l.sizes[:last]
	}
}

// largest is the key of the level with most waiting.
func (l *level) largest() *keyQueue {
	return l.sizes[len(l.sizes)-1].Front().Value.(*keyQueue)
}

// loserTo is the waiter that must make room for t in a full queue, nil if t has
// no better right than any.
func (q *queue) loserTo(t Ticket) *waiter {
	if q.n == 0 {
		return nil
	}
	l := q.levels[len(q.levels)-1]
	k := l.largest()
	switch {
	case l.priority < t.Priority:
	case l.priority > t.Priority:
		return nil
	default:
		mine := 0
		if own := l.keys[t.Key]; own != nil {
			mine = own.waiters.Len()
		}
		if k.waiters.Len() < mine+2 {
			return nil
		}
	}
	return k.waiters.Back().Value.(*waiter)
}
