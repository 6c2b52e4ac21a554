package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice/experiment/ramp"
	"sluice/router"
)

type (
	// historyItem is one change of an experiment with what it was in words.
	historyItem struct {
		router.Audit
		Event string `json:"event" doc:"created, started, advanced, held, paused, resumed, approved, rolled_back, killed, promoted, completed, weights, changed or deleted"`
		Text  string `json:"text" doc:"what happened, with the numbers"`
	}
	historyOut struct {
		Body struct {
			Items      []historyItem `json:"items"`
			NextCursor string        `json:"next_cursor,omitempty"`
		}
	}
)

// history is that of an experiment that is gone, too.
func (a *API) history(ctx context.Context, in *struct {
	ExperimentKey
	PageIn
}) (*historyOut, error) {
	page, err := a.auditPage(ctx, in.PageIn, router.AuditFilter{Object: "experiment/" + in.Key})
	if err != nil {
		return nil, err
	}
	if len(page.Body.Items) == 0 && in.Cursor == "" {
		if _, _, err := a.find(in.Key); err != nil {
			return nil, err
		}
	}
	out := &historyOut{}
	out.Body.Items, out.Body.NextCursor = make([]historyItem, 0, len(page.Body.Items)), page.Body.NextCursor
	for i := range page.Body.Items {
		out.Body.Items = append(out.Body.Items, narrate(&page.Body.Items[i]))
	}
	return out, nil
}

// eventOf are the verbs of actions.
var eventOf = map[string]string{
	"create": "created", "start": "started", "pause": "paused", "resume": "resumed", "advance": "advanced", "approve": "approved",
	"rollback": "rolled_back", "kill": "killed", "promote": "promoted", "finish": "completed", "finish_bake": "completed",
	"hold": "held", "continue": "changed", "set_weights": "weights", "archive": "deleted", "delete": "deleted",
}

// narrate says what a row of the audit log was: who, what, the numbers, and why.
func narrate(r *router.Audit) historyItem {
	_, verb, _ := strings.Cut(r.Action, ".")
	it := historyItem{Audit: *r, Event: cmpOr(eventOf[verb], "changed")}
	var before, after *router.Experiment
	read := func(raw json.RawMessage) *router.Experiment {
		e := &router.Experiment{}
		if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, e) != nil {
			return nil
		}
		return e
	}
	before, after = read(r.Before), read(r.After)
	text := strings.ReplaceAll(verb, "_", " ")
	if it.Event != "changed" {
		text = strings.ReplaceAll(it.Event, "_", " ")
	}
	if it.Event == "started" && before != nil && after != nil && after.Generation != before.Generation {
		text += fmt.Sprintf(" as generation %d", after.Generation)
	}
	if what := differences(before, after); what != "" {
		text += ": " + what
	}
	if who := r.Actor; who != "" {
		text += " (by " + who + ")"
	}
	if r.Reason != "" {
		text += "; " + r.Reason
	}
	it.Text = text
	return it
}

// differences are the numbers that a change moved.
func differences(before, after *router.Experiment) string {
	if before == nil || after == nil {
		return ""
	}
	var parts []string
	if before.State != after.State {
		parts = append(parts, before.State+" → "+after.State)
	}
	for _, v := range after.Variants {
		i := slices.IndexFunc(before.Variants, func(w router.Variant) bool { return w.Name == v.Name })
		if i < 0 {
			parts = append(parts, "new variant "+v.Name)
			continue
		}
		was := before.Variants[i]
		if was.Weight != v.Weight {
			parts = append(parts, fmt.Sprintf("%s %s → %s", v.Name, share(was.Weight), share(v.Weight)))
		}
		if was.State != v.State && v.State == router.VariantKilled {
			parts = append(parts, v.Name+" killed")
		}
	}
	if s, was := after.RampState, before.RampState; s != nil && (was == nil || was.Phase != s.Phase || was.Step != s.Step) {
		switch {
		case s.Phase == ramp.ReadyWait:
			parts = append(parts, "waits until "+s.Variant+" is ready")
		case s.Phase == ramp.Ramping && s.Step >= 0:
			parts = append(parts, fmt.Sprintf("step %d of %d", s.Step+1, len(s.Steps)))
		case s.Phase == ramp.Holding:
			parts = append(parts, "holding: "+s.Reason)
		case s.Phase == ramp.Baking:
			parts = append(parts, "bakes")
		}
	}
	return strings.Join(parts, ", ")
}

// share writes basis points: "12.5 %".
func share(bp int) string { return strconv.FormatFloat(float64(bp)/100, 'f', -1, 64) + " %" }
