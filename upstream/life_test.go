package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func TestLife(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	l := &life{}
	if l.Err() != nil || context.Cause(l) != nil {
		t.Error("it is born dead")
	}
	ran := map[string]int{}
	l.AfterFunc(func() { ran["a"]++ })
	stop := l.AfterFunc(func() { ran["stopped"]++ })
	l.AfterFunc(func() { ran["c"]++ })
	if !stop() || stop() {
		t.Error("stop tells the wrong thing")
	}
	child, cancel := context.WithCancel(l)
	defer cancel()
	done := l.Done()
	l.end(first)
	l.end(second)
	<-done
	<-l.Done()
	<-child.Done()
	if l.Err() != first || context.Cause(l) != first || context.Cause(child) != first {
		t.Errorf("err %v, cause %v, of the child %v", l.Err(), context.Cause(l), context.Cause(child))
	}
	if ran["a"] != 1 || ran["c"] != 1 || ran["stopped"] != 0 {
		t.Errorf("ran %v", ran)
	}
	late := make(chan struct{})
	if stop := l.AfterFunc(func() { close(late) }); stop() {
		t.Error("a late function could be stopped")
	}
	<-late
	if _, ok := l.Deadline(); ok || l.Value("x") != nil {
		t.Error("it has a deadline or values")
	}
}

// Whether it is stopped or run, a function ends once; never both.
func TestLifeRaces(t *testing.T) {
	for range 500 {
		l := &life{}
		var n atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if stop := l.AfterFunc(func() { n.Add(1) }); stop() {
					n.Add(1)
				}
			})
		}
		wg.Go(func() { l.end(errOver) })
		wg.Wait()
		waitFor(t, "every function to run or be stopped", func() bool { return n.Load() == 4 })
	}
}

// Request.Sent is called before an upstream can have seen anything.
func TestSentComesFirst(t *testing.T) {
	eachCarrier(t, func(t *testing.T, o PoolOptions) {
		var sent atomic.Int64
		up := newPeer(t, func(tn *turn) {
			if sent.Load() == 0 {
				t.Error("the request arrived before Sent was called")
			}
			tn.reply(200, "application/json", okBody)
		})
		p, ups := poolWith(t, o, Config{Name: "a", Endpoints: []string{up.url()}})
		for range 3 {
			sent.Store(0)
			r := request(t, chatBody, to(ups["a"]))
			r.Sent = func() { sent.Add(1) }
			if res, _ := do(t, p, r); res.Outcome != Success {
				t.Errorf("%s", res.Outcome)
			}
			if n := sent.Load(); n != 2 {
				t.Errorf("Sent was called %d times, want before the write and with the answer", n)
			}
		}
	})
}
