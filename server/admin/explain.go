package admin

import (
	"context"
	"net/http"
	"time"

	"sluice/experiment"
	"sluice/router"
)

type explainOut struct {
	Body struct {
		Key        string        `json:"key"`
		Unit       string        `json:"unit" doc:"type:tenant:id as it is hashed"`
		Bucket     int           `json:"bucket"`
		Owner      string        `json:"owner" doc:"variant that owns the bucket; empty: none"`
		Contested  bool          `json:"contested" doc:"the bucket's owner changed since the generation began"`
		Pin        *explainPin   `json:"pin"`
		PinError   string        `json:"pin_error,omitempty"`
		Variant    string        `json:"variant" doc:"what a request of this unit gets now"`
		Reason     string        `json:"reason"`
		Analysed   bool          `json:"analysed"`
		Revision   int64         `json:"revision"`
		LastChange *router.Audit `json:"last_change" doc:"what changed the experiment last"`
	}
}

type explainPin struct {
	Variant    string `json:"variant"`
	Generation int    `json:"generation"`
	Excluded   bool   `json:"excluded"`
	Merged     bool   `json:"merged"`
}

// explain decides for a unit as a request would, without targeting attributes:
// conditions on the request are not part of a unit.
func (a *API) explain(ctx context.Context, in *struct {
	ExperimentKey
	Unit   string `path:"unit" maxLength:"512" doc:"the unit's id, for example the user id"`
	Type   string `query:"type" default:"user" pattern:"^[a-z0-9_]{1,16}$" doc:"kind of unit"`
	Tenant string `query:"tenant" maxLength:"64" doc:"tenant of the key that the unit comes with"`
}) (*explainOut, error) {
	t, _, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	e, ok := t.Experiment(in.Key)
	if !ok {
		return nil, newProblem(http.StatusConflict, "invalid_state", "The experiment is archived: it decides nothing.")
	}
	u := experiment.Unit{Type: in.Type, Tenant: in.Tenant, ID: in.Unit}
	if !experiment.ValidUnit(u) {
		return nil, newProblem(http.StatusUnprocessableEntity, "invalid_unit", "A unit id has 1 to 512 bytes, a tenant up to 64 of A-Z a-z 0-9 _ . -.")
	}
	q := experiment.Query{Unit: u, HasUnit: true, Override: -1, Revision: t.Revision}
	d := e.Exp.Decide(&q)
	out := &explainOut{}
	b := &out.Body
	b.Key, b.Unit, b.Revision = in.Key, u.Type+":"+u.Tenant+":"+u.ID, t.Revision
	digest := e.Exp.Digest(u)
	if a.cfg.Pins != nil {
		pctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		pin, found, err := a.cfg.Pins.Get(pctx, in.Key, digest.Field, digest.Shard)
		cancel()
		switch {
		case err != nil:
			b.PinError = "the store of pins is away"
			q.Store = experiment.Down
		case found && int(pin.Variant) < len(e.Variants):
			b.Pin = &explainPin{Variant: e.Variants[pin.Variant].Name, Generation: int(pin.Gen),
				Excluded: pin.Flags&experiment.PinExcluded != 0, Merged: pin.Flags&experiment.PinMerged != 0}
			q.Store, q.HasPin, q.Pin = experiment.Up, true, pin
		default:
			q.Store = experiment.Up
		}
		if d.NeedPin {
			d = e.Exp.Decide(&q)
		}
	}
	b.Bucket, b.Contested = digest.Bucket, e.Exp.Contested(digest.Bucket)
	if o := e.Exp.Owner(digest.Bucket); o >= 0 && o < len(e.Variants) {
		b.Owner = e.Variants[o].Name
	}
	b.Variant, b.Reason, b.Analysed = e.Variants[d.Variant].Name, string(d.Reason), d.Analysed
	if page, err := a.auditPage(ctx, PageIn{Limit: 1}, router.AuditFilter{Object: "experiment/" + in.Key}); err == nil && len(page.Body.Items) > 0 {
		b.LastChange = &page.Body.Items[0]
	}
	return out, nil
}
