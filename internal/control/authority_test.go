package control_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/control"
	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/router"
)

var auditAll = store.AuditFilter{}

// pair is two replicas on one Redis of their own and one database.
func pair(t *testing.T) (a, b *replica, redis *testenv.RedisServer, db string) {
	db = testenv.Postgres(t)
	a, b, redis = pairOn(t, db)
	return a, b, redis, db
}

// mortalPair has a PostgreSQL of its own too, to be killed.
func mortalPair(t *testing.T) (a, b *replica, pg *testenv.PGServer, redis *testenv.RedisServer) {
	pg = testenv.PostgresServer(t)
	a, b, redis = pairOn(t, durable(pg.Database()))
	return a, b, pg, redis
}

func pairOn(t *testing.T, db string) (a, b *replica, redis *testenv.RedisServer) {
	redis = testenv.Redis(t)
	fast := func(o *control.Options) { o.Poll = 250 * time.Millisecond }
	a = start(t, settings{id: "a", db: db, redis: redis.URL, change: fast})
	b = start(t, settings{id: "b", db: db, redis: redis.URL, change: fast})
	return a, b, redis
}

func TestKillAndRollbackWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want, action string
		stop               func(r *replica) (control.CommitResult, error)
	}{
		{"kill", "killed", "experiment.kill", func(r *replica) (control.CommitResult, error) {
			return r.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada", Reason: "it swears"})
		}},
		{"rollback", "rolled_back", "experiment.rollback", func(r *replica) (control.CommitResult, error) {
			return r.Rollback(t.Context(), "exp", router.Change{Actor: "ada", Reason: "it swears"})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b, pg, _ := mortalPair(t)
			rev := a.revision()
			kill(t, pg, a, b)
			res, err := c.stop(a)
			if err != nil || !res.Deferred || res.Audit != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if got := a.canary(t); got != c.want {
				t.Errorf("here %s, want %s at once", got, c.want)
			}
			eventually(t, "the other replica", func() bool { return b.canary(t) == c.want })
			if a.revision() != rev || b.revision() != rev {
				t.Errorf("revisions %d, %d; no document was written, want %d", a.revision(), b.revision(), rev)
			}
			if _, err := a.Kill(t.Context(), "nobody", "x", router.Change{}); err == nil || errors.Is(err, control.ErrReadOnly) {
				t.Errorf("unknown experiment: %v", err)
			}
			pg.Restart()
			eventually(t, "the document", func() bool {
				return a.revision() > rev && b.revision() == a.revision() && !a.Status(t.Context()).ReadOnly && !b.Status(t.Context()).ReadOnly
			})
			rows, _, err := a.store.Audit(t.Context(), store.AuditFilter{Action: c.action})
			if err != nil || len(rows) != 1 || rows[0].Actor != "ada" || !strings.HasPrefix(rows[0].Reason, "it swears; in force since ") {
				t.Errorf("audit %+v, %v; want one row by ada", rows, err)
			}
			if got := b.canary(t); got != c.want {
				t.Errorf("after the replay %s", got)
			}
			if _, err := a.store.VerifyAudit(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A kill that cuts streams does so on every replica with either store away, also
// after one that did not.
func TestCutStreamsWithEitherStore(t *testing.T) {
	t.Parallel()
	cuts := func(r *replica) bool {
		table := r.live.Load()
		e, ok := table.Experiment("exp")
		return ok && table.Cuts(e, e.Variants[1])
	}
	for _, away := range []string{"database", "redis"} {
		t.Run("without "+away, func(t *testing.T) {
			t.Parallel()
			a, b, pg, redis := mortalPair(t)
			if _, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the kill", func() bool { return b.canary(t) == "killed" })
			if cuts(a) || cuts(b) {
				t.Fatal("a plain kill cuts streams")
			}
			if away == "database" {
				kill(t, pg, a, b)
			} else {
				redis.Kill()
			}
			if _, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "bob", CutStreams: true}); err != nil {
				t.Fatal(err)
			}
			if !cuts(a) {
				t.Error("not cut here at once")
			}
			eventually(t, "the cut elsewhere", func() bool { return cuts(b) })
		})
	}
}

// Everything that was done while the database was away has its row, whatever
// the order.
func TestKillAndThenRollbackWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	for name, killFirst := range map[string]bool{"kill, rollback": true, "rollback, kill": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.PostgresServer(t)
			const poll = 100 * time.Millisecond
			a := start(t, settings{id: "a", db: durable(pg.Database()), change: func(o *control.Options) { o.Poll = poll }})
			rev := a.revision()
			kill(t, pg, a)
			steps := []func() (control.CommitResult, error){
				func() (control.CommitResult, error) {
					return a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada", Reason: "it swears"})
				},
				func() (control.CommitResult, error) {
					return a.Rollback(t.Context(), "exp", router.Change{Actor: "bob", Reason: "all of it"})
				},
			}
			want := []string{"experiment.kill by ada", "experiment.rollback by bob"}
			if !killFirst {
				slices.Reverse(steps)
				slices.Reverse(want)
			}
			for _, step := range steps {
				if res, err := step(); err != nil || !res.Deferred {
					t.Fatalf("%+v, %v", res, err)
				}
			}
			pg.Restart()
			var got []string
			eventually(t, "both rows", func() bool {
				rows, _, err := a.store.Audit(t.Context(), auditAll)
				got = got[:0]
				for _, r := range rows {
					if r.Revision > rev {
						got = append(got, r.Action+" by "+r.Actor)
					}
				}
				return err == nil && len(got) >= 2
			})
			slices.Reverse(got) // the newest comes first
			if !slices.Equal(got, want) {
				t.Errorf("audit %q, want %q", got, want)
			}
			eventually(t, "the document", func() bool {
				e := a.live.Load().Snapshot.Document.Experiment("exp")
				return e.State == router.StateRolledBack && e.Variants[1].State == router.VariantKilled
			})
			if _, err := a.store.VerifyAudit(t.Context()); err != nil {
				t.Error(err)
			}
			settled := a.revision()
			time.Sleep(3 * poll) // nothing is written twice
			if a.revision() != settled {
				t.Errorf("revision %d became %d", settled, a.revision())
			}
		})
	}
}

func TestKillWithoutRedisAndANewGeneration(t *testing.T) {
	t.Parallel()
	a, b, redis, _ := pair(t)
	redis.Kill()
	res, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada"})
	if err != nil || res.Deferred || res.Audit == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	eventually(t, "the other replica", func() bool { return b.canary(t) == "killed" })
	redis.Restart()
	// A new generation begins without it, although the kill set may know it by now.
	for _, verb := range []func(*router.Document, int64, time.Time, string) error{router.Rollback, router.Start} {
		a.mustCommit(t, router.Change{Actor: "ada", Object: "experiment/exp", Mutate: func(s *router.Snapshot, rev int64) error {
			return verb(&s.Document, rev, time.Now(), "exp")
		}})
	}
	eventually(t, "the new generation", func() bool { return a.canary(t) == "live" && b.canary(t) == "live" })
}

func TestKillSetOutlivesTheDocumentAndEndsWithTheGeneration(t *testing.T) {
	t.Parallel()
	a, b, _, db := pair(t)
	before, err := a.store.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.mustCommit(t, setWeight(1200))
	if _, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada"}); err != nil {
		t.Fatal(err)
	}
	// The backup was made before the kill.
	killed := a.revision()
	exec(t, db, `UPDATE head SET revision = $1`, before.Document.Revision)
	eventually(t, "a higher revision", func() bool { return a.revision() > killed && b.revision() == a.revision() })
	if a.canary(t) != "killed" || b.canary(t) != "killed" {
		t.Error("a restored database undid a kill")
	}
	for _, verb := range []func(*router.Document, int64, time.Time, string) error{router.Rollback, router.Start} {
		a.mustCommit(t, router.Change{Object: "experiment/exp", Mutate: func(s *router.Snapshot, rev int64) error {
			return verb(&s.Document, rev, time.Now(), "exp")
		}})
	}
	eventually(t, "the kill set to empty", func() bool {
		kills, err := b.sticky.Kills(t.Context())
		return err == nil && len(kills) == 0 && b.canary(t) == "live" && a.canary(t) == "live"
	})
}

func TestBothStoresAway(t *testing.T) {
	t.Parallel()
	a, _, pg, redis := mortalPair(t)
	kill(t, pg, a)
	redis.Kill()
	eventually(t, "both to be noticed", func() bool {
		s := a.Status(t.Context())
		return degraded(s, control.CodeDatabase) && degraded(s, control.CodeSticky)
	})
	if _, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada"}); !errors.Is(err, control.ErrReadOnly) {
		t.Errorf("kill: %v", err)
	}
	if a.canary(t) != "live" {
		t.Error("a refused kill is in force")
	}
	redis.Restart()
	pg.Restart()
	eventually(t, "recovery", func() bool { return len(a.Status(t.Context()).Degraded) == 0 })
	a.mustCommit(t, setWeight(1234))
}

func TestKillSurvivesARestartWithoutRedis(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/snapshot.json"
	pg := testenv.PostgresServer(t)
	db := durable(pg.Database())
	a := start(t, settings{id: "a", db: db, snapshot: path})
	kill(t, pg, a)
	if res, err := a.Kill(t.Context(), "exp", "canary", router.Change{Actor: "ada", Reason: "bad"}); err != nil || !res.Deferred {
		t.Fatalf("%+v, %v", res, err)
	}
	a.stop() // saves on its way out at the latest
	b := start(t, settings{id: "b", db: db, snapshot: path})
	if got := b.canary(t); got != "killed" {
		t.Errorf("after a restart the canary is %s", got)
	}
	pg.Restart()
	eventually(t, "the replay", func() bool {
		rows, _, err := b.store.Audit(t.Context(), store.AuditFilter{Action: "experiment.kill"})
		return err == nil && len(rows) == 1 && rows[0].Actor == "ada"
	})
}

func TestRestoredDatabaseIsIssuedAgain(t *testing.T) {
	t.Parallel()
	a, b, _, db := pair(t)
	kept := a.mustCommit(t, setWeight(1500))
	lost := a.mustCommit(t, setWeight(3500))
	eventually(t, "b", func() bool { return b.revision() == lost.Revision })
	exec(t, db, `UPDATE head SET revision = $1`, kept.Revision)
	eventually(t, "a higher revision with the database's document", func() bool {
		return a.revision() > lost.Revision && b.revision() == a.revision() && a.weight() == 1500 && b.weight() == 1500
	})
	rows, _, err := a.store.Audit(t.Context(), store.AuditFilter{Action: "document.reissue"})
	if err != nil || len(rows) != 1 {
		t.Errorf("%d reissues, %v; two replicas must agree on one", len(rows), err)
	}
	if !degraded(a.Status(t.Context()), control.CodeReissued) && !degraded(b.Status(t.Context()), control.CodeReissued) {
		t.Error("nobody says so")
	}
	a.mustCommit(t, setWeight(1600))
}

func TestEmptiedDatabaseChangesNothing(t *testing.T) {
	t.Parallel()
	a, _, _, db := pair(t)
	rev := a.revision()
	exec(t, db, `UPDATE head SET revision = 0`)
	eventually(t, "the alarm", func() bool { return degraded(a.Status(t.Context()), control.CodeDatabase) })
	if _, err := a.Commit(t.Context(), setWeight(1)); !errors.Is(err, control.ErrReadOnly) {
		t.Errorf("commit: %v", err)
	}
	if a.revision() != rev || a.weight() != 1000 {
		t.Error("an empty database replaced what serves")
	}
	exec(t, db, `UPDATE head SET revision = $1`, rev)
	eventually(t, "recovery", func() bool { return !degraded(a.Status(t.Context()), control.CodeDatabase) })
}

func TestFlushedRedisIsRefilled(t *testing.T) {
	t.Parallel()
	a, b, redis, _ := pair(t)
	res := a.mustCommit(t, setWeight(1500))
	redis.FlushAll()
	eventually(t, "the document in Redis", func() bool {
		rev, _, err := b.sticky.Latest(t.Context())
		return err == nil && rev == res.Revision
	})
	next := b.mustCommit(t, setWeight(1600))
	eventually(t, "a", func() bool { return a.revision() == next.Revision })
}

// TestNeverBackwards lets two replicas commit while Redis and the notices come
// and go, and watches the live revisions.
func TestNeverBackwards(t *testing.T) {
	t.Parallel()
	a, b, redis, _ := pair(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var end atomic.Bool
	var watchers sync.WaitGroup
	for _, r := range []*replica{a, b} {
		watchers.Go(func() {
			last := int64(0)
			for !end.Load() {
				if rev := r.revision(); rev < last {
					t.Errorf("went from %d to %d", last, rev)
				} else {
					last = rev
				}
				time.Sleep(200 * time.Microsecond)
			}
		})
	}
	var writers sync.WaitGroup
	for i, r := range []*replica{a, b} {
		writers.Go(func() {
			for n := range 40 {
				if _, err := r.Commit(t.Context(), setWeight(100*i+n+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		switch rng.IntN(3) {
		case 0:
			redis.FlushAll()
		case 1:
			redis.Kill()
			redis.Restart()
		case 2:
			redis.Pause()
			redis.Resume()
		}
	}
	writers.Wait()
	eventually(t, "agreement", func() bool {
		rev, err := a.store.LatestRevision(t.Context())
		return err == nil && a.revision() == rev && b.revision() == rev
	})
	end.Store(true)
	watchers.Wait()
}

// TestPropagation measures the time from Commit's return to the last replica's
// swap. It asserts only that every change arrives; for the figures run it alone.
func TestPropagation(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	db := testenv.Postgres(t)
	type arrival struct {
		rev int64
		at  time.Time
	}
	const followers, changes = 3, 200
	arrivals := make(chan arrival, followers*(changes+10))
	var rs []*replica
	for _, id := range []string{"a", "b", "c"} {
		rs = append(rs, start(t, settings{id: id, db: db, redis: redis.URL, change: func(o *control.Options) {
			o.Hooks.Revision = func(rev int64) { arrivals <- arrival{rev, time.Now()} }
		}}))
	}
	var lags []time.Duration
	for n := range changes {
		res := rs[0].mustCommit(t, setWeight(n+2))
		returned := time.Now()
		last := returned
		for got := 0; got < followers; {
			select {
			case x := <-arrivals:
				if x.rev == res.Revision {
					got++
					if x.at.After(last) {
						last = x.at
					}
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("change %d reached %d of %d replicas", n, got, followers)
			}
		}
		lags = append(lags, last.Sub(returned))
	}
	slices.Sort(lags)
	t.Logf("from Commit's return to the last of %d swaps, %d changes: p50 %v, p99 %v, max %v",
		followers, changes, lags[changes/2], lags[changes*99/100], lags[changes-1])
}
