package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// observe books one event: counters and histograms at once, live figures too.
func (t *armTable) observe(e *Event) {
	t.normalise(e)
	a := t.of(e)
	oc := outcomeIndex(e.Outcome)
	total := e.Totals()

	t.request(a, e.API, oc)
	stream := 0
	if e.Stream {
		stream = 1
	}
	a.duration[stream].Observe(e.Duration.Seconds())
	if e.Stream && e.TTFT > 0 {
		a.ttft.Observe(e.TTFT.Seconds())
		if s, ok := perOutputToken(e, oc); ok {
			a.tpot.Observe(s)
		}
	}
	if total.HasUsage {
		a.inputLen.Observe(float64(total.Input))
		a.outputLen.Observe(float64(total.Output))
		for i, n := range [...]int64{total.Input, total.Cached, total.CacheWr, total.Output, total.Reasoning} {
			if n > 0 {
				a.tokens[i].Add(float64(n))
			}
		}
	}
	if total.Priced {
		a.cost.add(total.CostNano)
	}
	t.attempts(a, e)
	a.answers.observe(e)
	if a.demand != nil {
		a.demand.observe(e)
	}

	if e.Queued > 0 && e.Upstream != "" {
		t.upstream(e.Upstream).wait.Observe(e.Queued.Seconds())
	}

	primary := a.key.role == RolePrimary
	if primary && e.Overhead > 0 {
		t.overheadOf(e.API).Observe(e.Overhead.Seconds())
	}
	if primary && e.Experiment != "" {
		t.assignment(a, e.Reason).Inc()
	}
	for i := range NoteNames {
		if primary && e.Notes>>i&1 == 1 {
			t.note(a, i).Inc()
		}
	}
	a.live.observe(time.Now(), e, &total, oc)
}

// normalise clamps what an upstream cannot have meant.
func (t *armTable) normalise(e *Event) {
	for i := range e.Attempts {
		a := &e.Attempts[i]
		n := 0
		if a.HasUsage {
			var tk Tokens
			tk, n = a.Tokens().Normal()
			a.Input, a.Cached, a.CacheWr, a.Output, a.Reasoning = tk.Input, tk.Cached, tk.CacheWrite, tk.Output, tk.Reasoning
		}
		if a.CostNano < 0 {
			a.CostNano = 0
			n++
		}
		if n > 0 {
			t.upstream(a.Upstream).anomaly.Add(float64(n))
		}
	}
}

func (t *armTable) request(a *arm, api string, oc int) {
	c := t.api(a, api)
	if oc < len(c.outcome) {
		c.outcome[oc].Inc()
		return
	}
	t.f.requests.WithLabelValues(a.key.model, a.key.experiment, a.key.variant, a.key.role, c.name, other).Inc()
}

// perOutputToken is the mean time per token after the first of the answering
// attempt; only whole answers say something about the engine's pace.
func perOutputToken(e *Event, oc int) (seconds float64, ok bool) {
	if oc != 0 || len(e.Attempts) == 0 {
		return 0, false
	}
	answering := e.Duration - e.TTFT
	if begun := e.Attempts[0].Start; !begun.IsZero() {
		answering -= begun.Sub(e.Time) // TTFT counts from there
	}
	last := &e.Attempts[len(e.Attempts)-1]
	if answering <= 0 || !last.HasUsage || last.Output < 2 {
		return 0, false
	}
	return answering.Seconds() / float64(last.Output-1), true
}

// attempts books what every call did, to the assigned variant.
func (t *armTable) attempts(a *arm, e *Event) {
	prev := e.Assigned
	for i := range e.Attempts {
		at := &e.Attempts[i]
		oc := outcomeIndex(at.Outcome)
		up := t.upstream(at.Upstream)
		up.outcome[oc].Inc()
		up.seconds.Observe(at.Duration.Seconds())
		t.attempt(a, up.name, oc).Inc()
		switch {
		case at.HasUsage && at.Estimated:
			a.usage[usageEstimated].Inc()
		case at.HasUsage:
			a.usage[usageUpstream].Inc()
		case oc == 0:
			a.usage[usageMissing].Inc()
		}
		if at.HasUsage && !at.Priced && firstUnpriced(e.Attempts[:i], at.Upstream) {
			t.unpriced(up, a.key.model).Inc()
		}
		if at.Reason == hedge {
			race := 0
			if i+1 < len(e.Attempts) && beside(at, &e.Attempts[i+1]) {
				race = 1
			}
			up.hedges[race].Inc()
		}
		if i > 0 && !beside(&e.Attempts[i-1], at) {
			t.retry(e.Attempts[i-1].Upstream, outcomeIndex(e.Attempts[i-1].Outcome)).Inc()
		}
		if at.Variant != prev && at.Variant != e.Assigned {
			t.fallback(a, at.Variant, at.Reason).Inc()
		}
		prev = at.Variant
	}
}

// hedge is the Reason of a call that was made beside another.
const hedge = "hedge"

// beside reports that of two neighbours the earlier record is the loser of a
// race with the later one: no retry. A retry begins after what it follows.
func beside(loser, next *Attempt) bool {
	return next.Reason == hedge || loser.Reason == hedge && next.Start.Before(loser.Start)
}

// firstUnpriced reports whether no earlier attempt was counted as unpriced on
// the same upstream: the metric counts requests.
func firstUnpriced(earlier []Attempt, upstream string) bool {
	for i := range earlier {
		if a := &earlier[i]; a.Upstream == upstream && a.HasUsage && !a.Priced {
			return false
		}
	}
	return true
}

// child returns the value of k in s, made by mk under the table's mutex when it
// is new. admit refuses a new one beyond the cap: ok is then false.
func child[K comparable, V any](t *armTable, s *small[K, V], k K, metric string, n int, mk func() V) (v V, ok bool) {
	if v, ok := s.get(k); ok {
		return v, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := s.get(k); ok {
		return v, true
	}
	if !t.admit(metric, n) {
		return v, false
	}
	v = mk()
	s.edit(func(m map[K]V) { m[k] = v })
	return v, true
}

// upstream returns an upstream's own counters; beyond the cap it is "other".
func (t *armTable) upstream(name string) *upstreamArm {
	if u, ok := t.ups.get(name); ok {
		return u
	}
	name = label(name, other)
	mk := func(n string) func() *upstreamArm {
		return func() *upstreamArm {
			u := &upstreamArm{name: n, seconds: t.f.upstreamSec.WithLabelValues(n), wait: t.f.queueWait.WithLabelValues(n), anomaly: t.f.anomalies.WithLabelValues(n)}
			for i := range u.outcome {
				u.outcome[i] = t.f.upstream.WithLabelValues(n, outcomeName(i))
			}
			u.hedges = [2]prometheus.Counter{t.f.hedges.WithLabelValues(n, "won"), t.f.hedges.WithLabelValues(n, "lost")}
			return u
		}
	}
	if u, ok := child(t, &t.ups, name, "sluice_upstream_requests_total", upstreamCost, mk(name)); ok {
		return u
	}
	u, _ := child(t, &t.ups, other, "", 0, mk(other))
	return u
}

func (t *armTable) attempt(a *arm, upstream string, oc int) prometheus.Counter {
	with := func(up string) prometheus.Counter {
		return t.f.attempts.WithLabelValues(a.key.model, a.key.experiment, a.key.variant, up, outcomeName(oc))
	}
	c, ok := child(t, &a.attempts, attemptKey{upstream, oc}, "sluice_attempts_total", 1, func() prometheus.Counter { return with(upstream) })
	if !ok {
		return with(other)
	}
	return c
}

func (t *armTable) assignment(a *arm, reason string) prometheus.Counter {
	if c, ok := a.reasons.get(reason); ok {
		return c
	}
	reason = t.reason(reason)
	with := func() prometheus.Counter {
		return t.f.assignments.WithLabelValues(a.key.experiment, a.key.variant, reason)
	}
	c, ok := child(t, &a.reasons, reason, "sluice_experiment_assignments_total", 1, with)
	if !ok {
		return t.f.assignments.WithLabelValues(other, other, other)
	}
	return c
}

func (t *armTable) note(a *arm, i int) prometheus.Counter {
	k := noteKey{a.key.experiment, i}
	with := func() prometheus.Counter { return t.f.notes.WithLabelValues(k.experiment, NoteNames[i]) }
	c, ok := child(t, &t.notes, k, "sluice_experiment_notes_total", 1, with)
	if !ok {
		return t.f.notes.WithLabelValues(other, NoteNames[i])
	}
	return c
}

func (t *armTable) fallback(a *arm, to, reason string) prometheus.Counter {
	k := fallKey{a.key.model, a.key.experiment, a.key.variant, label(to, defaultVariant), t.reason(reason)}
	with := func() prometheus.Counter {
		return t.f.fallbacks.WithLabelValues(k.model, k.experiment, k.variant, k.to, k.reason)
	}
	c, ok := child(t, &t.falls, k, "sluice_fallbacks_total", 1, with)
	if !ok {
		return t.f.fallbacks.WithLabelValues(other, other, other, other, other)
	}
	return c
}

func (t *armTable) unpriced(u *upstreamArm, model string) prometheus.Counter {
	with := func() prometheus.Counter { return t.f.unpriced.WithLabelValues(model, u.name) }
	c, ok := child(t, &u.unpriced, model, "sluice_unpriced_requests_total", 1, with)
	if !ok {
		return t.f.unpriced.WithLabelValues(other, other)
	}
	return c
}

func (t *armTable) retry(upstream string, oc int) prometheus.Counter {
	u := t.upstream(upstream)
	with := func() prometheus.Counter { return t.f.retries.WithLabelValues(u.name, outcomeName(oc)) }
	c, ok := child(t, &u.retries, oc, "sluice_retries_total", 1, with)
	if !ok {
		return t.f.retries.WithLabelValues(other, other)
	}
	return c
}

// overheadOf is outside the cap: it has the few words of the api label.
func (t *armTable) overheadOf(api string) prometheus.Observer {
	if o, ok := t.overhead.get(api); ok {
		return o
	}
	api = label(api, other)
	if t.overhead.len() >= maxAPIs {
		api = other
	}
	o, _ := child(t, &t.overhead, api, "", 0, func() prometheus.Observer { return t.f.overhead.WithLabelValues(api) })
	return o
}

// CountSticky adds n to sluice_sticky_events_total{event}; event is one of
// internal/sticky's words.
func (r *Recorder) CountSticky(event string, n int64) {
	if n <= 0 {
		return
	}
	t := r.arms
	c, ok := t.sticky.get(event)
	if !ok {
		event = label(event, other)
		if t.sticky.len() >= maxReasons {
			event = other
		}
		c, _ = child(t, &t.sticky, event, "", 0, func() prometheus.Counter { return t.f.sticky.WithLabelValues(event) })
	}
	c.Add(float64(n))
}
