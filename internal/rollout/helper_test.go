package rollout_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/control"
	"sluice/internal/rollout"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/router"
	"sluice/upstream"
)

// go-redis looks for a lost server from a goroutine that sleeps for a second at
// a time and notices a Close only then.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const key = "exp"

// document has a canary with a ramp whose times are short.
func document(t testing.TB, policy, guardrails string) *router.Document {
	t.Helper()
	d, err := router.ParseDocument(fmt.Appendf(nil, `{
  "upstreams": [{"name": "v1", "endpoints": ["http://127.0.0.1:1/v1"]}, {"name": "v2", "endpoints": ["http://127.0.0.1:1/v2"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "canary", "state": "draft", "baseline": "control",
    "unit": {"from": ["header:x-user-id"]}, "ramp": %s, "guardrails": %s,
    "variants": [{"name": "control", "weight": 10000, "upstream": "v1"}, {"name": "canary", "weight": 0, "upstream": "v2"}]}]
}`, policy, guardrails))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const (
	quick = `{"steps": [1000, 5000, 10000], "min_duration": "1s", "max_duration": "5m", "min_units": 20, "bake": "2s", "no_data_after": "10s", "ready": {"probes": 0}}`
	rails = `[{"metric": "error"}]`
)

// replica is one process's part in rollouts on real stores.
type replica struct {
	*control.Controller
	id     string
	store  *store.Store
	sticky *sticky.Store
	live   *router.Live
	roll   *rollout.Rollouts
	rooms  sync.Map // upstream's name -> rollout.Room
	now    func() time.Time
	halt   func() // ends the rollouts' part
	stop   func() // ends everything
}

type settings struct {
	id, db, redis      string
	policy, guardrails string
	skew               time.Duration // of this replica's clock
	tripFor            time.Duration
	notify             rollout.Notifier
	seed               *router.Document // in place of document(policy, guardrails)
	fixAfter           time.Duration
	sticky             func(*sticky.Store) rollout.Sticky
	control            func(*control.Controller) rollout.Control
}

func start(t testing.TB, s settings) *replica {
	t.Helper()
	if s.policy == "" {
		s.policy = quick
	}
	if s.guardrails == "" {
		s.guardrails = rails
	}
	r := &replica{id: s.id, live: &router.Live{}}
	var err error
	if r.store, err = store.Open(t.Context(), store.Options{URL: s.db, Lazy: true}); err != nil {
		t.Fatal(err)
	}
	if r.sticky, err = sticky.Open(t.Context(), sticky.Options{URL: s.redis, ReplicaID: s.id, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	pool := upstream.NewPool(upstream.PoolOptions{})
	if s.seed == nil {
		s.seed = document(t, s.policy, s.guardrails)
	}
	now := func() time.Time { return time.Now().Add(s.skew) }
	r.now = now
	if r.Controller, err = control.New(control.Options{
		Store: r.store, Sticky: r.sticky, Pool: pool, Live: r.live, Shared: s.redis != "", Seed: s.seed,
		ReplicaID: s.id, StartTimeout: 20 * time.Second, Now: now,
		Hooks: control.Hooks{Revision: func(int64) {
			if r.roll != nil {
				r.roll.Swapped()
			}
		}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var shared rollout.Sticky = r.sticky
	if s.sticky != nil {
		shared = s.sticky(r.sticky)
	}
	var ctl rollout.Control = r.Controller
	if s.control != nil {
		ctl = s.control(r.Controller)
	}
	for _, u := range []string{"v1", "v2"} {
		r.rooms.Store(u, rollout.Room{Endpoints: 1, Ready: 1, Capacity: 1000})
	}
	r.roll, err = rollout.New(rollout.Options{ReplicaID: s.id, Live: r.live, Sticky: shared, Fences: r.store, Control: ctl, Now: now, Notifier: s.notify, TripFor: s.tripFor, FixAfter: s.fixAfter,
		Log:   slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", s.id),
		Rooms: func(u *upstream.Upstream) rollout.Room { v, _ := r.rooms.Load(u.Name()); return v.(rollout.Room) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	rctx, halt := context.WithCancel(ctx)
	var wg, rwg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	rwg.Go(func() { r.roll.Run(rctx) })
	r.halt = func() { halt(); rwg.Wait() }
	r.stop = sync.OnceFunc(func() {
		r.halt()
		cancel()
		wg.Wait()
		cctx, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		r.sticky.Close(cctx)
		pool.Close()
		r.store.Close()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *replica) begin(t testing.TB) {
	t.Helper()
	r.must(t, "experiment.start", func(d *router.Document, rev int64, now time.Time) error { return router.Start(d, rev, now, key) })
}

func (r *replica) must(t testing.TB, action string, do func(*router.Document, int64, time.Time) error) {
	t.Helper()
	_, err := r.Commit(t.Context(), router.Change{Actor: "ada", Action: action, Object: "experiment/" + key,
		Mutate: func(s *router.Snapshot, rev int64) error { return do(&s.Document, rev, time.Now()) }})
	if err != nil {
		t.Fatal(err)
	}
}

func (r *replica) experiment() *router.Experiment {
	return r.live.Load().Snapshot.Document.Experiment(key)
}

func (r *replica) ramp() ramp.State {
	if s := r.experiment().RampState; s != nil {
		return *s
	}
	return ramp.State{Step: -2}
}

// crowd are users that send requests to all replicas in turn, as the tables
// there say.
type crowd struct {
	replicas []*replica
	canary   atomic.Pointer[func(r *rand.Rand) trial.Ending]
	control  atomic.Pointer[func(r *rand.Rand) trial.Ending]
	quiet    atomic.Bool
	slower   atomic.Int64    // ms that the canary takes longer to its answer
	n        [2]atomic.Int64 // requests by arm
}

// all is an answer that is always the same; often fails with a share.
func all(e trial.Ending) *func(*rand.Rand) trial.Ending {
	f := func(*rand.Rand) trial.Ending { return e }
	return &f
}

func often(share float64) *func(*rand.Rand) trial.Ending {
	f := func(r *rand.Rand) trial.Ending {
		if r.Float64() < share {
			return trial.Fault
		}
		return trial.Answered
	}
	return &f
}

const users = 8000

func traffic(t testing.TB, rs ...*replica) *crowd {
	c := &crowd{replicas: rs}
	c.canary.Store(all(trial.Answered))
	c.control.Store(all(trial.Answered))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 0; ctx.Err() == nil; n++ {
			if n%20 == 0 { // about 2,000 a second
				time.Sleep(10 * time.Millisecond)
			}
			if !c.quiet.Load() {
				c.send(rng, n)
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

func (c *crowd) send(rng *rand.Rand, n int) {
	r := c.replicas[n%len(c.replicas)]
	table := r.live.Load()
	p, err := table.Route(context.Background(), &router.Query{Model: "chat", AuthNone: true, Header: http.Header{"X-User-Id": {fmt.Sprint("user-", rng.IntN(users))}}}, nil)
	if err != nil || p.Experiment == nil || !p.Decision.Exposure {
		return
	}
	v, answer := p.Decision.Variant, c.control.Load()
	if p.Variant.Name == "canary" {
		answer = c.canary.Load()
		c.n[1].Add(1)
	} else {
		c.n[0].Add(1)
	}
	req := r.roll.Collector().Begin(&trial.Start{Experiment: key, Generation: p.Experiment.Generation, Variant: v, Analysed: p.Decision.Analysed,
		At: r.now(), ID: fmt.Sprint("req-", n), Unit: p.Decision.Digest.Field, HasUnit: true, Prompt: 100})
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	e := (*answer)(rng)
	late := 0
	if p.Variant.Name == "canary" {
		late = int(c.slower.Load())
	}
	if e == trial.Answered {
		first := late + 20 + rng.IntN(30)
		req.First(ms(first))
		req.Answer(ms(first))
	}
	req.Ended(trial.End{After: ms(late + 100 + rng.IntN(100)), Ending: e, Chars: 100})
	req.Close(ms(late+200), 0, false, 0)
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	began := time.Now()
	for deadline := began.Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
	t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
}

func sqliteURL(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "sluice.db") }

// actions are those of the controller in the audit log, oldest first.
func (r *replica) actions(t testing.TB) (out []router.Audit) {
	t.Helper()
	rows, _, err := r.store.Audit(t.Context(), store.AuditFilter{Object: "experiment/" + key})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if row := rows[len(rows)-1-i]; row.Role == "controller" {
			out = append(out, row)
		}
	}
	return out
}
