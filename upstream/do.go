package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"sluice/upstream/admit"
	"sluice/upstream/guard"
)

const (
	// maxAttempts are the calls of one request; one free one may come on top.
	maxAttempts = 3
	// maxAsks bounds Next whatever it answers.
	maxAsks = 16
	// statusCanceled is what a request is logged with when its client went.
	statusCanceled = 499
)

// Do sends r to the first target that can answer and relays the answer to s.
// It fails over only before the commit point, and returns when the client's
// answer is complete, has failed, or ctx has ended.
func (p *Pool) Do(ctx context.Context, r *Request, s Sink) Result {
	x := &exchange{pool: p, req: r, sink: s, ctx: ctx, start: time.Now()}
	if !r.Deadline.IsZero() {
		var cancel context.CancelFunc
		x.ctx, cancel = context.WithDeadlineCause(ctx, r.Deadline, errDeadline)
		defer cancel()
	}
	x.w.start = x.start
	if r.Head.Stream {
		x.w.before, x.w.after = max(r.KeepAliveBefore, 0), max(r.KeepAliveAfter, 0)
	}
	x.w.ping = x.ping
	x.tried, x.res.Attempts = x.triedRoom[:0], x.attemptRoom[:0]
	defer x.release()
	defer x.leave()
	defer x.w.close()
	x.run()
	return x.res
}

// exchange is one request of a client: the loop over attempts and what they
// have in common.
type exchange struct {
	pool  *Pool
	req   *Request
	sink  Sink
	ctx   context.Context
	start time.Time
	res   Result
	w     watchdog

	tried []*endpoint
	sends int         // requests sent, for distinct request ids
	place *admit.Gate // in which the request has a place; nil = none
	spent bool        // a retry was refused by the budget
	key   uint64      // of the conversation, for balance: prefix
	keyed *bool       // it has one; nil = nobody asked yet

	freeUsed, learned, got500, two500 bool
	doubted                           *Upstream // refused what doubt says; to be confirmed
	doubt                             lack
	counted                           int // attempts that were not free
	last                              verdict
	limited                           bool // every attempt so far was rate limited
	wait                              time.Duration
	cold                              time.Time     // when waiting for endpoints to come up ends; zero = has not begun
	asked                             *guard.Budget // that knows of the request
	waitAfter, waitMS                 string        // of the shortest wait so far
	released                          bool

	// Guarded by w.mu.
	open     bool   // Sink.Commit was called
	gone     bool   // a write to the client failed
	target   Target // of the attempt in progress or just ended
	endpoint string
	calls    int // calls made, that one included

	triedRoom   [4]*endpoint
	attemptRoom [1]Attempt
}

// verdict is how one attempt ended.
type verdict struct {
	outcome Outcome
	fail    *Failure // for the client, unless another attempt follows; nil when it has its answer or is gone
	retry   bool     // another endpoint may be tried
	connect bool     // nothing was sent: the next try is free
	repeat  bool     // send again to the same endpoint at once; not an attempt of its own
	again   bool     // with repeat: because of a stale connection
	final   bool     // the client has got (a part of) the answer, or is gone
}

// run is the loop over attempts.
func (x *exchange) run() {
	var (
		last   *Attempt
		same   = true
		why    string    // of a target that is asked for again after a wait
		repeat *endpoint // send again there
		again  bool
		saved  bool // the last attempt, for a fallback
	)
	x.limited = true
	for n := 0; n < maxAsks; n++ {
		if v, over := x.over(); over {
			x.finish(v)
			return
		}
		t, reason, ok := x.req.Next(n, last, same)
		if (!ok || t.Upstream == nil) && saved {
			// There is no fallback to save the last attempt for.
			n++
			t, reason, ok = x.req.Next(n, last, true)
		}
		saved = false
		if !ok || t.Upstream == nil {
			break
		}
		if why != "" && reason == reasonRetry {
			reason = why // nothing was called in between
		}
		why = ""
		waited, v, refused := x.admit(&t)
		if refused {
			x.finish(v)
			return
		}
		if waited { // the kill flags may have changed
			same, why = true, orFirst(reason)
			continue
		}
		ep := repeat
		if ep == nil || !t.Upstream.has(ep) {
			ep, again = nil, false
		}
		resend := ep != nil
		repeat = nil
		a := new(Attempt)
		a.Target, a.Reason, a.Start = t, strings.TrimPrefix(reason, reasonFirst), time.Now()
		a.Free = again || (last != nil && x.last.connect && !x.freeUsed)
		cold := t.Upstream.isCold() // before the choice: it may come up at any time
		turn, ep := t.Upstream.begin(x.ask(&t), ep, a.Start)
		if ep == nil && cold {
			if x.thaw(&t) {
				same, why = true, orFirst(reason)
				continue
			}
			if v, over := x.over(); over {
				x.finish(v)
				return
			}
		}
		if ep == nil {
			a.Outcome, a.Free = NoEndpoint, false
			if x.last.outcome == "" || x.last.outcome == NoEndpoint {
				x.last = t.Upstream.unavailable(a.Start)
			}
			last, same = x.record(a), false
			x.limited = x.limited && x.last.outcome == UpRateLimited
			continue
		}
		if x.counted > 0 && !a.Free && !resend && !t.Upstream.budget.Retry(a.Start) {
			turn.End(guard.Neutral)
			x.spent = true
			if last.Target.Upstream == t.Upstream {
				same = false // a fallback has a budget of its own
				continue
			}
			break
		}
		a.Endpoint = ep.base
		if a.Free && !again {
			x.freeUsed = true
		}
		v = x.try(a, ep, turn, again)
		if v.repeat {
			// Not recorded: the first send did not reach a server, or taught us
			// what this one does not understand.
			repeat, again = ep, v.again
			x.freeUsed = x.freeUsed || v.again
			last, same = a, true
			continue
		}
		last = x.record(a)
		x.note(v, last)
		if v.final || !x.mayRetry(v) {
			break
		}
		same = t.Upstream.another(x.ask(&t))
		same = same && !x.two500 // after two only a fallback may do better
		saved = same && x.counted == maxAttempts-1
		same = same && !saved
		if !x.backOff(same || saved) {
			continue // over() tells
		}
	}
	if x.last.outcome == "" {
		x.last = verdict{outcome: NoEndpoint, fail: madeFailure(NoEndpoint)}
	}
	x.finish(x.last)
}

// record keeps an attempt and returns it where it is kept.
func (x *exchange) record(a *Attempt) *Attempt {
	n := len(x.res.Attempts)
	x.res.Attempts = append(x.res.Attempts, Attempt{})
	x.res.Attempts[n] = *a
	return &x.res.Attempts[n]
}

// note takes an attempt's end into what the last answer is made of.
func (x *exchange) note(v verdict, a *Attempt) {
	x.last = v
	if !a.Free {
		x.counted++
	}
	if v.outcome != UpRateLimited || v.fail == nil {
		x.limited = false
		return
	}
	if d, ok := retryWait(v.fail.RetryAfter, v.fail.RetryMS, time.Now()); ok && (x.waitAfter+x.waitMS == "" || d < x.wait) {
		x.wait, x.waitAfter, x.waitMS = d, v.fail.RetryAfter, v.fail.RetryMS
	}
}

// mayRetry tells whether another call may follow the one that ended with v, as
// far as the budget of its target allows.
func (x *exchange) mayRetry(v verdict) bool {
	if !v.retry {
		return false
	}
	if v.connect && !x.freeUsed {
		return true
	}
	if x.counted >= maxAttempts {
		return false
	}
	if v.fail != nil && v.fail.Status == http.StatusInternalServerError {
		x.two500 = x.got500
		x.got500 = true
	}
	return true
}

// over tells whether the client is gone or the process ends.
func (x *exchange) over() (verdict, bool) {
	if x.ctx.Err() != nil {
		if errors.Is(context.Cause(x.ctx), ErrShuttingDown) {
			return verdict{outcome: ShuttingDown, fail: madeFailure(ShuttingDown)}, true
		}
		if errors.Is(context.Cause(x.ctx), errDeadline) {
			f := madeFailure(Timeout)
			f.Message = "The answer was not complete by the deadline that the request set."
			return verdict{outcome: Timeout, fail: f}, true
		}
		return verdict{outcome: Canceled, final: true}, true
	}
	x.w.mu.Lock()
	gone := x.gone
	x.w.mu.Unlock()
	if gone {
		return verdict{outcome: Canceled, final: true}, true
	}
	return verdict{}, false
}

// finish turns the last verdict into the result; a failure goes in-band when a
// comment has already opened the response.
func (x *exchange) finish(v verdict) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	x.res.Outcome, x.res.Committed = v.outcome, x.open
	if v.outcome == Canceled {
		x.res.Status, x.res.Abort = statusCanceled, x.open
		return
	}
	if v.fail == nil {
		return
	}
	f := v.fail
	if x.limited && v.outcome == UpRateLimited && x.waitAfter+x.waitMS != "" {
		f.RetryAfter, f.RetryMS = x.waitAfter, x.waitMS
	}
	f.NoRetry = f.NoRetry || x.spent || f.Status >= 500 && x.counted > 1
	if !x.open {
		x.res.Status, x.res.Failure = f.Status, f
		return
	}
	x.res.Status, x.res.Abort = http.StatusOK, true
	x.res.Stream = true
	_ = x.sink.FailInBand(*f) // the client may be gone; there is nobody left to tell
}

// ping writes a keep-alive comment; the watchdog calls it with w.mu held.
func (x *exchange) ping() {
	if x.gone {
		return
	}
	if !x.open {
		if x.target.Upstream == nil {
			return // nothing is being tried or waited for
		}
		x.open = true
		x.sink.Commit(Meta{Status: http.StatusOK, Header: http.Header{}, Stream: true, Length: -1,
			Target: x.target, Endpoint: x.endpoint, Attempts: x.calls})
	}
	if err := x.sink.Write(comment); err != nil {
		x.lost()
	}
}

// lost notes that the client is gone and ends the attempt. w.mu is held.
func (x *exchange) lost() {
	x.gone = true
	if x.w.cancel != nil {
		x.w.kill(errClientGone)
	}
}

// release hands the request's body back, once.
func (x *exchange) release() {
	if !x.released && x.req.Release != nil {
		x.req.Release()
	}
	x.released = true
}
