package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sluice": main})
}

// TestScripts runs the binary as a user does; see testdata/script. There is an
// admin API that answers as canned says.
func TestScripts(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(cannedAdmin))
	t.Cleanup(srv.Close)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("SLUICE_ADMIN_URL", srv.URL)
			return nil
		},
	})
}

func cannedAdmin(w http.ResponseWriter, r *http.Request) {
	text, ok := canned[r.Method+" "+r.URL.Path]
	status := http.StatusOK
	switch {
	case !ok:
		status, text = http.StatusNotFound, `{"title":"Not Found","status":404,"detail":"There is no such thing.","code":"not_found"}`
	case r.URL.Path == "/admin/v1/experiments/chat:advance":
		status = http.StatusConflict
	}
	w.Header().Set("ETag", `"7"`)
	w.WriteHeader(status)
	fmt.Fprint(w, text)
}

const endpoints = `"name":"v1","ready":true,"queue":{"in_flight":3,"queued":0,"max_in_flight":64,"max_queue":128},"endpoints":[` +
	`{"url":"http://gpu1:8000/v1","ready":true,"state":"ready","since":"2026-01-01T00:00:00Z","in_flight":2,"weight":1,"breaker":{"state":"closed"},"ttft":{"p50_ms":120,"p95_ms":310},"output_tokens_per_second":87},` +
	`{"url":"http://gpu2:8000/v1","ready":false,"state":"unreachable","reason":"connection refused","since":"2026-01-01T00:00:00Z","breaker":{"state":"closed"}}]`

// report is a rollout that is over.
func report(state, reason string) string {
	return fmt.Sprintf(`{"experiment":"x","state":%q,"phase":"done","reason":%q,"variant":"canary","step":0,"steps":[{"weight":9900}],"weights":{"control":100,"canary":9900},`+
		`"arms":[{"name":"control","weight":100},{"name":"canary","weight":9900}],"treatments":[]}`, state, reason)
}

var canned = map[string]string{
	"GET /admin/v1/experiments/chat": experimentJSON,
	"GET /admin/v1/experiments/chat/ramp": `{"experiment":"chat","state":"running","phase":"holding","reason":"approval","variant":"canary","step":1,"steps":[{"weight":100},{"weight":500},{"weight":2000,"approve":true}],
		"weights":{"control":9500,"canary":500},"approval":{"weight":2000,"approve":true},"rollback_cost":{"text":"a rollback returns about 3 calls at once to control"},
		"arms":[{"name":"control","baseline":true,"weight":9500},{"name":"canary","weight":500,"units":43,"started":120,"rate":0.6,"ready":1}],"treatments":[]}`,
	"GET /admin/v1/experiments/chat/guardrails":      `{"items":[{"variant":"canary","config":{"name":"error","action":"rollback","kind":"rate"},"state":"PASS","value":0.025,"bound":0.03,"text":"error: within"}]}`,
	"GET /admin/v1/experiments/chat/history":         `{"items":[{"time":"2026-01-01T00:00:00Z","event":"advanced","text":"advanced: canary 1 % → 5 %, step 2 of 3"}]}`,
	"GET /admin/v1/experiments/chat/forecast":        `{"steps":[{"step":2,"weight":2000,"approve":true,"rate":2,"users":400,"time_s":600,"binds":"min_duration","ok":true}],"text":"at today's traffic"}`,
	"GET /admin/v1/experiments/chat/assignments/ada": `{"key":"chat","bucket":7,"owner":"canary","variant":"canary","reason":"bucket","rule":"its bucket, 7, is one of canary's"}`,
	"POST /admin/v1/experiments/chat:approve":        experimentJSON,
	"POST /admin/v1/experiments/chat:start":          experimentJSON[:len(experimentJSON)-1] + `,"forecast":{"steps":[],"text":"at today's traffic 3 steps"}}`,
	"POST /admin/v1/experiments/chat:advance":        `{"title":"Conflict","status":409,"detail":"It is not proved that this is safe.","code":"evidence_open"}`,
	"POST /admin/v1/experiments/chat:preflight": `{"experiment":"chat","baseline":"control","variants":["control","canary"],"ok":false,"text":"31 % of your requests: a tool is offered; canary fails",
		"probes":[{"name":"tools_auto","asks":"a tool is offered","share":0.31,"results":[{"variant":"control","state":"passed"},{"variant":"canary","state":"failed","text":"400"}]}]}`,
	"GET /admin/v1/experiments/promoted/ramp":       report("promoted", ""),
	"GET /admin/v1/experiments/promoted/guardrails": `{"items":[]}`,
	"GET /admin/v1/experiments/promoted/history":    `{"items":[]}`,
	"GET /admin/v1/experiments/failed/ramp":         report("rolled_back", "rolled_back"),
	"GET /admin/v1/experiments/failed/guardrails":   `{"items":[]}`,
	"GET /admin/v1/upstreams":                       `{"items":[],"status":{"v1":{` + endpoints + `}}}`,
	"GET /admin/v1/upstreams/v1/status":             `{` + endpoints + `}`,
	"POST /admin/v1/upstreams/v1:probe":             `{` + endpoints + `}`,
	"POST /admin/v1/upstreams/v1:drain":             `{"name":"v1"}`,
	"POST /admin/v1/upstreams/v1:enable":            `{"name":"v1"}`,
}
