package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/metrics"
)

func record(r *metrics.Recorder, from, to int) {
	for i := from; i < to; i++ {
		ev := event("e1", "canary")
		ev.RequestID = fmt.Sprintf("r%05d", i)
		r.Record(ev)
	}
}

func TestLedgerBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writer{}
		r := metrics.New(metrics.Options{Writer: w, Log: quiet})
		stop := start(r)
		synctest.Wait()
		record(r, 0, 3)
		time.Sleep(201 * time.Millisecond)
		synctest.Wait()
		if n := len(w.stored()); n != 3 {
			t.Errorf("%d events stored after 200 ms, want 3", n)
		}
		record(r, 3, 1503)
		synctest.Wait() // a whole batch does not wait
		if n := len(w.stored()); n < 503 {
			t.Errorf("%d events stored, want a batch at once", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if got := w.stored(); len(got) != 1503 || !slices.IsSorted(got) || w.widest > 500 {
			t.Errorf("%d stored, sorted %v, widest batch %d; want 1503 in order, at most 500", len(got), slices.IsSorted(got), w.widest)
		}
	})
}

func TestLedgerSurvivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := &writer{fail: func([]metrics.Event) error { return errAway }}
		r := metrics.New(metrics.Options{Registerer: reg, Writer: w, Log: quiet, QueueSize: 1000})
		stop := start(r)
		record(r, 0, 700)
		time.Sleep(time.Minute)
		record(r, 700, 1200) // 1000 fit, taken or not
		synctest.Wait()
		if n, _ := sums(t, reg, "sluice_ledger_queue_length", nil); n != 1000 {
			t.Errorf("queue length %v, want 1000", n)
		}
		if n, _ := sums(t, reg, "sluice_ledger_dropped_total", nil); n != 200 {
			t.Errorf("dropped %v, want 200", n)
		}
		if n, _ := sums(t, reg, "sluice_ledger_write_failures_total", nil); n < 10 || n > 60 {
			t.Errorf("%v failures in a minute, want a backed-off 10 to 60", n)
		}
		w.setFail(nil)
		time.Sleep(6 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Flush(ctx); err != nil {
			t.Error(err)
		}
		if got := w.stored(); len(got) != 1000 || !slices.IsSorted(got) {
			t.Errorf("%d stored after the outage, want the 1000 that fitted, in order", len(got))
		}
		for id, n := range w.rows {
			if n != 1 {
				t.Errorf("%s was written %d times", id, n)
			}
		}
		if n, _ := sums(t, reg, "sluice_ledger_queue_length", nil); n != 0 {
			t.Errorf("queue length %v after the flush, want 0", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestLedgerGivesUpPoison: one event that the store never takes must not hold
// up the others.
func TestLedgerGivesUpPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := &writer{fail: func(evs []metrics.Event) error {
			for i := range evs {
				if evs[i].RequestID == "r00777" {
					return errors.New("value out of range")
				}
			}
			return nil
		}}
		r := metrics.New(metrics.Options{Registerer: reg, Writer: w, Log: quiet})
		stop := start(r)
		record(r, 0, 1000)
		time.Sleep(3 * time.Minute)
		if n := len(w.stored()); n != 999 {
			t.Errorf("%d stored, want all but one", n)
		}
		if n, _ := sums(t, reg, "sluice_ledger_dropped_total", nil); n != 1 {
			t.Errorf("dropped %v, want 1", n)
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestLedgerLoneLastPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writer{fail: func(evs []metrics.Event) error {
			if evs[0].RequestID == "r00000" {
				return errors.New("value out of range")
			}
			return nil
		}}
		r := metrics.New(metrics.Options{Writer: w, Log: quiet})
		stop := start(r)
		record(r, 0, 1)
		time.Sleep(time.Minute)
		record(r, 1, 3)
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{"r00001", "r00002"}, w.stored()); d != "" {
			t.Errorf("stored (-want +got):\n%s", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestShutdownFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tries := 0
		w := &writer{fail: func([]metrics.Event) error {
			if tries++; tries < 4 {
				return errAway
			}
			return nil
		}}
		r := metrics.New(metrics.Options{Writer: w, AccessLog: &log, Log: quiet})
		stop := start(r)
		record(r, 0, 1200)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n, lines := len(w.stored()), bytes.Count(log.Bytes(), []byte("\n")); n != 1200 || lines != 1200 {
			t.Errorf("%d stored, %d lines; want 1200 of each", n, lines)
		}
		record(r, 1200, 1201) // late: nobody reads the queue any more
		if n := len(w.stored()); n != 1200 {
			t.Errorf("%d stored, want 1200", n)
		}
	})
}

func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := &writer{fail: func([]metrics.Event) error { return errAway }}
		pr, pw := io.Pipe() // a reader that does not read
		r := metrics.New(metrics.Options{Registerer: reg, Writer: w, AccessLog: pw, Log: quiet, DrainTimeout: 3 * time.Second})
		stop := start(r)
		record(r, 0, 10)
		begin := time.Now()
		err := stop()
		if err == nil || time.Since(begin) > 4*time.Second {
			t.Errorf("Run returned %v after %v, want an error after 3 s", err, time.Since(begin))
		}
		if n, _ := sums(t, reg, "sluice_ledger_dropped_total", nil); n != 10 {
			t.Errorf("dropped %v, want 10", n)
		}
		pr.Close() // lets the goroutine go
		synctest.Wait()
		if n, _ := sums(t, reg, "sluice_access_log_dropped_total", nil); n != 10 {
			t.Errorf("lines dropped %v, want 10", n)
		}
	})
}

// TestAccessLogDoesNotWaitForTheStore: the two sinks are independent.
func TestAccessLogDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log safeBuffer
		w := &writer{fail: func([]metrics.Event) error { return errAway }}
		r := metrics.New(metrics.Options{Writer: w, AccessLog: &log, Log: quiet, DrainTimeout: time.Second})
		stop := start(r)
		synctest.Wait()
		record(r, 0, 5)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 5 {
			t.Errorf("%d lines after 100 ms, want 5", n)
		}
		if err := stop(); err == nil {
			t.Error("Run lost 5 events without an error")
		}
	})
}

func TestFlushWithoutRunEndsWithContext(t *testing.T) {
	r := metrics.New(metrics.Options{Writer: &writer{}, Log: quiet})
	record(r, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Flush = %v, want context.Canceled", err)
	}
}

func TestSeriesOfEndedExperimentsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
		stop := start(r)
		infos := func(state string) []metrics.ExperimentInfo {
			return []metrics.ExperimentInfo{{Key: "e1", State: state, Baseline: "a", Variants: []metrics.VariantInfo{{Name: "a", Weight: 10000}}}}
		}
		r.SetExperiments(append(infos("running"), metrics.ExperimentInfo{Key: "e2", State: "running"}))
		r.Record(event("e1", "a"))
		r.Record(event("e2", "a"))
		r.SetExperiments(infos("completed")) // e2 is deleted
		time.Sleep(23 * time.Hour)
		for _, e := range []string{"e1", "e2"} {
			if n, _ := sums(t, reg, "sluice_requests_total", map[string]string{"experiment": e}); n != 1 {
				t.Errorf("%s: %v requests after 23 h, want 1", e, n)
			}
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		for _, f := range gather(t, reg) {
			for _, e := range []string{"e1", "e2"} {
				if _, n := sums(t, reg, f.GetName(), map[string]string{"experiment": e}); n > 0 {
					t.Errorf("%s has series of %s after 26 h", f.GetName(), e)
				}
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSetConfig(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	if _, n := sums(t, reg, "sluice_config_revision", nil); n != 0 {
		t.Error("a revision is exported before any table serves")
	}
	r.SetConfig(7, true, time.Unix(100, 0))
	r.SetConfig(8, false, time.Unix(200, 0))
	for name, want := range map[string]float64{
		"sluice_config_revision": 7, "sluice_config_last_reload_successful": 0, "sluice_config_last_reload_success_timestamp_seconds": 100,
	} {
		if got, _ := sums(t, reg, name, nil); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := metrics.New(metrics.Options{Log: quiet})
		if got := r.Live(); len(got) != 0 {
			t.Errorf("Live = %v before any request", got)
		}
		for i := range 600 { // ten minutes, one request a second
			ev := event("e1", "canary")
			ev.HasUnit, ev.Unit = true, [8]byte{byte(i), byte(i >> 8)}
			ev.Duration = time.Duration(1+i%100) * 10 * time.Millisecond
			ev.Attempts[0].CostNano = 1e6
			switch {
			case i%10 == 0:
				ev.Outcome = "upstream_error"
			case i%10 == 1:
				ev.Outcome = "canceled"
			}
			r.Record(ev)
			time.Sleep(time.Second)
		}
		all := r.Live()
		if len(all) != 1 {
			t.Fatalf("%d arms, want 1", len(all))
		}
		a := all[0]
		near := func(name string, got *float64, want, off float64) {
			if got == nil || *got < want*(1-off) || *got > want*(1+off) {
				t.Errorf("%s = %v, want %v ± %v %%", name, got, want, off*100)
			}
		}
		near("rps 1m", &a.RPS1m, 1, .02)
		near("rps 5m", &a.RPS5m, 1, .02)
		near("success ratio", a.SuccessRatio, 8.0/9, .01)
		near("p50", a.DurationP50, .5, .07)
		near("p95", a.DurationP95, .95, .07)
		near("ttft p50", a.TTFTP50, .12, .07)
		near("input/s", &a.InputPerSec, 100, .02)
		near("output/s", &a.OutputPerSec, 24, .02)
		near("cost/h", &a.CostPerHour, 3.6, .02)
		units := float64(a.Units)
		near("units", &units, 600, .05)
		if a.Requests != 600 || a.Outcomes["upstream_error"] < 29 || a.Outcomes["upstream_error"] > 32 {
			t.Errorf("requests %d, upstream errors in the window %d", a.Requests, a.Outcomes["upstream_error"])
		}
		time.Sleep(2 * time.Hour)
		a = r.Live()[0]
		if a.RPS5m != 0 || a.SuccessRatio != nil || a.DurationP95 != nil || a.Units != 0 || a.Requests != 600 {
			t.Errorf("two idle hours later: %+v", a)
		}
	})
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
