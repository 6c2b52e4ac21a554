package upstream

import (
	"bytes"
	"errors"
	"io"

	"sluice/upstream/wire"
)

// maxHeld is how much of a unary answer is held back: up to this size an error
// inside a 200, or an answer that breaks off, can still become a status.
const maxHeld = 1 << 20

// relayUnary holds a JSON answer whole and judges it before the client gets any
// of it; a larger one is passed on as it comes. start has been read, err is how
// that read ended.
func (c *call) relayUnary(start []byte, err error) verdict {
	if err == io.EOF {
		return c.judge(start)
	}
	held := getBytes()
	defer putBytes(held)
	b := append(*held, start...)
	if n := c.resp.Length; n > int64(cap(b)) && n <= maxHeld {
		b = append(make([]byte, 0, n+1), b...)
	}
	for err == nil && len(b) <= maxHeld {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		var n int
		n, err = c.resp.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		c.x.w.touch()
	}
	*held = b
	switch {
	case err == nil:
		return c.relayLarge(b)
	case err != io.EOF:
		return c.broken(err)
	}
	return c.judge(b)
}

// judge decides on a whole answer and delivers it when it is one.
func (c *call) judge(b []byte) verdict {
	v, info := wire.UnaryVerdict(b, c.x.req.API, c.set.dialect)
	switch v {
	case wire.VerdictError:
		r := &refused{info: info, header: c.resp.Fields}
		if info.Nested {
			r.body = bytes.Clone(b)
		}
		return c.refused(r)
	case wire.VerdictInvalid, wire.VerdictEvents:
		c.att.Err = errors.New("the upstream's answer is not a JSON object")
		return verdict{outcome: Invalid, fail: madeFailure(Invalid), retry: true}
	}
	u := wire.ReadUnary(b, c.x.req.API, c.judging)
	c.att.Answer = u.Answer
	c.countUnary(u)
	if m := c.x.req.EchoModel; m != "" {
		echo := getBytes()
		defer putBytes(echo)
		*echo = wire.ReplaceModel(*echo, b, m)
		b = *echo
	}
	if !c.deliver(b, int64(len(b)), jsonType) {
		return c.undelivered()
	}
	c.x.res.Finish = u.Finish
	return verdict{outcome: Success, final: true}
}

func (c *call) countUnary(u wire.Unary) {
	if u.HasUsage {
		c.att.Usage, c.att.HasUsage = u.Usage, true
		return
	}
	c.estimate(c.att, wire.Estimate(u.Chars, 0))
}

// deliver commits the answer and writes its first, perhaps only, bytes. It is
// false when the client is gone, or when a comment has already opened the
// response as an event stream, which JSON cannot continue.
func (c *call) deliver(b []byte, length int64, contentType string) bool {
	x := c.x
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if x.gone || x.open {
		return false
	}
	c.commit(false, length, contentType)
	return c.write(b)
}

func (c *call) undelivered() verdict {
	if v, over := c.x.over(); over {
		return v
	}
	c.att.Err = errors.New("the upstream answered a streaming request with JSON after a keep-alive comment was sent")
	return verdict{outcome: Invalid, fail: madeFailure(Invalid)}
}

// relayLarge passes an answer on that is too large to be held.
func (c *call) relayLarge(b []byte) verdict {
	var tail wire.Tail
	tail.Feed(b)
	length := c.resp.Length
	if !c.deliver(b, length, jsonType) {
		return c.undelivered()
	}
	c.yield()
	v := c.pass(b[:cap(b)], tail.Feed)
	u := tail.Result()
	c.countUnary(u)
	if c.x.req.API != wire.Embeddings {
		c.att.Answer = u.Answer
	}
	c.x.res.Finish = u.Finish
	if v.outcome == Success && !tail.Complete() {
		c.att.Err = errors.New("the upstream's answer ended in the middle")
		v.outcome, c.x.res.Abort = Truncated, true
	}
	if v.outcome == Success && tail.Failed() {
		c.att.Err = errors.New("the upstream's 200 is an error, too large to be held back")
		v.outcome = Error
	}
	return v
}

// relayOpaque passes on an answer in an encoding that was not asked for. It
// cannot be judged or metered exactly; the client knows how to read it.
func (c *call) relayOpaque() verdict {
	buf := getBytes()
	defer putBytes(buf)
	b := (*buf)[:cap(*buf)]
	n, err := io.ReadAtLeast(c.resp.Body, b, 1)
	if n == 0 {
		if err == io.EOF {
			return verdict{outcome: Invalid, fail: madeFailure(Invalid), retry: true}
		}
		return c.broken(err)
	}
	if !c.deliver(b[:n], c.resp.Length, "") {
		return c.undelivered()
	}
	c.yield()
	total := int64(n)
	v := c.pass(b, func(p []byte) { total += int64(len(p)) })
	c.estimate(c.att, wire.Estimate(total, 0))
	return v
}

func (c *call) lockedWrite(p []byte) bool {
	c.x.w.mu.Lock()
	defer c.x.w.mu.Unlock() // also when the sink panics
	return c.write(p)
}

// pass copies the rest of a committed answer, write by read.
func (c *call) pass(buf []byte, seen func([]byte)) verdict {
	x := c.x
	for {
		n, err := c.resp.Body.Read(buf)
		x.w.touch()
		if n > 0 {
			seen(buf[:n])
			if !c.lockedWrite(buf[:n]) {
				return verdict{outcome: Canceled, final: true}
			}
			x.w.touch()
		}
		switch {
		case err == nil:
			continue
		case err == io.EOF:
			return verdict{outcome: Success, final: true}
		}
		c.att.Err = err
		x.res.Abort = true
		v, ok := c.interrupted()
		if !ok {
			v = verdict{outcome: Truncated}
		}
		v.final, v.fail = true, nil
		return v
	}
}
