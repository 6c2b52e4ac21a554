package sticky_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sluice/experiment"
	"sluice/internal/sticky"
)

// TestConformance runs one suite on every backend.
func TestConformance(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			if k.start != nil {
				k.url = k.start(t)
			}
			for _, c := range []struct {
				name string
				test func(*testing.T, kind)
			}{
				{"PinVectors", testPinVectors},
				{"PutRule", testPutRule},
				{"PutRaces", testPutRaces},
				{"PinsAreSeparate", testPinsAreSeparate},
				{"PutLater", testPutLater},
				{"Conversations", testConversations},
				{"DropAndExpirePins", testDropAndExpirePins},
				{"Publish", testPublish},
				{"Follow", testFollow},
				{"Replicas", testReplicas},
				{"Kills", testKills},
				{"KillLatency", testKillLatency},
				{"Lease", testLease},
				{"Stream", testStream},
				{"Checkpoint", testCheckpoint},
				{"Share", testShare},
				{"Supervision", testSupervision},
				{"CloseFlushes", testCloseFlushes},
				{"RefillOnStart", testRefillOnStart},
			} {
				t.Run(c.name, func(t *testing.T) { c.test(t, k) })
			}
		})
	}
}

func testPinVectors(t *testing.T, k kind) {
	raw, err := os.ReadFile("testdata/pins.json")
	if err != nil {
		t.Fatal(err)
	}
	type vectorPin struct {
		Variant uint8  `json:"variant"`
		Gen     uint16 `json:"gen"`
	}
	var v struct {
		Steps []struct {
			Op struct {
				vectorPin
				Expect *vectorPin `json:"expect"`
			} `json:"op"`
			Want vectorPin `json:"want"`
		} `json:"one_unit_sequence"`
	}
	if err := json.Unmarshal(raw, &v); err != nil || len(v.Steps) == 0 {
		t.Fatalf("pins.json: %v, %d steps", err, len(v.Steps))
	}
	s := k.replicas(t, 1, sticky.Options{})[0]
	for i, step := range v.Steps {
		var expect *experiment.Pin
		if e := step.Op.Expect; e != nil {
			p := pin(e.Variant, e.Gen)
			expect = &p
		}
		got := mustPut(t, s, "exp", 1, pin(step.Op.Variant, step.Op.Gen), expect)
		if want := pin(step.Want.Variant, step.Want.Gen); got != want {
			t.Fatalf("step %d: got %+v, want %+v", i, got, want)
		}
		if p, found := mustGet(t, s, "exp", 1); !found || p != got {
			t.Fatalf("step %d: then Get: %+v, %v", i, p, found)
		}
	}
}

// testPutRule holds random writes by two replicas against the rule itself.
func testPutRule(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		model := map[int]experiment.Pin{}
		anyPin := rapid.Custom(func(r *rapid.T) experiment.Pin {
			return experiment.Pin{Variant: rapid.Byte().Draw(r, "variant"), Gen: rapid.SampledFrom([]uint16{0, 1, 2, 255, 256, 65535}).Draw(r, "gen"),
				Revision: rapid.SampledFrom([]uint32{0, 1, 1<<32 - 1}).Draw(r, "revision"), Flags: rapid.SampledFrom([]uint8{0, 1, 2, 3}).Draw(r, "flags")}
		})
		for range rapid.IntRange(1, 12).Draw(r, "ops") {
			i := rapid.IntRange(0, 2).Draw(r, "unit")
			u := round*10 + i
			p := anyPin.Draw(r, "pin")
			var expect *experiment.Pin
			cur, has := model[u]
			switch rapid.IntRange(0, 2).Draw(r, "expect") {
			case 1:
				expect = &cur
			case 2:
				e := anyPin.Draw(r, "other")
				expect = &e
			}
			if !has || cur.Gen < p.Gen || expect != nil && *expect == cur {
				model[u] = p
			}
			s := stores[rapid.IntRange(0, 1).Draw(r, "replica")]
			if got := mustPut(t, s, "exp", u, p, expect); got != model[u] {
				r.Fatalf("put %+v expecting %+v over %+v (%v): got %+v, want %+v", p, expect, cur, has, got, model[u])
			}
		}
		for u, want := range model {
			if got, found := mustGet(t, stores[0], "exp", u); !found || got != want {
				r.Fatalf("unit %d: got %+v, %v, want %+v", u, got, found, want)
			}
		}
	})
}

// testPutRaces: many writers of one unit are all told the same winner.
func testPutRaces(t *testing.T, k kind) {
	stores := k.replicas(t, 2, sticky.Options{})
	for u := range 50 {
		var wg sync.WaitGroup
		got := make([]experiment.Pin, 8)
		for w := range got {
			wg.Go(func() {
				got[w] = mustPut(t, stores[w%2], "race", u, pin(uint8(w), 1), nil)
			})
		}
		wg.Wait()
		for w := range got {
			if got[w] != got[0] {
				t.Fatalf("unit %d: writer %d was told %+v, writer 0 %+v", u, w, got[w], got[0])
			}
		}
	}
}

func testPinsAreSeparate(t *testing.T, k kind) {
	s := k.replicas(t, 1, sticky.Options{})[0]
	mustPut(t, s, "a", 1, pin(1, 1), nil)
	mustPut(t, s, "b", 1, pin(2, 1), nil)
	mustPut(t, s, "a", 1+1<<14, pin(3, 1), nil) // the same shard after masking
	for _, c := range []struct {
		exp  string
		unit int
		want uint8
	}{{"a", 1, 1}, {"b", 1, 2}, {"a", 1 + 1<<14, 3}} {
		if p, found := mustGet(t, s, c.exp, c.unit); !found || p.Variant != c.want {
			t.Errorf("%s/%d: got %+v, %v", c.exp, c.unit, p, found)
		}
	}
	if _, found := mustGet(t, s, "a", 2); found {
		t.Error("found a pin that was never written")
	}
}

func testPutLater(t *testing.T, k kind) {
	var conflicts atomic.Int64
	stores := k.replicas(t, 2, sticky.Options{OnConflict: func(exp string, f [8]byte, lost, stored experiment.Pin) {
		if exp == "later" && f == field(7) && lost == pin(2, 1) && stored == pin(1, 1) {
			conflicts.Add(1)
		}
	}})
	for i := range 2000 {
		stores[0].PutLater("later", field(i), uint16(i), pin(1, 1))
	}
	eventually(t, "an empty queue", func() bool { return stores[0].Stats().Queue == 0 })
	eventually(t, "the pins at the other replica", func() bool {
		for _, i := range []int{0, 7, 1999} {
			if p, found := mustGet(t, stores[1], "later", i); !found || p != pin(1, 1) {
				return false
			}
		}
		return true
	})
	stores[1].PutLater("later", field(7), 7, pin(2, 1)) // first come
	eventually(t, "a conflict", func() bool { return conflicts.Load() == 1 })
	// Who was shown both leaves the analysis; the variant stays.
	both := pin(1, 1)
	both.Flags = experiment.PinExcluded
	eventually(t, "the mark", func() bool { p, _ := mustGet(t, stores[0], "later", 7); return p == both })
	stores[1].PutLater("later", field(7), 7, pin(1, 1))
	if p, _ := mustGet(t, stores[1], "later", 7); p != both {
		t.Errorf("the loser reads %+v", p)
	}
	if n := stores[1].Stats().Counters[sticky.CountPinConflict]; n != 1 {
		t.Errorf("counted %d conflicts, want 1", n)
	}
}

func testDropAndExpirePins(t *testing.T, k kind) {
	backup := &memBackup{}
	stores := k.replicas(t, 2, sticky.Options{Backup: backup})
	s := stores[0]
	for i := range 100 {
		mustPut(t, s, "gone", i, pin(1, 1), nil)
		mustPut(t, s, "kept", i, pin(1, 1), nil)
	}
	eventually(t, "the copies", func() bool { return backup.len("gone") == 100 && backup.len("kept") == 100 })
	if err := s.DropPins(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, found := mustGet(t, stores[1], "gone", i); found {
			t.Fatalf("pin %d is still there", i)
		}
		if _, found := mustGet(t, stores[1], "kept", i); !found {
			t.Fatalf("pin %d of another experiment is gone", i)
		}
	}
	if backup.len("gone") != 0 || backup.len("kept") != 100 {
		t.Errorf("copies: %d and %d, want 0 and 100", backup.len("gone"), backup.len("kept"))
	}
	if err := s.ExpirePins(t.Context(), "kept", 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "expired pins", func() bool { _, found := mustGet(t, s, "kept", 5); return !found })
}

// testCloseFlushes: what was queued is in the store and in the backup after Close.
func testCloseFlushes(t *testing.T, k kind) {
	backup := &memBackup{}
	s := k.replicas(t, 1, sticky.Options{Backup: backup})[0]
	const n = 5000
	for i := range n {
		s.PutLater("e", field(i), uint16(rand.N(1<<16)), pin(1, 1))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := backup.len("e"); got != n {
		t.Errorf("%d pins in the backup, want %d", got, n)
	}
	st := s.Stats()
	if st.Queue != 0 || st.Backup != 0 || st.Counters[sticky.CountPinDropped] != 0 {
		t.Errorf("left over: %+v", st)
	}
	s.PutLater("e", field(n+1), 0, pin(1, 1))
	if got := s.Stats().Counters[sticky.CountPinDropped]; got != 1 {
		t.Errorf("a late pin was not counted as dropped: %d", got)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// testRefillOnStart: an empty store answers no pin as absent before the copies are in.
func testRefillOnStart(t *testing.T, k kind) {
	backup := &memBackup{slow: make(chan struct{})}
	var recs []sticky.PinRecord
	for i := range 1000 {
		recs = append(recs, sticky.PinRecord{Experiment: "e", Field: field(i), Shard: uint16(i), Pin: pin(uint8(i%3), 4)})
	}
	if err := backup.SavePins(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	s := k.replicas(t, 1, sticky.Options{Backup: backup})[0]
	eventually(t, "refilling", func() bool { return s.Stats().State == sticky.Refilling })
	if p, found, err := s.Get(t.Context(), "e", field(1), 1); !errors.Is(err, sticky.ErrDown) {
		t.Fatalf("Get while refilling: %+v, %v, %v", p, found, err)
	}
	if _, err := s.Put(t.Context(), "e", field(1), 1, pin(9, 4), nil); !errors.Is(err, sticky.ErrDown) {
		t.Fatalf("Put while refilling: %v", err)
	}
	s.PutLater("e", field(1), 1, pin(9, 4)) // must not get in before the copy
	if err := s.Publish(t.Context(), 1, []byte("{}")); err != nil {
		t.Errorf("publish while refilling: %v", err)
	}
	close(backup.slow)
	eventually(t, "up", isUp(s))
	eventually(t, "the queued pin lost", func() bool { return s.Stats().Counters[sticky.CountPinConflict] == 1 })
	for i := range 1000 {
		if p, found := mustGet(t, s, "e", i); !found || p.Variant != uint8(i%3) || p.Gen != 4 {
			t.Fatalf("unit %d: %+v, %v", i, p, found)
		}
	}
	eventually(t, "the mark of who was shown both", func() bool { p, _ := mustGet(t, s, "e", 1); return p.Flags == experiment.PinExcluded })
	if _, found := mustGet(t, s, "e", 1001); found {
		t.Error("found a pin that never was")
	}
}
