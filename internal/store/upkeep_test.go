package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/internal/testenv"
	"sluice/metrics"
	"sluice/router"
)

func TestIdempotency(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		var now atomic.Int64
		now.Store(noon.UnixMicro())
		o.Now = func() time.Time { return time.UnixMicro(now.Load()) }
		s := open(t, o)
		begin := func(key, actor, hash, want string) {
			t.Helper()
			state, status, header, body, err := s.IdempotencyBegin(t.Context(), key, actor, "POST /experiments", hash)
			if err != nil || state != want {
				t.Errorf("%s by %s: %q, %v; want %q", key, actor, state, err, want)
			}
			if want == store.IdempotencyDone && (status != 201 || string(header) != `{"etag":"5"}` || string(body) != `{"a":1}`) {
				t.Errorf("answer: %d %s %s", status, header, body)
			}
		}
		begin("a", "ada", "h1", store.IdempotencyNew)
		begin("a", "ada", "h1", store.IdempotencyRunning)
		begin("a", "ada", "h2", store.IdempotencyMismatch)
		begin("a", "bob", "h2", store.IdempotencyNew)
		if err := s.IdempotencyFinish(t.Context(), "a", "ada", "POST /experiments", 201, []byte(`{"etag":"5"}`), []byte(`{"a":1}`)); err != nil {
			t.Fatal(err)
		}
		begin("a", "ada", "h1", store.IdempotencyDone)
		begin("a", "ada", "h2", store.IdempotencyMismatch)
		if err := s.IdempotencyAbandon(t.Context(), "a", "bob", "POST /experiments"); err != nil {
			t.Fatal(err)
		}
		begin("a", "bob", "h3", store.IdempotencyNew)
		now.Add((2 * time.Minute).Microseconds())
		begin("a", "bob", "h4", store.IdempotencyNew) // the first never finished
		begin("a", "ada", "h1", store.IdempotencyDone)
		now.Add((24 * time.Hour).Microseconds())
		begin("a", "ada", "h2", store.IdempotencyNew)
	})
}

func TestPinsBackup(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		pin := func(exp string, unit byte, p experiment.Pin) sticky.PinRecord {
			return sticky.PinRecord{Experiment: exp, Field: [8]byte{unit, 0xff}, Shard: 65535, Pin: p}
		}
		save := func(pins ...sticky.PinRecord) {
			t.Helper()
			if err := s.SavePins(t.Context(), pins); err != nil {
				t.Fatal(err)
			}
		}
		save(pin("e", 1, experiment.Pin{Variant: 1, Gen: 2, Revision: 10}), pin("e", 1, experiment.Pin{Variant: 2, Gen: 2, Revision: 11}))
		save(pin("e", 1, experiment.Pin{Variant: 3, Gen: 2, Revision: 9}))  // older revision
		save(pin("e", 1, experiment.Pin{Variant: 4, Gen: 1, Revision: 99})) // older generation
		save(pin("e", 2, experiment.Pin{Variant: 1, Gen: 1, Revision: 1<<32 - 2}))
		save(pin("e", 2, experiment.Pin{Variant: 5, Gen: 1, Revision: 3, Flags: 1})) // later, over the wrap
		save(pin("f", 3, experiment.Pin{Variant: 255, Gen: 65535, Revision: 1<<32 - 1, Flags: 255}))
		load := func() (out []sticky.PinRecord) {
			t.Helper()
			if err := s.LoadPins(t.Context(), func(p []sticky.PinRecord) error { out = append(out, p...); return nil }); err != nil {
				t.Fatal(err)
			}
			return out
		}
		want := []sticky.PinRecord{
			pin("e", 1, experiment.Pin{Variant: 2, Gen: 2, Revision: 11}), pin("e", 2, experiment.Pin{Variant: 5, Gen: 1, Revision: 3, Flags: 1}),
			pin("f", 3, experiment.Pin{Variant: 255, Gen: 65535, Revision: 1<<32 - 1, Flags: 255}),
		}
		if d := cmp.Diff(want, load()); d != "" {
			t.Errorf("pins (-want +got):\n%s", d)
		}
		if err := s.DropPins(t.Context(), "e"); err != nil || len(load()) != 1 {
			t.Errorf("drop: %v, %d left", err, len(load()))
		}
		var many []sticky.PinRecord
		for i := range 2500 {
			many = append(many, sticky.PinRecord{Experiment: "many", Field: [8]byte{byte(i), byte(i >> 8)}, Pin: experiment.Pin{Gen: 1}})
		}
		save(many...)
		if n := len(load()); n != 2501 {
			t.Errorf("%d pins in batches, want 2501", n)
		}
		stop := errors.New("stop")
		if err := s.LoadPins(t.Context(), func([]sticky.PinRecord) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("yield's error: %v", err)
		}
	})
}

func TestReplicasOfOneDatabase(t *testing.T) {
	engines(t, func(t *testing.T, o store.Options) {
		s := open(t, o)
		start := time.Now().Add(-time.Second)
		for _, c := range []struct {
			id   string
			want int
		}{{"a", 0}, {"b", 1}, {"a", 1}} {
			if others, err := s.ReportReplica(t.Context(), c.id, 7, start); err != nil || len(others) != c.want {
				t.Errorf("%s sees %v, %v", c.id, others, err)
			}
		}
		if others, err := s.ReportReplica(t.Context(), "a", 7, time.Now().Add(time.Second)); err != nil || len(others) != 0 {
			t.Errorf("silent replicas are seen: %v, %v", others, err)
		}
	})
}

func TestListen(t *testing.T) {
	s := open(t, store.Options{URL: testenv.Postgres(t)})
	ctx, cancel := context.WithCancel(t.Context())
	notices, done := make(chan struct{}, 16), make(chan struct{})
	go func() {
		defer close(done)
		s.Listen(ctx, func() { notices <- struct{}{} })
	}()
	wait := func(what string) {
		t.Helper()
		select {
		case <-notices:
		case <-time.After(10 * time.Second):
			t.Fatalf("no notice %s", what)
		}
	}
	wait("after connecting")
	commit(t, s, addUpstream("v1"))
	wait("after a commit")
	// A cut connection comes back by itself.
	if _, err := store.ExecForTest(s, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	wait("after reconnecting")
	cancel()
	<-done
}

func TestDatabaseKilledAndBack(t *testing.T) {
	pg := testenv.PostgresServer(t)
	s := open(t, store.Options{URL: durable(pg.Database()), Timeout: 3 * time.Second})
	commit(t, s, addUpstream("v1"))
	write(t, s, event("a", nil))
	pg.Kill()
	for deadline := time.Now().Add(20 * time.Second); s.Ping(t.Context()) == nil; { // backends outlive the server by a moment
		if time.Now().After(deadline) {
			t.Fatal("the database answers after its end")
		}
	}
	for range 3 {
		if _, err := s.LatestRevision(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("read: %v", err)
		}
		if _, _, err := s.Commit(t.Context(), addUpstream("v2")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("commit: %v", err)
		}
		if err := s.WriteEvents(t.Context(), nil); err != nil {
			t.Errorf("empty batch: %v", err)
		}
	}
	pg.Restart()
	var err error
	for range 5 { // at most one error for each dead connection of the pool
		if _, err = s.LatestRevision(t.Context()); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("after restart: %v", err)
	}
	write(t, s, event("a", nil), event("b", nil))
	if got := totals(t, s); got.Requests != 2 || got.RollupRequests != 2 {
		t.Errorf("after restart: %+v", got)
	}
	if snap := commit(t, s, addUpstream("v2")); names(snap) != "v1 v2" {
		t.Errorf("after restart: %s", names(snap))
	}
	if n, err := s.VerifyAudit(t.Context()); n != 2 || err != nil {
		t.Errorf("audit: %d, %v", n, err)
	}
}

func TestLazyOpenMigratesWhenTheDatabaseIsBack(t *testing.T) {
	pg := testenv.PostgresServer(t)
	url := pg.Database()
	pg.Kill()
	s, err := store.Open(t.Context(), store.Options{URL: url, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Latest(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("away: %v", err)
	}
	pg.Restart()
	commit(t, s, addUpstream("v1"))
}

// durable undoes the test server's synchronous_commit=off, with which a kill
// of PostgreSQL loses what it acknowledged.
func durable(url string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + "synchronous_commit=on"
}

// TestCrashWhileWriting kills a process that commits and writes events as fast
// as it can, and looks for halves.
func TestCrashWhileWriting(t *testing.T) {
	if url := os.Getenv("SLUICE_TEST_CRASH"); url != "" {
		crashWriter(url)
		return
	}
	engines(t, func(t *testing.T, o store.Options) {
		if o.URL == "sqlite::memory:" {
			t.Skip("nothing survives")
		}
		s := open(t, o)
		for round := range 3 {
			cmd := exec.Command(os.Args[0], "-test.run=^TestCrashWhileWriting$")
			cmd.Env = append(os.Environ(), "SLUICE_TEST_CRASH="+o.URL, fmt.Sprint("SLUICE_TEST_ROUND=", round))
			out := &strings.Builder{}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wantCommits, wantEvents := int64(round*5+5), int64(round*20+20)
			deadline := time.Now().Add(30 * time.Second)
			for {
				n, err := s.VerifyAudit(t.Context())
				if err != nil {
					t.Errorf("while it writes: %v", err)
				}
				if n >= wantCommits && totals(t, s).Requests >= wantEvents {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the writer does not get on: %s", out)
				}
				time.Sleep(5 * time.Millisecond)
			}
			cmd.Process.Kill()
			cmd.Wait()
			n, err := s.VerifyAudit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			snap, err := s.Latest(t.Context())
			if err != nil || int64(len(snap.Document.Upstreams)) != n || int64(len(snap.Keys)) != n {
				t.Errorf("%d audit rows, %d upstreams, %d keys, %v: a commit is half written", n, len(snap.Document.Upstreams), len(snap.Keys), err)
			}
			got := totals(t, s)
			if got.Requests != got.RollupRequests || got.Attempts != 2*got.Requests || got.Input != got.RollupInput {
				t.Errorf("an event is half written: %+v", got)
			}
		}
	})
}

func crashWriter(url string) {
	s, err := store.Open(context.Background(), store.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	round := os.Getenv("SLUICE_TEST_ROUND")
	for i := 0; ; i++ {
		name := fmt.Sprintf("u%s-%d", round, i)
		ch := addUpstream(name)
		add := ch.Mutate
		ch.Mutate = func(s *router.Snapshot, rev int64) error {
			s.Keys = append(s.Keys, router.Key{ID: name, Hash: name})
			return add(s, rev)
		}
		if _, _, err := s.Commit(context.Background(), ch); err != nil {
			fmt.Println(err)
		}
		for j := range 5 {
			if err := s.WriteEvents(context.Background(), []metrics.Event{event(fmt.Sprintf("%s-%d", name, j), nil)}); err != nil {
				fmt.Println(err)
			}
		}
	}
}

func TestSQLiteFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.db")
	open(t, store.Options{URL: "sqlite:" + path})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
