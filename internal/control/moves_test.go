package control_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/router"
	"sluice/upstream"
)

const arms = `{
  "upstreams": [{"name": "v1", "endpoints": ["http://127.0.0.1:1/v1"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "ab", "state": "running", "baseline": "a", "variants": [
    {"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 3000, "upstream": "v1"},
    {"name": "c", "weight": 2000, "upstream": "v1"}]}]
}`

// TestRedisLossMovesNobody changes the weights of three arms at random while
// Redis is emptied, killed, stopped and comes back, and asks for users at three
// replicas, one of which remembers nobody. Who was served once is served the
// same for ever, except provisionally, which is when Redis or its copy of the
// pins is away and the user's bucket has moved. SLUICE_INTERLEAVE is the number
// of cases.
func TestRedisLossMovesNobody(t *testing.T) {
	t.Parallel()
	cases, seed := 4, rand.Uint64()
	if n, err := strconv.Atoi(os.Getenv("SLUICE_INTERLEAVE")); err == nil {
		cases = n/10 + 1
	}
	if s, err := strconv.ParseUint(os.Getenv("SLUICE_INTERLEAVE_SEED"), 10, 64); err == nil {
		seed = s
	}
	w := newCrowd(t, seed)
	for range cases {
		w.play()
		if t.Failed() {
			break
		}
	}
	t.Logf("seed %d: %d cases, %d users, %d answers, %d of them provisional (%d others than before)",
		seed, cases, len(w.served), w.answers, w.provisional, w.differed)
	if w.provisional == 0 || w.contested == 0 {
		t.Errorf("%d provisional answers, %d by pins of moved buckets: the test has not tested", w.provisional, w.contested)
	}
}

// crowd is users of one experiment and the replicas that serve them.
type crowd struct {
	t        *testing.T
	rng      *rand.Rand
	server   *testenv.RedisServer
	stores   []*sticky.Store
	copies   *store.Store // of the pins
	document *router.Document
	table    *router.Table
	revision int64
	served   map[string]string // user to variant
	users    []string

	answers, provisional, differed, contested int
}

func newCrowd(t *testing.T, seed uint64) *crowd {
	w := &crowd{t: t, rng: rand.New(rand.NewPCG(seed, 2)), server: testenv.Redis(t), served: map[string]string{}, revision: 1}
	url := testenv.Postgres(t)
	for i, id := range []string{"a", "b", "forgetful"} {
		db, err := store.Open(t.Context(), store.Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		w.copies = db
		o := sticky.Options{URL: w.server.URL, ReplicaID: id, Backup: db, PinBudget: 200 * time.Millisecond}
		if i == 2 {
			o.PinCache = 1
		}
		s, err := sticky.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			s.Close(ctx)
		})
		w.stores = append(w.stores, s)
	}
	w.document = document(t, arms)
	if err := router.Normalize(w.document, nil, w.revision, time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	w.compile()
	return w
}

func (w *crowd) compile() {
	w.t.Helper()
	snap := (&router.Snapshot{Document: *w.document}).Clone()
	table, err := router.Compile(snap, map[string]*upstream.Upstream{"v1": new(upstream.Upstream)}, router.CompileOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.table = table
}

// play is one loss of Redis and its return, with changes of weights around it.
func (w *crowd) play() {
	w.change()
	w.ask(60, 40)
	w.settle()
	w.change() // buckets move, their users do not
	w.ask(200, 0)
	w.settle()
	lost := []string{"flush", "flush", "kill", "pause"}[w.rng.IntN(4)]
	switch lost {
	case "flush":
		w.server.FlushAll()
	case "kill":
		w.server.Kill()
	case "pause":
		w.server.Pause()
	}
	w.ask(100, 0)
	w.change()
	w.ask(200, 0)
	switch lost {
	case "kill":
		w.server.Restart()
	case "pause":
		w.server.Resume()
	}
	w.ask(200, 0) // while it is found and refilled
	w.settle()
	before := w.provisional
	w.ask(400, 0)
	if n := w.provisional - before; n > 40 { // a few come late on a loaded machine
		w.t.Errorf("%d of 400 answers are provisional after everything is back (%s)", n, lost)
	}
}

// settle waits until every replica has Redis, and the database every pin.
func (w *crowd) settle() {
	w.t.Helper()
	for i, s := range w.stores {
		eventually(w.t, fmt.Sprint("replica ", i), func() bool {
			st := s.Stats()
			_, _, err := s.Get(w.t.Context(), "exp", [8]byte{1}, 1) // a flush that it has not found yet
			return err == nil && st.State == sticky.Up && st.Queue == 0 && st.Backup == 0
		})
	}
	// A batch is written after it is taken: what is in no copy yet may be lost.
	eventually(w.t, "the copy of every pin", func() bool {
		n := 0
		err := w.copies.LoadPins(w.t.Context(), func(list []sticky.PinRecord) error { n += len(list); return nil })
		return err == nil && n >= len(w.users)
	})
}

// change draws new weights; none is 0, which would take users back by design.
func (w *crowd) change() {
	w.t.Helper()
	b, c := 500+w.rng.IntN(4000), 500+w.rng.IntN(4000)
	w.revision++
	err := router.SetWeights(w.document, w.revision, time.Now(), "exp", map[string]int{"a": 10000 - b - c, "b": b, "c": c})
	if err != nil {
		w.t.Fatal(err)
	}
	w.compile()
}

// ask serves some known users, each at a replica of its own, and some new ones.
func (w *crowd) ask(known, fresh int) {
	w.t.Helper()
	for range known {
		if len(w.users) > 0 {
			w.serve(w.users[w.rng.IntN(len(w.users))])
		}
	}
	for range fresh {
		w.serve(fmt.Sprint("user-", len(w.users)))
	}
}

func (w *crowd) serve(user string) {
	w.t.Helper()
	i := w.rng.IntN(len(w.stores))
	p, err := w.table.Route(w.t.Context(), &router.Query{Model: "chat", AuthNone: true, Header: http.Header{"X-User-Id": {user}}}, w.stores[i])
	if err != nil {
		w.t.Fatal(err)
	}
	e, _ := w.table.Experiment("exp")
	moved := e.Exp.Contested(p.Decision.Bucket)
	w.answers++
	first, known := w.served[user]
	switch {
	case p.Decision.Reason == experiment.ReasonProvisional:
		w.provisional++
		if known && p.Variant.Name != first {
			w.differed++
		}
		if !moved || p.Decision.Analysed || p.Decision.WritePin != experiment.WriteNone {
			w.t.Errorf("%s is provisional, moved %v, analysed %v, pin written: %q", user, moved, p.Decision.Analysed, p.Decision.WritePin)
		}
	case !known:
		w.served[user] = p.Variant.Name
		w.users = append(w.users, user)
	case p.Variant.Name != first:
		w.t.Errorf("%s went from %s to %s at replica %d (%s, its store is %s)", user, first, p.Variant.Name, i, p.Decision.Reason, w.stores[i].Stats().State)
	case moved:
		w.contested++
	}
}
