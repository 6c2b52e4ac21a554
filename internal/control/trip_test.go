package control_test

import (
	"net/http"
	"testing"

	"sluice/internal/sticky"
	"sluice/internal/testenv"
	"sluice/router"
)

// served is the variant and reason of a user of the canary.
func (r *replica) served(t *testing.T, user string) (variant, reason string) {
	t.Helper()
	p, err := r.live.Load().Route(t.Context(), &router.Query{Model: "chat", AuthNone: true, Header: http.Header{"X-User-Id": {user}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.Variant.Name, string(p.Decision.Reason)
}

// canaryUser finds somebody who has the canary.
func (r *replica) canaryUser(t *testing.T) string {
	t.Helper()
	for i := range 1000 {
		user := "user-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		if v, _ := r.served(t, user); v == "canary" {
			return user
		}
	}
	t.Fatal("nobody has the canary")
	return ""
}

// TestTripIsOfThisReplicaAlone: with both stores away a local breaker takes the
// variant out here, nowhere else, and gives it back.
func TestTripIsOfThisReplicaAlone(t *testing.T) {
	redis, pg := testenv.Redis(t), testenv.PostgresServer(t)
	db := durable(pg.Database())
	a := start(t, settings{id: "a", db: db, redis: redis.URL})
	b := start(t, settings{id: "b", db: db, redis: redis.URL})
	user := a.canaryUser(t)
	redis.Kill()
	kill(t, pg, a, b)
	if err := a.Trip("exp", 1, "canary"); err != nil {
		t.Fatal(err)
	}
	if v, why := a.served(t, user); v != "control" || why != "not_ready" {
		t.Errorf("tripped: %s by %s", v, why)
	}
	if v, why := b.served(t, user); v != "canary" || why != "bucket" {
		t.Errorf("the other replica: %s by %s", v, why)
	}
	// A look at the stores, or a kill read from them, leaves the trip alone.
	redis.Restart()
	eventually(t, "redis", func() bool { return a.sticky.Stats().State != sticky.Down })
	if v, _ := a.served(t, user); v != "control" {
		t.Error("a look at the stores undid the trip")
	}
	if err := a.Untrip("exp", 1, "canary"); err != nil {
		t.Fatal(err)
	}
	if v, why := a.served(t, user); v != "canary" || why != "bucket" {
		t.Errorf("untripped: %s by %s", v, why)
	}
	// One of another generation, or of the baseline, does nothing.
	for _, k := range []struct {
		gen     int
		variant string
	}{{2, "canary"}, {1, "control"}, {1, "nobody"}} {
		if err := a.Trip("exp", k.gen, k.variant); err != nil {
			t.Fatal(err)
		}
	}
	if v, _ := a.served(t, user); v != "canary" {
		t.Error("a trip of another generation, or of the baseline, took the canary")
	}
}
