package upstream

import (
	"context"
	"errors"
	"net/http"
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

	tried           []*endpoint
	sends           int         // requests sent, for distinct request ids
	place           *admit.Gate // in which the request has a place; nil = none
	spent           bool        // a retry was refused by the budget
	key             uint64      // of the conversation, for balance: prefix
	keyed, keyAsked bool        // it has one; it was asked for

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

// over tells whether the client is gone or the process ends.
func (x *exchange) over() (verdict, bool) {
	if x.ctx.Err() != nil {
		if errors.Is(context.Cause(x.ctx), ErrShuttingDown) {
			return verdict{outcome: ShuttingDown, fail: madeFailure(ShuttingDown)}, true
		}
		if errors.Is(context.Cause(x.ctx), ErrVariantStopped) {
			// No server and no client failed: like a shutdown, of one variant.
			return verdict{outcome: ShuttingDown, fail: &Failure{Status: http.StatusServiceUnavailable, Code: "variant_stopped", Type: typeUpstream,
				RetryAfter: retryShutdown, Message: "The answer was stopped: the model version that gave it was taken out of service. Send the request again."}}, true
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
