package admin

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/internal/control"
	"sluice/internal/store"
	"sluice/metrics"
	"sluice/router"
)

// listed says whether v is in a comma-separated list; an empty list has all.
func listed(list, v string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), v)
}

type (
	auditOut struct {
		Body struct {
			Items      []router.Audit `json:"items"`
			NextCursor string         `json:"next_cursor,omitempty"`
		}
	}
	statusOut struct {
		Body struct {
			control.Status
			Version string `json:"version"`
			Badge   string `json:"badge,omitempty"`
			Auth    string `json:"auth" doc:"of the data plane: none or keys"`
		}
	}
	variantResult struct {
		Variant string `json:"variant"`
		Weight  int    `json:"weight"`
		store.VariantStats
		CostUSD string `json:"cost_usd"`
	}
	resultsOut struct {
		Body struct {
			Key    string             `json:"key"`
			Since  time.Time          `json:"since,omitzero"`
			Stored []variantResult    `json:"stored" doc:"from the ledger of all replicas, a few seconds behind"`
			Live   []metrics.ArmStats `json:"live" doc:"of this replica, now"`
			Notes  []string           `json:"notes"`
		}
	}
	usageOut struct {
		Body struct {
			Items     []store.UsageRow `json:"items"`
			Truncated bool             `json:"truncated"`
		}
	}
)

func (a *API) registerReads(api huma.API) {
	op := func(id, path, summary, tag string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: []string{tag}, Errors: errs}
	}
	huma.Register(api, op("list-audit", "/audit", "Who changed what, newest first", "audit", 422, 503), a.audit)
	huma.Register(api, op("verify-audit", "/audit:verify", "Check the hash chain of the audit log", "audit", 503), a.verifyAudit)
	huma.Register(api, op("get-status", "/status", "This replica, the others, and what is degraded", "status"), a.status)
	huma.Register(api, op("whoami", "/whoami", "Who the caller is", "status"), a.whoami)
	huma.Register(api, op("live", "/live", "Figures of this replica, by variant", "status"), a.live)
	huma.Register(api, op("get-usage", "/usage", "Tokens and cost, grouped", "usage", 422, 503), a.usage)
	huma.Register(api, op("get-results", "/experiments/{key}/results", "Figures by variant", "experiments", 404, 503), a.results)
	huma.Register(api, op("get-history", "/experiments/{key}/history", "What changed an experiment, newest first", "experiments", 404, 503), a.history)
	huma.Register(api, op("explain", "/experiments/{key}/assignments/{unit}", "Why a unit gets its variant", "experiments", 404, 422), a.explain)
}

type pageIn struct {
	Cursor string `query:"cursor" doc:"next_cursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
}

func (p pageIn) before() (int64, error) {
	if p.Cursor == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(p.Cursor, 36, 64)
	if err != nil || n <= 0 {
		return 0, newProblem(http.StatusUnprocessableEntity, "invalid_cursor", "cursor is not one that this API gave out.")
	}
	return n, nil
}

func (a *API) auditPage(ctx context.Context, p pageIn, f store.AuditFilter) (*auditOut, error) {
	before, err := p.before()
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	f.Before, f.Limit = before, p.Limit
	rows, next, err := a.cfg.Store.Audit(ctx, f)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := &auditOut{}
	out.Body.Items = append([]router.Audit{}, rows...)
	if next > 0 {
		out.Body.NextCursor = strconv.FormatInt(next, 36)
	}
	return out, nil
}

func (a *API) audit(ctx context.Context, in *struct {
	pageIn
	Actor  string `query:"actor"`
	Object string `query:"object" doc:"such as experiment/chat-v2"`
	Action string `query:"action"`
}) (*auditOut, error) {
	return a.auditPage(ctx, in.pageIn, store.AuditFilter{Actor: in.Actor, Object: in.Object, Action: in.Action})
}

func (a *API) history(ctx context.Context, in *struct {
	experimentKey
	pageIn
}) (*auditOut, error) {
	if _, err := a.newest(in.Key); err != nil {
		return nil, a.problemOf(ctx, err)
	}
	return a.auditPage(ctx, in.pageIn, store.AuditFilter{Object: "experiment/" + in.Key})
}

func (a *API) verifyAudit(ctx context.Context, _ *struct{}) (*struct {
	Body struct {
		Rows  int64  `json:"rows"`
		Whole bool   `json:"whole"`
		Fault string `json:"fault,omitempty"`
	}
}, error) {
	out := &struct {
		Body struct {
			Rows  int64  `json:"rows"`
			Whole bool   `json:"whole"`
			Fault string `json:"fault,omitempty"`
		}
	}{}
	rows, err := a.cfg.Store.VerifyAudit(ctx)
	out.Body.Rows, out.Body.Whole = rows, err == nil
	if err != nil {
		if p := a.classify(ctx, err); p.Status == http.StatusServiceUnavailable {
			return nil, p
		}
		out.Body.Fault = err.Error()
	}
	return out, nil
}

func (a *API) status(ctx context.Context, _ *struct{}) (*statusOut, error) {
	out := &statusOut{}
	out.Body.Status, out.Body.Version, out.Body.Badge, out.Body.Auth = a.cfg.Control.Status(ctx), a.cfg.Version, a.cfg.Badge, "none"
	if a.cfg.AuthKeys {
		out.Body.Auth = "keys"
	}
	return out, nil
}

func (a *API) whoami(ctx context.Context, _ *struct{}) (*struct {
	Body struct {
		Actor string `json:"actor"`
		Role  string `json:"role"`
	}
}, error) {
	out := &struct {
		Body struct {
			Actor string `json:"actor"`
			Role  string `json:"role"`
		}
	}{}
	who := actorOf(ctx)
	out.Body.Actor, out.Body.Role = who.Name, who.Role
	return out, nil
}

func (a *API) live(ctx context.Context, _ *struct{}) (*struct {
	Body struct {
		Items []metrics.ArmStats `json:"items"`
	}
}, error) {
	out := &struct {
		Body struct {
			Items []metrics.ArmStats `json:"items"`
		}
	}{}
	out.Body.Items = append([]metrics.ArmStats{}, a.cfg.Recorder.Live()...)
	return out, nil
}

// since reads a duration ("24h") or a time (RFC 3339) as a point in time.
func since(s string, def time.Duration) (time.Time, error) {
	if s == "" {
		return time.Now().Add(-def), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return time.Now().Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, newProblem(http.StatusUnprocessableEntity, "invalid_since", "since must be a duration such as 24h or a time in RFC 3339.")
}

func (a *API) usage(ctx context.Context, in *struct {
	GroupBy string `query:"group_by" default:"model,variant" doc:"comma-separated: model, experiment, variant, role, tenant, key, upstream, minute, hour, day"`
	Since   string `query:"since" doc:"a duration such as 24h, or RFC 3339"`
	Limit   int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
}) (*usageOut, error) {
	from, err := since(in.Since, 24*time.Hour)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	known := []string{"model", "experiment", "variant", "role", "tenant", "key", "upstream", "minute", "hour", "day"}
	group := strings.Split(in.GroupBy, ",")
	for _, g := range group {
		if !slices.Contains(known, g) {
			return nil, a.problemOf(ctx, newProblem(http.StatusUnprocessableEntity, "invalid_group_by", "group_by takes "+strings.Join(known, ", ")+"."))
		}
	}
	rows, cut, err := a.cfg.Store.Usage(ctx, store.UsageQuery{Since: from, GroupBy: group, Limit: in.Limit})
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := &usageOut{}
	out.Body.Items, out.Body.Truncated = append([]store.UsageRow{}, rows...), cut
	return out, nil
}

func (a *API) results(ctx context.Context, in *struct {
	experimentKey
	Since string `query:"since" doc:"a duration such as 24h, or RFC 3339; default 24h"`
}) (*resultsOut, error) {
	e, err := a.newest(in.Key)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	from, err := since(in.Since, 24*time.Hour)
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := &resultsOut{}
	out.Body.Key, out.Body.Since, out.Body.Notes = e.Key, from.UTC(), []string{}
	out.Body.Stored, out.Body.Live = []variantResult{}, []metrics.ArmStats{}
	for _, arm := range a.cfg.Recorder.Live() {
		if arm.Experiment == e.Key {
			out.Body.Live = append(out.Body.Live, arm)
		}
	}
	stats, err := a.cfg.Store.ExperimentStats(ctx, e.Key, from)
	if err != nil {
		out.Body.Notes = append(out.Body.Notes, "The database is away: stored figures are missing.")
		return out, nil
	}
	for i := range e.Variants {
		r := variantResult{Variant: e.Variants[i].Name, Weight: e.Variants[i].Weight}
		for _, s := range stats {
			if s.Variant == r.Variant {
				r.VariantStats = s
			}
		}
		r.CostUSD = metrics.FormatUSD(r.CostNano)
		if r.Unpriced > 0 {
			out.Body.Notes = append(out.Body.Notes, strconv.FormatInt(r.Unpriced, 10)+" attempts of "+r.Variant+" have no price: the cost is a lower bound.")
		}
		out.Body.Stored = append(out.Body.Stored, r)
	}
	return out, nil
}

func auditOf(key string) store.AuditFilter { return store.AuditFilter{Object: "experiment/" + key} }
