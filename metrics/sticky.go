package metrics

import "github.com/prometheus/client_golang/prometheus"

// StickyCounter counts what happens to pins (at most ten kinds, named by
// internal/sticky): drops, conflicts, reads over their budget.
func StickyCounter(reg prometheus.Registerer) func(kind string, n int64) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_sticky_events_total", Help: "What happened to pins of units and their copies, by kind.",
	}, []string{"kind"})
	reg.MustRegister(v)
	return func(kind string, n int64) { v.WithLabelValues(kind).Add(float64(n)) }
}
