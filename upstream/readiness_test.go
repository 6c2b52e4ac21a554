package upstream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// A server whose process stands still, but whose kernel takes connections, is
// evicted within the documented time: down checks of 5 s (SGLang 10 s), one
// more for a sign of life just before, and one interval.
func TestHungServerIsEvicted(t *testing.T) {
	for d, limit := range map[wire.Dialect]time.Duration{wire.VLLM: 22 * time.Second, wire.SGLang: 42 * time.Second} {
		t.Run(string(d), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s script
				s.serve(map[string]string{"GET /health": ""})
				p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: d, Endpoints: []string{"http://a"}})
				defer p.Close()
				after(t, ups["a"], 10*time.Second, stateReady, "")
				s.hang()
				ups["a"].endpoints()[0].alive(time.Now())
				start := time.Now()
				for ups["a"].Ready() && time.Since(start) < time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				if got := time.Since(start); got > limit+time.Second || got < 10*time.Second {
					t.Errorf("evicted after %v, want at most %v", got, limit)
				}
				after(t, ups["a"], 0, stateUnreachable, "timed out")
				if !ups["a"].endpoints()[0].panic.Load() {
					t.Error("it is not for panic mode, although its check only stopped answering")
				}
			})
		})
	}
}

// B063: checks that take 6 s on busy servers evict none of them while requests
// are answered, be it two of three or all of them.
func TestBusyServersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		serve := func(slow int) {
			s.on(func(ctx context.Context, r *h1.Request) (int, string, error) {
				if int(r.URL.Host[0]-'a') < slow {
					select {
					case <-time.After(6 * time.Second):
					case <-ctx.Done():
						return 0, "", ctx.Err()
					}
				}
				return 200, "", nil
			})
		}
		serve(0)
		p, ups := poolWith(t, s.options(), Config{Name: "u", Dialect: wire.VLLM, Endpoints: []string{"http://a", "http://b", "http://c"}})
		defer p.Close()
		for slow := 2; slow <= 3; slow++ {
			serve(slow)
			for range 60 {
				time.Sleep(time.Second)
				for _, e := range ups["u"].endpoints() {
					e.alive(time.Now())
				}
			}
			for _, st := range ups["u"].Status() {
				if !st.Ready {
					t.Errorf("with %d slow: %+v", slow, st)
				}
			}
		}
	})
}

// A sleeping or paused vLLM passes its health check and would let requests hang.
func TestSleepAndPause(t *testing.T) {
	metrics := func(awake int) string {
		return fmt.Sprintf("vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} %d.0\n", awake)
	}
	ok := func(pages map[string]string) map[string]string {
		pages["GET /health"] = ""
		return pages
	}
	tests := []struct {
		name   string
		steps  []map[string]string
		states []string
		reason []string
	}{
		{"dev mode", []map[string]string{
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":false}`, "GET /is_paused": `{"is_paused":false}`}),
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":true}`, "GET /is_paused": `{"is_paused":true}`}),
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":false}`, "GET /is_paused": `{"is_paused":true}`}),
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":false}`, "GET /is_paused": `{"is_paused":false}`}),
		}, []string{stateReady, stateAsleep, stateAsleep, stateReady}, []string{"", "asleep", "paused", ""}},
		{"dev mode of an older version", []map[string]string{
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":false}`}),
			ok(map[string]string{"GET /is_sleeping": `{"is_sleeping":true}`}),
		}, []string{stateReady, stateAsleep}, []string{"", "asleep"}},
		{"metrics", []map[string]string{
			ok(map[string]string{"GET /metrics": metrics(1)}),
			ok(map[string]string{"GET /metrics": metrics(0)}),
			ok(map[string]string{"GET /metrics": metrics(1)}),
		}, []string{stateReady, stateAsleep, stateReady}, []string{"", "asleep", ""}},
		{"own path", []map[string]string{
			{"GET /ready": "", "GET /is_sleeping": `{"is_sleeping":true}`},
			{"GET /ready": "", "GET /is_sleeping": `{"is_sleeping":false}`},
		}, []string{stateAsleep, stateReady}, []string{"asleep", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s script
				s.serve(tt.steps[0])
				c := Config{Name: "a", Dialect: wire.VLLM, Endpoints: []string{"http://a"}}
				if tt.name == "own path" {
					c.Readiness.Path = "/ready"
				}
				p, ups := poolWith(t, s.options(), c)
				defer p.Close()
				for i, pages := range tt.steps {
					s.serve(pages)
					after(t, ups["a"], 5*time.Second, tt.states[i], tt.reason[i]) // at once asleep, two checks to come back
				}
			})
		})
	}
}

const oneModel = `{"object":"list","data":[{"id":"base"},{"id":"lora"}]}`

// warmServer answers checks, lists models and lets f answer completions.
func warmServer(s *script, f func(ctx context.Context, body string) (int, string, error)) {
	s.on(func(ctx context.Context, r *h1.Request) (int, string, error) {
		switch r.Method + " " + r.URL.Path {
		case "GET /health":
			return 200, "", nil
		case "GET /v1/models":
			return 200, oneModel, nil
		case "POST /v1/chat/completions":
			return f(ctx, string(r.Body))
		}
		return 404, "", nil
	})
}

// An endpoint gets no request before its warm-up completions have succeeded; it
// is warmed again when it may have been restarted, and only then.
func TestWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		slow := func(ctx context.Context, body string) (int, string, error) {
			if !strings.Contains(body, `"model":"base"`) || !strings.Contains(body, `"max_tokens":1`) {
				t.Errorf("body %s", body)
			}
			select {
			case <-time.After(3 * time.Second):
				return 200, okBody, nil
			case <-ctx.Done():
				return 0, "", ctx.Err()
			}
		}
		warmServer(&s, slow)
		p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: wire.TGI, Warmup: 2, Endpoints: []string{"http://a"}})
		defer p.Close()
		u := ups["a"]
		after(t, u, time.Second, stateWarming, "warm-up completions")
		if !u.FirstCheckDone() {
			t.Error("the first check is not done while it warms")
		}
		if u.pick(ask{}) != nil {
			t.Error("it got a request while warming")
		}
		after(t, u, 4900*time.Millisecond, stateWarming, "")
		after(t, u, 200*time.Millisecond, stateReady, "")
		posts := func(n int) {
			t.Helper()
			if got := s.count("POST"); got != n {
				t.Errorf("%d warm-up completions, want %d", got, n)
			}
		}
		posts(2)
		after(t, u, time.Minute, stateReady, "")
		posts(2)

		// Failing is no restart.
		s.on(func(context.Context, *h1.Request) (int, string, error) { return 500, "", nil })
		after(t, u, 10*time.Second, stateFailing, "500")
		warmServer(&s, slow)
		after(t, u, 5*time.Second, stateReady, "")
		posts(2)

		// A blip is none either.
		s.refuse()
		after(t, u, 3*time.Second, stateReady, "")
		warmServer(&s, slow)
		after(t, u, 10*time.Second, stateReady, "")
		posts(2)

		for n, away := range []func(){s.refuse, func() {
			s.on(func(context.Context, *h1.Request) (int, string, error) { return 503, "", nil })
		}} {
			away()
			after(t, u, 10*time.Second, []string{stateUnreachable, stateLoading}[n], "")
			warmServer(&s, slow)
			after(t, u, 5*time.Second, stateWarming, "")
			after(t, u, 7*time.Second, stateReady, "")
			posts(4 + 2*n)
		}
		if s.most != 1 {
			t.Errorf("%d warm-up completions at once", s.most)
		}
	})
}

// A warm-up that fails keeps the endpoint from traffic, says why, and is tried
// again after a growing pause; a completion that hangs ends.
func TestWarmupFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		answers := func(status int, body string) {
			warmServer(&s, func(context.Context, string) (int, string, error) { return status, body, nil })
		}
		answers(500, "secret text")
		p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: wire.TGI, Warmup: 3, Endpoints: []string{"http://a"}})
		defer p.Close()
		u := ups["a"]
		after(t, u, time.Second, stateWarming, "the warm-up failed: a completion was answered with status 500")
		after(t, u, 10*time.Minute, stateWarming, "500")
		if n := s.count("POST"); n < 18 || n > 30 {
			t.Errorf("%d tries in 10 minutes", n)
		}
		for _, bad := range []string{"", "<html>", `{"error":{"message":"secret"}}`, "data: {}\n\n"} {
			answers(200, bad)
			after(t, u, 40*time.Second, stateWarming, "200 and no completion")
		}
		// Hanging: bounded by a minute, while checks go on and cannot evict.
		warmServer(&s, func(ctx context.Context, _ string) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() })
		after(t, u, 100*time.Second, stateWarming, "timed out")
		answers(200, okBody)
		after(t, u, 100*time.Second, stateReady, "")
		if u.endpoints()[0].panic.Load() || s.most != 1 {
			t.Error("panic, or two at once")
		}
	})
}

// Which model the warm-up asks for, and what happens when nobody can say.
func TestWarmupModel(t *testing.T) {
	for _, tt := range []struct {
		name, list string
		status     int
		state      string
		posts      int
	}{
		{"first listed", oneModel, 200, stateReady, 1},
		{"no list", "", 404, stateReady, 0},
		{"not allowed to list", "", 401, stateReady, 0},
		{"empty list", `{"data":[]}`, 200, stateReady, 0},
		{"nonsense", `[]`, 200, stateReady, 0},
		{"list fails", "", 500, stateWarming, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s script
				s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
					switch r.URL.Path {
					case "/v1/models":
						return tt.status, tt.list, nil
					case "/v1/chat/completions":
						return 200, okBody, nil
					}
					return 200, "", nil
				})
				p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: wire.LlamaCPP, Warmup: 1, Endpoints: []string{"http://a"}})
				defer p.Close()
				after(t, ups["a"], time.Second, tt.state, "")
				if n := s.count("POST"); n != tt.posts {
					t.Errorf("%d completions, want %d", n, tt.posts)
				}
			})
		})
	}
}

// A configuration change neither warms what is ready nor leaves a warm-up
// behind; the end of the pool ends one that runs.
func TestWarmupOverConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		warmServer(&s, func(ctx context.Context, _ string) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() })
		c := Config{Name: "a", Dialect: wire.TGI, Endpoints: []string{"http://a"}}
		p, ups := poolWith(t, s.options(), c)
		after(t, ups["a"], time.Second, stateReady, "")
		c.Warmup = 1
		ups, err := p.Apply([]Config{c})
		if err != nil {
			t.Fatal(err)
		}
		after(t, ups["a"], time.Minute, stateReady, "")
		if s.count("POST") != 0 {
			t.Error("a ready endpoint was warmed")
		}
		s.refuse()
		after(t, ups["a"], 10*time.Second, stateUnreachable, "")
		warmServer(&s, func(ctx context.Context, _ string) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() })
		after(t, ups["a"], 10*time.Second, stateWarming, "")
		p.Close()
		if s.open != 0 {
			t.Error("the warm-up outlived its pool")
		}
	})
}

// An endpoint that lacks the request's model is no candidate while another has it.
func TestServedModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		const both, base = oneModel, `{"data":[{"id":"base"}]}`
		serve := func(a, b string) {
			lists := map[string]string{"a": a, "b": b, "c": ""}
			s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
				switch l := lists[r.URL.Host]; {
				case l == "down":
					return 503, "", nil
				case r.URL.Path != "/v1/models":
					return 200, "", nil
				case l == "":
					return 404, "", nil
				default:
					return 200, l, nil
				}
			})
		}
		serve(both, base)
		p, ups := poolWith(t, s.options(), Config{Name: "u", Dialect: wire.VLLM, Endpoints: []string{"http://a", "http://b", "http://c"}})
		defer p.Close()
		u := ups["u"]
		check := func(what, model string, want ...bool) {
			t.Helper()
			for i, n := range spread(u, 200, ask{model: model}) {
				if (n > 0) != want[i] {
					t.Errorf("%s: endpoint %d was picked %d times", what, i, n)
				}
			}
		}
		check("b lacks it, c does not say", "lora", true, false, true)
		check("all that say have it", "base", true, true, true)
		check("nobody lists it", "other", true, true, true)
		check("without a model", "", true, true, true)
		serve(both, both)
		time.Sleep(20 * time.Second)
		check("loaded later", "lora", true, true, true)
		serve(both, base)
		time.Sleep(20 * time.Second)
		check("unloaded", "lora", true, false, true)
		serve("down", base)
		time.Sleep(20 * time.Second)
		check("the one that had it is down", "lora", false, true, true)
	})
}
