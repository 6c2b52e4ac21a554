package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
)

// scripted is a carrier whose hosts answer a status, or after a time, as told
// at run time.
type scripted struct {
	mu     sync.Mutex
	status map[string]int // by host; 0 = 200 and a whole answer
	takes  time.Duration
	calls  map[string]int
	now    int // calls under way
	most   int
}

func (s *scripted) options() PoolOptions {
	s.status, s.calls = map[string]int{}, map[string]int{}
	w := &wirePipe{serve: func(ctx context.Context, host string, a *answerPipe) {
		s.mu.Lock()
		s.calls[host]++
		s.now++
		s.most = max(s.most, s.now)
		status, takes := s.status[host], s.takes
		s.mu.Unlock()
		defer func() { s.mu.Lock(); s.now--; s.mu.Unlock() }()
		if takes > 0 && !pause(ctx, takes) {
			return
		}
		if status == 0 {
			a.start(200, "application/json")
			a.send(okBody)
			return
		}
		a.start(status, "application/json")
		a.send(`{"error":{"message":"no","type":"x","code":null}}`)
	}}
	return w.options()
}

func (s *scripted) set(host string, status int) { s.mu.Lock(); s.status[host] = status; s.mu.Unlock() }

func (s *scripted) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		n += c
	}
	return n
}

func hosts(name string, list ...string) Config {
	c := Config{Name: name}
	for _, h := range list {
		c.Endpoints = append(c.Endpoints, "http://"+h+"/v1")
	}
	return c
}

func TestBreakerKeepsCallsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		p, ups := poolWith(t, s.options(), hosts("a", "bad", "good"))
		s.set("bad", 503)
		for range 100 {
			if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success {
				t.Fatalf("%v: %s", res.Outcome, outcomes(res))
			}
		}
		if n := s.calls["bad"]; n != 5 {
			t.Errorf("the failing server got %d calls before its breaker opened", n)
		}
		st := ups["a"].Status()[0]
		if st.Breaker != guard.Open || st.BreakerUntil.IsZero() || !st.Ready {
			t.Errorf("status %+v", st)
		}
		s.set("bad", 0)
		time.Sleep(8 * time.Second)
		for range 100 {
			do(t, p, request(t, chatBody, to(ups["a"])))
		}
		if st := ups["a"].Status()[0]; st.Breaker != guard.Closed {
			t.Errorf("after it recovered: %+v", st)
		}
	})
}

// TestBreakerIgnores has a sole server answer what is no failure of it, and
// then a good request.
func TestBreakerIgnores(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 413, 422, 429} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{}
				p, ups := poolWith(t, s.options(), hosts("a", "a"))
				s.set("a", status)
				for range 30 {
					do(t, p, request(t, chatBody, to(ups["a"])))
				}
				s.set("a", 0)
				if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success || s.total() != 31 {
					t.Errorf("%v after %d calls", res.Outcome, s.total())
				}
			})
		})
	}
}

// TestCancelIsNotATimeout: clients that leave say nothing about the server,
// time-outs do (scenario cancel_vs_timeout).
func TestCancelIsNotATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Hour}
		c := hosts("a", "a")
		c.Timeouts.FirstByte = 10 * time.Second
		p, ups := poolWith(t, s.options(), c)
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if res := p.Do(ctx, request(t, chatBody, to(ups["a"])), &recorder{}); res.Outcome != Canceled {
				t.Fatalf("%v", res.Outcome)
			}
			cancel()
		}
		for range 20 {
			r := request(t, chatBody, to(ups["a"]))
			r.Deadline = time.Now().Add(time.Second)
			if res, _ := do(t, p, r); res.Outcome != Timeout || res.Failure.Status != 504 {
				t.Fatalf("%v %+v", res.Outcome, res.Failure)
			}
		}
		if st := ups["a"].Status()[0]; st.Breaker != guard.Closed {
			t.Fatalf("clients' own doing opened the breaker: %+v", st)
		}
		for range 5 {
			do(t, p, request(t, chatBody, to(ups["a"])))
		}
		res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
		f := res.Failure
		if res.Outcome != NoEndpoint || f.Status != 503 || f.RetryAfter == "" || !f.NoRetry || s.total() != 45 {
			t.Errorf("after five time-outs %v %+v, %d calls", res.Outcome, f, s.total())
		}
	})
}

func TestOpenBreakerGoesToTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		p, ups := poolWith(t, s.options(), hosts("canary", "c"), hosts("control", "b"))
		s.set("c", 500)
		for range 50 {
			res, _ := do(t, p, request(t, chatBody, to(ups["canary"]), to(ups["control"])))
			if res.Outcome != Success {
				t.Fatalf("%v: %s", res.Outcome, outcomes(res))
			}
		}
		if s.calls["c"] != 5 || s.calls["b"] != 50 {
			t.Errorf("calls %v", s.calls)
		}
	})
}

func TestCoolDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := map[string]int{}
		var limited atomic.Bool
		w := &wirePipe{serve: func(_ context.Context, host string, a *answerPipe) {
			up[host]++
			if !limited.Load() {
				a.start(200, "application/json")
				a.send(okBody)
				return
			}
			a.head <- &http.Response{StatusCode: 429, ContentLength: -1, Body: a.r,
				Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"7"}}}
			a.send(`{"error":{"message":"slow down","type":"x","code":null}}`)
		}}
		p, ups := poolWith(t, w.options(), hosts("a", "a"))
		limited.Store(true)
		for i := range 20 {
			res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
			if f := res.Failure; res.Outcome != UpRateLimited || f.Status != 429 || f.RetryAfter != "7" {
				t.Fatalf("%d: %v %+v", i, res.Outcome, f)
			}
		}
		if up["a"] != 1 {
			t.Errorf("%d calls while it cools down", up["a"])
		}
		if st := ups["a"].Status()[0]; st.CoolUntil.IsZero() || st.Breaker != guard.Closed {
			t.Errorf("status %+v", st)
		}
		limited.Store(false)
		time.Sleep(7 * time.Second)
		if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success {
			t.Errorf("after the pause: %v", res.Outcome)
		}
	})
}

// TestRetryBudget: with everything failing, retries add a fifth (scenario
// retry_budget). The breakers are kept closed by a success now and then.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		p, ups := poolWith(t, s.options(), hosts("a", "a", "b", "c", "d"))
		for _, h := range []string{"a", "b", "c", "d"} {
			s.set(h, 503)
		}
		const clients = 1000
		var last Result
		for i := range clients {
			if i%3 == 0 { // the breakers are not what is tested here
				for _, e := range ups["a"].endpoints() {
					for range 20 {
						turn, _ := e.guard.Begin(time.Now())
						turn.End(guard.Success)
					}
				}
			}
			if last, _ = do(t, p, request(t, chatBody, to(ups["a"]))); last.Outcome == Success {
				t.Fatal(i, "succeeded")
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%d upstream calls for %d requests", s.total(), clients)
		if n := s.total(); n > clients*12/10+retrySlack || n < clients*11/10 {
			t.Errorf("%d upstream calls for %d requests", n, clients)
		}
		if !last.Failure.NoRetry || last.Failure.Status != 503 {
			t.Errorf("last %+v", last.Failure)
		}
	})
}

// retrySlack is the budget's floor.
const retrySlack = 10

func TestEverythingDownCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		p, ups := poolWith(t, s.options(), hosts("a", "a", "b"), hosts("f", "c"))
		for _, h := range []string{"a", "b", "c"} {
			s.set(h, 503)
		}
		for range 1000 {
			do(t, p, request(t, chatBody, to(ups["a"]), to(ups["f"])))
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%d upstream calls for 1,000 requests", s.total())
		if n := s.total(); n > 100 {
			t.Errorf("%d upstream calls for 1,000 requests", n)
		}
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Second}
		c := hosts("a", "a", "b")
		c.Limits = Limits{MaxInFlight: 2, MaxQueue: 2, QueueTimeout: 10 * time.Second}
		p, ups := poolWith(t, s.options(), c)
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[Outcome]int{}
		for range 6 {
			wg.Go(func() {
				res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
				mu.Lock()
				defer mu.Unlock()
				got[res.Outcome]++
				if f := res.Failure; f != nil && (f.Status != 429 || f.Code != "queue_full" || f.Type != typeRateLimit || f.RetryAfter == "" || len(res.Attempts) != 0) {
					t.Errorf("refused with %+v", f)
				}
			})
		}
		wg.Wait()
		if got[Success] != 4 || got[QueueFull] != 2 || s.most != 2 {
			t.Errorf("%v, %d at once", got, s.most)
		}
		if st := ups["a"].gate.Stats(); st.InFlight != 0 || st.Queued != 0 {
			t.Errorf("left over: %+v", st)
		}
	})
}

func TestQueueTimeoutAndLeavers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Minute}
		c := hosts("a", "a")
		c.Limits = Limits{MaxInFlight: 1, MaxQueue: 9, QueueTimeout: 3 * time.Second}
		p, ups := poolWith(t, s.options(), c)
		go p.Do(t.Context(), request(t, chatBody, to(ups["a"])), &recorder{})
		synctest.Wait()
		start := time.Now()
		res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
		if res.Outcome != QueueFull || time.Since(start) != 3*time.Second || res.Queued != 3*time.Second {
			t.Errorf("%v after %v, queued %v", res.Outcome, time.Since(start), res.Queued)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if res := p.Do(ctx, request(t, chatBody, to(ups["a"])), &recorder{}); res.Outcome != Canceled || res.Status != 499 {
			t.Errorf("a leaver: %+v", res)
		}
		r := request(t, chatBody, to(ups["a"]))
		r.Deadline = time.Now().Add(2 * time.Second)
		if res, _ := do(t, p, r); res.Outcome != Timeout || res.Failure.Status != 504 {
			t.Errorf("a deadline: %+v", res)
		}
		down, end := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { end(ErrShuttingDown) })
		if res := p.Do(down, request(t, chatBody, to(ups["a"])), &recorder{}); res.Outcome != ShuttingDown {
			t.Errorf("the process ends: %+v", res)
		}
		if st := ups["a"].gate.Stats(); st.Queued != 0 || st.InFlight != 1 || s.total() != 1 {
			t.Errorf("%+v, %d calls", st, s.total())
		}
	})
}

// TestQueueAsksAgain: what was decided before the wait may be wrong after it.
func TestQueueAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Second}
		a, b := hosts("a", "a"), hosts("b", "b")
		a.Limits = Limits{MaxInFlight: 1, MaxQueue: 9}
		p, ups := poolWith(t, s.options(), a, b)
		go do(t, p, request(t, chatBody, to(ups["a"])))
		synctest.Wait()
		var killed atomic.Bool
		time.AfterFunc(500*time.Millisecond, func() { killed.Store(true) })
		r := request(t, chatBody)
		r.Next = func(n int, _ *Attempt, same bool) (Target, string, bool) {
			switch {
			case killed.Load():
				return to(ups["b"]), "killed", true
			case n == 0:
				return to(ups["a"]), "", true
			}
			return to(ups["a"]), "retry", same
		}
		res, _ := do(t, p, r)
		if res.Outcome != Success || s.calls["b"] != 1 || s.calls["a"] != 1 || res.Attempts[0].Reason != "killed" {
			t.Errorf("%v %v %+v", res.Outcome, s.calls, res.Attempts)
		}
		killed.Store(false)
		go do(t, p, request(t, chatBody, to(ups["a"])))
		synctest.Wait()
		if res, _ = do(t, p, r); res.Attempts[0].Reason != "" {
			t.Errorf("a first call after a wait has the reason %q", res.Attempts[0].Reason)
		}
		if st := ups["a"].gate.Stats(); st.InFlight != 0 {
			t.Errorf("left over: %+v", st)
		}
	})
}

// TestQueueKeepsStreamsAlive: comments go while a stream waits, and who does not
// take them leaves.
func TestQueueKeepsStreamsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: 10 * time.Minute}
		c := hosts("a", "a")
		c.Limits = Limits{MaxInFlight: 1, MaxQueue: 9, QueueTimeout: 100 * time.Second}
		p, ups := poolWith(t, s.options(), c)
		go p.Do(t.Context(), request(t, chatBody, to(ups["a"])), &recorder{})
		synctest.Wait()
		r := request(t, streamBody, to(ups["a"]))
		r.KeepAliveBefore = 45 * time.Second
		rec := &recorder{}
		res := p.Do(t.Context(), r, rec)
		if n := strings.Count(rec.text(), ": ping"); n != 2 || res.Outcome != QueueFull || !res.Abort || !strings.Contains(rec.text(), "queue_full") {
			t.Errorf("%d comments, %+v, %q", n, res, rec.text())
		}
		r = request(t, streamBody, to(ups["a"]))
		r.KeepAliveBefore = 45 * time.Second
		start := time.Now()
		if res = p.Do(t.Context(), r, deaf{}); res.Outcome != Canceled || time.Since(start) != 45*time.Second {
			t.Errorf("a client that is gone: %v after %v", res.Outcome, time.Since(start))
		}
	})
}

// deaf is a client that cannot be written to.
type deaf struct{}

func (deaf) Commit(Meta)              {}
func (deaf) Write([]byte) error       { return errors.New("gone") }
func (deaf) FailInBand(Failure) error { return errors.New("gone") }

func TestDeadlineInAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wirePipe{serve: func(ctx context.Context, _ string, a *answerPipe) {
			a.start(200, "text/event-stream")
			for a.send(event("x", "")); pause(ctx, time.Second); a.send(event("x", "")) {
			}
		}}
		p, ups := poolWith(t, w.options(), hosts("a", "a"))
		r := request(t, streamBody, to(ups["a"]))
		r.Deadline = time.Now().Add(3500 * time.Millisecond)
		res, rec := do(t, p, r)
		if res.Outcome != Timeout || !res.Abort || !strings.Contains(rec.text(), "upstream_timeout") || strings.Contains(rec.text(), "[DONE]") {
			t.Errorf("%+v %q", res, rec.text())
		}
	})
}

// TestLimitsChangeLive: a changed configuration keeps the queue.
func TestLimitsChangeLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Second}
		c := hosts("a", "a")
		c.Limits = Limits{MaxInFlight: 1, MaxQueue: 9}
		p, ups := poolWith(t, s.options(), c)
		var ok atomic.Int64
		for range 4 {
			go func() {
				if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome == Success {
					ok.Add(1)
				}
			}()
		}
		synctest.Wait()
		c.Limits.MaxInFlight = 4
		if _, err := p.Apply([]Config{c}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		if ok.Load() != 4 || s.most != 4 {
			t.Errorf("%d answered, %d at once", ok.Load(), s.most)
		}
	})
}

// TestHostileRetryAfter: what a server sends is not to be trusted.
func TestHostileRetryAfter(t *testing.T) {
	now := time.Now()
	for v, want := range map[string]time.Duration{
		"1e300": maxRetryAfter, "-5": 0, "NaN": -1, "": -1, "soon": -1, "+Inf": maxRetryAfter, "0.25": 250 * time.Millisecond,
		now.Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		d, ok := retryWait(v, "", now)
		if ok != (want >= 0) || ok && d != want {
			t.Errorf("%q: %v %v, want %v", v, d, ok, want)
		}
	}
}

// TestFinishedButSilent: an answer that is complete but for its end mark is a
// success, however long the server is silent after it.
func TestFinishedButSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wirePipe{serve: func(ctx context.Context, _ string, a *answerPipe) {
			a.start(200, "text/event-stream")
			a.send(event("x", "") + event("", "stop") + usageEvent)
			<-ctx.Done()
		}}
		p, ups := poolWith(t, w.options(), hosts("a", "a"))
		res, rec := do(t, p, request(t, streamBody, to(ups["a"])))
		if res.Outcome != Success || res.Abort || !strings.HasSuffix(rec.text(), doneEvent) || res.Attempts[0].Usage.Output != 3 {
			t.Errorf("%+v %q", res, rec.text())
		}
		if st := ups["a"].Status()[0]; st.LastError != "" {
			t.Errorf("the server is blamed: %+v", st)
		}
	})
}

// TestLargeError: an error in a 200 that is too large to be held back is no success.
func TestLargeError(t *testing.T) {
	for name, body := range map[string]string{
		"object": `{"error":{"message":"` + strings.Repeat("x", 2<<20) + `","code":500}}`,
		"last":   `{"object":"error","padding":"` + strings.Repeat("x", 2<<20) + `","error":"no"}`,
	} {
		t.Run(name, func(t *testing.T) {
			up := newPeer(t, func(tn *turn) { tn.reply(200, "application/json", body) })
			p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
			if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Error {
				t.Errorf("%+v", res)
			}
		})
	}
	up := newPeer(t, func(tn *turn) {
		tn.reply(200, "application/json", `{"error":null,"choices":[{"index":0,"message":{"content":"`+strings.Repeat("x", 2<<20)+`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success || res.Attempts[0].Usage.Output != 2 {
		t.Errorf("a large answer: %+v", res)
	}
}

// TestSpentBudgetLeavesTheFallback: retries of a variant whose servers all fail
// may be used up; its fallback answers all the same.
func TestSpentBudgetLeavesTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		p, ups := poolWith(t, s.options(), hosts("canary", "a", "b", "c"), hosts("control", "d"))
		for _, h := range []string{"a", "b", "c"} {
			s.set(h, 429)
		}
		for i := range 300 {
			do(t, p, request(t, chatBody, to(ups["control"])))
			do(t, p, request(t, chatBody, to(ups["control"])))
			do(t, p, request(t, chatBody, to(ups["control"])))
			do(t, p, request(t, chatBody, to(ups["control"])))
			do(t, p, request(t, chatBody, to(ups["control"])))
			if res, _ := do(t, p, request(t, chatBody, to(ups["canary"]), to(ups["control"]))); res.Outcome != Success {
				t.Fatalf("%d: %v %s", i, res.Outcome, outcomes(res))
			}
		}
	})
}

// TestLimitedServerIsAvoided: one of three that answers 429 without retry-after
// must not use up the budget.
func TestLimitedServerIsAvoided(t *testing.T) {
	for _, policy := range []string{balanceLeast, balanceRound, balancePref} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{}
				c := hosts("a", "a", "b", "c")
				c.Balance = policy
				p, ups := poolWith(t, s.options(), c)
				s.set("a", 429)
				for i := range 2000 {
					body := strings.Replace(chatBody, "hi", fmt.Sprint("hi ", i), 1)
					if res, _ := do(t, p, request(t, body, to(ups["a"]))); res.Outcome != Success {
						t.Fatalf("%d: %v %s", i, res.Outcome, outcomes(res))
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		})
	}
}
