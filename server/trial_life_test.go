package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
	"sluice/internal/fakellm"
	"sluice/router"
)

// TestTrialOfAHang: a variant that hangs is slow while it hangs, and a client
// that leaves after the threshold leaves a slow answer behind.
func TestTrialOfAHang(t *testing.T) {
	for _, tt := range []struct {
		name  string
		leave time.Duration
		want  map[string]guardrail.Counts
	}{
		{"left late", 3 * slowAfter, map[string]guardrail.Counts{"slow_ttfa": of(1, 1, 1), "error": of(0, 0, 1), "rejected": of(0, 0, 1)}},
		{"left early", slowAfter / 6, map[string]guardrail.Counts{"slow_ttfa": of(0, 0, 1), "error": of(0, 0, 1), "rejected": of(0, 0, 1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, `[{"metric":"error"},{"metric":"rejected"},{"metric":"slow_ttfa","threshold":"300ms"}]`, nil)
			b.canary.Set(fakellm.Behaviour{Fault: fakellm.Hang})
			ctx, cancel := context.WithTimeout(t.Context(), tt.leave)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(ask("hi", true)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-User-Id", "u1")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
				t.Fatal("it answered")
			}
			b.rec.wait(t, 1)
			if diff := cmp.Diff(tt.want, b.counts(1)); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("while it runs", func(t *testing.T) {
		b := newBench(t, `[{"metric":"slow_ttfa","threshold":"300ms"}]`, nil)
		b.canary.Set(fakellm.Behaviour{Fault: fakellm.Hang})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(ask("hi", true)))
			req.Header.Set("X-User-Id", "u1")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		})
		var sum guardrail.Counts
		for deadline := time.Now().Add(10 * time.Second); sum.N == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			c := b.counts(1)["slow_ttfa"]
			sum = of(sum.N+c.N, sum.K+c.K, sum.Started+c.Started)
		}
		if sum != of(1, 1, 1) {
			t.Errorf("%+v of a request that hangs, want one slow trial", sum)
		}
		cancel()
		wg.Wait()
		b.rec.wait(t, 1)
		if c := b.counts(1); len(c) != 0 {
			t.Errorf("it counts again when the client leaves: %+v", c)
		}
	})
}

// TestTrialOfABrokenStream: what breaks off is bad, and was taken in time.
func TestTrialOfABrokenStream(t *testing.T) {
	for _, f := range []fakellm.Fault{fakellm.Truncate, fakellm.Reset} {
		b := newBench(t, allGuardrails, nil)
		b.canary.Set(fakellm.Behaviour{Fault: f, After: 3, Tokens: 20})
		req, _ := http.NewRequest("POST", b.url+"/v1/chat/completions", strings.NewReader(ask("hi", true)))
		req.Header.Set("X-User-Id", "u1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		b.rec.wait(t, 1)
		want := map[string]guardrail.Counts{"error": of(1, 1, 1), "rejected": of(1, 0, 1), "slow_ttfa": of(1, 0, 1), "truncated": of(1, 1, 1),
			"empty": of(0, 0, 1), "finish_length": of(0, 0, 1)}
		if diff := cmp.Diff(want, b.counts(1)); diff != "" {
			t.Errorf("%s: %s", f, diff)
		}
	}
}

// TestTrialOfTheClientsOwnDeadline: a client that waits for a tenth of a second
// only is no fault of the server.
func TestTrialOfTheClientsOwnDeadline(t *testing.T) {
	b := newBench(t, `[{"metric":"error"},{"metric":"slow_ttfa","threshold":"300ms"}]`, nil)
	b.canary.Set(fakellm.Behaviour{Fault: fakellm.Hang})
	resp, body := b.post("/v1/chat/completions", ask("hi", true), "X-User-Id", "u1", "X-Request-Timeout", "0.1")
	if resp.StatusCode != 504 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	b.rec.wait(t, 1)
	tick := b.tick()
	if diff := cmp.Diff([]guardrail.Counts{of(0, 0, 1), of(0, 0, 1)}, tick.Variants[1].Counts[:2]); diff != "" || tick.Variants[1].Outside[trial.Withdrawn] != 1 {
		t.Errorf("%s outside: %v", diff, tick.Variants[1].Outside)
	}
}

// TestTrialsWithoutAServer: a server that is not there is not ready, which holds
// a ramp; one that is left alone because it failed has failed.
func TestTrialsWithoutAServer(t *testing.T) {
	t.Run("never came up", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, func(d *router.Document) { d.Upstreams[1].Endpoints = []string{"http://127.0.0.1:1/v1"} })
		if resp, body := b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1"); resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		b.rec.wait(t, 1)
		tick := b.tick().Variants[1]
		if tick.Counts[0] != of(0, 0, 1) || tick.Outside[trial.NotReady] != 1 {
			t.Errorf("%+v, outside %v", tick.Counts[0], tick.Outside)
		}
	})
	t.Run("went away", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, nil)
		b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u0")
		b.rec.wait(t, 1)
		b.tick()
		b.canary.Restart(time.Hour)
		const n = 12 // more than the endpoint's breaker takes
		for i := range n {
			b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", fmt.Sprint("u", i+1))
		}
		b.rec.wait(t, n+1)
		tick := b.tick().Variants[1]
		// The first may meet a connection that was kept.
		if c := tick.Counts[0]; c.N > 1 || c.Started != n || tick.Outside[trial.NotReady] < n-1 {
			t.Errorf("%+v, outside %v", c, tick.Outside)
		}
	})
	t.Run("keeps failing", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, nil)
		b.canary.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 500})
		const n = 12
		for i := range n {
			b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", fmt.Sprint("u", i))
		}
		b.rec.wait(t, n)
		if c := b.counts(1)["error"]; c != of(n, n, n) {
			t.Errorf("%+v, want %d errors, those that met an open breaker too", c, n)
		}
		if calls := b.canary.Counts().Calls; calls >= n {
			t.Errorf("%d calls: the breaker never opened", calls)
		}
	})
}

// TestTrialsOfChanges: what is decided again before the first byte is no trial
// of the variant that was left, and what is killed while it runs still ends.
func TestTrialsOfChanges(t *testing.T) {
	t.Run("killed during its first attempt", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, nil)
		b.canary.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
		var once sync.Once
		b.canary.OnCall(func(fakellm.Call, http.Header) { once.Do(func() { b.edit(killCanary) }) })
		resp, body := b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
		if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		b.rec.wait(t, 1)
		tick := b.tick()
		if c := tick.Variants[1].Counts[0]; c != of(1, 1, 1) {
			t.Errorf("canary %+v, want one error", c)
		}
		if c := tick.Variants[0].Counts[0]; c != (guardrail.Counts{}) {
			t.Errorf("baseline %+v: it stood in", c)
		}
	})
	t.Run("killed before", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, nil)
		b.edit(killCanary)
		b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
		b.rec.wait(t, 1)
		for v, a := range b.tick().Variants {
			if a.Counts[0] != (guardrail.Counts{}) {
				t.Errorf("variant %d has %+v: its users are no sample", v, a.Counts[0])
			}
		}
	})
	t.Run("weight 0", func(t *testing.T) {
		b := newBench(t, `[{"metric":"error"}]`, nil)
		b.edit(func(d *router.Document, rev int64) error {
			return router.SetWeights(d, rev, time.Now(), "exp", map[string]int{"control": 10000, "canary": 0})
		})
		b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
		b.rec.wait(t, 1)
		tick := b.tick()
		if c := tick.Variants[0].Counts[0]; c != of(1, 0, 1) {
			t.Errorf("baseline %+v, want the request of a bucket that it owns now", c)
		}
		if c := tick.Variants[1].Counts[0]; c != (guardrail.Counts{}) {
			t.Errorf("a variant of weight 0 has %+v", c)
		}
	})
}

// TestTrialOfAKillInTheQueue: who is called instead of a variant that was killed
// while its request waited says nothing of it.
func TestTrialOfAKillInTheQueue(t *testing.T) {
	b := newBench(t, `[{"metric":"error"}]`, func(d *router.Document) {
		d.Upstreams[1].Limits = &router.Limits{MaxInFlight: 1, MaxQueue: 1}
	})
	b.canary.Set(fakellm.Behaviour{Fault: fakellm.Hang})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	called := make(chan struct{}, 1)
	b.canary.OnCall(func(fakellm.Call, http.Header) { called <- struct{}{} })
	wg.Go(func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(ask("hi", true)))
		req.Header.Set("X-User-Id", "u1")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	})
	<-called
	wg.Go(func() {
		resp, body := b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u2")
		if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if e, _ := b.live.Load().Experiment("exp"); e.Variants[1].Target.Upstream.QueueStatus().Queued == 1 {
			break
		}
	}
	b.edit(killCanary)
	cancel()
	wg.Wait()
	b.rec.wait(t, 2)
	tick := b.tick()
	if c := tick.Variants[1].Counts[0]; c != of(0, 0, 2) {
		t.Errorf("canary %+v, outside %v: one client left, one was answered by the baseline", c, tick.Variants[1].Outside)
	}
	if c := tick.Variants[0].Counts[0]; c != (guardrail.Counts{}) {
		t.Errorf("baseline %+v", c)
	}
}
