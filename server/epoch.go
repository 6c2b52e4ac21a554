package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// epochs counts, per revision, the attempts that were decided under it and have
// not sent their first byte yet. A revision is in force on this replica when no
// older epoch has any.
type epochs struct {
	cur atomic.Pointer[epoch]
	mu  sync.Mutex
	old []*epoch // guarded by mu; those that may still have attempts
}

type epoch struct {
	rev int64
	n   atomic.Int64
}

// enter counts one attempt under rev; the returned epoch's leave ends it.
func (e *epochs) enter(rev int64) *epoch {
	c := e.cur.Load()
	if c == nil || c.rev != rev {
		c = e.open(rev)
	}
	c.n.Add(1)
	return c
}

func (c *epoch) leave() { c.n.Add(-1) }

func (e *epochs) open(rev int64) *epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	live := e.old[:0]
	var found *epoch
	for _, o := range e.old {
		if o.rev == rev {
			found = o
		}
		if o.n.Load() > 0 || o.rev >= rev {
			live = append(live, o)
		}
	}
	e.old = live
	if found == nil {
		found = &epoch{rev: rev}
		e.old = append(e.old, found)
	}
	if c := e.cur.Load(); c == nil || c.rev < rev {
		e.cur.Store(found)
	}
	return found
}

// wait returns when no epoch below rev has attempts, or ctx ends.
func (e *epochs) wait(ctx context.Context, rev int64) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		e.mu.Lock()
		busy := false
		for _, o := range e.old {
			busy = busy || (o.rev < rev && o.n.Load() > 0)
		}
		e.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
