package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	Log *slog.Logger // nil = discard

	carrier func(carrierKey) (carrier, error) // for tests; nil = newCarrier
}

// Pool owns the endpoints of all upstreams over configuration changes. It is
// safe for concurrent use.
type Pool struct {
	log        *slog.Logger
	newCarrier func(carrierKey) (carrier, error)

	ctx    context.Context // of the check loops
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards what follows, and serialises Apply
	ups    map[string]*Upstream
	eps    map[endpointKey]*endpoint
	closed bool
}

// endpointKey is an endpoint's identity over configuration changes.
type endpointKey struct{ upstream, base string }

// NewPool returns an empty pool. Close it.
func NewPool(o PoolOptions) *Pool {
	p := &Pool{log: o.Log, newCarrier: o.carrier, ups: map[string]*Upstream{}, eps: map[endpointKey]*endpoint{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.newCarrier == nil {
		p.newCarrier = newCarrier
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// errClosed reports use after Close.
var errClosed = errors.New("the pool is closed")

// Apply makes the pool hold exactly the given upstreams and returns them by
// name. An upstream whose configuration is the same as before is the same
// *Upstream; endpoints of the same upstream name and URL keep their health,
// load and connections (unless what connections depend on changed). Endpoints
// that are gone are no longer checked; calls that are under way end normally
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
	eps := make(map[endpointKey]*endpoint, len(p.eps))
	for _, n := range plan {
		for i, e := range n.up.endpoints() {
			eps[endpointKey{e.upstream, e.base}] = e
			if n.sets == nil {
				continue
			}
			old := e.adopt(n.sets[i], now)
			if old != nil && old.carrier != n.sets[i].carrier {
				old.carrier.Close()
			}
		}
		n.up.roster.compare()
		ups[n.up.cfg.Name] = n.up
		l := n.up.cfg.Limits
		n.up.gate.Set(admit.Limits{MaxInFlight: l.MaxInFlight, MaxQueue: l.MaxQueue, Timeout: l.QueueTimeout})
	}
	for k, e := range eps {
		if p.eps[k] == nil {
			ctx, cancel := context.WithCancel(p.ctx)
			e.stop = cancel
			p.wg.Go(func() { p.watch(ctx, e) })
		}
	}
	for k, e := range p.eps {
		if eps[k] == nil {
			e.stop()
			e.set.Load().carrier.Close()
		}
	}
	p.ups, p.eps = ups, eps
	out := make(map[string]*Upstream, len(ups))
	for k, u := range ups {
		out[k] = u
	}
	return out, nil
}

// planned is one upstream to be: sets, when not nil, are its endpoints' new settings.
type planned struct {
	up   *Upstream
	sets []*settings
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
		u.gate, u.budget = old.gate, old.budget
	}
	n := planned{up: u}
	var list []*endpoint
	for _, base := range c.Endpoints {
		e := p.eps[endpointKey{c.Name, base}]
		if e == nil {
			var err error
			if e, err = newEndpoint(c.Name, base, now); err != nil {
				return planned{}, err
			}
		}
		set := &settings{dialect: c.Dialect, auth: u.auth, readiness: c.Readiness, warmup: c.Warmup, slowStart: c.SlowStart,
			drained: c.drains(base), key: keyOf(&c, e.url.Scheme == "https")}
		if cur := e.set.Load(); cur != nil && cur.key == set.key {
			set.carrier = cur.carrier
		} else {
			var err error
			if set.carrier, err = p.newCarrier(set.key); err != nil {
				return planned{}, err
			}
		}
		list = append(list, e)
		n.sets = append(n.sets, set)
	}
	if old != nil && slices.Equal(old.cfg.Endpoints, c.Endpoints) {
		u.roster = old.roster
	} else {
		u.roster = newRoster(list)
	}
	for _, set := range n.sets {
		set.roster = u.roster
	}
	return n, nil
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

// Ready waits until the first check of every endpoint has returned, ctx ends,
// or limit (at most 2 s) has passed; it tells whether all have.
func (p *Pool) Ready(ctx context.Context, limit time.Duration) bool {
	p.mu.Lock()
	var wait []chan struct{}
	for _, e := range p.eps {
		wait = append(wait, e.first)
	}
	p.mu.Unlock()
	t := time.NewTimer(min(max(limit, 0), readyMax))
	defer t.Stop()
	for _, c := range wait {
		select { // what is done counts even when the time is over
		case <-c:
			continue
		default:
		}
		select {
		case <-c:
		case <-ctx.Done():
			return false
		case <-t.C:
			return false
		}
	}
	return true
}

// Close stops the checks, closes idle connections and waits for its goroutines.
// Calls of Do that are under way are not cut; cancel their contexts.
func (p *Pool) Close() {
	p.mu.Lock()
	eps := p.eps
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	for _, e := range eps {
		e.set.Load().carrier.Close()
	}
}
