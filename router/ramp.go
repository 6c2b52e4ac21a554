package router

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sluice/experiment"
	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// RollbackMark remembers what a rollback took away, so that the same thing is
// not started again at once.
type RollbackMark struct {
	At       time.Time         `json:"at"`
	Reason   string            `json:"reason,omitempty"` // code of the decision; "" is a person's
	Variants map[string]string `json:"variants"`         // treatment -> hash of what it was
}

// Reasons for which a ramp rests (ramp.State.Reason) that are no decision's code.
const (
	ReasonPerson     = "person"          // somebody paused it
	ReasonWeights    = "weights_changed" // somebody set other weights
	ReasonRolledBack = "rolled_back"
	ReasonKilled     = "killed"
	ReasonFinished   = "finished"
	ReasonPromoted   = "promoted" // by a person, without or before the end of the bake
)

// Policy is e's ramp with its defaults; ok is false where none is written, and
// the defaults are then those by which guardrails without a ramp act.
func (e *Experiment) Policy() (c ramp.Config, ok bool) {
	if absent(e.Ramp) {
		return ramp.Default(), false
	}
	c, err := ramp.Parse(e.Ramp)
	return c, err == nil
}

// Watched are the guardrails of e as they act: none without `guardrails` and
// without a ramp, for which there are defaults.
func (e *Experiment) Watched() ([]guardrail.Config, error) {
	c, ok := e.Policy()
	if !ok {
		return guardrail.Parse(e.Guardrails, e.Kind == "ab")
	}
	return c.Guardrails(e.Guardrails, e.Kind == "ab")
}

// Ramping reports a ramp that has not ended: waiting, growing, resting or baking.
func (e *Experiment) Ramping() bool {
	s := e.RampState
	if s == nil || s.Phase == ramp.Done {
		return false
	}
	return e.State == StateRunning || e.State == StatePaused || e.State == StatePromoted && s.Phase == ramp.Baking
}

// rampVariant is the treatment that e's ramp grows; -1 and what to do about it
// where that is not clear.
func rampVariant(e *Experiment, c *ramp.Config) (int, string) {
	if c.Variant != "" {
		switch i := e.variant(c.Variant); {
		case i < 0:
			return -1, fmt.Sprintf("%q is none of the variants", clip(c.Variant))
		case c.Variant == e.Baseline:
			return -1, fmt.Sprintf("%q is the baseline, which does not ramp; name a treatment", clip(c.Variant))
		default:
			return i, ""
		}
	}
	found := -1
	for i, v := range e.Variants {
		switch {
		case v.Name == e.Baseline:
		case found >= 0:
			return -1, "there are several treatments; name the one that grows: ramp.variant"
		default:
			found = i
		}
	}
	if found < 0 {
		return -1, "there is no variant but the baseline, so nothing can ramp; add one, or remove ramp"
	}
	return found, ""
}

// enterRamp begins e's ramp, if it has one: in ready_wait, with nobody on the
// ramping variant. The first layout of a new experiment is not made here.
func enterRamp(e *Experiment, revision int64, now time.Time) error {
	e.RampState = nil
	c, ok := e.Policy()
	if !ok {
		return nil // none, or one that Validate refuses
	}
	i, why := rampVariant(e, &c)
	if i < 0 {
		return invalidState(e, "%s", why)
	}
	s := &ramp.State{Phase: ramp.ReadyWait, Variant: e.Variants[i].Name, Step: -1, Since: moment(now), Epoch: revision}
	if s.Steps = fit(c.Ladder(), room(e, i, c.Holdback)); len(s.Steps) == 0 && !c.Auto {
		return invalidState(e, "the other variants leave no room for %q; lower their weights", s.Variant)
	}
	e.RampState = s
	return moveRamp(e, i, 0, revision)
}

// moment is a time as the document keeps it.
func moment(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

// room is the highest weight that variant i can reach: what neither the
// holdback nor another living treatment has.
func room(e *Experiment, i, holdback int) int {
	left := experiment.Buckets - holdback
	for j, v := range e.Variants {
		if j != i && v.Name != e.Baseline && v.State != VariantKilled {
			left -= v.Weight
		}
	}
	return left
}

// fit cuts a ladder where most is reached.
func fit(steps []ramp.Step, most int) []ramp.Step {
	var out []ramp.Step
	for _, s := range steps {
		if most <= 0 {
			return nil
		}
		if s.Weight >= most {
			s.Weight = most
			return append(out, s)
		}
		out = append(out, s)
	}
	return out
}

// moveRamp gives variant i its weight. What it gains is the baseline's, then
// what killed variants left, whose users the baseline serves; what it loses the
// baseline gets. No other treatment's users move.
func moveRamp(e *Experiment, i, weight int, revision int64) error {
	w := weightsOf(e)
	gain := weight - w[i]
	w[i] = weight
	give := []int{e.variant(e.Baseline)}
	for j, v := range e.Variants {
		if j != i && v.State == VariantKilled {
			give = append(give, j)
		}
	}
	for _, j := range give {
		if j < 0 || j == i {
			continue
		}
		part := min(gain, w[j])
		w[j] -= part
		if gain -= part; gain <= 0 {
			break
		}
	}
	if gain > 0 {
		return invalidState(e, "%q cannot have %d basis points beside the other variants; lower their weights", e.Variants[i].Name, weight)
	}
	if e.Allocation == nil {
		for j := range w {
			e.Variants[j].Weight = w[j]
		}
		return nil // laid out by Normalize
	}
	return moveWeights(e, w, revision)
}

// again begins the present step or phase anew: its clock and its evidence. What
// is counted in it the leader has to fix (RampSetup) before anything counts.
func again(s *ramp.State, revision int64, now time.Time) {
	s.Since, s.Epoch, s.Setup = moment(now), revision, trial.Setup{}
}

// endRamp leaves nothing for the controller to decide.
func endRamp(e *Experiment, reason string) {
	if e.Ramping() {
		e.RampState.Phase, e.RampState.Reason = ramp.Done, reason
	}
}

// mark remembers what was rolled back.
func mark(e *Experiment, now time.Time) {
	m := &RollbackMark{At: moment(now), Variants: map[string]string{}}
	for i := range e.Variants {
		if v := &e.Variants[i]; v.Name != e.Baseline {
			m.Variants[v.Name] = fingerprint(e, v)
		}
	}
	e.LastRollback = m
}

// fingerprint tells whether a variant is still what it was: all that users can
// notice of it, and its version label.
func fingerprint(e *Experiment, v *Variant) string {
	raw, _ := json.Marshal([]string{v.Upstream, or(v.Model, e.Model), v.Version, paramsOf(v), promptOf(v)})
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// cooling is how long e may not be started yet: after a rollback of the very
// same variant, until the cooldown of its ramp is over.
func cooling(e *Experiment, now time.Time) time.Duration {
	c, ok := e.Policy()
	m := e.LastRollback
	if !ok || m == nil || e.State != StateRolledBack {
		return 0
	}
	i, _ := rampVariant(e, &c)
	if i < 0 || m.Variants[e.Variants[i].Name] != fingerprint(e, &e.Variants[i]) {
		return 0
	}
	return max(0, m.At.Add(c.Cooldown).Sub(now))
}

func cloneRamp(s *ramp.State) *ramp.State {
	if s == nil {
		return nil
	}
	out := *s
	out.Steps, out.Heavy, out.Setup.Thresholds = slices.Clone(s.Steps), slices.Clone(s.Heavy), slices.Clone(s.Setup.Thresholds)
	return &out
}

// notReady keeps the users of a variant that ramps on the baseline as long as its
// readiness gate is closed, holding or paused: they come back when it opens.
func notReady(e *Experiment, def *experiment.Definition) {
	s := e.RampState
	if !e.Ramping() || s.Phase == ramp.ReadyWait || s.Reason != ramp.CodeNotReady {
		return
	}
	if i := e.variant(s.Variant); i >= 0 && i != def.Baseline && def.Variants[i].State == experiment.Active {
		def.Variants[i].State = experiment.NotReady
	}
}

// heavyUnits are those that a ramp keeps out as long as its step is small.
func heavyUnits(e *Experiment) (fields [][8]byte, ramping int) {
	s := e.RampState
	if !e.Ramping() {
		return nil, 0
	}
	if ramping = e.variant(s.Variant); ramping < 0 || e.Variants[ramping].Weight >= ramp.HeavyWeight {
		return nil, 0
	}
	for _, text := range s.Heavy {
		if raw, err := hex.DecodeString(text); err == nil && len(raw) == 8 {
			fields = append(fields, [8]byte(raw))
		}
	}
	return fields, ramping
}
