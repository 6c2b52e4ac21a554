package upstream

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/upstream/admit"
	"sluice/upstream/guard"
	"sluice/upstream/wire"
)

// Upstream is a named set of endpoints under one configuration. It is
// immutable but for its endpoints' state.
type Upstream struct {
	cfg                     Config
	auth                    string
	reqHeaders, respHeaders headerSet
	roster                  *roster
	caps                    *capabilities
	gate                    *admit.Gate   // kept over configuration changes
	budget                  *guard.Budget // the same
	turn                    atomic.Uint64
}

// capabilities is what was learned about the servers; it is kept over
// configuration changes that keep the dialect, and forgotten when an endpoint
// comes (back) up, perhaps as another version.
type capabilities struct {
	noUsage      atomic.Bool // refuses stream_options
	noContinuous atomic.Bool // refuses continuous_usage_stats
}

func (c *capabilities) forget() {
	c.noUsage.Store(false)
	c.noContinuous.Store(false)
}

// endpoints are its endpoints as they are now, in configured order; not to be
// written.
func (u *Upstream) endpoints() []*endpoint { return *u.roster.list.Load() }

// has tells whether e is still one of its endpoints.
func (u *Upstream) has(e *endpoint) bool { return slices.Contains(u.endpoints(), e) }

// Name is the upstream's configured name.
func (u *Upstream) Name() string { return u.cfg.Name }

// Dialect is the upstream's dialect, never "".
func (u *Upstream) Dialect() wire.Dialect { return u.cfg.Dialect }

// UsageExact tells whether every chunk's usage is asked for.
func (u *Upstream) UsageExact() bool { return u.cfg.UsageExact }

// Status returns the endpoints in configured order.
func (u *Upstream) Status() []EndpointStatus {
	list := u.endpoints()
	out := make([]EndpointStatus, len(list))
	for i, e := range list {
		out[i] = e.status()
	}
	return out
}

// FirstCheckDone tells whether the first check of every endpoint has returned.
func (u *Upstream) FirstCheckDone() bool {
	for _, e := range u.endpoints() {
		select {
		case <-e.first:
		default:
			return false
		}
	}
	return true
}

// Ready tells whether any endpoint gets traffic.
func (u *Upstream) Ready() bool {
	for _, e := range u.endpoints() {
		if e.serving(e.set.Load()) {
			return true
		}
	}
	return false
}

// DeniedField returns the first member of the body that this upstream does not
// let clients set, so that the request can be refused with a 400 naming it.
func (u *Upstream) DeniedField(h *wire.Head, body []byte) (name string, denied bool) {
	if len(u.cfg.DenyFields) == 0 {
		return "", false
	}
	return h.Denied(body, u.cfg.DenyFields)
}

// roster is the endpoints of an upstream as they are now. Configurations of the
// upstream that name the same endpoints share it.
type roster struct {
	list atomic.Pointer[[]*endpoint] // in configured order; replaced, never written

	mu    sync.Mutex  // serialises compare
	mixed atomic.Bool // the endpoints list different models
}

func newRoster(list []*endpoint) *roster {
	r := &roster{}
	r.list.Store(&list)
	return r
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
