package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/internal/control"
	"sluice/router"
)

type (
	verbBody struct {
		Reason  string `json:"reason,omitempty" maxLength:"1000"`
		Variant string `json:"variant,omitempty" doc:"of promote and kill"`
	}
	verbIn struct {
		experimentKey
		matchIn
		writeIn
		Body *verbBody
	}
	// verb is one state change of an experiment.
	verb struct {
		name, summary string
		star          bool // If-Match: * will do: the safe direction must not lose a race
		edit          func(d *router.Document, rev int64, now time.Time, key, variant string) error
	}
)

// plain adapts an edit without a variant.
func plain(f func(*router.Document, int64, time.Time, string) error) func(*router.Document, int64, time.Time, string, string) error {
	return func(d *router.Document, rev int64, now time.Time, key, _ string) error { return f(d, rev, now, key) }
}

var verbs = []verb{
	{"start", "Start, or start again as a new generation", false, plain(router.Start)},
	{"pause", "Pause", true, plain(router.Pause)},
	{"resume", "Resume", false, plain(router.Resume)},
	{"rollback", "Give everybody the baseline, at once", true, plain(router.Rollback)},
	{"kill", "Take one variant out for good; its units get the baseline", true, router.Kill},
	{"promote", "Give everybody one variant", false, router.Promote},
	{"finish", "End the experiment; everybody gets the baseline", false, plain(router.Finish)},
	{"reset-pins", "Forget the pins; the table decides anew", false, plain(router.ResetPins)},
	{"reshuffle", "New seed: everybody is assigned anew", false, plain(router.Reshuffle)},
}

func (a *API) registerVerbs(api huma.API) {
	for _, v := range verbs {
		huma.Register(api, huma.Operation{
			OperationID: v.name + "-experiment", Method: http.MethodPost, Path: "/experiments/{key}:" + v.name,
			Summary: v.summary, Tags: []string{"experiments"}, Errors: []int{404, 409, 412, 422, 428, 503},
		}, func(ctx context.Context, in *verbIn) (*experimentOut, error) { return a.verb(ctx, v, in) })
	}
}

func (a *API) verb(ctx context.Context, v verb, in *verbIn) (*experimentOut, error) {
	var body verbBody
	if in.Body != nil {
		body = *in.Body
	}
	c := change{action: "experiment." + v.name, reason: body.Reason, in: in.writeIn}
	c.mutate = guarded(in.Key, in.IfMatch, v.star, func(s *router.Snapshot, rev int64, now time.Time) error {
		return v.edit(&s.Document, rev, now, in.Key, body.Variant)
	})
	switch v.name {
	case "rollback":
		c.through = func(ctx context.Context, ch router.Change) (control.CommitResult, error) {
			return a.cfg.Control.Rollback(ctx, in.Key, ch)
		}
	case "kill":
		if body.Variant == "" {
			return nil, a.problemOf(ctx, newProblem(http.StatusUnprocessableEntity, "variant_required", "Name the variant to kill in the body: {\"variant\": NAME}."))
		}
		c.through = func(ctx context.Context, ch router.Change) (control.CommitResult, error) {
			return a.cfg.Control.Kill(ctx, in.Key, body.Variant, ch)
		}
	}
	return a.writeExperiment(ctx, in.Key, c)
}
