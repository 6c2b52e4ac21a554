package sticky

import (
	"bytes"
	"compress/gzip"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sluice/experiment"
)

func TestPinCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := experiment.Pin{Variant: rapid.Uint8().Draw(t, "v"), Gen: rapid.Uint16().Draw(t, "g"),
			Revision: rapid.Uint32().Draw(t, "r"), Flags: rapid.Uint8().Draw(t, "f")}
		b := encodePin(p)
		if got, ok := decodePin(string(b[:])); !ok || got != p {
			t.Fatalf("%+v became %+v", p, got)
		}
	})
	if b := encodePin(experiment.Pin{Variant: 1, Gen: 0x0203, Revision: 0x04050607, Flags: 8}); b != [8]byte{1, 2, 3, 4, 5, 6, 7, 8} {
		t.Errorf("layout: % x", b)
	}
	for _, bad := range []string{"", "1234567", "123456789"} {
		if _, ok := decodePin(bad); ok {
			t.Errorf("%q was taken for a pin", bad)
		}
	}
}

func testUnit(i int) unit {
	return unit{"e", [8]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 0, 0, byte(i >> 8), byte(i)}}
}

func TestCacheKeepsTheRecent(t *testing.T) {
	c := newCache(1600)
	for i := range 10_000 {
		c.put(testUnit(i), cached{pin: experiment.Pin{Variant: 1}})
		if _, ok := c.get(testUnit(0)); !ok { // in use all the time
			t.Fatalf("a unit in use was forgotten after %d others", i)
		}
	}
	if n := c.len(); n > 1600 || n < 700 {
		t.Errorf("%d entries, want at most 1600 and about half of it", n)
	}
	if _, ok := c.get(testUnit(9999)); !ok {
		t.Error("the newest was forgotten")
	}
	if _, ok := c.get(testUnit(100)); ok {
		t.Error("an old one was kept")
	}
	c.drop("e")
	if n := c.len(); n != 0 {
		t.Errorf("%d entries after drop", n)
	}
}

// TestQueue holds the ring against a plain slice.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 3000).Draw(t, "limit")
		q, model, n := newQueue(limit), []int(nil), 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") {
				for range rapid.IntRange(1, 2000).Draw(t, "count") {
					lost, dropped := q.push(putOp{shard: uint16(n)})
					if model = append(model, n); dropped != (len(model) > limit) {
						t.Fatalf("dropped %v with %d of %d", dropped, len(model), limit)
					}
					if dropped {
						if lost.shard != uint16(model[0]) {
							t.Fatalf("dropped %d, the oldest is %d", lost.shard, model[0])
						}
						model = model[1:]
					}
					n++
				}
			} else {
				for _, op := range q.take(rapid.IntRange(0, 1500).Draw(t, "take")) {
					if op.shard != uint16(model[0]) {
						t.Fatalf("took %d, the oldest is %d", op.shard, model[0])
					}
					model = model[1:]
				}
			}
			if q.len() != len(model) {
				t.Fatalf("%d waiting, want %d", q.len(), len(model))
			}
		}
	})
}

func TestBackupOrder(t *testing.T) {
	b := newBackup()
	add := func(gen uint16, rev uint32) bool {
		return b.add(PinRecord{Experiment: "e", Pin: experiment.Pin{Gen: gen, Revision: rev}})
	}
	for _, s := range []struct {
		gen  uint16
		rev  uint32
		want experiment.Pin
	}{
		{1, 5, experiment.Pin{Gen: 1, Revision: 5}},
		{1, 4, experiment.Pin{Gen: 1, Revision: 5}},
		{2, 1, experiment.Pin{Gen: 2, Revision: 1}},
		{1, 9, experiment.Pin{Gen: 2, Revision: 1}},
		{2, 1<<32 - 1, experiment.Pin{Gen: 2, Revision: 1}}, // older: the counter wrapped
	} {
		if !add(s.gen, s.rev) {
			t.Fatal("no room")
		}
		if got := b.pending(); len(got) != 1 || got[0].Pin != s.want {
			t.Fatalf("after %d/%d: %+v, want %+v", s.gen, s.rev, got, s.want)
		}
	}
	if got := b.take(10); len(got) != 1 || len(b.pending()) != 1 {
		t.Errorf("a batch that is being saved is still pending: %v", b.pending())
	}
	b.saved()
	if len(b.pending()) != 0 {
		t.Error("a saved batch is still pending")
	}
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for range 100 { // one stall that many requests meet
			if b.failure() {
				t.Fatal("opened at once")
			}
		}
		time.Sleep(breakSpan)
		if !b.failure() || !b.open() || b.failure() {
			t.Fatal("did not open, or opened twice")
		}
		b.success() // a straggler of before
		if !b.open() {
			t.Fatal("a straggler closed it")
		}
		if b.reset(); b.open() {
			t.Fatal("the first look did not close it")
		}
		var last time.Duration
		for range 10 { // the look succeeds, requests do not
			for !b.open() {
				b.failure()
				time.Sleep(breakSpan / 2)
			}
			start := time.Now()
			for b.reset(); b.open(); b.reset() {
				time.Sleep(time.Millisecond)
			}
			last = time.Since(start)
		}
		if last < maxHold-2*breakSpan || last > maxHold+breakSpan {
			t.Errorf("hold grew to %v, want %v", last, maxHold)
		}
		b.success()
		if b.hold != 0 {
			t.Errorf("hold %v after a success", b.hold)
		}
	})
}

func TestUnpackHostile(t *testing.T) {
	const limit = 1 << 20
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	if _, err := w.Write(make([]byte, limit+1)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for _, c := range []struct {
		name, enc string
		doc       []byte
	}{
		{"not gzip", "gzip", []byte("{}")},
		{"cut", "gzip", bomb.Bytes()[:bomb.Len()/2]},
		{"bomb", "gzip", bomb.Bytes()},
		{"unknown encoding", "zstd", []byte("{}")},
	} {
		if _, err := unpack(c.doc, c.enc, limit); err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
}

func TestURLs(t *testing.T) {
	const pw = "s3cr3t"
	for _, c := range []struct {
		url     string
		addrs   int
		cluster bool
		master  string
		err     string
	}{
		{"redis://h:1/2", 1, false, "", ""},
		{"rediss://u:" + pw + "@h:1", 1, false, "", ""},
		{"unix:///run/redis.sock?db=1", 1, false, "", ""},
		{"redis://h:1?cluster=true", 1, true, "", ""},
		{"redis://h:1?addr=i:2&addr=j:3", 3, true, "", ""},
		{"redis://:" + pw + "@h:1/0?master_name=m&addr=i:2", 2, false, "m", ""},
		{"http://u:" + pw + "@h:1", 0, false, "", "scheme"},
		{"redis://u:" + pw + "@h:1/notadb", 0, false, "", "database"},
		{"redis://u:" + pw + "%zz@h:1", 0, false, "", "not a URL"},
		{"redis://h:1?nonsense=1", 0, false, "", "nonsense"},
	} {
		o, cluster, err := universal(Options{URL: c.url})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), pw) {
				t.Errorf("%s: error %v, want one with %q and no password", c.url, err, c.err)
			}
			continue
		}
		if err != nil || len(o.Addrs) != c.addrs || cluster != c.cluster || o.MasterName != c.master {
			t.Errorf("%s: %+v, cluster %v, %v", c.url, o, cluster, err)
		}
	}
}

// hung is a backend that at some time does not answer renewals any more.
type hung struct {
	*embedded
	silent atomic.Bool
}

func (h *hung) renew(ctx context.Context, id string, fence int64, ttl time.Duration) (bool, error) {
	if h.silent.Load() {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return h.embedded.renew(ctx, id, fence, ttl)
}

// TestLeaseInTime: a lease is kept as long as it is renewed, and a holder that
// cannot renew stops before another can have it.
func TestLeaseInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		be := &hung{embedded: newEmbedded()}
		o := Options{ReplicaID: "a", Log: slog.New(slog.DiscardHandler)}
		o.setDefaults()
		s := openOn(t.Context(), o, be)
		defer s.Close(t.Context())
		l, err := s.Lease(t.Context(), 7)
		if err != nil || l == nil || l.Fence() != 8 {
			t.Fatalf("%+v, %v", l, err)
		}
		time.Sleep(10 * leaseTTL)
		if !l.Valid() {
			t.Fatal("not renewed")
		}
		be.silent.Store(true)
		for l.Valid() {
			if _, ok, _ := be.acquire(t.Context(), "b", 0, leaseTTL); ok {
				t.Fatal("another replica got the lease while this one trusted it")
			}
			time.Sleep(10 * time.Millisecond)
		}
		<-l.Done()
		time.Sleep(leaseTTL)
		if _, ok, _ := be.acquire(t.Context(), "b", 0, leaseTTL); !ok {
			t.Error("the lease of a silent holder did not end")
		}
	})
}

func TestReplicasExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), Options{ReplicaID: "a", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		if err := s.Report(t.Context(), Replica{ID: "a", Revision: 1}); err != nil {
			t.Fatal(err)
		}
		if err := s.be.report(t.Context(), Replica{ID: "silent"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ReplicaTTL - time.Second)
		if l, _ := s.Replicas(t.Context()); len(l) != 2 {
			t.Errorf("before the TTL: %v", l)
		}
		time.Sleep(2 * time.Second)
		if l, _ := s.Replicas(t.Context()); len(l) != 1 || l[0].ID != "a" {
			t.Errorf("after the TTL: %v, want the one that repeats its report", l)
		}
	})
}
