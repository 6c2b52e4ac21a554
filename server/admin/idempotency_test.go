package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sluice/internal/store"
	"sluice/router"
)

func TestIdempotentCreate(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	const key = "Idempotency-Key: one"
	body := `{"name": "v3", "endpoints": ["http://127.0.0.1:1/v1"]}`
	g.v1("POST", "/upstreams?dry_run=1", body, key).want(201) // keeps nothing
	first := g.v1("POST", "/upstreams", body, key).want(201)
	rev := g.revision()
	again := g.v1("POST", "/upstreams", body, key).want(201)
	if !bytes.Equal(first.body, again.body) || again.header.Get("Idempotency-Replayed") != "true" || again.header.Get("ETag") != first.header.Get("ETag") ||
		again.header.Get("Content-Type") != first.header.Get("Content-Type") || first.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("replay: %s\n%s\n%v", first.body, again.body, again.header)
	}
	g.v1("POST", "/upstreams", strings.Replace(body, "v3", "v4", 1), key).refused(422, "idempotency_mismatch")
	g.v1("POST", "/upstreams?reason=x", body, key).refused(422, "idempotency_mismatch")
	g.v1("POST", "/models", `{"name": "m", "default": {"upstream": "v1"}}`, key).want(201) // another route
	g.v1("POST", "/upstreams", body, "Idempotency-Key: two").refused(409, "already_exists")
	g.v1("POST", "/upstreams", body, "Idempotency-Key: "+strings.Repeat("x", 256)).refused(422, "invalid_idempotency_key")
	g.v1("POST", "/upstreams", body, "Idempotency-Key: ü").refused(422, "invalid_idempotency_key")
	if rows, _, err := g.store.Audit(t.Context(), router.AuditFilter{Action: "upstream.create"}); err != nil || len(rows) != 1 || g.revision() <= rev-1 {
		t.Errorf("%d audit rows, %v", len(rows), err)
	}
}

func TestIdempotencyKeepsNoFailure(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	const key = "Idempotency-Key: start"
	g.v1("POST", exp+":finish", "", key, `If-Match: "1"`).refused(412, "stale")
	g.v1("POST", exp+":finish", "", key, "If-Match: "+g.etag(exp)).want(200).has("state", "completed")
	g.v1("POST", exp+":finish", "", key, `If-Match: "1"`).want(200).has("state", "completed")
	g.v1("POST", "/upstreams", `{"name": "v3", "endpoints": ["x"]}`, "Idempotency-Key: bad").want(422)
	g.v1("POST", "/upstreams", `{"name": "v3", "endpoints": ["http://127.0.0.1:1/v1"]}`, "Idempotency-Key: bad").want(201)
}

func TestIdempotencyWhileRunning(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	// What a request that has not ended leaves behind.
	state, _, _, _, err := g.store.IdempotencyBegin(t.Context(), "run", "local", "POST /admin/v1/keys", "x")
	if err != nil || state != store.IdempotencyNew {
		t.Fatal(state, err)
	}
	g.v1("POST", "/keys", `{"name": "k"}`, "Idempotency-Key: run").refused(422, "idempotency_mismatch")
	var wg sync.WaitGroup
	statuses := make([]int, 8)
	for i := range statuses {
		wg.Go(func() {
			statuses[i] = g.v1("POST", "/upstreams", `{"name": "once", "endpoints": ["http://127.0.0.1:1/v1"]}`, "Idempotency-Key: many").status
		})
	}
	wg.Wait()
	for _, s := range statuses {
		if s != 201 && s != 409 {
			t.Errorf("statuses %v", statuses)
		}
	}
	if rows, _, err := g.store.Audit(t.Context(), router.AuditFilter{Action: "upstream.create"}); err != nil || len(rows) != 1 {
		t.Errorf("%d upstreams were created, %v", len(rows), err)
	}
}

func TestSecretsAreNotKept(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	created := g.v1("POST", "/keys", `{"name": "k", "reason": "ci"}`, "Idempotency-Key: k").want(201)
	secret := created.get("secret").(string)
	g.v1("POST", "/keys", `{"name": "k", "reason": "ci"}`, "Idempotency-Key: k").refused(409, "already_created")
	if created.header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(secret, "sk-sluice-") || len(secret) < 60 {
		t.Errorf("secret %d bytes, %v", len(secret), created.header)
	}
	if row := g.lastAudit(); row.Reason != "ci" || strings.Contains(string(row.After), `"hash":"`) && !strings.Contains(string(row.After), `"hash":""`) {
		t.Errorf("audit row %+v", row)
	}
	g.v1("GET", "/keys", "").want(200).has("items.0.name", "k", "items.0.state", "active", "items.0.hash", nil, "items.0.secret", nil)
	for _, r := range []*reply{g.v1("GET", "/audit", ""), g.v1("GET", "/document", ""), g.v1("GET", "/status", "")} {
		if strings.Contains(string(r.body), secret[14:60]) {
			t.Errorf("%s has the secret", r.what)
		}
	}
	if strings.Contains(g.logs.String(), secret[14:60]) {
		t.Error("the log has the secret")
	}
	files, err := filepath.Glob(filepath.Join(g.dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s has the secret", f)
		}
	}
}
