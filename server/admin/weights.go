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
		Weights map[string]int `json:"weights" minProperties:"1" doc:"basis points for every variant; sum 10000"`
		Reason  string         `json:"reason,omitempty" maxLength:"1000" doc:"required when units move between treatments"`
	}
	putWeights struct {
		experimentKey
		matchIn
		writeIn
		PauseRamp bool `query:"pause_ramp" doc:"pause a ramp that is on instead of refusing"`
		Body      weightsBody
	}
	weightsOut struct {
		ETag string `header:"ETag"`
		Body struct {
			Key      string          `json:"key"`
			Baseline string          `json:"baseline"`
			Weights  map[string]int  `json:"weights"`
			Preview  *router.Preview `json:"moved,omitempty" doc:"of a change: what moved"`
			Write    *written        `json:"write,omitempty"`
		}
	}
	previewIn struct {
		experimentKey
		Body weightsBody
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

func (a *API) registerWeights(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"weights"}, Errors: errs}
	}
	huma.Register(api, op("get-weights", http.MethodGet, "/experiments/{key}/weights", "Read the weights", 404), a.getWeights)
	huma.Register(api, op("put-weights", http.MethodPut, "/experiments/{key}/weights", "Change the weights, moving the fewest units", 404, 409, 412, 422, 428, 503), a.putWeights)
	huma.Register(api, op("preview-weights", http.MethodPost, "/experiments/{key}/weights:preview", "Say who would move", 404, 422), a.previewWeights)
}

func showWeights(e *router.Experiment) *weightsOut {
	out := &weightsOut{ETag: etag(e.UpdatedRevision)}
	out.Body.Key, out.Body.Baseline, out.Body.Weights = e.Key, e.Baseline, router.WeightsView(e)
	return out
}

func (a *API) getWeights(ctx context.Context, in *experimentKey) (*weightsOut, error) {
	e, err := a.newest(in.Key)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	return showWeights(e), nil
}

func (a *API) putWeights(ctx context.Context, in *putWeights) (*weightsOut, error) {
	var moved router.Preview
	s, w, err := a.commit(ctx, change{action: "experiment.set_weights", object: "experiment/" + in.Key, reason: in.Body.Reason, in: in.writeIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) (err error) {
			if moved, err = router.PreviewWeights(&s.Document, in.Key, in.Body.Weights); err != nil {
				return err
			}
			if moved.NeedsReason && in.Body.Reason == "" {
				return newProblem(http.StatusUnprocessableEntity, "reason_required",
					"Units would move from one treatment to another, which carries effects over; send a reason if that is meant.")
			}
			return router.SetWeights(&s.Document, rev, now, in.Key, in.Body.Weights)
		})})
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := showWeights(s.Document.Experiment(in.Key))
	out.Body.Preview, out.Body.Write = &moved, &w
	return out, nil
}

func (a *API) previewWeights(ctx context.Context, in *previewIn) (*previewOut, error) {
	e, err := a.newest(in.Key)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	p, err := router.PreviewWeights(&s.Document, in.Key, in.Body.Weights)
	if err != nil {
		return nil, a.problemOf(ctx, err)
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
