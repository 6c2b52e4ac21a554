package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

type (
	weightsBody struct {
		Weights map[string]*int `json:"weights" minProperties:"1" doc:"basis points for every variant, 0 too; sum 10000"`
		Reason  string          `json:"reason,omitempty" maxLength:"1000" doc:"required when units move between treatments"`
	}
	putWeights struct {
		ExperimentKey
		MatchIn
		WriteIn
		PauseRamp bool `query:"pause_ramp" doc:"pause a ramp that is on instead of refusing"`
	}
	weightsOut struct {
		ETag string `header:"ETag"`
		Body struct {
			Key      string          `json:"key"`
			Baseline string          `json:"baseline"`
			Weights  map[string]int  `json:"weights" doc:"basis points"`
			Preview  *router.Preview `json:"moved,omitempty" doc:"of a change: who moved"`
			Write    *written        `json:"write,omitempty" doc:"of a change"`
		}
	}
	previewOut struct {
		ETag string `header:"ETag"`
		Body struct {
			router.Preview
			RecentUnits int64 `json:"recent_units" doc:"distinct units seen in the last hour on this replica"`
			MovingUnits int64 `json:"moving_units" doc:"how many of them would move, estimated by the share"`
		}
	}
)

// basisPoints leaves out what is null: a weight of 0 must be written.
func (b *weightsBody) basisPoints() map[string]int {
	out := make(map[string]int, len(b.Weights))
	for name, w := range b.Weights {
		if w != nil {
			out[name] = *w
		}
	}
	return out
}

func (a *API) registerWeights(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"weights"}, Errors: errs}
	}
	register(a, api, op("get-weights", http.MethodGet, "/experiments/{key}/weights", "Read the weights", 404), a.getWeights)
	put := op("put-weights", http.MethodPut, "/experiments/{key}/weights", "Change the weights, moving the fewest units", 404, 409)
	register(a, api, takes[weightsBody](api, put, false), a.putWeights)
	preview := op("preview-weights", http.MethodPost, "/experiments/{key}/weights:preview", "Say who would move; writes nothing", 404, 409)
	register(a, api, takes[weightsBody](api, preview, false), a.previewWeights)
}

func showWeights(e *router.Experiment, w *written) *weightsOut {
	out := &weightsOut{ETag: w.tagOf(e.UpdatedRevision)}
	out.Body.Key, out.Body.Baseline, out.Body.Weights, out.Body.Write = e.Key, e.Baseline, router.WeightsView(e), w
	return out
}

func (a *API) getWeights(ctx context.Context, in *struct {
	ExperimentKey
	IfNoneMatch string `header:"If-None-Match" doc:"an ETag that is there already"`
}) (*weightsOut, error) {
	_, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	if err := notModified(in.IfNoneMatch, e.UpdatedRevision); err != nil {
		return nil, err
	}
	return showWeights(e, nil), nil
}

func (a *API) putWeights(ctx context.Context, in *putWeights) (*weightsOut, error) {
	body, err := bodyOf[weightsBody](ctx, false)
	if err != nil {
		return nil, err
	}
	var moved router.Preview
	s, w, err := a.commit(ctx, change{action: "experiment.set_weights", object: "experiment/" + in.Key, reason: body.Reason, in: in.WriteIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) (err error) {
			if moved, err = router.PreviewWeights(&s.Document, in.Key, body.basisPoints()); err != nil {
				return err
			}
			if moved.NeedsReason && body.Reason == "" {
				return field(http.StatusUnprocessableEntity, "reason_required", "body.reason",
					"is missing: units would move from one treatment to another, which carries effects over; send a reason if that is meant")
			}
			return router.ChangeWeights(&s.Document, rev, now, in.Key, body.basisPoints(), in.PauseRamp)
		})})
	if err != nil {
		return nil, err
	}
	out := showWeights(s.Document.Experiment(in.Key), w)
	out.Body.Preview = &moved
	return out, nil
}

func (a *API) previewWeights(ctx context.Context, in *ExperimentKey) (*previewOut, error) {
	body, err := bodyOf[weightsBody](ctx, false)
	if err != nil {
		return nil, err
	}
	t, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	p, err := router.PreviewWeights(&t.Snapshot.Document, in.Key, body.basisPoints())
	if err != nil {
		return nil, err
	}
	out := &previewOut{ETag: etag(e.UpdatedRevision)}
	out.Body.Preview = p
	for _, arm := range a.cfg.Recorder.Live() {
		if arm.Experiment == in.Key {
			out.Body.RecentUnits += arm.Units
		}
	}
	out.Body.MovingUnits = int64(p.Share*float64(out.Body.RecentUnits) + 0.5)
	return out, nil
}
