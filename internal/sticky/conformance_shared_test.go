package sticky_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/sticky"
)

func testPublish(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	ctx := t.Context()
	if _, _, err := stores[0].Latest(ctx); !errors.Is(err, sticky.ErrNone) {
		t.Fatalf("before the first: %v", err)
	}
	big := []byte(`"` + strings.Repeat("sluice ", 100_000) + `"`)
	huge := int64(1<<53 - 1)
	for _, step := range []struct {
		rev     int64
		doc     []byte
		current int64 // of the refusal; 0 = accepted
		differs bool
	}{
		{5, []byte(`{"a":1}`), 0, false},
		{4, []byte(`{"a":1}`), 5, false},
		{5, []byte(`{"a":1}`), 5, false},
		{5, []byte(`{"a":2}`), 5, true},
		{6, big, 0, false},
		{huge - 1, []byte(`{}`), 0, false},
		{huge - 2, []byte(`{}`), huge - 1, false},
		{huge, []byte(`{"last":1}`), 0, false},
	} {
		err := stores[0].Publish(ctx, step.rev, step.doc)
		var stale *sticky.StaleError
		switch {
		case step.current == 0 && err != nil:
			t.Fatalf("publish %d: %v", step.rev, err)
		case step.current != 0 && (!errors.Is(err, sticky.ErrStale) || !errors.As(err, &stale)):
			t.Fatalf("publish %d: %v, want stale", step.rev, err)
		case step.current != 0 && (stale.Current != step.current || stale.Differs != step.differs):
			t.Fatalf("publish %d: %+v, want current %d, differs %v", step.rev, stale, step.current, step.differs)
		}
		if step.current == 0 {
			rev, doc, err := stores[1].Latest(ctx)
			if err != nil || rev != step.rev || !bytes.Equal(doc, step.doc) {
				t.Fatalf("latest after %d: %d, %d bytes, %v", step.rev, rev, len(doc), err)
			}
		}
	}
	for _, rev := range []int64{0, -1, 1 << 53} {
		if err := stores[0].Publish(ctx, rev, nil); err == nil || errors.Is(err, sticky.ErrStale) {
			t.Errorf("publish %d: %v, want a range error", rev, err)
		}
	}
}

// testFollow: every follower sees rising revisions and the last one. The time
// from Publish to notice is logged.
func testFollow(t *testing.T, k kind) {
	const n = 300
	stores := k.replicas(t, 3, sticky.Options{})
	var mu sync.Mutex
	sent := map[int64]time.Time{}
	var late []time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var last [3]atomic.Int64
	for i, s := range stores {
		wg.Go(func() {
			err := s.Follow(ctx, 10, func(rev int64) {
				if old := last[i].Load(); rev <= old || rev <= 10 {
					t.Errorf("follower %d: %d after %d", i, rev, old)
				}
				last[i].Store(rev)
				mu.Lock()
				late = append(late, time.Since(sent[rev]))
				mu.Unlock()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("follow: %v", err)
			}
		})
	}
	for rev := int64(1); rev <= n; rev++ {
		mu.Lock()
		sent[rev] = time.Now()
		mu.Unlock()
		if err := stores[rev%3].Publish(t.Context(), rev, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if rev == 10 || rev%50 == 0 { // let all of them catch up now and then
			eventually(t, "caught up", func() bool {
				for i := range last {
					if rev > 10 && last[i].Load() != rev {
						return false
					}
				}
				return true
			})
		}
	}
	cancel()
	wg.Wait()
	t.Logf("publish to notice, %d notices: %s", len(late), quantiles(late))
}

func testReplicas(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	ctx, start := t.Context(), time.Unix(1_700_000_000, 0).UTC()
	a := sticky.Replica{ID: "replica-a", Revision: 3, Started: start, Addr: "127.0.0.1:1"}
	if err := stores[0].Report(ctx, a); err != nil {
		t.Fatal(err)
	}
	want := []sticky.Replica{a}
	if k.name != "embedded" {
		b := sticky.Replica{ID: "replica-b", Revision: 2, Started: start}
		if err := stores[1].Report(ctx, b); err != nil {
			t.Fatal(err)
		}
		want = append(want, b)
	}
	if got, err := stores[1].Replicas(ctx); err != nil || cmp.Diff(want, got) != "" {
		t.Fatalf("%v, %s", err, cmp.Diff(want, got))
	}
	if err := stores[0].Report(ctx, sticky.Replica{ID: "other"}); err == nil {
		t.Error("a report under another id was taken")
	}
	if k.name == "embedded" {
		return
	}
	closeStore(t, stores[0])
	if got, err := stores[1].Replicas(ctx); err != nil || len(got) != 1 || got[0].ID != "replica-b" {
		t.Errorf("after Close: %v, %v", got, err)
	}
	if err := stores[0].Report(ctx, a); !errors.Is(err, sticky.ErrClosed) {
		t.Errorf("report after Close: %v", err)
	}
}

func testKills(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	var mu sync.Mutex
	var told [][]sticky.KillEntry
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = stores[1].WatchKills(ctx, func(l []sticky.KillEntry) { mu.Lock(); told = append(told, l); mu.Unlock() })
	})
	defer wg.Wait()
	defer cancel()
	lastTold := func(want []sticky.KillEntry) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(told) > 0 && cmp.Equal(told[len(told)-1], want)
		}
	}
	at := time.Unix(1_700_000_000, 0).UTC()
	first := sticky.KillEntry{Experiment: "e", Generation: 2, Variant: "*", Actor: "ann", Time: at, Reason: "5xx"}
	again := first
	again.Actor = "bob"
	old := sticky.KillEntry{Experiment: "e", Generation: 1, Variant: "v", Time: at}
	other := sticky.KillEntry{Experiment: "a", Generation: 1, Variant: "v", Time: at}
	for _, e := range []sticky.KillEntry{first, again, old, other} {
		if err := stores[0].Kill(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	want := []sticky.KillEntry{other, old, first}
	if got, err := stores[1].Kills(ctx); err != nil || cmp.Diff(want, got) != "" {
		t.Fatalf("%v, %s", err, cmp.Diff(want, got))
	}
	eventually(t, "told of the kills", lastTold(want))
	if err := stores[0].DropKills(ctx, "e", 2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "told of the drop", lastTold([]sticky.KillEntry{other, first}))
}

func testKillLatency(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	seen := make(chan int, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = stores[1].WatchKills(ctx, func(l []sticky.KillEntry) { seen <- len(l) }) })
	defer wg.Wait()
	defer cancel()
	var late []time.Duration
	for i := 1; i <= 50; i++ {
		start := time.Now()
		if err := stores[0].Kill(ctx, sticky.KillEntry{Experiment: "e", Generation: i, Variant: "v"}); err != nil {
			t.Fatal(err)
		}
		for n := 0; n != i; {
			select {
			case n = <-seen:
			case <-time.After(20 * time.Second):
				t.Fatalf("kill %d was not noticed", i)
			}
		}
		late = append(late, time.Since(start))
	}
	t.Logf("kill to overlay at another replica: %s", quantiles(late))
}

func testLease(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	ctx := t.Context()
	a, err := stores[0].Lease(ctx, 1<<40)
	if err != nil || a == nil || a.Fence() != 1<<40+1 || !a.Valid() {
		t.Fatalf("first: %+v, %v", a, err)
	}
	if b, err := stores[1].Lease(ctx, 0); err != nil || b != nil {
		t.Fatalf("second while held: %v, %v", b, err)
	}
	if err := a.Release(ctx); err != nil || a.Valid() {
		t.Fatalf("release: %v, valid %v", err, a.Valid())
	}
	<-a.Done()
	b, err := stores[1].Lease(ctx, 0)
	if err != nil || b == nil || b.Fence() != 1<<40+2 {
		t.Fatalf("after release: %+v, %v", b, err)
	}
	if err := a.Release(ctx); err != nil || !b.Valid() { // a late release by the old leader
		t.Fatalf("late release: %v", err)
	}
	if c, err := stores[0].Lease(ctx, 0); err != nil || c != nil {
		t.Fatalf("the late release freed another's lease: %v, %v", c, err)
	}
	closeStore(t, stores[1])
	<-b.Done()
	if b.Valid() {
		t.Error("valid after Close")
	}
}
