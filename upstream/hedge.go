package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice/upstream/guard"
	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// reasonHedge is an attempt's that ran beside another.
const reasonHedge = "hedge"

// leg is one of two calls that race for the commit point of an answer.
type leg struct {
	life
	c      *call
	ep     *endpoint
	set    *settings
	turn   guard.Turn
	out    h1.Request
	start  time.Time
	left   func()      // says that it has left, or never will
	unlink func() bool // from the call
	entry  entry       // among the calls of ep; unused of the first

	resp   *h1.Response
	err    error
	early  *early
	stream *wire.Stream // that has followed what is in early; nil: no event stream
	begun  bool         // an answer is there, as far as it can be told
}

// early is what was read of an answer before it was known to be the one.
type early struct {
	p   []byte
	err error
}

// answered tells a leg whose answer is at its commit point from one that failed.
func (l *leg) answered() bool { return l.begun && l.life.Err() == nil }

// run sends the request and reads up to the commit point of its answer. The
// first byte would not do: some servers send comments or a role long before
// their first token.
func (l *leg) run() {
	l.resp, l.err = l.set.carrier.Do(l, &l.out)
	l.left()
	if l.err != nil || l.resp.Status/100 != 2 {
		return
	}
	if e := l.resp.Get(hdrEncoding); e != "" && e != "identity" {
		l.begun = true
		return
	}
	l.early = &early{}
	var idle *time.Timer
	defer func() {
		if idle != nil {
			idle.Stop()
		}
	}()
	between := l.c.u.cfg.Timeouts.BetweenBytes
	for over := false; !over && l.early.err == nil; {
		if between > 0 && l.arrived() {
			if idle == nil {
				idle = time.AfterFunc(between, func() { l.end(errBetween) })
			} else {
				idle.Reset(between)
			}
		}
		over = l.read()
	}
}

// arrived tells that the wait for the first byte is over, as it is of a call
// alone: with an event, or the header of a whole answer.
func (l *leg) arrived() bool {
	if l.stream != nil {
		return l.stream.Stats().Events > 0
	}
	return !isEventStream(l.resp.Get(hdrContentType))
}

// read takes one more piece of the answer; over tells that it has been told
// what it is.
func (l *leg) read() (over bool) {
	e := l.early
	p, err := l.resp.Body.Next()
	e.p, e.err = append(e.p, p...), err
	switch wire.Sniff(e.p) {
	case wire.KindEmpty:
		return len(e.p) >= readSize
	case wire.KindEvents:
	default:
		l.begun = true
		return true
	}
	if l.stream == nil {
		l.stream, p = l.c.newStream(), e.p
	}
	s := l.stream
	s.Feed(p)
	if err == io.EOF {
		s.EOF()
	}
	_, _, failed := s.Error()
	l.begun = !failed && (s.Committed() || s.Complete())
	return l.begun || failed || s.Done()
}

// outcome is what a leg that is not the answer came to.
func (l *leg) outcome() (Outcome, guard.Result) {
	var t *timeoutError
	status := 0
	switch cause := l.life.Err(); {
	case l.c.Err() != nil:
		return Canceled, guard.Neutral
	case errors.As(cause, &t):
		return Timeout, guard.Failure
	case cause != nil, l.begun:
		return Canceled, guard.Neutral
	case l.err != nil:
		o, _ := transportOutcome(l.err)
		return o, guard.Failure
	default:
		status = l.resp.Status
	}
	if l.stream != nil {
		if info, _, failed := l.stream.Error(); failed {
			status = info.Status
		}
	}
	switch {
	case status/100 == 2:
		return Truncated, guard.Failure
	case status == http.StatusTooManyRequests:
		return UpRateLimited, guard.Neutral
	case status >= 500:
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
// unusually long (Dean and Barroso, The Tail at Scale, 2013). The first to reach
// its commit point is the attempt from then on; the other is cancelled. As long
// as both run, first_byte bounds the race and between_bytes each of the two.
func (c *call) dispatch() (*h1.Response, error) {
	after := c.hedgeAfter()
	if after == 0 {
		return c.set.carrier.Do(c, &c.out)
	}
	done := make(chan *leg, 2)
	first := &leg{c: c, ep: c.ep, set: c.set, turn: c.turn, out: c.out, start: c.att.Start, left: c.left}
	c.race(0, first, done)
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
	c.race(1, second, done)
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

// race starts a leg.
func (c *call) race(i int, l *leg, done chan<- *leg) {
	c.x.w.mu.Lock()
	c.legs[i] = l
	c.x.w.mu.Unlock()
	// It stays linked: the winner's answer is read on with its context.
	l.unlink = context.AfterFunc(c, func() { l.end(c.Err()) })
	go func() {
		l.run()
		done <- l
	}()
}

// second prepares the call beside the first: another endpoint, a place in the
// queue, a share that is left, a target that still stands; nil without one of
// them.
func (c *call) second() *leg {
	x, now := c.x, time.Now()
	t := &c.att.Target
	if c.Err() != nil || !c.u.another(x.ask(t)) || x.place == nil || !x.place.TryAcquire() {
		return nil
	}
	if !c.u.budget.Hedge(now, c.u.cfg.Hedge.MaxShare) {
		x.place.Release()
		return nil
	}
	turn, ep := c.u.begin(x.ask(t), nil, now)
	left, ok := func() {}, ep != nil && ep != c.ep
	if ok && x.req.Beside != nil {
		left, ok = x.req.Beside(*t)
	}
	if !ok {
		turn.End(guard.Neutral)
		x.place.Release()
		return nil
	}
	x.addTried(ep)
	ep.inflight.Add(1)
	to := &ep.paths[x.req.API]
	l := &leg{c: c, ep: ep, set: ep.set.Load(), turn: turn, out: c.out, start: now, left: sync.OnceFunc(left)}
	l.out.URL, l.out.Target, l.out.Sent = to.url, to.target, l.left
	l.out.Fields = c.u.requestFields(nil, x.req.Header, x.req.RequestID+"-"+strconv.Itoa(x.sends))
	x.sends++
	ep.calls.add(&l.entry, c)
	c.beside = l
	x.w.mu.Lock()
	x.calls++
	x.w.mu.Unlock()
	return l
}

// adopt makes a leg the attempt, and ends the race.
func (c *call) adopt(l *leg) (*h1.Response, error) {
	c.early = l.early
	putStream(l.stream)
	c.x.w.mu.Lock()
	c.legs = [2]*leg{}
	c.x.endpoint = l.ep.base
	c.x.w.mu.Unlock()
	if l.ep != c.ep {
		c.ep, c.set, c.turn = l.ep, l.set, l.turn
		c.att.Endpoint, c.att.Start, c.att.Reason = l.ep.base, l.start, reasonHedge
	}
	if cause := l.life.Err(); cause != nil {
		c.end(cause) // why it failed
	}
	return l.resp, l.err
}

// drop ends the leg that is not the answer and records it, with the tokens that
// it is known to have generated. Nobody reads the request's bytes for it any
// more then.
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
	c.meter(a, l.stream)
	putStream(l.stream)
	c.x.record(a)
	l.ep.report(o, time.Now())
}
