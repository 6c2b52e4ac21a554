package h1

import (
	"sync"
	"time"
)

// endTime is how long an answer that the caller is done with may take to end
// before its connection is closed.
const endTime = 250 * time.Millisecond

// pool keeps unused connections per address, the latest first: those below it
// can age and go.
type pool struct {
	max  int
	keep time.Duration

	mu     sync.Mutex
	idle   map[string]*stack
	paused bool // keep nothing until the next call
	closed bool // keep nothing any more
	timer  *time.Timer
	due    time.Time // when it fires; zero: it does not
}

// stack is the unused connections of one address, in the order in which they
// became so.
type stack struct {
	ready  []*conn // nothing is to come
	ending []*conn // the end of an answer is to come
}

// get returns a connection that is open and silent, or nil.
func (p *pool) get(addr string) *conn {
	for {
		c, tails := p.pop(addr)
		if c == nil {
			return p.settle(tails)
		}
		if c.peek() == peekNothing {
			return c
		}
		// Closed, or it speaks without having been asked.
		c.Close()
	}
}

// pop takes the latest ready connection out, or all that are ending.
func (p *pool) pop(addr string) (c *conn, tails []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	s := p.idle[addr]
	if s == nil {
		return nil, nil
	}
	// What is too old is left to sweep.
	if n := len(s.ready); n > 0 && time.Since(s.ready[n-1].idleAt) < p.keep {
		c = s.ready[n-1]
		s.ready[n-1] = nil
		s.ready = s.ready[:n-1]
		return c, nil
	}
	tails, s.ending = s.ending, nil
	return nil, tails
}

// settle looks at connections whose last answer had not ended, returns one that
// can be used and puts the others back.
func (p *pool) settle(tails []*conn) *conn {
	var found *conn
	for _, c := range tails {
		switch state := c.settle(); {
		case state == ending && time.Since(c.idleAt) < endTime:
			p.putEnding(c, c.idleAt)
		case state != ended:
			c.Close()
		case found == nil && c.peek() == peekNothing:
			found = c
		default:
			p.put(c)
		}
	}
	return found
}

// open notes that a call is made.
func (p *pool) open() {
	p.mu.Lock()
	p.paused = false
	p.mu.Unlock()
}

// put keeps c, which is open and silent as far as is known.
func (p *pool) put(c *conn) {
	now := time.Now()
	p.mu.Lock()
	if s := p.stack(c.addr); s != nil {
		c.used, c.idleAt = true, now
		s.ready = append(s.ready, c)
		p.arm(now, now.Add(p.keep))
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	c.Close()
}

// putEnding keeps c, whose last answer is about to end, since at.
func (p *pool) putEnding(c *conn, at time.Time) {
	now := time.Now()
	p.mu.Lock()
	if s := p.stack(c.addr); s != nil {
		c.used, c.idleAt = true, at
		s.ending = append(s.ending, c)
		p.arm(now, at.Add(endTime))
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	c.Close()
}

// stack returns where to keep a connection, nil when it is not to be kept.
func (p *pool) stack(addr string) *stack {
	if p.paused || p.closed {
		return nil
	}
	s := p.idle[addr]
	if s == nil {
		s = &stack{}
		p.idle[addr] = s
	}
	if len(s.ready)+len(s.ending) >= p.max {
		return nil
	}
	return s
}

// arm makes sweep run at t or before. mu is held.
func (p *pool) arm(now, t time.Time) {
	if !p.due.IsZero() && !t.Before(p.due) {
		return
	}
	p.due = t
	if p.timer == nil {
		p.timer = time.AfterFunc(t.Sub(now), p.sweep)
		return
	}
	p.timer.Reset(t.Sub(now))
}

// sweep closes what has been unused for too long.
func (p *pool) sweep() {
	now := time.Now()
	var old, tails []*conn
	p.mu.Lock()
	p.due = time.Time{}
	for addr, s := range p.idle {
		n := 0
		for n < len(s.ready) && now.Sub(s.ready[n].idleAt) >= p.keep {
			n++
		}
		old = append(old, s.ready[:n]...)
		rest := copy(s.ready, s.ready[n:])
		clear(s.ready[rest:])
		s.ready = s.ready[:rest]
		tails = append(tails, s.ending...)
		s.ending = nil
		if rest > 0 {
			p.arm(now, s.ready[0].idleAt.Add(p.keep))
		} else {
			delete(p.idle, addr)
		}
	}
	p.mu.Unlock()
	closeAll(old)
	for _, c := range tails {
		if c := p.settle([]*conn{c}); c != nil {
			p.put(c)
		}
	}
}

// drop closes the unused connections to addr.
func (p *pool) drop(addr string) {
	p.mu.Lock()
	s := p.idle[addr]
	delete(p.idle, addr)
	p.mu.Unlock()
	if s != nil {
		closeAll(s.ready)
		closeAll(s.ending)
	}
}

// closeIdle closes all unused connections, and keeps none until the next call, or
// for ever.
func (p *pool) closeIdle(forEver bool) {
	p.mu.Lock()
	all := p.idle
	p.idle, p.paused = map[string]*stack{}, true
	p.closed = p.closed || forEver
	if p.timer != nil {
		p.timer.Stop()
	}
	p.due = time.Time{}
	p.mu.Unlock()
	for _, s := range all {
		closeAll(s.ready)
		closeAll(s.ending)
	}
}

func closeAll(cs []*conn) {
	for _, c := range cs {
		c.Close()
	}
}
