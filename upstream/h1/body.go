package h1

import (
	"io"
	"time"
)

// Next implements Body.
func (e *exchange) Next() ([]byte, error) {
	if len(e.view) > 0 {
		v := e.view
		e.view = nil
		return v, e.err
	}
	if e.err != nil {
		return nil, e.err
	}
	for {
		p, done, err := e.f.take(&e.in)
		switch {
		case err != nil:
			e.fail(err)
			return p, e.err
		case done:
			e.complete()
			return p, e.err
		case len(p) > 0:
			return p, nil
		}
		if err := e.c.fill(&e.in); err != nil {
			e.broken(err)
			return nil, e.err
		}
	}
}

// Read implements io.Reader. A large p is read into directly.
func (e *exchange) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(e.view) == 0 {
		if n, err, ok := e.readDirect(p); ok {
			return n, err
		}
		e.view, _ = e.Next()
	}
	n := copy(p, e.view)
	e.view = e.view[n:]
	if len(e.view) > 0 {
		return n, nil
	}
	return n, e.err
}

// readDirect reads content without a copy, where the next bytes of the
// connection are content and p takes as many as the buffer would.
func (e *exchange) readDirect(p []byte) (n int, err error, ok bool) {
	if len(p) < readSize || e.err != nil || e.in.len() > 0 {
		return 0, nil, false
	}
	switch {
	case e.f.kind == byClose:
	case e.f.kind == byLength || e.f.place == inChunk:
		p = p[:min(int64(len(p)), e.f.left)]
	default:
		return 0, nil, false
	}
	n, err = e.c.Conn.Read(p)
	if e.f.kind != byClose {
		e.f.left -= int64(n)
	}
	switch {
	case e.f.kind == byLength && e.f.left == 0:
		e.complete()
	case err != nil:
		e.broken(err)
	case e.f.kind == byChunks && e.f.left == 0:
		e.f.place = afterChunk
	}
	return n, e.err, true
}

// complete is called at the end of the body: the connection is free.
func (e *exchange) complete() {
	e.err = io.EOF
	e.end()
	c := e.detach()
	switch {
	case c == nil:
	case e.keep && e.in.len() == 0:
		e.client.pool.put(c)
	default:
		c.Close() // it is said to close, or sent what nobody asked for
	}
	e.c = nil
}

// broken is called when the connection ended or failed.
func (e *exchange) broken(err error) {
	switch {
	case err != io.EOF:
		e.fail(err)
	case e.f.kind == byClose:
		e.complete()
	default:
		e.fail(io.ErrUnexpectedEOF)
	}
}

// fail ends the call with an error.
func (e *exchange) fail(err error) {
	e.err = e.cause(err)
	e.end()
	if c := e.detach(); c != nil {
		c.Close()
	}
	e.c = nil
}

// Close implements Body.
func (e *exchange) Close() error {
	if e.err == nil {
		// The end may be at hand already.
		for {
			p, done, err := e.f.take(&e.in)
			if done && err == nil {
				e.complete()
			}
			if done || err != nil || len(p) == 0 {
				break
			}
		}
	}
	e.err, e.view = errClosed, nil
	e.abandon()
	e.c = nil
	return nil
}

// Finish implements Body.
func (e *exchange) Finish() {
	if e.err == nil && e.keep {
		e.end()
		if c := e.detach(); c != nil {
			c.tail = &tail{f: e.f, in: e.in}
			e.in = buffer{}
			switch c.settle() {
			case ended:
				e.client.pool.put(c)
			case ending:
				e.client.pool.putEnding(c, time.Now())
			case spoiled:
				c.Close()
			}
		}
	}
	e.Close()
}

// tail is what is still to come of an answer whose caller is done.
type tail struct {
	f  framing
	in buffer
}

// The states of a tail.
type tailState uint8

const (
	ended   tailState = iota // the connection is free
	ending                   // not yet
	spoiled                  // the connection cannot be used again
)

// settle reads what has come of the tail, without waiting.
func (c *conn) settle() tailState {
	for reads := 0; ; reads++ {
		p, done, err := c.tail.f.take(&c.tail.in)
		if done && err == nil && c.tail.in.len() == 0 {
			c.tail.in.drop()
			c.tail = nil
			return ended
		}
		if done || err != nil || reads > 16 {
			break // more than an end
		}
		if len(p) > 0 {
			continue
		}
		if c.raw == nil {
			return ending // reading would wait
		}
		n, err := c.readRaw(&c.tail.in, false)
		if err != nil {
			break
		}
		if n == 0 {
			return ending
		}
	}
	c.tail.in.drop()
	c.tail = nil
	return spoiled
}
