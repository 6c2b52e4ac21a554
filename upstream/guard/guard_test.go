package guard

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// call makes one call that comes to r.
func call(g *Guard, r Result) bool {
	t, ok := g.Begin(time.Now())
	if ok {
		t.End(r)
	}
	return ok
}

func calls(g *Guard, n int, r Result) {
	for range n {
		call(g, r)
	}
}

func TestOpens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(*Guard)
		want string
	}{
		"five in a row":         {func(g *Guard) { calls(g, 5, Failure) }, Open},
		"four in a row":         {func(g *Guard) { calls(g, 4, Failure) }, Closed},
		"a success between":     {func(g *Guard) { calls(g, 4, Failure); call(g, Success); calls(g, 4, Failure) }, Closed},
		"neutral between":       {func(g *Guard) { calls(g, 4, Failure); calls(g, 9, Neutral); call(g, Failure) }, Open},
		"half of twenty":        {func(g *Guard) { alternate(g, 10, 0) }, Open},
		"half of eighteen":      {func(g *Guard) { alternate(g, 9, 0) }, Closed},
		"a third of many":       {func(g *Guard) { calls(g, 100, Success); alternate(g, 30, 0) }, Closed},
		"half, but slowly":      {func(g *Guard) { alternate(g, 60, 2*time.Second) }, Closed},
		"five in an hour":       {func(g *Guard) { slowly(g, 5, 10*time.Minute) }, Open},
		"five that hung":        {func(g *Guard) { hanging(g, 5) }, Open},
		"only neutral":          {func(g *Guard) { calls(g, 100, Neutral) }, Closed},
		"bad requests and then": {func(g *Guard) { calls(g, 20, Neutral); call(g, Success) }, Closed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(nil)
				c.do(g)
				if got := g.State(time.Now()).Breaker; got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				if g.Available(time.Now()) != (c.want == Closed) {
					t.Errorf("available contradicts %s", c.want)
				}
			})
		})
	}
}

func slowly(g *Guard, n int, gap time.Duration) {
	for range n {
		time.Sleep(gap)
		call(g, Failure)
	}
}

// hanging are calls that fail at once, but after minutes.
func hanging(g *Guard, n int) {
	turns := make([]Turn, n)
	for i := range turns {
		turns[i], _ = g.Begin(time.Now())
	}
	time.Sleep(10 * time.Minute)
	for i := range turns {
		turns[i].End(Failure)
	}
}

func alternate(g *Guard, n int, gap time.Duration) {
	for range n {
		call(g, Success)
		call(g, Failure)
		time.Sleep(gap)
	}
}

// TestOldCallsDoNotReopen: what began before the breaker opened says nothing
// about the server since.
func TestOldCallsDoNotReopen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(nil)
		old, _ := g.Begin(time.Now())
		calls(g, 5, Failure)
		time.Sleep(openTime + openJitter + time.Millisecond)
		probe, ok := g.Begin(time.Now())
		if !ok || !probe.Probe {
			t.Fatal("no probe")
		}
		old.End(Failure)
		probe.End(Success)
		calls(g, 2, Success)
		if s := g.State(time.Now()).Breaker; s != Closed {
			t.Errorf("is %s", s)
		}
	})
}

// opened returns a guard whose breaker has just opened, and its states since.
func opened() (*Guard, *[]string) {
	states := &[]string{}
	g := New(func(s string) { *states = append(*states, s) })
	calls(g, 5, Failure)
	return g, states
}

func TestReopensWithJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 20 {
			g, _ := opened()
			start := time.Now()
			if call(g, Success) || g.Available(time.Now()) {
				t.Fatal("an open breaker let a call through")
			}
			d := g.State(start).Until.Sub(start)
			if d < openTime || d > openTime+openJitter {
				t.Fatalf("opens for %v", d)
			}
			time.Sleep(d)
			if g.Available(time.Now()) {
				t.Fatal("available at the very end")
			}
			time.Sleep(time.Millisecond)
			if !g.Available(time.Now()) || !call(g, Success) {
				t.Fatal("no probe after the time")
			}
			seen[d] = true
		}
		if len(seen) < 10 {
			t.Errorf("20 openings lasted %d different times", len(seen))
		}
	})
}

func TestHalfOpen(t *testing.T) {
	t.Parallel()
	later := openTime + openJitter + time.Millisecond
	run := func(name string, f func(t *testing.T, g *Guard, states *[]string)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, states := opened()
				time.Sleep(later)
				f(t, g, states)
			})
		})
	}
	run("at most three probes of a hundred", func(t *testing.T, g *Guard, _ *[]string) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		got := 0
		for range 100 {
			wg.Go(func() {
				if turn, ok := g.Begin(time.Now()); ok {
					mu.Lock()
					got++
					mu.Unlock()
					time.Sleep(time.Second)
					turn.End(Neutral)
				}
			})
		}
		wg.Wait()
		if got != probes {
			t.Errorf("%d probes", got)
		}
		if !g.Available(time.Now()) {
			t.Error("neutral probes keep their places")
		}
	})
	run("closes after three successes", func(t *testing.T, g *Guard, states *[]string) {
		calls(g, 3, Success)
		if got := *states; len(got) != 3 || got[0] != Open || got[1] != HalfOpen || got[2] != Closed {
			t.Errorf("went through %v", got)
		}
		calls(g, 4, Failure)
		if !g.Available(time.Now()) {
			t.Error("what failed before counts again")
		}
	})
	run("one failure reopens", func(t *testing.T, g *Guard, _ *[]string) {
		calls(g, 2, Success)
		call(g, Failure)
		if g.Available(time.Now()) || g.State(time.Now()).Breaker != Open {
			t.Error("still open for calls")
		}
	})
	run("a refused request, a cancel, then a probe", func(t *testing.T, g *Guard, _ *[]string) {
		calls(g, 50, Neutral)
		if !call(g, Success) {
			t.Error("no place after neutral probes")
		}
	})
	run("a stream holds no place once it answers", func(t *testing.T, g *Guard, _ *[]string) {
		var turns [3]Turn
		for i := range turns {
			turns[i], _ = g.Begin(time.Now())
			turns[i].Answered()
			turns[i].Answered()
		}
		if s := g.State(time.Now()).Breaker; s != Closed {
			t.Fatalf("is %s while three streams run", s)
		}
		for i := range turns {
			turns[i].End(Failure) // cut in the middle: failures of their own
			turns[i].End(Failure)
		}
		calls(g, 2, Failure)
		if s := g.State(time.Now()).Breaker; s != Open {
			t.Errorf("is %s after five failures in a row", s)
		}
	})
}

func TestCoolDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(nil)
		g.CoolDown(time.Now(), 3*time.Second)
		g.CoolDown(time.Now(), time.Second) // the longest counts
		if g.Available(time.Now()) || !g.Passes(time.Now()) {
			t.Error("cooling is not told apart from the breaker")
		}
		if got := time.Until(g.State(time.Now()).CoolUntil); got != 3*time.Second {
			t.Errorf("for %v", got)
		}
		time.Sleep(3 * time.Second)
		if !g.Available(time.Now()) || !g.State(time.Now()).CoolUntil.IsZero() {
			t.Error("does not end")
		}
		g.CoolDown(time.Now(), 24*time.Hour)
		if got := time.Until(g.State(time.Now()).CoolUntil); got != MaxCoolDown {
			t.Errorf("a day became %v", got)
		}
	})
}

func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		retries := func(requests int) (n int) {
			for range requests {
				b.Request(time.Now())
				for b.Retry(time.Now()) {
					n++
				}
			}
			return n
		}
		if got := retries(1); got != retryFloor {
			t.Errorf("one request may be followed by %d retries", got)
		}
		time.Sleep(seconds * time.Second)
		if got := retries(1000); got != 200 {
			t.Errorf("1,000 requests at once: %d retries", got)
		}
		time.Sleep(time.Hour)
		got := 0
		for range 1000 { // 100 a second
			got += retries(1)
			time.Sleep(10 * time.Millisecond)
		}
		if got > 210 || got < 190 {
			t.Errorf("100 a second for 10 s: %d retries", got)
		}
	})
}

func BenchmarkGuard(b *testing.B) {
	g := New(nil)
	b.Run("available", func(b *testing.B) {
		now := time.Now()
		for b.Loop() {
			g.Available(now)
		}
	})
	b.Run("turn", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t, _ := g.Begin(time.Now())
			t.End(Success)
		}
	})
	b.Run("budget", func(b *testing.B) {
		var u Budget
		for b.Loop() {
			u.Request(time.Now())
		}
	})
}
