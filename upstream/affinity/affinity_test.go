package affinity

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func idle(ids ...uint64) []Node {
	var list []Node
	for _, id := range ids {
		list = append(list, Node{ID: id, Weight: 1})
	}
	return list
}

func TestSpread(t *testing.T) {
	t.Parallel()
	const keys, servers = 60000, 6
	nodes := idle(11, 22, 33, 44, 55, 66)
	var got [servers]float64
	for k := range uint64(keys) {
		got[Pick(k, nodes)]++
	}
	chi := 0.0
	for _, n := range got {
		d := n - keys/servers
		chi += d * d / (keys / servers)
	}
	if chi > 20.5 { // 5 degrees of freedom, p = 0.001
		t.Errorf("chi² %.1f of %v", chi, got)
	}
}

func TestWeight(t *testing.T) {
	t.Parallel()
	nodes := idle(1, 2, 3)
	nodes[0].Weight = 0.1
	n := 0
	for k := range uint64(30000) {
		if Pick(k, nodes) == 0 {
			n++
		}
	}
	if share := float64(n) / 30000; math.Abs(share-0.1/2.1) > 0.006 {
		t.Errorf("a tenth of the weight got %.3f", share)
	}
}

// TestOnlyItsShareMoves: who leaves or comes moves nobody else.
func TestOnlyItsShareMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.Uint64(), 2, 12, rapid.ID).Draw(t, "ids")
		gone := rapid.IntRange(0, len(ids)-1).Draw(t, "gone")
		all := idle(ids...)
		rest := append(append([]Node{}, all[:gone]...), all[gone+1:]...)
		for range 50 {
			key := rapid.Uint64().Draw(t, "key")
			was, now := all[Pick(key, all)].ID, rest[Pick(key, rest)].ID
			if was != ids[gone] && was != now {
				t.Fatalf("the key of %d moved to %d when %d left", was, now, ids[gone])
			}
		}
	})
}

// TestBoundHolds: whatever the keys, no server gets more than its bound.
func TestBoundHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := idle(rapid.SliceOfNDistinct(rapid.Uint64(), 1, 8, rapid.ID).Draw(t, "ids")...)
		few := rapid.Uint64Range(0, 3).Draw(t, "keys")
		for n := 1; n <= 200; n++ {
			i := Pick(rapid.Uint64Range(0, few).Draw(t, "key"), nodes)
			nodes[i].InFlight++
			if limit := math.Ceil(Bound * float64(n) / float64(len(nodes))); float64(nodes[i].InFlight) > limit {
				t.Fatalf("%d of %d in flight on one of %d servers", nodes[i].InFlight, n, len(nodes))
			}
		}
	})
}

// TestCacheHits simulates prefix caches: conversations of ten turns over four
// servers, each of which remembers its last 300 conversations.
func TestCacheHits(t *testing.T) {
	t.Parallel()
	const servers, conversations, turns, room = 4, 1000, 10, 300
	run := func(pick func(key uint64, n int) int) float64 {
		type cache struct {
			at   map[uint64]int
			tick int
		}
		caches := make([]cache, servers)
		for i := range caches {
			caches[i].at = map[uint64]int{}
		}
		hits, n := 0, 0
		for range turns {
			for c := range uint64(conversations) {
				s := &caches[pick(c, n)]
				n++
				s.tick++
				if last, ok := s.at[c]; ok && s.tick-last <= room {
					hits++
				}
				s.at[c] = s.tick
			}
		}
		return float64(hits) / (conversations * (turns - 1))
	}
	nodes := idle(1, 2, 3, 4)
	prefix := run(func(key uint64, _ int) int { return Pick(key, nodes) })
	spread := run(func(_ uint64, n int) int { return int(mix(uint64(n)) % servers) })
	t.Logf("hits of turns that could: %.0f %% by prefix, %.0f %% spread at random", 100*prefix, 100*spread)
	if prefix < 0.9 || prefix < 2*spread {
		t.Errorf("%.2f by prefix, %.2f at random", prefix, spread)
	}
}

func BenchmarkPick(b *testing.B) {
	nodes := idle(1, 2, 3, 4, 5, 6, 7, 8)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		Pick(i, nodes)
	}
}
