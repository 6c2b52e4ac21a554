package router

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Start runs an experiment. From draft it begins the first generation; from
// rolled_back, completed and promoted a new one: kills are cleared, pins of
// before count no more, and the ownership table is kept, so that the same users
// get the same variants again. A ramp begins in ready_wait, with nobody on the
// variant that grows. What was rolled back is not started again before the
// ramp's cooldown (code cooldown).
func Start(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error { return start(e, revision, now, false) })
}

// StartAnyway is Start without waiting for a cooldown.
func StartAnyway(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error { return start(e, revision, now, true) })
}

func start(e *Experiment, revision int64, now time.Time, force bool) error {
	if left := cooling(e, now); left > 0 && !force {
		return &EditError{CodeCooldown, "experiment/" + e.Key, fmt.Sprintf(
			"it was rolled back, and the same variant may be started again in %s; change the variant (its version, model, upstream, params or prompt), or force it with a reason",
			max(time.Second, left.Round(time.Second)))}
	}
	switch e.State {
	case StateDraft:
		// No unit was ever pinned: nothing that was edited until now is contested.
		e.GenRevision = revision
	case StateRolledBack, StateCompleted, StatePromoted:
		if err := newGeneration(e, revision); err != nil {
			return err
		}
		e.Winner = ""
		for i := range e.Variants {
			e.Variants[i].State, e.Variants[i].CutStreams = "", false
		}
	case StatePaused:
		return invalidState(e, "it is paused; resume it, or roll it back to begin a new generation")
	case StateRunning:
		return invalidState(e, "it is running already")
	default:
		return invalidState(e, "it is %s and cannot be started; create a new experiment", e.State)
	}
	e.State, e.RunsFrom, e.LastRollback = StateRunning, 0, nil
	return enterRamp(e, revision, now)
}

func newGeneration(e *Experiment, revision int64) error {
	if e.Generation >= math.MaxUint16 {
		return invalidState(e, "it has had %d generations; create a new experiment", e.Generation)
	}
	e.Generation++
	e.GenRevision = revision
	e.Setup = nil
	return nil
}

// Pause freezes the ramp (canary) or enrolment (ab); assigned units stay.
// Pausing a paused experiment changes nothing.
func Pause(doc *Document, revision int64, now time.Time, key string) error {
	return RampPause(doc, revision, now, key, ReasonPerson)
}

func pause(e *Experiment, code string) error {
	switch e.State {
	case StatePaused:
		return nil
	case StateRunning:
	default:
		return invalidState(e, "it is %s; only a running experiment can be paused", e.State)
	}
	if e.Ramping() {
		e.RampState.Reason = code
	}
	e.State = StatePaused
	return nil
}

// Resume runs a paused experiment again within its generation; its ramp goes on
// from the weight that it has. Resuming a running experiment changes nothing.
func Resume(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error { return resume(e, revision, now) })
}

func resume(e *Experiment, revision int64, now time.Time) error {
	switch e.State {
	case StateRunning:
		return nil
	case StatePaused:
	default:
		return invalidState(e, "it is %s; only a paused experiment can be resumed, start it instead", e.State)
	}
	e.State = StateRunning
	resumeRamp(e, revision, now)
	return nil
}

// Rollback sends everybody to the baseline and keeps the weights for a later
// start. It is legal from every state but completed and archived, and idempotent.
func Rollback(doc *Document, revision int64, now time.Time, key string) error {
	return reduce(doc, revision, now, key, func(e *Experiment) error { return rollback(e, now) })
}

func rollback(e *Experiment, now time.Time) error {
	if e.State == StateCompleted || e.State == StateArchived {
		return invalidState(e, "it is %s: the baseline serves already", e.State)
	}
	if e.State == StateRunning || e.State == StatePaused || e.State == StatePromoted {
		mark(e, now)
	}
	endRamp(e, ReasonRolledBack)
	e.State, e.Winner = StateRolledBack, ""
	return nil
}

// Kill takes a variant out for the rest of the generation; its buckets stay a
// tombstone that the baseline serves, and nobody else moves. Idempotent.
func Kill(doc *Document, revision int64, now time.Time, key, variant string) error {
	return reduce(doc, revision, now, key, func(e *Experiment) error { return kill(e, variant) })
}

func kill(e *Experiment, variant string) error {
	i := e.variant(variant)
	switch {
	case i < 0:
		return notFound("variant", variant)
	case variant == e.Baseline:
		return invalidState(e, "%q is the baseline, which killed variants fall back to; roll back or finish the experiment instead", variant)
	case !slices.Contains([]string{StateRunning, StatePaused, StatePromoted}, e.State):
		return invalidState(e, "it is %s: no variant but the baseline serves, so there is nothing to kill; set the weight to 0", e.State)
	}
	e.Variants[i].State = VariantKilled
	if !e.Ramping() || e.RampState.Variant != variant {
		return nil
	}
	// Nothing grows any more. Other treatments go on being watched.
	endRamp(e, ReasonKilled)
	for _, v := range e.Variants {
		if v.Name != e.Baseline && v.State != VariantKilled && v.Weight > 0 {
			e.RampState = nil
			break
		}
	}
	return nil
}

// Stop writes an entry of the kill set into the document. It changes nothing
// where the document has it or its generation has ended; a variant may be
// killed after the whole experiment was rolled back, as two people without a
// database may do.
func Stop(doc *Document, revision int64, now time.Time, k KillEntry) error {
	if !doc.Lacks(k) {
		return nil
	}
	return reduce(doc, revision, now, k.Experiment, func(e *Experiment) error {
		err := stop(e, k, now)
		if err == nil && k.CutStreams {
			cutStreams(e, k.Variant)
		}
		return err
	})
}

func stop(e *Experiment, k KillEntry, now time.Time) error {
	if k.Variant == everyVariant {
		return rollbackFor(e, now, k.Code)
	}
	if e.State == StateRolledBack {
		e.Variants[e.variant(k.Variant)].State = VariantKilled
		return nil
	}
	return kill(e, k.Variant)
}

// CutStreams ends the streams in flight of a variant that was killed, or with
// "*" of every variant but the baseline of an experiment that was rolled back.
// It changes nothing where neither is the case.
func CutStreams(doc *Document, revision int64, now time.Time, key, variant string) error {
	return reduce(doc, revision, now, key, func(e *Experiment) error {
		cutStreams(e, variant)
		return nil
	})
}

func cutStreams(e *Experiment, variant string) {
	for i := range e.Variants {
		v := &e.Variants[i]
		if v.Name != e.Baseline && (v.Name == variant || variant == everyVariant) &&
			(v.State == VariantKilled || e.State == StateRolledBack) {
			v.CutStreams = true
		}
	}
}

// Lacks reports an entry of the kill set that concerns the running generation
// and is not in the document.
func (d *Document) Lacks(k KillEntry) bool {
	e := d.Experiment(k.Experiment)
	if e == nil || e.Generation != k.Generation {
		return false
	}
	live := e.State == StateRunning || e.State == StatePaused || e.State == StatePromoted
	if k.Variant == everyVariant {
		return live || e.State == StateRolledBack && k.CutStreams && slices.ContainsFunc(e.Variants, func(v Variant) bool {
			return v.Name != e.Baseline && !v.CutStreams
		})
	}
	i := e.variant(k.Variant)
	return (live || e.State == StateRolledBack) && i >= 0 && k.Variant != e.Baseline &&
		(e.Variants[i].State != VariantKilled || k.CutStreams && !e.Variants[i].CutStreams)
}

// Promote makes variant serve everybody; the weights are kept for a rollback.
// The variant of a ramp goes to its last step and bakes there, as if its steps
// had passed. Idempotent for the same winner.
func Promote(doc *Document, revision int64, now time.Time, key, variant string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error { return promote(e, variant, revision, now) })
}

func promote(e *Experiment, variant string, revision int64, now time.Time) error {
	i := e.variant(variant)
	switch {
	case i < 0:
		return notFound("variant", variant)
	case e.State == StatePromoted && e.Winner == variant:
		return nil
	case e.State != StateRunning && e.State != StatePaused:
		return invalidState(e, "it is %s; only a running or paused experiment has a winner to promote", e.State)
	case e.Variants[i].State == VariantKilled:
		return invalidState(e, "%q was killed in this generation and cannot be promoted", variant)
	case e.Variants[i].Weight == 0 && variant != e.Baseline:
		return invalidState(e, "%q has weight 0, so nobody has tried it; give it weight before it is promoted", variant)
	}
	if e.Ramping() && e.RampState.Variant == variant {
		if c, _ := e.Policy(); c.Bake > 0 {
			return bake(e, i, revision, now)
		}
	}
	endRamp(e, ReasonPromoted)
	e.State, e.Winner = StatePromoted, variant
	return nil
}

// Finish ends a running or paused experiment: the baseline serves. Idempotent.
func Finish(doc *Document, revision int64, now time.Time, key string) error {
	return reduce(doc, revision, now, key, finish)
}

func finish(e *Experiment) error {
	switch e.State {
	case StateCompleted:
	case StateRunning, StatePaused:
		if e.State == StateRunning && e.Ramping() {
			return rampActive(e, "a ramp is on; pause it before it is finished, roll it back, or promote its variant")
		}
		endRamp(e, ReasonFinished)
		e.State = StateCompleted
	default:
		return invalidState(e, "it is %s; only a running or paused experiment can be finished", e.State)
	}
	return nil
}

// ResetPins forgets every pin by a new generation with the same seed: the
// table decides again. Killed variants stay killed.
func ResetPins(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		if err := live(e); err != nil {
			return err
		}
		e.letRun()
		return newGeneration(e, revision)
	})
}

// Reshuffle is ResetPins with a new seed: new buckets too, so that no unit
// carries over what it had before.
func Reshuffle(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		if err := live(e); err != nil {
			return err
		}
		e.Seed = randomSeed()
		e.letRun()
		return newGeneration(e, revision)
	})
}

// letRun keeps what is known of running conversations into a new generation.
func (e *Experiment) letRun() {
	if e.Switch == SwitchConversation && e.RunsFrom == 0 {
		e.RunsFrom = e.GenRevision
	}
}

func live(e *Experiment) error {
	if e.State != StateRunning && e.State != StatePaused {
		return invalidState(e, "it is %s; only a running or paused experiment has units to assign again", e.State)
	}
	return nil
}
