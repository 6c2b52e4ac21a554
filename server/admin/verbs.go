package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

type (
	verbBody struct {
		Reason  string `json:"reason,omitempty" maxLength:"1000" doc:"why, for the audit log"`
		Variant string `json:"variant,omitempty" doc:"of promote and kill"`
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
		edit          func(d *router.Document, rev int64, now time.Time, key, variant string) error
	}
)

// plain adapts an edit without a variant.
func plain(f func(*router.Document, int64, time.Time, string) error) func(*router.Document, int64, time.Time, string, string) error {
	return func(d *router.Document, rev int64, now time.Time, key, _ string) error { return f(d, rev, now, key) }
}

var verbs = []verb{
	{"start", "Start, or start again as a new generation", false, false, plain(router.Start)},
	{"pause", "Pause: assigned units stay", true, false, plain(router.Pause)},
	{"resume", "Resume", false, false, plain(router.Resume)},
	{"rollback", "Give everybody the baseline, at once", true, false, plain(router.Rollback)},
	{"kill", "Take one variant out for good; its units get the baseline", true, true, router.Kill},
	{"promote", "Give everybody one variant", false, true, router.Promote},
	{"finish", "End the experiment; everybody gets the baseline", false, false, plain(router.Finish)},
	{"reset-pins", "Forget the pins; the table decides anew", false, false, plain(router.ResetPins)},
	{"reshuffle", "New seed: everybody is assigned anew", false, false, plain(router.Reshuffle)},
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
	c := change{action: "experiment." + v.name, reason: body.Reason, in: in.WriteIn}
	c.mutate = guarded(in.Key, in.IfMatch, v.star, func(s *router.Snapshot, rev int64, now time.Time) error {
		return v.edit(&s.Document, rev, now, in.Key, body.Variant)
	})
	switch v.name {
	case "rollback":
		c.through = func(ctx context.Context, ch router.Change) (router.CommitResult, error) {
			return a.cfg.Control.Rollback(ctx, in.Key, ch)
		}
	case "kill":
		c.through = func(ctx context.Context, ch router.Change) (router.CommitResult, error) {
			return a.cfg.Control.Kill(ctx, in.Key, body.Variant, ch)
		}
	}
	return a.writeExperiment(ctx, in.Key, c)
}
