package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"sluice/internal/store"
	"sluice/router"
)

func TestFence(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		under := func(fence int64, name string) error {
			ch := addUpstream(name)
			ch.Fence = fence
			_, _, err := s.Commit(t.Context(), ch)
			return err
		}
		for _, step := range []struct {
			fence  int64
			fenced bool
			after  int64
		}{
			{0, false, 0}, {5, false, 5}, {4, true, 5}, {5, false, 5}, {0, false, 5}, {7, false, 7}, {6, true, 7},
		} {
			err := under(step.fence, "v")
			if step.fence == 0 || !step.fenced {
				// The name is taken from the second time on: let each be a change.
				if err != nil {
					t.Fatalf("fence %d: %v", step.fence, err)
				}
			} else if !errors.Is(err, router.ErrFenced) || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("fence %d: %v, want ErrFenced alone", step.fence, err)
			}
			if f, err := s.Fence(t.Context()); err != nil || f != step.after {
				t.Errorf("after %d the fence is %d, %v; want %d", step.fence, f, err, step.after)
			}
		}
		if err := s.RaiseFence(t.Context(), 9); err != nil {
			t.Fatal(err)
		}
		if err := s.RaiseFence(t.Context(), 8); !errors.Is(err, router.ErrFenced) {
			t.Errorf("a later leadership has begun: %v", err)
		}
		if err := under(7, "w"); !errors.Is(err, router.ErrFenced) {
			t.Errorf("the leader before: %v", err)
		}
		dry := addUpstream("dry")
		dry.Fence, dry.DryRun = 7, true
		if _, _, err := s.Commit(t.Context(), dry); !errors.Is(err, router.ErrFenced) {
			t.Errorf("a dry run of the leader before: %v", err)
		}
	})
}

// TestDetailsAreInTheChain: rows from before the column keep their hashes, and
// the details of later ones cannot be changed.
func TestDetailsAreInTheChain(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		if !strings.Contains(o.URL, "memory") {
			m, err := store.Migrate(t.Context(), o, "up")
			if err != nil || len(m) == 0 {
				t.Fatal(err)
			}
		}
		s := open(t, o)
		commit(t, s, addUpstream("old"))
		ch := addUpstream("new")
		ch.Details = json.RawMessage("{\n \"log_e\": 8.5,  \"text\": \"<5 of 7>\"}")
		_, audit, err := s.Commit(t.Context(), ch)
		if err != nil {
			t.Fatal(err)
		}
		const want = `{"log_e":8.5,"text":"<5 of 7>"}`
		if string(audit.Details) != want {
			t.Errorf("committed %s", audit.Details)
		}
		rows, _, err := s.Audit(t.Context(), store.AuditFilter{})
		if err != nil || len(rows) != 2 || string(rows[0].Details) != want || rows[1].Details != nil {
			t.Fatalf("read back %+v, %v", rows, err)
		}
		if n, err := s.VerifyAudit(t.Context()); n != 2 || err != nil {
			t.Fatalf("verify: %d, %v", n, err)
		}
		for _, do := range []string{`UPDATE audit SET details = '{"log_e":9}' WHERE seq = 2`, `UPDATE audit SET details = NULL WHERE seq = 2`, `UPDATE audit SET details = '{}' WHERE seq = 1`} {
			if _, err := store.ExecForTest(s, do); err != nil {
				t.Fatal(err)
			}
			if _, err := s.VerifyAudit(t.Context()); err == nil {
				t.Errorf("not found: %s", do)
			}
			for _, undo := range []string{`UPDATE audit SET details = '` + want + `' WHERE seq = 2`, `UPDATE audit SET details = NULL WHERE seq = 1`} {
				if _, err := store.ExecForTest(s, undo); err != nil {
					t.Fatal(err)
				}
			}
		}
		ch = addUpstream("wrong")
		ch.Details = json.RawMessage(`{`)
		if _, _, err := s.Commit(t.Context(), ch); err == nil || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("details that are no JSON: %v", err)
		}
	})
}

// TestRowsOfTheOldSchemaHold takes a database with rows through the migration.
func TestRowsOfTheOldSchemaHold(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		if strings.Contains(o.URL, "memory") {
			t.Skip("a database in memory is not migrated later")
		}
		s, err := store.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		commit(t, s, addUpstream("a"))
		commit(t, s, addUpstream("b"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Migrate(t.Context(), o, "down"); err != nil {
			t.Fatal(err)
		}
		s = open(t, o) // migrates up again
		commit(t, s, addUpstream("c"))
		if n, err := s.VerifyAudit(t.Context()); n != 3 || err != nil {
			t.Errorf("verify: %d, %v", n, err)
		}
	})
}
