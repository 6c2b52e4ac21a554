package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"sluice/upstream/admit"
	"sluice/upstream/guard"
)

// readyMax is the longest that Pool.Ready waits: an endpoint that does not
// answer must not hold the process back.
const readyMax = 2 * time.Second

// PoolOptions configure a Pool. The zero value is usable.
type PoolOptions struct {
	Log      *slog.Logger  // nil = discard
	Resolver *net.Resolver // of dns: endpoints; nil = the system's

	// For tests.
	carrier      func(carrierKey) (carrier, error) // nil = newCarrier
	resolveEvery time.Duration                     // 0 = 5 s
}

// Pool owns the endpoints of all upstreams over configuration changes. It is
// safe for concurrent use.
type Pool struct {
	log          *slog.Logger
	newCarrier   func(carrierKey) (carrier, error)
	resolver     *net.Resolver
	resolveEvery time.Duration

	ctx    context.Context // of the check loops
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards what follows, and serialises Apply
	ups     map[string]*Upstream
	members map[memberKey]*member
	closed  bool
}

// NewPool returns an empty pool. Close it.
func NewPool(o PoolOptions) *Pool {
	p := &Pool{log: o.Log, newCarrier: o.carrier, resolver: o.Resolver, resolveEvery: o.resolveEvery,
		ups: map[string]*Upstream{}, members: map[memberKey]*member{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.newCarrier == nil {
		p.newCarrier = newCarrier
	}
	if p.resolver == nil {
		p.resolver = net.DefaultResolver
	}
	if p.resolveEvery == 0 {
		p.resolveEvery = resolveEvery
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// errClosed reports use after Close.
var errClosed = errors.New("the pool is closed")

// Apply makes the pool hold exactly the given upstreams and returns them by
// name. An upstream whose configuration is the same as before is the same
// *Upstream; endpoints of the same upstream name and URL keep their health,
// load and connections (unless what connections depend on changed), and dns:
// names their addresses. Endpoints that are gone are no longer checked; calls that are under way end normally
// and their connections close after it. On error nothing has changed.
func (p *Pool) Apply(cfgs []Config) (map[string]*Upstream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	plan, err := p.plan(cfgs)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	ups := make(map[string]*Upstream, len(plan))
	members := make(map[memberKey]*member, len(p.members))
	for _, n := range plan {
		u := n.up
		ups[u.cfg.Name] = u
		for _, m := range u.roster.members {
			members[m.key] = m
			m.up = u
		}
		for e, set := range n.sets {
			old := e.adopt(set, now)
			if old != nil && old.carrier != set.carrier {
				old.carrier.Close()
			}
		}
		u.roster.relist()
		u.room.stir(u.Ready())
		l := u.cfg.Limits
		u.gate.Set(admit.Limits{MaxInFlight: l.MaxInFlight, MaxQueue: l.MaxQueue, Timeout: l.QueueTimeout})
	}
	for k, m := range members {
		if p.members[k] == nil {
			p.start(m)
		}
	}
	for k, m := range p.members {
		if members[k] == nil {
			m.end()
		}
	}
	p.ups, p.members = ups, members
	out := make(map[string]*Upstream, len(ups))
	for k, u := range ups {
		out[k] = u
	}
	return out, nil
}

// planned is one upstream to be, and the new settings of its endpoints.
type planned struct {
	up   *Upstream
	sets map[*endpoint]*settings // nil when nothing changes
}

// plan works out everything that can fail.
func (p *Pool) plan(cfgs []Config) ([]planned, error) {
	out := make([]planned, 0, len(cfgs))
	seen := map[string]bool{}
	now := time.Now()
	for _, c := range cfgs {
		c, err := c.withDefaults()
		if err != nil {
			return nil, err
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("upstream %q is defined twice", c.Name)
		}
		seen[c.Name] = true
		old := p.ups[c.Name]
		if old != nil && reflect.DeepEqual(old.cfg, c) {
			out = append(out, planned{up: old})
			continue
		}
		n, err := p.build(c, old, now)
		if err != nil {
			return nil, fmt.Errorf("upstream %q: %w", c.Name, err)
		}
		out = append(out, n)
	}
	return out, nil
}

func (p *Pool) build(c Config, old *Upstream, now time.Time) (planned, error) {
	u := &Upstream{cfg: c, reqHeaders: newHeaderSet(c.ReqHeaders, passable), respHeaders: newHeaderSet(c.RespHeaders, passable), caps: &capabilities{}, gate: &admit.Gate{}, budget: &guard.Budget{}}
	if c.Credential != "" {
		u.auth = "Bearer " + c.Credential
	}
	if old != nil && old.cfg.Dialect == c.Dialect {
		u.caps = old.caps
	}
	if old != nil {
		u.gate, u.budget, u.room = old.gate, old.budget, old.room
	} else {
		u.room = p.newRoom(c.Name)
	}
	n := planned{up: u, sets: map[*endpoint]*settings{}}
	var members []*member
	for _, base := range c.Endpoints {
		m := p.members[memberKey{c.Name, base}]
		if m == nil {
			var err error
			if m, err = newMember(c.Name, base, now); err != nil {
				return planned{}, err
			}
		}
		members = append(members, m)
	}
	if old != nil && slices.Equal(old.cfg.Endpoints, c.Endpoints) {
		u.roster = old.roster
	} else {
		u.roster = newRoster(members)
	}
	for _, m := range members {
		if err := p.try(u, m); err != nil {
			return planned{}, err
		}
		for _, e := range m.list {
			set, err := p.settings(u, m, e)
			if err != nil {
				return planned{}, err
			}
			n.sets[e] = set
		}
	}
	return n, nil
}

// settings are e's under u. What connections depend on decides whether they stay.
func (p *Pool) settings(u *Upstream, m *member, e *endpoint) (*settings, error) {
	c := &u.cfg
	set := &settings{
		dialect: c.Dialect, auth: u.auth, readiness: c.Readiness, warmup: c.Warmup, slowStart: c.SlowStart,
		drained: c.drains(e.base) || c.drains(m.key.base), roster: u.roster, room: u.room, waits: c.ColdStart.MaxWait > 0, key: keyOf(c, m.url.Scheme == "https"),
	}
	set.pollEvery = pollEvery(c)
	set.key.addr = e.addr
	if cur := e.set.Load(); cur != nil && cur.key == set.key {
		set.carrier = cur.carrier
		return set, nil
	}
	var err error
	set.carrier, err = p.newCarrier(set.key)
	return set, err
}

// try finds out now whether connections to the addresses can be set up that m
// will have later.
func (p *Pool) try(u *Upstream, m *member) error {
	if m.name == nil {
		return nil
	}
	c, err := p.newCarrier(keyOf(&u.cfg, m.url.Scheme == "https"))
	if err == nil {
		c.Close()
	}
	return err
}

// start begins to check, and to resolve, what is new. mu is held.
func (p *Pool) start(m *member) {
	if m.name == nil {
		p.begin(m.list[0])
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	m.name.stop = cancel
	p.wg.Go(func() { p.follow(ctx, m) })
}

// begin starts the checks of an endpoint that has its settings. mu is held.
func (p *Pool) begin(e *endpoint) {
	ctx, cancel := context.WithCancel(p.ctx)
	e.stop, e.ended = cancel, ctx.Done()
	p.wg.Go(func() { p.watch(ctx, e) })
}

// forget drops what was learned about an upstream's servers.
func (p *Pool) forget(name string) {
	p.mu.Lock()
	u := p.ups[name]
	p.mu.Unlock()
	if u != nil {
		u.caps.forget()
	}
}

// Ready waits until every dns: name has been resolved once and the first check
// of every endpoint has returned, ctx ends, or limit (at most 2 s) has passed; it
// tells whether all have.
func (p *Pool) Ready(ctx context.Context, limit time.Duration) bool {
	t := time.NewTimer(min(max(limit, 0), readyMax))
	defer t.Stop()
	for { // a name that has been resolved may bring endpoints
		c := p.unchecked()
		if c == nil {
			return true
		}
		select {
		case <-c:
		case <-ctx.Done():
			return false
		case <-t.C:
			return false
		}
	}
}

// unchecked returns what is closed when the first check, or the first resolution,
// of one that has had none is done; nil when all have.
func (p *Pool) unchecked() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if c := m.unchecked(); c != nil {
			return c
		}
	}
	return nil
}

// Close stops the checks, closes idle connections and waits for its goroutines.
// Calls of Do that are under way are not cut; cancel their contexts.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	for _, m := range p.members { // nobody changes them any more
		m.end()
	}
}
