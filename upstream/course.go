package upstream

import (
	"net/http"
	"strings"
	"time"

	"sluice/upstream/guard"
)

// course is where the loop over a request's attempts stands.
type course struct {
	n      int       // answers of Next so far
	last   *Attempt  // how the call before ended; nil before the first
	same   bool      // last's target may be tried again
	why    string    // the reason of a target that is asked for again after a wait
	repeat *endpoint // send again there, at once
	again  bool      // with repeat: because of a stale connection
	saved  bool      // the last attempt is offered to a fallback first
}

// run is the loop over attempts.
func (x *exchange) run() {
	x.limited = true
	c := &course{same: true}
	for c.n < maxAsks {
		if v, over := x.over(); over {
			x.finish(v)
			return
		}
		t, reason, ok := x.nextTarget(c)
		if !ok {
			break
		}
		waited, v, refused := x.admit(&t)
		if refused {
			x.finish(v)
			return
		}
		if waited { // the kill flags may have changed
			c.same, c.why = true, orFirst(reason)
			continue
		}
		if !x.call(c, t, reason) {
			break
		}
	}
	if x.last.outcome == "" {
		x.last = verdict{outcome: NoEndpoint, fail: madeFailure(NoEndpoint)}
	}
	x.finish(x.last)
}

// nextTarget asks for the target of the next attempt.
func (x *exchange) nextTarget(c *course) (t Target, reason string, ok bool) {
	t, reason, ok = x.next(c, c.same)
	if (!ok || t.Upstream == nil) && c.saved {
		// There is no fallback to save the last attempt for.
		t, reason, ok = x.next(c, true)
	}
	c.saved = false
	if c.why != "" && reason == reasonRetry {
		reason = c.why // nothing was called in between
	}
	c.why = ""
	return t, reason, ok && t.Upstream != nil
}

// next asks Next. A keep-alive comment that opens the response meanwhile would
// tell the client what is just being decided: it waits for w.mu.
func (x *exchange) next(c *course, same bool) (t Target, reason string, ok bool) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock() // also when Next panics
	t, reason, ok = x.req.Next(c.n, c.last, same)
	c.n++
	return t, reason, ok
}

// call makes one attempt at t; false ends the loop.
func (x *exchange) call(c *course, t Target, reason string) (on bool) {
	ep := c.repeat
	if ep == nil || !t.Upstream.has(ep) {
		ep, c.again = nil, false
	}
	resend := ep != nil
	c.repeat = nil
	a := new(Attempt)
	a.Target, a.Reason, a.Start = t, strings.TrimPrefix(reason, reasonFirst), time.Now()
	a.Free = c.again || (c.last != nil && x.last.connect && !x.freeUsed)
	cold := t.Upstream.isCold() // before the choice: it may come up at any time
	turn, ep := t.Upstream.begin(x.ask(&t), ep, a.Start)
	if ep == nil {
		return x.without(c, a, cold, reason)
	}
	if x.counted > 0 && !a.Free && !resend && !t.Upstream.budget.Retry(a.Start) {
		turn.End(guard.Neutral)
		x.spent = true
		c.same = false // a fallback has a budget of its own
		return c.last.Target.Upstream == t.Upstream
	}
	a.Endpoint = ep.base
	if a.Free && !c.again {
		x.freeUsed = true
	}
	v := x.try(a, ep, turn, c.again)
	if v.repeat {
		// Not recorded: the first send did not reach a server, or taught us what
		// this one does not understand.
		c.repeat, c.again = ep, v.again
		x.freeUsed = x.freeUsed || v.again
		c.last, c.same = a, true
		return true
	}
	c.last = x.record(a)
	x.ended(c.last)
	x.note(v, c.last)
	if v.final || !x.mayRetry(v) {
		return false
	}
	another := t.Upstream.another(x.ask(&t)) && !x.two500 // after two only a fallback may do better
	c.saved = another && x.counted == maxAttempts-1
	c.same = another && !c.saved
	x.backOff(another)
	return true
}

// without goes on when t's upstream has no endpoint to call: it waits for one
// that is coming up, or lets a fallback be asked for.
func (x *exchange) without(c *course, a *Attempt, cold bool, reason string) (on bool) {
	if cold {
		if x.thaw(&a.Target) {
			c.same, c.why = true, orFirst(reason)
			return true
		}
		if _, over := x.over(); over {
			return true // the loop sees it
		}
	}
	a.Outcome, a.Free = NoEndpoint, false
	a.Unreached = a.Target.Upstream.absent(x.ask(&a.Target), a.Start)
	if x.last.outcome == "" || x.last.outcome == NoEndpoint {
		x.last = a.Target.Upstream.unavailable(x.ask(&a.Target), a.Start)
	}
	c.last, c.same = x.record(a), false
	x.ended(c.last)
	x.limited = x.limited && x.last.outcome == UpRateLimited
	return true
}

// record keeps an attempt and returns it where it is kept.
func (x *exchange) record(a *Attempt) *Attempt {
	n := len(x.res.Attempts)
	x.res.Attempts = append(x.res.Attempts, Attempt{})
	x.res.Attempts[n] = *a
	return &x.res.Attempts[n]
}

func (x *exchange) ended(a *Attempt) {
	if f := x.req.Ended; f != nil {
		f(a)
	}
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
