package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// leastWaiting is how many requests may always wait for an upstream to come up.
	leastWaiting = 1000
	wakeTimeout  = 10 * time.Second
	// wakeAgain is how long after a wake-up call that reached nobody the next may
	// be made.
	wakeAgain   = 5 * time.Second
	maxWakeBody = 64 << 10
)

// errCold says that no endpoint has come up in time, or that too many wait.
var errCold = errors.New("no endpoint has come up")

// waitingRoom is where the requests of one upstream wait for its first endpoint.
// It outlives configuration changes.
type waitingRoom struct {
	post func(url string) // makes the wake-up call, in the background

	mu      sync.Mutex
	waiting int
	opened  chan struct{} // closed when something may have come up; nil when nobody listens
	woken   bool          // the call of this cold period was made
	retryAt time.Time     // of a call that reached nobody
}

// listen returns what is closed at the next stir.
func (r *waitingRoom) listen() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opened == nil {
		r.opened = make(chan struct{})
	}
	return r.opened
}

// stir lets those who wait look again; up ends the cold period.
func (r *waitingRoom) stir(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if up {
		r.woken, r.retryAt = false, time.Time{}
	}
	if r.opened != nil {
		close(r.opened)
		r.opened = nil
	}
}

// enter takes one of at most limit seats.
func (r *waitingRoom) enter(limit int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting >= limit {
		return false
	}
	r.waiting++
	return true
}

func (r *waitingRoom) leave() {
	r.mu.Lock()
	r.waiting--
	r.mu.Unlock()
}

func (r *waitingRoom) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// wake makes the call of this cold period, unless that was done.
func (r *waitingRoom) wake(url string, now time.Time) {
	r.mu.Lock()
	asleep := url != "" && !r.woken && !now.Before(r.retryAt)
	r.woken = r.woken || asleep
	r.mu.Unlock()
	if asleep {
		r.post(url)
	}
}

// missed notes that the call reached nobody.
func (r *waitingRoom) missed(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.woken, r.retryAt = false, now.Add(wakeAgain)
}

// isCold tells whether requests should wait, as the configuration says, because
// no endpoint has come up. Drained ones never will.
func (u *Upstream) isCold() bool {
	if u.cfg.ColdStart.MaxWait <= 0 {
		return false
	}
	all := true // drained
	for _, e := range u.endpoints() {
		if e.open() {
			return false
		}
		all = all && e.set.Load().drained
	}
	if !all {
		return true
	}
	for _, m := range u.roster.members { // those that a name will have
		if m.name != nil && !u.cfg.drains(m.key.base) {
			return true
		}
	}
	return false
}

// awaitReady waits until an endpoint may get calls, at most until then. The
// first who waits wakes the upstream. The error is errCold, or why ctx ended.
func (u *Upstream) awaitReady(ctx context.Context, until time.Time) error {
	r := u.room
	if !r.enter(max(u.cfg.Limits.MaxQueue, leastWaiting)) {
		return errCold
	}
	defer r.leave()
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	for {
		opened := r.listen() // before the look, so that nothing is missed
		if !u.isCold() {
			return nil
		}
		r.wake(u.cfg.ColdStart.Wake, time.Now())
		select {
		case <-opened:
		case <-late.C:
			return errCold
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// newRoom returns the waiting room of an upstream.
func (p *Pool) newRoom(upstream string) *waitingRoom {
	r := &waitingRoom{}
	log := p.log.With("upstream", upstream)
	r.post = func(url string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return
		}
		p.wg.Go(func() {
			if !wakeUp(p.ctx, log, url, upstream) {
				r.missed(time.Now())
			}
		})
	}
	return r
}

// wakeUp asks whoever is at url to start the upstream; false when nobody was
// reached. No credential goes there, and redirects are not followed.
func wakeUp(ctx context.Context, log *slog.Logger, url, upstream string) bool {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"upstream": upstream})
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		log.Error("the upstream cannot be woken: its cold_start.wake is not a URL")
		return true // nor will it be the next time
	}
	req.Header.Set("Content-Type", jsonType)
	req.Header.Set("User-Agent", "sluice-wake")
	t := &http.Transport{Proxy: nil, DisableKeepAlives: true, TLSHandshakeTimeout: wakeTimeout, MaxResponseHeaderBytes: maxRespHeader}
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		log.Warn("the upstream could not be woken", "err", errorKind(err))
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxWakeBody))
	if resp.StatusCode/100 != 2 {
		log.Warn("the wake-up call was refused", "status", resp.StatusCode)
	} else {
		log.Info("upstream was woken: requests wait for it")
	}
	return true
}
