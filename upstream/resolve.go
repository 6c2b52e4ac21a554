package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

const (
	resolveEvery   = 5 * time.Second
	resolveSoonest = time.Second // after the one before, however often it is asked for
	// resolveTimeout leaves the system's resolver time for its second server.
	resolveTimeout = 10 * time.Second
	// maxAddresses bounds the endpoints of one name.
	maxAddresses = 256
)

// addresses is an answer by family; each keeps its last good one.
type addresses struct{ four, six []netip.Addr }

// follow keeps m's endpoints in step with the addresses of its name, until ctx
// ends.
func (p *Pool) follow(ctx context.Context, m *member) {
	var known addresses
	for first := true; ; first = false {
		started := time.Now()
		err := p.resolve(ctx, m.url.Hostname(), &known)
		if ctx.Err() != nil {
			return
		}
		p.arrive(m, known, err)
		if first {
			close(m.name.first)
		}
		if !untilNext(ctx, started, p.resolveEvery, m.name.again) {
			return
		}
	}
}

// untilNext waits until it is time for the next resolution; false when ctx ended.
func untilNext(ctx context.Context, started time.Time, every time.Duration, again <-chan struct{}) bool {
	d := time.Duration(float64(every) * (0.8 + 0.4*rand.Float64()))
	t := time.NewTimer(d - time.Since(started))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	case <-again:
	}
	t.Reset(min(resolveSoonest, every) - time.Since(started))
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// resolve asks for the addresses of both families. A family whose question was
// not answered keeps what it had; that there is none is an answer.
func (p *Pool) resolve(ctx context.Context, host string, known *addresses) error {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	six := make(chan error, 1)
	go func() { six <- p.lookup(ctx, "ip6", host, &known.six) }()
	err4 := p.lookup(ctx, "ip4", host, &known.four)
	err6 := <-six
	if len(known.four)+len(known.six) > 0 {
		// Many resolvers cannot answer for the family that nobody uses.
		if len(known.four) == 0 {
			err4 = nil
		}
		if len(known.six) == 0 {
			err6 = nil
		}
	}
	return errors.Join(err4, err6)
}

func (p *Pool) lookup(ctx context.Context, family, host string, found *[]netip.Addr) error {
	list, err := p.resolver.LookupNetIP(ctx, family, host)
	var none *net.AddrError // the name is an address of the other family
	var dns *net.DNSError
	if errors.As(err, &none) || errors.As(err, &dns) && dns.IsNotFound {
		*found = nil
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list {
		list[i] = list[i].Unmap().WithZone("")
	}
	slices.SortFunc(list, netip.Addr.Compare)
	*found = slices.Compact(list)
	return nil
}

// arrive makes m's endpoints those of the addresses known. New ones are checked
// and warmed before they get traffic; vanished ones get no new calls.
func (p *Pool) arrive(m *member, known addresses, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.members[m.key] != m {
		return
	}
	now := time.Now()
	want := append(slices.Clone(known.four), known.six...)
	total := len(want)
	want = want[:min(total, maxAddresses)]
	old := map[string]*endpoint{}
	for _, e := range m.list {
		old[e.addr] = e
	}
	var list, fresh []*endpoint
	for _, ip := range want {
		base, addr := located(m.url, ip)
		if e := old[addr]; e != nil {
			delete(old, addr)
			list = append(list, e)
			continue
		}
		e := newEndpoint(m, base, addr, now)
		set, failed := p.settings(m.up, m, e)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		e.adopt(set, now)
		list, fresh = append(list, e), append(fresh, e)
	}
	p.say(m, total, len(fresh), len(old), err, now)
	if len(fresh)+len(old) == 0 {
		return
	}
	for _, e := range fresh {
		p.begin(e)
	}
	m.list = list
	m.up.roster.relist()
	for _, e := range old {
		e.leave()
	}
}

// say notes and logs what a resolution has come to, when that is new.
func (p *Pool) say(m *member, total, came, went int, err error, now time.Time) {
	log := p.log.With("upstream", m.key.upstream, "endpoint", m.key.base)
	state, problem := "", ""
	switch {
	case err != nil && total > 0:
		state, problem = stateFailing, "its name cannot be resolved ("+resolveProblem(err)+"); the addresses it had last stay in use"
	case err != nil:
		state, problem = stateUnreachable, "its name cannot be resolved: "+resolveProblem(err)
	case total == 0:
		state, problem = stateUnreachable, "its name has no address"
	case total > maxAddresses:
		state, problem = stateFailing, fmt.Sprintf("its name has %d addresses; the first %d are used", total, maxAddresses)
	}
	if m.name.note(state, problem, now) && problem != "" {
		log.Warn("endpoint's name", "problem", problem, "err", err)
	}
	if came+went > 0 {
		log.Info("endpoint's addresses changed", "came", came, "went", went, "now", min(total, maxAddresses))
	}
}

func resolveProblem(err error) string {
	var dns *net.DNSError
	switch {
	case !errors.As(err, &dns):
		return errorKind(err)
	case dns.IsTimeout:
		return "the name server does not answer"
	}
	return "the name server fails"
}

// located returns the base URL u with an address in the place of its name, and
// what to connect to.
func located(u *url.URL, ip netip.Addr) (base, addr string) {
	c := *u
	host := ip.String()
	if ip.Is6() {
		host = "[" + host + "]"
	}
	port := u.Port()
	if c.Host = host; port != "" {
		c.Host += ":" + port
	} else if port = "80"; u.Scheme == "https" {
		port = "443"
	}
	return c.String(), net.JoinHostPort(ip.String(), port)
}
