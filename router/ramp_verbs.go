package router

import (
	"fmt"
	"slices"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// growing is e's ramp, if it is on in one of the phases.
func growing(e *Experiment, phases ...ramp.Phase) (s *ramp.State, variant int, err error) {
	s = e.RampState
	switch {
	case s == nil || s.Phase == ramp.Done:
		return nil, -1, invalidState(e, "it has no ramp that is on; a ramp begins with :start")
	case e.State == StatePaused:
		return nil, -1, invalidState(e, "its ramp is paused; resume it first")
	case !e.Ramping():
		return nil, -1, invalidState(e, "it is %s", e.State)
	case !slices.Contains(phases, s.Phase):
		return nil, -1, invalidState(e, "its ramp is in the phase %s", s.Phase)
	}
	if variant = e.variant(s.Variant); variant < 0 || e.Variants[variant].State == VariantKilled {
		return nil, -1, invalidState(e, "%q was killed in this generation and cannot grow", clip(s.Variant))
	}
	return s, variant, nil
}

// RampSteps sizes the ladder of a ramp with `steps: auto` that has not begun.
func RampSteps(doc *Document, revision int64, now time.Time, key string, steps []ramp.Step) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s, i, err := growing(e, ramp.ReadyWait)
		if err != nil {
			return err
		}
		c, _ := e.Policy()
		s.Steps = fit(slices.Clone(steps), min(c.MaxWeight, room(e, i, c.Holdback)))
		return nil
	})
}

// RampStep takes the step with that index, which must be the next one: the
// ramping variant gets its weight, as few users as that needs move, and the
// evidence begins anew. setup is what the step counts, heavy who stays out.
func RampStep(doc *Document, revision int64, now time.Time, key string, step int, setup trial.Setup, heavy []string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		return rampStep(e, revision, now, step, setup, heavy)
	})
}

func rampStep(e *Experiment, revision int64, now time.Time, step int, setup trial.Setup, heavy []string) error {
	s, i, err := growing(e, ramp.ReadyWait, ramp.Ramping, ramp.Holding)
	switch {
	case err != nil:
		return err
	case step != s.Step+1 || step >= len(s.Steps):
		return invalidState(e, "step %d is not the next one: it is at step %d of %d", step+1, s.Step+1, len(s.Steps))
	case s.Steps[step].Approve && s.Approved < step:
		return &EditError{CodeApproval, "experiment/" + e.Key, fmt.Sprintf("the step to %s waits for a person to approve it (:approve)", percent(s.Steps[step].Weight))}
	}
	if err := moveRamp(e, i, s.Steps[step].Weight, revision); err != nil {
		return err
	}
	again(s, revision, now)
	s.Phase, s.Step, s.Reason, s.Setup, s.Heavy = ramp.Ramping, step, "", setup, slices.Clone(heavy)
	return nil
}

// RampSetup fixes what is counted from now on, where nobody has: after a person
// took a step or resumed, and after the guardrails changed. The evidence begins
// here, the step's clock goes on.
func RampSetup(doc *Document, revision int64, now time.Time, key string, setup trial.Setup, heavy []string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s, _, err := growing(e, ramp.ReadyWait, ramp.Ramping, ramp.Holding, ramp.Baking)
		if err != nil {
			return err
		}
		s.Epoch, s.Setup, s.Heavy = revision, setup, slices.Clone(heavy)
		return nil
	})
}

// RampHold notes why no step is taken; "" is that nothing is in the way any
// more. Nothing else changes.
func RampHold(doc *Document, revision int64, now time.Time, key, code string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s, _, err := growing(e, ramp.ReadyWait, ramp.Ramping, ramp.Holding, ramp.Baking)
		if err != nil {
			return err
		}
		s.Reason = code
		switch {
		case s.Phase != ramp.Ramping && s.Phase != ramp.Holding:
		case code == "":
			s.Phase = ramp.Ramping
		default:
			s.Phase = ramp.Holding
		}
		return nil
	})
}

// FixSetup fixes what counts as slow in an experiment without a ramp, where
// nobody has written it: once a generation, or for other guardrails. Its evidence
// begins anew.
func FixSetup(doc *Document, revision int64, now time.Time, key string, setup trial.Setup) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		if err := live(e); err != nil {
			return err
		}
		if e.Ramping() {
			return rampActive(e, "a ramp is on, and fixes what is slow before each of its steps")
		}
		setup.Thresholds = slices.Clone(setup.Thresholds)
		e.Setup = &setup
		return nil
	})
}

// RampPause is Pause with a code of its own.
func RampPause(doc *Document, revision int64, now time.Time, key, code string) error {
	return reduce(doc, revision, now, key, func(e *Experiment) error { return pause(e, code) })
}

// RampRollback is Rollback with the code of the decision that asked for it.
func RampRollback(doc *Document, revision int64, now time.Time, key, code string) error {
	return reduce(doc, revision, now, key, func(e *Experiment) error { return rollbackFor(e, now, code) })
}

// rollbackFor keeps the code, "" for a person's, with or without a ramp.
func rollbackFor(e *Experiment, now time.Time, code string) error {
	on, was := e.Ramping(), e.State
	if err := rollback(e, now); err != nil || code == "" {
		return err
	}
	if on {
		e.RampState.Reason = code
	}
	if was != e.State && e.LastRollback != nil {
		e.LastRollback.Reason = code
	}
	return nil
}

// RampPromote begins the bake: the last step has passed. The experiment is
// promoted, the table goes on deciding, and the holdback stays on the baseline.
func RampPromote(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s, i, err := growing(e, ramp.Ramping, ramp.Holding)
		switch {
		case err != nil:
			return err
		case !s.Last():
			return invalidState(e, "step %d of %d is not the last one", s.Step+1, len(s.Steps))
		}
		return bake(e, i, revision, now)
	})
}

// bake promotes the ramping variant i to all but the holdback.
func bake(e *Experiment, i int, revision int64, now time.Time) error {
	s := e.RampState
	c, _ := e.Policy()
	if top := room(e, i, c.Holdback); e.Variants[i].Weight < top {
		if err := moveRamp(e, i, top, revision); err != nil {
			return err
		}
		s.Steps = append(s.Steps[:s.Step+1:s.Step+1], ramp.Step{Weight: top})
		s.Step++
		s.Setup = trial.Setup{} // to be fixed for more users
	}
	setup := s.Setup
	again(s, revision, now)
	if len(setup.Thresholds) > 0 {
		setup.Since = moment(now).UnixMilli()
		s.Setup = setup
	}
	s.Phase, s.Reason = ramp.Baking, ""
	e.State, e.Winner = StatePromoted, s.Variant
	return nil
}

// RampDone ends the bake: the winner for everybody.
func RampDone(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		if _, _, err := growing(e, ramp.Baking); err != nil {
			return err
		}
		endRamp(e, "")
		return nil
	})
}

// RampApprove lets the ramp take the next step that waits for a person, when
// its evidence is there. Approving twice changes nothing.
func RampApprove(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s := e.RampState
		if !e.Ramping() || s.Phase == ramp.Baking {
			return invalidState(e, "it has no ramp that could go on")
		}
		for next := s.Step + 1; next < len(s.Steps); next++ {
			if s.Steps[next].Approve {
				s.Approved = max(s.Approved, next)
				return nil
			}
		}
		return invalidState(e, "no step to come waits for a person to approve it")
	})
}

// RampAdvance is a person's decision to go on now, approval included: the next
// step, after the last one the bake, and from the bake its end.
func RampAdvance(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		s, i, err := growing(e, ramp.ReadyWait, ramp.Ramping, ramp.Holding, ramp.Baking)
		switch {
		case err != nil:
			return err
		case s.Phase == ramp.Baking:
			endRamp(e, ReasonPromoted)
			return nil
		case len(s.Steps) == 0:
			return invalidState(e, "its steps are not sized yet (steps: auto waits for traffic); write steps, or set the weights with ?pause_ramp=true")
		case s.Last():
			return bake(e, i, revision, now)
		}
		s.Approved = max(s.Approved, s.Step+1)
		return rampStep(e, revision, now, s.Step+1, trial.Setup{}, s.Heavy)
	})
}

// resumeRamp goes on from the weight that the ramping variant has: nobody moves.
// A weight between two steps becomes a step of this run.
func resumeRamp(e *Experiment, revision int64, now time.Time) {
	if !e.Ramping() || e.RampState.Phase == ramp.Baking {
		return
	}
	s := e.RampState
	again(s, revision, now)
	s.Reason = ""
	w, at := e.Variants[e.variant(s.Variant)].Weight, -1
	for j, step := range s.Steps {
		if step.Weight <= w {
			at = j
		}
	}
	if w > 0 && (at < 0 || s.Steps[at].Weight != w) {
		at++
		s.Steps = slices.Insert(slices.Clone(s.Steps), at, ramp.Step{Weight: w})
		s.Approved = 0
	}
	if at != s.Step {
		s.Approved = max(at, 0) // what a person approved was another weight
	}
	s.Step, s.Phase = at, ramp.Ramping
	if at < 0 {
		s.Phase = ramp.ReadyWait
	}
}

// yieldRamp is a person's change of the weights while a ramp is on: lowering
// treatments is always possible, anything else where pauseRamp says so; the
// ramp pauses.
func yieldRamp(e *Experiment, w []int, pauseRamp bool) error {
	if !e.Ramping() || slices.Equal(w, weightsOf(e)) {
		return nil
	}
	if e.State == StatePromoted {
		return rampActive(e, "it bakes: :advance ends the bake, :rollback takes it back")
	}
	raised := slices.ContainsFunc(e.Variants, func(v Variant) bool {
		i := e.variant(v.Name)
		return v.Name != e.Baseline && (i >= len(w) || w[i] > v.Weight)
	})
	if raised && !pauseRamp && e.State != StatePaused {
		return rampActive(e, "a ramp decides its weights; pause the ramp with the change (?pause_ramp=true), or lower treatments only")
	}
	return pause(e, ReasonWeights)
}

func rampActive(e *Experiment, message string) error {
	return &EditError{CodeRampActive, "experiment/" + clip(e.Key), message}
}

// capped refuses to raise the ramping variant above max_weight; at names a
// variant's weight in the request.
func capped(e *Experiment, w []int, at func(i int) string) error {
	c, ok := e.Policy()
	if !ok || !c.Capped() {
		return nil
	}
	i, _ := rampVariant(e, &c)
	if i < 0 || i >= len(w) || w[i] <= c.MaxWeight || w[i] <= e.Variants[i].Weight {
		return nil
	}
	return Problems{{at(i), "max_weight", fmt.Sprintf("%d is above ramp.max_weight, %d; raise that first, or promote the variant", w[i], c.MaxWeight)}}
}

// percent writes basis points for people.
func percent(bp int) string {
	if bp%100 == 0 {
		return fmt.Sprintf("%d %%", bp*100/experiment.Buckets)
	}
	return fmt.Sprintf("%.2f %%", float64(bp)/100)
}
