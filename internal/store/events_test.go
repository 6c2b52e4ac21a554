package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/store"
	"sluice/metrics"
)

var noon = time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)

func event(id string, change func(*metrics.Event)) metrics.Event {
	e := metrics.Event{
		Time: noon, RequestID: id, API: "chat_completions", Model: "chat", Experiment: "exp", Assigned: "canary", Served: "canary",
		Bucket: 17, Reason: "bucket", Revision: 5, Unit: [8]byte{1}, HasUnit: true, Analysed: true, Generation: 1, KeyID: "k1", Tenant: "acme",
		Upstream: "v2", Endpoint: "http://v2", Outcome: "success", Status: 200, Stream: true, TTFT: 100 * time.Millisecond,
		Duration: time.Second, FinishReason: "stop",
		Attempts: []metrics.Attempt{
			{Variant: "canary", Upstream: "v1", Outcome: "upstream_error", Status: 502, Start: noon, Duration: time.Millisecond},
			{Variant: "canary", Upstream: "v2", Outcome: "success", Status: 200, Start: noon, Duration: time.Second,
				Input: 100, Cached: 20, Output: 50, Reasoning: 5, HasUsage: true, CostNano: 12345, Priced: true},
		},
	}
	if change != nil {
		change(&e)
	}
	return e
}

func write(t *testing.T, s *store.Store, evs ...metrics.Event) {
	t.Helper()
	if err := s.WriteEvents(t.Context(), evs); err != nil {
		t.Fatal(err)
	}
}

func totals(t *testing.T, s *store.Store) store.Totals {
	t.Helper()
	got, err := s.Totals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEventsCountOnce(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		want := store.Totals{
			Requests: 2, Attempts: 4, Input: 200, Cached: 40, Output: 100, Reasoning: 10, CostNano: 24690, Metered: 2,
			Outcomes: map[string]int64{"success": 2}, RollupRequests: 2, RollupInput: 200, RollupOutput: 100, RollupCost: 24690,
		}
		a, b := event("a", nil), event("b", nil)
		write(t, s, a, b, a) // twice in one batch
		write(t, s, b, event("", nil))
		write(t, s, a, b)
		write(t, s)
		if d := cmp.Diff(want, totals(t, s)); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}
		st, err := s.ExperimentStats(t.Context(), "exp", time.Time{})
		if err != nil || len(st) != 1 {
			t.Fatalf("stats: %v, %v", st, err)
		}
		if v := st[0]; v.Requests != 2 || v.Units != 1 || v.Attempts != 4 || v.TTFT.Count != 2 || v.CostNano != 24690 {
			t.Errorf("stats: %+v", v)
		}
	})
}

func TestConcurrentWritersOfOverlappingBatches(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		var all []metrics.Event
		for i := range 200 {
			all = append(all, event(fmt.Sprintf("r%03d", i), func(e *metrics.Event) {
				e.Assigned = fmt.Sprint("v", i%7)
				e.Time = noon.Add(time.Duration(i) * time.Second)
				e.TTFT = time.Duration(i) * time.Millisecond
				e.Unit = [8]byte{byte(i % 40)}
			}))
		}
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), 1))
				mine := slices.Clone(all)
				rng.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				for part := range slices.Chunk(mine, 33) {
					if err := s.WriteEvents(context.Background(), part); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got := totals(t, s)
		if got.Requests != 200 || got.RollupRequests != 200 || got.Input != 20000 || got.RollupInput != 20000 || got.RollupCost != got.CostNano {
			t.Errorf("totals %+v; want every event once", got)
		}
	})
}

func TestHostileStringsDoNotPoisonABatch(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		write(t, s, event("good", nil), event("bad", func(e *metrics.Event) {
			bad := "\x00\xff'; DROP TABLE events; --\u2028"
			e.ClientRequestID, e.Model, e.Tenant, e.KeyID, e.Version, e.FinishReason, e.Outcome, e.Role = bad, bad, bad, bad, bad, bad, bad, bad
			e.Attempts[0].Endpoint, e.Attempts[0].Reason, e.Attempts[1].Upstream = bad, bad, bad
			e.Time, e.Duration, e.TTFT = time.Time{}, -1, -1
		}))
		if got := totals(t, s); got.Requests != 2 || got.RollupRequests != 2 {
			t.Errorf("totals: %+v", got)
		}
	})
}

func TestUnknownUsageAndPriceStayUnknown(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		write(t, s,
			event("none", func(e *metrics.Event) { e.Attempts = nil; e.Outcome = "no_endpoint"; e.TTFT = 0 }),
			event("unpriced", func(e *metrics.Event) { e.Attempts[1].Priced = false }),
			event("estimated", func(e *metrics.Event) { e.Attempts[1].Estimated = true }))
		var n int64
		for query, want := range map[string]int64{
			`SELECT count(*) FROM events WHERE input_tokens IS NULL AND cost_nano IS NULL AND ttft IS NULL`: 1,
			`SELECT count(*) FROM events WHERE input_tokens = 100 AND cost_nano IS NULL`:                    1,
			`SELECT count(*) FROM events WHERE estimated = 1 AND cost_nano = 12345`:                         1,
		} {
			if err := store.ScanForTest(s, &n, query); err != nil || n != want {
				t.Errorf("%s: %d, %v; want %d", query, n, err, want)
			}
		}
		rows, _, err := s.Usage(t.Context(), store.UsageQuery{Until: noon.Add(time.Hour)})
		if err != nil || len(rows) != 1 {
			t.Fatalf("usage: %v, %v", rows, err)
		}
		want := store.UsageRow{Group: map[string]string{}, Requests: 3, Errors: 1, Attempts: 4, Metered: 2, Estimated: 1, Unpriced: 1,
			Input: 200, Cached: 40, Output: 100, Reasoning: 10, CostNano: 12345}
		if d := cmp.Diff(want, rows[0]); d != "" {
			t.Errorf("usage (-want +got):\n%s", d)
		}
	})
}

func TestUsage(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		for i := range 6 {
			write(t, s, event(fmt.Sprint("r", i), func(e *metrics.Event) {
				e.Time = noon.Add(time.Duration(i) * 20 * time.Minute) // 12:00 … 13:40
				e.Assigned = []string{"control", "canary"}[i%2]
				e.Tenant = []string{"acme", "zeta"}[i%2]
			}))
		}
		for _, c := range []struct {
			name  string
			query store.UsageQuery
			want  map[string]int64 // requests by group
		}{
			{"by variant", store.UsageQuery{GroupBy: []string{"variant"}}, map[string]int64{"map[variant:canary]": 3, "map[variant:control]": 3}},
			{"by tenant", store.UsageQuery{GroupBy: []string{"tenant"}}, map[string]int64{"map[tenant:acme]": 3, "map[tenant:zeta]": 3}},
			{"by hour", store.UsageQuery{GroupBy: []string{"hour"}, Since: noon}, map[string]int64{"map[hour:2026-03-01T12:00:00Z]": 3, "map[hour:2026-03-01T13:00:00Z]": 3}},
			{"by day and key", store.UsageQuery{GroupBy: []string{"day", "key"}}, map[string]int64{"map[day:2026-03-01T00:00:00Z key:k1]": 6}},
			{"since the minute", store.UsageQuery{Since: noon.Add(20 * time.Minute)}, map[string]int64{"map[]": 5}},
			{"filter", store.UsageQuery{Filter: map[string]string{"variant": "canary"}, GroupBy: []string{"minute"}},
				map[string]int64{"map[minute:2026-03-01T12:20:00Z]": 1, "map[minute:2026-03-01T13:00:00Z]": 1, "map[minute:2026-03-01T13:40:00Z]": 1}},
			{"by upstream: requests where answered", store.UsageQuery{GroupBy: []string{"upstream"}}, map[string]int64{"map[upstream:v1]": 0, "map[upstream:v2]": 6}},
			{"filter of nobody", store.UsageQuery{Filter: map[string]string{"key": "x"}}, map[string]int64{"map[]": 0}},
		} {
			t.Run(c.name, func(t *testing.T) {
				c.query.Until = noon.Add(24 * time.Hour)
				rows, truncated, err := s.Usage(t.Context(), c.query)
				if err != nil || truncated {
					t.Fatal(truncated, err)
				}
				got := map[string]int64{}
				for _, r := range rows {
					got[fmt.Sprint(r.Group)] = r.Requests
				}
				if d := cmp.Diff(c.want, got); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
		for _, q := range []store.UsageQuery{
			{GroupBy: []string{"password"}}, {Filter: map[string]string{"1=1; --": "x"}}, {GroupBy: []string{"minute", "tenant"}},
		} {
			if _, _, err := s.Usage(t.Context(), q); err == nil {
				t.Errorf("%+v was accepted", q)
			}
		}
		rows, truncated, err := s.Usage(t.Context(), store.UsageQuery{GroupBy: []string{"minute"}, Limit: 2, Until: noon.Add(time.Hour * 24)})
		if err != nil || !truncated || len(rows) != 2 {
			t.Errorf("limit: %d rows, truncated %t, %v", len(rows), truncated, err)
		}
	})
}

func TestExperimentStats(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		var evs []metrics.Event
		for i := range 100 {
			evs = append(evs, event(fmt.Sprint("r", i), func(e *metrics.Event) {
				e.TTFT = time.Duration(i+1) * 10 * time.Millisecond
				e.Duration = time.Duration(i+1) * 100 * time.Millisecond
				e.Unit = [8]byte{byte(i / 2)}
			}))
		}
		for i, outcome := range []string{"upstream_timeout", "client_error", "canceled", "queue_full"} {
			evs = append(evs, event(fmt.Sprint("x", i), func(e *metrics.Event) { e.Outcome = outcome; e.TTFT = time.Hour }))
		}
		evs = append(evs,
			event("old", func(e *metrics.Event) { e.Time = noon.Add(-time.Hour); e.Unit = [8]byte{200} }),
			event("shadow", func(e *metrics.Event) { e.Role = "shadow" }),
			event("other", func(e *metrics.Event) { e.Experiment = "other" }),
			event("fell back", func(e *metrics.Event) {
				e.Served = "control"
				e.HasUnit = false
				e.Outcome = "success"
				e.TTFT = 0
				e.Duration = 50 * time.Millisecond
			}))
		write(t, s, evs...)
		check := func(t *testing.T) {
			st, err := s.ExperimentStats(t.Context(), "exp", noon)
			if err != nil || len(st) != 1 {
				t.Fatalf("stats: %+v, %v", st, err)
			}
			v := st[0]
			if v.Variant != "canary" || v.Requests != 105 || v.Errors != 2 || v.Eligible != 103 || v.Fallbacks != 1 || v.Units != 50 {
				t.Errorf("counts: %+v", v)
			}
			if d := cmp.Diff(map[string]int64{"success": 101, "upstream_timeout": 1, "client_error": 1, "canceled": 1, "queue_full": 1}, v.Outcomes); d != "" {
				t.Errorf("outcomes: %s", d)
			}
			near := func(what string, got, want time.Duration) {
				if d := float64(got-want) / float64(want); d < -0.025 || d > 0.025 {
					t.Errorf("%s = %v, want %v within 2.5 %%", what, got, want)
				}
			}
			near("ttft p50", v.TTFT.P50, 500*time.Millisecond)
			near("ttft p99", v.TTFT.P99, 990*time.Millisecond)
			near("duration p95", v.Duration.P95, 9500*time.Millisecond)
			if v.TTFT.Count != 100 || v.Duration.Count != 101 {
				t.Errorf("counts of latencies: %d, %d", v.TTFT.Count, v.Duration.Count)
			}
		}
		t.Run("fresh", check)
		// Folding minutes into hours changes no total.
		for range 2 {
			if _, err := s.Retain(t.Context(), store.Retention{Events: -1, Minutes: time.Minute, Rollups: -1}); err != nil {
				t.Fatal(err)
			}
		}
		t.Run("folded", check)
	})
}

// idAt is a request id in the form of a UUIDv7 of that time.
func idAt(t time.Time, n int) string {
	ms := fmt.Sprintf("%012x", t.UnixMilli())
	return fmt.Sprintf("%s-%s-7000-8000-%012x", ms[:8], ms[8:], n)
}

func TestRetention(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		o.Now = func() time.Time { return noon.Add(40 * 24 * time.Hour) }
		s := open(t, o)
		var evs []metrics.Event
		for i := range 1500 {
			evs = append(evs, event(idAt(noon, i), nil))
		}
		write(t, s, evs...)
		write(t, s, event(idAt(o.Now(), 0), func(e *metrics.Event) { e.Time = o.Now() }))
		n, err := s.Retain(t.Context(), store.Retention{})
		if err != nil || n != 1500 {
			t.Fatalf("deleted %d, %v", n, err)
		}
		got := totals(t, s)
		if got.Requests != 1 || got.Attempts != 2 || got.RollupRequests != 1501 {
			t.Errorf("left: %+v; want one event and all rollups", got)
		}
		if _, err := s.Retain(t.Context(), store.Retention{Rollups: 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		if got := totals(t, s); got.RollupRequests != 1 {
			t.Errorf("rollups left: %d", got.RollupRequests)
		}
		rows, _, err := s.Usage(t.Context(), store.UsageQuery{GroupBy: []string{"tenant"}})
		if err != nil || len(rows) != 1 || rows[0].Requests != 1501 {
			t.Errorf("bills: %+v, %v; they outlive everything", rows, err)
		}
	})
}

func BenchmarkWriteEvents(b *testing.B) {
	s, err := store.Open(b.Context(), store.Options{URL: "sqlite:" + b.TempDir() + "/s.db"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := 0
	for b.Loop() {
		evs := make([]metrics.Event, 500)
		for i := range evs {
			n++
			evs[i] = event(fmt.Sprint("r", n), nil)
		}
		if err := s.WriteEvents(b.Context(), evs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "µs/event")
}
