package trial

import (
	"slices"

	"sluice/experiment/guardrail"
)

// Watch is what a replica counts of one experiment in one epoch; immutable. A
// Watch with another Plan, Epoch or Generation begins to count anew; what
// differs in the rest takes effect at once.
type Watch struct {
	Experiment string
	Generation int
	Epoch      int64 // revision at which the step began
	Variants   int
	Baseline   int
	Configs    []guardrail.Config
	Plan       *Plan // of Configs
	// Replicas that live: a unit's requests are spread over them, so that its j-th
	// here is about its ((j-1)*Replicas+1)-th in all. 0 is 1.
	Replicas int
	// Frozen says that the rollout has begun: no past is learnt any more.
	Frozen bool
	// Excluded are the units whose past fails, of all replicas together; nil as
	// long as only what this replica learnt is known.
	Excluded *Exclusions
	// Breaker switches the local breaker on.
	Breaker bool
}

// Exclusions are units that are no witnesses because they failed on the baseline
// before the rollout began, by what they failed in. The same on every replica,
// or the arms would be divided by where a request came in.
type Exclusions struct {
	Errors   []uint64 `json:"errors,omitempty"`
	Rejected []uint64 `json:"rejected,omitempty"`
	Slow     []uint64 `json:"slow,omitempty"`
	Flawed   []uint64 `json:"flawed,omitempty"`
}

// MaxExcluded bounds each list of Exclusions.
const MaxExcluded = 20_000

// Merge adds another replica's and keeps the lists sorted, without repeats.
func (e *Exclusions) Merge(o *Exclusions) {
	for _, l := range []struct{ to, from *[]uint64 }{{&e.Errors, &o.Errors}, {&e.Rejected, &o.Rejected}, {&e.Slow, &o.Slow}, {&e.Flawed, &o.Flawed}} {
		*l.to = append(*l.to, *l.from...)
		slices.Sort(*l.to)
		*l.to = slices.Compact(*l.to)
		if len(*l.to) > MaxExcluded {
			*l.to = (*l.to)[:MaxExcluded]
		}
	}
}

// history is the past of a unit as the lists have it.
func (e *Exclusions) history(unit uint64) (h History) {
	failed := func(list []uint64) Tally {
		if _, in := slices.BinarySearch(list, unit); in {
			return Tally{N: 1, Bad: 1}
		}
		return Tally{}
	}
	return History{Errors: failed(e.Errors), Rejected: failed(e.Rejected), Slow: failed(e.Slow), Flawed: failed(e.Flawed)}
}

func (e *Exclusions) add(unit uint64, h History) {
	for _, l := range []struct {
		to    *[]uint64
		tally Tally
		share float64
	}{{&e.Errors, h.Errors, pastErrors}, {&e.Rejected, h.Rejected, pastErrors}, {&e.Slow, h.Slow, pastSlow}, {&e.Flawed, h.Flawed, pastErrors}} {
		if l.tally.fails(l.share) && len(*l.to) < MaxExcluded {
			*l.to = append(*l.to, unit)
		}
	}
}

func (w *Watch) replicas() int { return max(w.Replicas, 1) }

// ordinal is about the unit's how-manieth request in all this is.
func (w *Watch) ordinal(here int) int { return (here-1)*w.replicas() + 1 }

// same reports whether counts go on.
func (w *Watch) same(o *Watch) bool {
	return w.Plan == o.Plan && w.Epoch == o.Epoch && w.Generation == o.Generation && w.Variants == o.Variants && w.Baseline == o.Baseline
}

func (w *Watch) errorAt() int {
	return slices.IndexFunc(w.Configs, func(c guardrail.Config) bool { return c.Metric == guardrail.Error })
}
