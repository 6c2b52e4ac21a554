package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/experiment"
	"sluice/router"
)

type (
	ExperimentKey struct {
		Key string `path:"key" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"the experiment's key"`
	}
	// experimentBody is an experiment as every operation shows it.
	experimentBody struct {
		router.ExperimentView
		Differs      []string      `json:"differs" doc:"what differs between the variants: model, params, prompt, upstream"`
		Warnings     []string      `json:"warnings" doc:"what may spoil it, in words"`
		Write        *written      `json:"write,omitempty" doc:"of a change"`
		Forecast     *forecastBody `json:"forecast,omitempty" doc:"of a creation and of the dry run of a start: what the steps of its ramp take"`
		RollbackCost *rollbackCost `json:"rollback_cost,omitempty" doc:"of the dry run of a rollback"`
	}
	experimentOut struct {
		ETag string `header:"ETag"`
		Body experimentBody
	}
	experimentList struct {
		Body struct {
			Items      []experimentBody `json:"items"`
			NextCursor string           `json:"next_cursor,omitempty"`
			Revision   int64            `json:"revision" doc:"of the document"`
		}
	}
	createExperiment struct {
		WriteIn
		ReasonIn
	}
	patchExperiment struct {
		ExperimentKey
		MatchIn
		WriteIn
		ReasonIn
	}
	deleteExperiment struct {
		ExperimentKey
		MatchIn
		WriteIn
		ReasonIn
		Purge bool `query:"purge" doc:"remove it for good instead of archiving it"`
	}
	writtenOut struct{ Body written }
)

func (a *API) registerExperiments(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"experiments"}, Errors: errs}
	}
	register(a, api, op("list-experiments", http.MethodGet, "/experiments", "List experiments, oldest first"), a.listExperiments)
	register(a, api, op("get-experiment", http.MethodGet, "/experiments/{key}", "Read one experiment", 404), a.getExperiment)
	create := takes[router.Experiment](api, op("create-experiment", http.MethodPost, "/experiments", "Create an experiment", 409), false)
	create.DefaultStatus = http.StatusCreated
	register(a, api, create, a.createExperiment)
	patch := op("patch-experiment", http.MethodPatch, "/experiments/{key}", "Change members of an experiment", 404, 409)
	register(a, api, takes[router.Experiment](api, patch, false), a.patchExperiment)
	register(a, api, op("delete-experiment", http.MethodDelete, "/experiments/{key}", "Archive an experiment, or remove it", 404, 409), a.deleteExperiment)
}

// listed says whether v is in a comma-separated list; an empty list has all.
func listed(list, v string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), v)
}

var states = []string{router.StateDraft, router.StateRunning, router.StatePaused, router.StatePromoted, router.StateRolledBack, router.StateCompleted, router.StateArchived}

func (a *API) listExperiments(ctx context.Context, in *struct {
	PageIn
	State string `query:"state" doc:"only these, comma-separated"`
	Model string `query:"model" doc:"only those of this model"`
}) (*experimentList, error) {
	t, err := a.table()
	if err != nil {
		return nil, err
	}
	for s := range strings.SplitSeq(in.State, ",") {
		if in.State != "" && !slices.Contains(states, s) {
			return nil, field(http.StatusUnprocessableEntity, "invalid_parameter", "query.state", "takes "+strings.Join(states, ", "))
		}
	}
	d := &t.Snapshot.Document
	var match []router.Experiment
	for i := range d.Experiments {
		if e, _ := overlay(t, &d.Experiments[i]); listed(in.State, e.State) && (in.Model == "" || e.Model == in.Model) {
			match = append(match, d.Experiments[i])
		}
	}
	page, next, err := pageOf(match, func(e *router.Experiment) string { return sortTime(e.CreatedAt) + e.Key }, in.PageIn)
	if err != nil {
		return nil, err
	}
	out := &experimentList{}
	out.Body.Items, out.Body.NextCursor, out.Body.Revision = []experimentBody{}, next, d.Revision
	for i := range page {
		out.Body.Items = append(out.Body.Items, showNow(t, &page[i]))
	}
	return out, nil
}

// sortTime orders texts by time.
func sortTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z ") }

// find is the copy of one experiment that this replica serves.
func (a *API) find(key string) (*router.Table, *router.Experiment, error) {
	t, err := a.table()
	if err != nil {
		return nil, nil, err
	}
	e := t.Snapshot.Document.Experiment(key)
	if e == nil {
		return nil, nil, missingObject("experiment", key)
	}
	return t, e, nil
}

// overlay is e with the kills and the rollback that are in force although the
// document does not have them yet, because the database is away.
func overlay(t *router.Table, e *router.Experiment) (_ *router.Experiment, ahead bool) {
	c, ok := t.Experiment(e.Key)
	if !ok || len(c.Variants) != len(e.Variants) {
		return e, false
	}
	now := *e
	now.Variants = slices.Clone(e.Variants)
	if c.State == experiment.RolledBack && e.State != router.StateRolledBack {
		now.State, ahead = router.StateRolledBack, true
	}
	for i, v := range c.Variants {
		if v.Killed && e.Variants[i].State != router.VariantKilled {
			now.Variants[i].State, ahead = router.VariantKilled, true
		}
	}
	return &now, ahead
}

func showNow(t *router.Table, e *router.Experiment) experimentBody {
	now, ahead := overlay(t, e)
	b := bodyOfExperiment(now)
	if ahead {
		b.Warnings = append(b.Warnings, "A kill or rollback is in force that is not in the document yet: the database is away, it is written when it is back.")
	}
	return b
}

func bodyOfExperiment(e *router.Experiment) experimentBody {
	b := experimentBody{ExperimentView: router.View(e, 0)}
	b.Differs, b.Warnings = router.Differs(e)
	if policy, ok := e.Policy(); ok {
		b.Warnings = append(b.Warnings, policy.Warnings()...)
		if e.RampState == nil && e.State == router.StateRunning {
			b.Warnings = append(b.Warnings, "The ramp was written while the experiment ran: it begins with the next start (roll back, then start).")
		}
	}
	return b
}

func (a *API) getExperiment(ctx context.Context, in *struct {
	ExperimentKey
	IfNoneMatch string `header:"If-None-Match" doc:"an ETag that is there already"`
}) (*experimentOut, error) {
	t, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	if _, ahead := overlay(t, e); !ahead {
		if err := notModified(in.IfNoneMatch, e.UpdatedRevision); err != nil {
			return nil, err
		}
	}
	return &experimentOut{ETag: etag(e.UpdatedRevision), Body: showNow(t, e)}, nil
}

func (a *API) createExperiment(ctx context.Context, in *createExperiment) (*experimentOut, error) {
	e, err := bodyOf[router.Experiment](ctx, false)
	if err != nil {
		return nil, err
	}
	out, err := a.writeExperiment(ctx, e.Key, change{action: "experiment.create", reason: in.Reason, in: in.WriteIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			return router.CreateExperiment(&s.Document, rev, now, *e)
		}})
	if err != nil {
		return nil, err
	}
	if t, err := a.table(); err == nil {
		out.Body.Forecast = a.forecastOf(ctx, t, e)
	}
	return out, nil
}

// writeExperiment commits a change of one experiment and shows it.
func (a *API) writeExperiment(ctx context.Context, key string, c change) (*experimentOut, error) {
	c.object = "experiment/" + clip(key, 63)
	s, w, err := a.commit(ctx, c)
	if err != nil {
		return nil, err
	}
	e := s.Document.Experiment(key)
	if e == nil {
		return nil, missingObject("experiment", key)
	}
	out := &experimentOut{ETag: w.tagOf(e.UpdatedRevision), Body: bodyOfExperiment(e)}
	out.Body.Write = w
	return out, nil
}

// guarded runs edit when the experiment's ETag matches.
func guarded(key, ifMatch string, star bool, edit mutation) mutation {
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
	patch, err := object(ctx, false)
	if err != nil {
		return nil, err
	}
	if patch, err = without(patch, "differs", "warnings", "write", "forecast", "rollback_cost"); err != nil {
		return nil, err
	}
	return a.writeExperiment(ctx, in.Key, change{action: "experiment.patch", reason: in.Reason, in: in.WriteIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) error {
			return router.PatchExperiment(&s.Document, rev, now, in.Key, patch)
		})})
}

// without drops members that only answers have, so that an answer can be
// edited and sent back.
func without(object []byte, names ...string) ([]byte, error) {
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal(object, &m); err != nil {
		return nil, err
	}
	for _, n := range names {
		delete(m, n)
	}
	return json.Marshal(m)
}

func (a *API) deleteExperiment(ctx context.Context, in *deleteExperiment) (*writtenOut, error) {
	action, edit := "experiment.archive", router.ArchiveExperiment
	if in.Purge {
		action, edit = "experiment.delete", router.DeleteExperiment
	}
	_, w, err := a.commit(ctx, change{action: action, object: "experiment/" + in.Key, reason: in.Reason, in: in.WriteIn,
		mutate: guarded(in.Key, in.IfMatch, false, func(s *router.Snapshot, rev int64, now time.Time) error {
			return edit(&s.Document, rev, now, in.Key)
		})})
	if err != nil {
		return nil, err
	}
	return &writtenOut{Body: *w}, nil
}
