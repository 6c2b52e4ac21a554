package metrics

import (
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// armKey are the labels of an arm: the configured names a request was assigned
// to.
type armKey struct{ model, experiment, variant, role string }

// arm holds an arm's children of every family, so that recording needs no label
// lookup in Prometheus.
type arm struct {
	key       armKey
	duration  [2]prometheus.Observer // unary, streamed
	ttft      prometheus.Observer
	tpot      prometheus.Observer
	tokens    [5]prometheus.Counter
	inputLen  prometheus.Observer
	outputLen prometheus.Observer
	usage     [3]prometheus.Counter // upstream, estimated, missing
	cost      *costCounter
	requests  small[string, *apiArm] // by api
	attempts  small[attemptKey, prometheus.Counter]
	reasons   small[string, prometheus.Counter] // assignments by reason
	answers   answerArm
	demand    *demand // of its model; nil for what is no client's
	live      live
}

// apiArm are an arm's requests of one API, by outcome. The word other has no
// counter: it appears only if an unknown outcome ever does.
type apiArm struct {
	name    string
	outcome [len(Classes)]prometheus.Counter
}

type attemptKey struct {
	upstream string
	outcome  int
}

const (
	usageUpstream = iota
	usageEstimated
	usageMissing
)

var usageNames = [...]string{"upstream", "estimated", "missing"}

const (
	// armSeries are the series one arm makes with one api; see families.
	armSeries    = 118 + answerSeries + outcomes
	maxLabel     = 128
	maxReasons   = 32 // distinct words; reasons come from code, not from callers
	maxAPIs      = 8
	upstreamCost = 22 + outcomes // series of one upstream
)

// small is a map that is read without a lock and copied for a write: its keys
// come from configuration, so writes are rare.
type small[K comparable, V any] struct{ m atomic.Pointer[map[K]V] }

func (s *small[K, V]) get(k K) (v V, ok bool) {
	if m := s.m.Load(); m != nil {
		v, ok = (*m)[k]
	}
	return v, ok
}

func (s *small[K, V]) len() int {
	if m := s.m.Load(); m != nil {
		return len(*m)
	}
	return 0
}

// edit replaces the map by a changed copy; callers hold the table's mutex.
func (s *small[K, V]) edit(change func(map[K]V)) {
	next := map[K]V{}
	if m := s.m.Load(); m != nil {
		for k, v := range *m {
			next[k] = v
		}
	}
	change(next)
	s.m.Store(&next)
}

// upstreamArm are the children that depend on an upstream alone.
type upstreamArm struct {
	name     string
	outcome  [outcomes]prometheus.Counter
	seconds  prometheus.Observer
	wait     prometheus.Observer
	hedges   [2]prometheus.Counter // won, lost
	anomaly  prometheus.Counter
	unpriced small[string, prometheus.Counter] // by model
	retries  small[int, prometheus.Counter]    // by outcome
}

// armTable finds the arm of an event and holds the cap on series.
type armTable struct {
	f        *families
	known    func(string) bool
	maxUsed  int
	arms     small[armKey, *arm]
	ups      small[string, *upstreamArm]
	overhead small[string, prometheus.Observer]
	falls    small[fallKey, prometheus.Counter]
	notes    small[noteKey, prometheus.Counter]
	reasons  small[string, struct{}] // distinct words of reason labels
	sticky   small[string, prometheus.Counter]
	start    time.Time

	mu      sync.Mutex // guards writes of the maps above, used
	used    int        // series admitted
	demands sync.Map   // *demand by model
}

type noteKey struct {
	experiment string
	note       int // in NoteNames
}

type fallKey struct{ model, experiment, variant, to, reason string }

func newArmTable(f *families, maxSeries int, known func(string) bool) *armTable {
	t := &armTable{f: f, known: known, maxUsed: maxSeries, start: time.Now()}
	return t
}

// label bounds a label value; configured names always pass.
func label(s, absent string) string {
	if s == "" {
		return absent
	}
	if len(s) > maxLabel || !utf8.ValidString(s) {
		return other
	}
	return s
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

func keyOf(e *Event) armKey {
	k := armKey{label(e.Model, other), label(e.Experiment, none), label(e.Assigned, defaultVariant), RolePrimary}
	if e.Role == RoleShadow || e.Role == RoleProbe {
		k.role = e.Role
	}
	return k
}

// of returns the event's arm, making it on first sight. Arms that are not
// configured or beyond the cap are the arm "other", which is not cached under
// the stranger's name: strangers cost no memory.
func (t *armTable) of(e *Event) *arm {
	raw := armKey{e.Model, e.Experiment, e.Assigned, e.Role}
	if a, ok := t.arms.get(raw); ok {
		return a
	}
	k := keyOf(e)
	if t.known != nil && k.model != other && !t.known(k.model) {
		k.model = other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.arms.get(k)
	if !ok && !t.admit("sluice_requests_total", armSeries) {
		k = armKey{other, other, other, k.role}
		a, ok = t.arms.get(k)
	}
	own := raw == k || raw == armKey{k.model, "", "", ""} && k.experiment == none && k.variant == defaultVariant ||
		raw == armKey{k.model, k.experiment, k.variant, ""} // absent names are empty in events
	if ok && !own {
		return a
	}
	if !ok {
		a = t.newArm(k)
	}
	t.arms.edit(func(m map[armKey]*arm) {
		m[k] = a
		if own {
			m[raw] = a
		}
	})
	return a
}

// each calls f once for every arm.
func (t *armTable) each(f func(a *arm)) {
	if m := t.arms.m.Load(); m != nil {
		for k, a := range *m {
			if k == a.key {
				f(a)
			}
		}
	}
}

// admit reserves n series, or counts the overflow of metric; 0 is for the
// series that others are folded into.
func (t *armTable) admit(metric string, n int) bool {
	if n > 0 && t.used+n > t.maxUsed {
		t.f.overflow.WithLabelValues(metric).Inc()
		return false
	}
	t.used += n
	return true
}

// newArm makes the counters at 0, so that rate() sees the first event;
// histograms appear with their first observation.
func (t *armTable) newArm(k armKey) *arm {
	f, lvs := t.f, []string{k.model, k.experiment, k.variant, k.role}
	with := func(v string) []string { return append(lvs[:4:4], v) }
	lazy := func(v *prometheus.HistogramVec, lvs []string) prometheus.Observer {
		return &lazyObserver{vec: v, lvs: lvs}
	}
	a := &arm{
		key:       k,
		duration:  [2]prometheus.Observer{lazy(f.duration, with("false")), lazy(f.duration, with("true"))},
		ttft:      lazy(f.ttft, lvs),
		tpot:      lazy(f.tpot, lvs),
		inputLen:  lazy(f.inputLen, lvs),
		outputLen: lazy(f.outputLen, lvs),
		cost:      f.cost.with(with("token")...),
	}
	for i := range a.tokens {
		a.tokens[i] = f.tokens[i].WithLabelValues(lvs...)
	}
	for i, name := range usageNames {
		a.usage[i] = f.usage.WithLabelValues(with(name)...)
	}
	a.answers = newAnswerArm(&f.answers, lvs)
	if k.role == RolePrimary {
		d, _ := t.demands.LoadOrStore(k.model, &demand{})
		a.demand = d.(*demand)
	}
	a.live.init()
	return a
}

// lazyObserver makes its histogram on the first observation.
type lazyObserver struct {
	vec  *prometheus.HistogramVec
	lvs  []string
	once sync.Once
	o    prometheus.Observer
}

func (l *lazyObserver) Observe(v float64) {
	l.once.Do(func() { l.o = l.vec.WithLabelValues(l.lvs...) })
	l.o.Observe(v)
}

// api returns the arm's request counters for one API, all outcomes at 0 from
// the start: rate() then sees the first error.
func (t *armTable) api(a *arm, api string) *apiArm {
	if c, ok := a.requests.get(api); ok {
		return c
	}
	api = label(api, other)
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.requests.len() >= maxAPIs {
		api = other
	}
	if c, ok := a.requests.get(api); ok {
		return c
	}
	if a.requests.len() > 0 { // the first is in armSeries; the few others are a closed set
		t.used += outcomes
	}
	c := &apiArm{name: api}
	for i := range c.outcome {
		c.outcome[i] = t.f.requests.WithLabelValues(a.key.model, a.key.experiment, a.key.variant, a.key.role, api, outcomeName(i))
	}
	a.requests.edit(func(m map[string]*apiArm) { m[api] = c })
	return c
}

// reason bounds the words of reason labels.
func (t *armTable) reason(s string) string {
	if _, ok := t.reasons.get(s); ok {
		return s
	}
	s = label(s, none)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.reasons.get(s); ok {
		return s
	}
	if t.reasons.len() >= maxReasons {
		return other
	}
	t.reasons.edit(func(m map[string]struct{}) { m[s] = struct{}{} })
	return s
}

// forget deletes every series of an experiment.
func (t *armTable) forget(experiment string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	match := prometheus.Labels{"experiment": experiment}
	t.arms.edit(func(m map[armKey]*arm) {
		for k, a := range m {
			if a.key.experiment != experiment {
				continue
			}
			if k == a.key {
				t.used -= armSeries + max(0, a.requests.len()-1)*outcomes + a.attempts.len() + a.reasons.len()
			}
			delete(m, k)
		}
	})
	t.falls.edit(func(m map[fallKey]prometheus.Counter) {
		for k := range m {
			if k.experiment == experiment {
				t.used--
				delete(m, k)
			}
		}
	})
	t.notes.edit(func(m map[noteKey]prometheus.Counter) {
		for k := range m {
			if k.experiment == experiment {
				t.used--
				delete(m, k)
			}
		}
	})
	for _, c := range t.f.all {
		if v, ok := c.(interface {
			DeletePartialMatch(prometheus.Labels) int
		}); ok {
			v.DeletePartialMatch(match)
		}
	}
}
