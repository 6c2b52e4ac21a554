package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
	"sluice/upstream"
)

type (
	// endpointView is one replica of an upstream as this process sees it.
	endpointView struct {
		URL         string    `json:"url"`
		Ready       bool      `json:"ready"`
		State       string    `json:"state" doc:"starting, loading, warming, ready, asleep, unreachable, failing, drained"`
		Reason      string    `json:"reason,omitempty" doc:"why it is not ready"`
		Since       time.Time `json:"since,omitzero"`
		InFlight    int       `json:"in_flight"`
		Drained     bool      `json:"drained" doc:"by an operator: no new calls"`
		Weight      float64   `json:"weight" doc:"share of what it would get otherwise; below 1 while it starts slowly"`
		Breaker     breaker   `json:"breaker"`
		CoolUntil   time.Time `json:"cool_until,omitzero" doc:"rate limited until then"`
		TTFT        *ttft     `json:"ttft,omitempty" doc:"of streams in the last minute"`
		TokensPerS  float64   `json:"output_tokens_per_second" doc:"in the last minute"`
		Engine      *load     `json:"engine,omitempty" doc:"what the engine says of itself"`
		LastError   string    `json:"last_error,omitempty"`
		LastErrorAt time.Time `json:"last_error_at,omitzero"`
	}
	breaker struct {
		State string    `json:"state" enum:"closed,open,half_open"`
		Until time.Time `json:"until,omitzero" doc:"when an open one lets probes through"`
	}
	ttft struct {
		P50 float64 `json:"p50_ms"`
		P95 float64 `json:"p95_ms"`
	}
	load struct {
		Running int       `json:"running"`
		Waiting int       `json:"waiting"`
		KVUse   *float64  `json:"kv_use,omitempty" doc:"0 to 1"`
		At      time.Time `json:"at"`
	}
	queueView struct {
		InFlight    int `json:"in_flight"`
		Queued      int `json:"queued"`
		MaxInFlight int `json:"max_in_flight,omitempty" doc:"absent: no limit"`
		MaxQueue    int `json:"max_queue,omitempty"`
	}
	// upstreamState is an upstream as this replica sees it.
	upstreamState struct {
		Name      string         `json:"name"`
		Ready     bool           `json:"ready" doc:"an endpoint gets traffic"`
		Queue     queueView      `json:"queue" doc:"of this replica"`
		Endpoints []endpointView `json:"endpoints"`
	}
	stateOut  struct{ Body upstreamState }
	drainBody struct {
		Endpoint string `json:"endpoint,omitempty" maxLength:"2048" doc:"base URL of one endpoint; absent: all"`
		Reason   string `json:"reason,omitempty" maxLength:"1000" doc:"why, for the audit log"`
	}
	drainIn struct {
		NameIn
		MatchIn
		WriteIn
	}
	drainOut struct {
		ETag string `header:"ETag"`
		Body struct {
			Object router.Upstream `json:"object"`
			Status upstreamState   `json:"status" doc:"of this replica, before the change has reached the others"`
			Write  *written        `json:"write,omitempty"`
		}
	}
	drainEdit func(d *router.Document, rev int64, now time.Time, name, endpoint string, known []string) error
)

func (a *API) registerUpstreams(api huma.API) {
	register(a, api, huma.Operation{OperationID: "upstream-status", Method: http.MethodGet, Path: "/upstreams/{name}/status",
		Summary: "The endpoints as this replica sees them", Tags: []string{"upstreams"}, Errors: []int{404}}, a.upstreamStatus)
	for _, v := range []struct {
		name, summary string
		edit          drainEdit
	}{
		{"drain", "Send an endpoint, or all, no new calls; those in flight finish", router.Drain},
		{"enable", "Take a drain back", router.Enable},
	} {
		op := huma.Operation{OperationID: v.name + "-upstream", Method: http.MethodPost, Path: "/upstreams/{name}:" + v.name,
			Summary: v.summary, Tags: []string{"upstreams"}, Errors: []int{404, 409}, Metadata: map[string]any{matchOptional: true}}
		register(a, api, takes[drainBody](api, op, true), func(ctx context.Context, in *drainIn) (*drainOut, error) {
			return a.drain(ctx, "upstream."+v.name, v.edit, in)
		})
	}
	op := huma.Operation{OperationID: "probe-upstream", Method: http.MethodPost, Path: "/upstreams/{name}:probe",
		Summary: "Check the endpoints now, from this replica", Tags: []string{"upstreams"}, Errors: []int{404}}
	register(a, api, takes[drainBody](api, op, true), a.probe)
}

func (a *API) drain(ctx context.Context, action string, edit drainEdit, in *drainIn) (*drainOut, error) {
	body, err := bodyOf[drainBody](ctx, true)
	if err != nil {
		return nil, err
	}
	state, err := a.stateOf(in.Name)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, e := range state.Endpoints {
		known = append(known, e.URL)
	}
	s, w, err := a.commit(ctx, change{action: action, object: "upstream/" + in.Name, reason: body.Reason, in: in.WriteIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			u := s.Document.Upstream(in.Name)
			if u == nil {
				return missingObject("upstream", in.Name)
			}
			if err := precondition(in.IfMatch, true, u.UpdatedRevision); err != nil {
				return err
			}
			return edit(&s.Document, rev, now, in.Name, body.Endpoint, known)
		}})
	if err != nil {
		return nil, err
	}
	u := s.Document.Upstream(in.Name)
	out := &drainOut{ETag: w.tagOf(u.UpdatedRevision)}
	out.Body.Object, out.Body.Write = *u, w
	if out.Body.Status, err = a.stateOf(in.Name); err != nil {
		return nil, err
	}
	return out, nil
}

func (a *API) probe(ctx context.Context, in *NameIn) (*stateOut, error) {
	body, err := bodyOf[drainBody](ctx, true)
	if err != nil {
		return nil, err
	}
	if _, err := a.stateOf(in.Name); err != nil {
		return nil, err
	}
	if _, err := a.cfg.Pool.Probe(ctx, in.Name, body.Endpoint); err != nil {
		return nil, field(http.StatusUnprocessableEntity, router.CodeUnknownEndpoint, "body.endpoint", err.Error())
	}
	out := &stateOut{}
	out.Body, err = a.stateOf(in.Name)
	return out, err
}

func (a *API) upstreamStatus(_ context.Context, in *NameIn) (*stateOut, error) {
	s, err := a.stateOf(in.Name)
	return &stateOut{Body: s}, err
}

// states are all upstreams by name, for the list of them.
func (a *API) states() map[string]upstreamState {
	t, err := a.table()
	if err != nil {
		return nil
	}
	out := map[string]upstreamState{}
	for _, u := range t.Upstreams() {
		out[u.Name()] = stateOf(u)
	}
	return out
}

func (a *API) stateOf(name string) (upstreamState, error) {
	t, err := a.table()
	if err != nil {
		return upstreamState{}, err
	}
	for _, u := range t.Upstreams() {
		if u.Name() == name {
			return stateOf(u), nil
		}
	}
	return upstreamState{}, missingObject("upstream", name)
}

func stateOf(u *upstream.Upstream) upstreamState {
	q := u.QueueStatus()
	s := upstreamState{Name: u.Name(), Ready: u.Ready(), Queue: queueView(q), Endpoints: []endpointView{}}
	for _, e := range u.Status() {
		v := endpointView{
			URL: e.URL, Ready: e.Ready, State: e.State, Reason: e.Reason, Since: e.Since, InFlight: e.InFlight,
			Drained: e.Drained, Weight: e.Weight, Breaker: breaker{e.Breaker, e.BreakerUntil}, CoolUntil: e.CoolUntil,
			TokensPerS: e.Speed.TokensPerSecond, LastError: e.LastError, LastErrorAt: e.LastErrorAt,
		}
		if e.Speed.TTFT50 > 0 {
			v.TTFT = &ttft{milliseconds(e.Speed.TTFT50), milliseconds(e.Speed.TTFT95)}
		}
		if l := e.Load; l != nil {
			v.Engine = &load{Running: l.Running, Waiting: l.Waiting, At: l.At}
			if l.KVUse >= 0 {
				v.Engine.KVUse = &l.KVUse
			}
		}
		s.Endpoints = append(s.Endpoints, v)
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
