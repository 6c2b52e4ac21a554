package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"sluice/upstream/admit"
	"sluice/upstream/guard"
)

// errDeadline is the cause when the client's own deadline has passed.
var errDeadline = errors.New("the deadline of the request has passed")

// The reasons of Next that this package knows. reasonFirst marks the first
// target's, which has none, while it is asked for again after a wait.
const (
	reasonRetry = "retry"
	reasonFirst = "first"
)

func orFirst(reason string) string {
	if reason == "" {
		return reasonFirst
	}
	return reason
}

// admit takes a place in front of t's upstream, which the request keeps over its
// calls there. waited tells that time has passed until it was free; refused, with
// the verdict, that there was none.
func (x *exchange) admit(t *Target) (waited bool, v verdict, refused bool) {
	g := t.Upstream.gate
	if x.place == g {
		return false, verdict{}, false
	}
	x.leave()
	if b := t.Upstream.budget; x.counted == 0 && x.asked != b {
		x.asked = b
		b.Request(time.Now())
	}
	if g.TryAcquire() {
		x.place = g
		return false, verdict{}, false
	}
	from := time.Now()
	waited, err := x.queue(t)
	x.res.Queued += time.Since(from)
	switch {
	case err == nil:
		x.place = g
		return waited, verdict{}, false
	case errors.Is(err, admit.ErrFull), errors.Is(err, admit.ErrTimeout):
		f := madeFailure(QueueFull)
		f.RetryAfter = seconds(g.RetryAfter(time.Now()))
		return false, verdict{outcome: QueueFull, fail: f}, true
	}
	if v, over := x.over(); over {
		return false, v, true
	}
	return false, verdict{outcome: Canceled, final: true}, true
}

// queue waits for a place.
func (x *exchange) queue(t *Target) (waited bool, err error) {
	err = x.aside(t, func(ctx context.Context) (err error) {
		waited, err = t.Upstream.gate.Acquire(ctx, admit.Ticket{Key: x.req.Key, Priority: t.Priority})
		return err
	})
	return waited, err
}

// thaw waits for the first endpoint of t's upstream to come up, without a place
// in front of it: true when one has. All the waits of a request together last as
// long as one may.
func (x *exchange) thaw(t *Target) bool {
	now := time.Now()
	if x.cold.IsZero() {
		x.cold = now.Add(t.Upstream.cfg.ColdStart.MaxWait)
	}
	x.leave()
	err := x.aside(t, func(ctx context.Context) error { return t.Upstream.awaitReady(ctx, x.cold) })
	x.res.Queued += time.Since(now)
	return err == nil
}

// aside runs a wait with nothing under way. Keep-alive comments go on meanwhile,
// and a client that they do not reach ends it.
func (x *exchange) aside(t *Target, wait func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(x.ctx)
	defer cancel(nil)
	x.w.mu.Lock()
	x.target, x.endpoint = *t, ""
	x.w.mu.Unlock()
	x.w.begin(Timeouts{}, cancel)
	defer x.w.end()
	if f := x.req.Sent; f != nil {
		f() // what was decided is asked for again after the wait
	}
	return wait(ctx)
}

// leave gives the place back.
func (x *exchange) leave() {
	if x.place != nil {
		x.place.Release()
		x.place = nil
	}
}

// seconds is a value of retry-after, rounded up, at least 1.
func seconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}

// maxBegins bounds how often an endpoint is chosen whose breaker then has no
// turn to give.
const maxBegins = 8

// begin chooses an endpoint for the next call and takes a turn of its breaker;
// ep, when not nil, is the one to use. A nil endpoint means that there is none.
func (u *Upstream) begin(q ask, ep *endpoint, now time.Time) (guard.Turn, *endpoint) {
	if ep != nil {
		turn, _ := ep.guard.Begin(now) // a repeated send belongs to a call that was let through
		return turn, ep
	}
	for range maxBegins {
		if ep = u.pick(q); ep == nil {
			break
		}
		if turn, ok := ep.guard.Begin(now); ok {
			return turn, ep
		}
	}
	return guard.Turn{}, nil
}

// unavailable is the verdict when no endpoint may be called: all have asked to
// be left alone for a while, or some have failed too often, or none is ready.
func (u *Upstream) unavailable(q ask, now time.Time) verdict {
	var next time.Time // when the first of them may be called again
	all, cooling, failing := 0, 0, 0
	picky := u.roster.listed(q.model)
	for _, e := range u.endpoints() {
		if !e.open() || picky && e.lacks(q.model) {
			continue
		}
		all++
		s := e.guard.State(now)
		at := s.CoolUntil
		switch {
		case s.Breaker != guard.Closed:
			failing++
			if s.Until.After(at) {
				at = s.Until
			}
		case !at.IsZero():
			cooling++
		}
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	f := madeFailure(NoEndpoint)
	switch {
	case all > 0 && cooling == all:
		f = &Failure{Status: http.StatusTooManyRequests, Code: string(UpRateLimited), Type: typeRateLimit,
			Message: "The model's servers ask for a pause."}
	case cooling > 0:
		f.Message = "The servers for this model fail or ask for a pause. Try again later."
	case failing > 0:
		f.Message, f.NoRetry = "Every server for this model keeps failing. Try again later.", true
	}
	if !next.IsZero() {
		f.RetryAfter = seconds(next.Sub(now))
	}
	if f.Status == http.StatusTooManyRequests {
		return verdict{outcome: UpRateLimited, fail: f}
	}
	return verdict{outcome: NoEndpoint, fail: f}
}

// absent tells, when no endpoint may be called, that none is there: not ready by
// its checks, or kept from requests because it could not be reached.
func (u *Upstream) absent(q ask, now time.Time) bool {
	picky := u.roster.listed(q.model)
	for _, e := range u.endpoints() {
		if !e.open() || picky && e.lacks(q.model) {
			continue
		}
		if e.guard.State(now).Breaker == guard.Closed {
			return false
		}
		e.mu.Lock()
		last := e.lastErr
		e.mu.Unlock()
		if last != string(Unreachable) {
			return false
		}
	}
	return true
}

// The back-off before a request's second retry; the first goes to a fresh
// endpoint at once.
const (
	backOffBase = 50 * time.Millisecond
	backOffMax  = time.Second
)

// backOff waits before a second retry on another endpoint, with full jitter. It
// is cut short by the end of the request.
func (x *exchange) backOff(another bool) {
	if x.counted < 2 || !another {
		return
	}
	d := rand.N(min(backOffBase<<x.counted, backOffMax))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-x.ctx.Done():
	}
}

// judgement is what an attempt's end means for its endpoint's breaker.
func (c *call) judgement(v verdict) guard.Result {
	if v.repeat {
		return guard.Neutral
	}
	if c.x.ctx.Err() != nil {
		return guard.Neutral // the client's or the gateway's doing
	}
	switch v.outcome {
	case Success:
		return guard.Success
	case Unreachable, Timeout, Truncated, Invalid:
		return guard.Failure
	case Error:
		// 401, 403 and 404 are faults of a configuration.
		var s *statusError
		if errors.As(c.att.Err, &s) && s.status < http.StatusInternalServerError {
			return guard.Neutral
		}
		return guard.Failure
	}
	return guard.Neutral
}

// probeFirstByte bounds the wait of a call that probes a server which failed
// before: it takes one of few places.
const probeFirstByte = 30 * time.Second

// timeouts of the attempt.
func (c *call) timeouts() Timeouts {
	t := c.u.cfg.Timeouts
	if c.turn.Probe && (t.FirstByte == 0 || t.FirstByte > probeFirstByte) {
		t.FirstByte = probeFirstByte
	}
	return t
}

// coolDown heeds a rate-limited server's retry-after.
func (c *call) coolDown(v verdict) {
	if v.outcome != UpRateLimited || v.fail == nil {
		return
	}
	now := time.Now()
	if d, ok := retryWait(v.fail.RetryAfter, v.fail.RetryMS, now); ok {
		c.ep.guard.CoolDown(now, d)
		return
	}
	c.ep.limited.Store(now.UnixNano())
}
