package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sluice/experiment"
)

// replaceExperiment gives cur what want says, but for what the server keeps:
// key, seed, generation, state, winner, kills, ownership table, times.
// Variants keep their numbers (pins and the table refer to them), so want's
// order is not taken over.
func replaceExperiment(cur *Experiment, want Experiment, revision int64, now time.Time, o replaceOptions) error {
	want = cloneExperiment(want)
	want.Kind = cmp.Or(want.Kind, cur.Kind)
	if want.Hash == "sha256" {
		want.Hash = "" // as Normalize writes it
	}
	if want.Stickiness == "" {
		want.Stickiness = cur.Stickiness
		if want.Kind != cur.Kind {
			want.Stickiness = map[string]string{"canary": "bucket"}[want.Kind]
			want.Stickiness = cmp.Or(want.Stickiness, "user")
		}
	}
	if err := frozen(cur, &want); err != nil {
		return err
	}
	for i, v := range want.Variants {
		if first := want.variant(v.Name); first != i {
			return Problems{{at("/variants", i, "name"), "duplicate_name", fmt.Sprintf("the variant %q is written twice; names are unique within an experiment", clip(v.Name))}}
		}
	}
	variants, gone, err := align(cur, want.Variants)
	if err != nil {
		return err
	}
	next := want
	next.Key, next.Seed, next.State, next.Winner = cur.Key, cur.Seed, cur.State, cur.Winner
	next.Generation, next.GenRevision, next.RunsFrom = cur.Generation, cur.GenRevision, cur.RunsFrom
	next.CreatedAt, next.UpdatedAt, next.UpdatedRevision = cur.CreatedAt, cur.UpdatedAt, cur.UpdatedRevision
	next.Allocation, next.Variants = cur.Allocation, variants
	next.RampState, next.LastRollback = cloneRamp(cur.RampState), cur.LastRollback
	if next.Setup = cur.Setup; evidenceDiffers(cur, &next) {
		next.Setup = nil
	}
	if err := replaceRamp(cur, &next, revision, now); err != nil {
		return err
	}
	if o.keepWeights && len(gone) == 0 && len(variants) == len(cur.Variants) {
		for i := range next.Variants {
			next.Variants[i].Weight = cur.Variants[i].Weight
		}
	} else if err := weighRamp(cur, &next, gone, o.pauseRamp); err != nil {
		return err
	} else if err := moveAligned(cur, &next, gone, revision); err != nil {
		return err
	}
	*cur = next
	return nil
}

// frozen refuses to change, while units are assigned, what would assign them anew.
func frozen(cur, want *Experiment) error {
	if cur.State == StateArchived {
		return invalidState(cur, "it is archived and cannot be changed; create a new experiment")
	}
	if cur.State != StateRunning && cur.State != StatePaused {
		return nil
	}
	curLo, curHi := sliceOf(cur)
	lo, hi := sliceOf(want)
	for _, f := range []struct {
		name    string
		changed bool
	}{
		{"model", cur.Model != want.Model},
		{"kind", cur.Kind != want.Kind},
		{"hash", cur.Hash != want.Hash},
		{"stickiness", cur.Stickiness != want.Stickiness},
		{"baseline", cur.Baseline != want.Baseline},
		{"merge", cur.Merge != want.Merge},
		{"holdout", !sameHoldout(cur.Holdout, want.Holdout)},
		{"unit", !sameUnit(cur.Unit, want.Unit)},
		{"slice", lo > curLo || hi < curHi},
	} {
		if f.changed {
			return invalidState(cur, "%s is fixed while the experiment is %s, because another one would assign its units anew; finish it or roll it back, change it, and start it again", f.name, cur.State)
		}
	}
	return nil
}

func sameHoldout(a, b *Holdout) bool {
	return a == b || a != nil && b != nil && *a == *b
}

func sameUnit(a, b *Unit) bool {
	x, errX := compileSources(a)
	y, errY := compileSources(b)
	return errX == nil && errY == nil && slices.Equal(x, y)
}

// align puts want into cur's order: variants that exist keep their place, new
// ones follow, and gone are the indexes (in cur) of those that want leaves out.
func align(cur *Experiment, want []Variant) (out []Variant, gone []int, err error) {
	for i, old := range cur.Variants {
		j := slices.IndexFunc(want, func(v Variant) bool { return v.Name == old.Name })
		if j < 0 {
			gone = append(gone, i)
			if cur.State == StateRunning || cur.State == StatePaused {
				return nil, nil, invalidState(cur, "the variant %q cannot be removed while the experiment is %s; set its weight to 0 or kill it, and remove it after a rollback or finish", old.Name, cur.State)
			}
			if old.Name == cur.Winner {
				return nil, nil, invalidState(cur, "the variant %q is the winner that serves; roll back before it is removed", old.Name)
			}
			continue
		}
		v := want[j]
		switch v.State {
		case "", "live", old.State:
			v.State = old.State
		default:
			return nil, nil, &EditError{CodeRuntimeField, "experiment/" + cur.Key, fmt.Sprintf("the state of variant %q is changed with :kill, and cleared by a new generation", old.Name)}
		}
		v.CutStreams = old.CutStreams
		out = append(out, v)
	}
	for _, v := range want {
		if cur.variant(v.Name) >= 0 {
			continue
		}
		if v.State == VariantKilled {
			return nil, nil, &EditError{CodeRuntimeField, "experiment/" + cur.Key, fmt.Sprintf("the new variant %q cannot begin killed; give it weight 0", clip(v.Name))}
		}
		v.State, v.CutStreams = "", false
		out = append(out, v)
	}
	return out, gone, nil
}

// moveAligned gives next its weights through the table of cur, with as few
// moves as the change needs.
func moveAligned(cur, next *Experiment, gone []int, revision int64) error {
	if cur.State == StatePromoted && len(gone) == 0 && len(next.Variants) == len(cur.Variants) {
		for i := range next.Variants {
			if next.Variants[i].Weight != cur.Variants[i].Weight {
				return invalidState(cur, "it is promoted, so its weights decide nothing; roll it back first")
			}
		}
	}
	if ps := alignedWeights(cur, next, len(gone)); len(ps) > 0 {
		return ps
	}
	own, err := ownership(cur)
	if err != nil {
		return err
	}
	// In cur's numbering first, where those that go have no weight …
	w := make([]int, len(next.Variants)+len(gone))
	number := make([]int64, len(w)) // new number of each old one, -1 gone
	n := 0
	for i := range w {
		if slices.Contains(gone, i) {
			number[i] = -1
			continue
		}
		w[i], number[i] = next.Variants[n].Weight, int64(n)
		n++
	}
	table, moved, err := own.Change(w, revision)
	if err != nil {
		return Problems{{"/variants", "weights_invalid", err.Error()}}
	}
	if moved == 0 && len(gone) == 0 && cur.Allocation != nil {
		return nil
	}
	next.Allocation = table.Encode()
	if len(gone) > 0 { // … then in the new one
		renumber(next.Allocation, number)
	}
	return nil
}

// alignedWeights are the faults of next's weights; gone is the number of
// variants that leave.
func alignedWeights(cur, next *Experiment, gone int) (ps Problems) {
	sum := 0
	for i, v := range next.Variants {
		if v.Weight < 0 || v.Weight > experiment.Buckets {
			ps = append(ps, Problem{at("/variants", i, "weight"), "weight_range", fmt.Sprintf("weight %d: a weight is 0 to 10000 basis points", v.Weight)})
		}
		if old := cur.variant(v.Name); old >= 0 && v.State == VariantKilled && v.Weight > cur.Variants[old].Weight {
			ps = append(ps, Problem{at("/variants", i, "weight"), "variant_killed", fmt.Sprintf("%q was killed in this generation and cannot get users back; write 0, or roll back and start a new generation", v.Name)})
		}
		sum += v.Weight
	}
	if len(ps) == 0 && sum != experiment.Buckets {
		ps = append(ps, Problem{"/variants", "weights_sum", fmt.Sprintf("weights sum to %d, want 10000", sum)})
	}
	if n := len(next.Variants) + gone; n > MaxVariants {
		ps = append(ps, Problem{"/variants", "variants_count", fmt.Sprintf("%d variants, at most %d are possible", n, MaxVariants)})
	}
	return ps
}

// renumber gives the owners in a their new numbers; -1 is gone.
func renumber(a *experiment.Allocation, number []int64) {
	outside := int64(experiment.Outside)
	for i := range a.Runs {
		r := &a.Runs[i]
		for _, col := range []int{2, 3} {
			if v := r[col]; v != outside && v < int64(len(number)) {
				if r[col] = number[v]; r[col] < 0 {
					r[col] = r[2] // who is gone takes nothing back
				}
			}
		}
	}
}

// runtimeMembers of the API's form, and what changes them instead.
var runtimeMembers = map[string]string{
	"key":              "create a new experiment",
	"seed":             "use :reshuffle",
	"generation":       "use :reset-pins, or roll back and :start",
	"gen_revision":     "use :reset-pins, or roll back and :start",
	"state":            "use :start, :pause, :resume, :rollback, :promote, :finish or DELETE",
	"winner":           "use :promote",
	"runs_from":        "use :reset-pins, or roll back and :start",
	"allocation":       "use PUT …/weights",
	"revision":         "the server counts it; send it as If-Match",
	"updated_revision": "the server counts it; send it as If-Match",
	"ramp_state":       "use :start, :advance, :approve, :pause, :resume or :rollback",
	"last_rollback":    "the server keeps it",
	"setup":            "the server fixes it from the baseline",
	"created_at":       "the server keeps it",
	"updated_at":       "the server keeps it",
}

// mergePatch applies an RFC 7396 merge patch to target.
func mergePatch(target, patch json.RawMessage, depth int) (json.RawMessage, error) {
	patch = bytes.TrimSpace(patch)
	if len(patch) == 0 || patch[0] != '{' {
		return patch, nil
	}
	if depth > 100 {
		return nil, Problems{{Code: "invalid_json", Message: "the patch is nested too deeply"}}
	}
	changes := map[string]json.RawMessage{}
	if err := json.Unmarshal(patch, &changes); err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	members := map[string]json.RawMessage{}
	if t := bytes.TrimSpace(target); len(t) > 0 && t[0] == '{' {
		if err := json.Unmarshal(t, &members); err != nil {
			return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
		}
	}
	for _, name := range sortedKeys(changes) {
		if string(bytes.TrimSpace(changes[name])) == "null" {
			delete(members, name)
			continue
		}
		merged, err := mergePatch(members[name], changes[name], depth+1)
		if err != nil {
			return nil, err
		}
		members[name] = merged
	}
	return json.Marshal(members)
}

// patchMembers reads a merge patch for an object of the API.
func patchMembers(patch []byte) (map[string]json.RawMessage, error) {
	if len(patch) > MaxDocumentBytes {
		return nil, Problems{{Code: "document_too_large", Message: fmt.Sprintf("the patch has %d bytes, at most %d are allowed", len(patch), MaxDocumentBytes)}}
	}
	if err := validJSON(patch); err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	var w shapeWalk
	members := map[string]json.RawMessage{}
	w.members(bytes.TrimSpace(patch), "", func(name string, v json.RawMessage) { members[name] = v })
	if len(w.problems) > 0 {
		return nil, w.problems
	}
	return members, nil
}
