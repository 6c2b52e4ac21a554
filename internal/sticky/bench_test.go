package sticky_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

func benchStore(b *testing.B, url string) *sticky.Store {
	b.Helper()
	s, err := sticky.Open(b.Context(), sticky.Options{URL: url, ReplicaID: "a"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(b.Context()) })
	return s
}

func BenchmarkGetRedis(b *testing.B) { benchGet(b, testenv.Redis(b).URL) }

func BenchmarkGetEmbedded(b *testing.B) { benchGet(b, "") }

func benchGet(b *testing.B, url string) {
	s := benchStore(b, url)
	if _, err := s.Put(b.Context(), "e", field(1), 1, pin(1, 1), nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = s.Get(b.Context(), "e", field(1), 1)
	}
}

// BenchmarkPutLaterAgain is the second and every further request of a unit.
func BenchmarkPutLaterAgain(b *testing.B) {
	s := benchStore(b, "")
	s.PutLater("e", field(1), 1, pin(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		s.PutLater("e", field(1), 1, pin(1, 1))
	}
}

// TestMeasure writes a million pins to a real Redis and reports memory and
// times; on demand only.
func TestMeasure(t *testing.T) {
	if os.Getenv("SLUICE_MEASURE") == "" {
		t.Skip("set SLUICE_MEASURE=1 to measure a million pins")
	}
	r := testenv.Redis(t)
	s := open(t, sticky.Options{URL: r.URL})
	c := client(t, r.URL)
	memory := func() int64 {
		info, err := c.Info(t.Context(), "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "used_memory:")
		n, _, _ := strings.Cut(rest, "\r")
		used, _ := strconv.ParseInt(n, 10, 64)
		return used
	}
	const n = 1_000_000
	before, start := memory(), time.Now()
	gen := rand.New(rand.NewPCG(1, 2))
	fields := make([][8]byte, n)
	for i := range fields {
		binary.BigEndian.PutUint64(fields[i][:], gen.Uint64())
		for s.Stats().Queue > 50_000 {
			time.Sleep(time.Millisecond)
		}
		s.PutLater("e", fields[i], uint16(i), pin(1, 1))
	}
	eventually(t, "an empty queue", func() bool { return s.Stats().Queue == 0 })
	t.Logf("%d pins written in %v; %.1f MB", n, time.Since(start).Round(time.Millisecond), float64(memory()-before)/1e6)
	get := make([]time.Duration, 20_000)
	put := make([]time.Duration, 20_000)
	for i := range get {
		u := gen.IntN(n)
		at := time.Now()
		_, _, err := s.Get(t.Context(), "e", fields[u], uint16(u))
		if get[i] = time.Since(at); err != nil {
			t.Logf("get: %v", err)
		}
		at = time.Now()
		if _, err := s.Put(t.Context(), "f", fields[u], uint16(u), pin(1, 1), nil); err != nil {
			t.Logf("put: %v", err)
		}
		put[i] = time.Since(at)
	}
	t.Logf("get: %s", quantiles(get))
	t.Logf("put: %s", quantiles(put))
}
