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
