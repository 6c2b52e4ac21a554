package trial

import "iter"

// Units remembers of each unit what a trial needs: how many requests it sent in
// the window, which variant served it last, and its past on the baseline. It is
// bounded: units that were not seen for longest are forgotten, and are then like
// new ones. Not safe for use by several goroutines.
//
// The past is learnt while the experiment has no canary yet, and fixed by Freeze
// when the rollout begins, for all units at once. A past that went on growing in
// the baseline alone would exclude its bad units and keep the canary's, and the
// canary would look worse for it.
type Units struct {
	window int64
	most   int // of each generation of the map
	young  map[uint64]unit
	old    map[uint64]unit // what was not seen since young was empty
	frozen bool
}

type unit struct {
	since   int64 // of the window, Unix ms
	count   int32
	variant int16 // served last, plus 1; 0 unknown
	past    History
}

// NewUnits remembers up to about 2 most units (64 bytes each, and the map's
// own), with requests counted in windows of so many ms.
func NewUnits(most int, window int64) *Units {
	return &Units{window: max(window, 1), most: max(most, 1), young: map[uint64]unit{}}
}

// Len is how many units are remembered.
func (u *Units) Len() int {
	n := len(u.young)
	for id := range u.old {
		if _, ok := u.young[id]; !ok {
			n++
		}
	}
	return n
}

// all are the units that are remembered, as they are now.
func (u *Units) all() iter.Seq2[uint64, unit] {
	return func(yield func(uint64, unit) bool) {
		for id, x := range u.young {
			if !yield(id, x) {
				return
			}
		}
		for id, x := range u.old {
			if _, ok := u.young[id]; !ok && !yield(id, x) {
				return
			}
		}
	}
}

func (u *Units) get(id uint64) unit {
	if x, ok := u.young[id]; ok {
		return x
	}
	return u.old[id]
}

func (u *Units) put(id uint64, x unit) {
	if _, ok := u.young[id]; !ok && len(u.young) >= u.most {
		u.old, u.young = u.young, make(map[uint64]unit, u.most)
	}
	u.young[id] = x
}

// Next counts a request of the unit at the time at (Unix ms) and returns its
// ordinal in the window, which begins with a unit's first request and lasts its
// length. Call it for requests that are no SDK retry.
func (u *Units) Next(id uint64, at int64) int {
	x := u.get(id)
	if x.count == 0 || at-x.since >= u.window || at < x.since-u.window {
		x.since, x.count = at, 0
	}
	if x.count < 1<<30 {
		x.count++
	}
	u.put(id, x)
	return int(x.count)
}

// Served notes which variant a request of the unit goes to, and reports whether
// another one served it before: then its cache is cold.
func (u *Units) Served(id uint64, variant int) (moved bool) {
	x := u.get(id)
	moved = x.variant != 0 && x.variant != int16(variant+1)
	x.variant = int16(variant + 1)
	u.put(id, x)
	return moved
}

// Learn adds a settled trial on the baseline to the unit's past, unless that is
// frozen.
func (u *Units) Learn(id uint64, metric string, bad bool) {
	if u.frozen {
		return
	}
	x := u.get(id)
	switch kinds[metric].past {
	case pastOfErrors:
		x.past.Errors.add(bad)
	case pastOfRejected:
		x.past.Rejected.add(bad)
	case pastOfSlow:
		x.past.Slow.add(bad)
	case pastOfFlaws:
		x.past.Flawed.add(bad)
	default:
		return
	}
	u.put(id, x)
}

// Freeze fixes every unit's past: the rollout begins.
func (u *Units) Freeze() { u.frozen = true }

// Thaw lets the past grow again: no canary is there any more.
func (u *Units) Thaw() { u.frozen = false }

// History is the unit's past.
func (u *Units) History(id uint64) History { return u.get(id).past }

// Bad reports which of a settled trial's results are to be Learnt, and how.
func (r Result) Bad() (bad, settled bool) {
	return r.State == Bad, r.State == Good || r.State == Bad
}
