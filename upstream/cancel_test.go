package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/upstream/guard"
)

// B054: the client goes in every phase; the upstream sees its connection
// closed, no further attempt is made, nothing stays in flight.
func TestCancelInEveryPhase(t *testing.T) { eachCarrier(t, cancelInEveryPhase) }

func cancelInEveryPhase(t *testing.T, o PoolOptions) {
	tests := []struct {
		name  string
		body  string
		serve func(tn *turn, cancel func())
		usage bool
	}{
		{"before the header", chatBody, func(tn *turn, cancel func()) { cancel(); tn.hang() }, false},
		{"stream before the header", usageBody, func(tn *turn, cancel func()) { cancel(); tn.hang() }, false},
		{"after the header", usageBody, func(tn *turn, cancel func()) {
			tn.head(200, "text/event-stream")
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}, false},
		{"before the commit point", usageBody, func(tn *turn, cancel func()) {
			tn.head(200, "text/event-stream")
			tn.chunk(roleEvent)
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}, true},
		{"in the stream", usageBody, func(tn *turn, cancel func()) {
			tn.head(200, "text/event-stream")
			tn.chunk(roleEvent + event("a", ""))
			tn.hang()
		}, true},
		{"in a unary body", chatBody, func(tn *turn, cancel func()) {
			tn.send("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{")
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}, false},
		{"in an error body", chatBody, func(tn *turn, cancel func()) {
			tn.send("HTTP/1.1 503 X\r\nContent-Length: 5000\r\n\r\n{")
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}, false},
		{"in a large body", chatBody, func(tn *turn, cancel func()) {
			tn.send("HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n{" + strings.Repeat(" ", 2<<20))
			tn.hang()
		}, true},
	}
	for _, tt := range tests {
		for _, cause := range []error{nil, ErrShuttingDown, ErrVariantStopped} {
			name := tt.name
			if cause != nil {
				name += ": " + cause.Error()
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, stop := context.WithCancelCause(context.Background())
				defer stop(nil)
				var left time.Time
				var mu sync.Mutex
				cancel := func() { mu.Lock(); left = time.Now(); mu.Unlock(); stop(cause) }
				up := newPeer(t, func(tn *turn) { tt.serve(tn, cancel) })
				good := okPeer(t)
				p, ups := poolWith(t, o, Config{Name: "a", Endpoints: []string{up.url()}}, Config{Name: "b", Endpoints: []string{good.url()}})
				rec := &recorder{onCommit: func() { time.AfterFunc(10*time.Millisecond, cancel) }}
				res := p.Do(ctx, request(t, tt.body, to(ups["a"]), to(ups["b"])), rec)
				seen := <-up.gone
				mu.Lock()
				defer mu.Unlock()
				if d := seen.Sub(left); d > 2*time.Second { // a bound against hanging, not a budget
					t.Errorf("the upstream saw it after %v", d)
				}
				if good.calls.Load() != 0 || len(res.Attempts) != 1 || ups["a"].Status()[0].InFlight != 0 || ups["a"].Status()[0].LastError != "" {
					t.Errorf("attempts %q, status %+v", outcomes(res), ups["a"].Status())
				}
				if a := res.Attempts[0]; a.HasUsage != tt.usage || a.HasUsage && !a.Estimated {
					t.Errorf("usage %+v has %v estimated %v", a.Usage, a.HasUsage, a.Estimated)
				}
				checkEnd(t, res, rec, cause)
			})
		}
	}
}

// The client goes while its request is still being written to an upstream that
// does not read.
func TestCancelWhileSending(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 32<<20) + `"}]}`
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			first := make([]byte, 4)
			if io.ReadFull(c, first); string(first) == "GET " {
				io.WriteString(c, "HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				c.Close()
				continue
			}
			time.Sleep(20 * time.Millisecond) // the socket buffers fill
			cancel()
			if n, _ := io.Copy(io.Discard, c); n >= int64(len(body)) {
				t.Error("the whole body was sent")
			}
			c.Close()
			return
		}
	}()
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{"http://" + ln.Addr().String() + "/v1"}})
	res := p.Do(ctx, request(t, body, to(ups["a"])), &recorder{})
	<-closed
	if res.Outcome != Canceled || ups["a"].Status()[0].InFlight != 0 {
		t.Errorf("%+v", res)
	}
}

func checkEnd(t *testing.T, res Result, rec *recorder, cause error) {
	t.Helper()
	want, code := ShuttingDown, "shutting_down"
	if errors.Is(cause, ErrVariantStopped) {
		code = "variant_stopped"
	}
	switch {
	case cause == nil:
		if res.Outcome != Canceled || res.Status != 499 || res.Failure != nil || len(rec.inband) > 0 {
			t.Errorf("%+v", res)
		}
	case len(rec.metas) == 0:
		if res.Outcome != want || res.Failure == nil || res.Failure.Status != 503 || res.Failure.Code != code || res.Failure.RetryAfter == "" {
			t.Errorf("%+v", res)
		}
	case rec.metas[0].Stream:
		if res.Outcome != want || !res.Abort || len(rec.inband) != 1 || rec.inband[0].Code != code {
			t.Errorf("%+v, in-band %+v", res, rec.inband)
		}
	default:
		if res.Outcome != want || !res.Abort || res.Failure != nil {
			t.Errorf("%+v", res)
		}
	}
}

// A client that is gone before Do is called costs nothing.
func TestCanceledBefore(t *testing.T) {
	up := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := request(t, chatBody, to(ups["a"]))
	r.Next = func(int, *Attempt, bool) (Target, string, bool) {
		t.Error("Next was asked")
		return Target{}, "", false
	}
	if res := p.Do(ctx, r, &recorder{}); res.Outcome != Canceled || res.Status != 499 || len(res.Attempts) != 0 {
		t.Errorf("%+v", res)
	}
}

// A client that goes between two attempts gets no second one.
func TestCancelBetweenAttempts(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	bad := newPeer(t, func(tn *turn) { cancel(errors.New("gone")); tn.reply(503, "", "") })
	good := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{bad.url()}}, Config{Name: "b", Endpoints: []string{good.url()}})
	res := p.Do(ctx, request(t, chatBody, to(ups["a"]), to(ups["b"])), &recorder{})
	if res.Outcome != Canceled || good.calls.Load() != 0 {
		t.Errorf("%+v", res)
	}
}

// B062, B064: nothing is left behind by any kind of end.
func TestNothingLeaks(t *testing.T) { eachCarrier(t, nothingLeaks) }

func nothingLeaks(t *testing.T, o PoolOptions) {
	kinds := map[string]func(tn *turn, cancel func()){
		"ok":       func(tn *turn, _ func()) { tn.reply(200, "application/json", okBody) },
		"stream":   func(tn *turn, _ func()) { tn.head(200, "text/event-stream"); tn.chunk(wholeStream(3)); tn.finish() },
		"400":      func(tn *turn, _ func()) { tn.reply(400, "application/json", `{"error":{"message":"x"}}`) },
		"500":      func(tn *turn, _ func()) { tn.reply(500, "text/html", "<h1>") },
		"fin":      func(tn *turn, _ func()) { tn.fin() },
		"rst":      func(tn *turn, _ func()) { tn.rst() },
		"cut":      func(tn *turn, _ func()) { tn.head(200, "text/event-stream"); tn.chunk(event("a", "")); tn.fin() },
		"garbage":  func(tn *turn, _ func()) { tn.send("\x00\x01garbage\r\n\r\n"); tn.fin() },
		"notjson":  func(tn *turn, _ func()) { tn.reply(200, "application/json", "<html>") },
		"redirect": func(tn *turn, _ func()) { tn.reply(302, "", "", "Location: /x") },
		"cancel": func(tn *turn, cancel func()) {
			tn.head(200, "text/event-stream")
			tn.chunk(event("a", ""))
			cancel()
			tn.hang()
		},
		"silent": func(tn *turn, cancel func()) { cancel(); tn.hang() },
		"afterdone": func(tn *turn, _ func()) {
			tn.head(200, "text/event-stream")
			tn.chunk(wholeStream(1))
			tn.hang()
		},
	}
	var (
		cancels sync.Map // request id → cancel
		mu      sync.Mutex
		arrived = map[string]int{}
	)
	up := newPeer(t, func(tn *turn) {
		id := tn.req.Header.Get("X-Request-Id")
		c, _ := cancels.Load(strings.SplitN(id, "~", 2)[0])
		kind, _, _ := bytes.Cut(tn.body[bytes.Index(tn.body, []byte(`"user":"`))+8:], []byte(`"`))
		mu.Lock()
		arrived[string(kind)]++
		mu.Unlock()
		kinds[string(kind)](tn, c.(context.CancelFunc))
	})
	// Each worker has an upstream of its own, whose breaker stays closed: an open
	// one would keep all that follows from the server, and nothing be tested.
	const workers = 8
	var list []Config
	for w := range workers {
		list = append(list, Config{Name: "a" + strconv.Itoa(w), Endpoints: []string{up.url()}})
	}
	p, ups := poolWith(t, o, list...)
	run := func(n int) {
		var wg sync.WaitGroup
		for w := range workers {
			u := ups["a"+strconv.Itoa(w)]
			wg.Go(func() {
				for kind := range kinds {
					for i := range n {
						for range 2 {
							turn, _ := u.endpoints()[0].guard.Begin(time.Now())
							turn.End(guard.Success)
						}
						ctx, cancel := context.WithCancel(context.Background())
						id := kind + strconv.Itoa(w) + "-" + strconv.Itoa(i)
						cancels.Store(id, cancel)
						body := chatBody
						if kind != "ok" {
							body = usageBody
						}
						r := request(t, body[:len(body)-1]+`,"user":"`+kind+`"}`, to(u))
						r.RequestID = id + "~"
						p.Do(ctx, r, &recorder{})
						cancel()
						cancels.Delete(id)
					}
				}
			})
		}
		wg.Wait()
	}
	settled := func() (goroutines, descriptors int) {
		waitFor(t, "drains and connections to end", func() bool {
			for _, u := range ups {
				u.endpoints()[0].set.Load().carrier.CloseIdleConnections()
			}
			up.mu.Lock()
			defer up.mu.Unlock()
			return len(up.open) == 0
		})
		open, _ := os.ReadDir("/proc/self/fd")
		return runtime.NumGoroutine(), len(open)
	}
	each := 5 // of each kind by each worker; SLUICE_LEAK=5000 of each kind is the long form
	if n, err := strconv.Atoi(os.Getenv("SLUICE_LEAK")); err == nil {
		each = max(n/workers, 1)
	}
	run(2)
	goroutines, descriptors := settled()
	mu.Lock()
	clear(arrived)
	mu.Unlock()
	run(each)
	for kind := range kinds {
		mu.Lock()
		n := arrived[kind]
		mu.Unlock()
		if n < each*workers {
			t.Errorf("%d of %d %s arrived", n, each*workers, kind)
		}
	}
	for name, u := range ups {
		if n := u.Status()[0].InFlight; n != 0 {
			t.Errorf("%s: %d in flight", name, n)
		}
	}
	waitFor(t, "goroutines and descriptors to come back", func() bool {
		g, d := settled()
		return g <= goroutines+5 && d <= descriptors+5
	})
}
