package trial

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// heavy finds the units with large shares of the traffic in bounded memory
// (Misra and Gries, "Finding repeated elements", 1982), over the window at hand
// and the one before it. Each shard has one: a unit is always in the same.
type heavy struct{ now, old shares }

type shares struct {
	total int64
	n     int
	units [heavySlots]unitShare
}

type unitShare struct {
	unit        uint64
	n           int64
	field       [8]byte
	key, tenant string
}

const (
	heavyWindow = 5 * time.Minute
	heavyShare  = 0.10 // from which a unit is named
	// heavySlots are more than 1/heavyShare: a unit with that share of a shard,
	// and more so of all, is among them for sure.
	heavySlots = 12
	heavyLeast = 100 // requests, below which nobody is heavy
)

// add counts a request.
func (c *shares) add(unit uint64, in *Start) {
	c.total++
	for i := range c.n {
		if c.units[i].unit == unit {
			c.units[i].n++
			return
		}
	}
	if c.n < len(c.units) {
		c.units[c.n] = unitShare{unit, 1, in.Unit, in.Key, in.Tenant}
		c.n++
		return
	}
	kept := 0
	for i := range c.n {
		if c.units[i].n--; c.units[i].n > 0 {
			c.units[kept] = c.units[i]
			kept++
		}
	}
	c.n = kept
}

// turn begins a new window.
func (h *heavy) turn() {
	h.old = h.now
	h.now = shares{}
}

// weights puts the shards together.
type weights struct {
	total int64
	units []unitShare
}

func (w *weights) take(h *heavy) {
	w.total += h.now.total + h.old.total
	from := len(w.units)
	w.units = append(w.units, h.now.units[:h.now.n]...)
	for _, o := range h.old.units[:h.old.n] {
		i := slices.IndexFunc(w.units[from:], func(u unitShare) bool { return u.unit == o.unit })
		if i < 0 {
			w.units = append(w.units, o)
		} else {
			w.units[from+i].n += o.n
		}
	}
}

// over names the units whose share is over heavyShare for sure.
func (w *weights) over() []HeavyUnit {
	if w.total < heavyLeast {
		return nil
	}
	var out []HeavyUnit
	for _, u := range w.units {
		if share := float64(u.n) / float64(w.total); share > heavyShare {
			out = append(out, HeavyUnit{Field: hex.EncodeToString(u.field[:]), Key: u.key, Tenant: u.tenant, Share: share})
		}
	}
	slices.SortFunc(out, func(a, b HeavyUnit) int { return strings.Compare(a.Field, b.Field) })
	return out
}
