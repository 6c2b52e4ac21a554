package upstream

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/wire"
)

// A probe is a check made now, of all endpoints or of one, and returns what it
// found.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		s.serve(map[string]string{"GET /health": ""})
		p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: wire.TGI, Endpoints: []string{"http://a", "http://b"},
			Readiness: Readiness{Interval: time.Hour, Down: 1}})
		defer p.Close()
		checks := func() int { return s.count("GET a/health")*10 + s.count("GET b/health") }
		if checks() != 11 {
			t.Fatalf("%d", checks())
		}
		s.refuse()
		list, err := p.Probe(t.Context(), "a", "http://b/")
		if err != nil || len(list) != 2 || !list[0].Ready || list[1].State != stateUnreachable || checks() != 12 {
			t.Errorf("%+v %v after %d", list, err, checks())
		}
		if list, err = p.Probe(t.Context(), "a", ""); err != nil || list[0].Ready || checks() != 23 {
			t.Errorf("%+v %v after %d", list, err, checks())
		}
		for _, bad := range [][2]string{{"b", ""}, {"a", "http://c/v1"}} {
			if _, err := p.Probe(t.Context(), bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), `"`+bad[0]+`"`) {
				t.Errorf("%v: %v", bad, err)
			}
		}
		s.hang() // the caller's time ends first
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Probe(ctx, "a", ""); err == nil {
			t.Error("no error although the time was over")
		}
		time.Sleep(10 * time.Second)
		// One that nobody checks any more does not hold the caller.
		gone := ups["a"].endpoints()[0]
		gone.leave()
		synctest.Wait()
		start := time.Now()
		gone.checkNow(t.Context())
		if time.Since(start) != 0 {
			t.Errorf("waited %v for an endpoint that is gone", time.Since(start))
		}
	})
}

// A name is probed by itself or by one of its addresses.
func TestProbeName(t *testing.T) {
	var s script
	s.serve(map[string]string{"GET /v1/models": oneModel})
	o := newNameServer(t, "127.0.0.1", "127.0.0.2").options()
	o.carrier, o.resolveEvery = s.options().carrier, time.Hour
	const base = "dns:http://gpu.example:1/v1"
	p, _ := poolWith(t, o, Config{Name: "a", Endpoints: []string{base}, Readiness: Readiness{Interval: time.Hour}})
	before := s.count("GET")
	if list, err := p.Probe(t.Context(), "a", base); err != nil || len(list) != 2 || s.count("GET") != before+2 {
		t.Errorf("%+v %v after %d", list, err, s.count("GET")-before)
	}
	addr, _ := located(p.members[memberKey{"a", base}].url, netip.MustParseAddr("127.0.0.2"))
	if list, err := p.Probe(t.Context(), "a", addr); err != nil || len(list) != 2 || s.count("GET") != before+3 {
		t.Errorf("%+v %v after %d", list, err, s.count("GET")-before)
	}
}
