package experiment

// Decide says which variant the request gets, by the precedence of
// reference/experiments.md 3.3 as amended by design.md section 7: kill, weight
// 0 and rollback beat stickiness, targeting is tested before any pin, fixed
// segments stand between the experiment's own state and its targeting. If the
// answer depends on a pin and Query.Store is NotAsked, it asks for it
// (Decision.NeedPin). It does not allocate.
func (e *Experiment) Decide(q *Query) Decision {
	d := Decision{Variant: e.baseline, Bucket: -1}
	if e.byState(q, &d) || e.bySegment(q, &d) || e.byUnit(q, &d) {
		return d
	}
	heavy := e.isHeavy(&d)
	write, done := e.byPin(q, &d)
	if !done {
		e.byBucket(q, &d, write, heavy)
	}
	if heavy {
		// In neither arm: to leave the heaviest out of one alone would make the
		// other look different.
		d.Analysed = false
	}
	return d
}

// byState answers what the experiment as a whole decides, and overrides.
func (e *Experiment) byState(q *Query, d *Decision) bool {
	if e.state != Running && e.state != Paused && e.state != RolledBack && e.state != Promoted {
		d.Reason = ReasonNotRunning
		return true
	}
	if q.Override != -1 && e.override(q.Override, d) {
		return true
	}
	switch {
	case e.state == RolledBack:
		d.Reason = ReasonRolledBack
	case e.state == Promoted && e.states[e.winner] == Killed:
		d.Reason = ReasonKilled
	case e.state == Promoted:
		d.Variant, d.Reason = e.winner, ReasonPromoted
	case e.canary && q.Unsupervised:
		d.Reason = ReasonUnsupervised
	default:
		return false
	}
	return true
}

// override serves an authorised override, or notes why not. A killed, masked
// or rolled-back variant is never served, whatever the scopes.
func (e *Experiment) override(variant int, d *Decision) bool {
	switch {
	case variant < 0 || variant >= len(e.states):
		d.Note = "override_unknown_variant"
	case e.states[variant] == Killed, e.state == RolledBack && variant != e.baseline:
		d.Note = "override_killed"
	case e.states[variant] == Masked:
		d.Note = "override_masked"
	default:
		d.Variant, d.Reason, d.Exposure = variant, ReasonOverride, true
		return true
	}
	return false
}

// bySegment answers fixed segments and failed targeting.
func (e *Experiment) bySegment(q *Query, d *Decision) bool {
	for i := range e.fixed {
		s := &e.fixed[i]
		if !match(s.rules, q) {
			continue
		}
		if s.variant != e.baseline {
			switch e.states[s.variant] {
			case Killed:
				d.Reason = ReasonKilled
				return true
			case Masked:
				d.Reason = ReasonEvicted
				return true
			case NotReady:
				d.Reason = ReasonNotReady
				return true
			}
		}
		d.Variant, d.Reason, d.Exposure = s.variant, ReasonFixed, true
		return true
	}
	if !match(e.rules, q) {
		d.Reason = ReasonTargeting
		return true
	}
	return false
}

// byUnit answers requests without a unit and units that are outside by holdout
// or layer; for the others it finds the bucket.
func (e *Experiment) byUnit(q *Query, d *Decision) bool {
	if d.HasUnit = q.HasUnit && ValidUnit(q.Unit); d.HasUnit {
		d.Unit = q.Unit
	} else if e.sticky != None {
		d.Reason = ReasonNoUnit
		return true
	}
	if d.HasUnit && e.holdout > 0 && e.holdoutSeed != "" && Hash(e.holdoutSeed, d.Unit).Bucket < e.holdout {
		d.Reason, d.Exposure = ReasonHoldout, true
		d.Digest = HashWith(e.hash, e.seed, d.Unit) // the exposure names the unit
		return true
	}
	if e.layerSeed != "" {
		// Without a unit (stickiness none) the draw's low half stands in, the
		// same for every experiment of the layer; the variant takes the other.
		slot := Bucket(uint32(q.Draw))
		if d.HasUnit {
			slot = Hash(e.layerSeed, d.Unit).Bucket
		}
		if slot < e.slice[0] || slot >= e.slice[1] {
			d.Reason = ReasonLayer
			return true
		}
	}
	if d.HasUnit {
		d.Digest = HashWith(e.hash, e.seed, d.Unit)
		d.Bucket = d.Digest.Bucket
	}
	if e.sticky == None {
		d.Bucket = Bucket(uint32(q.Draw >> 32))
	}
	return false
}

// needsPin reports whether a pin of the unit could say other than the table.
func (e *Experiment) needsPin(bucket int) bool {
	if e.sticky != ByUser {
		return false
	}
	owner := e.own[bucket]
	return e.Contested(bucket) || e.merge || e.blockBelow > 0 || e.enrolmentPaused() ||
		owner != Outside && e.states[owner] == Draining
}

// enrolmentPaused reports whether new units are turned away, by an experiment
// with pins: without, an enrolled unit cannot be told from a new one and the
// table goes on. A paused canary freezes its ramp, not its traffic.
func (e *Experiment) enrolmentPaused() bool { return e.state == Paused && !e.canary }

// byBucket answers from the table. write is how a new pin would be written;
// heavy units are not let into the variant that ramps.
func (e *Experiment) byBucket(q *Query, d *Decision, write string, heavy bool) {
	owner := e.own[d.Bucket]
	if owner == Outside {
		d.Reason = ReasonUnallocated
		return
	}
	provisional := q.Store == Down && e.needsPin(d.Bucket)
	switch state := e.states[owner]; {
	case state == Killed:
		d.Reason = ReasonKilled
		return
	case state == Masked:
		// A masked variant owns no bucket; a table that says otherwise is not obeyed.
		d.Reason = ReasonUnallocated
		return
	case state == NotReady:
		d.Reason = ReasonNotReady
		return
	case state == Draining && e.sticky == ByUser && !provisional:
		d.Reason = ReasonEnrolmentPaused
		return
	case heavy && int(owner) == e.ramping && e.ramping != e.baseline:
		d.Reason = ReasonHeavy
		return
	}
	d.Variant, d.Exposure = int(owner), true
	switch {
	case e.sticky == None:
		d.Reason = ReasonRandom
	case provisional:
		d.Reason = ReasonProvisional
	default:
		d.Reason, d.Analysed = ReasonBucket, true
		if e.sticky == ByUser && write != WriteNone {
			d.WritePin, d.Pin = write, e.pin(int(owner), 0, q)
		}
	}
}

// pin makes a pin of this generation.
func (e *Experiment) pin(variant int, flags uint8, q *Query) Pin {
	return Pin{Variant: uint8(variant), Gen: e.gen, Revision: uint32(q.Revision), Flags: flags}
}
