package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// TestKillReachesEveryReplica kills the variant of one experiment after another
// and measures, with requests of a user of it, when the last of three replicas
// has stopped giving it. SLUICE_CHANGES=200 is the long form.
func TestKillReachesEveryReplica(t *testing.T) {
	n := 12
	if v, err := strconv.Atoi(os.Getenv("SLUICE_CHANGES")); err == nil {
		n = v
	}
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	head, one, _ := strings.Cut(pairYAML, "  models:")
	one = one[strings.Index(one, "    - key:"):]
	var models, experiments strings.Builder
	for i := range n {
		fmt.Fprintf(&models, "\n    - { name: chat-%d, default: { upstream: v1, model: m } }", i)
		experiments.WriteString(strings.NewReplacer("chat-v2", fmt.Sprintf("exp-%d", i), "model: chat\n", fmt.Sprintf("model: chat-%d\n", i), "kind: ab", "kind: canary").Replace(one))
	}
	yaml := fmt.Sprintf(head, pg, redis.URL, quoted(v1), quoted(v2)) + "  models:" + models.String() + "\n  experiments:\n" + experiments.String()
	yaml = strings.ReplaceAll(yaml, "%%", "%")
	var gs []*gateway
	for range 3 {
		gs = append(gs, serve(t, t.TempDir(), yaml))
	}
	ask := func(g *gateway, i int, user string) string {
		body, _ := json.Marshal(map[string]any{"model": fmt.Sprintf("chat-%d", i), "messages": []any{map[string]string{"role": "user", "content": "[[tokens:1]]"}}})
		req, _ := http.NewRequest("POST", g.Data+"/v1/chat/completions", strings.NewReader(string(body)))
		req.Header.Set("X-User-Id", user)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", body, resp.Status)
		}
		return resp.Header.Get("X-Sluice-Variant")
	}
	var took []time.Duration
	for i := range n {
		user := ""
		for u := 0; user == ""; u++ {
			if name := fmt.Sprint("user-", u); ask(gs[0], i, name) == "canary" {
				user = name
			}
		}
		if resp := gs[i%3].admin("POST", fmt.Sprintf("/experiments/exp-%d:kill", i), `{"variant":"canary","reason":"test"}`, nil, "If-Match", "*"); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		begin := time.Now()
		for _, g := range gs {
			for ask(g, i, user) == "canary" {
				if time.Since(begin) > 5*time.Second {
					t.Fatalf("a replica serves the killed variant 5 s later\n%s", g.Log())
				}
			}
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("%d kills, from the admin answer to the last of 3 replicas: p50 %v, p99 %v, max %v", n, took[n/2], took[n*99/100], took[n-1])
}

// TestNoCallAfterItWasApplied takes a variant away in every way, under load, and
// looks for a call of its server that began after the answer.
func TestNoCallAfterItWasApplied(t *testing.T) {
	for _, c := range []struct{ verb, body string }{
		{"rollback", `{"reason":"test"}`},
		{"kill", `{"variant":"canary","reason":"test"}`},
		{"weights", ""},
	} {
		t.Run(c.verb, func(t *testing.T) {
			redis, pg := testenv.Redis(t), testenv.Postgres(t)
			v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
			gs := fleet(t, 3, redis.URL, pg, v1, v2)
			var after atomic.Bool
			var late, sent atomic.Int64
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() {
					for i := w; ; i += 6 {
						select {
						case <-stop:
							return
						default:
						}
						began := after.Load()
						resp, _ := gs[i%3].chat(fmt.Sprint("user-", i%100), "[[tokens:1]]")
						sent.Add(1)
						if began && resp.Header.Get("X-Sluice-Variant") == "canary" {
							late.Add(1)
						}
					}
				})
			}
			time.Sleep(300 * time.Millisecond)
			if c.verb == "weights" {
				setWeights(t, gs[0], 10000, 0, "?wait=applied")
			} else if resp := gs[0].admin("POST", "/experiments/chat-v2:"+c.verb+"?wait=applied", c.body, nil, "If-Match", "*"); resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status)
			}
			calls, before := v2.Counts().Calls, sent.Load()
			after.Store(true)
			time.Sleep(500 * time.Millisecond)
			close(stop)
			wg.Wait()
			if late.Load() > 0 || v2.Counts().Calls > calls {
				t.Errorf("%d answers and %d upstream calls of the variant began after the %s was applied", late.Load(), v2.Counts().Calls-calls, c.verb)
			}
			t.Logf("%d calls of the variant in %d requests before, none in %d after", calls, before, sent.Load()-before)
		})
	}
}

// armsYAML is two treatments beside a baseline; every user is remembered.
const armsYAML = `
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "%[1]s" }
redis: { url: "%[2]s" }
data_dir: "%%DIR%%/data-%%DATA%%"
resources:
  upstreams: [ { name: v1, dialect: vllm, endpoints: [%[3]s] } ]
  models: [ { name: chat, default: { upstream: v1, model: m } } ]
  experiments:
    - key: chat-v2
      model: chat
      kind: ab
      state: running
      baseline: control
      variants:
        - { name: control, weight: 4000, upstream: v1, model: m }
        - { name: warm, weight: 3000, upstream: v1, model: m, params: { temperature: 1.2 } }
        - { name: cold, weight: 3000, upstream: v1, model: m, params: { temperature: 0.1 } }
`

// TestOneArmIsKilledWithAStoreAway kills one of two treatments while Redis or the
// database is down: its users get the baseline on every replica, nobody else
// moves, and it stays so when the store is back.
func TestOneArmIsKilledWithAStoreAway(t *testing.T) {
	const users = 150
	for _, away := range []string{"redis", "database"} {
		t.Run(away, func(t *testing.T) {
			redis, pg := testenv.Redis(t), testenv.PostgresServer(t)
			v1 := fake(t, fakellm.Options{Dialect: "vllm"})
			yaml := fmt.Sprintf(armsYAML, pg.Database(), redis.URL, quoted(v1))
			var gs []*gateway
			for range 3 {
				gs = append(gs, serve(t, t.TempDir(), yaml))
			}
			before := assigned(t, gs, users)
			expect := func(when string) bool {
				moved, left := 0, 0
				for i, g := range gs {
					for u := range users {
						name := fmt.Sprint("user-", u)
						resp, body := g.chat(name, "[[tokens:1]]")
						if resp.StatusCode != 200 {
							t.Fatalf("%s, replica %d: %d %s", when, i, resp.StatusCode, body)
						}
						switch got := resp.Header.Get("X-Sluice-Variant"); {
						case got == "warm":
							left++
						case before[name] == "warm" && got != "control", before[name] != "warm" && got != before[name]:
							moved++
						}
					}
				}
				if moved > 0 {
					t.Errorf("%s: %d answers are of another variant than they should be", when, moved)
				}
				return left == 0
			}
			stop, start := redis.Kill, redis.Restart
			if away == "database" {
				stop, start = pg.Kill, pg.Restart
			}
			stop()
			from := time.Now()
			if resp := gs[1].admin("POST", "/experiments/chat-v2:kill", `{"variant":"warm","reason":"test"}`, nil, "If-Match", "*"); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			for !expect("without the " + away) {
				if time.Since(from) > 20*time.Second {
					t.Fatal("20 s later a replica serves it")
				}
			}
			t.Logf("%s away: nobody has the killed variant within %.1f s (%d requests each look)", away, time.Since(from).Seconds(), 3*users)
			start()
			var e struct {
				Variants []struct{ Name, State string }
			}
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
				killed := 0
				for _, g := range gs {
					g.admin("GET", "/experiments/chat-v2", "", &e)
					for _, v := range e.Variants {
						if v.Name == "warm" && v.State == "killed" {
							killed++
						}
					}
				}
				if killed == 3 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("30 s after its return: %+v", e)
				}
			}
			if !expect("with the " + away + " back") {
				t.Error("the variant is served again")
			}
			if away == "database" {
				until(t, "the audit row is replayed", func() bool {
					var page struct {
						Items []struct{ Action, Reason string }
					}
					gs[0].admin("GET", "/audit?object=experiment/chat-v2", "", &page)
					return slices.ContainsFunc(page.Items, func(r struct{ Action, Reason string }) bool {
						return strings.HasSuffix(r.Action, "kill") && strings.HasPrefix(r.Reason, "test; in force since")
					})
				})
			}
		})
	}
}
