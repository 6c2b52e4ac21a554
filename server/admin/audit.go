package admin

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

type (
	auditOut struct {
		Body struct {
			Items      []router.Audit `json:"items"`
			NextCursor string         `json:"next_cursor,omitempty"`
		}
	}
	verifyOut struct {
		Body struct {
			Rows  int64  `json:"rows" doc:"rows that hold"`
			Whole bool   `json:"whole"`
			Fault string `json:"fault,omitempty" doc:"the first row that does not hold, in words"`
		}
	}
)

func (a *API) registerAudit(api huma.API) {
	op := func(id, path, summary, tag string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: []string{tag}, Errors: append(errs, 503)}
	}
	register(a, api, op("list-audit", "/audit", "Who changed what, newest first", "audit"), a.audit)
	register(a, api, op("verify-audit", "/audit:verify", "Check the hash chain of the audit log", "audit"), a.verifyAudit)
	register(a, api, op("get-history", "/experiments/{key}/history", "What changed an experiment, newest first", "experiments", 404), a.history)
}

func (a *API) auditPage(ctx context.Context, p PageIn, f router.AuditFilter) (*auditOut, error) {
	before, err := p.before()
	if err != nil {
		return nil, err
	}
	f.Before, f.Limit = before, p.Limit
	rows, next, err := a.cfg.Store.Audit(ctx, f)
	if err != nil {
		return nil, err
	}
	out := &auditOut{}
	out.Body.Items = append([]router.Audit{}, rows...)
	if next > 0 {
		out.Body.NextCursor = strconv.FormatInt(next, 36)
	}
	return out, nil
}

func (a *API) audit(ctx context.Context, in *struct {
	PageIn
	Actor  string `query:"actor" maxLength:"200" doc:"only changes by this actor"`
	Object string `query:"object" maxLength:"200" doc:"such as experiment/chat-v2"`
	Action string `query:"action" maxLength:"200" doc:"such as experiment.set_weights"`
}) (*auditOut, error) {
	return a.auditPage(ctx, in.PageIn, router.AuditFilter{Actor: in.Actor, Object: in.Object, Action: in.Action})
}

func (a *API) verifyAudit(ctx context.Context, _ *struct{}) (*verifyOut, error) {
	out := &verifyOut{}
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
