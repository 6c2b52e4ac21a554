package admin

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sluice/experiment"
	"sluice/router"
)

type explainOut struct {
	Body struct {
		Key       string      `json:"key"`
		Unit      string      `json:"unit" doc:"type:tenant:id as it is hashed"`
		Bucket    int         `json:"bucket"`
		Owner     string      `json:"owner" doc:"variant that owns the bucket; empty: none"`
		Contested bool        `json:"contested" doc:"the bucket's owner changed since the generation began"`
		Pin       *explainPin `json:"pin"`
		PinError  string      `json:"pin_error,omitempty"`
		Variant   string      `json:"variant" doc:"what a request of this unit gets now"`
		Reason    string      `json:"reason"`
		Rule      string      `json:"rule" doc:"what decided, in words"`
		Analysed  bool        `json:"analysed"`
		Excluded  bool        `json:"excluded" doc:"its pin is not analysed: it was evicted, or took over another's"`
		Heavy     bool        `json:"heavy" doc:"it carries so much of the traffic that it stays out of a ramp's early steps"`
		Revision  int64       `json:"revision"`
		// Conversations are told apart by what they say: not by a unit.
		Finish     bool          `json:"conversations_may_finish,omitempty" doc:"a conversation that began on another variant may finish there (switch: conversation)"`
		LastChange *router.Audit `json:"last_change" doc:"what changed the experiment last"`
		Changed    string        `json:"changed,omitempty" doc:"the same in words"`
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
	t, exp, err := a.find(in.Key)
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
	b.Excluded = b.Pin != nil && b.Pin.Excluded
	b.Heavy = exp.Ramping() && slices.Contains(exp.RampState.Heavy, hex.EncodeToString(digest.Field[:]))
	b.Rule = rule(e, &d, b.Owner)
	b.Finish = e.Finishes(&d)
	b.Variant, b.Reason, b.Analysed = e.Variants[d.Variant].Name, string(d.Reason), d.Analysed
	if page, err := a.auditPage(ctx, PageIn{Limit: 1}, router.AuditFilter{Object: "experiment/" + in.Key}); err == nil && len(page.Body.Items) > 0 {
		b.LastChange = &page.Body.Items[0]
		b.Changed = narrate(b.LastChange).Text
	}
	return out, nil
}

// rule says what decided, for people who ask why.
func rule(e *router.CompiledExperiment, d *experiment.Decision, owner string) string {
	variant, baseline := e.Variants[d.Variant].Name, e.Variants[e.Baseline].Name
	switch d.Reason {
	case experiment.ReasonBucket:
		return fmt.Sprintf("its bucket, %d, is one of %s's", d.Bucket, variant)
	case experiment.ReasonPin:
		return "it was given " + variant + " before, in this generation, and keeps it"
	case experiment.ReasonMerged:
		return "its session was given " + variant + " before, and it takes that over"
	case experiment.ReasonEvicted:
		return "the variant that it had was killed or has weight 0, so it gets the baseline"
	case experiment.ReasonHeavy:
		return fmt.Sprintf("it carries over a tenth of the model's traffic, and such units stay on %s below the 20 %% step", baseline)
	case experiment.ReasonHoldout:
		return "it is in the holdout, which no experiment touches"
	case experiment.ReasonLayer:
		return "it is outside of the experiment's slice"
	case experiment.ReasonTargeting:
		return "it does not match the targeting; what depends on the request (headers, key, tags) is not known here"
	case experiment.ReasonFixed:
		return "a fixed segment gives it " + variant
	case experiment.ReasonNotRunning:
		return "the experiment does not run"
	case experiment.ReasonRolledBack:
		return "the experiment was rolled back: everybody gets " + baseline
	case experiment.ReasonPromoted:
		return variant + " was promoted: everybody gets it"
	case experiment.ReasonBlocked:
		return "it was in an earlier generation that block_below shuts out"
	case experiment.ReasonEnrolmentPaused:
		return "the experiment is paused, and it was in it for the first time"
	case experiment.ReasonUnallocated:
		return fmt.Sprintf("nobody owns its bucket, %d", d.Bucket)
	case experiment.ReasonKilled:
		return fmt.Sprintf("%s owns its bucket, %d, and was killed", cmpOr(owner, "a variant"), d.Bucket)
	case experiment.ReasonNotReady:
		return fmt.Sprintf("%s owns its bucket, %d, and is out of service", cmpOr(owner, "a variant"), d.Bucket)
	case experiment.ReasonProvisional:
		return "its pin cannot be read now, so the table decides, for this request alone"
	case experiment.ReasonUnsupervised:
		return "nobody supervises the rollout, so everybody gets " + baseline
	case experiment.ReasonRandom:
		return "stickiness: none draws anew for each request"
	}
	return string(d.Reason)
}
