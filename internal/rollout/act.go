package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/sticky"
	"sluice/router"
)

// holdAfter is how long a hold, or its end, must last before it is written into
// the document, ms of the stream: what flickers is in the report alone.
const holdAfter = 3_000

// carryOut does what was decided, if anything.
func (r *Rollouts) carryOut(ctx context.Context, lease *sticky.Lease, s *subject, f *file, v decided) error {
	d := v.inputs.Decision
	if d.Action.Reduces() {
		return r.act(ctx, s, d, details(&v.inputs), 0, verdictsOf(v.inputs.Input, d.Variant))
	}
	if !lease.Valid() {
		return nil
	}
	var e *edit
	if now := r.o.Now().UnixMilli(); s.ramp != nil {
		e = f.edit(s, d, now)
	} else {
		e = f.fixWithoutRamp(s, now, r.o.FixAfter)
	}
	if e == nil {
		return nil
	}
	ch := r.change(s, e.action, e.reason, details(&v.inputs))
	ch.Fence = lease.Fence()
	ch.Mutate = s.still(e.do)
	if _, err := r.o.Control.Commit(ctx, ch); err != nil {
		return overtaken(err)
	}
	r.log.Info("rollout", "experiment", s.key, "action", e.action, "reason", e.reason)
	if s.ramp != nil {
		r.counted(s, string(d.Action), e)
	}
	r.notify(s, e.event, d, verdictsOf(v.inputs.Input, d.Variant))
	return nil
}

// edit is one change of the document.
type edit struct {
	action, reason string
	event          string // of ramp.Notices; "" tells nobody
	do             func(doc *router.Document, revision int64, now time.Time) error
}

// edit is what a decision changes; nil for nothing.
func (f *file) edit(s *subject, d ramp.Decision, now int64) *edit {
	switch d.Action {
	case ramp.Advance:
		if e := f.ladder(s); e != nil {
			return e
		}
		next, setup, heavy := s.ramp.Step+1, f.next(s, now), pins(f.heavy(s))
		event := ramp.NoticeAdvanced
		if next == 0 {
			event = ramp.NoticeStarted
		}
		return &edit{"ramp.advance", d.Text, event, func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampStep(doc, rev, now, s.key, next, setup, heavy)
		}}
	case ramp.Promote:
		return &edit{"ramp.promote", d.Text, ramp.NoticePromoted, func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampPromote(doc, rev, now, s.key)
		}}
	case ramp.FinishBake:
		return &edit{"ramp.finish_bake", d.Text, ramp.NoticeCompleted, func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampDone(doc, rev, now, s.key)
		}}
	}
	if s.state == router.StatePaused || d.Action == ramp.None {
		return nil
	}
	for _, e := range []*edit{f.ladder(s), f.fix(s, now), f.anew(s)} {
		if e != nil {
			return e
		}
	}
	return f.hold(s, d)
}

// hold notes why the ramp waits, or that it goes on, once that has lasted.
func (f *file) hold(s *subject, d ramp.Decision) *edit {
	if f.Hold == s.ramp.Reason || f.Clock-f.HoldSince < holdAfter {
		return nil
	}
	code, e := f.Hold, edit{action: "ramp.hold", reason: d.Text, event: ramp.NoticeHeld}
	switch code {
	case "":
		e.action, e.event = "ramp.continue", ""
	case ramp.CodeApproval:
		e.event = ramp.NoticeApproval
	}
	if s.ramp.Phase == ramp.ReadyWait && (code == ramp.CodeUnmeasured || code == ramp.CodeNotReady || code == ramp.CodePreflight) && s.ramp.Reason == "" {
		e.event = "" // that a start takes a moment is no news
	}
	e.do = func(doc *router.Document, rev int64, now time.Time) error {
		return router.RampHold(doc, rev, now, s.key, code)
	}
	return &e
}

// fix says what is slow where nobody has: after a person's step, a resumption, or
// other guardrails. It waits until enough is known of the baseline.
func (f *file) fix(s *subject, now int64) *edit {
	if s.fixed() || s.ramp.Step < 0 {
		return nil
	}
	p := f.profile(s)
	if p.Lacks(s.guardrails) > 0 {
		return nil
	}
	setup, heavy := f.next(s, now), pins(f.heavy(s))
	return &edit{"ramp.setup", "what counts as slow is fixed from the baseline; the evidence begins anew", "",
		func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampSetup(doc, rev, now, s.key, setup, heavy)
		}}
}

// fixWithoutRamp says it where there are no steps to say it before: from what the
// baseline did first, for all that comes after in the generation.
func (f *file) fixWithoutRamp(s *subject, now int64, after time.Duration) *edit {
	if s.state != router.StateRunning || s.fixed() || f.Clock-f.Evidence.Since < after.Milliseconds() {
		return nil
	}
	if f.profile(s).Lacks(s.guardrails) > 0 {
		return nil
	}
	setup := f.next(s, now)
	return &edit{"experiment.setup", "what counts as slow is fixed from the baseline; the evidence begins anew", "",
		func(doc *router.Document, rev int64, now time.Time) error {
			return router.FixSetup(doc, rev, now, s.key, setup)
		}}
}

// anew lets every replica begin to count anew where the beginning of the epoch is
// lost, with the store's data: units are named once an epoch, and those that were
// named are not among the evidence any more.
func (f *file) anew(s *subject) *edit {
	if !f.Partial || !s.fixed() || s.ramp.Step < 0 {
		return nil
	}
	setup, heavy := s.ramp.Setup, s.ramp.Heavy
	return &edit{"ramp.restart", "counts of this step were lost with the shared store; its evidence begins anew", "",
		func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampSetup(doc, rev, now, s.key, setup, heavy)
		}}
}

// profile is the baseline's, of this epoch, or of the one before if this one
// knows too little.
func (f *file) profile(s *subject) *trial.Profile {
	if f.Evidence.Profile.Lacks(s.guardrails) > 0 && f.Profile.Lacks(s.guardrails) == 0 {
		return &f.Profile
	}
	return &f.Evidence.Profile
}

// next is what the next epoch counts as slow.
func (f *file) next(s *subject, now int64) trial.Setup {
	return ramp.NextSetup(s.guardrails, &ramp.Evidence{Profile: *f.profile(s)}, s.lead(), now)
}

func pins(list []ramp.HeavyUnit) []string {
	var out []string
	for _, u := range list {
		out = append(out, u.Pin)
	}
	return out
}

// act reduces, as any replica may: it needs neither a lease nor, but for a
// pause, the database.
func (r *Rollouts) act(ctx context.Context, s *subject, d ramp.Decision, raw json.RawMessage, fence int64, verdicts []guardrail.Verdict) error {
	var err error
	e := &edit{reason: d.Text}
	switch d.Action {
	case ramp.Rollback:
		e.action, e.event = "ramp.rollback", ramp.NoticeRolledBack
		ch := r.change(s, e.action, d.Text, raw)
		ch.Code = d.Code
		ch.Mutate = s.still(func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampRollback(doc, rev, now, s.key, d.Code)
		})
		_, err = r.o.Control.Rollback(ctx, s.key, ch)
	case ramp.KillVariant:
		e.action, e.event = "ramp.kill", ramp.NoticeKilled
		ch := r.change(s, e.action, d.Text, raw)
		ch.Mutate = s.still(func(doc *router.Document, rev int64, now time.Time) error {
			return router.Kill(doc, rev, now, s.key, d.Variant)
		})
		_, err = r.o.Control.Kill(ctx, s.key, d.Variant, ch)
	case ramp.Pause:
		e.action, e.event = "ramp.pause", ramp.NoticePaused
		if d.Code == ramp.CodeSRM {
			e.event = ramp.NoticeSRM
		}
		ch := r.change(s, e.action, d.Text, raw)
		ch.Mutate = s.still(func(doc *router.Document, rev int64, now time.Time) error {
			return router.RampPause(doc, rev, now, s.key, d.Code)
		})
		_, err = r.o.Control.Commit(ctx, ch)
	}
	if err != nil {
		return overtaken(err)
	}
	r.log.Warn("rollout", "experiment", s.key, "action", e.action, "reason", e.reason)
	r.counted(s, string(d.Action), e)
	r.notify(s, e.event, d, verdicts)
	return nil
}

func (r *Rollouts) change(s *subject, action, reason string, raw json.RawMessage) router.Change {
	return router.Change{Actor: "controller@" + r.o.ReplicaID, Role: "controller", Action: action,
		Object: "experiment/" + s.key, Reason: reason, Details: raw}
}

// errOvertaken is a change that came after another one: the experiment is not
// what was decided about any more.
var errOvertaken = errors.New("the experiment has changed since the decision")

// overtaken makes a lost race no error: the next second decides anew.
func overtaken(err error) error {
	if errors.Is(err, errOvertaken) {
		return nil
	}
	return err
}

// still runs a change only on the generation, epoch and state that was decided
// about, so that a person who was faster wins.
func (s *subject) still(do func(*router.Document, int64, time.Time) error) func(*router.Snapshot, int64) error {
	return func(snap *router.Snapshot, revision int64) error {
		e := snap.Document.Experiment(s.key)
		if e == nil || e.Generation != s.generation || e.State != s.state || epochOf(e) != s.epoch {
			return errOvertaken
		}
		return do(&snap.Document, revision, time.Now())
	}
}

func epochOf(e *router.Experiment) int64 {
	if e.Ramping() {
		return e.RampState.Epoch
	}
	return e.UpdatedRevision
}

func (r *Rollouts) counted(s *subject, action string, e *edit) {
	if m := r.o.Metrics; m != nil {
		if e.action == "ramp.continue" {
			action = "continue"
		}
		m.CountDecision(s.key, action)
	}
}

func verdictsOf(in *ramp.Input, variant string) []guardrail.Verdict {
	for i := range in.Treatments {
		if t := &in.Treatments[i]; t.Name == variant || variant == "" && t.Ramping {
			return t.Verdicts
		}
	}
	return nil
}

func (r *Rollouts) notify(s *subject, event string, d ramp.Decision, verdicts []guardrail.Verdict) {
	if r.o.Notifier == nil || event == "" {
		return
	}
	n := ramp.Notice{Event: event, At: r.o.Now(), Experiment: s.key, Model: s.model, Generation: s.generation, Epoch: s.epoch,
		Variant: d.Variant, Baseline: s.variants[s.baseline], Step: -1, Code: d.Code, Guardrail: d.Guardrail, Text: d.Text,
		Actor: "controller@" + r.o.ReplicaID, Guardrails: verdicts}
	if s.ramp != nil {
		n.Step, n.Steps, n.Weight = s.ramp.Step, len(s.ramp.Steps), s.ramp.Weight()
		if n.Variant == "" {
			n.Variant = s.ramp.Variant
		}
		if event == ramp.NoticeAdvanced || event == ramp.NoticeStarted {
			n.Step++
			n.Weight = s.ramp.Steps[n.Step].Weight
		}
	}
	if t := r.o.Live.Load(); t != nil {
		n.Revision = t.Revision
	}
	r.o.Notifier.Notify(n)
}
