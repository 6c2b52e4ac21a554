package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

type (
	experimentKey struct {
		Key string `path:"key" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"the experiment's key"`
	}
	experimentOut struct {
		ETag string `header:"ETag"`
		Body struct {
			router.ExperimentView
			Write *written `json:"write,omitempty" doc:"of a change"`
		}
	}
	experimentList struct {
		Body struct {
			Items      []router.ExperimentView `json:"items"`
			NextCursor string                  `json:"next_cursor,omitempty"`
			Revision   int64                   `json:"revision"`
		}
	}
	createExperiment struct {
		writeIn
		Reason  string `query:"reason"`
		Body    router.Experiment
		RawBody []byte
	}
	patchExperiment struct {
		experimentKey
		matchIn
		writeIn
		Reason  string         `query:"reason"`
		Body    map[string]any `doc:"RFC 7396 merge patch over the experiment"`
		RawBody []byte
	}
	deleteExperiment struct {
		experimentKey
		matchIn
		writeIn
		Reason string `query:"reason"`
		Purge  bool   `query:"purge" doc:"remove it for good instead of archiving it"`
	}
)

func (a *API) registerExperiments(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"experiments"}, Errors: errs}
	}
	huma.Register(api, op("list-experiments", http.MethodGet, "/experiments", "List experiments"), a.listExperiments)
	huma.Register(api, op("get-experiment", http.MethodGet, "/experiments/{key}", "Read one experiment", 404), a.getExperiment)
	create := op("create-experiment", http.MethodPost, "/experiments", "Create an experiment", 409, 422, 503)
	create.DefaultStatus, create.SkipValidateBody = http.StatusCreated, true
	huma.Register(api, create, a.createExperiment)
	patch := op("patch-experiment", http.MethodPatch, "/experiments/{key}", "Change members of an experiment", 404, 409, 412, 422, 428, 503)
	patch.SkipValidateBody = true
	huma.Register(api, patch, a.patchExperiment)
	huma.Register(api, op("delete-experiment", http.MethodDelete, "/experiments/{key}", "Archive an experiment", 404, 409, 412, 428, 503), a.deleteExperiment)
}

func (a *API) listExperiments(ctx context.Context, in *struct {
	State string `query:"state" doc:"only these, comma-separated"`
	Model string `query:"model"`
}) (*experimentList, error) {
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	out := &experimentList{}
	out.Body.Items = []router.ExperimentView{}
	out.Body.Revision = s.Document.Revision
	for i := range s.Document.Experiments {
		e := &s.Document.Experiments[i]
		if !listed(in.State, e.State) || in.Model != "" && e.Model != in.Model {
			continue
		}
		out.Body.Items = append(out.Body.Items, router.View(e, 0))
	}
	return out, nil
}

// newest is the newest copy that this replica serves of one experiment.
func (a *API) newest(key string) (*router.Experiment, error) {
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	e := s.Document.Experiment(key)
	if e == nil {
		return nil, missingObject("experiment", key)
	}
	return e, nil
}

func (a *API) getExperiment(ctx context.Context, in *struct {
	experimentKey
	IfNoneMatch string `header:"If-None-Match"`
}) (*experimentOut, error) {
	e, err := a.newest(in.Key)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	if in.IfNoneMatch == etag(e.UpdatedRevision) {
		return nil, huma.Status304NotModified()
	}
	return showExperiment(e, nil), nil
}

func showExperiment(e *router.Experiment, w *written) *experimentOut {
	out := &experimentOut{ETag: etag(e.UpdatedRevision)}
	out.Body.ExperimentView, out.Body.Write = router.View(e, 0), w
	return out
}

func (a *API) createExperiment(ctx context.Context, in *createExperiment) (*experimentOut, error) {
	e, err := router.ParseExperiment(in.RawBody)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	return a.writeExperiment(ctx, e.Key, change{action: "experiment.create", reason: in.Reason, in: in.writeIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			return router.CreateExperiment(&s.Document, rev, now, *e)
		}})
}

// writeExperiment commits a change of one experiment and shows it.
func (a *API) writeExperiment(ctx context.Context, key string, c change) (*experimentOut, error) {
	c.object = "experiment/" + key
	s, w, err := a.commit(ctx, c)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	e := s.Document.Experiment(key)
	if e == nil {
		return nil, a.problemOf(ctx, missingObject("experiment", key))
	}
	return showExperiment(e, &w), nil
}

// guarded runs edit when the experiment's ETag matches.
func guarded(key, ifMatch string, star bool, edit func(s *router.Snapshot, rev int64, now time.Time) error) func(*router.Snapshot, int64, time.Time) error {
	return func(s *router.Snapshot, rev int64, now time.Time) error {
		e := s.Document.Experiment(key)
		if e == nil {
			return missingObject("experiment", key)
		}
		if err := precondition(ifMatch, star, e.UpdatedRevision); err != nil {
			return err
		}
		return edit(s, rev, now)
	}
}

func (a *API) patchExperiment(ctx context.Context, in *patchExperiment) (*experimentOut, error) {
	return a.writeExperiment(ctx, in.Key, change{action: "experiment.patch", reason: in.Reason, in: in.writeIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) error {
			return router.PatchExperiment(&s.Document, rev, now, in.Key, in.RawBody)
		})})
}

func (a *API) deleteExperiment(ctx context.Context, in *deleteExperiment) (*writtenOut, error) {
	action, edit := "experiment.archive", router.ArchiveExperiment
	if in.Purge {
		action, edit = "experiment.delete", router.DeleteExperiment
	}
	_, w, err := a.commit(ctx, change{action: action, object: "experiment/" + in.Key, reason: in.Reason, in: in.writeIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) error {
			return edit(&s.Document, rev, now, in.Key)
		})})
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	return &writtenOut{Body: w}, nil
}

type writtenOut struct{ Body written }
