package metrics_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sluice/metrics"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// event is a successful streamed request of an arm with one priced attempt.
func event(exp, variant string) metrics.Event {
	return metrics.Event{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), RequestID: "01890a5d-ac96-774b-bcce-b302099a8057",
		API: "chat_completions", Model: "chat", Experiment: exp, Assigned: variant, Served: variant, Version: "8b-1",
		Bucket: 17, Reason: "bucket", Revision: 12, Upstream: "v1", Endpoint: "http://127.0.0.1:9/v1",
		Outcome: "success", Status: 200, Stream: true, TTFT: 120 * time.Millisecond, Duration: 1500 * time.Millisecond,
		Overhead: 80 * time.Microsecond,
		Attempts: []metrics.Attempt{{
			Variant: variant, Upstream: "v1", Endpoint: "http://127.0.0.1:9/v1", Outcome: "success", Status: 200,
			Duration: 1400 * time.Millisecond, Input: 100, Cached: 40, Output: 24, Reasoning: 4, HasUsage: true,
			CostNano: 12_345, Priced: true,
		}},
	}
}

// sums adds the values of a family's series that have the labels.
func sums(t testing.TB, g prometheus.Gatherer, name string, labels map[string]string) (sum float64, series int) {
	t.Helper()
	for _, f := range gather(t, g) {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for k, v := range labels {
				if have[k] != v {
					continue next
				}
			}
			series++
			switch {
			case m.Counter != nil:
				sum += m.Counter.GetValue()
			case m.Gauge != nil:
				sum += m.Gauge.GetValue()
			case m.Histogram != nil:
				sum += m.Histogram.GetSampleSum()
			}
		}
	}
	return sum, series
}

func gather(t testing.TB, g prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	fs, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// writer is a store in memory that can be taken away.
type writer struct {
	mu     sync.Mutex
	rows   map[string]int // request id → times stored
	order  []string
	fail   func(evs []metrics.Event) error // nil: works
	calls  int
	widest int
}

var errAway = errors.New("the database is away")

func (w *writer) WriteEvents(ctx context.Context, evs []metrics.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	w.widest = max(w.widest, len(evs))
	if w.fail != nil {
		if err := w.fail(evs); err != nil {
			return err
		}
	}
	if w.rows == nil {
		w.rows = map[string]int{}
	}
	for i := range evs {
		if w.rows[evs[i].RequestID]++; w.rows[evs[i].RequestID] == 1 {
			w.order = append(w.order, evs[i].RequestID)
		}
	}
	return ctx.Err()
}

func (w *writer) setFail(f func([]metrics.Event) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func (w *writer) stored() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.order...)
}

// start runs r until the returned stop, which reports Run's error.
func start(r *metrics.Recorder) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}
