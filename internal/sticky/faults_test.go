package sticky_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

func TestRedisAwayAtStart(t *testing.T) {
	r := testenv.Redis(t)
	r.Kill()
	var l logs
	s := open(t, sticky.Options{URL: r.URL, Log: l.logger()})
	ctx := t.Context()
	if s.Up() || s.Stats().State != sticky.Down || s.Stats().Reason == "" {
		t.Errorf("state %+v", s.Stats())
	}
	if _, _, err := s.Get(ctx, "e", field(1), 1); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Put(ctx, "e", field(1), 1, pin(1, 1), nil); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("put: %v", err)
	}
	if err := s.Publish(ctx, 1, []byte("{}")); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("publish: %v", err)
	}
	if err := s.Report(ctx, sticky.Replica{ID: "replica-a", Revision: 7}); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("report: %v", err)
	}
	if _, err := s.Lease(ctx, 0); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("lease: %v", err)
	}
	s.PutLater("e", field(1), 1, pin(3, 1))
	if p, found, err := s.Get(ctx, "e", field(1), 1); err != nil || !found || p != pin(3, 1) {
		t.Errorf("a queued pin is not remembered: %+v, %v, %v", p, found, err)
	}
	r.Restart()
	eventually(t, "up", isUp(s))
	eventually(t, "the queued pin in redis", func() bool {
		ok, err := client(t, r.URL).HExists(ctx, "sluice:pin:{e:1}", string(fieldBytes(1))).Result()
		return err == nil && ok
	})
	eventually(t, "the report", func() bool {
		list, err := s.Replicas(ctx)
		return err == nil && len(list) == 1 && list[0].Revision == 7
	})
	if l.count("is away") != 1 || l.count("refilling") != 1 || l.count("is up") != 1 || l.count("\n") != 3 {
		t.Errorf("want one line per change of state:\n%s", l.String())
	}
}

func fieldBytes(i int) []byte { f := field(i); return f[:] }

func TestCloseWhileRedisIsAway(t *testing.T) {
	r := testenv.Redis(t)
	s := open(t, sticky.Options{URL: r.URL})
	r.Kill()
	eventually(t, "down", func() bool { return s.Stats().State == sticky.Down })
	s.PutLater("e", field(1), 1, pin(1, 1))
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close did not report the lost pin")
	}
	if n := s.Stats().Counters[sticky.CountPinDropped]; n != 1 {
		t.Errorf("dropped %d, want 1", n)
	}
}

// TestFaultsUnderLoad breaks Redis in every way while requests read pins. A
// unit that this replica has served keeps its variant; one that it has not is
// never taken for absent; no read waits for Redis.
func TestFaultsUnderLoad(t *testing.T) {
	r := testenv.Redis(t)
	backup := &memBackup{}
	var l logs
	a := open(t, sticky.Options{URL: r.URL, ReplicaID: "a", Backup: backup, Log: l.logger()})
	b := open(t, sticky.Options{URL: r.URL, ReplicaID: "b", Backup: backup})
	const served, unknown = 500, 20_000 // unknown to a: written by b
	for i := range served {
		mustPut(t, a, "e", i, pin(uint8(i%5), 1), nil)
	}
	for i := served; i < served+unknown; i++ {
		b.PutLater("e", field(i), uint16(i), pin(uint8(i%5), 1))
	}
	eventually(t, "the copies", func() bool { return backup.len("e") == served+unknown })

	var stop atomic.Bool
	var next atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				i := n % served
				if n%2 == 1 {
					i = served + int(next.Add(1))%unknown
				}
				start := time.Now()
				p, found, err := a.Get(t.Context(), "e", field(i), uint16(i))
				d := time.Since(start)
				switch {
				case err != nil && i < served:
					t.Errorf("served unit %d: %v", i, err)
				case err != nil && !errors.Is(err, sticky.ErrDown):
					t.Errorf("unit %d: %v", i, err)
				case err == nil && !found:
					t.Errorf("unit %d counts as absent", i)
				case err == nil && p.Variant != uint8(i%5):
					t.Errorf("unit %d moved to %d", i, p.Variant)
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
				time.Sleep(200 * time.Microsecond) // leave the machine to others
			}
		})
	}
	phase := func(name string, f func()) {
		f()
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%-14s %6d reads: %s", name, len(took), quantiles(took))
		if worst := sorted(took)[len(took)-1]; worst > time.Second {
			t.Errorf("%s: a read waited %v", name, worst) // a hang, not a slow machine
		}
		took = took[:0]
	}
	down := func() { eventually(t, "down", func() bool { return a.Stats().State == sticky.Down }) }
	up := func() { eventually(t, "up", isUp(a)) }
	phase("healthy", func() { time.Sleep(300 * time.Millisecond) })
	phase("paused", func() { r.Pause(); down(); time.Sleep(300 * time.Millisecond) })
	phase("resumed", func() { r.Resume(); up(); time.Sleep(100 * time.Millisecond) })
	phase("killed", func() { r.Kill(); down(); time.Sleep(300 * time.Millisecond) })
	phase("restarted", func() { r.Restart(); up(); time.Sleep(200 * time.Millisecond) })
	for range 3 {
		phase("flushed", func() { r.FlushAll(); time.Sleep(300 * time.Millisecond); up() })
	}
	stop.Store(true)
	wg.Wait()
	if n := l.count("is away"); n < 2 {
		t.Errorf("%d lines for two outages:\n%s", n, l.String())
	}
	// At most away, refilling, refilled and up for each of start and six faults.
	if n := l.count("\n"); n > 4*7 {
		t.Errorf("%d log lines are a storm:\n%s", n, l.String())
	}
	t.Logf("counters %v", a.Stats().Counters)
}

// TestFlushWithoutBackup: pins that only the replicas remember are put back.
func TestFlushWithoutBackup(t *testing.T) {
	r := testenv.Redis(t)
	stores := openN(t, 2, sticky.Options{URL: r.URL})
	mustPut(t, stores[0], "e", 1, pin(4, 1), nil)
	r.FlushAll()
	eventually(t, "an answer", func() bool {
		p, found, err := stores[0].Get(t.Context(), "e", field(1), 1)
		if err == nil && (!found || p != pin(4, 1)) {
			t.Fatalf("after the flush: %+v, %v", p, found)
		}
		return stores[0].Up() && err == nil
	})
	eventually(t, "the pin at the other replica", func() bool {
		_, _, _ = stores[0].Get(t.Context(), "e", field(1), 1)
		p, found, err := stores[1].Get(t.Context(), "e", field(1), 1)
		return err == nil && found && p == pin(4, 1)
	})
}

// TestRefillWaitsForTheDatabase: with both stores away nothing counts as
// absent, and it comes right when the database is back.
func TestRefillWaitsForTheDatabase(t *testing.T) {
	r := testenv.Redis(t)
	backup := &memBackup{}
	stores := openN(t, 2, sticky.Options{URL: r.URL, Backup: backup})
	mustPut(t, stores[0], "e", 1, pin(4, 1), nil)
	eventually(t, "the copy", func() bool { return backup.len("e") == 1 })
	backup.setFail(errors.New("database is away"))
	r.FlushAll()
	eventually(t, "refilling", func() bool { return stores[1].Stats().State == sticky.Refilling })
	for range 100 {
		if p, found, err := stores[1].Get(t.Context(), "e", field(1), 1); !errors.Is(err, sticky.ErrDown) {
			t.Fatalf("%+v, %v, %v", p, found, err)
		}
	}
	if err := stores[1].Kill(t.Context(), sticky.KillEntry{Experiment: "e", Variant: "*"}); err != nil {
		t.Errorf("a kill needs neither pins nor database: %v", err)
	}
	backup.setFail(nil)
	eventually(t, "up", isUp(stores[1]))
	if p, found := mustGet(t, stores[1], "e", 1); !found || p != pin(4, 1) {
		t.Errorf("%+v, %v", p, found)
	}
}

func TestKillsSurviveAFlush(t *testing.T) {
	r := testenv.Redis(t)
	stores := openN(t, 2, sticky.Options{URL: r.URL})
	k := sticky.KillEntry{Experiment: "e", Generation: 1, Variant: "v", Time: time.Unix(1, 0).UTC()}
	if err := stores[0].Kill(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var told, lifted atomic.Bool
	wg.Go(func() {
		_ = stores[1].WatchKills(ctx, func(l []sticky.KillEntry) {
			if len(l) > 0 {
				told.Store(true)
			} else if told.Load() {
				lifted.Store(true)
			}
		})
	})
	eventually(t, "told", told.Load)
	c := client(t, r.URL)
	for i := range 5 {
		r.FlushAll()
		// Another kill makes everybody read the emptied set at once.
		if err := stores[0].Kill(t.Context(), sticky.KillEntry{Experiment: "other", Generation: i, Variant: "v"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the kill in redis again", func() bool { n, _ := c.HLen(t.Context(), "sluice:{x}:kills").Result(); return int(n) == i+2 })
	}
	if lifted.Load() {
		t.Error("a replica was told that the kill is gone")
	}
}

func TestWatchState(t *testing.T) {
	r := testenv.Redis(t)
	s := open(t, sticky.Options{URL: r.URL})
	told := make(chan sticky.State, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.WatchState(ctx, func(st sticky.State) { told <- st }) })
	defer wg.Wait()
	defer cancel()
	await := func(want sticky.State) {
		t.Helper()
		for {
			select {
			case got := <-told:
				if got == want {
					return
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("not told %v", want)
			}
		}
	}
	await(sticky.Up)
	r.Kill()
	await(sticky.Down)
	r.Restart()
	await(sticky.Up)
	r.FlushAll()
	await(sticky.Up) // again: whoever publishes must publish again
}

// TestNeverBackwards: whatever is published in which order, whatever is lost,
// a follower sees rising revisions and in the end the highest.
func TestNeverBackwards(t *testing.T) {
	r := testenv.Redis(t)
	stores := openN(t, 2, sticky.Options{URL: r.URL})
	admin := client(t, r.URL)
	base := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var last [2]atomic.Int64
		for i, s := range stores {
			after := base
			wg.Go(func() {
				_ = s.Follow(ctx, after, func(rev int64) {
					if old := last[i].Swap(rev); rev <= old || rev <= after {
						t.Errorf("replica %d went from %d to %d", i, max(old, after), rev)
					}
				})
			})
		}
		highest, stored := base, int64(-1) // stored: in redis now; -1 unknown
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			s := stores[rapid.IntRange(0, 1).Draw(rt, "replica")]
			switch rapid.SampledFrom([]string{"publish", "publish", "publish", "flush", "cut", "wait"}).Draw(rt, "action") {
			case "publish":
				rev := base + int64(rapid.IntRange(1, 40).Draw(rt, "revision"))
				err := s.Publish(ctx, rev, []byte("{}"))
				if err == nil && rev <= stored {
					rt.Fatalf("revision %d was accepted over %d", rev, stored)
				}
				if err == nil {
					stored, highest = rev, max(highest, rev)
				}
			case "flush":
				r.FlushAll()
				stored = -1
			case "cut":
				_ = admin.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err()
			case "wait":
				time.Sleep(time.Duration(rapid.IntRange(0, 3).Draw(rt, "ms")) * time.Millisecond)
			}
		}
		final := base + 50
		eventually(t, "the last publish", func() bool {
			err := stores[0].Publish(ctx, final, []byte("{}"))
			return err == nil || errors.Is(err, sticky.ErrStale)
		})
		eventually(t, "the last revision at both", func() bool { return last[0].Load() == final && last[1].Load() == final })
		base = final
	})
}

// TestSlowRedis: a Redis with 300 ms latency must not slow requests down.
func TestSlowRedis(t *testing.T) {
	r := testenv.Redis(t)
	p := testenv.NewProxy(t, r.Addr)
	s := open(t, sticky.Options{URL: "redis://" + p.Addr})
	mustPut(t, s, "e", 1, pin(1, 1), nil)
	p.Delay(300 * time.Millisecond)
	var took []time.Duration
	for range 300 {
		start := time.Now()
		got, found, err := s.Get(t.Context(), "e", field(1), 1)
		took = append(took, time.Since(start))
		if err != nil || !found || got != pin(1, 1) {
			t.Fatalf("%+v, %v, %v", got, found, err)
		}
		time.Sleep(3 * time.Millisecond)
	}
	t.Logf("reads at 300 ms latency: %s; counters %v", quantiles(took), s.Stats().Counters)
	if n := s.Stats().Counters[sticky.CountPinTimeout]; n > 100 {
		t.Errorf("%d of 300 reads waited their whole budget: the breaker does not hold", n)
	}
	p.Delay(0)
	eventually(t, "up again", isUp(s))
}
