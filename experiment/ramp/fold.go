package ramp

import (
	"fmt"
	"math"

	"sluice/experiment/guardrail"
	"sluice/experiment/stats"
	"sluice/experiment/trial"
)

// How ticks are put together before they are compared. A tick's bad trials are
// of requests that began before it, so that very few exposures would be compared
// with events of others; whether to wait depends on exposures alone, never on
// what went badly, and so costs nothing of the proof.
const (
	fewExposures = 5
	longestWait  = 10_000 // ms
	// lateEvery is the length of the parts of a long epoch, ms.
	lateEvery = 30 * 60_000
	// calm is how long after a disturbance the sample ratio is not looked at, ms.
	calm = 5 * 60_000
	// maxMarks bounds the replicas that are remembered.
	maxMarks = 256
)

// Add folds one tick into e; at is when it was recorded, Unix ms, on the one
// clock of the stream. It reports whether the tick counted: one of another epoch
// does not, nor does one that makes no sense, which is an error.
func (j *Judge) Add(e *Evidence, t *trial.Tick, at int64) (counted bool, err error) {
	if t.Generation != j.Generation || t.Epoch != j.Epoch {
		e.Foreign++
		return false, nil
	}
	if err := j.check(t); err != nil {
		e.Damaged++
		return false, err
	}
	e.Ticks++
	e.Newest = max(e.Newest, at)
	j.mark(e, t, at)
	suspended, fresh := false, e.Ticks == 1
	for v := range t.Variants {
		fresh = fresh || len(t.Variants[v].Units) > 0
		j.arm(e, v, &t.Variants[v], at)
		suspended = j.treats(v) && j.suspends(t, v) || suspended
	}
	if suspended {
		e.Suspended++
	}
	base := &t.Variants[j.Baseline]
	loaded := false
	for v := range t.Variants {
		if !j.treats(v) {
			continue
		}
		out := j.suspends(t, v)
		if !out {
			j.load(e, t, v)
			loaded = true
		}
		for g := range j.Guardrails {
			j.track(&e.Tracks[v][g], g, &t.Variants[v], base, at, out)
		}
	}
	if loaded {
		j.load(e, t, j.Baseline)
	}
	if base.Profile != nil {
		e.Profile.Merge(base.Profile)
	}
	if fresh || e.Ratio.Stale {
		j.ratio(e)
	}
	return true, nil
}

// check tells what is wrong with a tick: it came over a network.
func (j *Judge) check(t *trial.Tick) error {
	if len(t.Variants) != len(j.Variants) {
		return fmt.Errorf("a tick of %d variants, the experiment has %d", len(t.Variants), len(j.Variants))
	}
	n := len(j.Guardrails)
	for v := range t.Variants {
		a := &t.Variants[v]
		if len(a.Counts) != 0 && len(a.Counts) != n || len(a.BadUnits) != 0 && len(a.BadUnits) != n || len(a.Means) != 0 && len(a.Means) != n {
			return fmt.Errorf("a tick with counts of %d guardrails, the experiment has %d", len(a.Counts), n)
		}
		if a.Started < 0 || a.Started > 1<<40 || a.Ready < 0 || a.Ready > 1<<20 {
			return fmt.Errorf("a tick of %d requests at %d endpoints is impossible", a.Started, a.Ready)
		}
		for _, c := range a.Counts {
			if c.N < 0 || c.K < 0 || c.K > c.N || c.Started < 0 || max(c.N, c.Started) > 1<<40 {
				return fmt.Errorf("a tick of %d trials, %d bad, %d started is impossible", c.N, c.K, c.Started)
			}
		}
		for _, sums := range a.Means {
			for _, s := range sums {
				if !(s.N >= 0 && s.N <= 1<<40) || !(s.X >= 0 && s.X <= math.MaxFloat64/1e9) {
					return fmt.Errorf("a tick with a mean of %v over %v is impossible", s.X, s.N)
				}
			}
		}
	}
	return nil
}

// mark notes how far the replica's ticks were folded, and what it named.
func (j *Judge) mark(e *Evidence, t *trial.Tick, at int64) {
	if e.Replicas == nil {
		e.Replicas = map[string]Mark{}
	}
	m, known := e.Replicas[t.Replica]
	if known && t.Seq > m.Seq+1 {
		e.Gaps += t.Seq - m.Seq - 1
	}
	if len(m.Units) != len(t.Variants) {
		m.Units = make([]int, len(t.Variants))
	}
	m.Seq, m.At = max(m.Seq, t.Seq), max(m.At, at)
	for v := range t.Variants {
		m.Units[v] += len(t.Variants[v].Units)
		e.Ratio.Full = e.Ratio.Full || m.Units[v] >= trial.MaxUnits
		if a := &t.Variants[v]; a.Provisional || a.Tripped || a.NotReady {
			e.Ratio.Disturbed = max(e.Ratio.Disturbed, at)
		}
	}
	if !known && len(e.Replicas) >= maxMarks {
		oldest := ""
		for id, m := range e.Replicas {
			if o := e.Replicas[oldest]; oldest == "" || m.At < o.At || m.At == o.At && id < oldest {
				oldest = id
			}
		}
		delete(e.Replicas, oldest)
	}
	e.Replicas[t.Replica] = m
}

// arm adds what a variant's traffic was, whether it is compared or not.
func (j *Judge) arm(e *Evidence, v int, t *trial.ArmTick, at int64) {
	a := &e.Arms[v]
	a.Started += t.Started
	s := &a.Recent[uint64(at/10_000)%uint64(len(a.Recent))]
	if s.Index != at/10_000 {
		*s = Slot{Index: at / 10_000}
	}
	s.N += t.Started
	before := a.Units.Count()
	for _, u := range t.Units {
		a.Units.Add(u)
	}
	s.New += int64(a.Units.Count() - before)
	for _, c := range t.Counts {
		if c.N > 0 {
			a.Newest = max(a.Newest, at)
			break
		}
	}
	for k, n := range t.Asks {
		add(&a.Asks, k, n)
	}
	for k, n := range t.Outside {
		add(&a.Outside, string(k), n)
	}
}

// add counts under a name; there are few names, and no more are taken.
func add(to *map[string]int64, name string, n int64) {
	if *to == nil {
		*to = map[string]int64{}
	}
	if _, ok := (*to)[name]; ok || len(*to) < 64 {
		(*to)[name] += n
	}
}

// suspends reports that the tick says nothing about v: one of the arms was not
// ready, or answered provisionally, and comparing the rest would compare who was
// left.
func (j *Judge) suspends(t *trial.Tick, v int) bool {
	b, c := &t.Variants[j.Baseline], &t.Variants[v]
	return b.NotReady || b.Provisional || c.NotReady || c.Provisional
}

func (j *Judge) load(e *Evidence, t *trial.Tick, v int) {
	a, l := &t.Variants[v], &e.Arms[v].Load
	l.Started += a.Started
	l.ReadyMs += int64(a.Ready) * min(max(t.To-t.From, 0), 60_000)
}

// track adds a tick to one guardrail of one treatment.
func (j *Judge) track(tr *Track, g int, canary, base *trial.ArmTick, at int64, suspended bool) {
	switch test := j.rates[g]; {
	case test != nil && suspended:
		tr.flush(test) // what was counted before counts
		_ = test.Add(&tr.Step, &guardrail.Tick{At: at, Suspended: true})
	case test != nil:
		tr.blame(bad(canary, g))
		tr.wait(test, &guardrail.Tick{At: at, Canary: counts(canary, g), Baseline: counts(base, g),
			Units: firsts(canary.Units, test.MinPassUnits), BadUnits: bad(canary, g)}, j.Since)
	case j.means[g] != nil && !suspended:
		tr.Canary = merge(tr.Canary, sums(canary, g))
		tr.Baseline = merge(tr.Baseline, sums(base, g))
	}
}

// maxBlame bounds the units that a track counts.
const maxBlame = 32

// blame counts who had bad trials; with too many, the one with the least makes
// room and passes its count on (Metwally and others, "Efficient computation of
// frequent and top-k elements in data streams", 2005), so that the worst is there
// and never counted too low.
func (tr *Track) blame(units []uint64) {
	for _, u := range units {
		tr.Blamed++
		at, least := -1, 0
		for i := range tr.Blame {
			if tr.Blame[i].Unit == u {
				at = i
				break
			}
			if tr.Blame[i].N < tr.Blame[least].N {
				least = i
			}
		}
		switch {
		case at >= 0:
			tr.Blame[at].N++
		case len(tr.Blame) < maxBlame:
			tr.Blame = append(tr.Blame, Blame{u, 1})
		default:
			tr.Blame[least] = Blame{u, tr.Blame[least].N + 1}
		}
	}
}

// worst is about how many of k bad trials are of the unit with the most.
func (tr *Track) worst(k int64) int64 {
	most := int64(0)
	for _, b := range tr.Blame {
		most = max(most, b.N)
	}
	if tr.Blamed == 0 {
		return 0
	}
	return int64(math.Ceil(float64(k) * float64(most) / float64(tr.Blamed)))
}

func counts(a *trial.ArmTick, g int) guardrail.Counts {
	if g < len(a.Counts) {
		return a.Counts[g]
	}
	return guardrail.Counts{}
}

func bad(a *trial.ArmTick, g int) []uint64 {
	if g < len(a.BadUnits) {
		return a.BadUnits[g]
	}
	return nil
}

func sums(a *trial.ArmTick, g int) []trial.Sum {
	if g < len(a.Means) {
		return a.Means[g]
	}
	return nil
}

func firsts(units []uint64, n int) []uint64 { return units[:min(len(units), n)] }

// wait puts the tick together with those before it until there is enough to
// compare, or it has waited for long.
func (tr *Track) wait(test *guardrail.Test, t *guardrail.Tick, since int64) {
	if w := tr.Waiting; w != nil {
		second := t.At/1000 != w.At/1000
		enough := min(w.Canary.Started, w.Baseline.Started) >= fewExposures
		if second && enough || t.At-w.At >= longestWait || t.At < w.At-longestWait {
			tr.flush(test)
		}
	}
	tr.stage(t.At, since)
	if tr.Waiting == nil {
		w := *t
		w.Units, w.BadUnits = append([]uint64(nil), t.Units...), append([]uint64(nil), t.BadUnits...)
		tr.Waiting = &w
		return
	}
	w := tr.Waiting
	w.Canary, w.Baseline = plus(w.Canary, t.Canary), plus(w.Baseline, t.Baseline)
	w.Units = append(w.Units, firsts(t.Units, max(test.MinPassUnits-len(w.Units), 0))...)
	w.BadUnits = append(w.BadUnits, firsts(t.BadUnits, max(maxWaiting-len(w.BadUnits), 0))...)
}

// maxWaiting bounds the bad units of a waiting tick; a FAIL needs fewer.
const maxWaiting = 1000

func plus(a, b guardrail.Counts) guardrail.Counts {
	return guardrail.Counts{N: a.N + b.N, K: a.K + b.K, Started: a.Started + b.Started}
}

// stage begins a new part of a long epoch.
func (tr *Track) stage(at, since int64) {
	from := max(since, tr.LateFrom)
	if at-from < lateEvery {
		return
	}
	tr.Stage++
	tr.LateFrom = at
	tr.Late = &guardrail.State{Health: tr.Step.Health, Last: tr.Step.Last, Unhealthy: tr.Step.Unhealthy}
}

func (tr *Track) flush(test *guardrail.Test) {
	if tr.Waiting == nil {
		return
	}
	// Counts were checked; a State refuses nothing else.
	_ = test.Add(&tr.Step, tr.Waiting)
	if tr.Late != nil {
		_ = test.Add(tr.Late, tr.Waiting)
	}
	tr.Waiting = nil
}

// merge adds sums of groups to a list that ascends by group.
func merge(to, from []trial.Sum) []trial.Sum {
	for _, s := range from {
		i := 0
		for i < len(to) && to[i].Group < s.Group {
			i++
		}
		if i == len(to) || to[i].Group != s.Group {
			to = append(to, trial.Sum{})
			copy(to[i+1:], to[i:])
			to[i] = trial.Sum{Group: s.Group}
		}
		to[i].N += s.N
		to[i].X += s.X
	}
	return to
}

// ratio looks at the sample ratio of the units that are new in this epoch.
func (j *Judge) ratio(e *Evidence) {
	r := &e.Ratio
	epoch, arms := j.epoch(e)
	r.On = r.On || arms > 1
	if r.Stale = r.Disturbed > 0 && e.Newest-r.Disturbed < calm; arms < 2 || r.Full || r.Stale {
		return
	}
	if log, err := stats.SRM(epoch); err == nil {
		r.LogE = min(r.LogBefore+log, 1e6) // +Inf is no JSON
	}
}

// epoch counts each arm's new units at the coarsest level of all samples.
func (j *Judge) epoch(e *Evidence) (epoch stats.Epoch, arms int) {
	level := e.Ratio.Before.level
	for v := range e.Arms {
		level = max(level, e.Arms[v].Units.level)
	}
	for v := range e.Arms {
		if j.Weights[v] <= 0 || j.killed(v) {
			continue
		}
		units, n := &e.Arms[v].Units, int64(0)
		for _, h := range units.hashes[:units.below(level)] {
			if !e.Ratio.Before.has(h) {
				n++
			}
		}
		arms++
		epoch.Counts = append(epoch.Counts, n)
		epoch.Weights = append(epoch.Weights, float64(j.Weights[v]))
	}
	return epoch, arms
}
