package router

import (
	"context"
	"time"

	"sluice/experiment"
)

// pinBudget bounds what one request waits for pins: later, the table answers.
const pinBudget = 5 * time.Millisecond

// pinned completes a decision that reads or writes a pin. A store that is away
// or slow never fails a request: the table answers, provisionally. eq is then
// the query by which it was decided.
func pinned(ctx context.Context, e *CompiledExperiment, eq *experiment.Query, d experiment.Decision, pins Pins) experiment.Decision {
	if d.NeedPin {
		eq.Store = experiment.Down
		if pins != nil {
			readPins(ctx, e, eq, &d, pins)
		}
		d = e.Exp.Decide(eq)
	}
	// Twice: what the store answers to a write may itself ask for one (a pin of
	// a variant that was killed meanwhile).
	for range 2 {
		switch d.WritePin {
		case experiment.WriteAsync:
			if pins != nil {
				pins.PutLater(e.Key, d.Digest.Field, d.Digest.Shard, d.Pin)
			}
			return d
		case experiment.WriteSync, experiment.WriteReplace:
		default:
			return d
		}
		if pins == nil {
			return d // only after a read, so there are pins; never write into nothing
		}
		var expect *experiment.Pin
		if d.WritePin == experiment.WriteReplace && eq.HasPin {
			old := eq.Pin
			expect = &old
		}
		stored, err := putPin(ctx, pins, e.Key, &d, expect)
		switch {
		case err != nil && d.Reason == experiment.ReasonEvicted:
			return d // the baseline is right whatever the store knows
		case err != nil:
			eq.Store, eq.HasPin = experiment.Down, false
			return e.Exp.Decide(eq)
		case stored == d.Pin:
			return d
		}
		// Somebody was first: theirs is served.
		eq.Store, eq.HasPin, eq.Pin = experiment.Up, true, stored
		d = e.Exp.Decide(eq)
	}
	return d
}

// readPins puts the unit's pin into eq, and the session's where it may count.
func readPins(ctx context.Context, e *CompiledExperiment, eq *experiment.Query, d *experiment.Decision, pins Pins) {
	ctx, cancel := context.WithTimeout(ctx, pinBudget)
	defer cancel()
	pin, found, err := pins.Get(ctx, e.Key, d.Digest.Field, d.Digest.Shard)
	if err != nil {
		return
	}
	if d.NeedSession {
		sess, has, err := pins.Get(ctx, e.Key, d.SessDigest.Field, d.SessDigest.Shard)
		if err != nil {
			return // whether the two agree is not known
		}
		eq.SessPin, eq.HasSessPin = sess, has
	}
	eq.Store, eq.Pin, eq.HasPin = experiment.Up, pin, found
}

func putPin(ctx context.Context, pins Pins, key string, d *experiment.Decision, expect *experiment.Pin) (experiment.Pin, error) {
	ctx, cancel := context.WithTimeout(ctx, pinBudget)
	defer cancel()
	return pins.Put(ctx, key, d.Digest.Field, d.Digest.Shard, d.Pin, expect)
}

// Finishes reports that a conversation of the unit that d decides for may finish
// on another variant, because it began before the unit moved.
func (e *CompiledExperiment) Finishes(d *experiment.Decision) bool {
	if !e.finishes {
		return false
	}
	_, need, _, _ := e.Exp.Finish(&experiment.Query{}, *d, &experiment.Conversation{Running: true})
	return need
}

// finished lets a running conversation finish on the variant that it began on,
// and remembers what this one runs on.
func finished(ctx context.Context, e *CompiledExperiment, eq *experiment.Query, d experiment.Decision, q *Query, pins Pins) experiment.Decision {
	if !d.HasUnit || q.Head == nil {
		return d
	}
	id, ok := q.Head.Conversation(q.Body)
	if !ok {
		return d
	}
	c := experiment.Conversation{ID: id, Running: q.Head.Answered(q.Body)}
	out, need, write, keep := e.Exp.Finish(eq, d, &c)
	if !need && !write {
		return out
	}
	at := experiment.ConversationDigest(d.Unit, id)
	if need {
		c.Store = experiment.Down
		if pins != nil {
			ctx, cancel := context.WithTimeout(ctx, pinBudget)
			pin, found, err := pins.GetConversation(ctx, e.Key, at.Field, at.Shard)
			cancel()
			if err == nil {
				c.Store, c.Pin, c.HasPin = experiment.Up, pin, found
			}
		}
		out, _, write, keep = e.Exp.Finish(eq, d, &c)
	}
	if write && pins != nil {
		pins.PutConversation(e.Key, at.Field, at.Shard, keep)
	}
	return out
}
