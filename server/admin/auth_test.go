package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/metrics"
	"sluice/router"
	"sluice/server/admin"
)

const token = "s3cret-admin-token-0123456789"

func TestToken(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(c *admin.Config) { c.Token = token })
	g.v1("GET", "/whoami", "").want(200).has("actor", "token:admin", "role", "admin")
	g.v1("GET", "/whoami", "", "From: 203.0.113.7:1234", "Host: sluice.example").want(200)
	g.v1("GET", "/whoami", "", "Authorization: bearer  "+token).want(200)
	for i, wrong := range []string{"Bearer " + token + "x", "Bearer " + token[1:], "Bearer", "Bearer ", token, "Basic " + token, "Bearer " + strings.ToUpper(token), "Bearer \x00"} {
		r := g.v1("GET", "/whoami", "", "Authorization: "+wrong, fmt.Sprintf("From: 10.0.0.%d:1", i)).refused(401, "unauthorized")
		if h := r.header.Get("WWW-Authenticate"); !strings.HasPrefix(h, "Bearer ") || !strings.Contains(h, "invalid_token") {
			t.Errorf("%q: WWW-Authenticate %q", wrong, h)
		}
	}
	g.v1("POST", exp+":pause", "", "If-Match: *").want(200)
	if row := g.lastAudit(); row.Actor != "token:admin" || row.Role != "admin" {
		t.Errorf("audit row %+v", row)
	}
	if strings.Contains(g.logs.String(), token[1:]) {
		t.Error("the token is in the log")
	}
	// A page of this very host may.
	g.v1("POST", exp+":pause", "", "If-Match: *", "Host: sluice.example", "Origin: https://sluice.example", "Sec-Fetch-Site: same-origin").want(200)
	g.v1("POST", exp+":pause", "", "If-Match: *", "Host: sluice.example", "Origin: https://sluice.example").want(200)
	g.v1("POST", exp+":pause", "", "If-Match: *", "Host: sluice.example", "Origin: https://sluice.example.evil").refused(403, "cross_origin")
	// A link that was followed may read.
	g.v1("GET", "/status", "", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document").want(200)
}

func TestWithoutTokenThisMachineOnly(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, host := range []string{"localhost", "localhost:8081", "LOCALHOST:1", "127.0.0.1", "127.8.9.1:80", "[::1]:8081", "[::ffff:127.0.0.1]:1"} {
		g.v1("GET", "/whoami", "", "Host: "+host).want(200).has("actor", "local", "role", "admin")
	}
	g.v1("GET", "/whoami", "", "From: [::1]:9").want(200)
	g.v1("GET", "/whoami", "", "Authorization: Bearer whatever").want(200)
	for _, host := range []string{"evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:8081", "192.168.1.4", "localhost@evil.example", "[::]:1", ""} {
		for _, path := range []string{"/admin/v1/whoami", "/metrics", "/debug/pprof/", "/ui"} {
			g.call("GET", path, "", "Host: "+host).refused(403, "forbidden")
		}
	}
	for _, from := range []string{"10.0.0.1:5", "[fe80::1%eth0]:5", "@", "unix"} {
		g.v1("GET", "/whoami", "", "From: "+from).refused(403, "forbidden")
	}
}

func TestGuessingIsSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var live router.Live
		h, err := admin.New(admin.Config{Control: nothing{}, Store: nothing{}, Live: &live, Recorder: nothing{}, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		g := &gateway{t: t, ctx: t.Context(), api: h, token: token}
		guess := func(from string) int {
			return g.v1("GET", "/whoami", "", "Authorization: Bearer guess", "From: "+from).status
		}
		for range 20 {
			if s := guess("198.51.100.7:1"); s != 401 {
				t.Fatal(s)
			}
		}
		if r := g.v1("GET", "/whoami", "", "From: 198.51.100.7:2").refused(429, "too_many_failures"); r.header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
		}
		g.v1("GET", "/whoami", "", "From: 198.51.100.8:1").want(200) // somebody else
		for i := range 20 {
			guess(fmt.Sprintf("[2001:db8::%x]:1", i+1)) // one network
		}
		g.v1("GET", "/whoami", "", "From: [2001:db8::ffff]:1").refused(429, "too_many_failures")
		g.v1("GET", "/whoami", "", "From: [2001:db8:0:1::1]:1").want(200)
		time.Sleep(61 * time.Second)
		g.v1("GET", "/whoami", "", "From: 198.51.100.7:2").want(200)
	})
}

// nothing is a control plane that has not started.
type nothing struct {
	admin.Control
	admin.Store
}

func (nothing) Live() []metrics.ArmStats { return nil }

func TestBasePath(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(c *admin.Config) { c.BasePath = "/sluice/" })
	g.call("GET", "/sluice/admin/v1/experiments/exp", "").want(200).has("key", "exp")
	g.call("POST", "/sluice/admin/v1/experiments/exp:pause", "", "If-Match: *").want(200)
	g.call("GET", "/sluice/admin/v1/models/spare", "").want(200)
	g.call("GET", "/sluice/admin/v1/openapi.json", "").want(200).has("servers.0.url", "/sluice/admin/v1")
	g.call("GET", "/sluice/admin/v1/nope", "").refused(404, "not_found")
	g.call("PUT", "/sluice/admin/v1/experiments/exp", "").refused(405, "method_not_allowed")
	g.call("POST", "/sluice/admin/v1/experiments/exp:nope", "").refused(404, "unknown_verb")
	g.call("GET", "/admin/v1/experiments/exp", "").refused(404, "not_found")
	g.call("GET", "/", "").refused(404, "not_found")
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	var live router.Live
	h, err := admin.New(admin.Config{Control: nothing{}, Store: nothing{}, Live: &live, Recorder: nothing{}})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, ctx: t.Context(), api: h}
	for _, path := range []string{"/experiments", exp, exp + "/weights", exp + "/results", exp + "/assignments/u", "/upstreams", "/upstreams/v1/status", "/models", "/keys", "/document"} {
		g.v1("GET", path, "").refused(503, "not_started")
	}
	// A panic below is a problem too, and its text stays in the log.
	g.v1("GET", "/status", "").refused(500, "internal_error")
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	if _, err := admin.New(admin.Config{}); err == nil {
		t.Error("an empty Config is accepted")
	}
}
