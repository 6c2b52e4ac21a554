package admin

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"sluice/metrics"
	"sluice/router"
)

type (
	statusOut struct {
		Body struct {
			router.Status
			Version string `json:"version"`
			Badge   string `json:"badge,omitempty" doc:"the environment, for the UI"`
			Auth    string `json:"auth" enum:"none,keys" doc:"of the data plane"`
		}
	}
	whoamiOut struct {
		Body struct {
			Actor string `json:"actor"`
			Role  string `json:"role"`
		}
	}
	liveOut struct {
		Body struct {
			Items []metrics.ArmStats `json:"items"`
		}
	}
)

func (a *API) registerStatus(api huma.API) {
	op := func(id, path, summary string) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: []string{"status"}}
	}
	register(a, api, op("get-status", "/status", "This replica, the others, and what is degraded"), a.status)
	register(a, api, op("whoami", "/whoami", "Who the caller is"), func(ctx context.Context, _ *struct{}) (*whoamiOut, error) {
		out, who := &whoamiOut{}, actorOf(ctx)
		out.Body.Actor, out.Body.Role = who.Name, who.Role
		return out, nil
	})
	register(a, api, op("live", "/live", "Figures of this replica now, by variant"), func(context.Context, *struct{}) (*liveOut, error) {
		out := &liveOut{}
		out.Body.Items = append([]metrics.ArmStats{}, a.cfg.Recorder.Live()...)
		return out, nil
	})
}

func (a *API) status(ctx context.Context, _ *struct{}) (*statusOut, error) {
	out := &statusOut{}
	b := &out.Body
	b.Status, b.Version, b.Badge, b.Auth = a.cfg.Control.Status(ctx), a.cfg.Version, a.cfg.Badge, "none"
	if a.cfg.AuthKeys {
		b.Auth = "keys"
	}
	return out, nil
}
