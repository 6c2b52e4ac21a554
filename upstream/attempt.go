package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sluice/upstream/guard"
	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// call is one attempt in progress.
type call struct {
	life // ends when the client goes, a time-out passes, or the attempt is over

	x   *exchange
	u   *Upstream
	ep  *endpoint
	set *settings
	att *Attempt

	out    h1.Request
	fields [12]h1.Field // room of out.Fields
	edited *[]byte      // the spliced body, nil when the client's own is sent
	size   int          // of the body sent
	resp   *h1.Response
	stream *wire.Stream // not nil once the answer is an event stream
	again  bool         // this send replaces one that met a stale connection
	turn   guard.Turn   // of the endpoint's breaker
	early  *early       // of the answer, read already; nil = none

	sentAt atomic.Int64 // nanoseconds since the exchange's start; 0 = not yet

	askedUsage, askedEach bool // injected, not the client's

	judging wire.Judging  // by what the answer is judged
	content int64         // events with content so far
	idle    time.Duration // that the upstream was waited for since then
	from    time.Duration // since the exchange's start: from when on it is waited for

	entry  entry   // among the calls of the endpoint where it began
	legs   [2]*leg // that race now; guarded by x.w.mu
	beside *leg    // the second of them, also when the race is over
}

// errOver ends what is left of an attempt.
var errOver = errors.New("the attempt is over")

// try makes one call and relays its answer, if it is one. a gets everything but
// Target, Endpoint, Start, Free and Reason. again: a stale connection is being
// replaced.
func (x *exchange) try(a *Attempt, ep *endpoint, turn guard.Turn, again bool) verdict {
	c := &call{x: x, u: a.Target.Upstream, ep: ep, set: ep.set.Load(), att: a, again: again, turn: turn}
	x.addTried(ep)
	ep.calls.add(&c.entry, c)
	defer ep.calls.remove(&c.entry)
	ep.inflight.Add(1)
	defer func() { c.ep.inflight.Add(-1) }() // a hedge may have become the attempt
	defer c.turn.End(guard.Neutral)          // if it panics

	stop := context.AfterFunc(x.ctx, func() { c.end(context.Cause(x.ctx)) })
	x.w.mu.Lock()
	x.target, x.endpoint = a.Target, a.Endpoint
	if !again {
		x.calls++
	}
	x.w.mu.Unlock()
	x.w.begin(c.timeouts(), c.end)
	defer c.close(stop)

	v := c.send()
	a.Outcome, a.Duration, a.Unreached = v.outcome, time.Since(a.Start), v.connect
	c.meter(a, c.stream)
	c.appraise(a)
	c.speedOf(a.Start.Add(a.Duration))
	c.turn.End(c.judgement(v))
	c.coolDown(v)
	if !v.repeat {
		c.ep.report(v.outcome, time.Now())
	}
	return v
}

func (x *exchange) addTried(ep *endpoint) {
	for _, t := range x.tried {
		if t == ep {
			return
		}
	}
	x.tried = append(x.tried, ep)
}

// close gives back everything the attempt holds.
func (c *call) close(stop func() bool) {
	c.x.w.end()
	stop()
	if c.resp != nil {
		c.resp.Body.Close()
	}
	c.end(errOver)
	putBytes(c.edited)
	putStream(c.stream)
	if l := c.beside; l != nil {
		l.ep.calls.remove(&l.entry)
	}
}

// send builds the request, sends it and reads the answer.
func (c *call) send() verdict {
	x, r := c.x, c.x.req
	body := c.body()
	c.size = len(body)
	id := r.RequestID
	if x.sends > 0 {
		id += "-" + strconv.Itoa(x.sends)
	}
	x.sends++
	to := &c.ep.paths[r.API]
	c.out = h1.Request{
		Method: http.MethodPost, URL: to.url, Target: to.target,
		Fields: c.u.requestFields(c.fields[:0], r.Header, id),
		Body:   body, Fresh: c.again, Sent: c.leaving,
	}
	resp, err := c.dispatch()
	c.left()
	if err != nil {
		return c.unsent(err)
	}
	c.resp, c.att.Status = resp, resp.Status
	x.w.touch()
	now := time.Now()
	if resp.Status < 500 {
		c.ep.alive(now)
	}
	if resp.Status/100 != 2 || !isEventStream(resp.Get(hdrContentType)) {
		x.w.mu.Lock()
		x.w.arrived()
		x.w.mu.Unlock()
	}
	switch {
	case resp.Status/100 == 2:
		c.learn()
		return c.answer()
	case resp.Status < 400:
		// Never followed: targets come from the configuration alone.
		c.att.Err = errors.New("the upstream answered with a redirect, which is not followed; correct the endpoint's URL")
		return verdict{outcome: Invalid, fail: madeFailure(Invalid)}
	}
	return c.refusal()
}

// body returns the bytes to send: the client's own when nothing changes.
func (c *call) body() []byte {
	r := c.x.req
	e := wire.Edit{Model: c.att.Target.Model, Patch: c.att.Target.Patch}
	if e.Model == r.Head.Model {
		e.Model = ""
	}
	lacks := c.lacks()
	if r.Head.Stream && (r.API == wire.Chat || r.API == wire.Completions) && !lacks.usage {
		e.IncludeUsage = !r.Head.IncludeUsage
		e.ContinuousUsage = c.u.cfg.UsageExact && !r.Head.ContinuousUsage && !lacks.each
	}
	c.askedUsage, c.askedEach = e.IncludeUsage, e.ContinuousUsage
	c.judging = r.judging(c.att.Target.Patch)
	if e == (wire.Edit{}) {
		return r.Body
	}
	c.edited = getBytes()
	*c.edited = r.Head.Splice(*c.edited, r.Body, e)
	return *c.edited
}

// lack is what a server does not understand of that which is injected.
type lack struct{ usage, each bool }

// lacks joins what is known of this upstream with what it has just refused.
func (c *call) lacks() lack {
	l := lack{c.u.caps.noUsage.Load(), c.u.caps.noContinuous.Load()}
	if c.x.doubted == c.u {
		l.usage, l.each = l.usage || c.x.doubt.usage, l.each || c.x.doubt.each
	}
	return l
}

// learn remembers the refusal of injected members once the same request has
// passed without them. A refusal alone proves nothing: its text may quote the
// client.
func (c *call) learn() {
	if c.x.doubted != c.u {
		return
	}
	c.x.doubted = nil
	if c.x.doubt.usage {
		c.u.caps.noUsage.Store(true)
	}
	if c.x.doubt.each {
		c.u.caps.noContinuous.Store(true)
	}
	c.x.pool.log.Warn("upstream refuses injected stream_options; token counts of streams are estimated until it restarts",
		"upstream", c.u.Name(), "endpoint", c.ep.base)
}

func isEventStream(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), "text/event-stream")
}

// leaving is called when the request is about to be written.
func (c *call) leaving() {
	c.sentAt.Store(int64(c.x.w.now()) + 1)
	c.left()
}

// left says that the request has left, or never will.
func (c *call) left() {
	if f := c.x.req.Sent; f != nil {
		f()
	}
}

// unsent classifies the failure of a call without an answer.
func (c *call) unsent(err error) verdict {
	c.att.Err = err
	if v, ok := c.interrupted(); ok {
		return v
	}
	o, connect := transportOutcome(err)
	age := c.x.w.now() - time.Duration(c.sentAt.Load())
	if h1.Stale(err) && age < staleWindow && !c.again && !c.x.freeUsed {
		// The upstream closed a kept connection as the request was on its way.
		// What else is kept may be as old; the next send gets a fresh one.
		return verdict{outcome: Truncated, fail: madeFailure(Truncated), repeat: true, again: true}
	}
	return verdict{outcome: o, fail: madeFailure(o), retry: true, connect: connect}
}

// interrupted tells whether the attempt was ended from this side, and why: by
// the cause of its context, never by an error's text.
func (c *call) interrupted() (verdict, bool) {
	if v, over := c.x.over(); over {
		return v, true
	}
	var t *timeoutError
	switch cause := c.Err(); {
	case cause == nil:
		return verdict{}, false
	case errors.As(cause, &t):
		c.att.Err = t
		return verdict{outcome: Timeout, fail: madeFailure(Timeout), retry: t != errTotal}, true
	case errors.Is(cause, errClientGone):
		return verdict{outcome: Canceled, final: true}, true
	}
	return verdict{}, false
}

// refusal reads an answer with an error status.
func (c *call) refusal() verdict {
	resp := c.resp
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		if v, ok := c.interrupted(); ok {
			return v
		}
		// What came is enough for the status, and perhaps for the message.
	}
	body := decodeError(resp.Get(hdrEncoding), raw)
	if usage, each := mentions(resp.Status, body); (usage && c.askedUsage || each && c.askedEach) && !c.x.learned {
		// Perhaps the server does not know what we, not the client, asked for:
		// send again without it.
		c.x.learned, c.x.doubted, c.x.doubt = true, c.u, lack{usage, each}
		return verdict{outcome: ClientError, repeat: true}
	}
	r := &refused{
		info:   wire.ParseError(resp.Status, resp.Get(hdrContentType), body, c.set.dialect),
		header: resp.Fields,
	}
	if r.info.Nested {
		r.body = body
	}
	return c.refused(r)
}

// refused turns an upstream's own error, in whatever place, into a verdict.
func (c *call) refused(r *refused) verdict {
	now := time.Now()
	if s := r.info.Status; s == 401 || s == 403 {
		c.alarm(s, now)
	}
	c.att.Err = &statusError{status: r.info.Status}
	return verdict{outcome: r.outcome(), fail: r.failure(c.u, now), retry: r.retryable()}
}

// statusError is the cause of a refused call, for the log; it never quotes the
// upstream, whose text may repeat the prompt.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return "the upstream answered with status " + strconv.Itoa(e.status)
}

// alarmEvery bounds the credential alarms of one endpoint.
const alarmEvery = 10 * time.Second

func (c *call) alarm(status int, now time.Time) {
	old := c.ep.alarmAt.Load()
	if now.UnixNano()-old < int64(alarmEvery) || !c.ep.alarmAt.CompareAndSwap(old, now.UnixNano()) {
		return
	}
	c.x.pool.log.Error("upstream refuses the gateway's credential; check the upstream's credential setting",
		"upstream", c.u.Name(), "endpoint", c.ep.base, "status", status)
}

// meter records the tokens of an attempt whose answer was s, nil without one.
// The upstream's count wins; without one, what passed is estimated, if anything
// was generated at all.
func (c *call) meter(a *Attempt, s *wire.Stream) {
	if s == nil || a.HasUsage {
		return
	}
	if u, ok := s.Usage(); ok {
		a.Usage, a.HasUsage = u, true
		return
	}
	_, _, failed := s.Error()
	st := s.Stats()
	if st.Events == 0 && !st.Oversize || (failed && st.ContentEvents == 0) {
		return
	}
	c.estimate(a, s.Estimate())
}

func (c *call) estimate(a *Attempt, output int64) {
	a.Usage = wire.Usage{Input: wire.EstimateInput(c.size), Output: output}
	a.HasUsage, a.Estimated = true, true
}
