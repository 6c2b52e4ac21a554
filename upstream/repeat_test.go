package upstream

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"sluice/upstream/wire"
)

// B056: the upstream closes a kept connection as the next request is written.
func TestStaleConnection(t *testing.T) { eachCarrier(t, staleConnection) }

func staleConnection(t *testing.T, o PoolOptions) {
	for _, tt := range []struct {
		name string
		end  func(*turn)
		body string
	}{
		{"FIN", (*turn).fin, chatBody},
		{"RST", (*turn).rst, chatBody},
		{"FIN large body", (*turn).fin, `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 300<<10) + `"}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := newPeer(t, nil)
			up.check = func(tn *turn) { tn.reply(404, "text/plain", "", "Connection: close"); tn.fin() }
			up.serve = func(tn *turn) {
				if tn.reuse {
					tt.end(tn)
					return
				}
				tn.reply(200, "application/json", okBody)
			}
			p, ups := poolWith(t, o, Config{Name: "a", Endpoints: []string{up.url()}})
			asked := 0
			for range 10 {
				r := request(t, tt.body, to(ups["a"]))
				next := r.Next
				r.Next = func(n int, last *Attempt, same bool) (Target, string, bool) { asked++; return next(n, last, same) }
				res, rec := do(t, p, r)
				if res.Outcome != Success || rec.text() != okBody || len(res.Attempts) != 1 {
					t.Fatalf("outcome %s, attempts %+v", res.Outcome, res.Attempts)
				}
			}
			if got := up.conns.Load(); got != 10 {
				t.Errorf("%d connections, want 10: the repeat takes a fresh one", got)
			}
			if asked != 19 {
				t.Errorf("Next was asked %d times, want 19: once before every send", asked)
			}
			if s := ups["a"].Status()[0]; s.LastError != "" || s.InFlight != 0 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// An upstream that closes fresh connections too is not asked for ever.
func TestStaleRepeatsOnce(t *testing.T) {
	up := newPeer(t, func(tn *turn) {
		if tn.n == 1 {
			tn.reply(200, "application/json", okBody)
			return
		}
		tn.fin()
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	do(t, p, request(t, chatBody, to(ups["a"])))
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if res.Outcome != Truncated || up.calls.Load() > 3 || !res.Attempts[0].Free {
		t.Errorf("outcome %s after %d calls, attempts %+v", res.Outcome, up.calls.Load(), res.Attempts)
	}
}

// B023: a server that does not know stream_options.
func TestStreamOptionsRefused(t *testing.T) {
	var fx struct {
		Request json.RawMessage `json:"client_request"`
		Seq     []struct {
			Status int
			Body   json.RawMessage
		} `json:"upstream_sequence"`
	}
	loadHTTP(t, "400_stream_options.json", &fx)
	sse := string(readFixture(t, "usage_empty_choices.sse"))
	up := newPeer(t, func(tn *turn) {
		if strings.Contains(string(tn.body), "stream_options") {
			tn.reply(fx.Seq[0].Status, "application/json", string(fx.Seq[0].Body))
			return
		}
		tn.head(200, "text/event-stream")
		tn.chunk(sse)
		tn.finish()
	})
	p, ups := pool(t, Config{Name: "a", Dialect: wire.OpenAI, Endpoints: []string{up.url()}})
	for i, calls := range []int64{2, 3} {
		res, rec := do(t, p, request(t, string(fx.Request), to(ups["a"])))
		if res.Outcome != Success || rec.text() != sse || up.calls.Load() != calls || len(res.Attempts) != 1 {
			t.Errorf("request %d: outcome %s, %d calls, attempts %q", i, res.Outcome, up.calls.Load(), outcomes(res))
		}
	}
	if s := ups["a"].Status()[0]; s.LastError != "" {
		t.Errorf("it counted against the endpoint: %s", s.LastError)
	}
	// A client's own stream_options get the upstream's refusal.
	res, _ := do(t, p, request(t, usageBody, to(ups["a"])))
	if res.Outcome != ClientError || res.Status != 400 || up.calls.Load() != 4 {
		t.Errorf("client's own: %s %d", res.Outcome, res.Status)
	}
	// A configuration change that keeps the dialect keeps what was learned.
	ups, err := p.Apply([]Config{{Name: "a", Endpoints: []string{up.url()}, ReqHeaders: []string{"x-a"}}})
	if err != nil {
		t.Fatal(err)
	}
	if res, _ = do(t, p, request(t, string(fx.Request), to(ups["a"]))); res.Outcome != Success || up.calls.Load() != 5 {
		t.Errorf("after a change: %s, %d calls", res.Outcome, up.calls.Load())
	}
}

// A refusal that only quotes the client teaches nothing.
func TestStreamOptionsInQuotedPrompt(t *testing.T) {
	var bad atomic.Bool
	bad.Store(true)
	up := newPeer(t, func(tn *turn) {
		if bad.Load() {
			tn.reply(400, "application/json", `{"error":{"message":"bad input: 'stream_options'","type":"BadRequestError","param":null,"code":400}}`)
			return
		}
		tn.head(200, "text/event-stream")
		tn.chunk(wholeStream(1))
		tn.finish()
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	res, _ := do(t, p, request(t, streamBody, to(ups["a"])))
	if res.Outcome != ClientError || res.Status != 400 || len(res.Attempts) != 1 || up.calls.Load() != 2 {
		t.Errorf("%+v after %d calls", res, up.calls.Load())
	}
	bad.Store(false)
	do(t, p, request(t, streamBody, to(ups["a"])))
	if !strings.Contains(string(up.last().body), "include_usage") {
		t.Error("usage is no longer asked for")
	}
}

// B052: a server that is loading.
func TestLoading(t *testing.T) {
	var fx struct {
		Upstream struct {
			Status int
			Body   json.RawMessage
		}
	}
	loadHTTP(t, "503_loading.json", &fx)
	loading := newPeer(t, func(tn *turn) { tn.reply(fx.Upstream.Status, "application/json", string(fx.Upstream.Body)) })
	good := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{loading.url()}}, Config{Name: "b", Endpoints: []string{good.url()}})
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if f := res.Failure; f.Status != 503 || f.RetryAfter == "" || string(f.Body) != string(fx.Upstream.Body) {
		t.Errorf("%+v", f)
	}
	if res, _ = do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"]))); res.Outcome != Success {
		t.Errorf("%s", res.Outcome)
	}
}

// A panic of the sink leaves nothing locked or in flight.
type panicSink struct{ recorder }

func (*panicSink) Commit(Meta) { panic("sink") }

func TestSinkPanics(t *testing.T) {
	up := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	for _, body := range []string{chatBody, usageBody} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			p.Do(context.Background(), request(t, body, to(ups["a"])), &panicSink{})
		}()
	}
	if n := ups["a"].Status()[0].InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}
