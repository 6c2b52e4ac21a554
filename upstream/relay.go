package upstream

import (
	"errors"
	"io"
	"net/http"
	"time"

	"sluice/upstream/wire"
)

// answer relays a 2xx. What it is, is told by its first byte: content types lie.
func (c *call) answer() verdict {
	if e := c.resp.Get(hdrEncoding); e != "" && e != "identity" {
		return c.relayOpaque()
	}
	start, err := c.next()
	kind := wire.Sniff(start)
	if kind == wire.KindEmpty && err == nil {
		// Keep what came until it tells.
		held := getBytes()
		defer putBytes(held)
		for kind == wire.KindEmpty && err == nil && len(*held) < readSize {
			*held = append(*held, start...)
			start, err = c.next()
			kind = wire.Sniff(append(*held, start...))
		}
		*held = append(*held, start...)
		start = *held
	}
	switch {
	case kind == wire.KindEvents:
		return c.relayStream(start, err)
	case kind == wire.KindJSON, kind == wire.KindOther, err == nil:
		return c.relayUnary(start, err)
	case err != io.EOF:
		return c.broken(err)
	case len(start) == 0 && c.x.req.Head.Stream:
		c.att.Err = err
		return verdict{outcome: Truncated, fail: madeFailure(Truncated), retry: true}
	}
	c.att.Err = errors.New("the upstream sent an empty answer")
	return verdict{outcome: Invalid, fail: madeFailure(Invalid), retry: true}
}

// next waits for more of the answer; what it returns holds until the next call.
func (c *call) next() ([]byte, error) {
	if e := c.early; e != nil {
		c.early = nil
		return e.p, e.err
	}
	p, err := c.resp.Body.Next()
	if len(p) > 0 {
		c.x.w.touch()
	}
	return p, err
}

// broken is a connection that failed before the commit point.
func (c *call) broken(err error) verdict {
	c.att.Err = err
	if v, ok := c.interrupted(); ok {
		return v
	}
	return verdict{outcome: Truncated, fail: madeFailure(Truncated), retry: true}
}

// commit opens the client's response unless a comment has; w.mu is held. After
// it nothing is retried.
func (c *call) commit(stream bool, length int64, contentType string) {
	x := c.x
	c.turn.Answered()
	x.w.answered = true
	x.w.written = x.w.now()
	x.w.arm()
	x.res.TTFT = x.w.written
	c.att.TTFT = c.since(x.w.written)
	c.progress(false)
	if !stream {
		c.att.TTFA = c.att.TTFT
		c.progress(true)
	}
	x.res.Served, x.res.Endpoint, x.res.Stream = c.att.Target, c.ep.base, stream
	x.res.Status = c.resp.Status
	if x.open {
		x.res.Status = http.StatusOK
		return
	}
	x.open = true
	h := c.u.responseHeader(c.resp.Fields)
	if contentType != "" {
		h[hdrContentType] = []string{contentType}
	}
	x.sink.Commit(Meta{Status: c.resp.Status, Header: h, Stream: stream, Length: length,
		Target: c.att.Target, Endpoint: c.ep.base, Attempts: x.calls})
}

// write sends p to the client; w.mu is held.
func (c *call) write(p []byte) bool {
	if len(p) == 0 {
		return !c.x.gone
	}
	if c.x.gone {
		return false
	}
	if err := c.x.sink.Write(p); err != nil {
		c.att.Err = err
		c.x.lost()
		return false
	}
	c.x.w.written = c.x.w.now()
	return true
}

// yield gives the request's body back once the answer streams and the carrier
// has read all of it.
func (c *call) yield() {
	if b, ok := c.resp.Body.(interface{ holds() bool }); ok && b.holds() {
		return
	}
	c.out.Body = nil
	putBytes(c.edited)
	c.edited = nil
	c.x.release()
}

// newStream is what follows an event stream; putStream takes it back.
func (c *call) newStream() *wire.Stream {
	s := streamPool.Get().(*wire.Stream)
	s.Reset(wire.StreamOptions{
		API: c.x.req.API, Dialect: c.set.dialect, EchoModel: c.x.req.EchoModel,
		StripUsage: c.askedUsage, StripChunkUsage: c.askedEach, Judging: c.judging,
	})
	return s
}

func putStream(s *wire.Stream) {
	if s != nil {
		s.Reset(wire.StreamOptions{})
		streamPool.Put(s)
	}
}

// relayStream follows an event stream to its end. p has been read, err is how
// that read ended.
func (c *call) relayStream(p []byte, err error) verdict {
	x := c.x
	c.stream = c.newStream()
	x.w.mu.Lock()
	x.w.stream = c.stream
	x.w.mu.Unlock()
	for {
		if len(p) > 0 {
			if v, over := c.feed(p); over {
				return v
			}
		}
		if err != nil {
			return c.streamEnd(err)
		}
		p, err = c.next()
	}
}

// feed passes one read on. over tells that the attempt has ended.
func (c *call) feed(p []byte) (v verdict, over bool) {
	x, s := c.x, c.stream
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	out := s.Feed(p)
	c.pace()
	if !x.w.answered {
		if info, before, failed := s.Error(); failed && before {
			return c.refused(&refused{info: info, header: c.resp.Fields}), true
		}
		if x.w.waiting && s.Stats().Events > 0 {
			x.w.arrived()
		}
		switch {
		case s.Committed():
			c.commitStream()
		case s.Done():
			return c.endUncommitted(false), true
		default:
			return verdict{}, false
		}
	} else {
		c.ep.alive(time.Now())
	}
	if !c.write(out) {
		return verdict{outcome: Canceled, final: true}, true
	}
	x.w.touch() // a slow client is not a silent upstream
	c.waited()
	if x.res.TTFA == 0 && s.Answered() {
		x.res.TTFA = x.w.written
		c.att.TTFA = c.since(x.w.written)
		c.progress(true)
	}
	if s.Done() {
		return c.streamDone(), true
	}
	return verdict{}, false
}

func (c *call) commitStream() {
	c.commit(true, -1, "text/event-stream")
	c.ep.alive(time.Now())
	c.yield()
}

// endUncommitted judges a stream that ended before its commit point, by the end
// of the body (eof) or by [DONE]; w.mu is held.
func (c *call) endUncommitted(eof bool) verdict {
	s := c.stream
	switch {
	case s.Empty():
		c.att.Err = errors.New("the upstream's stream has no event with data")
		return verdict{outcome: Invalid, fail: madeFailure(Invalid), retry: true}
	case !s.Complete():
		c.att.Err = errors.New("the upstream's stream ended before its first token")
		return verdict{outcome: Truncated, fail: madeFailure(Truncated), retry: true}
	}
	out := s.Commit() // a whole answer without content
	c.commitStream()
	if !c.write(out) {
		return verdict{outcome: Canceled, final: true}
	}
	if eof {
		return c.delivered()
	}
	return c.streamDone()
}

// streamDone ends the client's answer at [DONE] at once; the connection may
// still come to its end in the background. w.mu is held.
func (c *call) streamDone() verdict {
	c.resp.Body.Finish()
	return c.delivered()
}

// delivered is the verdict on a stream whose client has all that came.
func (c *call) delivered() verdict {
	s := c.stream
	c.x.res.Finish = s.FinishReason()
	if info, _, failed := s.Error(); failed {
		r := refused{info: info}
		c.att.Err = &statusError{status: info.Status}
		return verdict{outcome: r.outcome(), final: true}
	}
	if !s.Complete() {
		c.att.Err = errors.New("the upstream's stream has no finish reason")
		return verdict{outcome: Truncated, final: true}
	}
	return verdict{outcome: Success, final: true}
}

// streamEnd is called when the upstream's body ended or broke.
func (c *call) streamEnd(err error) verdict {
	// Taken before the lock, which over() takes as well.
	v, interrupted := c.interrupted()
	x, s := c.x, c.stream
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if interrupted && v.outcome == Timeout && s.Complete() && x.ctx.Err() == nil {
		interrupted = false // the answer is there; only its end mark never came
	}
	if !interrupted && (err == io.EOF || s.Complete()) {
		out := s.EOF()
		if !x.w.answered {
			if info, before, failed := s.Error(); failed && before {
				return c.refused(&refused{info: info, header: c.resp.Fields})
			}
			return c.endUncommitted(true)
		}
		if !c.write(out) {
			return verdict{outcome: Canceled, final: true}
		}
		_, _, failed := s.Error()
		if failed || s.Done() || s.Complete() {
			return c.delivered()
		}
	}
	if c.att.Err == nil {
		c.att.Err = err
	}
	if !interrupted {
		v = verdict{outcome: Truncated, fail: madeFailure(Truncated), retry: true}
	}
	if !x.w.answered {
		return v
	}
	c.x.res.Finish = s.FinishReason()
	v.final = true
	if v.outcome == Canceled {
		return v
	}
	// The client has a part: say in-band how it ended, and cut the connection.
	f := *v.fail
	v.fail, x.res.Abort = nil, true
	if !c.write(s.Interrupt()) {
		return v
	}
	if err := x.sink.FailInBand(f); err != nil {
		x.lost()
	}
	return v
}
