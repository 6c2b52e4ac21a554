package rollout_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/rollout"
	"sluice/internal/sticky"
	"sluice/internal/testenv"
	"sluice/router"
)

// slow stays in its first step for long.
const slow = `{"steps": [2000, 10000], "min_duration": "2s", "max_duration": "1h", "min_units": 100000, "no_data_after": "20s", "ready": {"probes": 0}}`

func three(t *testing.T, s settings) []*replica {
	t.Helper()
	var rs []*replica
	for _, id := range []string{"a", "b", "c"} {
		s.id = id
		rs = append(rs, start(t, s))
	}
	return rs
}

func leader(rs []*replica) *replica {
	for _, r := range rs {
		if r.roll.Leads() {
			return r
		}
	}
	return nil
}

func (r *replica) report(t testing.TB) ramp.Report {
	t.Helper()
	rep, err := r.roll.Report(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// stream reads all that was observed.
func (r *replica) stream(t testing.TB) (out []sticky.Observation) {
	t.Helper()
	for after := ""; ; {
		list, err := r.sticky.Observed(t.Context(), key, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			return out
		}
		out, after = append(out, list...), list[len(list)-1].ID
	}
}

// TestNextLeaderGoesOnExactly: after two changes of the leader in the middle of a
// step the evidence is what one leader would have made of the whole stream.
func TestNextLeaderGoesOnExactly(t *testing.T) {
	redis := testenv.Redis(t)
	rs := three(t, settings{db: testenv.Postgres(t), redis: redis.URL, policy: slow})
	history := record(t, rs[0])
	c := traffic(t, rs...)
	c.canary.Store(often(0.02))
	c.control.Store(often(0.02))
	rs[0].begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return rs[2].ramp().Step == 0 })
	for range 2 {
		eventually(t, 20*time.Second, "evidence", func() bool { return leader(rs) != nil && rs[2].report(t).Ticks >= 6 })
		old, before := leader(rs), rs[2].report(t)
		old.halt()
		eventually(t, 20*time.Second, "the next leader", func() bool { l := leader(rs); return l != nil && l != old })
		next := leader(rs)
		eventually(t, 20*time.Second, "its report", func() bool { return next.report(t).Leader == next.id })
		if after := next.report(t); after.Ticks < before.Ticks || after.Fence <= before.Fence || after.Epoch != before.Epoch {
			t.Errorf("%d ticks under fence %d became %d under %d", before.Ticks, before.Fence, after.Ticks, after.Fence)
		}
	}
	last := leader(rs)
	eventually(t, 20*time.Second, "more evidence", func() bool { return last.report(t).Ticks >= 20 })
	body, err := last.sticky.LoadCheckpoint(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	position, evidence, err := rollout.Checkpointed(body)
	if err != nil {
		t.Fatal(err)
	}
	_, want, err := rollout.Replay(history(1<<62), key, last.stream(t), []byte(`{"position": "`+position+`"}`))
	if err != nil || !bytes.Equal(evidence, want) {
		t.Errorf("the evidence of three leaders differs from that of one: %v\n%.600s\n%.600s", err, evidence, want)
	}
}

// TestReplayGivesTheSameDecisions, byte for byte, from the recorded stream.
func TestReplayGivesTheSameDecisions(t *testing.T) {
	redis := testenv.Redis(t)
	rs := three(t, settings{db: testenv.Postgres(t), redis: redis.URL})
	history := record(t, rs[0])
	c := traffic(t, rs...)
	rs[1].begin(t)
	eventually(t, 40*time.Second, "the second step", func() bool { return rs[0].ramp().Step == 1 })
	c.canary.Store(often(0.3))
	eventually(t, 30*time.Second, "rolled back", func() bool { return rs[0].experiment().State == "rolled_back" })
	stream, checked := rs[0].stream(t), 0
	rows := rs[0].actions(t)
	for _, row := range rows {
		if !bytes.Contains(row.Details, []byte(`"position"`)) {
			continue // of one replica's breaker: no stream is behind it
		}
		got, _, err := rollout.Replay(history(row.Revision), key, stream, row.Details)
		if err != nil || !bytes.Equal(got, row.Details) {
			t.Errorf("%s: %v\nwas    %s\nreplay %s", row.Action, err, row.Details, got)
		}
		checked++
	}
	if checked < 2 {
		t.Errorf("only %d decisions could be replayed of %d", checked, len(rows))
	}
}

// record keeps the tables that a replica has; before(revision) are those before it.
func record(t *testing.T, r *replica) (before func(revision int64) []*router.Table) {
	var mu sync.Mutex
	var all []*router.Table
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			table := r.live.Load()
			mu.Lock()
			if len(all) == 0 || all[len(all)-1] != table {
				all = append(all, table)
			}
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func(revision int64) (out []*router.Table) {
		mu.Lock()
		defer mu.Unlock()
		for _, table := range all {
			if table.Revision < revision {
				out = append(out, table)
			}
		}
		return out
	}
}

// gate holds the checkpoints of one replica up, as a stopped process would.
type gate struct {
	*sticky.Store
	shut    atomic.Bool
	open    chan struct{}
	waiting chan struct{}
	once    sync.Once
	err     atomic.Pointer[error]
}

func (g *gate) Checkpoint(ctx context.Context, exp string, fence int64, body []byte) error {
	if !g.shut.Load() {
		return g.Store.Checkpoint(ctx, exp, fence, body)
	}
	g.once.Do(func() { close(g.waiting) })
	<-g.open
	err := g.Store.Checkpoint(ctx, exp, fence, body)
	g.err.CompareAndSwap(nil, &err)
	return err
}

// TestOldLeaderIsRefused: one that wakes up after another has taken over can
// neither write nor decide.
func TestOldLeaderIsRefused(t *testing.T) {
	redis := testenv.Redis(t)
	g := &gate{open: make(chan struct{}), waiting: make(chan struct{})}
	db := testenv.Postgres(t)
	a := start(t, settings{id: "a", db: db, redis: redis.URL, policy: slow, sticky: func(s *sticky.Store) rollout.Sticky { g.Store = s; return g }})
	eventually(t, 20*time.Second, "a leads", a.roll.Leads)
	b := start(t, settings{id: "b", db: db, redis: redis.URL, policy: slow})
	traffic(t, a, b)
	a.begin(t)
	var fence int64
	eventually(t, 30*time.Second, "evidence of the first step", func() bool {
		rep, err := b.roll.Report(t.Context(), key) // b may not have the start yet
		fence = rep.Fence
		return err == nil && rep.Step == 0 && rep.Ticks >= 4 && fence > 0
	})
	g.shut.Store(true)
	<-g.waiting
	redis.FlushAll() // the lease goes with it, as if it had run out
	eventually(t, 20*time.Second, "b leads", b.roll.Leads)
	eventually(t, 20*time.Second, "b decides", func() bool { return b.report(t).Leader == "b" })
	close(g.open)
	eventually(t, 10*time.Second, "a is refused", func() bool { return g.err.Load() != nil })
	if err := *g.err.Load(); !errors.Is(err, sticky.ErrFenced) {
		t.Errorf("the old leader's checkpoint: %v", err)
	}
	if a.roll.Leads() {
		t.Error("both lead")
	}
	_, err := a.Commit(t.Context(), router.Change{Fence: fence, Action: "ramp.advance", Object: "experiment/exp"})
	if !errors.Is(err, router.ErrFenced) {
		t.Errorf("the old leader's commit: %v", err)
	}
	eventually(t, 10*time.Second, "b leads on in the same step", func() bool { rep := b.report(t); return rep.Leader == "b" && rep.Step == 0 })
}

// TestFlushedRedis: the evidence begins anew, the position does not, and the
// ramp ends as it should.
func TestFlushedRedis(t *testing.T) {
	redis := testenv.Redis(t)
	rs := three(t, settings{db: testenv.Postgres(t), redis: redis.URL, policy: strings.Replace(quick, `"1s"`, `"6s"`, 1)})
	traffic(t, rs...)
	rs[0].begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return rs[2].ramp().Step == 0 })
	time.Sleep(3 * time.Second)
	redis.FlushAll()
	if s := rs[1].ramp(); s.Step != 0 {
		t.Fatalf("step %d", s.Step)
	}
	eventually(t, 90*time.Second, "the bake", func() bool { return rs[1].ramp().Phase == ramp.Baking })
	for _, row := range rs[0].actions(t) {
		if row.Action == "ramp.rollback" || row.Action == "ramp.pause" {
			t.Errorf("%s: %s", row.Action, row.Reason)
		}
	}
}

// TestRedisAway: nothing grows; a broken canary is kept away by each replica at
// once, and stopped for all when it is broken still after its return.
func TestRedisAway(t *testing.T) {
	redis := testenv.Redis(t)
	rs := three(t, settings{db: testenv.Postgres(t), redis: redis.URL, policy: slow, tripFor: 4 * time.Second})
	c := traffic(t, rs...)
	rs[0].begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return rs[2].ramp().Step == 0 })
	time.Sleep(3 * time.Second)
	redis.Kill()
	eventually(t, 20*time.Second, "nobody leads", func() bool { return leader(rs) == nil })
	c.canary.Store(all(trial.Fault))
	time.Sleep(2 * time.Second)
	n := c.n[1].Load()
	time.Sleep(time.Second)
	if m := c.n[1].Load(); m != n {
		t.Errorf("%d requests of a canary that every replica has found broken", m-n)
	}
	eventually(t, 60*time.Second, "rolled back everywhere", func() bool {
		for _, r := range rs {
			if r.experiment().State != "rolled_back" {
				return false
			}
		}
		return true
	})
}

// TestDatabaseAway: the leader stops a broken canary through Redis alone.
func TestDatabaseAway(t *testing.T) {
	redis, pg := testenv.Redis(t), testenv.PostgresServer(t)
	rs := three(t, settings{db: pg.Database(), redis: redis.URL, policy: slow})
	c := traffic(t, rs...)
	rs[0].begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return rs[2].ramp().Step == 0 })
	eventually(t, 20*time.Second, "evidence", func() bool { return rs[2].report(t).Ticks >= 4 })
	pg.Kill()
	c.canary.Store(often(0.3))
	eventually(t, 60*time.Second, "the baseline for everybody", func() bool {
		for _, r := range rs {
			if e, _ := r.live.Load().Experiment(key); e == nil || e.State != experiment.RolledBack {
				return false
			}
		}
		return true
	})
}

// TestClocksThatDiffer by minutes change nothing.
func TestClocksThatDiffer(t *testing.T) {
	redis := testenv.Redis(t)
	db := testenv.Postgres(t)
	rs := []*replica{
		start(t, settings{id: "a", db: db, redis: redis.URL, skew: 7 * time.Minute}),
		start(t, settings{id: "b", db: db, redis: redis.URL, skew: -9 * time.Minute}),
	}
	traffic(t, rs...)
	rs[1].begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return rs[1].ramp().Step == 0 })
	old := leader(rs)
	for old == nil {
		old = leader(rs)
	}
	old.halt() // the clock of whoever decides now is a quarter of an hour off
	eventually(t, 90*time.Second, "the bake", func() bool { return rs[1].ramp().Phase == ramp.Baking })
	for _, row := range rs[0].actions(t) {
		if row.Action == "ramp.rollback" || row.Action == "ramp.pause" {
			t.Errorf("%s: %s", row.Action, row.Reason)
		}
	}
}
