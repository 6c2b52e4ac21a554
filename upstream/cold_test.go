package upstream

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// shut answers as a port that nobody listens on.
func (s *script) shut() {
	s.on(func(context.Context, *h1.Request) (int, string, error) {
		return 0, "", &h1.DialError{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	})
}

// open serves checks and calls.
func (s *script) up() {
	s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
		if r.Method == http.MethodPost {
			return 200, okBody, nil
		}
		return 200, "", nil
	})
}

// coldPool is an upstream whose server is not up, in virtual time, and counts
// the calls that wake it.
func coldPool(t *testing.T, s *script, c Config) (*Pool, *Upstream, *atomic.Int64) {
	t.Helper()
	c.Name, c.Dialect, c.Endpoints = "a", wire.VLLM, []string{"http://a"}
	p, ups := poolWith(t, s.options(), c)
	calls := &atomic.Int64{}
	ups["a"].room.post = func(string) { calls.Add(1) }
	return p, ups["a"], calls
}

// scenarios.json, cold_start: no endpoint for 3 s, then up: 100 waiting are
// served once, after one wake-up call; never up: 503 with retry-after.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		s.shut()
		p, u, calls := coldPool(t, &s, Config{ColdStart: ColdStart{MaxWait: 10 * time.Second, Wake: "http://wake"}, Limits: Limits{MaxInFlight: 4, MaxQueue: 1000}})
		defer p.Close()
		crowd := func(n int) (results []Result) {
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					res, _ := do(t, p, request(t, chatBody, to(u)))
					mu.Lock()
					results = append(results, res)
					mu.Unlock()
				})
			}
			wg.Wait()
			return results
		}
		start := time.Now()
		time.AfterFunc(3*time.Second, s.up)
		for _, res := range crowd(100) {
			if res.Outcome != Success || len(res.Attempts) != 1 || res.Attempts[0].Reason != "" || res.Queued == 0 {
				t.Fatalf("%s after %d attempts, queued %v", res.Outcome, len(res.Attempts), res.Queued)
			}
		}
		if took := time.Since(start); took < 3*time.Second || took > 8*time.Second {
			t.Errorf("served after %v", took)
		}
		if n := s.count("POST"); n != 100 || calls.Load() != 1 {
			t.Errorf("%d calls and %d wake-ups for 100 requests", n, calls.Load())
		}
		// It is shut down: the next period has its own call, and ends in vain.
		s.shut()
		time.Sleep(10 * time.Second)
		start = time.Now()
		for _, res := range crowd(30) {
			f := res.Failure
			if res.Outcome != NoEndpoint || f == nil || f.Status != 503 || f.Code != "no_ready_endpoint" || f.RetryAfter == "" {
				t.Fatalf("never up: %s, %+v", res.Outcome, f)
			}
		}
		if time.Since(start) != 10*time.Second || calls.Load() != 2 || u.room.count() != 0 {
			t.Errorf("after %v, %d wake-ups, %d still waiting", time.Since(start), calls.Load(), u.room.count())
		}
	})
}

// Who goes leaves at once; who is too many is told at once.
func TestColdStartLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		s.shut()
		p, u, _ := coldPool(t, &s, Config{ColdStart: ColdStart{MaxWait: time.Hour}})
		defer p.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range leastWaiting {
			wg.Go(func() {
				if res := p.Do(ctx, request(t, chatBody, to(u)), &recorder{}); res.Outcome != Canceled {
					t.Errorf("%s", res.Outcome)
				}
			})
		}
		synctest.Wait()
		if st := u.QueueStatus(); st.Queued != leastWaiting || st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
		start := time.Now()
		if res, _ := do(t, p, request(t, chatBody, to(u))); res.Outcome != NoEndpoint {
			t.Errorf("one too many: %s", res.Outcome)
		}
		cancel()
		wg.Wait()
		if time.Since(start) != 0 || u.QueueStatus().Queued != 0 {
			t.Errorf("gone after %v, %d left", time.Since(start), u.QueueStatus().Queued)
		}
		// A client whose stream is kept alive and breaks is found by the comments.
		r := request(t, streamBody, to(u))
		r.KeepAliveBefore = 15 * time.Second
		rec := &recorder{onWrite: func(int) error { return errBroken }}
		if res := p.Do(t.Context(), r, rec); res.Outcome != Canceled || time.Since(start) != 15*time.Second {
			t.Errorf("a broken client: %s after %v", res.Outcome, time.Since(start))
		}
		// And the process's end ends all.
		ctx, end := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { end(ErrShuttingDown) })
		if res := p.Do(ctx, request(t, chatBody, to(u)), &recorder{}); res.Outcome != ShuttingDown {
			t.Errorf("at the end: %s", res.Outcome)
		}
	})
}

// What does not wait: without the setting, with everything drained, with open
// breakers. What does: a fallback comes after the wait.
func TestColdStartOrNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		s.shut()
		p, u, calls := coldPool(t, &s, Config{})
		defer p.Close()
		at := func(what string, want Outcome, after time.Duration, targets ...Target) {
			t.Helper()
			start := time.Now()
			res, _ := do(t, p, request(t, chatBody, targets...))
			if res.Outcome != want || time.Since(start).Round(time.Second) != after {
				t.Errorf("%s: %s after %v", what, res.Outcome, time.Since(start))
			}
		}
		apply := func(c Config, more ...Config) *Upstream {
			t.Helper()
			c.Name, c.Dialect, c.Endpoints = "a", wire.VLLM, []string{"http://a"}
			ups, err := p.Apply(append(more, c))
			if err != nil {
				t.Fatal(err)
			}
			return ups["a"]
		}
		at("no setting", NoEndpoint, 0, to(u))
		cold := ColdStart{MaxWait: 20 * time.Second, Wake: "http://wake"}
		at("drained", NoEndpoint, 0, to(apply(Config{ColdStart: cold, Drained: []string{"*"}})))
		if calls.Load() != 0 {
			t.Error("woken in vain")
		}
		u = apply(Config{ColdStart: cold})
		at("cold", NoEndpoint, 20*time.Second, to(u))
		// A configuration that takes the wait away frees those who wait for it.
		time.AfterFunc(time.Second, func() { apply(Config{ColdStart: cold, Drained: []string{"*"}}) })
		at("drained meanwhile", NoEndpoint, time.Second, to(u))

		s.up()
		u = apply(Config{ColdStart: cold})
		time.Sleep(10 * time.Second)
		at("up", Success, 0, to(u))
		for range 10 {
			turn, _ := u.endpoints()[0].guard.Begin(time.Now())
			turn.End(guard.Failure)
		}
		at("open breaker", NoEndpoint, 0, to(u))
	})
}

// Enabling a drained endpoint ends a cold period as well as one that comes up:
// the next has its own wake-up call.
func TestColdStartEndsByEnable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		serve := func(up bool) {
			s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
				if !up || r.URL.Host == "b" {
					return 0, "", &h1.DialError{Err: syscall.ECONNREFUSED}
				}
				return 200, okBody, nil
			})
		}
		serve(true)
		c := Config{Name: "a", Dialect: wire.TGI, Endpoints: []string{"http://a", "http://b"}, Drained: []string{"http://a"},
			ColdStart: ColdStart{MaxWait: time.Minute, Wake: "http://wake"}}
		p, ups := poolWith(t, s.options(), c)
		defer p.Close()
		var calls atomic.Int64
		ups["a"].room.post = func(string) { calls.Add(1) }
		wait := func(u *Upstream, what string, want int64) {
			t.Helper()
			if res, _ := do(t, p, request(t, chatBody, to(u))); res.Outcome != Success || calls.Load() != want {
				t.Errorf("%s: %s after %d wake-ups, want %d", what, res.Outcome, calls.Load(), want)
			}
		}
		c.Drained = nil
		time.AfterFunc(time.Second, func() {
			if _, err := p.Apply([]Config{c}); err != nil {
				t.Error(err)
			}
		})
		wait(ups["a"], "drained", 1)
		serve(false)
		time.Sleep(20 * time.Second)
		time.AfterFunc(time.Second, func() { serve(true) })
		wait(ups["a"], "shut down", 2)
	})
}

// A stopped check is for panic mode, a refused one is a server that was shut
// down, where requests may wait for it.
func TestColdStartAndPanic(t *testing.T) {
	for _, tt := range []struct {
		wait  time.Duration
		gone  func(*script)
		panic bool
	}{{0, (*script).shut, true}, {0, (*script).hang, true}, {time.Minute, (*script).hang, true}, {time.Minute, (*script).shut, false}} {
		synctest.Test(t, func(t *testing.T) {
			var s script
			s.up()
			p, u, _ := coldPool(t, &s, Config{ColdStart: ColdStart{MaxWait: tt.wait}})
			defer p.Close()
			tt.gone(&s)
			time.Sleep(time.Minute)
			if got := u.endpoints()[0].panic.Load(); got != tt.panic || u.isCold() == tt.panic {
				t.Errorf("%+v: panic %v, cold %v", tt.wait, got, u.isCold())
			}
		})
	}
}

// The wake-up call carries no credential, is not redirected, and is made again
// only when it reached nobody.
func TestWakeUp(t *testing.T) {
	var seen atomic.Int64
	var body, auth string
	var mu sync.Mutex
	status := http.StatusNoContent
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		body, auth = r.Method+" "+r.URL.Path+" "+string(b), r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")
		if status == 302 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	var log bytes.Buffer
	var logMu sync.Mutex
	p, ups := poolWith(t, PoolOptions{Log: slog.New(slog.NewTextHandler(lockedWriter{&logMu, &log}, nil))},
		Config{Name: "a", Endpoints: []string{"http://127.0.0.1:1/v1"}, Credential: "sk-CANARY", ColdStart: ColdStart{MaxWait: 50 * time.Millisecond, Wake: srv.URL + "/wake"}})
	for range 3 { // one period, one call, whoever comes when
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { do(t, p, request(t, chatBody, to(ups["a"]))) })
		}
		wg.Wait()
	}
	waitFor(t, "the call", func() bool { return seen.Load() > 0 })
	mu.Lock()
	if seen.Load() != 1 || body != `POST /wake {"upstream":"a"}` || auth != "" {
		t.Errorf("%d calls, %q, credential %q", seen.Load(), body, auth)
	}
	status = 302
	mu.Unlock()
	l := slog.New(slog.DiscardHandler)
	if !wakeUp(t.Context(), l, srv.URL, "a") || seen.Load() != 2 {
		t.Errorf("a redirect was followed, or counts as nobody reached: %d", seen.Load())
	}
	if wakeUp(t.Context(), l, "http://127.0.0.1:1/wake", "a") {
		t.Error("nobody is there")
	}
	p.Close()
	ups["a"].room.post("http://127.0.0.1:1") // after the end: nothing
	logMu.Lock()
	defer logMu.Unlock()
	if strings.Contains(log.String(), "CANARY") || !strings.Contains(log.String(), "woken") {
		t.Errorf("log %s", log.String())
	}
}

func TestWakeAgain(t *testing.T) {
	n := 0
	r := &waitingRoom{post: func(string) { n++ }}
	now := time.Now()
	wake := func(at time.Time, want int) {
		t.Helper()
		r.wake("http://w", at)
		if n != want {
			t.Errorf("%d calls, want %d", n, want)
		}
	}
	wake(now, 1)
	wake(now.Add(time.Hour), 1)
	r.missed(now)
	wake(now.Add(wakeAgain/2), 1)
	wake(now.Add(wakeAgain), 2)
	r.stir(false)
	wake(now.Add(time.Hour), 2)
	r.stir(true)
	wake(now.Add(time.Hour), 3)
	r.stir(true)
	r.wake("", now)
	wake(now, 4)
}

// lockedWriter makes a buffer safe to log to from many goroutines.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
