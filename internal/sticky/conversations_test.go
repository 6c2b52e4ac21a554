package sticky_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

func testConversations(t *testing.T, k kind) {
	var clock atomic.Int64 // hours since the tests' epoch
	clock.Store(1)
	backup := &memBackup{}
	stores := k.replicas(t, 2, sticky.Options{Backup: backup, Now: func() time.Time {
		return time.Unix(0, 0).Add(time.Duration(clock.Load()) * time.Hour)
	}})
	get := func(s *sticky.Store, i int) (p experiment.Pin, found bool) {
		eventually(t, "an answer", func() bool {
			var err error
			p, found, err = s.GetConversation(t.Context(), "talk", field(i), uint16(i))
			return err == nil
		})
		return p, found
	}
	is := func(s *sticky.Store, i int, want experiment.Pin) func() bool {
		return func() bool { p, found := get(s, i); return found && p == want }
	}
	for i := range 3 {
		stores[0].PutConversation("talk", field(i), uint16(i), pin(1, 1))
		eventually(t, "the other replica", is(stores[1], i, pin(1, 1)))
	}
	stores[1].PutConversation("talk", field(1), 1, pin(2, 1)) // the same words begin anew
	eventually(t, "the last to begin", is(stores[0], 1, pin(2, 1)))
	if _, found := mustGet(t, stores[0], "talk", 1); found {
		t.Error("a conversation is found as a unit")
	}
	mustPut(t, stores[0], "talk", 1, pin(5, 1), nil)
	if p, _ := get(stores[0], 1); p != pin(2, 1) {
		t.Errorf("a unit's pin became the conversation's: %+v", p)
	}

	clock.Store(13) // the next period: 1 goes on, 2 is silent
	if p, found := get(stores[1], 1); !found || p != pin(2, 1) {
		t.Fatalf("in the next period: %+v, %v", p, found)
	}
	eventually(t, "it moves along", func() bool { return stores[1].Stats().Queue == 0 })
	clock.Store(25)
	if p, found := get(stores[0], 1); !found || p != pin(2, 1) {
		t.Errorf("who went on: %+v, %v", p, found)
	}
	if p, found := get(stores[0], 2); found {
		t.Errorf("who was silent for two periods: %+v", p)
	}
	eventually(t, "the copy of the unit", func() bool { return backup.len("talk") == 1 })
	backup.mu.Lock()
	if len(backup.pins) != 1 {
		t.Errorf("the database has copies of %d experiments, want of the unit's alone", len(backup.pins))
	}
	backup.mu.Unlock()
	if err := stores[0].DropPins(t.Context(), "talk"); err != nil {
		t.Fatal(err)
	}
	if _, found := get(stores[0], 1); found {
		t.Error("a dropped experiment's conversation goes on")
	}
}

// While Redis is away the replica that served a conversation knows it, others
// say that they cannot know; Redis forgets by itself.
func TestConversationsWithoutRedis(t *testing.T) {
	r := testenv.Redis(t)
	stores := openN(t, 2, sticky.Options{URL: r.URL})
	stores[0].PutConversation("talk", field(1), 1, pin(1, 1))
	eventually(t, "the other replica", func() bool {
		_, found, err := stores[1].GetConversation(t.Context(), "talk", field(1), 1)
		return err == nil && found
	})
	c := client(t, r.URL)
	keys, err := c.Keys(t.Context(), "sluice:pin:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("%q, %v", keys, err)
	}
	if ttl := c.TTL(t.Context(), keys[0]).Val(); ttl < 23*time.Hour || ttl > 24*time.Hour {
		t.Errorf("it lives for %v, want two periods", ttl)
	}
	r.Kill()
	eventually(t, "away", func() bool { return stores[0].Stats().State == sticky.Down && stores[1].Stats().State == sticky.Down })
	stores[0].PutConversation("talk", field(2), 2, pin(2, 1))
	for i, want := range map[int]experiment.Pin{1: pin(1, 1), 2: pin(2, 1)} {
		if p, found, err := stores[0].GetConversation(t.Context(), "talk", field(i), uint16(i)); err != nil || !found || p != want {
			t.Errorf("conversation %d: %+v, %v, %v", i, p, found, err)
		}
	}
	if _, _, err := stores[1].GetConversation(t.Context(), "talk", field(2), 2); !errors.Is(err, sticky.ErrDown) {
		t.Errorf("unknown to a replica: %v", err)
	}
	if n := stores[0].Stats().Queue; n != 0 {
		t.Errorf("%d conversations wait in the units' queue", n)
	}
	r.Restart()
	eventually(t, "what was learnt meanwhile", func() bool {
		_, _, _ = stores[0].GetConversation(t.Context(), "talk", field(2), 2) // its next turn
		p, found, err := stores[1].GetConversation(t.Context(), "talk", field(2), 2)
		return err == nil && found && p == pin(2, 1)
	})
}
