package upstream

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
)

// racing is an upstream of n hosts that is known to answer within 100 ms and
// hedges after 200. serve gets how many calls there have been; hang stops the
// checks of a host as well.
func racing(t *testing.T, n int, serve func(ctx context.Context, call int64, a *answerPipe), change func(*Config)) (p *Pool, u *Upstream, hang func(call int64)) {
	t.Helper()
	var (
		mu      sync.Mutex
		calls   int64
		host    = map[int64]string{}
		stopped = map[string]bool{}
	)
	w := &wirePipe{serve: func(ctx context.Context, h string, a *answerPipe) {
		mu.Lock()
		calls++
		call := calls
		host[call] = h
		mu.Unlock()
		serve(ctx, call, a)
	}}
	w.check = func(r *http.Request) (int, error) {
		mu.Lock()
		hangs := stopped[r.URL.Host]
		mu.Unlock()
		if hangs {
			<-r.Context().Done()
			return 0, r.Context().Err()
		}
		return 200, nil
	}
	c := hosts("a", []string{"a", "b", "c"}[:n]...)
	c.Hedge = Hedge{Quantile: 0.95, Min: 200 * time.Millisecond, MaxShare: 0.5}
	if change != nil {
		change(&c)
	}
	p, ups := poolWith(t, w.options(), c)
	u = ups["a"]
	for _, e := range u.endpoints() {
		for range leastSamples {
			e.speed.observe(time.Now(), 100*time.Millisecond, 1)
		}
	}
	for range 100 {
		u.budget.Request(time.Now())
	}
	return p, u, func(call int64) { mu.Lock(); stopped[host[call]] = true; mu.Unlock() }
}

func told(res Result) (s string) {
	for _, a := range res.Attempts {
		s += fmt.Sprint(a.Outcome, " ", a.Reason, "; ")
	}
	return s
}

// TestHedgeOfAHungServer: of two calls that race only the one at the server that
// has stopped is given up.
func TestHedgeOfAHungServer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		body  string
		hosts int
		hangs int64 // which call's server stops
		serve func(ctx context.Context, call int64, a *answerPipe)
		want  string
		calls int64
		most  time.Duration
	}{
		{"the first's", streamBody, 2, 1, func(ctx context.Context, call int64, a *answerPipe) {
			if call == 1 {
				<-ctx.Done()
			} else if pause(ctx, 40*time.Second) {
				answerWhole(a, true)
			}
		}, "upstream_timeout ; success hedge; ", 2, 41 * time.Second},
		{"the second's", streamBody, 2, 2, func(ctx context.Context, call int64, a *answerPipe) {
			if call == 2 {
				<-ctx.Done()
			} else if pause(ctx, 40*time.Second) {
				answerWhole(a, true)
			}
		}, "upstream_timeout hedge; success ; ", 2, 41 * time.Second},
		{"the second's, after the first has failed", streamBody, 3, 2, func(ctx context.Context, call int64, a *answerPipe) {
			switch {
			case call == 2:
				<-ctx.Done()
			case call == 3:
				answerWhole(a, true)
			case pause(ctx, time.Second):
				a.start(503, "text/plain")
			}
		}, "upstream_timeout hedge; upstream_error ; success retry; ", 3, 30 * time.Second},
		{"the first's, after the second has failed", streamBody, 3, 1, func(ctx context.Context, call int64, a *answerPipe) {
			switch {
			case call == 1:
				<-ctx.Done()
			case call == 3:
				answerWhole(a, true)
			case pause(ctx, time.Second):
				a.start(503, "text/plain")
			}
		}, "upstream_error hedge; upstream_timeout ; success retry; ", 3, 30 * time.Second},
		{"in the middle of an answer without a race", chatBody, 2, 1, func(ctx context.Context, call int64, a *answerPipe) {
			if call > 1 {
				answerWhole(a, false)
				return
			}
			a.start(200, "application/json")
			a.send("{")
			<-ctx.Done()
		}, "upstream_timeout ; success retry; ", 2, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				p, u, hang := racing(t, tt.hosts, func(ctx context.Context, call int64, a *answerPipe) {
					calls.Store(call)
					tt.serve(ctx, call, a)
				}, nil)
				time.AfterFunc(500*time.Millisecond, func() { hang(tt.hangs) })
				start := time.Now()
				res, _ := do(t, p, request(t, tt.body, to(u)))
				if got := told(res); got != tt.want || res.Outcome != Success || calls.Load() != tt.calls || time.Since(start) > tt.most {
					t.Errorf("%v after %v and %d calls: %q, want %q", res.Outcome, time.Since(start), calls.Load(), got, tt.want)
				}
				for _, e := range u.endpoints() {
					if n := len(e.calls.list()); n != 0 || e.inflight.Load() != 0 {
						t.Errorf("%s: %d calls are left, %d in flight", e.base, n, e.inflight.Load())
					}
				}
				if s := u.gate.Stats(); s.InFlight != 0 {
					t.Errorf("the gate has %+v", s)
				}
			})
		})
	}
}

// TestHedgeToTheCommitPoint: what comes before the first token wins no race,
// and keeps nobody from one.
func TestHedgeToTheCommitPoint(t *testing.T) {
	for name, early := range map[string]string{"a comment": ":\n\n", "a role": roleEvent} {
		for _, at := range []time.Duration{0, 300 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " after ", at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, u, _ := racing(t, 2, func(ctx context.Context, call int64, a *answerPipe) {
						if call == 1 {
							pause(ctx, at)
							a.start(200, "text/event-stream")
							a.send(early)
							<-ctx.Done()
							return
						}
						if pause(ctx, 500*time.Millisecond) {
							answerWhole(a, true)
						}
					}, nil)
					start := time.Now()
					res, rec := do(t, p, request(t, usageBody, to(u)))
					if got := told(res); got != "canceled ; success hedge; " || time.Since(start) != 700*time.Millisecond || rec.text() != wholeStream(2) {
						t.Fatalf("%q after %v, client got %q", got, time.Since(start), rec.text())
					}
					// The loser is metered as any cancelled call is.
					if a := res.Attempts[0]; a.HasUsage != (early == roleEvent) || a.HasUsage && (!a.Estimated || a.Usage.Input == 0) {
						t.Errorf("the loser: %+v", a)
					}
					clean(t, u)
				})
			})
		}
	}
}

// TestHedgeLoserIsMetered: the count that the server itself gave wins, also of
// the call that is dropped.
func TestHedgeLoserIsMetered(t *testing.T) {
	const counted = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}` + "\n\n"
	synctest.Test(t, func(t *testing.T) {
		p, u, _ := racing(t, 2, func(ctx context.Context, call int64, a *answerPipe) {
			if call == 1 {
				a.start(200, "text/event-stream")
				a.send(counted)
				<-ctx.Done()
				return
			}
			answerWhole(a, true)
		}, nil)
		res, _ := do(t, p, request(t, usageBody, to(u)))
		if told(res) != "canceled ; success hedge; " {
			t.Fatalf("%q", told(res))
		}
		if a := res.Attempts[0]; !a.HasUsage || a.Estimated || a.Usage.Input != 7 || a.Usage.Output != 1 {
			t.Errorf("%+v", a)
		}
	})
}

// TestHedgeErrorInTheStream: an error in a 200 is no answer.
func TestHedgeErrorInTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, u, _ := racing(t, 2, func(ctx context.Context, call int64, a *answerPipe) {
			pause(ctx, time.Duration(call)*300*time.Millisecond)
			if call == 1 {
				a.start(200, "text/event-stream")
				a.send(roleEvent + `data: {"error":{"message":"no","code":503}}` + "\n\n")
				return
			}
			answerWhole(a, true)
		}, nil)
		if res, _ := do(t, p, request(t, streamBody, to(u))); told(res) != "upstream_error ; success hedge; " {
			t.Errorf("%v %q", res.Outcome, told(res))
		}
	})
}

// TestHedgeBetweenBytes: a call that has nobody beside it has the time-outs of
// any other.
func TestHedgeBetweenBytes(t *testing.T) {
	for name, start := range map[string]func(a *answerPipe){
		"role, then silence": func(a *answerPipe) { a.start(200, "text/event-stream"); a.send(roleEvent) },
		"header of a whole":  func(a *answerPipe) { a.start(200, "application/json") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, u, _ := racing(t, 1, func(ctx context.Context, _ int64, a *answerPipe) {
					start(a)
					<-ctx.Done()
				}, func(c *Config) { c.Timeouts.BetweenBytes = 5 * time.Second })
				begun := time.Now()
				res, _ := do(t, p, request(t, streamBody, to(u)))
				if res.Outcome != Timeout || time.Since(begun) != 5*time.Second {
					t.Errorf("%v after %v", res.Outcome, time.Since(begun))
				}
			})
		})
	}
}

// TestHedgeSpeed: the time that the first call took is not the second server's.
func TestHedgeSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, u, _ := racing(t, 2, func(ctx context.Context, call int64, a *answerPipe) {
			if pause(ctx, map[bool]time.Duration{true: time.Minute, false: 50 * time.Millisecond}[call == 1]) {
				answerWhole(a, true)
			}
		}, func(c *Config) { c.Hedge.Min = 5 * time.Second })
		res, _ := do(t, p, request(t, streamBody, to(u)))
		if told(res) != "canceled ; success hedge; " || res.TTFT != 5050*time.Millisecond {
			t.Fatalf("%q, TTFT %v", told(res), res.TTFT)
		}
		for _, e := range u.endpoints() {
			if most, _ := e.speed.usual(1, time.Now()); most > 200*time.Millisecond {
				t.Errorf("%s is said to take %v", e.base, most)
			}
		}
	})
}

// TestHedgeIsAskedFor: a second call goes only to a target that still stands,
// and says once when it has left.
func TestHedgeIsAskedFor(t *testing.T) {
	for _, stands := range []bool{true, false} {
		t.Run(fmt.Sprint(stands), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls, left, asked atomic.Int64
				p, u, _ := racing(t, 2, func(ctx context.Context, call int64, a *answerPipe) {
					calls.Add(1)
					if call > 1 || pause(ctx, 5*time.Second) {
						answerWhole(a, true)
					}
				}, nil)
				r := request(t, streamBody, to(u))
				r.Beside = func(target Target) (func(), bool) {
					asked.Add(1)
					if target.Upstream != u {
						t.Errorf("asked for %+v", target)
					}
					return func() { left.Add(1) }, stands
				}
				res := p.Do(t.Context(), r, &recorder{})
				want := map[bool]int64{true: 1, false: 0}[stands]
				if res.Outcome != Success || asked.Load() != 1 || calls.Load() != 1+want || left.Load() != want {
					t.Errorf("%v, asked %d times, %d calls, left %d times", res.Outcome, asked.Load(), calls.Load(), left.Load())
				}
				clean(t, u)
			})
		})
	}
}

// TestHedgeProbesAreGivenBack: a place of a half-open breaker that a hedge took
// and did not use is free again.
func TestHedgeProbesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		p, u, _ := racing(t, 2, func(ctx context.Context, _ int64, a *answerPipe) {
			if !slow.Load() || pause(ctx, time.Second) {
				answerWhole(a, true)
			}
		}, func(c *Config) { c.Balance = balanceRound })
		e := u.endpoints()[1]
		for range 5 {
			turn, _ := e.guard.Begin(time.Now())
			turn.End(guard.Failure)
		}
		time.Sleep(8 * time.Second)
		for range 20 { // refused hedges of the healthy first
			r := request(t, streamBody, to(u))
			r.Beside = func(Target) (func(), bool) { return nil, false }
			slow.Store(true)
			for range leastSamples {
				u.endpoints()[0].speed.observe(time.Now(), 100*time.Millisecond, 1)
				e.speed.observe(time.Now(), 100*time.Millisecond, 1)
			}
			if res := p.Do(t.Context(), r, &recorder{}); res.Outcome != Success {
				t.Fatal(res.Outcome)
			}
		}
		if s := e.guard.State(time.Now()).Breaker; s == guard.Open || !e.guard.Available(time.Now()) {
			t.Errorf("%s, and no place is left", s)
		}
		clean(t, u)
	})
}
