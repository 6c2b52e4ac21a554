package router

import (
	"reflect"
	"slices"
	"time"

	"sluice/experiment/ramp"
)

// replaceOptions say what a new form of an experiment may do to a ramp.
type replaceOptions struct {
	keepWeights bool // the weights are the ramp's
	pauseRamp   bool // other weights pause it instead of being refused
}

// replaceRamp brings next's ramp to what next now says of it. While it is on,
// its variant is the one that is tried: another one would reach users unproved.
func replaceRamp(cur, next *Experiment, revision int64, now time.Time) error {
	if !cur.Ramping() {
		return nil
	}
	s := next.RampState
	c, ok := next.Policy()
	if !ok {
		if absent(next.Ramp) {
			return rampActive(cur, "its ramp is on and cannot be removed; roll it back or finish it first")
		}
		return nil // Validate says what is wrong
	}
	i, why := rampVariant(next, &c)
	if i < 0 {
		return Problems{{"/ramp/variant", "ramp_variant", why}}
	}
	if next.Variants[i].Name != s.Variant {
		return rampActive(cur, "its ramp grows "+s.Variant+"; roll it back before another variant ramps")
	}
	was := cur.variant(s.Variant)
	if was >= 0 && fingerprint(cur, &cur.Variants[was]) != fingerprint(next, &next.Variants[i]) {
		return rampActive(cur, s.Variant+" is being tried as it is; roll it back, change it, and start it again")
	}
	before, _ := cur.Policy()
	reladder(s, &before, &c, room(next, i, c.Holdback))
	if evidenceDiffers(cur, next) {
		again(s, revision, now)
	}
	return nil
}

// reladder gives the steps to come to a changed policy; those that were taken stay.
func reladder(s *ramp.State, before, c *ramp.Config, most int) {
	if slices.Equal(before.Ladder(), c.Ladder()) && before.Auto == c.Auto && before.MaxWeight == c.MaxWeight && before.Holdback == c.Holdback {
		return
	}
	ladder := c.Ladder()
	if c.Auto {
		if !before.Auto {
			ladder = nil // to be sized
		} else {
			ladder = s.Steps
		}
		most = min(most, c.MaxWeight)
	}
	at := s.Weight()
	steps := slices.Clone(s.Steps[:min(s.Step+1, len(s.Steps))])
	for _, step := range fit(slices.Clone(ladder), most) {
		if step.Weight > at {
			steps = append(steps, step)
		}
	}
	s.Steps, s.Approved = steps, min(s.Approved, max(s.Step, 0))
}

// evidenceDiffers reports that what was counted so far says nothing of next:
// other guardrails, or another baseline to compare with.
func evidenceDiffers(cur, next *Experiment) bool {
	a, errA := cur.Watched()
	b, errB := next.Watched()
	x, y := cur.variant(cur.Baseline), next.variant(next.Baseline)
	return errA != nil || errB != nil || !reflect.DeepEqual(a, b) ||
		x < 0 || y < 0 || fingerprint(cur, &cur.Variants[x]) != fingerprint(next, &next.Variants[y])
}

// weighRamp is yieldRamp for weights that come with the rest of an experiment.
func weighRamp(cur, next *Experiment, gone []int, pauseRamp bool) error {
	if len(gone) > 0 {
		return nil // not possible while a ramp is on
	}
	w := weightsOf(next)
	if err := capped(cur, w, func(i int) string { return at("/variants", i, "weight") }); err != nil {
		return err
	}
	grown := *cur
	grown.Variants = slices.Clone(cur.Variants)
	for _, v := range next.Variants[len(cur.Variants):] {
		v.Weight = 0
		grown.Variants = append(grown.Variants, v)
	}
	grown.RampState = next.RampState
	if err := yieldRamp(&grown, w, pauseRamp); err != nil {
		return err
	}
	next.State = grown.State
	return nil
}

// rampDrift tells what another document says of a ramp that goes on.
func rampDrift(has, want *ramp.State, note func(field string, wants, has any)) {
	switch {
	case want == nil:
	case has == nil:
		note("ramp_state/step", want.Step, nil)
	default:
		for _, f := range []struct {
			name      string
			want, has any
		}{
			{"phase", want.Phase, has.Phase}, {"variant", want.Variant, has.Variant}, {"step", want.Step, has.Step},
		} {
			if f.want != f.has {
				note("ramp_state/"+f.name, f.want, f.has)
			}
		}
	}
}
