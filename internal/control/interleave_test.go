package control_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/control"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/router"
)

// TestInterleavings lets three replicas publish, kill, roll back and begin anew
// while notices are lost or late, Redis is flushed, restored from an older dump
// or cut off, and the database is away or loses its answers. At no moment does a
// replica go backwards, or serve a variant of a generation in which it was
// killed; when everything is healed all agree, and the database has each
// decision and its audit row once. SLUICE_INTERLEAVE is the number of cases,
// SLUICE_INTERLEAVE_SEED repeats those of a run (their times are the machine's).
func TestInterleavings(t *testing.T) {
	t.Parallel()
	cases, seed := 9, rand.Uint64()
	if n, err := strconv.Atoi(os.Getenv("SLUICE_INTERLEAVE")); err == nil {
		cases = n
	}
	if s, err := strconv.ParseUint(os.Getenv("SLUICE_INTERLEAVE_SEED"), 10, 64); err == nil {
		seed = s
	}
	const worlds = 3 // side by side: a case waits more than it works
	var mu sync.Mutex
	did, played := map[string]int{}, 0
	t.Cleanup(func() { t.Logf("seed %d: %d cases; %v", seed, played, did) })
	for i := range worlds {
		t.Run(fmt.Sprint("world ", i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed+uint64(i))
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				played += w.cases
				for k, n := range w.did {
					did[k] += n
				}
			}()
			for n := i; n < cases && !t.Failed(); n += worlds {
				w.play()
				w.heal()
				w.check()
				w.cases++
			}
		})
	}
}

// world is three replicas on one Redis and one database, each with its own way
// to both.
type world struct {
	t        *testing.T
	rng      *rand.Rand // of play alone
	server   *testenv.RedisServer
	redis    *redis.Client // the test's own way
	proxies  []*testenv.Proxy
	gates    []*gate
	ears     []*ears
	replicas []*replica
	dump     map[string]string // of an earlier moment
	cases    int
	began    time.Time
	running  sync.WaitGroup // commits that are on their way

	mu        sync.Mutex
	trace     []string
	did       map[string]int
	decisions []decision
}

// decision is a change that a replica has said to have made.
type decision struct {
	tag        string // in its reason
	stop       router.KillEntry
	is         string // deferred, written
	where, how string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), server: testenv.Redis(t), did: map[string]int{}, began: time.Now()}
	w.redis = redis.NewClient(&redis.Options{Addr: w.server.Addr})
	t.Cleanup(func() { w.redis.Close() })
	db := testenv.Postgres(t)
	seen := &sightings{t: t}
	for i, id := range []string{"a", "b", "c"} {
		p := testenv.NewProxy(t, w.server.Addr)
		var r *replica
		r = assemble(t, settings{id: id, db: db, redis: "redis://" + p.Addr, change: func(o *control.Options) {
			e := &ears{Store: o.Sticky.(*sticky.Store)}
			g := &gate{Store: o.Store.(*store.Store), ears: e}
			w.ears, w.gates = append(w.ears, e), append(w.gates, g)
			o.Sticky, o.Store, o.Poll = e, g, 60*time.Millisecond
			live := o.Live
			o.Hooks.Revision = func(int64) { seen.look(i, live.Load()) }
		}})
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, r)
		w.proxies, w.replicas = append(w.proxies, p), append(w.replicas, r)
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Logf("seed %d:\n%s", seed, strings.Join(w.trace, "\n"))
		}
	})
	w.takeDump()
	return w
}

func (w *world) note(what, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did[what]++
	w.trace = append(w.trace, fmt.Sprintf("%6d ms %s ", time.Since(w.began).Milliseconds(), what)+fmt.Sprintf(format, args...))
}

// play takes some twenty random steps.
func (w *world) play() {
	faults := 0
	for range 14 + w.rng.IntN(12) {
		i := w.rng.IntN(len(w.replicas))
		switch n := w.rng.IntN(20); {
		case n < 5:
			w.commit(i, "publish")
		case n < 7:
			w.commit(i, "kill")
		case n < 8:
			w.commit(i, "rollback")
		case n < 10:
			w.commit(i, "begin")
		case n < 17 && faults < 6:
			faults++
			w.fault(i)
		default:
			time.Sleep(time.Duration(w.rng.IntN(80)) * time.Millisecond)
		}
		if w.rng.IntN(3) > 0 { // else the next step meets it on its way
			w.running.Wait()
		}
	}
	w.running.Wait()
}

// commit begins a change at a replica.
func (w *world) commit(i int, kind string) {
	r, cut, weight := w.replicas[i], w.rng.IntN(4) == 0, 1000+w.rng.IntN(4000)
	tag := fmt.Sprintf("#%d-%d-%d#", w.cases, len(w.trace), w.rng.IntN(1e6))
	ch := router.Change{Actor: "ada", Object: "experiment/exp", Reason: tag}
	w.note(kind, "%s at %s", tag, r.id(i))
	w.running.Go(func() {
		var res control.CommitResult
		var err error
		d := decision{tag: tag, where: r.id(i), how: kind}
		switch kind {
		case "publish":
			ch.Action, ch.Mutate = "experiment.set_weights", setWeight(weight).Mutate
			res, err = r.Commit(w.t.Context(), ch)
		case "begin":
			ch.Action, ch.Mutate = "experiment.start", func(s *router.Snapshot, rev int64) error {
				if err := router.Rollback(&s.Document, rev, time.Now(), "exp"); err != nil {
					return err
				}
				return router.StartAnyway(&s.Document, rev, time.Now(), "exp")
			}
			res, err = r.Commit(w.t.Context(), ch)
		case "kill":
			ch.CutStreams, d.stop.Variant, d.stop.CutStreams = cut, "canary", cut
			res, err = r.Kill(w.t.Context(), "exp", "canary", ch)
		case "rollback":
			ch.CutStreams, d.stop.Variant, d.stop.CutStreams = cut, "*", cut
			res, err = r.Rollback(w.t.Context(), "exp", ch)
		}
		w.answered(i, d, res, err)
	})
}

func (w *world) answered(i int, d decision, res control.CommitResult, err error) {
	var edit *router.EditError
	var problems router.Problems
	switch {
	case errors.Is(err, control.ErrReadOnly) || errors.Is(err, router.ErrConflict) || errors.As(err, &edit) || errors.As(err, &problems):
		w.note("refused", "%s: %v", d.tag, err)
		return
	case err != nil:
		w.t.Errorf("%s %s at %s: %v", d.how, d.tag, d.where, err)
		return
	case res.Deferred:
		d.is = "deferred"
	case res.Audit != nil:
		d.is = "written"
	default:
		w.note("unchanged", "%s", d.tag)
		return
	}
	w.note(d.is, "%s as revision %d", d.tag, res.Revision)
	if d.stop.Variant != "" {
		d.stop.Experiment, d.stop.Generation = "exp", res.Snapshot.Document.Experiment("exp").Generation
		if g, on := exposes(w.t, w.replicas[i].live.Load()); on && g == d.stop.Generation {
			w.t.Errorf("%s %s: %s serves the canary of generation %d after its answer", d.how, d.tag, d.where, g)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decisions = append(w.decisions, d)
}

// fault breaks something, or mends something that an earlier one broke.
func (w *world) fault(i int) {
	all := w.rng.IntN(3) == 0
	each := func(f func(i int)) {
		for j := range w.replicas {
			if all || j == i {
				f(j)
			}
		}
	}
	at := w.replicas[i].id(i)
	if all {
		at = "all"
	}
	on := w.rng.IntN(3) > 0
	switch kind := []string{"deaf", "late", "gate", "gate", "mute", "cut", "flush", "dump", "restore", "restore", "older"}[w.rng.IntN(11)]; kind {
	case "deaf":
		w.note(kind, "%v at %s", on, at)
		each(func(j int) { w.ears[j].deaf.Store(on) })
	case "late":
		d := time.Duration(w.rng.IntN(60)) * time.Millisecond
		w.note(kind, "%v at %s", d, at)
		each(func(j int) { w.ears[j].late.Store(int64(d)) })
	case "gate":
		w.note(kind, "closed %v at %s", on, at)
		each(func(j int) { w.gates[j].closed.Store(on) })
	case "mute":
		w.note(kind, "%v at %s", on, at)
		each(func(j int) { w.gates[j].mute.Store(on) })
	case "cut":
		w.note(kind, "%v at %s", on, at)
		each(func(j int) {
			w.proxies[j].Mend()
			if on {
				w.proxies[j].Cut()
			}
		})
	case "flush":
		w.note(kind, "")
		w.server.FlushAll()
	case "dump":
		w.note(kind, "")
		w.takeDump()
	case "restore":
		w.note(kind, "")
		w.restore(slices.Collect(maps.Keys(w.dump)), true)
	case "older":
		w.note(kind, "document")
		w.restore([]string{"sluice:{x}:snap"}, false)
	}
}

func (w *world) takeDump() {
	w.t.Helper()
	keys, err := w.redis.Keys(w.t.Context(), "*").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	dump := map[string]string{}
	for _, k := range keys {
		v, err := w.redis.Dump(w.t.Context(), k).Result()
		if errors.Is(err, redis.Nil) { // expired meanwhile
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		dump[k] = v
	}
	w.dump = dump
}

// restore brings back keys of the dump, as a server that starts from an old one
// does if nothing else is left.
func (w *world) restore(keys []string, alone bool) {
	w.t.Helper()
	_, err := w.redis.TxPipelined(w.t.Context(), func(p redis.Pipeliner) error {
		if alone {
			p.FlushAll(w.t.Context())
		}
		for _, k := range keys {
			if v, ok := w.dump[k]; ok {
				p.RestoreReplace(w.t.Context(), k, 0, v)
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// heal mends everything and waits until all agree.
func (w *world) heal() {
	w.note("heal", "")
	for i := range w.replicas {
		w.ears[i].deaf.Store(false)
		w.ears[i].late.Store(0)
		w.gates[i].closed.Store(false)
		w.gates[i].mute.Store(false)
		w.proxies[i].Mend()
	}
	var why string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if why = w.disagree(); why == "" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("no agreement 20 s after everything is healed: %s", why)
		}
	}
}

// disagree says what is not as it must be in the end, "" when nothing is.
func (w *world) disagree() string {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	snap, err := w.gates[0].Store.Latest(ctx)
	if err != nil {
		return err.Error()
	}
	rev, e := snap.Document.Revision, snap.Document.Experiment("exp")
	if ver, err := w.redis.HGet(ctx, "sluice:{x}:snap", "ver").Int64(); err != nil || ver != rev {
		return fmt.Sprintf("the database has revision %d, Redis %d, %v", rev, ver, err)
	}
	var first []sticky.KillEntry
	for i, r := range w.replicas {
		st := r.Status(ctx)
		if r.revision() != rev || degraded(st, control.CodeDatabase) || degraded(st, control.CodeSticky) || !w.ears[i].Up() {
			return fmt.Sprintf("%s serves %d, the database has %d; %+v", r.id(i), r.revision(), rev, st.Degraded)
		}
		kills, err := w.ears[i].Kills(ctx)
		if err != nil {
			return err.Error()
		}
		if i == 0 {
			first = kills
		}
		if !slices.EqualFunc(kills, first, func(a, b sticky.KillEntry) bool { return a.Generation == b.Generation && a.Variant == b.Variant }) {
			return fmt.Sprintf("%s has kills %+v, a %+v", r.id(i), kills, first)
		}
		for _, k := range kills {
			if k.Generation != e.Generation {
				return fmt.Sprintf("a kill of generation %d is kept in %d", k.Generation, e.Generation)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.decisions {
		if d.stop.Variant != "" && snap.Document.Lacks(d.stop) {
			return fmt.Sprintf("the document lacks %s", d.tag)
		}
	}
	return ""
}

// check looks for what must be true after everything is healed.
func (w *world) check() {
	w.t.Helper()
	rev := w.replicas[0].revision()
	rows := map[string]int{}
	for before := int64(0); ; {
		list, next, err := w.gates[0].Store.Audit(w.t.Context(), store.AuditFilter{Before: before})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, a := range list {
			if _, tag, ok := strings.Cut(a.Reason, "#"); ok {
				tag, _, _ = strings.Cut(tag, "#")
				rows["#"+tag+"#"]++
			}
		}
		if before = next; next == 0 {
			break
		}
	}
	stops := map[router.KillEntry]int{}
	for _, d := range w.decisions {
		if d.is == "written" && rows[d.tag] != 1 {
			w.t.Errorf("%s %s at %s has %d audit rows", d.how, d.tag, d.where, rows[d.tag])
		}
		stops[d.stop] += rows[d.tag]
	}
	for tag, n := range rows {
		if n > 1 {
			w.t.Errorf("%s has %d audit rows", tag, n)
		}
	}
	for _, d := range w.decisions {
		if d.is == "deferred" && stops[d.stop] == 0 {
			w.t.Errorf("%s %s at %s was in force without the database; it has no audit row", d.how, d.tag, d.where)
		}
	}
	for i, r := range w.replicas {
		gen, on := exposes(w.t, r.live.Load())
		for _, d := range w.decisions {
			if on && d.stop.Variant != "" && d.stop.Generation == gen {
				w.t.Errorf("%s serves the canary of generation %d, which %s stopped", r.id(i), gen, d.tag)
			}
		}
	}
	if _, err := w.gates[0].Store.VerifyAudit(w.t.Context()); err != nil {
		w.t.Error(err)
	}
	time.Sleep(150 * time.Millisecond) // nothing is written twice
	for i, r := range w.replicas {
		if r.revision() != rev {
			w.t.Errorf("%s: revision %d became %d with nobody changing anything", r.id(i), rev, r.revision())
		}
	}
}
