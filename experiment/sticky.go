package experiment

// byPin answers from the unit's pin (and, with merge, the session's). It is
// done when it decided or asks for the pin; else the table decides and write
// says how to record it.
func (e *Experiment) byPin(q *Query, d *Decision) (write string, done bool) {
	if !e.needsPin(d.Bucket) {
		return WriteAsync, false
	}
	session := e.merge && q.HasSession && ValidUnit(q.Session) && q.Session != q.Unit
	switch q.Store {
	case NotAsked:
		d.NeedPin, d.Reason = true, ReasonProvisional
		if session {
			d.NeedSession, d.SessDigest = true, HashWith(e.hash, e.seed, q.Session)
		}
		return WriteNone, true
	case Down:
		return WriteNone, false
	}
	hasSess := session && q.HasSessPin
	// Writing over a pin that was read expects it; a first pin expects none.
	write = WriteSync
	if q.HasPin {
		write = WriteReplace
	}
	switch {
	case q.HasPin && q.Pin.Gen == e.gen:
		e.keep(q, d, hasSess)
		return WriteNone, true
	case q.HasPin && q.Pin.Gen > e.gen:
		// Another replica is ahead: what it wrote stands, and here the table.
		return WriteNone, false
	case e.blocks(q.HasPin, q.Pin) || e.blocks(hasSess, q.SessPin):
		d.Reason = ReasonBlocked
		return WriteNone, true
	case hasSess && q.SessPin.Gen == e.gen:
		e.takeOver(q, d, write)
		return WriteNone, true
	case hasSess && q.SessPin.Gen > e.gen:
		return WriteNone, false
	case e.enrolmentPaused():
		d.Reason = ReasonEnrolmentPaused
		return WriteNone, true
	}
	return write, false
}

func (e *Experiment) blocks(has bool, p Pin) bool { return has && p.Gen < e.blockBelow }

// keep answers a unit that has a pin of this generation.
func (e *Experiment) keep(q *Query, d *Decision, hasSess bool) {
	variant := q.Pin.Variant
	switch e.pinned(variant) {
	case Killed:
		e.evict(d, WriteReplace, e.pin(e.baseline, PinExcluded, q))
	case Masked:
		flagged := q.Pin
		flagged.Flags |= PinExcluded
		e.evict(d, WriteReplace, flagged)
		if flagged == q.Pin {
			d.WritePin, d.Pin = WriteNone, Pin{}
		}
	case NotReady:
		d.Reason = ReasonNotReady
	default:
		d.Variant, d.Reason, d.Exposure = int(variant), ReasonPin, true
		d.Analysed = q.Pin.Flags&PinExcluded == 0
		if hasSess && q.SessPin.Gen == e.gen && q.SessPin.Variant != variant {
			// This person was treated in both ways.
			d.Analysed, d.Note = false, "merge_conflict"
		}
	}
}

// takeOver answers a unit without a pin of its own whose session has one: the
// session's becomes the unit's.
func (e *Experiment) takeOver(q *Query, d *Decision, write string) {
	variant, flags := q.SessPin.Variant, q.SessPin.Flags&PinExcluded|PinMerged
	switch e.pinned(variant) {
	case Killed:
		e.evict(d, write, e.pin(e.baseline, PinMerged|PinExcluded, q))
	case Masked:
		e.evict(d, write, e.pin(int(variant), PinMerged|PinExcluded, q))
	case NotReady:
		d.Reason = ReasonNotReady
	default:
		d.Variant, d.Reason, d.Exposure = int(variant), ReasonMerged, true
		d.Analysed = flags&PinExcluded == 0
		d.WritePin, d.Pin = write, e.pin(int(variant), flags, q)
	}
}

// pinned is the state of a pin's variant; one that is gone counts as killed.
func (e *Experiment) pinned(variant uint8) VariantState {
	if int(variant) >= len(e.states) {
		return Killed
	}
	return e.states[variant]
}

// evict gives the baseline to a unit whose variant may not serve. Not the
// bucket's owner: that would mix evicted units into another treatment.
func (e *Experiment) evict(d *Decision, write string, p Pin) {
	d.Reason, d.Exposure = ReasonEvicted, true
	d.WritePin, d.Pin = write, p
}
