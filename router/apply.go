package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ApplyOptions steer ReplaceDocument.
type ApplyOptions struct {
	Prune   bool // delete what next does not name
	Runtime bool // also set the runtime members: state, kills, weights of a ramp
	Force   bool // restart a rolled-back generation; prune experiments that run
}

// ApplyReport says what ReplaceDocument did and what it left alone.
type ApplyReport struct {
	Changes []DiffLine `json:"changes"`
	// Drift are runtime members that differ and were kept (no Runtime), and seeds.
	Drift []DiffLine `json:"drift,omitempty"`
	// Unpruned are objects that next does not name and that were kept (no Prune).
	Unpruned []string `json:"unpruned,omitempty"`
}

// ReplaceDocument makes doc equal to next, as PUT /document and `sluice apply`
// do. Seeds, generations and ownership tables of experiments that exist are
// kept, and weights move as few users as they can. State and kills belong to
// whoever runs the experiment (and weights to its ramp, once it left draft):
// they are reported as drift and set only with Runtime.
func ReplaceDocument(doc *Document, revision int64, now time.Time, next *Document, o ApplyOptions) (ApplyReport, error) {
	report := ApplyReport{Changes: []DiffLine{}}
	before := doc.Clone()
	// Names used twice would vanish in the merge.
	if ps := duplicates(next); len(ps) > 0 {
		return report, ps
	}
	self := func(*Document) string { return "" }
	err := edit(doc, revision, now, self, func(d *Document) error {
		report.Drift, report.Unpruned = nil, nil
		d.Upstreams = replaceEach(d, "upstream/", d.Upstreams, next.Upstreams, o, &report, cloneUpstream,
			func(u *Upstream) (*string, *int64) { return &u.Name, &u.UpdatedRevision })
		d.Models = replaceEach(d, "model/", d.Models, next.Models, o, &report, cloneModel,
			func(m *Model) (*string, *int64) { return &m.Name, &m.UpdatedRevision })
		return replaceExperiments(d, revision, now, next, o, &report)
	})
	if err != nil {
		return report, err
	}
	report.Changes = append(report.Changes, Diff(before, doc)...)
	return report, nil
}

func duplicates(d *Document) Problems {
	var ps Problems
	check := func(kind string, n int, name func(int) string) {
		seen := map[string]bool{}
		for i := range n {
			if seen[name(i)] {
				ps = append(ps, Problem{at("/"+kind, i), "duplicate_name", fmt.Sprintf("%q is written twice; names are unique", clip(name(i)))})
			}
			seen[name(i)] = true
		}
	}
	check("upstreams", len(d.Upstreams), func(i int) string { return d.Upstreams[i].Name })
	check("models", len(d.Models), func(i int) string { return d.Models[i].Name })
	check("experiments", len(d.Experiments), func(i int) string { return d.Experiments[i].Key })
	return ps
}

// replaceEach merges a list of objects that have no runtime members.
func replaceEach[T any](d *Document, prefix string, cur, next []T, o ApplyOptions, report *ApplyReport, clone func(T) T, id func(*T) (*string, *int64)) []T {
	wanted := map[string]int{}
	for i := range next {
		name, _ := id(&next[i])
		wanted[*name] = i
	}
	out, have := make([]T, 0, len(next)), map[string]bool{}
	for i := range cur {
		name, revision := id(&cur[i])
		have[*name] = true
		j, keep := wanted[*name]
		switch {
		case keep:
			x := clone(next[j])
			_, r := id(&x)
			*r = *revision
			out = append(out, x)
		case o.Prune:
			d.bury(prefix + *name)
		default:
			report.Unpruned = append(report.Unpruned, prefix+*name)
			out = append(out, cur[i])
		}
	}
	for i := range next {
		if name, _ := id(&next[i]); !have[*name] {
			x := clone(next[i])
			_, r := id(&x)
			*r = 0
			d.raise(prefix + *name)
			out = append(out, x)
		}
	}
	return out
}

func replaceExperiments(d *Document, revision int64, now time.Time, next *Document, o ApplyOptions, report *ApplyReport) error {
	for _, cur := range slices.Clone(d.Experiments) {
		if next.Experiment(cur.Key) != nil {
			continue
		}
		if !o.Prune {
			report.Unpruned = append(report.Unpruned, "experiment/"+cur.Key)
			continue
		}
		if !o.Force {
			if err := idle(&cur, "pruned (or force it)"); err != nil {
				return err
			}
		}
		removeExperiment(d, cur.Key)
	}
	for i := range next.Experiments {
		want := &next.Experiments[i]
		cur := d.Experiment(want.Key)
		if cur == nil {
			d.raise("experiment/" + want.Key)
			d.Experiments = append(d.Experiments, restored(want, revision, now))
			continue
		}
		if err := applyExperiment(cur, want, revision, now, o, report); err != nil {
			return relative2(err, at("/experiments", i))
		}
	}
	return nil
}

// relative2 puts the problems of one experiment below its place in the document.
func relative2(err error, prefix string) error {
	var ps Problems
	if !errors.As(err, &ps) {
		return err
	}
	for i := range ps {
		ps[i].Path = prefix + ps[i].Path
	}
	return ps
}

// restored is an experiment that another document brings along, with its table
// and generation if it has them; revisions of elsewhere do not count here.
func restored(want *Experiment, revision int64, now time.Time) Experiment {
	e := cloneExperiment(*want)
	e.GenRevision, e.RunsFrom = min(e.GenRevision, revision), min(e.RunsFrom, revision)
	e.UpdatedRevision = 0
	if e.RampState != nil {
		again(e.RampState, revision, now)
	}
	if e.Allocation != nil {
		own, err := ownership(&e)
		if err != nil || !slices.Equal(own.Counts(len(e.Variants)), weightsOf(&e)) {
			e.Allocation = nil // laid out anew
			return e
		}
		e.Allocation.Revision = min(e.Allocation.Revision, revision)
		for i := range e.Allocation.Runs {
			e.Allocation.Runs[i][4] = min(e.Allocation.Runs[i][4], revision)
		}
	}
	return e
}

func raisesKilled(cur, want *Experiment) bool {
	return slices.ContainsFunc(want.Variants, func(v Variant) bool {
		i := cur.variant(v.Name)
		return i >= 0 && cur.Variants[i].State == VariantKilled && v.Weight > cur.Variants[i].Weight
	})
}

func applyExperiment(cur, want *Experiment, revision int64, now time.Time, o ApplyOptions, report *ApplyReport) error {
	was := cloneExperiment(*cur)
	// A weight that a killed variant may not have again is drift like the kill,
	// not a reason to refuse the rest of the document.
	keep := !absent(cur.Ramp) && cur.State != StateDraft && !o.Runtime || raisesKilled(cur, want)
	stripped := cloneExperiment(*want)
	for i := range stripped.Variants {
		stripped.Variants[i].State = "" // kills are runtime: below
		if v := was.variant(stripped.Variants[i].Name); v >= 0 {
			stripped.Variants[i].State = was.Variants[v].State
		}
	}
	if o.Runtime && want.State == StateRolledBack && cur.State != StateRolledBack {
		// What reduces goes first, and opens what is fixed while running.
		if err := rollback(cur, now); err != nil {
			return err
		}
	}
	if err := replaceExperiment(cur, stripped, revision, now, replaceOptions{keepWeights: keep, pauseRamp: o.Runtime}); err != nil {
		return err
	}
	if o.Runtime {
		return applyRuntime(cur, want, revision, now, o)
	}
	var drift []string
	note := func(field string, wants, has any) {
		w, _ := json.Marshal(wants)
		h, _ := json.Marshal(has)
		drift = append(drift, fmt.Sprintf("%s: %s (kept), the document says %s", field, h, w))
	}
	if want.State != "" && want.State != cur.State {
		note("state", want.State, cur.State)
	}
	rampDrift(cur.RampState, want.RampState, note)
	if want.Seed != "" && want.Seed != cur.Seed {
		note("seed", want.Seed, cur.Seed)
	}
	for _, v := range want.Variants {
		i := cur.variant(v.Name)
		if i < 0 {
			continue
		}
		if has := cur.Variants[i]; (v.State == VariantKilled) != (has.State == VariantKilled) {
			note("variants/"+v.Name+"/state", or(v.State, "live"), or(has.State, "live"))
		}
		if w := cur.Variants[i].Weight; keep && w != v.Weight {
			note("variants/"+v.Name+"/weight", v.Weight, w)
		}
	}
	if len(drift) > 0 {
		report.Drift = append(report.Drift, DiffLine{Object: "experiment/" + cur.Key, Action: "keep", Fields: drift})
	}
	return nil
}

// applyRuntime brings state and kills to what want says, through the verbs.
func applyRuntime(cur, want *Experiment, revision int64, now time.Time, o ApplyOptions) error {
	if err := applyState(cur, want, revision, now, o); err != nil {
		return err
	}
	for _, v := range want.Variants {
		if i := cur.variant(v.Name); v.State == VariantKilled && i >= 0 && cur.Variants[i].State != VariantKilled {
			if err := kill(cur, v.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func applyState(cur, want *Experiment, revision int64, now time.Time, o ApplyOptions) error {
	if want.State == "" || want.State == cur.State {
		return nil
	}
	switch want.State {
	case StateRunning:
		if cur.State == StatePaused {
			return resume(cur, revision, now)
		}
		if cur.State == StateRolledBack && !o.Force {
			return invalidState(cur, "generation %d was rolled back; to run it again by a document, fix what failed and force it", cur.Generation)
		}
		return start(cur, revision, now, o.Force)
	case StatePaused:
		return pause(cur, ReasonPerson)
	case StateRolledBack:
		return rollback(cur, now)
	case StateCompleted:
		return finish(cur)
	case StatePromoted:
		return promote(cur, want.Winner, revision, now)
	case StateArchived:
		if err := idle(cur, "archived"); err != nil {
			return err
		}
		cur.State = StateArchived
		return nil
	}
	return invalidState(cur, "it is %s and cannot become %q", cur.State, clip(want.State))
}
