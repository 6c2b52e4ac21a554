package control_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/control"
	"sluice/internal/sticky"
	"sluice/internal/testenv"
	"sluice/router"
)

func TestSeedsOnceAndNeverOverwrites(t *testing.T) {
	t.Parallel()
	db := sqliteURL(t)
	a := start(t, settings{id: "a", db: db})
	if s := a.Status(t.Context()); s.Source != "database" || s.ReadOnly || len(s.Degraded) != 0 || s.Revision != a.revision() {
		t.Errorf("status %+v", s)
	}
	a.mustCommit(t, setWeight(2500))
	rev := a.revision()
	a.stop()
	b := start(t, settings{id: "b", db: db})
	if b.revision() != rev || b.weight() != 2500 {
		t.Errorf("second start: revision %d weight %d; want %d, 2500: the database is the truth", b.revision(), b.weight(), rev)
	}
	rows, _, err := b.store.Audit(t.Context(), auditAll)
	if err != nil || len(rows) != 2 || rows[1].Action != "document.seed" {
		t.Errorf("audit: %+v, %v", rows, err)
	}
}

func TestWithoutSeedAnEmptyDocumentServes(t *testing.T) {
	t.Parallel()
	a := start(t, settings{id: "a", db: sqliteURL(t), change: func(o *control.Options) { o.Seed = nil }})
	if a.live.Load() == nil {
		t.Error("no table")
	}
	a.mustCommit(t, router.Change{Action: "upstream.create", Object: "upstream/x", Mutate: func(s *router.Snapshot, rev int64) error {
		return router.CreateUpstream(&s.Document, rev, time.Now(), router.Upstream{Name: "x", Endpoints: []string{"http://127.0.0.1:1"}})
	}})
}

func TestCommitIsInForceWhenItReturns(t *testing.T) {
	t.Parallel()
	a := start(t, settings{id: "a", db: sqliteURL(t)})
	res := a.mustCommit(t, setWeight(3000))
	if a.revision() != res.Revision || a.weight() != 3000 {
		t.Errorf("live revision %d weight %d; want %d, 3000", a.revision(), a.weight(), res.Revision)
	}
	if ok, missing := a.WaitApplied(t.Context(), res.Revision, 10*time.Second); !ok {
		t.Errorf("not applied: %v", missing)
	}
	again, err := a.Commit(t.Context(), setWeight(3000))
	if err != nil || again.Audit != nil || again.Revision != res.Revision {
		t.Errorf("no change: %+v, %v", again, err)
	}
	dry := setWeight(4000)
	dry.DryRun = true
	would, err := a.Commit(t.Context(), dry)
	if err != nil || would.Audit == nil || would.Snapshot.Document.Experiments[0].Variants[1].Weight != 4000 || a.weight() != 3000 {
		t.Errorf("dry run: %+v, %v; live weight %d", would, err, a.weight())
	}
	own := errors.New("if-match failed")
	if _, err := a.Commit(t.Context(), router.Change{Mutate: func(*router.Snapshot, int64) error { return own }}); err != own {
		t.Errorf("error of Mutate: %v", err)
	}
	var ps router.Problems
	bad := router.Change{Mutate: func(s *router.Snapshot, _ int64) error { s.Document.Experiments[0].Model = "nobody"; return nil }}
	if _, err := a.Commit(t.Context(), bad); !errors.As(err, &ps) {
		t.Errorf("invalid document: %v", err)
	}
}

// A revision from elsewhere (an older release, another replica's secrets) that
// does not compile leaves the old table, says so once, and is healed by the next.
func TestRevisionThatDoesNotCompile(t *testing.T) {
	t.Parallel()
	var failed, swapped atomic.Int32
	a := start(t, settings{id: "a", db: sqliteURL(t), change: func(o *control.Options) {
		o.Poll = 20 * time.Millisecond
		o.Hooks.CompileFailed = func(int64, error) { failed.Add(1) }
		o.Hooks.Revision = func(int64) { swapped.Add(1) }
	}})
	old := a.revision()
	broken, _, err := a.store.Commit(t.Context(), router.Change{Action: "x", Object: "upstream/v1", Mutate: func(s *router.Snapshot, _ int64) error {
		s.Document.Upstreams[0].Credential = "nowhere"
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the banner", func() bool { return a.Status(t.Context()).Compile != nil })
	s := a.Status(t.Context())
	if s.Compile.Revision != broken.Document.Revision || !strings.Contains(s.Compile.Message, "nowhere") || !degraded(s, control.CodeCompile) || s.Revision != old || a.revision() != old {
		t.Errorf("status %+v, live %d; want the old table %d", s, a.revision(), old)
	}
	var ps router.Problems
	if _, err := a.Commit(t.Context(), setWeight(2000)); !errors.As(err, &ps) {
		t.Errorf("an edit of a broken document: %v; want its problems", err)
	}
	// A rollback works all the same.
	if _, err := a.Rollback(t.Context(), "exp", router.Change{Actor: "ada"}); err != nil || a.canary(t) != "rolled_back" {
		t.Errorf("rollback: %v; canary is %s", err, a.canary(t))
	}
	eventually(t, "the rollback in the document", func() bool {
		s, err := a.store.Latest(t.Context())
		return err == nil && s.Document.Experiment("exp").State == router.StateRolledBack
	})
	fixed := a.mustCommit(t, router.Change{Actor: "ada", Action: "upstream.update", Object: "upstream/v1", Mutate: func(s *router.Snapshot, _ int64) error {
		s.Document.Upstreams[0].Credential = ""
		return nil
	}})
	if a.revision() != fixed.Revision || a.Status(t.Context()).Compile != nil {
		t.Errorf("not healed: live %d, want %d", a.revision(), fixed.Revision)
	}
	if failed.Load() != 2 || swapped.Load() != 3 {
		t.Errorf("hooks: %d compile failures, %d swaps; want one for each broken revision, and start, rollback, repair", failed.Load(), swapped.Load())
	}
}

func TestStartFromDiskWhenTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t)
	db, path := durable(pg.Database()), filepath.Join(t.TempDir(), "state", "snapshot.json")
	a := start(t, settings{id: "a", db: db, snapshot: path})
	res := a.mustCommit(t, setWeight(4200))
	eventually(t, "the file", func() bool { b, _ := os.ReadFile(path); return strings.Contains(string(b), "4200") })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", info.Mode(), err)
	}
	a.stop()
	pg.Kill()

	b := start(t, settings{id: "b", db: db, snapshot: path})
	s := b.Status(t.Context())
	if b.revision() != res.Revision || b.weight() != 4200 || s.Source != "disk" || !s.ReadOnly || !degraded(s, control.CodeDatabase) {
		t.Errorf("revision %d weight %d status %+v; want the last good snapshot, read-only", b.revision(), b.weight(), s)
	}
	if _, err := b.Commit(t.Context(), setWeight(1)); !errors.Is(err, control.ErrReadOnly) {
		t.Errorf("commit: %v", err)
	}
	pg.Restart()
	eventually(t, "the database", func() bool { return !b.Status(t.Context()).ReadOnly })
	if b.revision() != res.Revision {
		t.Errorf("revision %d after the database is back, want %d", b.revision(), res.Revision)
	}
	b.mustCommit(t, setWeight(1))
}

func TestStartWithNothing(t *testing.T) {
	t.Parallel()
	body := `{"format":1,"sha256":"00","payload":{"snapshot":{}}}`
	for _, c := range []struct{ name, file, want string }{
		{"no file", "", "no last good snapshot at"},
		{"half a file", body[:40], "is damaged"},
		{"changed", body, "checksum does not match"},
		{"newer", `{"format":2}`, "format 2"},
		{"empty object", `{}`, "format 0"},
		{"a directory", "dir", "last good snapshot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshot.json")
			switch c.file {
			case "":
			case "dir":
				os.Mkdir(path, 0o700)
			default:
				os.WriteFile(path, []byte(c.file), 0o600)
			}
			r := assemble(t, settings{id: "a", db: "postgres://u:hunter2@127.0.0.1:1/x", snapshot: path, change: func(o *control.Options) { o.StartTimeout = time.Millisecond }})
			err := r.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "cannot open postgres://127.0.0.1:1/x") {
				t.Errorf("error %v; want both reasons, %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error shows the password: %v", err)
			}
			if r.live.Load() != nil {
				t.Error("something serves")
			}
		})
	}
}

func TestWaitAppliedNamesWhoIsMissing(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	db := testenv.Postgres(t)
	gate := make(chan struct{})
	var asked sync.Map
	a := start(t, settings{id: "a", db: db, redis: redis.URL})
	b := start(t, settings{id: "b", db: db, redis: redis.URL, change: func(o *control.Options) {
		o.Quiesced = func(ctx context.Context, rev int64) {
			asked.Store(rev, true)
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
	}})
	eventually(t, "both reports", func() bool { return len(a.Status(t.Context()).Replicas) == 2 })
	res := a.mustCommit(t, setWeight(1500))
	eventually(t, "b", func() bool { return b.revision() == res.Revision })
	ok, missing := a.WaitApplied(t.Context(), res.Revision, 50*time.Millisecond)
	if ok || len(missing) == 0 || missing[len(missing)-1] != "b" {
		t.Errorf("applied %t, missing %v; want b, which still has an older attempt", ok, missing)
	}
	close(gate)
	if ok, missing := a.WaitApplied(t.Context(), res.Revision, 10*time.Second); !ok {
		t.Errorf("missing %v", missing)
	}
	if _, ok := asked.Load(res.Revision); !ok {
		t.Error("Quiesced was not asked about the revision")
	}
	if ok, missing := a.WaitApplied(t.Context(), res.Revision, -1); ok || len(missing) != 1 || !strings.HasPrefix(missing[0], "unknown") {
		t.Errorf("without time to ask: applied %t, missing %v", ok, missing)
	}
	ghost := sticky.Replica{ID: "ghost", Revision: 1}
	g, err := sticky.Open(t.Context(), sticky.Options{URL: redis.URL, ReplicaID: "ghost"})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.Background())
	if err := g.Report(t.Context(), ghost); err != nil {
		t.Fatal(err)
	}
	if ok, missing := a.WaitApplied(t.Context(), res.Revision, time.Second); ok || len(missing) != 1 || missing[0] != "ghost" {
		t.Errorf("applied %t, missing %v; want ghost", ok, missing)
	}
}

func TestInvalidSeedIsRefused(t *testing.T) {
	t.Parallel()
	r := assemble(t, settings{id: "a", db: sqliteURL(t), change: func(o *control.Options) {
		o.Seed = document(t, strings.Replace(base, `"endpoints": ["http://127.0.0.1:1/v1"]`, `"endpoints": ["http://127.0.0.1:1/v1"], "credential": "nowhere"`, 1))
	}})
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "nowhere") || r.live.Load() != nil {
		t.Errorf("error %v; want one that names the credential", err)
	}
}

func TestNewRefusesHalfOptions(t *testing.T) {
	t.Parallel()
	if _, err := control.New(control.Options{}); err == nil {
		t.Error("accepted")
	}
}
