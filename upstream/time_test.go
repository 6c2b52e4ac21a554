package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// wirePipe is a carrier without sockets, so that time can be virtual. Checks
// pass unless check says otherwise; serve plays the upstream.
type wirePipe struct {
	serve func(ctx context.Context, host string, w *answerPipe)
	check func(r *http.Request) (int, error)
}

// answerPipe is the upstream's end of a call.
type answerPipe struct {
	head chan *http.Response
	*io.PipeWriter
	r *io.PipeReader
}

func (a *answerPipe) start(status int, contentType string) {
	a.head <- &http.Response{StatusCode: status, ContentLength: -1, Body: a.r,
		Header: http.Header{"Content-Type": {contentType}}}
}

func (a *answerPipe) send(s string) { io.WriteString(a, s) }

func (c *wirePipe) CloseIdleConnections() {}

func (c *wirePipe) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		status := 200
		if c.check != nil {
			var err error
			if status, err = c.check(r); err != nil {
				return nil, err
			}
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}}, nil
	}
	pr, pw := io.Pipe()
	a := &answerPipe{head: make(chan *http.Response, 1), PipeWriter: pw, r: pr}
	context.AfterFunc(r.Context(), func() { pr.CloseWithError(context.Cause(r.Context())) })
	go func() {
		c.serve(r.Context(), r.URL.Host, a)
		pw.CloseWithError(context.Cause(r.Context())) // nil: a clean end
	}()
	select {
	case resp := <-a.head:
		return resp, nil
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

// pause sleeps; false when the call has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (c *wirePipe) options() PoolOptions {
	return PoolOptions{carrier: func(carrierKey) (carrier, error) { return overNetHTTP(c, false), nil }}
}

// stamps records when the client got what, in seconds since the start.
type stamps struct {
	recorder
	start time.Time
	at    []string
}

func (s *stamps) Write(p []byte) error {
	what := "bytes"
	if bytes.Equal(p, comment) {
		what = "ping"
	}
	s.recorder.mu.Lock()
	s.at = append(s.at, time.Since(s.start).String()+" "+what)
	s.recorder.mu.Unlock()
	return s.recorder.Write(p)
}

func bothConfigs(t Timeouts) []Config {
	return []Config{
		{Name: "a", Endpoints: []string{"http://a/v1"}, Timeouts: t},
		{Name: "b", Endpoints: []string{"http://b/v1"}, Timeouts: t},
	}
}

func TestTimeouts(t *testing.T) {
	limits := Timeouts{FirstByte: 10 * time.Second, BetweenBytes: 5 * time.Second, Total: 60 * time.Second}
	silent := func(ctx context.Context) { <-ctx.Done() }
	tests := []struct {
		name     string
		body     string
		limits   Timeouts
		serve    func(ctx context.Context, w *answerPipe)
		after    time.Duration
		outcome  Outcome
		failover bool
	}{
		{"no header", chatBody, limits, func(ctx context.Context, w *answerPipe) { silent(ctx) }, 10 * time.Second, Timeout, true},
		{"header, then no event", usageBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			silent(ctx)
		}, 10 * time.Second, Timeout, true},
		{"only comments", usageBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			for pause(ctx, time.Second) {
				w.send(":\n\n")
			}
		}, 10 * time.Second, Timeout, true},
		{"unary body", chatBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "application/json")
			w.send("{")
			silent(ctx)
		}, 5 * time.Second, Timeout, true},
		{"role chunk, then silence", usageBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			w.send(roleEvent)
			silent(ctx)
		}, 5 * time.Second, Timeout, true},
		{"in the stream", usageBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			w.send(roleEvent + event("a", ""))
			time.Sleep(4 * time.Second)
			w.send(event("b", ""))
			silent(ctx)
		}, 9 * time.Second, Timeout, false},
		{"total", usageBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			w.send(event("a", ""))
			for pause(ctx, time.Second) {
				w.send(event("a", ""))
			}
		}, 60 * time.Second, Timeout, false},
		{"error body", chatBody, limits, func(ctx context.Context, w *answerPipe) {
			w.start(503, "text/plain")
			silent(ctx)
		}, 5 * time.Second, Timeout, true},
		{"switched off", usageBody, Timeouts{FirstByte: -1, BetweenBytes: -1, Total: -1}, func(ctx context.Context, w *answerPipe) {
			w.start(200, "text/event-stream")
			pause(ctx, time.Hour)
			w.send(wholeStream(1))
		}, time.Hour, Success, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
				c := &wirePipe{serve: func(ctx context.Context, host string, w *answerPipe) {
					if host == "b" {
						w.start(200, "text/event-stream")
						w.send(wholeStream(1))
						return
					}
					tt.serve(ctx, w)
				}}
				p, ups := poolWith(t, options(c), bothConfigs(tt.limits)...)
				start := time.Now()
				res, rec := do(t, p, request(t, tt.body, to(ups["a"])))
				// A timer that meets a write at the very moment looks again.
				if took := time.Since(start); res.Outcome != tt.outcome || took != tt.after && took != tt.after+busyRetry {
					t.Errorf("alone: %s after %v", res.Outcome, time.Since(start))
				}
				switch {
				case tt.outcome == Success:
				case len(rec.metas) > 0:
					if !res.Abort || len(rec.inband) != 1 || rec.inband[0].Code != "upstream_timeout" || !strings.HasPrefix(rec.text(), roleEvent) && !strings.HasPrefix(rec.text(), event("a", "")) {
						t.Errorf("in-band %+v, abort %v", rec.inband, res.Abort)
					}
				case res.Failure == nil || res.Failure.Status != 504 || res.Failure.Code != "upstream_timeout":
					t.Errorf("failure %+v", res.Failure)
				}
				res, _ = do(t, p, request(t, tt.body, to(ups["a"]), to(ups["b"])))
				if got := len(res.Attempts) == 2 && res.Outcome == Success; got != tt.failover {
					t.Errorf("with a fallback: attempts %q", outcomes(res))
				}
			})
		})
	}
}

// B007, B008: comments before and after the commit point, only between events.
func TestKeepAlive(t *testing.T) {
	inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
		half := event("b", "")[:30]
		c := &wirePipe{serve: func(ctx context.Context, _ string, w *answerPipe) {
			w.start(200, "text/event-stream")
			time.Sleep(100 * time.Second)
			w.send(roleEvent + event("a", ""))
			time.Sleep(40 * time.Second)
			w.send(half)
			time.Sleep(40 * time.Second) // no comment may come here
			w.send(event("b", "")[30:] + event("", "stop") + usageEvent + doneEvent)
		}}
		p, ups := poolWith(t, options(c), bothConfigs(Timeouts{})...)
		r := request(t, usageBody, to(ups["a"]))
		r.KeepAliveBefore, r.KeepAliveAfter = 45*time.Second, 15*time.Second
		s := &stamps{start: time.Now()}
		res := p.Do(context.Background(), r, s)
		want := "45s ping, 1m30s ping, 1m40s bytes, 1m55s ping, 2m10s ping, 2m20s bytes, 3m0s bytes"
		if got := strings.Join(s.at, ", "); got != want || res.Outcome != Success {
			t.Errorf("%s\nclient got %s\nwant       %s", res.Outcome, got, want)
		}
		if len(s.metas) != 1 || !s.metas[0].Stream || res.TTFT != 100*time.Second || res.Served.Upstream != ups["a"] {
			t.Errorf("commits %+v, TTFT %v", s.metas, res.TTFT)
		}
		if got := strings.ReplaceAll(s.text(), string(comment), ""); got != roleEvent+event("a", "")+event("b", "")+event("", "stop")+usageEvent+doneEvent {
			t.Errorf("client got %q", s.text())
		}
	})
}

// After a comment has opened the response failover still works, and what fails
// in the end is said in-band.
func TestFailoverAfterKeepAlive(t *testing.T) {
	for _, last := range []string{"ok", "503", "json", "gone"} {
		t.Run(last, func(t *testing.T) {
			inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
				c := &wirePipe{serve: func(ctx context.Context, host string, w *answerPipe) {
					if !pause(ctx, 50*time.Second) {
						return
					}
					switch {
					case host == "a" || last == "503":
						w.start(503, "text/plain")
					case last == "json":
						w.start(200, "application/json")
						w.send(okBody)
					default:
						w.start(200, "text/event-stream")
						w.send(wholeStream(1))
					}
				}}
				p, ups := poolWith(t, options(c), bothConfigs(Timeouts{})...)
				r := request(t, usageBody, to(ups["a"]), to(ups["b"]))
				r.KeepAliveBefore = 45 * time.Second
				rec := &recorder{}
				if last == "gone" {
					rec.onWrite = func(int) error { return errBroken }
				}
				res := p.Do(context.Background(), r, rec)
				if len(rec.metas) != 1 || rec.metas[0].Target.Upstream != ups["a"] || res.Failure != nil || !res.Committed {
					t.Fatalf("commits %+v, result %+v", rec.metas, res)
				}
				switch last {
				case "ok":
					if res.Outcome != Success || res.Served.Upstream != ups["b"] || rec.text() != strings.Repeat(string(comment), 2)+wholeStream(1) {
						t.Errorf("%+v, client got %q", res, rec.text())
					}
				case "gone":
					if res.Outcome != Canceled || len(res.Attempts) != 1 || !res.Abort {
						t.Errorf("%+v", res)
					}
				default:
					want := map[string]Outcome{"503": Error, "json": Invalid}[last]
					if res.Outcome != want || !res.Abort || len(rec.inband) != 1 || res.Status != 200 {
						t.Errorf("%+v, in-band %+v", res, rec.inband)
					}
				}
			})
		})
	}
}

// A slow client is not a silent upstream.
func TestSlowClientIsNotATimeout(t *testing.T) {
	inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
		c := &wirePipe{serve: func(ctx context.Context, _ string, w *answerPipe) {
			w.start(200, "text/event-stream")
			w.send(event("a", ""))
			w.send(event("b", ""))
			w.send(event("", "stop") + doneEvent)
		}}
		p, ups := poolWith(t, options(c), bothConfigs(Timeouts{BetweenBytes: 5 * time.Second})...)
		rec := &recorder{onWrite: func(int) error { time.Sleep(20 * time.Second); return nil }}
		if res := p.Do(context.Background(), request(t, usageBody, to(ups["a"])), rec); res.Outcome != Success {
			t.Errorf("%s", res.Outcome)
		}
	})
}

// B017: an upstream that stays open after [DONE] is left after 250 ms.
func TestDrainIsBounded(t *testing.T) {
	inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
		var cut time.Duration
		start := time.Now()
		var done sync.WaitGroup
		done.Add(1)
		c := &wirePipe{serve: func(ctx context.Context, _ string, w *answerPipe) {
			w.start(200, "text/event-stream")
			w.send(wholeStream(1))
			<-ctx.Done()
			cut = time.Since(start)
			done.Done()
		}}
		p, ups := poolWith(t, options(c), bothConfigs(Timeouts{})...)
		res, _ := do(t, p, request(t, usageBody, to(ups["a"])))
		if res.Outcome != Success || time.Since(start) != 0 {
			t.Errorf("%s after %v", res.Outcome, time.Since(start))
		}
		done.Wait()
		if cut != drainTime {
			t.Errorf("cut after %v", cut)
		}
	})
}

// The states of an endpoint over time: the first check decides alone, then
// three down and two up.
func TestHysteresis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var status int
		var err error
		var mu sync.Mutex
		set := func(s int, e error) { mu.Lock(); status, err = s, e; mu.Unlock() }
		c := &wirePipe{check: func(*http.Request) (int, error) { mu.Lock(); defer mu.Unlock(); return status, err }}
		set(503, nil)
		p, ups := poolWith(t, c.options(), Config{Name: "a", Endpoints: []string{"http://a"}, Readiness: Readiness{Interval: 10 * time.Second}})
		e := ups["a"].endpoints()[0]
		after := func(d time.Duration, ready bool, state string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			st := ups["a"].Status()[0]
			if st.Ready != ready || st.State != state {
				t.Errorf("at %v: %+v, want ready %v, %s", time.Now(), st, ready, state)
			}
		}
		after(0, false, stateLoading)
		if !ups["a"].FirstCheckDone() {
			t.Error("the first check is not done")
		}
		set(200, nil)
		after(12*time.Second, false, stateLoading) // one success
		after(11*time.Second, true, stateReady)
		set(0, errors.New("refused"))
		after(22*time.Second, true, stateReady) // two failures
		after(11*time.Second, false, stateUnreachable)
		if !e.panic.Load() {
			t.Error("an endpoint that was ready and stopped answering is for panic mode")
		}
		set(503, nil)
		after(11*time.Second, false, stateLoading)
		if e.panic.Load() {
			t.Error("one that says it is loading is not")
		}
		set(200, nil)
		after(25*time.Second, true, stateReady)
		// B063: a check without an answer does not evict one that answers calls.
		set(0, context.DeadlineExceeded)
		for range 12 {
			e.alive(time.Now())
			after(5*time.Second, true, stateReady)
		}
		p.Close()
	})
}

func TestReadyWaitsAtMostTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &wirePipe{check: func(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() }}
		p := NewPool(c.options())
		defer p.Close()
		if _, err := p.Apply([]Config{{Name: "a", Endpoints: []string{"http://a"}}}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if p.Ready(context.Background(), time.Minute) || time.Since(start) != 2*time.Second {
			t.Errorf("after %v", time.Since(start))
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if p.Ready(ctx, time.Minute) {
			t.Error("ready")
		}
		time.Sleep(10 * time.Second) // the check's own time-out
		if !p.Ready(context.Background(), 0) {
			t.Error("not ready although every first check has returned")
		}
	})
}
