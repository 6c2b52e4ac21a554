package experiment

// Conversation is what is known of the conversation that a request belongs to,
// for experiments whose moved units switch after it.
type Conversation struct {
	ID      [16]byte // the same over its turns
	Running bool     // it has an answer already: this is not its first request
	Store   Store    // NotAsked: nobody has looked for its pin
	HasPin  bool
	Pin     Pin
}

// ConversationDigest is where the pin of a conversation of u is kept. The unit
// is in it, since two people may begin with the same words; the experiment's
// seed is not, since a reshuffle must find what ran before it.
func ConversationDigest(u Unit, id [16]byte) Digest {
	var buf hashBuf
	b := append(buf[:0], "c1:"...)
	b = append(b, id[:]...)
	return digestOf(appendUnit(b, u))
}

// Finish lets a running conversation finish on the variant that it began on: d
// is what Decide says of the request without it. With need the caller reads
// the conversation's pin and asks again; with write it stores keep, over
// whatever is there, so that the turns to come find it.
//
// Only who was assigned by the table or a pin can have moved. A variant that was
// killed, has weight 0 or is not ready does not finish anything, and a store
// that does not answer leaves the request where it is, provisionally.
func (e *Experiment) Finish(q *Query, d Decision, c *Conversation) (out Decision, need, write bool, keep Pin) {
	switch d.Reason {
	case ReasonBucket, ReasonPin, ReasonMerged:
	default:
		return d, false, false, Pin{}
	}
	if !d.HasUnit {
		return d, false, false, Pin{}
	}
	keep = e.pin(d.Variant, 0, q)
	if !c.Running || !e.mayHaveMoved(d.Bucket) {
		return d, false, true, keep
	}
	switch c.Store {
	case NotAsked:
		return d, true, false, Pin{}
	case Down:
		d.Reason, d.Analysed, d.WritePin, d.Pin = ReasonProvisional, false, WriteNone, Pin{}
		return d, false, false, Pin{}
	}
	began := int(c.Pin.Variant)
	switch {
	case !c.HasPin || int32(c.Pin.Revision-uint32(e.runsFrom)) < 0:
		return d, false, true, keep
	case began == d.Variant:
		return d, false, false, Pin{}
	case began >= len(e.states) || e.states[began] != Active && e.states[began] != Draining:
		return d, false, false, Pin{}
	}
	// The unit has moved, this request not yet: it belongs to neither side.
	d.Variant, d.Reason, d.Analysed = began, ReasonConversation, false
	return d, false, false, Pin{}
}

// mayHaveMoved reports whether a unit of the bucket can have had another variant
// while conversations that still run began.
func (e *Experiment) mayHaveMoved(bucket int) bool {
	return e.Contested(bucket) || e.runsFrom < e.genRevision
}
