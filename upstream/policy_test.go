package upstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/fakellm"
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
	var list []*fakellm.Server
	c := Config{Name: "a", Balance: balancePref}
	for range 3 {
		s, err := fakellm.Start(fakellm.Options{Default: fakellm.Behaviour{Tokens: 1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		list = append(list, s)
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
		if got := s.read(time.Now()); got != (Speed{50 * time.Millisecond, 95 * time.Millisecond, 100}) {
			t.Errorf("got %+v", got)
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
