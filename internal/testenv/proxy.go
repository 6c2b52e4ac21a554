package testenv

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy relays TCP to a service, so that one client of it can be slow or cut
// off while the others are not.
type Proxy struct {
	Addr string // 127.0.0.1:port

	delay atomic.Int64
	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

// NewProxy relays to the address to until the test ends.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); p.Delay(0); p.Cut(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			if !p.keep(in, out) {
				continue
			}
			wg.Go(func() { p.relay(out, in) })
			wg.Go(func() { p.relay(in, out) })
		}
	})
	return p
}

// Delay holds each chunk back for d, in both directions.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Cut breaks every connection, and each new one, until Mend.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// Mend lets connections through again.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.cut {
			c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return !p.cut
}

func (p *Proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) relay(dst, src net.Conn) {
	defer p.drop(dst)
	defer p.drop(src)
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		time.Sleep(time.Duration(p.delay.Load()))
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
