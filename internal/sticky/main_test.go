package sticky_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/experiment"
	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

// go-redis looks for a lost server from a goroutine that sleeps for a second at
// a time and notices a Close only then.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// kind is one backend that must pass the conformance suite.
type kind struct {
	name  string
	start func(t *testing.T) (url string) // nil: embedded
	url   string
}

func kinds() []kind {
	return []kind{
		{name: "embedded"},
		{name: "redis", start: func(t *testing.T) string { return testenv.Redis(t).URL }},
		{name: "cluster", start: cluster},
	}
}

// replicas opens n stores of one new deployment; URL, Prefix and ReplicaID are
// set here. Embedded, one store stands for all.
func (k kind) replicas(t *testing.T, n int, o sticky.Options) []*sticky.Store {
	t.Helper()
	// The suite is about what is answered. A write over its budget may still
	// be carried out later, which would break the order that the model assumes.
	o.PinBudget = 10 * time.Second
	if k.url != "" {
		o.URL, o.Prefix = k.url, "sluice-"+strings.ReplaceAll(t.Name(), "/", "-")
		return openN(t, n, o)
	}
	s := open(t, o)
	out := make([]*sticky.Store, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func openN(t *testing.T, n int, o sticky.Options) []*sticky.Store {
	t.Helper()
	out := make([]*sticky.Store, n)
	for i := range out {
		o.ReplicaID = "replica-" + string(rune('a'+i))
		out[i] = open(t, o)
	}
	return out
}

// open also closes the store when the test ends.
func open(t *testing.T, o sticky.Options) *sticky.Store {
	t.Helper()
	if o.ReplicaID == "" {
		o.ReplicaID = "replica-a"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := sticky.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

// closeStore ignores what could not be flushed; tests of that look at Close.
func closeStore(t *testing.T, s *sticky.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	_ = s.Close(ctx)
}

// eventually polls, since real services take real time; it fails after 20 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func isUp(s *sticky.Store) func() bool { return s.Up }

func field(i int) (f [8]byte) {
	for b := range f {
		f[7-b] = byte(i >> (8 * b))
	}
	return f
}

func pin(variant uint8, gen uint16) experiment.Pin { return experiment.Pin{Variant: variant, Gen: gen} }

// mustGet reads as a patient caller does: on a busy machine one read may miss
// its 5 ms.
func mustGet(t *testing.T, s *sticky.Store, exp string, i int) (experiment.Pin, bool) {
	t.Helper()
	var p experiment.Pin
	var found bool
	eventually(t, "an answer to Get", func() (ok bool) {
		var err error
		p, found, err = s.Get(t.Context(), exp, field(i), uint16(i))
		return err == nil
	})
	return p, found
}

// mustPut repeats a write that missed its budget; the put rule makes that safe.
func mustPut(t *testing.T, s *sticky.Store, exp string, i int, p experiment.Pin, expect *experiment.Pin) experiment.Pin {
	t.Helper()
	var got experiment.Pin
	eventually(t, "an answer to Put", func() (ok bool) {
		var err error
		got, err = s.Put(t.Context(), exp, field(i), uint16(i), p, expect)
		return err == nil
	})
	return got
}

// memBackup is a PinBackup in memory that can be told to fail.
type memBackup struct {
	mu   sync.Mutex
	pins map[string]map[[8]byte]sticky.PinRecord
	fail error
	slow chan struct{} // when set, LoadPins waits for it
}

func (b *memBackup) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func (b *memBackup) SavePins(_ context.Context, pins []sticky.PinRecord) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	if len(pins) > 1000 {
		return errors.New("batch too large")
	}
	if b.pins == nil {
		b.pins = map[string]map[[8]byte]sticky.PinRecord{}
	}
	for _, p := range pins {
		if b.pins[p.Experiment] == nil {
			b.pins[p.Experiment] = map[[8]byte]sticky.PinRecord{}
		}
		b.pins[p.Experiment][p.Field] = p
	}
	return nil
}

func (b *memBackup) LoadPins(ctx context.Context, yield func([]sticky.PinRecord) error) error {
	b.mu.Lock()
	slow, fail := b.slow, b.fail
	var all []sticky.PinRecord
	for _, m := range b.pins {
		for _, p := range m {
			all = append(all, p)
		}
	}
	b.mu.Unlock()
	if fail != nil {
		return fail
	}
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for len(all) > 0 {
		n := min(len(all), 700)
		if err := yield(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (b *memBackup) DropPins(_ context.Context, exp string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pins, exp)
	return b.fail
}

func (b *memBackup) len(exp string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pins[exp])
}

// logs collects log lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
