package upstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/fakellm"
	"sluice/upstream/wire"
)

func turnsOf(n, turns int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"conversation %d"}`, n)
	for i := range turns {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"a"},{"role":"user","content":"turn %d"}`, i)
	}
	return b.String() + "]}"
}

// TestPrefixKeepsConversations: all turns of a conversation go to one endpoint,
// conversations spread, and one that goes away moves its own only.
func TestPrefixKeepsConversations(t *testing.T) {
	t.Parallel()
	c := Config{Name: "a", Balance: balancePref}
	for range 3 {
		s, err := fakellm.Start(fakellm.Options{Default: fakellm.Behaviour{Tokens: 1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		c.Endpoints = append(c.Endpoints, s.URL())
	}
	p, ups := pool(t, c)
	home := func(n, turns int) string {
		res, _ := do(t, p, request(t, turnsOf(n, turns), to(ups["a"])))
		if res.Outcome != Success {
			t.Fatalf("%+v", res)
		}
		return res.Endpoint
	}
	was, share := map[int]string{}, map[string]int{}
	for n := range 60 {
		was[n] = home(n, 0)
		share[was[n]]++
		for turns := 1; turns < 4; turns++ {
			if now := home(n, turns); now != was[n] {
				t.Fatalf("conversation %d moved from %s to %s", n, was[n], now)
			}
		}
	}
	if len(share) != 3 {
		t.Errorf("spread %v", share)
	}
	c.Drained = []string{c.Endpoints[0]}
	ups2, err := p.Apply([]Config{c})
	if err != nil {
		t.Fatal(err)
	}
	ups = ups2
	for n := range 60 {
		if now := home(n, 4); now == c.Endpoints[0] || was[n] != c.Endpoints[0] && now != was[n] {
			t.Errorf("conversation %d: %s, then %s", n, was[n], now)
		}
	}
}

// TestCacheAffinity measures on servers with prefix caches how much of the
// prompts they had cached: conversations of six turns, in turn, over four
// servers that each hold about a third of all.
func TestCacheAffinity(t *testing.T) {
	t.Parallel()
	const servers, conversations, turns = 4, 80, 6
	run := func(policy string) (cached float64, calls []int64) {
		var list []*fakellm.Server
		c := Config{Name: "a", Balance: policy}
		for range servers {
			s, err := fakellm.Start(fakellm.Options{Default: fakellm.Behaviour{Tokens: 1}, PrefixCache: conversations * (2*turns + 1) / 3})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			list = append(list, s)
			c.Endpoints = append(c.Endpoints, s.URL())
		}
		p, ups := pool(t, c)
		for turn := range turns {
			for n := range conversations {
				if res, _ := do(t, p, request(t, turnsOf(n, turn), to(ups["a"]))); res.Outcome != Success {
					t.Fatal(res.Outcome)
				}
			}
		}
		var words, had int64
		for _, s := range list {
			n := s.Counts()
			words, had, calls = words+n.PromptWords, had+n.CachedWords, append(calls, n.Calls)
		}
		return float64(had) / float64(words), calls
	}
	prefix, spread := run(balancePref)
	random, _ := run(balanceLeast)
	t.Logf("cached: %.0f %% of the prompts by prefix (calls %v), %.0f %% by least outstanding", 100*prefix, spread, 100*random)
	if prefix < 0.6 || prefix < 1.5*random {
		t.Errorf("%.2f by prefix, %.2f by least outstanding", prefix, random)
	}
}

// TestPrefixBound: one conversation that everybody has does not end on one
// server; the next in its order helps, and only as long as it is needed.
func TestPrefixBound(t *testing.T) {
	u := fleet(4, Config{Balance: balancePref})
	for i, e := range u.endpoints() {
		e.id = uint64(i)
	}
	q := ask{key: 42, keyed: true}
	home := u.pick(q)
	counts := map[*endpoint]int64{}
	for range 100 {
		e := u.pick(q)
		e.inflight.Add(1)
		counts[e]++
	}
	for _, e := range u.endpoints() {
		if n := counts[e]; n > 33 {
			t.Errorf("%d of 100 in flight on one of four", n)
		}
		e.inflight.Store(0)
	}
	if u.pick(q) != home {
		t.Error("it does not come back home")
	}
	q.tried = []*endpoint{home}
	next := u.pick(q)
	if next == home || u.pick(q) != next {
		t.Error("a retry goes anywhere")
	}
}

// TestPrefixOfMany: conversations stay also where one pick of the other policies
// would look at a random stretch.
func TestPrefixOfMany(t *testing.T) {
	for _, n := range []int{100, 400} {
		u := fleet(n, Config{Balance: balancePref})
		for i, e := range u.endpoints() {
			e.id = uint64(i)
		}
		seen := map[*endpoint]bool{}
		for key := range uint64(2000) {
			q := ask{key: key * 0x9e3779b97f4a7c15, keyed: true}
			e := u.pick(q)
			if seen[e] = true; u.pick(q) != e {
				t.Fatalf("key %d moved", key)
			}
		}
		if len(seen) < n*9/10 {
			t.Errorf("%d of %d endpoints are home to anybody", len(seen), n)
		}
	}
}

func TestLoadPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		c := hosts("a", "a", "b")
		c.Balance = balanceLoad
		_, ups := poolWith(t, s.options(), c)
		u := ups["a"]
		a, b := u.endpoints()[0], u.endpoints()[1]
		count := func() (n int) {
			for range 200 {
				if u.pick(ask{}) == a {
					n++
				}
			}
			return n
		}
		say := func(e *endpoint, running, waiting int, kv float64, ago time.Duration) {
			e.polled.Store(&polled{Load: Load{Running: running, Waiting: waiting, KVUse: kv, At: time.Now().Add(-ago)}})
		}
		say(a, 10, 0, 0.1, 0)
		say(b, 2, 0, 0.1, 0)
		if n := count(); n != 0 {
			t.Errorf("the busy one got %d of 200", n)
		}
		say(b, 2, 9, 0.1, 0) // waiting counts more than running
		if n := count(); n != 200 {
			t.Errorf("the one without a queue got %d of 200", n)
		}
		say(a, 5, 0, 0.9, 0)
		say(b, 6, 0, 0.1, 0)
		if n := count(); n != 0 {
			t.Errorf("the one with a full cache got %d of 200", n)
		}
		a.inflight.Store(3) // since the poll
		say(a, 0, 0, -1, 0)
		say(b, 1, 0, -1, 0)
		if n := count(); n != 0 {
			t.Errorf("what was sent since the poll is forgotten: %d of 200", n)
		}
		say(a, 0, 0, -1, time.Minute) // too old: calls in flight must do
		say(b, 50, 0, -1, time.Minute)
		if n := count(); n != 0 {
			t.Errorf("old polls count: %d of 200", n)
		}
	})
}

func TestEnginesArePolled(t *testing.T) {
	t.Parallel()
	s, err := fakellm.Start(fakellm.Options{Dialect: "vllm"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	_, ups := pool(t, Config{Name: "a", Dialect: "vllm", Balance: balanceLoad, Endpoints: []string{s.URL()}, Readiness: Readiness{Interval: 20 * time.Millisecond}})
	waitFor(t, "a poll", func() bool { return ups["a"].Status()[0].Load != nil })
	if l := ups["a"].Status()[0].Load; l.Running != 0 || l.Waiting != 0 || l.At.IsZero() {
		t.Errorf("%+v", l)
	}
}

// TestHowOftenEnginesArePolled: with every check where it decides, slowly where
// people look, never where it would disturb.
func TestHowOftenEnginesArePolled(t *testing.T) {
	for _, tt := range []struct {
		dialect wire.Dialect
		policy  string
		least   int
		most    int
	}{
		{wire.VLLM, balanceLoad, 45, 60}, // of about 50 checks; the page that tells sleep is used too
		{wire.TGI, balanceLoad, 45, 60},
		{wire.TGI, balanceLeast, 8, 13},
		{wire.SGLang, balancePref, 8, 13},
		{wire.LlamaCPP, balanceLoad, 45, 60},
		{wire.LlamaCPP, balanceLeast, 0, 0},
		{wire.OpenAI, balanceLoad, 0, 0},
	} {
		t.Run(string(tt.dialect)+" "+tt.policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s script
				pages := map[string]string{"GET /health": "", "GET /metrics": "vllm:num_requests_running 3\ntgi_queue_size 2\nsglang:num_running_reqs 1\nllamacpp:requests_deferred 1\n" +
					`vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0` + "\n"}
				s.serve(pages)
				p, ups := poolWith(t, s.options(), Config{Name: "a", Dialect: tt.dialect, Balance: tt.policy, Endpoints: []string{"http://a"}})
				defer p.Close()
				time.Sleep(100 * time.Second)
				if n := s.count("GET a/metrics"); n < tt.least || n > tt.most {
					t.Errorf("%d polls in 100 s", n)
				}
				if got := ups["a"].Status()[0].Load != nil; got != (tt.most > 0) {
					t.Errorf("load known: %v", got)
				}
				if s.refuse(); tt.most > 0 {
					time.Sleep(20 * time.Second)
					if ups["a"].Status()[0].Load != nil {
						t.Error("the load of a server that is gone is told")
					}
				}
			})
		})
	}
}

func TestSpeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s speed
		if got := s.read(time.Now()); got != (Speed{}) {
			t.Errorf("of nothing %+v", got)
		}
		for i := range 100 {
			s.observe(time.Now(), time.Duration(i+1)*time.Millisecond, 60)
			time.Sleep(100 * time.Millisecond)
		}
		near := func(d, want time.Duration) bool { return d > want*9/10 && d < want*11/10 }
		if got := s.read(time.Now()); !near(got.TTFT50, 50*time.Millisecond) || !near(got.TTFT95, 95*time.Millisecond) || got.TokensPerSecond != 100 {
			t.Errorf("got %+v", got)
		}
		for range 3 { // slower since
			time.Sleep(15 * time.Second)
			s.observe(time.Now(), time.Second, 0)
		}
		if got := s.read(time.Now()); got.TTFT50 > 100*time.Millisecond || got.TokensPerSecond != 100 {
			t.Errorf("45 s later %+v", got)
		}
		time.Sleep(20 * time.Second)
		if got := s.read(time.Now()); !near(got.TTFT50, time.Second) || got.TokensPerSecond != 0 {
			t.Errorf("65 s later %+v", got)
		}
		time.Sleep(2 * time.Minute)
		if got := s.read(time.Now()); got != (Speed{}) {
			t.Errorf("two minutes later %+v", got)
		}
	})
}

// TestSpeedIsFed: an endpoint knows what its calls came to.
func TestSpeedIsFed(t *testing.T) {
	t.Parallel()
	up := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	do(t, p, request(t, streamBody, to(ups["a"])))
	do(t, p, request(t, chatBody, to(ups["a"])))
	if s := ups["a"].Status()[0].Speed; s.TTFT50 <= 0 || s.TTFT95 < s.TTFT50 || s.TokensPerSecond != 0.1 {
		t.Errorf("%+v", s)
	}
}
