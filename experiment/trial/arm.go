package trial

import (
	"encoding/binary"
	"slices"

	"sluice/experiment/guardrail"
)

// badKept is how many bad units of a guardrail a tick names: a FAIL asks for a
// few, not for all.
const badKept = 8

// provisionalOneIn is from when on an arm counts as provisional: one request in
// so many. A store that is late for one in a thousand changes no comparison, and
// would hold the ramp of a busy service for ever.
const provisionalOneIn = 100

// arm is what a shard counted of one variant since it was drained.
type arm struct {
	started int64
	// provisional are requests, beside those started.
	provisional int64
	counts      []guardrail.Counts
	units       []uint64 // that are new in the epoch
	bad         [][]uint64
	sums        []*groups // by guardrail; nil until there is something
	asks        [len(askNames)]int64
	outside     [len(whys)]int64
}

// groups are a mean's sums by group of units.
type groups struct {
	used bool
	n, x [Groups]float64
}

func newArm(guardrails int) arm {
	return arm{counts: make([]guardrail.Counts, guardrails), bad: make([][]uint64, guardrails), sums: make([]*groups, guardrails)}
}

func (a *arm) out(set Reasons) {
	for i := range a.outside {
		a.outside[i] += int64(set >> i & 1)
	}
}

func (a *arm) trial(i int, unit uint64, bad, canary bool) {
	c := &a.counts[i]
	c.N++
	if !bad {
		return
	}
	c.K++
	if canary { // nobody asks which units of the baseline are bad
		a.bad[i] = addUnit(a.bad[i], unit)
	}
}

func addUnit(set []uint64, unit uint64) []uint64 {
	if len(set) < badKept && !slices.Contains(set, unit) {
		set = append(set, unit)
	}
	return set
}

func (a *arm) mean(i int, unit uint64, value float64) {
	s := a.sums[i]
	if s == nil {
		s = new(groups)
		a.sums[i] = s
	}
	g := uint8(unit >> 32)
	s.used = true
	s.n[g]++
	s.x[g] += value
}

// clear forgets what was drained, and keeps the room.
func (a *arm) clear() {
	a.started, a.provisional = 0, 0
	a.units = nil
	clear(a.counts)
	for i := range a.bad {
		a.bad[i] = a.bad[i][:0]
	}
	for _, s := range a.sums {
		if s != nil && s.used {
			*s = groups{}
		}
	}
	clear(a.asks[:])
	clear(a.outside[:])
}

// armSums puts the shards of one variant together.
type armSums struct {
	sums    []*groups
	asks    [len(askNames)]int64
	outside [len(whys)]int64

	provisional int64
}

func (m *armSums) take(a *arm, to *ArmTick) {
	n := len(a.counts)
	if to.Counts == nil {
		to.Counts = make([]guardrail.Counts, n)
		m.sums = make([]*groups, n)
	}
	to.Started += a.started
	m.provisional += a.provisional
	to.Units = append(to.Units, a.units...)
	for i := range m.asks {
		m.asks[i] += a.asks[i]
	}
	for i := range m.outside {
		m.outside[i] += a.outside[i]
	}
	for i, c := range a.counts {
		to.Counts[i].N += c.N
		to.Counts[i].K += c.K
		to.Counts[i].Started += c.Started
		if len(a.bad[i]) > 0 && to.BadUnits == nil {
			to.BadUnits = make([][]uint64, n)
		}
		for _, u := range a.bad[i] {
			to.BadUnits[i] = addUnit(to.BadUnits[i], u)
		}
		m.means(i, a.sums[i])
	}
}

func (m *armSums) means(i int, s *groups) {
	if s == nil || !s.used {
		return
	}
	if m.sums[i] == nil {
		m.sums[i] = new(groups)
	}
	for g := range Groups {
		m.sums[i].n[g] += s.n[g]
		m.sums[i].x[g] += s.x[g]
	}
}

// put writes what has been put together in an order of its own, so that equal
// counts give equal bytes.
func (m *armSums) put(to *ArmTick) {
	slices.Sort(to.Units)
	to.Provisional = m.provisional > 0 && m.provisional*provisionalOneIn >= m.provisional+to.Started
	for i := range to.BadUnits {
		slices.Sort(to.BadUnits[i])
	}
	for i, s := range m.sums {
		if s == nil {
			continue
		}
		if to.Means == nil {
			to.Means = make([][]Sum, len(m.sums))
		}
		for g := range Groups {
			if s.n[g] > 0 {
				to.Means[i] = append(to.Means[i], Sum{uint8(g), s.n[g], s.x[g]})
			}
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
	for i, k := range m.outside {
		if k > 0 {
			if to.Outside == nil {
				to.Outside = map[Why]int64{}
			}
			to.Outside[whys[i]] = k
		}
	}
}

// unitHash is the pin field as a number, which is a hash already.
func unitHash(field [8]byte) uint64 { return binary.BigEndian.Uint64(field[:]) }
