package upstream

import "sync"

// calls are the attempts that began at one endpoint and have not ended: so that
// those which still wait for a first byte need not wait for a server that hangs.
type calls struct {
	mu    sync.Mutex
	first *entry
}

// entry is a call's place in the list; a call with a hedge has one at each of
// its two endpoints.
type entry struct {
	c             *call
	before, after *entry
}

func (l *calls) add(n *entry, c *call) {
	n.c = c
	l.mu.Lock()
	if n.after = l.first; n.after != nil {
		n.after.before = n
	}
	l.first = n
	l.mu.Unlock()
}

func (l *calls) remove(n *entry) {
	l.mu.Lock()
	if n.before == nil {
		l.first = n.after
	} else {
		n.before.after = n.after
	}
	if n.after != nil {
		n.after.before = n.before
	}
	l.mu.Unlock()
}

// list copies them, so that nothing happens under the lock.
func (l *calls) list() (out []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := l.first; n != nil; n = n.after {
		out = append(out, n.c)
	}
	return out
}

// free ends the calls that have had nothing from e yet, so that they are tried
// elsewhere: it has stopped, or sleeps.
func (e *endpoint) free() {
	for _, c := range e.calls.list() {
		c.hung(e)
	}
}

// hung ends the call, unless it has an answer or is no longer e's; of two that
// race only the one at e.
func (c *call) hung(e *endpoint) {
	w := &c.x.w
	if !w.mu.TryLock() {
		return // something is being written: it is not waiting
	}
	defer w.mu.Unlock()
	switch {
	case w.answered:
	case c.legs[0] != nil:
		for _, l := range c.legs {
			if l != nil && l.ep == e {
				l.end(errHung)
			}
		}
	case c.x.endpoint == e.base:
		c.end(errHung)
	}
}
