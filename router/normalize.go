package router

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sluice/experiment"
)

// Normalize fills in the defaults of objects that lack them (seed, generation,
// stickiness, state, allocation, times) and stamps UpdatedRevision and
// UpdatedAt of exactly the objects that differ from prev (nil: none existed).
// random makes a seed of [a-z0-9-]{1,64}; nil uses crypto/rand.
//
// An ownership table is laid out here once, when an experiment has none; after
// that weights change through SetWeights alone, so that nobody moves without need.
func Normalize(doc, prev *Document, revision int64, now time.Time, random func() string) error {
	if random == nil {
		random = randomSeed
	}
	now = now.UTC().Truncate(time.Millisecond)
	for i := range doc.Experiments {
		if err := fillExperiment(&doc.Experiments[i], revision, now, random); err != nil {
			var edit *EditError
			if as(err, &edit) {
				return err
			}
			return Problems{{Path: at("/experiments", i), Code: "weights_sum", Message: err.Error()}}
		}
	}
	stamp(doc, prev, revision, now)
	doc.Revision = revision
	return nil
}

func randomSeed() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: see crypto/rand
	return hex.EncodeToString(b[:])
}

func fillExperiment(e *Experiment, revision int64, now time.Time, random func() string) error {
	e.Kind = or(e.Kind, "canary")
	e.State = or(e.State, StateDraft)
	if e.Hash == "sha256" {
		e.Hash = "" // one form for the default
	}
	if e.Switch == SwitchRequest {
		e.Switch = ""
	}
	if e.Seed == "" {
		e.Seed = random()
	}
	if e.Generation == 0 {
		e.Generation, e.GenRevision = 1, revision
	}
	if e.Stickiness == "" {
		e.Stickiness = "user"
		if e.Kind == "canary" {
			e.Stickiness = "bucket"
		}
	}
	for i := range e.Variants {
		if e.Variants[i].State == "live" {
			e.Variants[i].State = ""
		}
	}
	if e.CreatedAt.IsZero() {
		e.CreatedAt = now
	}
	if e.Allocation == nil && e.State == StateRunning && e.RampState == nil {
		if err := beginRunning(e, revision, now); err != nil {
			return err
		}
	}
	if e.Allocation == nil {
		own, err := layout(e, revision)
		if err != nil {
			return err
		}
		e.Allocation = own.Encode()
	}
	return nil
}

// beginRunning is the start of an experiment that is written as running. What
// Validate will refuse is left to it.
func beginRunning(e *Experiment, revision int64, now time.Time) error {
	c, ok := e.Policy()
	if i, _ := rampVariant(e, &c); !ok || i < 0 || e.variant(e.Baseline) < 0 {
		return nil
	}
	if _, err := layout(e, revision); err != nil {
		return err
	}
	return enterRamp(e, revision, now)
}

func layout(e *Experiment, revision int64) (*experiment.Ownership, error) {
	w := weightsOf(e)
	sum := 0
	for _, n := range w {
		sum += n
	}
	if sum != experiment.Buckets {
		return nil, fmt.Errorf("weights sum to %d, want 10000", sum)
	}
	return experiment.NewOwnership(w, w, revision)
}

func weightsOf(e *Experiment) []int {
	w := make([]int, len(e.Variants))
	for i, v := range e.Variants {
		w[i] = v.Weight
	}
	return w
}

// stamp sets the ETags: an object that is as it was keeps its revision.
func stamp(doc, prev *Document, revision int64, now time.Time) {
	if prev == nil {
		prev = &Document{}
	}
	for i := range doc.Upstreams {
		u, was := &doc.Upstreams[i], prev.Upstream(doc.Upstreams[i].Name)
		if was != nil {
			u.UpdatedRevision = was.UpdatedRevision
		}
		if was == nil || was.UpdatedRevision == 0 || !same(u, was) {
			u.UpdatedRevision = revision
		}
	}
	for i := range doc.Models {
		m, was := &doc.Models[i], prev.Model(doc.Models[i].Name)
		if was != nil {
			m.UpdatedRevision = was.UpdatedRevision
		}
		if was == nil || was.UpdatedRevision == 0 || !same(m, was) {
			m.UpdatedRevision = revision
		}
	}
	for i := range doc.Experiments {
		e, was := &doc.Experiments[i], prev.Experiment(doc.Experiments[i].Key)
		if was != nil {
			e.UpdatedRevision, e.UpdatedAt = was.UpdatedRevision, was.UpdatedAt
		}
		if was == nil || was.UpdatedRevision == 0 || !same(e, was) {
			e.UpdatedRevision, e.UpdatedAt = revision, now
		}
	}
}

// same compares by the stored form, which is what an ETag stands for.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && slices.Equal(x, y)
}

// bury leaves a tombstone, once.
func (d *Document) bury(object string) {
	if !slices.Contains(d.Tombstones, object) {
		d.Tombstones = append(d.Tombstones, object)
	}
	// The oldest are forgotten: a seed file does not keep ten thousand names.
	if n := len(d.Tombstones); n > maxTombstones {
		d.Tombstones = slices.Delete(d.Tombstones, 0, n-maxTombstones)
	}
}

// raise removes a tombstone: the object was made again on purpose.
func (d *Document) raise(object string) {
	d.Tombstones = slices.DeleteFunc(d.Tombstones, func(t string) bool { return t == object })
}
