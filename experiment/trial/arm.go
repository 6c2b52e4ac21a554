package trial

import (
	"encoding/binary"
	"slices"

	"sluice/experiment/guardrail"
)

// badKept is how many bad units of a guardrail a tick names: a FAIL asks for a
// few, not for all.
const badKept = 8

func newArm(guardrails int) arm {
	return arm{
		tick: ArmTick{Counts: make([]guardrail.Counts, guardrails)}, seen: map[uint64]struct{}{},
		bad: make([]map[uint64]struct{}, guardrails), sums: make([]map[uint8]*Sum, guardrails),
	}
}

func (a *arm) outside(why Why) {
	if a.tick.Outside == nil {
		a.tick.Outside = map[Why]int64{}
	}
	a.tick.Outside[why]++
}

// unit notes a unit's first request of the epoch.
func (a *arm) unit(unit uint64) {
	if _, known := a.seen[unit]; !known && len(a.seen) < MaxUnits {
		a.seen[unit] = struct{}{}
		a.tick.Units = append(a.tick.Units, unit)
	}
}

func (a *arm) trial(i int, unit uint64, bad, canary bool) {
	c := &a.tick.Counts[i]
	c.N++
	if !bad {
		return
	}
	c.K++
	if !canary {
		return // nobody asks which units of the baseline are bad
	}
	if a.bad[i] == nil {
		a.bad[i] = map[uint64]struct{}{}
	}
	if len(a.bad[i]) < badKept {
		a.bad[i][unit] = struct{}{}
	}
}

func (a *arm) mean(i int, unit uint64, value float64) {
	if a.sums[i] == nil {
		a.sums[i] = map[uint8]*Sum{}
	}
	g := uint8(unit >> 32)
	s := a.sums[i][g]
	if s == nil {
		s = &Sum{Group: g}
		a.sums[i][g] = s
	}
	s.N++
	s.X += value
}

// clear forgets what was drained, but not which units the epoch has seen.
func (a *arm) clear() {
	n := len(a.tick.Counts)
	a.tick = ArmTick{Counts: make([]guardrail.Counts, n)}
	clear(a.bad)
	clear(a.sums)
	clear(a.asks[:])
}

// armSums puts the shards of one variant together.
type armSums struct {
	bad  []map[uint64]struct{}
	sums []map[uint8]*Sum
	asks [len(askNames)]int64
}

func (m *armSums) take(a *arm, to *ArmTick) {
	n := len(a.tick.Counts)
	if to.Counts == nil {
		to.Counts = make([]guardrail.Counts, n)
		m.bad, m.sums = make([]map[uint64]struct{}, n), make([]map[uint8]*Sum, n)
	}
	to.Started += a.tick.Started
	to.Units = append(to.Units, a.tick.Units...)
	for why, k := range a.tick.Outside {
		if to.Outside == nil {
			to.Outside = map[Why]int64{}
		}
		to.Outside[why] += k
	}
	for i := range m.asks {
		m.asks[i] += a.asks[i]
	}
	for i, c := range a.tick.Counts {
		to.Counts[i].N += c.N
		to.Counts[i].K += c.K
		to.Counts[i].Started += c.Started
		m.units(i, a.bad[i])
		m.means(i, a.sums[i])
	}
}

func (m *armSums) units(i int, bad map[uint64]struct{}) {
	for u := range bad {
		if m.bad[i] == nil {
			m.bad[i] = map[uint64]struct{}{}
		}
		if len(m.bad[i]) < badKept {
			m.bad[i][u] = struct{}{}
		}
	}
}

func (m *armSums) means(i int, sums map[uint8]*Sum) {
	for g, s := range sums {
		if m.sums[i] == nil {
			m.sums[i] = map[uint8]*Sum{}
		}
		if have := m.sums[i][g]; have != nil {
			have.N += s.N
			have.X += s.X
		} else {
			m.sums[i][g] = s
		}
	}
}

// put writes what has been put together in an order of its own, so that equal
// counts give equal bytes.
func (m *armSums) put(to *ArmTick) {
	slices.Sort(to.Units)
	for i := range m.bad {
		if len(m.bad[i]) > 0 && to.BadUnits == nil {
			to.BadUnits = make([][]uint64, len(m.bad))
		}
		for u := range m.bad[i] {
			to.BadUnits[i] = append(to.BadUnits[i], u)
		}
		if to.BadUnits != nil {
			slices.Sort(to.BadUnits[i])
		}
	}
	for i := range m.sums {
		if len(m.sums[i]) > 0 && to.Means == nil {
			to.Means = make([][]Sum, len(m.sums))
		}
		for _, s := range m.sums[i] {
			to.Means[i] = append(to.Means[i], *s)
		}
		if to.Means != nil {
			slices.SortFunc(to.Means[i], func(a, b Sum) int { return int(a.Group) - int(b.Group) })
		}
	}
	for i, k := range m.asks {
		if k > 0 {
			if to.Asks == nil {
				to.Asks = map[string]int64{}
			}
			to.Asks[askNames[i]] = k
		}
	}
}

// unitHash is the pin field as a number, which is a hash already.
func unitHash(field [8]byte) uint64 { return binary.BigEndian.Uint64(field[:]) }

// breaker is the local breaker of one experiment: guarded by desk.mu.
type breaker struct {
	streaks []guardrail.Streak // by variant
	tripped []bool             // told already in this epoch
	minutes [10]struct{ at, n, k int64 }
}

func (b *breaker) restart(w *Watch, anew bool) {
	b.streaks, b.tripped = make([]guardrail.Streak, w.Variants), make([]bool, w.Variants)
	if anew {
		b.minutes = [10]struct{ at, n, k int64 }{}
	}
}

// add counts a settled error trial and reports a trip, once an epoch.
func (b *breaker) add(r *Request, i int, bad bool) (Trip, bool) {
	at := r.begun.Add(r.f.Age).Unix() / 60
	if r.f.Arm == Baseline {
		m := &b.minutes[at%10]
		if m.at != at {
			m.at, m.n, m.k = at, 0, 0
		}
		m.n++
		if bad {
			m.k++
		}
		return Trip{}, false
	}
	n, k := b.baseline(at)
	limit := guardrail.BreakerLimit(k, n)
	if !b.streaks[r.variant].Add(r.unit, bad, limit) || b.tripped[r.variant] || b.unhealthy(at, r.watch.Configs[i].MaxRate) {
		return Trip{}, false
	}
	b.tripped[r.variant] = true
	w := r.watch
	return Trip{Experiment: w.Experiment, Generation: w.Generation, Epoch: w.Epoch, Variant: r.variant, Guardrail: i,
		Failures: b.streaks[r.variant].Length, Limit: limit, BaselineBad: k, BaselineTrials: n}, true
}

func (b *breaker) baseline(at int64) (n, k int64) {
	for _, m := range b.minutes {
		if at-m.at < 10 {
			n, k = n+m.n, k+m.k
		}
	}
	return n, k
}

// unhealthy reports a baseline that fails too, in this minute and the last.
func (b *breaker) unhealthy(at int64, most float64) bool {
	var n, k int64
	for _, m := range b.minutes {
		if at-m.at < 2 {
			n, k = n+m.n, k+m.k
		}
	}
	return most > 0 && n > 0 && float64(k) > most*float64(n)
}

// Rearm lets the local breaker of a variant trip again in the same epoch.
func (c *Collector) Rearm(experiment string, variant int) {
	d := (*c.desks.Load())[experiment]
	if d == nil {
		return
	}
	d.mu.Lock()
	if variant >= 0 && variant < len(d.breaker.tripped) {
		d.breaker.tripped[variant] = false
		d.breaker.streaks[variant] = guardrail.Streak{}
	}
	d.mu.Unlock()
}
