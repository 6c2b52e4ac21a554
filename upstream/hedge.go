package upstream

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"sluice/upstream/guard"
	"sluice/upstream/h1"
)

// reasonHedge is an attempt's that ran beside another.
const reasonHedge = "hedge"

// leg is one of two calls that race for the first bytes of an answer.
type leg struct {
	life
	ep     *endpoint
	set    *settings
	turn   guard.Turn
	out    h1.Request
	start  time.Time
	unlink func() bool // from the call

	resp  *h1.Response
	err   error
	early *early
}

// early is what was read of an answer before it was known to be the one.
type early struct {
	p   []byte
	err error
}

// answered tells a leg that has begun to answer from one that failed.
func (l *leg) answered() bool {
	return l.err == nil && l.resp.Status/100 == 2 && (l.early == nil || len(l.early.p) > 0)
}

// run sends the request and reads the first bytes of its answer.
func (l *leg) run() {
	if l.resp, l.err = l.set.carrier.Do(l, &l.out); l.err != nil || l.resp.Status/100 != 2 {
		return
	}
	if e := l.resp.Get(hdrEncoding); e == "" || e == "identity" {
		l.early = &early{}
		l.early.p, l.early.err = l.resp.Body.Next()
	}
}

// outcome is what a leg that is not the answer came to.
func (l *leg) outcome() (Outcome, guard.Result) {
	switch {
	case l.life.Err() != nil:
		return Canceled, guard.Neutral
	case l.err != nil:
		o, _ := transportOutcome(l.err)
		return o, guard.Failure
	case l.resp.Status/100 == 2:
		return Truncated, guard.Failure
	case l.resp.Status == http.StatusTooManyRequests:
		return UpRateLimited, guard.Neutral
	case l.resp.Status >= 500:
		return Error, guard.Failure
	}
	return ClientError, guard.Neutral
}

// hedgeAfter is how long the first call may take before a second is made beside
// it; 0: there will be none.
func (c *call) hedgeAfter() time.Duration {
	h := &c.u.cfg.Hedge
	if h.Quantile <= 0 || c.x.counted > 0 || c.again || c.x.sends > 1 {
		return 0
	}
	q, ok := c.ep.speed.usual(h.Quantile, time.Now())
	if !ok {
		return 0
	}
	return max(q, h.Min)
}

// dispatch sends the request, and a second one beside it when the first takes
// unusually long (Dean and Barroso, The Tail at Scale, 2013). The first to
// answer is the attempt from then on; the other is cancelled.
func (c *call) dispatch() (*h1.Response, error) {
	after := c.hedgeAfter()
	if after == 0 {
		return c.set.carrier.Do(c, &c.out)
	}
	first := &leg{ep: c.ep, set: c.set, turn: c.turn, out: c.out, start: c.att.Start}
	done := make(chan *leg, 2)
	race := func(l *leg) {
		// It stays linked: the winner's answer is read on with its context.
		l.unlink = context.AfterFunc(c, func() { l.end(c.Err()) })
		go func() {
			l.run()
			done <- l
		}()
	}
	race(first)
	t := time.NewTimer(after)
	defer t.Stop()
	select {
	case <-done:
		return c.adopt(first)
	case <-t.C:
	}
	second := c.second()
	if second == nil {
		<-done
		return c.adopt(first)
	}
	defer c.x.place.Release() // of the two that it had, one is enough
	race(second)
	winner := <-done
	loser, ended := first, false
	if winner == first {
		loser = second
	}
	if !winner.answered() {
		other := <-done
		ended = true
		if other.answered() || other == first {
			winner, loser = other, winner
		}
	}
	c.drop(loser, done, ended)
	return c.adopt(winner)
}

// second prepares the call beside the first: another endpoint, a place in the
// queue, a share that is left; nil without one of them.
func (c *call) second() *leg {
	x, now := c.x, time.Now()
	if c.Err() != nil || !c.u.another(x.ask(&c.att.Target)) || !c.u.budget.Hedge(now, c.u.cfg.Hedge.MaxShare) {
		return nil
	}
	if x.place == nil || !x.place.TryAcquire() {
		return nil
	}
	turn, ep := c.u.begin(x.ask(&c.att.Target), nil, now)
	if ep == nil || ep == c.ep {
		turn.End(guard.Neutral)
		x.place.Release()
		return nil
	}
	x.addTried(ep)
	ep.inflight.Add(1)
	to := &ep.paths[x.req.API]
	l := &leg{ep: ep, set: ep.set.Load(), turn: turn, out: c.out, start: now}
	l.out.URL, l.out.Target, l.out.Sent = to.url, to.target, nil
	l.out.Fields = c.u.requestFields(nil, x.req.Header, x.req.RequestID+"-"+strconv.Itoa(x.sends))
	x.sends++
	x.w.mu.Lock()
	x.calls++
	x.w.mu.Unlock()
	return l
}

// adopt makes a leg the attempt.
func (c *call) adopt(l *leg) (*h1.Response, error) {
	c.early = l.early
	if l.ep != c.ep {
		c.ep, c.set, c.turn = l.ep, l.set, l.turn
		c.att.Endpoint, c.att.Start, c.att.Reason = l.ep.base, l.start, reasonHedge
		c.x.w.mu.Lock()
		c.x.endpoint = l.ep.base
		c.x.w.mu.Unlock()
	}
	return l.resp, l.err
}

// drop ends the leg that is not the answer and records it. Nobody reads the
// request's bytes for it any more then.
func (c *call) drop(l *leg, done <-chan *leg, ended bool) {
	l.unlink()
	if !ended {
		l.end(errOver)
		<-done
	}
	o, r := l.outcome()
	l.end(errOver)
	if l.resp != nil {
		l.resp.Body.Close()
	}
	l.turn.End(r)
	l.ep.inflight.Add(-1)
	a := &Attempt{Target: c.att.Target, Endpoint: l.ep.base, Outcome: o, Start: l.start, Duration: time.Since(l.start), Reason: c.att.Reason}
	if l.ep != c.ep {
		a.Reason = reasonHedge
	}
	if l.resp != nil {
		a.Status = l.resp.Status
	}
	c.x.record(a)
	l.ep.report(o, time.Now())
}
