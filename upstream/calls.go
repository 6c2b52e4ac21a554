package upstream

import "sync"

// calls are the attempts that began at one endpoint and have not ended: so that
// those which still wait for a first byte need not wait for a server that hangs.
type calls struct {
	mu    sync.Mutex
	first *call
}

func (l *calls) add(c *call) {
	l.mu.Lock()
	if c.after = l.first; c.after != nil {
		c.after.before = c
	}
	l.first = c
	l.mu.Unlock()
}

func (l *calls) remove(c *call) {
	l.mu.Lock()
	if c.before == nil {
		l.first = c.after
	} else {
		c.before.after = c.after
	}
	if c.after != nil {
		c.after.before = c.before
	}
	l.mu.Unlock()
}

// list copies them, so that nothing happens under the lock.
func (l *calls) list() (out []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := l.first; c != nil; c = c.after {
		out = append(out, c)
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

// hung ends the call, unless it has an answer or is no longer e's.
func (c *call) hung(e *endpoint) {
	w := &c.x.w
	if !w.mu.TryLock() {
		return // something is being written: it is not waiting
	}
	defer w.mu.Unlock()
	if !w.answered && c.x.endpoint == e.base {
		c.end(errHung)
	}
}
