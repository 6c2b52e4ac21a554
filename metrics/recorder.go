package metrics

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Recorder. Zero values mean the documented defaults.
type Options struct {
	// Registerer gets the collectors, once; nil keeps them unregistered.
	Registerer prometheus.Registerer
	// Writer gets every event in batches; nil stores nothing.
	Writer Writer
	// AccessLog gets one JSON line per model request; nil is off. It is written
	// from one goroutine, whole lines at a time.
	AccessLog io.Writer
	Log       *slog.Logger // nil = slog.Default()
	// QueueSize bounds the events that wait for the writer, and separately those
	// that wait for the access log; 0 = 50,000. What does not fit is dropped from
	// that sink and counted, never from the metrics.
	QueueSize int
	// MaxSeries is the hard cap on series with per-request labels; 0 = 40,000.
	MaxSeries int
	// KnownModel answers whether a public model name is configured; it is asked
	// only for a model not seen before. nil trusts Event.Model.
	KnownModel func(model string) bool
	// UpstreamStates is asked at every scrape; nil exports no upstream gauges.
	UpstreamStates func() []UpstreamState
	Version        string        // for sluice_build_info; "" = dev
	DrainTimeout   time.Duration // how long Run may flush after its context ends; 0 = 10 s
}

const (
	defaultQueueSize = 50_000
	defaultMaxSeries = 40_000
	defaultDrain     = 10 * time.Second
	// forgetAfter is how long the series of an experiment outlive it, so that the
	// last scrapes and short-range queries still see them.
	forgetAfter = 24 * time.Hour
)

// Recorder turns events into metrics, access-log lines and ledger batches.
// All methods are safe for concurrent use.
type Recorder struct {
	log    *slog.Logger
	drain  time.Duration
	prom   *families
	arms   *armTable
	gauges *gauges
	ledger *ledger    // nil without a writer
	access *accessLog // nil when off
}

// New returns a Recorder with its collectors registered; a collector that is
// already registered is a mistake in wiring and panics, as MustRegister does.
func New(o Options) *Recorder {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.QueueSize <= 0 {
		o.QueueSize = defaultQueueSize
	}
	if o.MaxSeries <= 0 {
		o.MaxSeries = defaultMaxSeries
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = defaultDrain
	}
	r := &Recorder{log: o.Log, drain: o.DrainTimeout}
	r.prom = newFamilies()
	r.arms = newArmTable(r.prom, o.MaxSeries, o.KnownModel)
	r.gauges = newGauges(r.arms, o.UpstreamStates, o.Version)
	if o.Writer != nil {
		r.ledger = newLedger(o.Writer, o.Log, o.QueueSize)
	}
	if o.AccessLog != nil {
		r.access = newAccessLog(o.AccessLog, o.Log, o.QueueSize)
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(r.prom, r.gauges, &sinkStats{r.ledger, r.access})
	}
	return r
}

// Record takes one finished request. It never blocks on a sink. The recorder
// owns ev.Attempts from here on: impossible token counts in it are clamped and
// counted, so that every sink sees the same numbers.
func (r *Recorder) Record(ev Event) {
	r.arms.observe(&ev)
	if r.ledger != nil {
		r.ledger.q.push(&ev)
	}
	if r.access != nil && ev.Role != RoleShadow && ev.Role != RoleProbe {
		r.access.q.push(&ev)
	}
}

// Run feeds the sinks until ctx ends, then flushes what is queued, for at most
// Options.DrainTimeout. It returns an error only when events had to be given
// up. Call it once; stop the callers of Record before ending ctx.
func (r *Recorder) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	if r.ledger != nil {
		wg.Go(func() { errs <- r.ledger.run(ctx, r.drain) })
	}
	if r.access != nil {
		wg.Go(func() { errs <- r.access.run(ctx, r.drain) })
	}
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case now := <-tick.C:
			for _, key := range r.gauges.expired(now.Add(-forgetAfter)) {
				r.Forget(key)
			}
		}
	}
	wg.Wait()
	close(errs)
	var first error
	for err := range errs {
		if first == nil {
			first = err
		}
	}
	return first
}

// Flush waits until every event recorded before the call has reached the
// writer and the access log, or ctx ends. It needs a running Run.
func (r *Recorder) Flush(ctx context.Context) error {
	if r.access != nil {
		if err := r.access.q.flush(ctx); err != nil {
			return err
		}
	}
	if r.ledger != nil {
		return r.ledger.q.flush(ctx)
	}
	return nil
}

// Forget deletes every series and live figure of an experiment. Run does it by
// itself 24 hours after an experiment ended.
func (r *Recorder) Forget(experiment string) { r.arms.forget(experiment) }
