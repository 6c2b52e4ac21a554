package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/sticky"
)

// file is all that a leader knows of one experiment. Its exported part is the
// checkpoint: a pure fold of the stream up to Position, so that whoever reads on
// from there gets the same file. All its times are the stream's, Unix ms.
type file struct {
	Position string `json:"position"`
	Clock    int64  `json:"clock"` // of the newest entry
	// Case is what Evidence is judged as: of the epoch of the newest entry that
	// was folded, which may be older than the table's.
	Case     *ramp.Case          `json:"case,omitempty"`
	Seen     map[string]int64    `json:"seen,omitempty"`   // by replica: its newest tick of the epoch, for a repeat is not folded twice
	Latest   map[string]standing `json:"latest,omitempty"` // by replica
	Evidence *ramp.Evidence      `json:"evidence,omitempty"`
	// Partial says that entries of the epoch are lost: the units that they named
	// are not named again.
	Partial bool          `json:"partial,omitempty"`
	Profile trial.Profile `json:"profile"` // of the baseline in the epoch before

	StepID    int64  `json:"step_id,omitempty"` // which step or phase: when it began, on the clock of who wrote it
	StepSince int64  `json:"step_since,omitempty"`
	NotReady  int64  `json:"not_ready,omitempty"`  // since when the ramping variant is not; 0: it is
	Hold      string `json:"hold,omitempty"`       // code of the latest decision if it was to hold
	HoldSince int64  `json:"hold_since,omitempty"` // that it is this one, or none

	Report json.RawMessage `json:"report,omitempty"`

	loaded  bool
	judge   *ramp.Judge
	of      *subject  // of judge
	stuck   time.Time // an entry of a later epoch is the next one
	failed  string    // logged
	decided decided   // the latest
}

// standing is how one replica saw the servers last.
type standing struct {
	At    int64             `json:"at"`
	Arms  []armState        `json:"arms"`
	Heavy []trial.HeavyUnit `json:"heavy,omitempty"`
}

type armState struct {
	Endpoints int  `json:"endpoints"`
	Ready     int  `json:"ready"`
	Capacity  int  `json:"capacity"`
	InFlight  int  `json:"in_flight"`
	NotReady  bool `json:"not_ready,omitempty"`
	Tripped   bool `json:"tripped,omitempty"`
}

const (
	// readAtOnce is how many entries one read takes.
	readAtOnce = 500
	// standsFor is how long what a replica said is taken for its present state, ms.
	standsFor = 5_000
	// waitForTable is how long an entry of a later epoch waits for the table that
	// this replica must be about to get.
	waitForTable = 10 * time.Second
	// maxSeen bounds the replicas that are remembered.
	maxSeen = 256
)

func (f *file) encode() ([]byte, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode the checkpoint: %w", err)
	}
	return body, nil
}

// open reads the checkpoint. Without one, or with one that cannot be read, the
// evidence begins anew with what the stream has; the ramp's position is the
// document's anyway.
func (r *Rollouts) open(ctx context.Context, s *subject, f *file) error {
	body, err := r.o.Sticky.LoadCheckpoint(ctx, s.key)
	switch {
	case errors.Is(err, sticky.ErrNone):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(body, f); err != nil {
			r.log.Error("the checkpoint is damaged; the step's evidence begins anew", "experiment", s.key, "err", err)
			*f = file{}
		}
	}
	f.loaded = true
	return nil
}

// tally counts entries by what became of them: metrics.ObsResults.
type tally map[string]int

// read folds what the stream has.
func (r *Rollouts) read(ctx context.Context, s *subject, f *file, counts tally) error {
	if err := f.fit(s); err != nil {
		return err
	}
	for {
		list, err := r.o.Sticky.Observed(ctx, s.key, f.Position, readAtOnce)
		if err != nil {
			return err
		}
		for _, o := range list {
			result, err := f.take(s, o)
			if err != nil {
				r.log.Warn("a count is left out", "experiment", s.key, "id", o.ID, "err", err)
			}
			if result == "" { // of an epoch that this replica's table is about to have
				if f.stuck.IsZero() {
					f.stuck = time.Now()
				}
				if time.Since(f.stuck) < waitForTable {
					return nil
				}
				result = "other_epoch"
			}
			f.stuck = time.Time{}
			f.Position, f.Clock = o.ID, o.At
			counts[result]++
		}
		if len(list) < readAtOnce {
			return nil
		}
	}
}

// fit gives f the judge of its evidence. An epoch ends in the stream with the
// first entry of the next one, not with the table's swap here: so every leader,
// and a replay, folds the same entries into it.
func (f *file) fit(s *subject) error {
	if f.of == s || f.Evidence == nil || f.Case == nil {
		return nil
	}
	f.of = s
	if f.current(s) {
		c := s.judged(f.Evidence.Since)
		f.Case, f.judge = &c, nil
	}
	if f.judge != nil {
		return nil
	}
	j, err := ramp.NewJudge(*f.Case)
	if err != nil {
		return fmt.Errorf("its guardrails cannot be judged: %w", err)
	}
	if !j.Fits(f.Evidence) { // of another release: what it shows is lost
		f.Case, f.Evidence = nil, nil
		return nil
	}
	f.judge = j
	return nil
}

// current reports evidence of the epoch of s.
func (f *file) current(s *subject) bool {
	return f.Case != nil && f.Case.Generation == s.generation && f.Case.Epoch == s.epoch
}

func (s *subject) judged(since int64) ramp.Case {
	c := ramp.Case{Generation: s.generation, Epoch: s.epoch, Since: since, Variants: s.variants, Weights: s.weights, Killed: s.killed,
		Baseline: s.baseline, Ramping: s.ramping, Steps: 1, Config: &s.policy, Guardrails: s.guardrails}
	if s.ramp != nil {
		c.Steps = max(len(s.ramp.Steps), 1)
	}
	return c
}

// take folds one entry; "" means that it is of a later epoch than s.
func (f *file) take(s *subject, o sticky.Observation) (result string, err error) {
	var t trial.Tick
	if err := json.Unmarshal(o.Body, &t); err != nil {
		return "unreadable", err
	}
	if t.Epoch > s.epoch {
		return "", nil
	}
	if t.Generation == s.generation && t.Epoch == s.epoch && !f.current(s) {
		if err := f.begin(s, o.At); err != nil {
			return "unreadable", err
		}
	}
	if f.judge == nil || t.Generation != f.Case.Generation || t.Epoch != f.Case.Epoch {
		return "other_epoch", nil
	}
	seen, known := f.Seen[t.Replica]
	if known && t.Seq <= seen {
		return "late", nil // sent twice, for the answer to the first was lost
	}
	if !known && t.Seq > 1 {
		// Whether the arms got their share cannot be told from those who come late.
		f.Partial, f.Evidence.Ratio.Full = true, true
	}
	if _, err := f.judge.Add(f.Evidence, &t, o.At); err != nil {
		return "unreadable", err
	}
	f.note(&t, o.At)
	return "folded", nil
}

// begin begins the evidence of a new epoch with its first entry.
func (f *file) begin(s *subject, at int64) error {
	c := s.judged(at)
	j, err := ramp.NewJudge(c)
	if err != nil {
		return err
	}
	before := f.Evidence
	if before != nil && before.Generation == s.generation && before.Profile.Lacks(s.guardrails) == 0 {
		f.Profile = before.Profile
	}
	if before == nil || before.Generation != s.generation {
		f.Profile = trial.Profile{}
		f.NotReady, f.Hold, f.HoldSince = 0, "", 0
	}
	f.of, f.Case, f.judge, f.Evidence = s, &c, j, j.Begin(before)
	f.Seen, f.Latest, f.Partial = map[string]int64{}, map[string]standing{}, false
	id := int64(0)
	if s.ramp != nil {
		id = s.ramp.Since.UnixMilli()
	}
	if id != f.StepID || f.StepSince == 0 {
		f.StepID, f.StepSince = id, at
	}
	return nil
}

// note keeps how the sender stands.
func (f *file) note(t *trial.Tick, at int64) {
	f.Seen[t.Replica] = t.Seq
	st := standing{At: at, Heavy: t.Heavy}
	for i := range t.Variants {
		a := &t.Variants[i]
		st.Arms = append(st.Arms, armState{a.Endpoints, a.Ready, a.Capacity, a.InFlight, a.NotReady, a.Tripped})
	}
	f.Latest[t.Replica] = st
	for id, l := range f.Latest {
		if at-l.At > 12*standsFor {
			delete(f.Latest, id)
		}
	}
	if len(f.Seen) > maxSeen { // forget who is gone; every leader forgets the same
		maps.DeleteFunc(f.Seen, func(id string, _ int64) bool { _, alive := f.Latest[id]; return !alive })
	}
}

// standings are those of the replicas that reported lately, in order.
func (f *file) standings() (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(f.Latest)) {
		if f.Clock-f.Latest[id].At <= standsFor {
			ids = append(ids, id)
		}
	}
	return ids
}
