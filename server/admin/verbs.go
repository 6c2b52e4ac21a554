package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/experiment/ramp"
	"sluice/router"
)

type (
	verbBody struct {
		Reason     string `json:"reason,omitempty" maxLength:"1000" doc:"why, for the audit log"`
		Variant    string `json:"variant,omitempty" doc:"of promote and kill"`
		Force      bool   `json:"force,omitempty" doc:"of start: within the cooldown; of advance and promote: without proof. Needs a reason"`
		CutStreams bool   `json:"cut_streams,omitempty" doc:"of kill and rollback: end the streams in flight too, in-band and at once; otherwise they finish"`
	}
	verbIn struct {
		ExperimentKey
		MatchIn
		WriteIn
	}
	// verb is one state change of an experiment.
	verb struct {
		name, summary string
		star          bool // If-Match: * will do: the safe direction must not lose a race
		variant       bool // names one
		force         bool // may be forced
		edit          func(d *router.Document, rev int64, now time.Time, key, variant string) error
	}
)

// plain adapts an edit without a variant.
func plain(f func(*router.Document, int64, time.Time, string) error) func(*router.Document, int64, time.Time, string, string) error {
	return func(d *router.Document, rev int64, now time.Time, key, _ string) error { return f(d, rev, now, key) }
}

var verbs = []verb{
	{name: "start", summary: "Start, or start again as a new generation", force: true, edit: plain(router.Start)},
	{name: "pause", summary: "Pause: the ramp or enrolment stops, assigned units stay", star: true, edit: plain(router.Pause)},
	{name: "resume", summary: "Resume; a ramp goes on from the weight that it has", edit: plain(router.Resume)},
	{name: "advance", summary: "Take the next step of the ramp now, approval included; after the last one the bake, and from the bake its end", force: true, edit: plain(router.RampAdvance)},
	{name: "approve", summary: "Let the ramp take the step that waits for a person, once it is proved", edit: plain(router.RampApprove)},
	{name: "rollback", summary: "Give everybody the baseline, at once", star: true, edit: plain(router.Rollback)},
	{name: "kill", summary: "Take one variant out for good; its units get the baseline", star: true, variant: true, edit: router.Kill},
	{name: "promote", summary: "Give everybody one variant; the variant of a ramp bakes first", variant: true, force: true, edit: router.Promote},
	{name: "finish", summary: "End the experiment; everybody gets the baseline", edit: plain(router.Finish)},
	{name: "reset-pins", summary: "Forget the pins; the table decides anew", edit: plain(router.ResetPins)},
	{name: "reshuffle", summary: "New seed: everybody is assigned anew", edit: plain(router.Reshuffle)},
}

func verbNames() string {
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}

func (a *API) registerVerbs(api huma.API) {
	for _, v := range verbs {
		op := huma.Operation{
			OperationID: v.name + "-experiment", Method: http.MethodPost, Path: "/experiments/{key}:" + v.name,
			Summary: v.summary, Tags: []string{"experiments"}, Errors: []int{404, 409},
			Metadata: map[string]any{matchOptional: v.star},
		}
		register(a, api, takes[verbBody](api, op, !v.variant), func(ctx context.Context, in *verbIn) (*experimentOut, error) { return a.verb(ctx, v, in) })
	}
}

func (a *API) verb(ctx context.Context, v verb, in *verbIn) (*experimentOut, error) {
	body, err := bodyOf[verbBody](ctx, !v.variant)
	switch {
	case err != nil:
		return nil, err
	case v.variant && body.Variant == "":
		return nil, field(http.StatusUnprocessableEntity, "variant_required", "body.variant", `is missing; name the variant: {"variant": NAME}`)
	case !v.variant && body.Variant != "":
		return nil, field(http.StatusUnprocessableEntity, "unknown_member", "body.variant", v.name+" takes no variant; leave it out")
	}
	if body.CutStreams && v.name != "kill" && v.name != "rollback" {
		return nil, field(http.StatusUnprocessableEntity, "unknown_member", "body.cut_streams", v.name+" ends no streams; leave it out")
	}
	if body.Force && !v.force {
		return nil, field(http.StatusUnprocessableEntity, "unknown_member", "body.force", v.name+" cannot be forced; leave it out")
	}
	edit := v.edit
	if v.name == "start" && body.Force {
		if strings.TrimSpace(body.Reason) == "" {
			return nil, field(http.StatusUnprocessableEntity, "reason_required", "body.reason", "is missing: a start within the cooldown needs one")
		}
		edit = plain(router.StartAnyway)
	}
	stand, err := a.standing(ctx, v.name, in.Key)
	if err != nil {
		return nil, err
	}
	c := change{action: "experiment." + v.name, reason: body.Reason, in: in.WriteIn}
	c.mutate = guarded(in.Key, in.IfMatch, v.star, func(s *router.Snapshot, rev int64, now time.Time) error {
		if err := stand.allows(s.Document.Experiment(in.Key), body); err != nil {
			return err
		}
		return edit(&s.Document, rev, now, in.Key, body.Variant)
	})
	switch v.name {
	case "rollback":
		c.through = func(ctx context.Context, ch router.Change) (router.CommitResult, error) {
			ch.CutStreams = body.CutStreams
			return a.cfg.Control.Rollback(ctx, in.Key, ch)
		}
	case "kill":
		c.through = func(ctx context.Context, ch router.Change) (router.CommitResult, error) {
			ch.CutStreams = body.CutStreams
			return a.cfg.Control.Kill(ctx, in.Key, body.Variant, ch)
		}
	}
	out, err := a.writeExperiment(ctx, in.Key, c)
	if err == nil && !in.DryRun && out.Body.Write.Changed {
		a.tell(ctx, v.name, in.Key, body)
	}
	if err == nil && in.DryRun {
		a.foretell(ctx, v.name, &out.Body, in.Key)
	}
	return out, err
}

// standing is how a rollout stands before a verb that asks for its evidence;
// nil for others.
func (a *API) standing(ctx context.Context, verb, key string) (*standing, error) {
	if verb != "advance" && verb != "promote" {
		return nil, nil
	}
	t, e, err := a.find(key)
	if err != nil {
		return nil, err
	}
	r := a.report(ctx, t, e)
	return &standing{verb, r}, nil
}

type standing struct {
	verb   string
	report ramp.Report
}

// allows decides on the document that is about to change: evidence of another
// step than its own is none.
func (s *standing) allows(e *router.Experiment, body *verbBody) error {
	if s == nil || e == nil || !e.Ramping() || e.State == router.StatePromoted && s.verb == "promote" {
		return nil
	}
	r := s.report
	if r.Generation != e.Generation || r.Epoch != e.RampState.Epoch {
		r.Decision, r.Treatments = ramp.Decision{}, nil
	}
	variant := e.RampState.Variant
	if s.verb == "promote" && body.Variant != variant {
		return nil // another one, whose proof is not the ramp's
	}
	return evidence(&r, variant, body.Force, body.Reason)
}

// foretell adds to a dry run what the change would bring: a start its forecast,
// a rollback its cost.
func (a *API) foretell(ctx context.Context, verb string, b *experimentBody, key string) {
	t, e, err := a.find(key)
	if err != nil {
		return
	}
	switch verb {
	case "start":
		b.Forecast = a.forecastOf(ctx, t, e)
	case "rollback":
		r := a.report(ctx, t, e)
		b.RollbackCost = a.rollbackCost(t, e, &r)
	}
}
