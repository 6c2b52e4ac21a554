package upstream

import (
	"slices"
	"sync/atomic"

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
	room                    *waitingRoom  // the same
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

// Status returns the endpoints in configured order. A dns: name stands there as
// long as it has no address or cannot be resolved, beside the addresses it has.
func (u *Upstream) Status() []EndpointStatus {
	var out []EndpointStatus
	list := u.endpoints()
	for _, m := range u.roster.members {
		if s, ok := m.trouble(); ok {
			out = append(out, s)
		}
		for _, e := range list {
			if e.member == m {
				out = append(out, e.status())
			}
		}
	}
	return out
}

// FirstCheckDone tells whether every name has been resolved once, and the first
// check of every endpoint has returned.
func (u *Upstream) FirstCheckDone() bool {
	for _, m := range u.roster.members {
		if m.name != nil && !done(m.name.first) {
			return false
		}
	}
	for _, e := range u.endpoints() {
		if !done(e.first) {
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
