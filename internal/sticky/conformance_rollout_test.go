package sticky_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/sticky"
)

// testStream: entries of several writers have one order, each is read once
// whatever the size of the reads, and one experiment's are not another's.
func testStream(t *testing.T, k kind) {
	const each = 200
	stores, ctx := k.replicas(t, 3, sticky.Options{}), t.Context()
	if list, err := stores[0].Observed(ctx, "e", "", 10); err != nil || len(list) != 0 {
		t.Fatalf("before the first: %v, %v", list, err)
	}
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for n := range each {
				if err := s.Observe(ctx, "e", fmt.Appendf(nil, "%d/%03d", i, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := stores[0].Observe(ctx, "other", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var order [][]string
	for _, most := range []int{1, 7, 5000} {
		var got []string
		for after, at := "", int64(0); ; {
			list, err := stores[1].Observed(ctx, "e", after, most)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			for _, o := range list {
				if o.At < at {
					t.Fatalf("entry %s is of %d, before %d", o.ID, o.At, at)
				}
				got, after, at = append(got, string(o.Body)), o.ID, o.At
			}
		}
		order = append(order, got)
	}
	if d := cmp.Diff(order[0], order[1]) + cmp.Diff(order[0], order[2]); d != "" {
		t.Errorf("the order depends on the size of the reads:\n%s", d)
	}
	if len(order[0]) != 3*each {
		t.Errorf("read %d entries of %d", len(order[0]), 3*each)
	}
	next := map[string]int{}
	for _, body := range order[0] {
		who, n, _ := strings.Cut(body, "/")
		if n != fmt.Sprintf("%03d", next[who]) {
			t.Fatalf("entry %s of replica %s comes at place %d", n, who, next[who])
		}
		next[who]++
	}
	// A stream that was lost begins again, perhaps by an earlier clock.
	if list, err := stores[0].Observed(ctx, "other", "99999999999999-0", 10); err != nil || len(list) != 1 {
		t.Errorf("behind an id that the stream never had: %v, %v", list, err)
	}
	if _, err := stores[0].Observed(ctx, "e", "nonsense", 10); err == nil {
		t.Error("a position that is none was taken")
	}
}

func testCheckpoint(t *testing.T, k kind) {
	stores, ctx := k.replicas(t, 2, sticky.Options{}), t.Context()
	if _, err := stores[0].LoadCheckpoint(ctx, "e"); !errors.Is(err, sticky.ErrNone) {
		t.Fatalf("before the first: %v", err)
	}
	big := bytes.Repeat([]byte("evidence "), 50_000)
	for i, step := range []struct {
		fence  int64
		body   []byte
		fenced bool
	}{
		{3, []byte("a"), false},
		{3, big, false},
		{4, []byte("b"), false},
		{3, []byte("old"), true},
		{1<<53 - 2, []byte("c"), false},
		{1<<53 - 3, []byte("old"), true},
		{1<<53 - 1, nil, false},
	} {
		s := stores[i%2]
		err := s.Checkpoint(ctx, "e", step.fence, step.body)
		if errors.Is(err, sticky.ErrFenced) != step.fenced || !step.fenced && err != nil {
			t.Fatalf("step %d: %v, want fenced %v", i, err, step.fenced)
		}
		got, err := stores[1-i%2].LoadCheckpoint(ctx, "e")
		if err != nil {
			t.Fatal(err)
		}
		if !step.fenced && !bytes.Equal(got, step.body) || step.fenced && string(got) == "old" {
			t.Fatalf("step %d: %d bytes are stored", i, len(got))
		}
	}
	for _, fence := range []int64{0, -1, 1 << 53} {
		if err := stores[0].Checkpoint(ctx, "e", fence, nil); err == nil || errors.Is(err, sticky.ErrFenced) {
			t.Errorf("fence %d: %v, want a range error", fence, err)
		}
	}
	if err := stores[0].Checkpoint(ctx, "f", 1, []byte("f")); err != nil {
		t.Errorf("another experiment shares the fence: %v", err)
	}
	if err := stores[0].DropRollout(ctx, "e"); err != nil {
		t.Fatal(err)
	}
	if _, err := stores[1].LoadCheckpoint(ctx, "e"); !errors.Is(err, sticky.ErrNone) {
		t.Errorf("dropped: %v", err)
	}
	if b, err := stores[1].LoadCheckpoint(ctx, "f"); err != nil || string(b) != "f" {
		t.Errorf("the other one: %q, %v", b, err)
	}
}

func testShare(t *testing.T, k kind) {
	stores, ctx := k.replicas(t, 2, sticky.Options{}), t.Context()
	big := strings.Repeat("unit ", 20_000)
	for _, s := range []struct{ topic, body string }{{"7", "old"}, {"7", big}, {"8", ""}} {
		for _, st := range stores {
			if err := st.Share(ctx, "e", s.topic, []byte(s.body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := len(stores)
	if k.name == "embedded" { // one store stands for all
		want = 1
	}
	for topic, body := range map[string]string{"7": big, "8": ""} {
		by, err := stores[1].Shared(ctx, "e", topic)
		if err != nil || len(by) != want {
			t.Fatalf("topic %s: %d shares, %v; want %d", topic, len(by), err, want)
		}
		for id, b := range by {
			if string(b) != body {
				t.Errorf("topic %s: %s left %d bytes, want %d", topic, id, len(b), len(body))
			}
		}
	}
	if err := stores[0].DropRollout(ctx, "e"); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"7", "8", "never"} {
		if by, err := stores[1].Shared(ctx, "e", topic); err != nil || len(by) != 0 {
			t.Errorf("topic %s: %v, %v", topic, by, err)
		}
	}
}

func testSupervision(t *testing.T, k kind) {
	stores, ctx := k.replicas(t, 2, sticky.Options{}), t.Context()
	if _, ok, err := stores[0].Supervised(ctx); ok || err != nil {
		t.Fatalf("before the first heartbeat: %v, %v", ok, err)
	}
	if err := stores[0].Supervise(ctx, 4, 1); err != nil {
		t.Fatal(err)
	}
	if ago, ok, err := stores[1].Supervised(ctx); !ok || err != nil || ago < 0 || ago > 20*time.Second {
		t.Errorf("after a heartbeat: %v ago, %v, %v", ago, ok, err)
	}
}
