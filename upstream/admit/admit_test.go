package admit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func gate(inFlight, queue int, timeout time.Duration) *Gate {
	g := &Gate{}
	g.Set(Limits{MaxInFlight: inFlight, MaxQueue: queue, Timeout: timeout})
	return g
}

func must(t *testing.T, g *Gate, want Stats) {
	t.Helper()
	if got := g.Stats(); got != want {
		t.Errorf("the gate is %+v, want %+v", got, want)
	}
}

func TestNoLimitCounts(t *testing.T) {
	t.Parallel()
	var g Gate
	for range 3 {
		if waited, err := g.Acquire(t.Context(), Ticket{}); waited || err != nil {
			t.Fatal(waited, err)
		}
	}
	must(t, &g, Stats{InFlight: 3})
	for range 3 {
		g.Release()
	}
	must(t, &g, Stats{})
}

// line lets tickets queue one after the other and tells in which order they got in.
func line(t *testing.T, g *Gate, tickets []Ticket) []string {
	t.Helper()
	if _, err := g.Acquire(t.Context(), Ticket{}); err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		order []string
		wg    sync.WaitGroup
	)
	for i, tk := range tickets {
		wg.Go(func() {
			_, err := g.Acquire(t.Context(), tk)
			mu.Lock()
			defer mu.Unlock()
			name := fmt.Sprintf("%s%d", tk.Key, i)
			if err != nil {
				order = append(order, name+" "+err.Error())
				return
			}
			order = append(order, name)
			time.Sleep(time.Second)
			g.Release()
		})
		synctest.Wait()
	}
	g.Release()
	wg.Wait()
	must(t, g, Stats{})
	return order
}

func TestOrder(t *testing.T) {
	t.Parallel()
	full := " " + ErrFull.Error()
	for name, c := range map[string]struct {
		queue   int
		tickets []Ticket
		want    []string
	}{
		"first come":             {9, []Ticket{{"a", 0}, {"a", 0}, {"a", 0}}, []string{"a0", "a1", "a2"}},
		"priority":               {9, []Ticket{{"c", 5}, {"c", 5}, {"b", 10}, {"c", 7}}, []string{"b2", "c3", "c0", "c1"}},
		"a turn for each key":    {9, []Ticket{{"a", 0}, {"a", 0}, {"a", 0}, {"b", 0}, {"c", 0}, {"b", 0}}, []string{"a0", "b3", "c4", "a1", "b5", "a2"}},
		"full":                   {2, []Ticket{{"a", 0}, {"a", 0}, {"a", 0}}, []string{"a2" + full, "a0", "a1"}},
		"full, equal keys":       {2, []Ticket{{"a", 0}, {"b", 0}, {"c", 0}}, []string{"c2" + full, "a0", "b1"}},
		"full by one key":        {3, []Ticket{{"a", 0}, {"a", 0}, {"a", 0}, {"b", 0}}, []string{"a2" + full, "a0", "b3", "a1"}},
		"full, higher comes":     {2, []Ticket{{"c", 5}, {"c", 5}, {"b", 10}}, []string{"c1" + full, "b2", "c0"}},
		"full, lower comes":      {2, []Ticket{{"b", 10}, {"b", 10}, {"c", 5}}, []string{"c2" + full, "b0", "b1"}},
		"nobody may wait":        {0, []Ticket{{"a", 9}}, []string{"a0" + full}},
		"full, one less is even": {3, []Ticket{{"a", 0}, {"a", 0}, {"b", 0}, {"b", 0}}, []string{"b3" + full, "a0", "b2", "a1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := line(t, gate(1, c.queue, 0), c.tickets)
				if fmt.Sprint(got) != fmt.Sprint(c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate(1, 1, 3*time.Second)
		g.Acquire(t.Context(), Ticket{})
		start := time.Now()
		waited, err := g.Acquire(t.Context(), Ticket{})
		if took := time.Since(start); !waited || err != ErrTimeout || took != 3*time.Second {
			t.Errorf("%v %v after %v", waited, err, took)
		}
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		if _, err = g.Acquire(ctx, Ticket{}); err != gone {
			t.Errorf("got %v, want the cause", err)
		}
		must(t, g, Stats{InFlight: 1})
		// The place that it left is free for another.
		time.AfterFunc(time.Second, g.Release)
		if waited, err = g.Acquire(t.Context(), Ticket{}); !waited || err != nil {
			t.Errorf("%v %v", waited, err)
		}
		g.Release()
		must(t, g, Stats{})
	})
}

func TestSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate(2, 10, 0)
		var in atomic.Int64
		for range 6 {
			go func() {
				if _, err := g.Acquire(t.Context(), Ticket{}); err == nil {
					in.Add(1)
				}
			}()
		}
		synctest.Wait()
		must(t, g, Stats{2, 4})
		g.Set(Limits{MaxInFlight: 1, MaxQueue: 10})
		g.Release()
		synctest.Wait()
		must(t, g, Stats{1, 4}) // above the new limit nobody follows
		g.Set(Limits{MaxInFlight: 3, MaxQueue: 10})
		synctest.Wait()
		must(t, g, Stats{3, 2})
		g.Set(Limits{})
		synctest.Wait()
		must(t, g, Stats{5, 0})
		if in.Load() != 6 {
			t.Errorf("%d got in, want all 6", in.Load())
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate(1, 100, 0)
		if d := g.RetryAfter(time.Now()); d != time.Second {
			t.Errorf("without knowledge %v", d)
		}
		for range 10 { // 5 a second
			g.Acquire(t.Context(), Ticket{})
			time.Sleep(200 * time.Millisecond)
			g.Release()
		}
		g.Acquire(t.Context(), Ticket{})
		for range 19 {
			go g.Acquire(t.Context(), Ticket{})
		}
		synctest.Wait()
		if d := g.RetryAfter(time.Now()); d != 4*time.Second {
			t.Errorf("20 places at 5 a second: %v", d)
		}
		g.Set(Limits{})
	})
}

// TestModel lets requests come, go and change their minds in random order, and
// compares with what must hold whatever the order.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := &Gate{}
		limit, room := rapid.IntRange(1, 4).Draw(t, "limit"), rapid.IntRange(0, 6).Draw(t, "room")
		g.Set(Limits{MaxInFlight: limit, MaxQueue: room})
		held := 0
		var queued []*waiter
		settle := func() {
			live := queued[:0]
			for _, w := range queued {
				select {
				case <-w.done:
					if w.err == nil {
						held++
					}
				default:
					live = append(live, w)
				}
			}
			queued = live
		}
		t.Repeat(map[string]func(*rapid.T){
			"come": func(t *rapid.T) {
				tk := Ticket{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), rapid.IntRange(0, 2).Draw(t, "priority")}
				if g.TryAcquire() {
					held++
					return
				}
				g.mu.Lock()
				w, err := g.wait(tk)
				g.mu.Unlock()
				switch {
				case w != nil:
					queued = append(queued, w)
				case err == nil:
					held++
				case len(queued) < room:
					t.Fatalf("refused with %d of %d waiting", len(queued), room)
				}
				settle()
			},
			"go": func(t *rapid.T) {
				if held == 0 {
					t.Skip()
				}
				held--
				g.Release()
				settle()
			},
			"leave": func(t *rapid.T) {
				if len(queued) == 0 {
					t.Skip()
				}
				if !g.leave(queued[rapid.IntRange(0, len(queued)-1).Draw(t, "who")]) {
					t.Fatal("a waiter is not in the queue")
				}
				live := queued[:0]
				for _, w := range queued {
					if w.key != nil {
						live = append(live, w)
					}
				}
				queued = live
			},
			"": func(t *rapid.T) {
				if got, want := g.Stats(), (Stats{held, len(queued)}); got != want {
					t.Fatalf("got %+v, want %+v", got, want)
				}
				if held > limit || len(queued) > room || held < limit && len(queued) > 0 {
					t.Fatalf("%d of %d in, %d of %d wait", held, limit, len(queued), room)
				}
			},
		})
	})
}

// TestRace has many come, leave and be refused at once; every place comes back.
func TestRace(t *testing.T) {
	t.Parallel()
	g := gate(8, 16, 2*time.Millisecond)
	var in, most, got atomic.Int64
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(3000))*time.Microsecond)
				if _, err := g.Acquire(ctx, Ticket{fmt.Sprint(r.IntN(5)), r.IntN(3)}); err == nil {
					got.Add(1)
					n := in.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
					in.Add(-1)
					g.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	must(t, g, Stats{})
	if most.Load() > 8 || got.Load() == 0 {
		t.Errorf("%d at once of 8, %d got in", most.Load(), got.Load())
	}
	if len(g.queue.levels) != 0 {
		t.Errorf("%d levels are left of an empty queue", len(g.queue.levels))
	}
}

func BenchmarkGate(b *testing.B) {
	for name, g := range map[string]*Gate{"no limit": {}, "below the limit": gate(1<<20, 10, 0)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g.Acquire(context.Background(), Ticket{"key", 10})
				g.Release()
			}
		})
	}
	b.Run("full", func(b *testing.B) {
		g := gate(1, 1000, 0)
		g.Acquire(context.Background(), Ticket{})
		for i := range 1000 {
			g.mu.Lock()
			g.wait(Ticket{fmt.Sprint(i % 100), 10})
			g.mu.Unlock()
		}
		b.ReportAllocs()
		for b.Loop() {
			g.Acquire(context.Background(), Ticket{"1", 10})
		}
	})
}
