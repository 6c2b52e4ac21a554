package experiment

import (
	"cmp"
	"fmt"
	"slices"
)

// Ownership says which variant owns each bucket, who owned it before and
// since which revision. It is immutable: Change returns a new one.
type Ownership struct {
	own, prev [Buckets]uint8
	since     [Buckets]int64
	revision  int64
}

// NewOwnership lays variants out as GrowthBook does: variant i owns
// [S_i, S_i+covered[i]) where S_i is the sum of full before i; the rest is
// outside. Counts are buckets; full adds up to at most Buckets and covered[i]
// is at most full[i]. For full coverage give the same slice twice.
func NewOwnership(full, covered []int, revision int64) (*Ownership, error) {
	if len(full) != len(covered) {
		return nil, fmt.Errorf("%d full and %d covered counts; give one of each per variant", len(full), len(covered))
	}
	if err := checkCounts(full, revision); err != nil {
		return nil, err
	}
	o := &Ownership{revision: revision}
	for b := range o.own {
		o.own[b], o.since[b] = Outside, revision
	}
	start := 0
	for i, n := range full {
		if covered[i] < 0 || covered[i] > n {
			return nil, fmt.Errorf("variant %d covers %d of its %d buckets", i, covered[i], n)
		}
		for b := start; b < start+covered[i]; b++ {
			o.own[b] = uint8(i)
		}
		start += n
	}
	// No owner before the first: a bucket's own owner never takes it back.
	o.prev = o.own
	return o, nil
}

func checkCounts(counts []int, revision int64) error {
	if len(counts) == 0 || len(counts) > MaxVariants {
		return fmt.Errorf("%d counts; give 1 to %d", len(counts), MaxVariants)
	}
	if revision < 0 {
		return fmt.Errorf("revision %d is negative", revision)
	}
	sum := 0
	for i, n := range counts {
		if n < 0 || n > Buckets {
			return fmt.Errorf("variant %d would own %d buckets; give 0 to %d", i, n, Buckets)
		}
		sum += n
	}
	if sum > Buckets {
		return fmt.Errorf("the variants would own %d buckets together; there are %d", sum, Buckets)
	}
	return nil
}

// Change gives variant i counts[i] buckets (those past the end of counts 0,
// what is left over goes outside) by moving as few buckets as possible:
// exactly half the sum of the differences, outside included. What was gained
// last is given back first, and to the owner before, so ramps are nested and
// an undone change restores the table. Moved buckets get since = revision,
// which must be above every earlier one for that to hold. A longer counts than
// before adds variants.
func (o *Ownership) Change(counts []int, revision int64) (next *Ownership, moved int, err error) {
	if err := checkCounts(counts, revision); err != nil {
		return nil, 0, err
	}
	need := o.needs(counts)
	free := o.release(&need)
	n := *o
	n.revision = revision
	take := func(b int, owner uint8) {
		n.prev[b], n.own[b], n.since[b] = o.own[b], owner, revision
		need[owner]--
		moved++
	}
	var rest []int
	for b := range free {
		if !free[b] {
			continue
		}
		if p := o.prev[b]; need[p] > 0 {
			take(b, p)
		} else {
			rest = append(rest, b)
		}
	}
	for owner := range need { // declared order; Outside is the last index
		for need[owner] > 0 {
			take(rest[0], uint8(owner))
			rest = rest[1:]
		}
	}
	return &n, moved, nil
}

// needs is, per owner, how many buckets it lacks (negative: has too many). It
// adds up to 0.
func (o *Ownership) needs(counts []int) (need [256]int) {
	need[Outside] = Buckets
	for i, n := range counts {
		need[i] = n
		need[Outside] -= n
	}
	for _, owner := range o.own {
		need[owner]--
	}
	return need
}

// release takes the surplus from each owner that has one, latest gained and
// highest bucket first, and marks those buckets. The surplus in need becomes 0.
func (o *Ownership) release(need *[256]int) *[Buckets]bool {
	var runs [][2]int // of one owner and one revision, half-open
	start := 0
	for b := 1; b <= Buckets; b++ {
		if b < Buckets && o.own[b] == o.own[start] && o.since[b] == o.since[start] {
			continue
		}
		if need[o.own[start]] < 0 {
			runs = append(runs, [2]int{start, b})
		}
		start = b
	}
	slices.SortFunc(runs, func(x, y [2]int) int {
		return cmp.Or(cmp.Compare(o.since[y[0]], o.since[x[0]]), cmp.Compare(y[0], x[0]))
	})
	free := new([Buckets]bool)
	for _, r := range runs {
		owner := o.own[r[0]]
		for b := r[1] - 1; b >= r[0] && need[owner] < 0; b-- {
			free[b] = true
			need[owner]++
		}
	}
	return free
}

// Counts is how many buckets each of the first variants owns; what others
// and Outside own is not in it.
func (o *Ownership) Counts(variants int) []int {
	counts := make([]int, max(variants, 0))
	for _, owner := range o.own {
		if int(owner) < len(counts) {
			counts[owner]++
		}
	}
	return counts
}

// Owner is the owner of bucket b (Outside if b is no bucket) and the revision
// since when.
func (o *Ownership) Owner(b int) (owner uint8, since int64) {
	if b < 0 || b >= Buckets {
		return Outside, 0
	}
	return o.own[b], o.since[b]
}

// Revision is that of the last change.
func (o *Ownership) Revision() int64 { return o.revision }

// Moves says who gives buckets to whom on the way between two tables:
// [from, to, buckets], ascending, Outside as 255. A nil table is all outside.
func Moves(from, to *Ownership) [][3]int {
	none := &Ownership{}
	for b := range none.own {
		none.own[b] = Outside
	}
	from, to = cmp.Or(from, none), cmp.Or(to, none)
	counts := make(map[[2]uint8]int)
	for b, owner := range to.own {
		if from.own[b] != owner {
			counts[[2]uint8{from.own[b], owner}]++
		}
	}
	moves := make([][3]int, 0, len(counts))
	for pair, n := range counts {
		moves = append(moves, [3]int{int(pair[0]), int(pair[1]), n})
	}
	slices.SortFunc(moves, func(a, b [3]int) int { return slices.Compare(a[:], b[:]) })
	return moves
}
