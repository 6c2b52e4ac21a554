package trial

// units remembers of each unit what a trial needs: how many requests it sent in
// the window, which variant served it last, how long its conversation is, and
// its past on the baseline. It is bounded: units that were not seen for longest
// are forgotten, and are then like new ones. Not safe for use by several
// goroutines.
//
// The past is learnt while the experiment has no canary yet, and fixed when the
// rollout begins, for all units at once. A past that went on growing in the
// baseline alone would exclude its bad units and keep the canary's, and the
// canary would look worse for it.
type units struct {
	window int64
	most   int // of each generation of the map
	young  map[uint64]*unit
	old    map[uint64]*unit // what was not seen since young was empty
	frozen bool
}

type unit struct {
	since   int64 // of the window, Unix ms
	past    History
	marks   uint64 // variants that have named it in the epoch of mark
	mark    uint32
	listed  uint32 // Exclusions that out is of, by their number; 0 none
	count   int32
	variant int16 // served last, plus 1; 0 unknown
	out     pastSet
	talk    talk
}

// talk is the last turn of a unit's conversation.
type talk struct {
	id     uint64
	at     int64 // Unix ms
	prompt int
}

// newUnits remembers up to about 2 most units (150 bytes each, with the map's
// part), with requests counted in windows of so many ms.
func newUnits(most int, window int64) *units {
	return &units{window: max(window, 1), most: max(most, 1), young: map[uint64]*unit{}}
}

// Len is how many units are remembered.
func (u *units) Len() int {
	n := len(u.young)
	for id := range u.old {
		if _, ok := u.young[id]; !ok {
			n++
		}
	}
	return n
}

// each calls do for every unit that is remembered.
func (u *units) each(do func(id uint64, x *unit)) {
	for id, x := range u.young {
		do(id, x)
	}
	for id, x := range u.old {
		if _, ok := u.young[id]; !ok {
			do(id, x)
		}
	}
}

// at is the unit, a new one if it is not known.
func (u *units) at(id uint64) *unit {
	x := u.young[id]
	if x != nil {
		return x
	}
	if x = u.old[id]; x == nil {
		x = new(unit)
	}
	if len(u.young) >= u.most {
		u.old, u.young = u.young, make(map[uint64]*unit, u.most)
	}
	u.young[id] = x
	return x
}

// next counts a request at the time at (Unix ms) and returns its ordinal in the
// window, which begins with a unit's first request and lasts its length. Call it
// for requests that are no SDK retry.
func (x *unit) next(at, window int64) int {
	if x.count == 0 || at-x.since >= window || at < x.since-window {
		x.since, x.count = at, 0
	}
	if x.count < 1<<30 {
		x.count++
	}
	return int(x.count)
}

// served notes which variant a request of the unit goes to, and reports whether
// another one served it before: then its cache is cold.
func (x *unit) served(variant int) (moved bool) {
	moved = x.variant != 0 && x.variant != int16(variant+1)
	x.variant = int16(variant + 1)
	return moved
}

// talkFor is how long a conversation's text is taken to stay in a server's cache,
// ms.
const talkFor = 10 * 60_000

// uncached is how much of a prompt no cache has, by what is known before any
// server is asked, so that both arms are divided alike: a conversation's turn
// repeats the turn before, which the same servers have read.
func (x *unit) uncached(id uint64, at int64, prompt int, moved bool) int {
	if id == 0 || prompt < 0 {
		return prompt
	}
	before := x.talk
	x.talk = talk{id, at, prompt}
	if before.id != id || moved || at-before.at > talkFor || before.prompt > prompt {
		return prompt
	}
	return prompt - before.prompt
}

// named reports whether variant has named the unit in the epoch mark, and notes
// that it has now.
func (x *unit) named(mark uint32, variant int) bool {
	if x.mark != mark {
		x.mark, x.marks = mark, 0
	}
	bit := uint64(1) << (variant & 63)
	was := x.marks&bit != 0
	x.marks |= bit
	return was
}

// learn adds a settled trial on the baseline to the unit's past.
func (x *unit) learn(p past, bad bool) {
	switch p {
	case pastOfErrors:
		x.past.Errors.add(bad)
	case pastOfRejected:
		x.past.Rejected.add(bad)
	case pastOfSlow:
		x.past.Slow.add(bad)
	case pastOfFlaws:
		x.past.Flawed.add(bad)
	}
}
