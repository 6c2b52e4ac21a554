package upstream

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/engine"
	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

func TestVitals(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	unix := func(d time.Duration) float64 { return float64(at(d).Unix()) }
	page := func(started, preempted float64) engine.Vitals {
		return engine.Vitals{Started: started, Preempted: preempted, Aborted: -1}
	}
	refused := result{state: stateUnreachable, refused: true}
	cases := map[string]struct {
		do                  func(v *vitals)
		restarts, preempted float64
	}{
		"goes on": {func(v *vitals) {
			v.page(page(unix(-time.Hour), 3), at(0))
			v.page(page(unix(-time.Hour)+0.4, 5), at(10*time.Second))
		}, 0, 2},
		"another start time": {func(v *vitals) {
			v.page(page(unix(-time.Hour), 3), at(0))
			v.page(page(unix(8*time.Second), 1), at(20*time.Second))
		}, 1, 1},
		"restart and refusal are one": {func(v *vitals) {
			v.page(page(unix(-time.Hour), 3), at(0))
			v.refused(refused, wire.VLLM)
			v.refused(refused, wire.VLLM)
			v.back(at(20 * time.Second))
			v.page(page(unix(8*time.Second), 0), at(21*time.Second))
			v.back(at(30 * time.Second))
		}, 1, 0},
		"a slow clock, but it was refused": {func(v *vitals) {
			v.page(page(unix(-3*time.Hour), 0), at(0))
			v.refused(refused, wire.VLLM)
			v.back(at(20 * time.Second))
			v.page(page(unix(-2*time.Hour), 0), at(21*time.Second))
		}, 1, 0},
		"a cut cable is none": {func(v *vitals) {
			v.page(page(unix(-time.Hour), 0), at(0))
			v.refused(refused, wire.VLLM)
			v.back(at(20 * time.Second))
			v.page(page(unix(-time.Hour), 0), at(21*time.Second))
		}, 0, 0},
		"servers behind one address": {func(v *vitals) {
			for i := range 10 {
				v.page(page(unix(-time.Duration(20-i)*time.Hour), 0), at(time.Duration(i)*10*time.Second))
				v.page(page(unix(-30*time.Hour), 0), at(time.Duration(i)*10*time.Second+5*time.Second))
			}
		}, 0, 0},
		"no page": {func(v *vitals) {
			for i := range 3 {
				v.refused(refused, wire.OpenAI)
				v.back(at(time.Duration(i) * time.Minute))
				v.back(at(time.Duration(i)*time.Minute + time.Second))
			}
		}, 3, 0},
		"timeouts are none": {func(v *vitals) {
			v.refused(result{state: stateUnreachable}, wire.OpenAI)
			v.refused(result{state: stateLoading}, wire.SGLang)
			v.back(at(0))
		}, 0, 0},
		"llama.cpp loads": {func(v *vitals) {
			v.refused(result{state: stateLoading}, wire.LlamaCPP)
			v.back(at(0))
		}, 1, 0},
		"a page without a start": {func(v *vitals) {
			v.page(page(0, 0), at(0))
			v.refused(refused, wire.TGI)
			v.back(at(5 * time.Second))
			v.page(page(0, 0), at(6*time.Second))
		}, 1, 0},
		"absurd starts": {func(v *vitals) {
			v.page(page(1e300, 1e300), at(0))
			v.page(page(1, 0), at(10*time.Second))
		}, 0, 0},
		"old": {func(v *vitals) {
			v.page(page(unix(-3*time.Hour), 0), at(-3*time.Hour))
			v.page(page(unix(-2*time.Hour), 100), at(-2*time.Hour+time.Minute))
		}, 0, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var v vitals
			c.do(&v)
			end := at(3 * time.Minute)
			if r, p := v.restarts.since(end.Add(-restartWindow)), v.preemptions.since(start.Add(-preemptionWindow)); r != c.restarts || p != c.preempted {
				t.Errorf("%v restarts and %v preemptions, want %v and %v", r, p, c.restarts, c.preempted)
			}
		})
	}
}

// The watcher brings it together: the engine's load, preemptions and restarts
// are there to read, and get old when the engine stops telling.
func TestEngineStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		serve := func(born time.Time, preempted, waiting int) {
			s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
				switch r.URL.Path {
				case "/health":
					return 200, "", nil
				case "/metrics":
					return 200, fmt.Sprintf("process_start_time_seconds %d\nvllm:num_requests_running 1\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc 0.5\nvllm:num_preemptions_total %d\n",
						born.Unix(), waiting, preempted), nil
				case "/v1/models":
					return 200, `{"data":[{"id":"m","max_model_len":4096},{"id":"n","max_model_len":-1},{"id":"o","max_model_len":"many"}]}`, nil
				}
				return 404, "", nil
			})
		}
		born := time.Now()
		serve(born, 0, 3)
		p, ups := poolWith(t, s.options(), Config{Name: "u", Dialect: wire.VLLM, Endpoints: []string{"http://a", "http://b"}, Limits: Limits{MaxInFlight: 10}})
		defer p.Close()
		u := ups["u"]
		time.Sleep(3 * time.Second)
		if got, want := u.Engine(), (EngineStatus{Endpoints: 2, Told: 2, MaxWaiting: 3, MaxKVUse: 0.5}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if a, b, c := u.MaxModelLen("m"), u.MaxModelLen("n"), u.MaxModelLen("o"); a != 4096 || b != 0 || c != 0 {
			t.Errorf("lengths %d %d %d", a, b, c)
		}
		if got, want := u.Room(), (Room{Endpoints: 2, Ready: 2, Capacity: 10, Limited: true}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		serve(born, 4, 7)
		time.Sleep(3 * time.Second) // it is asked at every check now
		if got, want := u.Engine(), (EngineStatus{Endpoints: 2, Told: 2, MaxWaiting: 7, MaxKVUse: 0.5, Preempted: 8}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		s.refuse()
		time.Sleep(20 * time.Second)
		if got := u.Engine(); got.Endpoints != 0 || got.Told != 0 || got.Restarts != 0 {
			t.Errorf("while away: %+v", got)
		}
		if got := u.Room(); got.Ready != 0 || got.Capacity != 0 || !got.Limited {
			t.Errorf("while away: %+v", got)
		}
		serve(time.Now(), 0, 7)
		time.Sleep(20 * time.Second)
		if got := u.Engine(); got.Restarts != 2 || got.Told != 2 {
			t.Errorf("after the restart of both: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		if got := u.Engine(); got.Restarts != 0 || got.Preempted != 0 {
			t.Errorf("two hours later: %+v", got)
		}
		// The page goes, the checks pass: what is known gets old.
		s.serve(map[string]string{"GET /health": ""})
		time.Sleep(time.Minute)
		if got := u.Engine(); got.Endpoints != 2 || got.Told != 0 || got.MaxKVUse != -1 {
			t.Errorf("without a page: %+v", got)
		}
	})
}
