package upstream

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
)

// hedged is an upstream of two hosts that is known to answer within 100 ms.
func hedged(t *testing.T, serve func(ctx context.Context, host string, a *answerPipe), change func(*Config)) (*Pool, *Upstream) {
	t.Helper()
	c := hosts("a", "a", "b")
	c.Hedge = Hedge{Quantile: 0.95, Min: 200 * time.Millisecond, MaxShare: 0.5}
	if change != nil {
		change(&c)
	}
	w := &wirePipe{serve: serve}
	p, ups := poolWith(t, w.options(), c)
	for _, e := range ups["a"].endpoints() {
		for range leastSamples {
			e.speed.observe(time.Now(), 100*time.Millisecond, 1)
		}
	}
	for range 100 {
		ups["a"].budget.Request(time.Now())
	}
	return p, ups["a"]
}

func clean(t *testing.T, u *Upstream) {
	t.Helper()
	synctest.Wait()
	for _, e := range u.endpoints() {
		if n := e.inflight.Load(); n != 0 {
			t.Errorf("%s has %d in flight", e.base, n)
		}
		if s := e.guard.State(time.Now()).Breaker; s != guard.Closed {
			t.Errorf("%s: breaker %s", e.base, s)
		}
	}
	if s := u.gate.Stats(); s.InFlight != 0 {
		t.Errorf("the gate has %+v", s)
	}
}

func answerWhole(a *answerPipe, stream bool) {
	if stream {
		a.start(200, "text/event-stream")
		a.send(wholeStream(2))
		return
	}
	a.start(200, "application/json")
	a.send(okBody)
}

func TestHedge(t *testing.T) {
	for _, stream := range []bool{true, false} {
		body := map[bool]string{true: streamBody, false: chatBody}[stream]
		run := func(name string, serve func(ctx context.Context, n int64, a *answerPipe), change func(*Config), want string, took time.Duration) {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var n atomic.Int64
					p, u := hedged(t, func(ctx context.Context, _ string, a *answerPipe) { serve(ctx, n.Add(1), a) }, change)
					start := time.Now()
					req, told := request(t, body, to(u)), 0
					req.Ended = func(a *Attempt) { told++ }
					res, rec := do(t, p, req)
					got, lost := "", 0
					for _, a := range res.Attempts {
						got += string(a.Outcome) + " " + a.Reason + "; "
						if a.Reason == reasonHedge {
							lost = 1
						}
					}
					if told != len(res.Attempts)-lost {
						t.Errorf("told of %d of %d attempts: of two that race only one is an attempt's end", told, len(res.Attempts))
					}
					if got != want || time.Since(start) != took {
						t.Errorf("%q after %v, want %q after %v", got, time.Since(start), want, took)
					}
					if res.Outcome == Success && (len(rec.text()) == 0 || res.Endpoint != res.Attempts[len(res.Attempts)-1].Endpoint) {
						t.Errorf("answered by %s: %q", res.Endpoint, rec.text())
					}
					clean(t, u)
				})
			})
		}
		slow := func(d time.Duration) func(ctx context.Context, n int64, a *answerPipe) {
			return func(ctx context.Context, n int64, a *answerPipe) {
				if n == 1 && !pause(ctx, d) {
					return
				}
				answerWhole(a, stream)
			}
		}
		run("quick", slow(0), nil, "success ; ", 0)
		run("within the usual", slow(150*time.Millisecond), nil, "success ; ", 150*time.Millisecond)
		run("the second wins", slow(time.Minute), nil, "canceled ; success hedge; ", 200*time.Millisecond)
		run("off", slow(time.Second), func(c *Config) { c.Hedge = Hedge{} }, "success ; ", time.Second)
		run("no share left", slow(time.Second), func(c *Config) { c.Hedge.MaxShare = 0.001 }, "success ; ", time.Second)
		run("no place left", slow(time.Second), func(c *Config) { c.Limits.MaxInFlight = 1 }, "success ; ", time.Second)
		run("the first wins after all", func(ctx context.Context, n int64, a *answerPipe) {
			if pause(ctx, map[bool]time.Duration{true: 300 * time.Millisecond, false: time.Minute}[n == 1]) {
				answerWhole(a, stream)
			}
		}, nil, "canceled hedge; success ; ", 300*time.Millisecond)
		run("the second fails", func(ctx context.Context, n int64, a *answerPipe) {
			if n == 2 {
				a.start(503, "application/json")
				a.send(`{"error":{"message":"no","code":503}}`)
				return
			}
			if pause(ctx, time.Second) {
				answerWhole(a, stream)
			}
		}, nil, "upstream_error hedge; success ; ", time.Second)
		run("the first fails then", func(ctx context.Context, n int64, a *answerPipe) {
			pause(ctx, map[bool]time.Duration{true: 300 * time.Millisecond, false: 500 * time.Millisecond}[n == 1])
			if n == 1 {
				a.start(500, "application/json")
				a.send(`{"error":{"message":"no","code":500}}`)
				return
			}
			answerWhole(a, stream)
		}, nil, "upstream_error ; success hedge; ", 700*time.Millisecond)
	}
}

// TestHedgeCancel: a client that leaves ends both calls.
func TestHedgeCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		p, u := hedged(t, func(ctx context.Context, _ string, _ *answerPipe) { <-ctx.Done(); ended.Add(1) }, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		res := p.Do(ctx, request(t, streamBody, to(u)), &recorder{})
		synctest.Wait()
		if res.Outcome != Canceled || ended.Load() != 2 {
			t.Errorf("%v, %d calls ended", res.Outcome, ended.Load())
		}
		clean(t, u)
	})
}

// TestHedgeCancelInTheAnswer: the winner's answer is still tied to the client.
func TestHedgeCancelInTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n, ended atomic.Int64
		p, u := hedged(t, func(ctx context.Context, _ string, a *answerPipe) {
			if n.Add(1) == 2 {
				a.start(200, "text/event-stream")
				a.send(event("x", ""))
			}
			<-ctx.Done()
			ended.Add(1)
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		res := p.Do(ctx, request(t, streamBody, to(u)), &recorder{})
		synctest.Wait()
		if res.Outcome != Canceled || ended.Load() != 2 || time.Since(start) != 10*time.Second {
			t.Errorf("%v, %d calls ended after %v", res.Outcome, ended.Load(), time.Since(start))
		}
		clean(t, u)
	})
}

// TestHedgeOnSockets: the same over both carriers.
func TestHedgeOnSockets(t *testing.T) {
	eachCarrier(t, func(t *testing.T, o PoolOptions) {
		slow := newPeer(t, func(tn *turn) { tn.hang() })
		good := okPeer(t)
		p, ups := poolWith(t, o, Config{Name: "a", Balance: balanceRound, Endpoints: []string{slow.url(), good.url()},
			Hedge: Hedge{Quantile: 0.5, Min: 20 * time.Millisecond, MaxShare: 0.5}})
		u := ups["a"]
		for range 100 {
			u.budget.Request(time.Now())
		}
		for _, e := range u.endpoints() {
			for range leastSamples {
				e.speed.observe(time.Now(), time.Millisecond, 1)
			}
		}
		for range 10 {
			for _, body := range []string{chatBody, streamBody} {
				if res, rec := do(t, p, request(t, body, to(u))); res.Outcome != Success || len(rec.text()) == 0 {
					t.Fatalf("%v %s", res.Outcome, outcomes(res))
				}
			}
		}
		if slow.calls.Load() == 0 {
			t.Error("the slow one was never asked")
		}
	})
}
