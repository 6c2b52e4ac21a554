package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/experiment/ramp"
	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// rampYAML is a canary with a fallback, on two servers of each version; the ramp is to be filled in.
const rampYAML = `
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "%[1]s" }
redis: { url: "%[2]s" }
data_dir: "%%DIR%%/data-%%DATA%%"
resources:
  upstreams:
    - { name: v1, dialect: vllm, endpoints: [%[3]s], limits: { max_in_flight: 400 }, timeouts: { first_byte: 6s } }
    - { name: v2, dialect: vllm, endpoints: [%[4]s], limits: { max_in_flight: 400 }, timeouts: { first_byte: 6s } }
  models: [ { name: chat, default: { upstream: v1, model: m } } ]
  experiments:
    - key: chat-v2
      model: chat
      kind: canary
      state: draft
      unit: { from: ["header:x-user-id"] }
      baseline: control
      variants:
        - { name: control, weight: 10000, upstream: v1, model: m }
        - { name: canary, weight: 0, upstream: v2, model: m, fallback: control }
      ramp: %[5]s
`

// rollout is three replicas before a baseline and a canary, under a steady load.
type rollout struct {
	t      *testing.T
	gs     []*gateway
	redis  *testenv.RedisServer
	v1, v2 [2]*fakellm.Server
	crowd  crowd
}

// answering is a healthy server.
var answering = fakellm.Behaviour{Tokens: 6, TTFT: 30 * time.Millisecond, Gap: 2 * time.Millisecond}

func startRollout(t *testing.T, policy string) *rollout {
	t.Helper()
	r := &rollout{t: t, redis: testenv.Redis(t)}
	for i := range 2 {
		r.v1[i] = fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"m"}, Default: answering})
		r.v2[i] = fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"m"}, Default: answering})
	}
	yaml := fmt.Sprintf(rampYAML, testenv.Postgres(t), r.redis.URL, quoted(r.v1[:]...), quoted(r.v2[:]...), policy)
	for range 3 {
		r.gs = append(r.gs, serve(t, t.TempDir(), yaml))
	}
	return r
}

// canary and everything script the servers.
func (r *rollout) canary(b fakellm.Behaviour) {
	for _, s := range r.v2 {
		s.Set(b)
	}
}

func (r *rollout) everything(b fakellm.Behaviour) {
	r.canary(b)
	for _, s := range r.v1 {
		s.Set(b)
	}
}

func (r *rollout) canaryCalls() int64 { return r.v2[0].Counts().Calls + r.v2[1].Counts().Calls }

// at is a replica that lives.
func (r *rollout) at() *gateway {
	for _, g := range r.gs {
		if g.cmd.ProcessState == nil {
			return g
		}
	}
	r.t.Fatal("no replica lives")
	return nil
}

func (r *rollout) report() (rep ramp.Report) {
	r.t.Helper()
	r.at().admin("GET", "/experiments/chat-v2/ramp", "", &rep)
	return rep
}

func (r *rollout) verb(verb, body string) {
	r.t.Helper()
	for try := range 20 { // the controller writes too
		g := r.at()
		etag := g.admin("GET", "/experiments/chat-v2", "", nil).Header.Get("ETag")
		var out json.RawMessage
		switch resp := g.admin("POST", "/experiments/chat-v2:"+verb, body, &out, "If-Match", etag); {
		case resp.StatusCode == 200:
			return
		case resp.StatusCode != 412 || try == 19:
			r.t.Fatalf("%s: %d %s", verb, resp.StatusCode, out)
		}
	}
}

// wait waits for the report to be so.
func (r *rollout) wait(what string, most time.Duration, ok func(ramp.Report) bool) ramp.Report {
	r.t.Helper()
	for end := time.Now().Add(most); ; time.Sleep(50 * time.Millisecond) {
		rep := r.report()
		if ok(rep) {
			return rep
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(rep, "", " ")
			r.t.Fatalf("%s: not after %s: %s\n%s", what, most, rep.Decision.Text, b)
		}
	}
}

// begin starts the rollout and waits for some evidence of its first step.
func (r *rollout) begin() {
	r.t.Helper()
	r.verb("start", `{"reason":"test"}`)
	r.wait("the first step", 90*time.Second, func(rep ramp.Report) bool {
		return rep.State == "running" && rep.Step == 0 && rep.Ticks >= 4
	})
}

// crowd is an open loop of requests of uneven users, every other one streamed.
type crowd struct {
	sent, failed, useless, canary atomic.Int64
	mu                            sync.Mutex
	example                       string // of a failure
}

const (
	rolloutRate  = 200 // requests a second
	rolloutUsers = 2000
)

// drive sends until the test ends, or until what it returns is called.
func (r *rollout) drive() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 30 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second / rolloutRate)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			wg.Go(func() { r.crowd.one(ctx, client, r.gs, i) })
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait(); client.CloseIdleConnections() })
	r.t.Cleanup(stop)
	return stop
}

// one sends a request; a replica that is not there is left out, as by a balancer.
func (l *crowd) one(ctx context.Context, c *http.Client, gs []*gateway, i int) {
	x := rand.Float64()
	user := fmt.Sprintf("user-%d", int(x*x*rolloutUsers))
	body := chatBody("how are you today", i%2 == 0)
	for try := range gs {
		req, _ := http.NewRequestWithContext(ctx, "POST", gs[(i+try)%len(gs)].Data+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-User-Id", user)
		resp, err := c.Do(req)
		if err != nil && (strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "EOF")) && try+1 < len(gs) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		l.sent.Add(1)
		if err != nil {
			l.fail(err.Error())
			return
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if ctx.Err() != nil {
			return
		}
		if resp.Header.Get("X-Sluice-Variant") == "canary" {
			l.canary.Add(1)
		}
		whole := i%2 == 1 || strings.Contains(string(text), "[DONE]")
		switch {
		case resp.StatusCode != 200 || err != nil || !whole:
			l.fail(fmt.Sprintf("%d %v %s", resp.StatusCode, err, text))
		case !strings.Contains(string(text), `"content":"`) || strings.Count(string(text), `"content":""`) == strings.Count(string(text), `"content":"`):
			l.useless.Add(1)
		}
		return
	}
}

func (l *crowd) fail(text string) {
	l.failed.Add(1)
	l.mu.Lock()
	l.example = text
	l.mu.Unlock()
}

// long tests of rollouts run with SLUICE_ROLLOUT=1 (make rollouts).
func longRollout(t *testing.T) {
	t.Helper()
	if os.Getenv("SLUICE_ROLLOUT") == "" {
		t.Skip("takes minutes; make rollouts runs it")
	}
}

// TestBadCanariesAreRolledBack breaks a canary at its 5 % step in the ways of
// LLM servers, under 200 requests a second on three replicas, and tells how long
// and how many answers of the canary it took. Without SLUICE_ROLLOUT it does so
// for two of them.
func TestBadCanariesAreRolledBack(t *testing.T) {
	r := startRollout(t, `{ steps: [500, 10000], min_duration: 20s, max_duration: 20m, min_units: 50, cooldown: 0s, ready: { probes: 3, interval: 200ms } }`)
	r.drive()
	with := func(change func(*fakellm.Behaviour)) fakellm.Behaviour {
		b := answering
		change(&b)
		return b
	}
	for _, c := range []struct {
		name string
		b    fakellm.Behaviour
		most time.Duration
		// hidden: no client sees a failure, since the baseline answers instead.
		hidden, long bool
	}{
		{"every request 500", with(func(b *fakellm.Behaviour) { b.Fault, b.Status = fakellm.Status, 500 }), 20 * time.Second, true, false},
		{"wrong served name, 404", with(func(b *fakellm.Behaviour) { b.Fault = fakellm.Unserved }), 20 * time.Second, true, true},
		{"every request 400", with(func(b *fakellm.Behaviour) { b.Fault, b.Status = fakellm.Status, 400 }), 20 * time.Second, false, true},
		{"20 % of requests 500", with(func(b *fakellm.Behaviour) { b.Fault, b.Status, b.Odds = fakellm.Status, 500, 0.2 }), 60 * time.Second, true, true},
		{"slow first answers only", with(func(b *fakellm.Behaviour) { b.TTFT = 1500 * time.Millisecond }), 40 * time.Second, true, false},
		{"empty answers only", with(func(b *fakellm.Behaviour) { b.Fault = fakellm.Blank }), 40 * time.Second, true, true},
		{"hang", with(func(b *fakellm.Behaviour) { b.Fault = fakellm.Hang }), 40 * time.Second, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long {
				longRollout(t)
			}
			r.t = t
			r.canary(answering)
			r.begin()
			r.crowd.failed.Store(0)
			r.crowd.useless.Store(0)
			calls, answers, from := r.canaryCalls(), r.crowd.canary.Load(), time.Now()
			r.canary(c.b)
			rep := r.wait("the rollback", c.most, func(rep ramp.Report) bool { return rep.State == "rolled_back" })
			took := time.Since(from)
			calls = r.canaryCalls() - calls
			answers = r.crowd.canary.Load() - answers
			time.Sleep(7 * time.Second) // what hangs ends at first_byte
			t.Logf("rolled back after %.1f s: %d calls of the canary's servers, %d answers of the canary; %d failures and %d useless answers seen by clients: %s",
				took.Seconds(), calls, answers, r.crowd.failed.Load(), r.crowd.useless.Load(), rep.Decision.Text)
			if c.hidden && r.crowd.failed.Load() > 0 {
				t.Errorf("%d clients saw a failure: %s", r.crowd.failed.Load(), r.crowd.example)
			}
			if rep.Decision.Text == "" {
				t.Error("no reason in words")
			}
			after := r.canaryCalls()
			time.Sleep(time.Second)
			if n := r.canaryCalls() - after; n > 0 {
				t.Errorf("%d calls of the canary after the rollback", n)
			}
		})
	}
}

// TestSharedOutageHolds fails both versions alike: the canary is not blamed, and
// goes on when both are back.
func TestSharedOutageHolds(t *testing.T) {
	longRollout(t)
	r := startRollout(t, `{ steps: [500, 10000], min_duration: 20s, max_duration: 20m, min_units: 50, ready: { probes: 3, interval: 200ms } }`)
	r.drive()
	r.begin()
	outage := answering
	outage.Fault, outage.Status, outage.Odds = fakellm.Status, 500, 0.6
	r.everything(outage)
	held := r.wait("the hold", 60*time.Second, func(rep ramp.Report) bool { return rep.Phase == ramp.Holding || rep.State != "running" })
	t.Logf("held: %s", held.Decision.Text)
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if rep := r.report(); rep.State != "running" {
			t.Fatalf("%s: %s", rep.State, rep.Decision.Text)
		}
	}
	r.everything(answering)
	rep := r.wait("it goes on", 3*time.Minute, func(rep ramp.Report) bool { return rep.Phase == ramp.Ramping || rep.State != "running" })
	if rep.State != "running" {
		t.Errorf("%s: %s", rep.State, rep.Decision.Text)
	}
}

// TestHealthyCanaryReachesEverybody walks away, and kills the leader in the
// middle of a step.
func TestHealthyCanaryReachesEverybody(t *testing.T) {
	longRollout(t)
	r := startRollout(t, `{ steps: [500, 2000, 5000, 10000], min_duration: 10s, max_duration: 20m, min_units: 50, bake: 10s, holdback: 0, ready: { probes: 3, interval: 200ms } }`)
	r.drive()
	r.begin()
	from := time.Now()
	leader := r.report().Leader
	for _, g := range r.gs {
		if strings.Contains(g.Log(), "leads the rollouts") {
			g.cmd.Process.Kill()
			<-g.done
			g.done <- nil
			break
		}
	}
	next := r.wait("another leads", 20*time.Second, func(rep ramp.Report) bool { return rep.Leader != leader && rep.Supervised })
	cut := r.crowd.failed.Swap(0) // streams through the process that was killed
	t.Logf("kill -9 of the leader: another reports after %.1f s, in step %d; %d answers were cut with it", time.Since(from).Seconds(), next.Step, cut)
	if next.Step != 0 {
		t.Errorf("the next leader begins with step %d", next.Step)
	}
	step := 0
	rep := r.wait("the promotion", 20*time.Minute, func(rep ramp.Report) bool {
		if rep.Step != step && rep.State == "running" {
			t.Logf("after %.0f s: step %d: %s", time.Since(from).Seconds(), rep.Step, rep.Decision.Text)
			step = rep.Step
		}
		return rep.State != "running"
	})
	t.Logf("after %.0f s: %s: %s; %d requests, %d failed", time.Since(from).Seconds(), rep.State, rep.Decision.Text, r.crowd.sent.Load(), r.crowd.failed.Load())
	if rep.State != "promoted" || r.crowd.failed.Load() > 0 {
		t.Errorf("%s, %d failed: %s", rep.State, r.crowd.failed.Load(), r.crowd.example)
	}
}

// TestNoTrafficNeverPromotes: without requests it does not begin; when they end in
// the middle of a step it holds, then it pauses.
func TestNoTrafficNeverPromotes(t *testing.T) {
	longRollout(t)
	r := startRollout(t, `{ steps: [500, 10000], min_duration: 10s, max_duration: 60s, no_data_after: 5s, min_units: 20, ready: { probes: 3, interval: 200ms } }`)
	r.verb("start", `{"reason":"test"}`)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if rep := r.report(); rep.Step >= 0 || rep.State != "running" {
			t.Fatalf("without traffic: %s, step %d: %s", rep.State, rep.Step, rep.Decision.Text)
		}
	}
	stop := r.drive()
	r.wait("the first step", time.Minute, func(rep ramp.Report) bool { return rep.Step == 0 && rep.Ticks >= 4 })
	stop()
	rep := r.wait("it holds", time.Minute, func(rep ramp.Report) bool { return rep.Phase == ramp.Holding })
	t.Logf("held: %s", rep.Decision.Text)
	rep = r.wait("it pauses", 2*time.Minute, func(rep ramp.Report) bool { return rep.State == "paused" || rep.Step > 0 })
	t.Logf("%s: %s", rep.State, rep.Decision.Text)
	if rep.Step > 0 || rep.State != "paused" {
		t.Errorf("%s at step %d", rep.State, rep.Step)
	}
}
