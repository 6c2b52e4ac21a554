package upstream

import (
	"context"
	"fmt"
	"sync"
)

// QueueStatus tells how many requests this gateway has in and in front of the
// upstream.
func (u *Upstream) QueueStatus() UpstreamStatus {
	s := u.gate.Stats()
	return UpstreamStatus{InFlight: s.InFlight, Queued: s.Queued + u.room.count(), MaxInFlight: u.cfg.Limits.MaxInFlight, MaxQueue: u.cfg.Limits.MaxQueue}
}

// Probe checks the endpoints of an upstream now, or those of that base URL,
// resolved or as configured, and returns how all of them stand. The names among
// them are resolved soon.
func (p *Pool) Probe(ctx context.Context, name, endpoint string) ([]EndpointStatus, error) {
	p.mu.Lock()
	u := p.ups[name]
	p.mu.Unlock()
	if u == nil {
		return nil, fmt.Errorf("there is no upstream %q", name)
	}
	if endpoint != "" {
		if b, err := NormalizeBase(endpoint); err == nil {
			endpoint = b
		}
	}
	found := false
	for _, m := range u.roster.members {
		if endpoint == "" || m.key.base == endpoint {
			found = true
			m.lookAgain()
		}
	}
	var wg sync.WaitGroup
	for _, e := range u.endpoints() {
		if endpoint == "" || e.base == endpoint || e.member.key.base == endpoint {
			found = true
			wg.Go(func() { e.checkNow(ctx) })
		}
	}
	wg.Wait()
	if !found && endpoint != "" {
		return nil, fmt.Errorf("upstream %q has no endpoint %q", name, endpoint)
	}
	return u.Status(), ctx.Err()
}

// checkNow waits until a check that began after the call has ended.
func (e *endpoint) checkNow(ctx context.Context) {
	done := make(chan struct{})
	select {
	case e.probes <- done:
	case <-e.ended:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}
