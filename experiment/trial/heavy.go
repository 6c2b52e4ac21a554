package trial

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// heavy finds the units with large shares of the traffic in bounded memory
// (Misra and Gries, "Finding repeated elements", 1982), over the last window and
// the one before it.
type heavy struct {
	since    time.Time
	now, old counts
}

type counts struct {
	total int64
	units map[uint64]*heavyCount
}

type heavyCount struct {
	n           int64
	field       [8]byte
	key, tenant string
}

const (
	heavyWindow = 5 * time.Minute
	heavySlots  = 40   // a unit with more than 1/41 of all is among them
	heavyShare  = 0.10 // from which a unit is named
	heavyLeast  = 100  // requests looked at, below which nobody is heavy
	heavyOneIn  = 8    // requests that are looked at: shares are wanted, not counts
)

func (d *desk) weigh(in *Start, request, unit uint64) {
	if !in.HasUnit || request%heavyOneIn != 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h := &d.heavy
	if in.At.Sub(h.since) > heavyWindow {
		h.old, h.now, h.since = h.now, counts{units: map[uint64]*heavyCount{}}, in.At
	}
	c := &h.now
	c.total++
	switch have := c.units[unit]; {
	case have != nil:
		have.n++
	case len(c.units) < heavySlots:
		c.units[unit] = &heavyCount{1, in.Unit, in.Key, in.Tenant}
	default:
		for u, o := range c.units {
			if o.n--; o.n == 0 {
				delete(c.units, u)
			}
		}
	}
}

// over names the units whose share is over heavyShare for sure.
func (h *heavy) over(now time.Time) []HeavyUnit {
	if now.Sub(h.since) > 2*heavyWindow {
		return nil
	}
	total := h.now.total + h.old.total
	if total < heavyLeast {
		return nil
	}
	var out []HeavyUnit
	add := func(c *heavyCount, n int64) {
		if share := float64(n) / float64(total); share > heavyShare {
			out = append(out, HeavyUnit{Field: hex.EncodeToString(c.field[:]), Key: c.key, Tenant: c.tenant, Share: share})
		}
	}
	for u, c := range h.now.units {
		n := c.n
		if o := h.old.units[u]; o != nil {
			n += o.n
		}
		add(c, n)
	}
	for u, c := range h.old.units {
		if h.now.units[u] == nil {
			add(c, c.n)
		}
	}
	slices.SortFunc(out, func(a, b HeavyUnit) int { return strings.Compare(a.Field, b.Field) })
	return out
}
