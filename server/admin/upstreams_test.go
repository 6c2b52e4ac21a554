package admin_test

import (
	"strings"
	"testing"
)

func TestDrainByAPI(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	url := g.v1("GET", "/upstreams/v1", "").want(200).get("status.endpoints.0.url").(string)
	g.v1("GET", "/upstreams", "").want(200).has("status.v1.endpoints.0.state", "ready", "status.v1.endpoints.0.breaker.state", "closed",
		"status.v1.queue.queued", 0, "items.0.drained", nil)
	r := g.v1("POST", "/upstreams/v1:drain?wait=applied", `{"endpoint": "`+url+`/", "reason": "new driver"}`).want(200)
	r.has("object.drained.0", url, "write.applied", true, "write.changed", true)
	g.v1("GET", "/upstreams/v1/status", "").want(200).has("ready", false, "endpoints.0.drained", true, "endpoints.0.state", "drained")
	if a := g.lastAudit(); a.Action != "upstream.drain" || a.Reason != "new driver" || a.Object != "upstream/v1" {
		t.Errorf("audit %+v", a)
	}
	g.v1("POST", "/upstreams/v1:drain", `{"endpoint": "`+url+`"}`).want(200).has("write.changed", false)
	g.v1("POST", "/upstreams/v1:enable?dry_run=true", "").want(200).has("write.dry_run", true)
	g.v1("GET", "/upstreams/v1", "").has("object.drained.0", url)
	g.v1("POST", "/upstreams/v1:enable", "").want(200)
	g.v1("GET", "/upstreams/v1/status", "").want(200).has("ready", true, "endpoints.0.state", "ready")
	g.v1("POST", "/upstreams/v1:drain", "").want(200).has("object.drained.0", "*")
	g.v1("POST", "/upstreams/v1:enable", `{"endpoint": "`+url+`"}`).want(200).has("object.drained", nil)
	g.v1("POST", "/upstreams/v1:probe", "").want(200).has("endpoints.0.state", "ready")

	if p := g.v1("POST", "/upstreams/v1:drain", `{"endpoint": "http://nowhere/v1"}`).refused(422, "endpoint_unknown"); !strings.Contains(string(p.body), url) {
		t.Errorf("does not name what there is: %s", p.body)
	}
	g.v1("POST", "/upstreams/v1:probe", `{"endpoint": "http://nowhere/v1"}`).refused(422, "endpoint_unknown")
	for _, verb := range []string{"drain", "enable", "probe"} {
		g.v1("POST", "/upstreams/nope:"+verb, "").refused(404, "not_found")
		g.v1("POST", "/upstreams/v1:"+verb, `{"endpoints": []}`).refused(422, "unknown_member")
		g.v1("POST", "/upstreams/v1:"+verb, `[]`)
	}
	g.v1("POST", "/upstreams/v1:drain", "", "If-Match: \"1\"").refused(412, "stale")
}
