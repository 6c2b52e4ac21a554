package router

import (
	"fmt"
	"time"

	"sluice/experiment"
)

// Preview says who would move under new weights.
type Preview struct {
	MovedBuckets int     `json:"moved_buckets"`
	Share        float64 `json:"share"` // of all units, 0..1
	Moves        []Move  `json:"moves"`
	Safe         bool    `json:"safe"`         // only baseline → one variant, or variants → baseline
	CarryOver    bool    `json:"carry_over"`   // units go from one treatment to another
	NeedsReason  bool    `json:"needs_reason"` // CarryOver
}

// Move is one stream of buckets between two variants.
type Move struct {
	From    string  `json:"from"`
	To      string  `json:"to"`
	Buckets int     `json:"buckets"`
	Share   float64 `json:"share"`
}

// SetWeights sets the weights (basis points) of every variant, moving as few
// buckets as the change needs: half the sum of the differences. A killed
// variant's weight is the tombstone of its buckets; it may stay or fall, never rise.
//
// While a ramp is on it decides the weights (code ramp_active): a person may
// lower treatments, and with pauseRamp do anything; both pause the ramp.
func SetWeights(doc *Document, revision int64, now time.Time, key string, weights map[string]int) error {
	return ChangeWeights(doc, revision, now, key, weights, false)
}

// ChangeWeights is SetWeights with a say in whether a ramp pauses for it.
func ChangeWeights(doc *Document, revision int64, now time.Time, key string, weights map[string]int, pauseRamp bool) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		w, err := newWeights(e, weights)
		if err != nil {
			return err
		}
		if err := capped(e, w, func(i int) string { return at("/weights", e.Variants[i].Name) }); err != nil {
			return err
		}
		if err := yieldRamp(e, w, pauseRamp); err != nil {
			return err
		}
		return moveWeights(e, w, revision)
	})
}

// PreviewWeights says who would move; doc is not changed.
func PreviewWeights(doc *Document, key string, weights map[string]int) (Preview, error) {
	e := doc.Experiment(key)
	if e == nil {
		return Preview{}, notFound("experiment", key)
	}
	w, err := newWeights(e, weights)
	if err != nil {
		return Preview{}, err
	}
	own, err := ownership(e)
	if err != nil {
		return Preview{}, err
	}
	next, moved, err := own.Change(w, doc.Revision+1)
	if err != nil {
		return Preview{}, Problems{{Path: "/weights", Code: "weights_invalid", Message: err.Error()}}
	}
	return preview(e, own, next, moved), nil
}

func preview(e *Experiment, own, next *experiment.Ownership, moved int) Preview {
	p := Preview{MovedBuckets: moved, Share: float64(moved) / experiment.Buckets, Moves: []Move{}, Safe: true}
	treatments := map[string]bool{}
	for _, m := range experiment.Moves(own, next) {
		from, to := ownerName(e, m[0]), ownerName(e, m[1])
		p.Moves = append(p.Moves, Move{From: from, To: to, Buckets: m[2], Share: float64(m[2]) / experiment.Buckets})
		// The users of a killed variant are on the baseline already.
		if i := e.variant(from); i < 0 || e.Variants[i].State == VariantKilled {
			from = e.Baseline
		}
		if from != e.Baseline && to != e.Baseline {
			p.CarryOver = true
		}
		if to != e.Baseline {
			treatments[to] = true
		}
	}
	p.Safe = !p.CarryOver && len(treatments) <= 1
	p.NeedsReason = p.CarryOver
	return p
}

// ownerName is "" for buckets that nobody owns.
func ownerName(e *Experiment, i int) string {
	if i < 0 || i >= len(e.Variants) {
		return ""
	}
	return e.Variants[i].Name
}

// newWeights checks weights by name and puts them into the variants' order.
func newWeights(e *Experiment, weights map[string]int) ([]int, error) {
	if e.State == StateArchived || e.State == StatePromoted {
		return nil, &EditError{Code: CodeInvalidState, Object: "experiment/" + e.Key,
			Message: fmt.Sprintf("it is %s, so its weights decide nothing; roll it back first", e.State)}
	}
	var ps Problems
	for _, name := range sortedKeys(weights) {
		if e.variant(name) < 0 {
			ps = append(ps, Problem{at("/weights", name), "variant_unknown", fmt.Sprintf("%q is none of the variants", clip(name))})
		}
	}
	out, sum, sane := make([]int, len(e.Variants)), 0, len(ps) == 0
	for i, v := range e.Variants {
		w, ok := weights[v.Name]
		path := at("/weights", v.Name)
		switch {
		case !ok:
			sane = false
			ps = append(ps, Problem{path, "weight_missing", fmt.Sprintf("the weight of %q is missing; every variant needs an explicit weight, 0 too", v.Name)})
			continue
		case w < 0:
			ps = append(ps, Problem{path, "weight_negative", fmt.Sprintf("weight %d: a weight is 0 to 10000 basis points", w)})
		case w > experiment.Buckets:
			ps = append(ps, Problem{path, "weight_range", fmt.Sprintf("weight %d: a weight is 0 to 10000 basis points", w)})
		case v.State == VariantKilled && w > v.Weight:
			ps = append(ps, Problem{path, "variant_killed", fmt.Sprintf("%q was killed in this generation and cannot get users back; write 0, or roll back and start a new generation", v.Name)})
		}
		if w < 0 || w > experiment.Buckets {
			sane = false
			continue
		}
		out[i], sum = w, sum+w
	}
	if sane && sum != experiment.Buckets {
		ps = append(ps, Problem{"/weights", "weights_sum", fmt.Sprintf("weights sum to %d, want 10000", sum)})
	}
	return out, ps.Err()
}

// ownership is the experiment's table; one that has none yet gets the first layout.
func ownership(e *Experiment) (*experiment.Ownership, error) {
	if e.Allocation == nil {
		own, err := layout(e, e.GenRevision)
		if err != nil {
			return nil, Problems{{Path: "/variants", Code: "weights_sum", Message: err.Error()}}
		}
		return own, nil
	}
	own, err := experiment.DecodeAllocation(e.Allocation, len(e.Variants))
	if err != nil {
		return nil, Problems{{Path: "/allocation", Code: "allocation_invalid", Message: err.Error()}}
	}
	return own, nil
}

// moveWeights is the one way by which the weights of an existing experiment change.
func moveWeights(e *Experiment, w []int, revision int64) error {
	own, err := ownership(e)
	if err != nil {
		return err
	}
	next, moved, err := own.Change(w, revision)
	if err != nil {
		return Problems{{Path: "/weights", Code: "weights_invalid", Message: err.Error()}}
	}
	for i := range w {
		e.Variants[i].Weight = w[i]
	}
	if moved > 0 || e.Allocation == nil {
		e.Allocation = next.Encode()
	}
	return nil
}
