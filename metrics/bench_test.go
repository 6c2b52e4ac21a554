package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/metrics"
)

func BenchmarkRecord(b *testing.B) {
	for _, bc := range []struct {
		name string
		opts metrics.Options
	}{
		{"metrics", metrics.Options{}},
		{"all", metrics.Options{Writer: writeFunc(func([]metrics.Event) error { return nil }), AccessLog: discard{}}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			bc.opts.Registerer, bc.opts.Log = prometheus.NewRegistry(), quiet
			r := metrics.New(bc.opts)
			stop := start(r)
			ev := event("e1", "canary")
			ev.HasUnit = true
			b.ReportAllocs()
			for b.Loop() {
				r.Record(ev)
			}
			b.StopTimer()
			if err := stop(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
