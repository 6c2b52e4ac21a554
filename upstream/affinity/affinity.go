// Package affinity keeps the requests of one conversation on one server, so that
// its prefix cache serves them, without overloading that server: rendezvous
// hashing (Thaler and Ravishankar, 1998) with bounded loads (Mirrokni, Thorup
// and Zadimoghaddam, 2018).
package affinity

import "math"

// Bound is how far above the mean the load of a server may be.
const Bound = 1.25

// Node is a server that may be chosen.
type Node struct {
	ID       uint64  // of the server, the same on every replica
	InFlight int     // its load
	Weight   float64 // above 0; its share of what it would get otherwise
}

// Pick returns the index of the server for a key: of those whose load is within
// Bound of the mean, the one with the highest score. A server that leaves or
// comes moves only its own share of the keys. nodes must not be empty.
func Pick(key uint64, nodes []Node) int {
	var load, weight float64
	for i := range nodes {
		load += float64(nodes[i].InFlight)
		weight += nodes[i].Weight
	}
	best, least := -1, 0
	var top, lowest float64
	for i := range nodes {
		n := &nodes[i]
		// With the request at hand, as the paper has it.
		limit := math.Ceil(Bound * (load + 1) * n.Weight / weight)
		relative := float64(n.InFlight) / n.Weight
		if i == 0 || relative < lowest {
			least, lowest = i, relative
		}
		if float64(n.InFlight)+1 > limit {
			continue
		}
		if s := score(key, n); best < 0 || s > top {
			best, top = i, s
		}
	}
	if best < 0 {
		return least // rounding left no room anywhere
	}
	return best
}

// score is the weighted rendezvous score: -w / ln(u), u uniform by key and server.
func score(key uint64, n *Node) float64 {
	h := mix(mix(key) ^ n.ID)
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return -n.Weight / math.Log(u)
}

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
