package upstream

import (
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
)

// fleet is an upstream of n ready endpoints without servers.
func fleet(n int, c Config) *Upstream {
	list := make([]*endpoint, n)
	u := &Upstream{cfg: c, roster: newRoster(nil), caps: &capabilities{}}
	u.roster.list.Store(&list)
	for i := range list {
		list[i] = &endpoint{upstream: "a"}
		list[i].guard = guard.New(list[i].breaker)
		list[i].ready.Store(true)
		list[i].set.Store(&settings{roster: u.roster, slowStart: c.SlowStart})
	}
	return u
}

// drain sets an endpoint's drain without a pool.
func (e *endpoint) drain(on bool) {
	s := *e.set.Load()
	s.drained = on
	e.adopt(&s, time.Now())
}

// spread counts n picks by the endpoints' places.
func spread(u *Upstream, n int, q ask) []int {
	got := make([]int, len(u.endpoints()))
	for range n {
		e := u.pick(q)
		for i, o := range u.endpoints() {
			if o == e {
				got[i]++
			}
		}
	}
	return got
}

func sum(n []int) (s int) {
	for _, v := range n {
		s += v
	}
	return s
}

// With everything down, endpoints that were ready once are tried, those that
// never were are not.
func TestPanicMode(t *testing.T) {
	once, never := okPeer(t), okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{once.url(), never.url()}})
	for i, e := range ups["a"].endpoints() {
		e.ready.Store(false)
		e.panic.Store(i == 0)
	}
	for range 20 {
		if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success || res.Endpoint != once.url() {
			t.Fatalf("%s at %s", res.Outcome, res.Endpoint)
		}
	}
	if never.calls.Load() != 0 {
		t.Error("an endpoint that never was ready got traffic")
	}
}

func TestLeastOutstanding(t *testing.T) {
	u := fleet(4, Config{Balance: balanceLeast})
	// A busy endpoint gets nothing as long as the others are idle, except when
	// it is compared with itself, which never happens.
	u.endpoints()[2].inflight.Store(100)
	got := spread(u, 4000, ask{})
	if got[2] != 0 || sum(got) != 4000 {
		t.Errorf("a busy endpoint was picked: %v", got)
	}
	for i, n := range got {
		if i != 2 && (n < 1000 || n > 1700) {
			t.Errorf("uneven: %v", got)
		}
	}
	tried := ask{tried: u.endpoints()[:3]}
	if got := spread(u, 20, tried); got[3] != 20 {
		t.Errorf("a tried endpoint was picked while another is there: %v", got)
	}
	tried.tried = u.endpoints()
	if u.another(tried) || u.pick(tried) == nil {
		t.Error("when all are tried one is picked again, but none is another")
	}
}

func TestRoundRobin(t *testing.T) {
	u := fleet(4, Config{Balance: balanceRound})
	for i, n := range spread(u, 40, ask{}) {
		if n != 10 {
			t.Errorf("endpoint %d: %d of 40", i, n)
		}
	}
	u.endpoints()[1].drain(true)
	if got := spread(u, 30, ask{}); got[0] != 10 || got[1] != 0 || got[2] != 10 || got[3] != 10 {
		t.Errorf("with one drained: %v", got)
	}
	for _, e := range u.endpoints() {
		e.ready.Store(false)
	}
	if u.pick(ask{}) != nil {
		t.Error("an endpoint that is not ready was picked")
	}
}

// More endpoints than one pick compares still all get their share.
func TestManyEndpoints(t *testing.T) {
	for _, policy := range []string{balanceLeast, balanceRound} {
		u := fleet(100, Config{Balance: policy})
		u.endpoints()[7].ready.Store(false)
		got := spread(u, 20_000, ask{})
		for i, n := range got {
			if i == 7 && n != 0 || i != 7 && (n < 100 || n > 320) {
				t.Errorf("%s: endpoint %d was picked %d times of 20000", policy, i, n)
			}
		}
	}
}

// A recovered endpoint's share grows from a tenth to all of it.
func TestSlowStart(t *testing.T) {
	for _, policy := range []string{balanceLeast, balanceRound} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := fleet(2, Config{Balance: policy, SlowStart: 10 * time.Second})
				e := u.endpoints()[1]
				e.rampUp(time.Now())
				for _, want := range []float64{0.1, 0.55, 1, 1} {
					if w := e.status().Weight; math.Abs(w-want) > 0.001 {
						t.Errorf("weight %v, want %v", w, want)
					}
					got := float64(spread(u, 10_000, ask{})[1]) / 10_000
					if share := want / (1 + want); math.Abs(got-share) > 0.03 {
						t.Errorf("%v of the calls at weight %v, want %v", got, want, share)
					}
					time.Sleep(5 * time.Second)
				}
				if e.ramp.Load() != 0 {
					t.Error("a full-grown endpoint is still weighed")
				}
				// In proportion under load too: a tenth of the others' calls in flight.
				e.rampUp(time.Now())
				u.endpoints()[0].inflight.Store(100)
				if e.inflight.Store(9); policy == balanceLeast && u.pick(ask{}) != e {
					t.Error("9 in flight at weight 0.1 is less than 100 at 1")
				}
				if e.inflight.Store(11); policy == balanceLeast && u.pick(ask{}) == e {
					t.Error("11 in flight at weight 0.1 is more than 100 at 1")
				}
			})
		})
	}
}

// When a share grows slowly, and when there is no reason for it to.
func TestSlowStartWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := fleet(3, Config{SlowStart: 10 * time.Second})
		a, b, c := u.endpoints()[0], u.endpoints()[1], u.endpoints()[2]
		enter := func(what string, e *endpoint, weight float64) {
			t.Helper()
			e.enter(time.Now())
			e.ready.Store(true)
			if w := e.status().Weight; math.Abs(w-weight) > 0.001 {
				t.Errorf("%s: weight %v, want %v", what, w, weight)
			}
		}
		for _, e := range u.endpoints() {
			e.ready.Store(false)
		}
		enter("the first of all", a, 1)
		time.Sleep(time.Second)
		enter("as new as the others", b, 1)
		time.Sleep(9 * time.Second)
		enter("new beside one that has served for a while", c, 0.1)
		time.Sleep(20 * time.Second)
		a.ready.Store(false)
		enter("back among others", a, 0.1)
		for _, e := range u.endpoints() {
			e.ready.Store(false)
		}
		enter("back as the only one", a, 1)
		b.drain(true)
		b.ready.Store(true)
		b.drain(false)
		if w := b.status().Weight; w != 0.1 {
			t.Errorf("enabled after a drain: weight %v", w)
		}
		u = fleet(2, Config{})
		u.endpoints()[1].debut.Store(1)
		e := u.endpoints()[1]
		enter("switched off", e, 1)
	})
}

// A breaker that closes gives the share back slowly, among others.
func TestSlowStartAfterBreaker(t *testing.T) {
	for n, want := range map[int]float64{1: 1, 2: 0.1} {
		synctest.Test(t, func(t *testing.T) {
			u := fleet(n, Config{SlowStart: 10 * time.Second})
			e := u.endpoints()[0]
			end := func(times int, r guard.Result) {
				for range times {
					turn, ok := e.guard.Begin(time.Now())
					if !ok {
						t.Fatal("the breaker has no turn")
					}
					turn.End(r)
				}
			}
			end(5, guard.Failure)
			if e.guard.Available(time.Now()) || e.status().Breaker != guard.Open {
				t.Fatalf("%+v", e.status())
			}
			time.Sleep(10 * time.Second)
			end(3, guard.Success)
			if s := e.status(); s.Breaker != guard.Closed || s.Weight != want {
				t.Errorf("of %d: breaker %s, weight %v", n, s.Breaker, s.Weight)
			}
		})
	}
}

// An endpoint that is drained gets no new calls, and those in flight end.
func TestDrain(t *testing.T) {
	goOn := make(chan struct{})
	up := newPeer(t, func(tn *turn) {
		if tn.n > 1 {
			tn.reply(200, "application/json", okBody)
			return
		}
		tn.head(200, "text/event-stream")
		tn.chunk(roleEvent + event("a", ""))
		<-goOn
		tn.chunk(event("b", "stop") + usageEvent + doneEvent)
		tn.finish()
	})
	other := okPeer(t)
	cfg := Config{Name: "a", Endpoints: []string{up.url(), other.url()}, Balance: balanceRound}
	p, ups := pool(t, cfg)
	started, ended := make(chan struct{}), make(chan Result)
	go func() {
		once := false
		ended <- p.Do(t.Context(), request(t, usageBody, to(ups["a"])), &recorder{onCommit: func() {
			if !once {
				once = true
				close(started)
			}
		}})
	}()
	<-started
	before := ups["a"]
	apply := func(drained ...string) *Upstream {
		t.Helper()
		cfg.Drained = drained
		ups, err := p.Apply([]Config{cfg})
		if err != nil {
			t.Fatal(err)
		}
		return ups["a"]
	}
	u := apply(up.url() + "/") // in another spelling
	s := u.Status()
	if s[0].State != stateDrained || !s[0].Drained || s[0].Ready || s[0].Reason == "" || s[0].InFlight != 1 || !s[1].Ready || s[1].Drained {
		t.Errorf("%+v", s)
	}
	for _, u := range []*Upstream{u, before} { // requests of an older table too
		for range 4 {
			if res, _ := do(t, p, request(t, chatBody, to(u))); res.Endpoint != other.url() {
				t.Errorf("%s at %s", res.Outcome, res.Endpoint)
			}
		}
	}
	close(goOn)
	if res := <-ended; res.Outcome != Success || res.Endpoint != up.url() {
		t.Errorf("the call in flight: %s", res.Outcome)
	}
	u = apply("*")
	if res, _ := do(t, p, request(t, chatBody, to(u))); res.Outcome != NoEndpoint || res.Failure.Code != "no_ready_endpoint" || u.Ready() {
		t.Errorf("all drained: %s", res.Outcome)
	}
	for _, e := range u.endpoints() { // nor in panic
		e.ready.Store(false)
		e.panic.Store(true)
	}
	if u.pick(ask{}) != nil {
		t.Error("a drained endpoint was picked in panic")
	}
	for _, e := range u.endpoints() {
		e.ready.Store(true)
	}
	u = apply()
	if s := u.Status()[0]; !s.Ready || s.State != stateReady || s.Drained || s.Weight != 1 {
		t.Errorf("enabled: %+v", s)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, policy := range []string{balanceLeast, balanceRound, balanceLoad, balancePref} {
		for _, n := range []int{3, 32, 200} {
			b.Run(policy+"/"+strconv.Itoa(n), func(b *testing.B) {
				u := fleet(n, Config{Balance: policy})
				for i, e := range u.endpoints() {
					e.id = uint64(i)
					set := *e.set.Load()
					set.pollEvery = time.Hour
					e.set.Store(&set)
					e.polled.Store(&polled{Load: Load{Running: i, At: time.Now()}})
				}
				q := ask{key: 1, keyed: policy == balancePref, model: "m"}
				b.ReportAllocs()
				for b.Loop() {
					if q.key++; u.pick(q) == nil {
						b.Fatal("none")
					}
				}
			})
		}
	}
}
