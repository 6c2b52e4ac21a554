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

// Merge adds another replica's and keeps the lists sorted, without repeats. Of a
// list that is too long the units with the lowest hashes stay: the same ones
// whatever the order in which replicas are merged.
func (e *Exclusions) Merge(o *Exclusions) {
	from := o.lists()
	for i, l := range e.lists() {
		all := append(*l.units, *from[i].units...)
		slices.Sort(all)
		all = slices.Compact(all)
		*l.units = all[:min(len(all), MaxExcluded)]
	}
}

// pastSet are kinds of a unit's past that fail, one bit each.
type pastSet uint8

// of are the lists that the unit is on.
func (e *Exclusions) of(unit uint64) (out pastSet) {
	for _, l := range e.lists() {
		if _, in := slices.BinarySearch(*l.units, unit); in {
			out |= 1 << l.past
		}
	}
	return out
}

// failed is the history of a unit with those pasts.
func (s pastSet) history() (h History) {
	failed := func(p past) Tally {
		n := uint16(s >> p & 1)
		return Tally{N: n, Bad: n}
	}
	return History{Errors: failed(pastOfErrors), Rejected: failed(pastOfRejected), Slow: failed(pastOfSlow), Flawed: failed(pastOfFlaws)}
}

type exclusionList struct {
	past  past
	units *[]uint64
}

func (e *Exclusions) lists() [4]exclusionList {
	return [4]exclusionList{{pastOfErrors, &e.Errors}, {pastOfRejected, &e.Rejected}, {pastOfSlow, &e.Slow}, {pastOfFlaws, &e.Flawed}}
}

func (e *Exclusions) add(unit uint64, h *History) {
	for _, l := range e.lists() {
		if h.fails(l.past) {
			*l.units = append(*l.units, unit)
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
