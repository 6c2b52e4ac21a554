package e2e

import (
	"fmt"
	"io"
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

// fleet is several replicas on one Redis and one PostgreSQL.
func fleet(t *testing.T, n int, redis, postgres string, v1, v2 *fakellm.Server) []*gateway {
	var list []*gateway
	for range n {
		list = append(list, serve(t, t.TempDir(), fmt.Sprintf(pairYAML, postgres, redis, quoted(v1), quoted(v2))))
	}
	return list
}

// assigned asks each user's variant, round robin over the replicas. A pin that
// Redis did not give in time makes an answer provisional, which may differ: on a
// machine with little time it is asked again.
func assigned(t *testing.T, gs []*gateway, users int) map[string]string {
	t.Helper()
	m := map[string]string{}
	for i := range users {
		u := fmt.Sprint("user-", i)
		for range 100 {
			resp, body := gs[i%len(gs)].chat(u, "hi [[tokens:1]]")
			if resp.StatusCode != 200 {
				t.Fatalf("%s: %d %s", u, resp.StatusCode, body)
			}
			m[u] = resp.Header.Get("X-Sluice-Variant")
			if resp.Header.Get("X-Sluice-Reason") != "provisional" {
				break
			}
		}
	}
	return m
}

// setWeights changes the ratio through one replica.
func setWeights(t *testing.T, g *gateway, control, canary int, query string) int64 {
	t.Helper()
	for range 20 {
		etag := g.admin("GET", "/experiments/chat-v2", "", nil).Header.Get("ETag")
		var out struct {
			Write struct {
				Revision int64
				Applied  *bool
			}
			Detail string
		}
		resp := g.admin("PUT", "/experiments/chat-v2/weights"+query,
			fmt.Sprintf(`{"weights":{"control":%d,"canary":%d},"reason":"test"}`, control, canary), &out, "If-Match", etag)
		switch {
		case resp.StatusCode == 412:
			continue // this replica had not read the newest revision when the ETag was asked
		case resp.StatusCode != 200:
			t.Fatalf("weights: %d %s", resp.StatusCode, out.Detail)
		case strings.Contains(query, "wait=applied") && (out.Write.Applied == nil || !*out.Write.Applied):
			t.Fatalf("not applied everywhere: %+v", out)
		}
		return out.Write.Revision
	}
	t.Fatal("20 conflicts in a row")
	return 0
}

// TestReplicasAgree holds that every replica gives a user the same variant,
// through ratio changes, a restart and a Redis that loses everything.
func TestReplicasAgree(t *testing.T) {
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	gs := fleet(t, 3, redis.URL, pg, v1, v2)
	first := assigned(t, gs, 300)
	slices.Reverse(gs)
	same(t, "another replica", first, assigned(t, gs, 300))

	setWeights(t, gs[0], 9000, 1000, "?wait=applied")
	// kind: ab pins users: nobody moves when the ratio changes.
	same(t, "a ratio change", first, assigned(t, gs, 300))

	gs[1].stop()
	gs[1].run(gs[1].cmd.Args[1:])
	same(t, "a restart", first, assigned(t, gs, 300))

	redis.FlushAll()
	time.Sleep(1500 * time.Millisecond) // the refill from the database
	same(t, "an emptied Redis", first, assigned(t, gs, 300))
}

func same(t *testing.T, after string, want, got map[string]string) {
	t.Helper()
	moved := 0
	for u, v := range want {
		if got[u] != v {
			moved++
		}
	}
	if moved > 0 {
		t.Errorf("%d of %d users got another variant after %s", moved, len(want), after)
	}
}

// TestRedisKilledUnderLoad kills Redis while users talk: no request fails and no
// user whose bucket is not contested changes variant.
func TestRedisKilledUnderLoad(t *testing.T) {
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	gs := fleet(t, 2, redis.URL, pg, v1, v2)
	want := assigned(t, gs, 200)
	var failed, changed, provisional, sent atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; ; i += 8 {
				select {
				case <-stop:
					return
				default:
				}
				u := fmt.Sprint("user-", i%200)
				resp, _ := gs[i%2].chat(u, "hi [[tokens:1]]")
				sent.Add(1)
				if resp.StatusCode != 200 {
					failed.Add(1)
				}
				if resp.Header.Get("X-Sluice-Reason") == "provisional" {
					provisional.Add(1)
				} else if resp.Header.Get("X-Sluice-Variant") != want[u] {
					changed.Add(1)
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	redis.Kill()
	time.Sleep(2 * time.Second)
	redis.Restart()
	time.Sleep(2 * time.Second)
	close(stop)
	wg.Wait()
	t.Logf("%d requests while Redis was killed and came back empty: %d failed, %d changed, %d provisional", sent.Load(), failed.Load(), changed.Load(), provisional.Load())
	if failed.Load() != 0 || changed.Load() != 0 {
		t.Error("a request failed or a user changed variant")
	}
}

// TestRatioReachesEveryReplica changes the ratio again and again and measures
// when the last of three replicas serves it. SLUICE_CHANGES=200 is the long form.
func TestRatioReachesEveryReplica(t *testing.T) {
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	gs := fleet(t, 3, redis.URL, pg, v1, v2)
	n := 20
	if v, err := strconv.Atoi(os.Getenv("SLUICE_CHANGES")); err == nil {
		n = v
	}
	var took []time.Duration
	for i := range n {
		rev := setWeights(t, gs[i%3], 5000+i, 5000-i, "")
		begin := time.Now()
		for _, g := range gs {
			for revisionOf(t, g) < rev {
				if time.Since(begin) > 5*time.Second {
					t.Fatalf("a replica does not have revision %d after 5 s\n%s", rev, g.Log())
				}
			}
		}
		took = append(took, time.Since(begin))
	}
	until(t, "readyz tells of all replicas", func() bool {
		resp, err := http.Get(gs[0].Data + "/readyz?verbose")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), `"replicas":3`) && strings.Contains(string(text), `"skew":0`)
	})
	slices.Sort(took)
	t.Logf("%d changes, from the admin answer to the last of 3 replicas: p50 %v, p99 %v, max %v",
		n, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// revisionOf reads the revision that a replica serves with, off its answers.
func revisionOf(t *testing.T, g *gateway) int64 {
	resp, _ := g.chat("u", "[[tokens:1]]")
	rev, _ := strconv.ParseInt(resp.Header.Get("X-Sluice-Revision"), 10, 64)
	return rev
}

// TestRedisLossMovesNobody takes Redis away after a ratio change, when users are
// on variants that only their pins remember, and lets it come back empty. Nobody
// moves, but for answers that say themselves that they are provisional.
func TestRedisLossMovesNobody(t *testing.T) {
	const users = 300
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	v1, v2 := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	gs := fleet(t, 3, redis.URL, pg, v1, v2)
	before := assigned(t, gs, users)
	setWeights(t, gs[0], 9000, 1000, "?wait=applied")
	// look asks each user of every replica.
	look := func() (moved, provisional int) {
		for i := range users * len(gs) {
			u := fmt.Sprint("user-", i%users)
			resp, body := gs[i/users].chat(u, "hi [[tokens:1]]")
			switch {
			case resp.StatusCode != 200:
				t.Fatalf("%d %s", resp.StatusCode, body)
			case resp.Header.Get("X-Sluice-Reason") == "provisional":
				provisional++
			case resp.Header.Get("X-Sluice-Variant") != before[u]:
				moved++
			}
		}
		return moved, provisional
	}
	expect := func(when string, most int) {
		t.Helper()
		moved, provisional := look()
		t.Logf("%s: %d answers, %d of another variant, %d provisional", when, users*len(gs), moved, provisional)
		if moved > 0 || provisional > most {
			t.Errorf("%s: %d moved, %d provisional (at most %d)", when, moved, provisional, most)
		}
	}
	time.Sleep(3 * time.Second) // the pins are copied to the database in batches
	gs[2].stop()                // and one replica has served nobody
	gs[2].run(gs[2].cmd.Args[1:])
	redis.Kill()
	expect("Redis away", users*len(gs)/2)
	redis.Restart()
	time.Sleep(3 * time.Second) // the refill
	expect("Redis back, empty", 0)
	redis.FlushAll()
	time.Sleep(3 * time.Second)
	expect("Redis flushed", 0)
}
