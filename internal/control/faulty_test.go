package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/router"
)

// gate is one replica's way to the database, which can be closed, and can lose
// the answers of commits that the database has made.
type gate struct {
	*store.Store
	ears   *ears
	closed atomic.Bool
	mute   atomic.Bool
}

type awayError struct{}

func (awayError) Error() string     { return "the test keeps the database away" }
func (awayError) Unavailable() bool { return true }

func (g *gate) Latest(ctx context.Context) (*router.Snapshot, error) {
	if g.closed.Load() {
		return nil, awayError{}
	}
	return g.Store.Latest(ctx)
}

func (g *gate) LatestRevision(ctx context.Context) (int64, error) {
	if g.closed.Load() {
		return 0, awayError{}
	}
	return g.Store.LatestRevision(ctx)
}

func (g *gate) CommitAbove(ctx context.Context, floor int64, ch router.Change) (*router.Snapshot, *router.Audit, error) {
	if g.closed.Load() {
		return nil, nil, awayError{}
	}
	snap, audit, err := g.Store.CommitAbove(ctx, floor, ch)
	if err == nil && g.mute.Load() {
		return nil, nil, awayError{}
	}
	return snap, audit, err
}

func (g *gate) AppendAudit(ctx context.Context, a router.Audit) (*router.Audit, error) {
	if g.closed.Load() {
		return nil, awayError{}
	}
	row, err := g.Store.AppendAudit(ctx, a)
	if err == nil && g.mute.Load() {
		return nil, awayError{}
	}
	return row, err
}

func (g *gate) Listen(ctx context.Context, notice func()) {
	g.Store.Listen(ctx, func() {
		if !g.closed.Load() {
			g.ears.hear(notice)
		}
	})
}

func (g *gate) ReportReplica(ctx context.Context, id string, revision int64, since time.Time) ([]string, error) {
	if g.closed.Load() {
		return nil, awayError{}
	}
	return g.Store.ReportReplica(ctx, id, revision, since)
}

// ears is one replica's sticky store, whose notices may be lost or late.
type ears struct {
	*sticky.Store
	deaf atomic.Bool
	late atomic.Int64 // a time.Duration
}

func (e *ears) hear(notice func()) {
	time.Sleep(time.Duration(e.late.Load()))
	if !e.deaf.Load() {
		notice()
	}
}

func (e *ears) Follow(ctx context.Context, after int64, notice func(int64)) error {
	return e.Store.Follow(ctx, after, func(rev int64) { e.hear(func() { notice(rev) }) })
}

func (e *ears) WatchKills(ctx context.Context, f func([]sticky.KillEntry)) error {
	return e.Store.WatchKills(ctx, func(ks []sticky.KillEntry) { e.hear(func() { f(ks) }) })
}

func (e *ears) WatchState(ctx context.Context, f func(sticky.State)) error {
	return e.Store.WatchState(ctx, func(s sticky.State) { e.hear(func() { f(s) }) })
}

// sightings are the tables that went live, as each replica swapped them in.
type sightings struct {
	t        *testing.T
	mu       sync.Mutex
	last     [3]sighting
	document map[int64]string // by revision
}

type sighting struct {
	revision, epoch int64
	generation      int
	stopped         bool // the canary of generation
}

// look judges a table that has just gone live at a replica.
func (s *sightings) look(i int, table *router.Table) {
	gen, on := exposes(s.t, table)
	now := sighting{table.Revision, table.Epoch, gen, !on}
	doc, err := json.Marshal(table.Snapshot.Document)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.last[i]
	s.last[i] = now
	if s.document == nil {
		s.document = map[int64]string{}
	}
	first := s.document[now.revision]
	s.document[now.revision] = string(doc)
	switch {
	case err != nil:
		s.t.Error(err)
	case first != "" && first != string(doc):
		s.t.Errorf("revision %d is two documents:\n%s\n%s", now.revision, first, doc)
	case now.revision < old.revision || now.revision == old.revision && now.epoch <= old.epoch || now.generation < old.generation:
		s.t.Errorf("replica %d went from %+v to %+v", i, old, now)
	case now.generation == old.generation && old.stopped && !now.stopped:
		s.t.Errorf("replica %d serves the canary again in generation %d: %+v, then %+v", i, gen, old, now)
	}
}

// exposes says whether anybody of two hundred gets the canary, which has a tenth or more.
func exposes(t testing.TB, table *router.Table) (generation int, on bool) {
	e := table.Snapshot.Document.Experiment("exp")
	for i := range 200 {
		p, err := table.Route(context.Background(), &router.Query{Model: "chat", AuthNone: true, Header: http.Header{"X-User-Id": {fmt.Sprint("user-", i)}}}, nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.Variant.Name == "canary" {
			return e.Generation, true
		}
	}
	return e.Generation, false
}

func (r *replica) id(i int) string { return string(rune('a' + i)) }

func TestGateLosesAnswersNotCommits(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{URL: sqliteURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	g := &gate{Store: s}
	g.mute.Store(true)
	ch := router.Change{Actor: "ada", Object: "document", Mutate: func(s *router.Snapshot, _ int64) error {
		s.Document = *document(t, base)
		return nil
	}}
	if _, _, err := g.CommitAbove(t.Context(), 0, ch); !errors.As(err, new(awayError)) {
		t.Errorf("a lost answer: %v", err)
	}
	if rev, err := g.LatestRevision(t.Context()); err != nil || rev == 0 {
		t.Errorf("revision %d, %v; want the commit", rev, err)
	}
	g.closed.Store(true)
	if _, err := g.LatestRevision(t.Context()); !errors.As(err, new(awayError)) {
		t.Errorf("closed: %v", err)
	}
}
