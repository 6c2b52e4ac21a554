package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sluice/internal/store"
	"sluice/router"
)

// TestAuditOnce: a decision's row is written once, whoever writes it how often;
// a change of the document has a row in any case.
func TestAuditOnce(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		const id = "0190163d-8694-739b-aea5-966c26f8ad91"
		ch := addUpstream("v1")
		ch.ID = id
		if _, a, err := s.Commit(t.Context(), ch); err != nil || a == nil || a.ID != id {
			t.Fatalf("%+v, %v", a, err)
		}
		for range 2 {
			if a, err := s.AppendAudit(t.Context(), router.Audit{ID: id, Action: "experiment.kill", Object: "experiment/e"}); err != nil || a != nil {
				t.Errorf("the row is there already: %+v, %v", a, err)
			}
		}
		again := addUpstream("v2")
		again.ID = id
		if snap, a, err := s.Commit(t.Context(), again); err != nil || a == nil || a.ID == id || names(snap) != "v1 v2" {
			t.Errorf("%+v, %v; want a row of another name", a, err)
		}
		if a, err := s.AppendAudit(t.Context(), router.Audit{ID: strings.Replace(id, "0", "1", 1), Action: "experiment.kill"}); err != nil || a == nil {
			t.Errorf("%+v, %v", a, err)
		}
		if n, err := s.VerifyAudit(t.Context()); err != nil || n != 3 {
			t.Errorf("%d rows, %v; want 3", n, err)
		}
	})
}

func TestAuditList(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		for i := range 5 {
			commit(t, s, addUpstream(fmt.Sprintf("v%d", i)))
		}
		if _, err := s.AppendAudit(t.Context(), router.Audit{Actor: "bob", Action: "token.create", Object: "token/t1", IP: "::1"}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name   string
			filter store.AuditFilter
			want   string
		}{
			{"all", store.AuditFilter{}, "token/t1 upstream/v4 upstream/v3 upstream/v2 upstream/v1 upstream/v0"},
			{"actor", store.AuditFilter{Actor: "bob"}, "token/t1"},
			{"object", store.AuditFilter{Object: "upstream/v2"}, "upstream/v2"},
			{"action", store.AuditFilter{Action: "upstream.create", Limit: 2}, "upstream/v4 upstream/v3 | upstream/v2 upstream/v1 | upstream/v0"},
			{"prefix", store.AuditFilter{ObjectPrefix: "tok"}, "token/t1"},
			{"wildcards are characters", store.AuditFilter{ObjectPrefix: "%"}, ""},
			{"exact page", store.AuditFilter{Limit: 6}, "token/t1 upstream/v4 upstream/v3 upstream/v2 upstream/v1 upstream/v0"},
			{"quote", store.AuditFilter{Actor: "' OR 1=1 --"}, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				var pages []string
				for f := c.filter; ; {
					rows, next, err := s.Audit(t.Context(), f)
					if err != nil {
						t.Fatal(err)
					}
					var objects []string
					for _, a := range rows {
						objects = append(objects, a.Object)
					}
					pages = append(pages, strings.Join(objects, " "))
					if next == 0 {
						break
					}
					f.Before = next
				}
				if got := strings.Join(pages, " | "); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	})
}

func TestAuditShowsTheObjectBeforeAndAfter(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		commit(t, s, addUpstream("v1"))
		_, a, err := s.Commit(t.Context(), router.Change{Object: "upstream/v1", Action: "upstream.update", Mutate: func(s *router.Snapshot, _ int64) error {
			s.Document.Upstreams[0].Endpoints = []string{"http://b/v1?<&>"}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		var before, after router.Upstream
		if json.Unmarshal(a.Before, &before) != nil || json.Unmarshal(a.After, &after) != nil ||
			before.Endpoints[0] != "http://a/v1" || after.Endpoints[0] != "http://b/v1?<&>" {
			t.Errorf("before %s, after %s", a.Before, a.After)
		}
		_, a, err = s.Commit(t.Context(), router.Change{Object: "document", Action: "document.apply", Mutate: func(s *router.Snapshot, _ int64) error {
			s.Document.Upstreams = append(s.Document.Upstreams[:0], router.Upstream{Name: "v2"})
			return nil
		}})
		if err != nil || !strings.HasPrefix(string(a.Before), `{"upstream/v1":`) || !strings.HasPrefix(string(a.After), `{"upstream/v2":`) {
			t.Errorf("whole document: before %s, after %s, err %v", a.Before, a.After, err)
		}
		if n, err := s.VerifyAudit(t.Context()); n != 3 || err != nil {
			t.Errorf("verify: %d, %v", n, err)
		}
	})
}

func TestAuditChainFindsTampering(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		for i := range 4 {
			commit(t, s, addUpstream(fmt.Sprintf("v%d", i)))
		}
		var reason, after string
		if err := store.ScanForTest(s, &after, `SELECT value_after FROM audit WHERE seq = 2`); err != nil {
			t.Fatal(err)
		}
		if err := store.ScanForTest(s, &reason, `SELECT reason FROM audit WHERE seq = 2`); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ name, do, undo, want string }{
			{"actor", `UPDATE audit SET actor = 'eve' WHERE seq = 2`, `UPDATE audit SET actor = 'ada' WHERE seq = 2`, "row 2"},
			{"time", `UPDATE audit SET created_at = created_at + 1 WHERE seq = 3`, `UPDATE audit SET created_at = created_at - 1 WHERE seq = 3`, "row 3"},
			{"value", `UPDATE audit SET value_after = '{}' WHERE seq = 2`, `UPDATE audit SET value_after = '` + after + `' WHERE seq = 2`, "row 2"},
			{"not json", `UPDATE audit SET value_after = 'x' WHERE seq = 2`, `UPDATE audit SET value_after = '` + after + `' WHERE seq = 2`, "row 2"},
			{"null", `UPDATE audit SET value_after = NULL WHERE seq = 2`, `UPDATE audit SET value_after = '` + after + `' WHERE seq = 2`, "row 2"},
			{"order", `UPDATE audit SET seq = 99 WHERE seq = 2`, `UPDATE audit SET seq = 2 WHERE seq = 99`, "row 2"},
			{"end removed", `UPDATE audit SET seq = 99 WHERE seq = 4`, `UPDATE audit SET seq = 4 WHERE seq = 99`, "rows were removed"},
		} {
			t.Run(c.name, func(t *testing.T) {
				if _, err := store.ExecForTest(s, c.do); err != nil {
					t.Fatal(err)
				}
				if _, err := s.VerifyAudit(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("verify says %v, want %q", err, c.want)
				}
				if _, err := store.ExecForTest(s, c.undo); err != nil {
					t.Fatal(err)
				}
				if n, err := s.VerifyAudit(t.Context()); n != 4 || err != nil {
					t.Errorf("undone: %d, %v", n, err)
				}
			})
		}
	})
}
