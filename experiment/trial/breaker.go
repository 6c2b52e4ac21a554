package trial

import "sluice/experiment/guardrail"

// Trip is a local breaker that opened: a treatment failed so often in a row on
// this replica that no healthy one would, while the baseline did not.
type Trip struct {
	Experiment string
	Generation int
	Epoch      int64
	Variant    int
	Guardrail  int // index in Watch.Configs
	Failures   int // in a row
	Limit      int // that they reached, or twice as many of one unit
	// The baseline in the last ten minutes, on this replica.
	BaselineBad, BaselineTrials int64
	// And since the first of the failures began.
	BaselineBadSince, BaselineTrialsSince int64
}

// breaker is the local breaker of one experiment.
type breaker struct {
	runs    []run // by variant
	minutes [10]struct{ at, n, k int64 }
}

// run is a variant's failures in a row, and what the baseline did meanwhile.
type run struct {
	guardrail.Streak
	from    int64 // Unix ns at which its first request began
	seen    int64 // and failed
	later   int   // of them: began after that
	n, k    int64 // the baseline's trials that began since from
	tripped bool  // told already in this epoch
}

const (
	// A server that dies breaks everything that runs there at once. That is one
	// failure, and readiness takes care of what comes next; so some of a run must
	// have begun after its first was seen.
	breakerLater = 2
	// breakerBaseline is how many trials of the baseline a run is held against:
	// in an outage of both arms the few in the canary may come first.
	breakerBaseline = 3
	// unhealthyShare is from when on a baseline without max_rate is unhealthy.
	unhealthyShare = 0.25
)

func (b *breaker) restart(w *Watch, anew bool) {
	b.runs = make([]run, w.Variants)
	if anew {
		b.minutes = [10]struct{ at, n, k int64 }{}
	}
}

// rearm lets a variant trip again in the same epoch.
func (b *breaker) rearm(variant int) {
	if variant >= 0 && variant < len(b.runs) {
		b.runs[variant] = run{}
	}
}

// add counts a settled error trial and reports a trip, once an epoch.
func (b *breaker) add(r *Request, i int, bad bool) (Trip, bool) {
	began := r.begun.UnixNano()
	at := began + int64(r.f.Age)
	minute := at / 60e9
	if r.f.Arm == Baseline {
		b.baseline(began, minute, bad)
		return Trip{}, false
	}
	if r.variant >= len(b.runs) {
		return Trip{}, false // of the watch before this one
	}
	n, k := b.recent(minute)
	limit := guardrail.BreakerLimit(k, n)
	x := &b.runs[r.variant]
	reached := x.Add(r.unit, bad, limit)
	switch {
	case !bad:
		*x = run{tripped: x.tripped}
		return Trip{}, false
	case x.Length == 1:
		x.from, x.seen = began, at
	case began >= x.seen:
		x.later++
	}
	if !reached || x.tripped || x.later < breakerLater || !x.healthy(r.watch.Configs[i].MaxRate) {
		return Trip{}, false
	}
	x.tripped = true
	w := r.watch
	return Trip{Experiment: w.Experiment, Generation: w.Generation, Epoch: w.Epoch, Variant: r.variant, Guardrail: i,
		Failures: x.Length, Limit: limit, BaselineBad: k, BaselineTrials: n, BaselineBadSince: x.k, BaselineTrialsSince: x.n}, true
}

func (b *breaker) baseline(began, minute int64, bad bool) {
	k := int64(0)
	if bad {
		k = 1
	}
	m := &b.minutes[minute%10]
	if m.at != minute {
		m.at, m.n, m.k = minute, 0, 0
	}
	m.n++
	m.k += k
	for v := range b.runs {
		if x := &b.runs[v]; x.Length > 0 && began >= x.from {
			x.n++
			x.k += k
		}
	}
}

func (b *breaker) recent(minute int64) (n, k int64) {
	for _, m := range b.minutes {
		if minute-m.at < 10 {
			n, k = n+m.n, k+m.k
		}
	}
	return n, k
}

// healthy reports that the baseline was asked since the run began, and answered.
func (x *run) healthy(most float64) bool {
	if most <= 0 {
		most = unhealthyShare
	}
	return x.n >= breakerBaseline && float64(x.k) <= most*float64(x.n)
}

// Rearm lets the local breaker of a variant trip again in the same epoch.
func (c *Collector) Rearm(experiment string, variant int) {
	d := (*c.desks.Load())[experiment]
	if d == nil {
		return
	}
	d.mu.Lock()
	d.breaker.rearm(variant)
	d.mu.Unlock()
}
