package metrics_test

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/metrics"
)

// TestPaceLeavesTheUploadOut: what the client took to send its request says
// nothing about the pace of the engine.
func TestPaceLeavesTheUploadOut(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	ev := event("e1", "control")
	ev.Duration, ev.TTFT = 12*time.Second, time.Second
	ev.Attempts[0].Start, ev.Attempts[0].Output = ev.Time.Add(10*time.Second), 11
	r.Record(ev)
	if got, n := sums(t, reg, "sluice_time_per_output_token_seconds", nil); n != 1 || math.Abs(got-0.1) > 1e-9 {
		t.Errorf("%v seconds per token in %d series, want 0.1 in 1", got, n)
	}
}
