package experiment

import (
	"errors"
	"fmt"
)

// maxRevision bounds revisions: they must survive a float64 (JSON, Lua).
const maxRevision = 1<<53 - 1

// Encode is the table as runs of equal owner, previous owner and revision.
func (o *Ownership) Encode() *Allocation {
	a := &Allocation{Revision: o.revision}
	start := 0
	for b := 1; b <= Buckets; b++ {
		if b < Buckets && o.own[b] == o.own[start] && o.prev[b] == o.prev[start] && o.since[b] == o.since[start] {
			continue
		}
		a.Runs = append(a.Runs, [5]int64{int64(start), int64(b), int64(o.own[start]), int64(o.prev[start]), o.since[start]})
		start = b
	}
	return a
}

// Check reports what DecodeAllocation would refuse, without making the table.
// The runs must cover every bucket once, in order, and be owned by one of the
// variants or by Outside.
func (a *Allocation) Check(variants int) error {
	if a == nil {
		return errors.New("no allocation")
	}
	if variants < 1 || variants > MaxVariants {
		return fmt.Errorf("%d variants; give 1 to %d", variants, MaxVariants)
	}
	if a.Revision < 0 || a.Revision > maxRevision {
		return fmt.Errorf("allocation revision %d is out of range", a.Revision)
	}
	next := int64(0)
	for i, r := range a.Runs {
		start, end, owner, prev, since := r[0], r[1], r[2], r[3], r[4]
		switch {
		case start != next:
			return fmt.Errorf("allocation run %d starts at bucket %d, want %d: runs must neither overlap nor leave a gap", i, start, next)
		case end <= start || end > Buckets:
			return fmt.Errorf("allocation run %d ends at bucket %d; it must end after %d and at most at %d", i, end, start, Buckets)
		case (owner < 0 || owner >= int64(variants)) && owner != int64(Outside):
			return fmt.Errorf("allocation run %d is owned by %d; there are %d variants (outside is %d)", i, owner, variants, Outside)
		case prev < 0 || prev > int64(Outside):
			return fmt.Errorf("allocation run %d was owned by %d before, which is no variant", i, prev)
		case since < 0 || since > maxRevision:
			return fmt.Errorf("allocation run %d has revision %d, which is out of range", i, since)
		}
		next = end
	}
	if next != Buckets {
		return fmt.Errorf("the allocation ends at bucket %d, want %d", next, Buckets)
	}
	return nil
}

// DecodeAllocation reads what Encode wrote, for an experiment of so many
// variants. A previous owner that is no variant any more is forgotten.
func DecodeAllocation(a *Allocation, variants int) (*Ownership, error) {
	if err := a.Check(variants); err != nil {
		return nil, err
	}
	o := &Ownership{revision: a.Revision}
	for _, r := range a.Runs {
		start, end, owner, prev, since := r[0], r[1], r[2], r[3], r[4]
		if prev >= int64(variants) && prev != int64(Outside) {
			prev = owner
		}
		for b := start; b < end; b++ {
			o.own[b], o.prev[b], o.since[b] = uint8(owner), uint8(prev), since
		}
	}
	return o, nil
}
