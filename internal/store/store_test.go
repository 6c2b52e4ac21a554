package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engines runs one test on each engine; PostgreSQL is skipped with a message where it is not installed.
func engines(t *testing.T, run func(t *testing.T, o store.Options)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		run(t, store.Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "data", "sluice.db")})
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		run(t, store.Options{URL: "sqlite::memory:"})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		run(t, store.Options{URL: testenv.Postgres(t)})
	})
}

func open(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func addUpstream(name string) router.Change {
	return router.Change{
		Actor: "ada", Role: "editor", Action: "upstream.create", Object: "upstream/" + name, Reason: "more\x00 GPUs \xff",
		Mutate: func(s *router.Snapshot, _ int64) error {
			s.Document.Upstreams = append(s.Document.Upstreams, router.Upstream{Name: name, Endpoints: []string{"http://a/v1"}})
			return nil
		},
	}
}

func commit(t *testing.T, s *store.Store, ch router.Change) *router.Snapshot {
	t.Helper()
	snap, audit, err := s.Commit(t.Context(), ch)
	if err != nil {
		t.Fatal(err)
	}
	if audit == nil {
		t.Fatal("no audit row: nothing changed")
	}
	return snap
}

func names(s *router.Snapshot) string {
	var out []string
	for _, u := range s.Document.Upstreams {
		out = append(out, u.Name)
	}
	return strings.Join(out, " ")
}

func TestCommit(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		refused := errors.New("refused")
		o.Validate = func(s *router.Snapshot) error {
			if strings.Contains(names(s), "bad") {
				return refused
			}
			return nil
		}
		s := open(t, o)
		empty, err := s.Latest(t.Context())
		if err != nil || empty.Document.Revision != 0 {
			t.Fatalf("new database: revision %v, err %v", empty, err)
		}
		before := time.Now().UnixMilli() * 256
		first := commit(t, s, addUpstream("v1"))
		if r := first.Document.Revision; r < before || r >= 1<<53 {
			t.Errorf("revision %d is not the hybrid clock's", r)
		}
		second := commit(t, s, addUpstream("v2"))
		got, err := s.Latest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(second.Document, got.Document); d != "" {
			t.Errorf("read back differs (-committed +read):\n%s", d)
		}
		if u := got.Document.Upstreams; u[0].UpdatedRevision != first.Document.Revision || u[1].UpdatedRevision != second.Document.Revision {
			t.Errorf("objects have revisions %d, %d; want those of their own changes", u[0].UpdatedRevision, u[1].UpdatedRevision)
		}

		for name, ch := range map[string]router.Change{
			"mutate refuses": {Mutate: func(*router.Snapshot, int64) error { return refused }},
			"invalid":        addUpstream("bad"),
		} {
			if _, _, err := s.Commit(t.Context(), ch); !errors.Is(err, refused) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		snap, audit, err := s.Commit(t.Context(), router.Change{Mutate: func(s *router.Snapshot, rev int64) error {
			s.Document.Upstreams[0].UpdatedRevision = rev // touched, not changed
			return nil
		}})
		if err != nil || audit != nil || snap.Document.Revision != second.Document.Revision {
			t.Errorf("no change: revision %d, audit %v, err %v; want the current one", snap.Document.Revision, audit, err)
		}
		dry := addUpstream("v3")
		dry.DryRun = true
		snap, audit, err = s.Commit(t.Context(), dry)
		if err != nil || names(snap) != "v1 v2 v3" || audit == nil || !strings.Contains(string(audit.After), "v3") {
			t.Errorf("dry run: %q, %v, %v", names(snap), audit, err)
		}
		if rev, err := s.LatestRevision(t.Context()); err != nil || rev != second.Document.Revision {
			t.Errorf("after refusals and a dry run revision %d, err %v; want %d", rev, err, second.Document.Revision)
		}
		at, err := s.At(t.Context(), first.Document.Revision)
		if err != nil || names(at) != "v1" {
			t.Errorf("At: %v, %v", at, err)
		}
		if _, err := s.At(t.Context(), 7); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("At unknown: %v", err)
		}
		h, err := s.History(t.Context(), 1, 0)
		if err != nil || len(h) != 1 || h[0].Object != "upstream/v2" || h[0].Reason != "more GPUs \uFFFD" {
			t.Errorf("history: %+v, %v", h, err)
		}
		if h, err = s.History(t.Context(), 10, h[0].Revision); err != nil || len(h) != 1 || h[0].Object != "upstream/v1" {
			t.Errorf("history before: %+v, %v", h, err)
		}
	})
}

func TestCommitAboveFloor(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		commit(t, s, addUpstream("v1"))
		floor := time.Now().Add(time.Hour).UnixMilli() * 256
		re := router.Change{Actor: "system", Action: "document.reissue", Object: "document"}
		snap, audit, err := s.CommitAbove(t.Context(), floor, re)
		if err != nil || audit == nil || snap.Document.Revision <= floor || names(snap) != "v1" {
			t.Fatalf("reissue: %v, %v, %v", snap, audit, err)
		}
		again, audit, err := s.CommitAbove(t.Context(), floor, re)
		if err != nil || audit != nil || again.Document.Revision != snap.Document.Revision {
			t.Errorf("second reissue wrote again: %v, %v, %v", again, audit, err)
		}
		if next := commit(t, s, addUpstream("v2")); next.Document.Revision != snap.Document.Revision+1 {
			t.Errorf("with the clock behind, revision %d after %d", next.Document.Revision, snap.Document.Revision)
		}
	})
}

func TestKeys(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		key := router.Key{ID: "k1", Hash: "aa", Name: "app\x00", Tags: map[string]string{"a": "b"}, CreatedAt: time.UnixMilli(1e12).UTC()}
		set := func(keys ...router.Key) router.Change {
			return router.Change{Action: "key.create", Object: "key/k1", Mutate: func(s *router.Snapshot, _ int64) error {
				s.Keys = keys
				return nil
			}}
		}
		_, audit, err := s.Commit(t.Context(), set(key))
		if err != nil || audit == nil || strings.Contains(string(audit.After), `"aa"`) {
			t.Fatalf("audit %+v, err %v; want a row without the secret's hash", audit, err)
		}
		got, err := s.Latest(t.Context())
		if err != nil || cmp.Diff([]router.Key{key}, got.Keys) != "" {
			t.Errorf("keys: %v, %s", err, cmp.Diff([]router.Key{key}, got.Keys))
		}
		if _, _, err := s.Commit(t.Context(), set(key, router.Key{ID: "k2", Hash: "aa", Name: "copy"})); err == nil || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("two keys with one secret: %v", err)
		}
		commit(t, s, set(router.Key{ID: "k3", Hash: "aa", Name: "heir"})) // takes the hash of a removed key
		got, err = s.Latest(t.Context())
		if err != nil || len(got.Keys) != 1 || got.Keys[0].ID != "k3" {
			t.Errorf("keys after replacement: %v, %v", got.Keys, err)
		}
	})
}

func TestWritersRace(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		a := open(t, o)
		b := a
		if o.URL != "sqlite::memory:" {
			b = open(t, o)
		}
		const each = 15
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[int64]string{}
		for i, s := range []*store.Store{a, b, a, b} {
			wg.Go(func() {
				for n := range each {
					snap, _, err := s.Commit(context.Background(), addUpstream(fmt.Sprintf("u%d-%d", i, n)))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if other := seen[snap.Document.Revision]; other != "" {
						t.Errorf("revision %d was given twice", snap.Document.Revision)
					}
					seen[snap.Document.Revision] = names(snap)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		got, err := a.Latest(t.Context())
		if err != nil || len(got.Document.Upstreams) != 4*each {
			t.Errorf("%d upstreams, err %v; want %d: a write was lost", len(got.Document.Upstreams), err, 4*each)
		}
		if n, err := a.VerifyAudit(t.Context()); err != nil || n != 4*each {
			t.Errorf("audit: %d rows, %v", n, err)
		}
	})
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("this is a text file, not a database, and it is long enough to have a header"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, url   string
		want        string
		unavailable bool
	}{
		{"empty", "", "storage.url is empty", false},
		{"scheme", "mysql://root:hunter2@h/db", `unknown scheme "mysql"`, false},
		{"no scheme", "hunter2", "unknown scheme", false},
		{"no path", "sqlite:", "not a file path", false},
		{"parent is a file", "sqlite:" + file + "/x.db", "cannot open " + file + "/x.db", true},
		{"directory", "sqlite:" + dir, "cannot open " + dir, true},
		{"not a database", "sqlite:" + file, "not a database", true},
		{"bad url", "postgres://u:hunter2@h:port/db", "not a valid PostgreSQL URL", false},
		{"nobody there", "postgres://u:hunter2@127.0.0.1:1/db?sslmode=disable", "cannot open postgres://127.0.0.1:1/db", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := store.Open(t.Context(), store.Options{URL: c.url})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v; want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error shows the password: %v", err)
			}
			if errors.Is(err, store.ErrUnavailable) != c.unavailable {
				t.Errorf("ErrUnavailable is %t for %v", !c.unavailable, err)
			}
			if !c.unavailable {
				return
			}
			s, err := store.Open(t.Context(), store.Options{URL: c.url, Lazy: true})
			if err != nil {
				t.Fatalf("lazy: %v", err)
			}
			defer s.Close()
			var u interface{ Unavailable() bool }
			if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) || !errors.As(err, &u) {
				t.Errorf("lazy ping: %v", err)
			}
		})
	}
}

func TestPathsWithOddCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b%20ü#", "sluice.db")
	if _, err := store.Open(t.Context(), store.Options{URL: "sqlite:" + path}); err == nil {
		t.Error("a path with # was accepted: SQLite would cut it there")
	}
	path = filepath.Join(t.TempDir(), "a b%20ü", "sluice.db")
	s := open(t, store.Options{URL: "sqlite:" + path})
	commit(t, s, addUpstream("v1"))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestMigrations(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		if o.URL == "sqlite::memory:" {
			t.Skip("nothing stays between connections")
		}
		ctx := t.Context()
		status := func() (applied int) {
			ms, err := store.MigrationStatus(ctx, o)
			if err != nil || len(ms) == 0 {
				t.Fatalf("status: %v, %v", ms, err)
			}
			for _, m := range ms {
				if m.Applied {
					applied++
				}
			}
			return applied
		}
		if n := status(); n != 0 {
			t.Errorf("new database has %d migrations", n)
		}
		for _, step := range []struct {
			direction string
			done      int
		}{{"up", 2}, {"up", 0}, {"down", 1}, {"down", 1}, {"down", 0}, {"up", 2}} {
			ms, err := store.Migrate(ctx, o, step.direction)
			if err != nil || len(ms) != step.done {
				t.Fatalf("%s: %v, %v; want %d steps", step.direction, ms, err, step.done)
			}
		}
		if _, err := store.Migrate(ctx, o, "sideways"); err == nil {
			t.Error("an unknown direction was accepted")
		}
		s := open(t, o)
		commit(t, s, addUpstream("v1"))
		if _, err := store.ExecForTest(s, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, `+map[string]string{"sqlite": "1", "postgres": "true"}[s.Engine()]+`)`); err != nil {
			t.Fatal(err)
		}
		_, err := store.Open(ctx, o)
		if !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), "schema 99") {
			t.Errorf("newer schema: %v", err)
		}
		if errors.Is(err, store.ErrUnavailable) {
			t.Error("a newer schema is no outage")
		}
	})
}

func TestReplicasStartTogether(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				s, err := store.Open(context.Background(), o)
				if err != nil {
					t.Error(err)
					return
				}
				s.Close()
			})
		}
		wg.Wait()
	})
}
