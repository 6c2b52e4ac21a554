package upstream

import (
	"sync"
	"sync/atomic"
	"time"
)

// roster is the endpoints of an upstream as they are now. Configurations of the
// upstream that name the same endpoints share it.
type roster struct {
	members []*member                   // in configured order
	list    atomic.Pointer[[]*endpoint] // of all members; replaced, never written

	mu    sync.Mutex  // serialises compare
	mixed atomic.Bool // the endpoints list different models
}

func newRoster(members []*member) *roster {
	r := &roster{members: members}
	r.list.Store(new([]*endpoint))
	return r
}

// relist gathers the endpoints. The pool's mu is held.
func (r *roster) relist() {
	list := []*endpoint{}
	for _, m := range r.members {
		list = append(list, m.list...)
	}
	r.list.Store(&list)
	r.compare()
}

// others tells whether an endpoint beside e gets traffic.
func (r *roster) others(e *endpoint) bool {
	for _, o := range *r.list.Load() {
		if o != e && o.serving(o.set.Load()) {
			return true
		}
	}
	return false
}

// settled tells whether an endpoint beside e gets traffic and was first ready
// before t.
func (r *roster) settled(e *endpoint, t time.Time) bool {
	for _, o := range *r.list.Load() {
		if o != e && o.serving(o.set.Load()) && o.debut.Load() <= t.UnixNano() {
			return true
		}
	}
	return false
}
