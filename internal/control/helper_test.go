package control_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"sluice/internal/control"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/router"
	"sluice/upstream"
)

// go-redis looks for a lost server from a goroutine that sleeps for a second at
// a time and notices a Close only then.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const base = `{
  "upstreams": [{"name": "v1", "endpoints": ["http://127.0.0.1:1/v1"]}, {"name": "v2", "endpoints": ["http://127.0.0.1:1/v2"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "canary", "state": "running", "baseline": "control",
    "variants": [{"name": "control", "weight": 9000, "upstream": "v1"}, {"name": "canary", "weight": 1000, "upstream": "v2"}]}]
}`

func document(t testing.TB, s string) *router.Document {
	t.Helper()
	d, err := router.ParseDocument([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// replica is one process's control plane on real stores.
type replica struct {
	*control.Controller
	store  *store.Store
	sticky *sticky.Store
	live   *router.Live
	stop   func() // ends Run and closes everything; once
}

type settings struct {
	id, db, redis string
	snapshot      string // path
	change        func(*control.Options)
}

// assemble makes a replica that has not started.
func assemble(t testing.TB, s settings) *replica {
	t.Helper()
	r := &replica{live: &router.Live{}}
	var err error
	if r.store, err = store.Open(t.Context(), store.Options{URL: s.db, Lazy: true}); err != nil {
		t.Fatal(err)
	}
	if r.sticky, err = sticky.Open(t.Context(), sticky.Options{URL: s.redis, ReplicaID: s.id}); err != nil {
		t.Fatal(err)
	}
	pool := upstream.NewPool(upstream.PoolOptions{})
	o := control.Options{
		Store: r.store, Sticky: r.sticky, Pool: pool, Live: r.live, Shared: s.redis != "", Seed: document(t, base),
		SnapshotPath: s.snapshot, ReplicaID: s.id, StartTimeout: 20 * time.Second,
	}
	if s.change != nil {
		s.change(&o)
	}
	if r.Controller, err = control.New(o); err != nil {
		t.Fatal(err)
	}
	closed := false
	r.stop = func() {
		if closed {
			return
		}
		closed = true
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.sticky.Close(ctx)
		pool.Close()
		r.store.Close()
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// start makes a replica that runs.
func start(t testing.TB, s settings) *replica {
	t.Helper()
	r := assemble(t, s)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, r)
	return r
}

func run(t testing.TB, r *replica) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	end := r.stop
	r.stop = func() { cancel(); <-done; end() }
}

func sqliteURL(t testing.TB) string {
	return "sqlite:" + filepath.Join(t.TempDir(), "sluice.db")
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func (r *replica) revision() int64 { return r.live.Load().Revision }

func (r *replica) weight() int {
	return r.live.Load().Snapshot.Document.Experiment("exp").Variants[1].Weight
}

// canary reports how the live table has the canary: live, killed or rolled_back.
func (r *replica) canary(t testing.TB) string {
	t.Helper()
	table := r.live.Load()
	m, ok := table.Model("chat")
	if !ok {
		t.Fatal("no model chat")
	}
	e := m.Experiments[0]
	q := &router.Query{Model: "chat", AuthNone: true}
	p, err := table.Route(t.Context(), q, nil)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case e.Variants[1].Killed:
		return "killed"
	case p.Decision.Reason == "rolled_back":
		return "rolled_back"
	}
	return "live"
}

func setWeight(bp int) router.Change {
	return router.Change{Actor: "ada", Action: "experiment.set_weights", Object: "experiment/exp", Mutate: func(s *router.Snapshot, rev int64) error {
		return router.SetWeights(&s.Document, rev, time.Now(), "exp", map[string]int{"control": 10000 - bp, "canary": bp})
	}}
}

func (r *replica) mustCommit(t testing.TB, ch router.Change) control.CommitResult {
	t.Helper()
	res, err := r.Commit(t.Context(), ch)
	if err != nil {
		t.Fatal(err)
	}
	if res.Audit == nil {
		t.Fatal("nothing changed")
	}
	return res
}

func degraded(s control.Status, code string) bool {
	for _, d := range s.Degraded {
		if d.Code == code {
			return true
		}
	}
	return false
}

// kill ends PostgreSQL and waits until its backends, which outlive it by a
// moment, answer nobody.
func kill(t testing.TB, pg *testenv.PGServer, rs ...*replica) {
	t.Helper()
	pg.Kill()
	for _, r := range rs {
		for silent := 0; silent < 5; {
			eventually(t, "the end of the database", func() bool { _, err := r.store.LatestRevision(t.Context()); return err != nil })
			silent++
		}
	}
}

// exec runs SQL behind the store's back, as a restored backup does.
func exec(t testing.TB, url, query string, args ...any) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

func durable(url string) string { return url + "&synchronous_commit=on" }
