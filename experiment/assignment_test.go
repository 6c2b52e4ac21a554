package experiment_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice/experiment"
)

// assignment is one case of assignment.json.
type assignment struct {
	Name       string
	Experiment struct {
		ID, Seed, Kind, State, Stickiness, Hash, Control, Winner string
		Gen                                                      uint16
		BlockBelow                                               uint16 `json:"block_below"`
		GenVersion                                               int64  `json:"gen_version"`
		Units                                                    []string
		Merge                                                    bool
		Targeting                                                []experiment.Rule
		Variants                                                 []struct {
			ID, State string
			Ready     bool
		}
		Own, Since [][3]int64
		Holdout    *struct {
			Seed    string
			Buckets int
		}
		Layer *struct {
			Seed   string
			Lo, Hi int
		}
		StaleAfter float64 `json:"stale_after_s"`
	}
	Request struct {
		Tenant       string
		IDs          map[string]string
		Attrs        attrs
		Override     string
		Scopes       []string
		Store        string
		Unsupervised float64 `json:"unsupervised_s"`
		Pins         map[string]struct {
			Variant  string
			Gen      uint16
			Excluded bool
		}
	}
	Want struct {
		Variant, Reason, Unit, Note string
		Bucket                      int
		Exposure, Analysis, Lookup  bool
		PinWrite                    string `json:"pin_write"`
	}
}

// index is the variant of that name, or 200, which no experiment here has.
func (a *assignment) index(name string) int {
	for i, v := range a.Experiment.Variants {
		if v.ID == name {
			return i
		}
	}
	return 200
}

func (a *assignment) definition(t *testing.T) experiment.Definition {
	x := &a.Experiment
	def := experiment.Definition{
		Key: x.ID, Seed: x.Seed, Hash: x.Hash, Canary: x.Kind == "canary",
		Generation: x.Gen, GenRevision: x.GenVersion, BlockBelow: x.BlockBelow, Merge: x.Merge,
		Baseline: a.index(x.Control), Winner: -1, Targeting: x.Targeting,
	}
	def.State = map[string]experiment.State{
		"draft": experiment.Draft, "running": experiment.Running, "ramping": experiment.Running,
		"paused": experiment.Paused, "promoted": experiment.Promoted, "rolled_back": experiment.RolledBack,
	}[x.State]
	if x.Stickiness == "pin" {
		def.Stickiness = experiment.ByUser
	}
	for _, v := range x.Variants {
		state := map[string]experiment.VariantState{
			"live": experiment.Active, "killed": experiment.Killed, "draining": experiment.Draining,
		}[v.State]
		if !v.Ready {
			state = experiment.NotReady
		}
		def.Variants = append(def.Variants, experiment.VariantDef{Name: v.ID, State: state})
	}
	if x.Winner != "" {
		def.Winner = a.index(x.Winner)
	}
	if x.Holdout != nil {
		def.HoldoutSeed, def.Holdout = x.Holdout.Seed, x.Holdout.Buckets
	}
	if x.Layer != nil {
		def.LayerSeed, def.Slice = x.Layer.Seed, [2]int{x.Layer.Lo, x.Layer.Hi}
	}
	alloc := &experiment.Allocation{Revision: 11}
	for _, o := range x.Own {
		for _, s := range x.Since {
			if lo, hi := max(o[0], s[0]), min(o[1], s[1]); lo < hi {
				alloc.Runs = append(alloc.Runs, [5]int64{lo, hi, o[2], o[2], s[2]})
			}
		}
	}
	table, err := experiment.DecodeAllocation(alloc, len(def.Variants))
	if err != nil {
		t.Fatal(err)
	}
	def.Allocation = table
	return def
}

// query is the request as a caller gives it before any store was asked, and
// the note that the caller itself makes.
func (a *assignment) query() (q *experiment.Query, note string) {
	r := &a.Request
	q = &experiment.Query{
		Attrs: r.Attrs, Override: -1, Revision: 11,
		// The caller applies stale_after, which is off at 0.
		Unsupervised: a.Experiment.StaleAfter > 0 && r.Unsupervised > a.Experiment.StaleAfter,
	}
	for _, typ := range a.Experiment.Units {
		id, ok := r.IDs[typ]
		if !ok {
			continue
		}
		u := experiment.Unit{Type: typ, Tenant: r.Tenant, ID: id}
		switch {
		case !q.HasUnit:
			q.Unit, q.HasUnit = u, true
		case typ == "session":
			q.Session, q.HasSession = u, true
		}
	}
	if r.Override != "" {
		if slices.Contains(r.Scopes, "experiments.override") {
			q.Override = a.index(r.Override)
		} else {
			note = "override_denied"
		}
	}
	return q, note
}

// pin answers from the case's store.
func (a *assignment) pin(u experiment.Unit) (experiment.Pin, bool) {
	p, ok := a.Request.Pins[unitKey(u)]
	if !ok {
		return experiment.Pin{}, false
	}
	pin := experiment.Pin{Variant: uint8(a.index(p.Variant)), Gen: p.Gen, Revision: 10}
	if p.Excluded {
		pin.Flags = experiment.PinExcluded
	}
	return pin, true
}

func unitKey(u experiment.Unit) string {
	return fmt.Sprintf("%s:%s:%s", u.Type, u.Tenant, u.ID)
}

// amend changes what design.md section 7 changed. It has one scope for
// overrides and says "Never a masked or killed variant", so the vector whose
// request carries the second scope (experiments.override_killed) gets the
// answer of the one before it, without that scope.
func (a *assignment) amend() {
	if a.Name == "override to a killed arm with the second scope" {
		a.Want.Variant, a.Want.Reason, a.Want.Note = "b", "bucket", "override_killed"
		a.Want.Bucket, a.Want.Unit = 5086, "user:acme:u1"
		a.Want.Analysis, a.Want.PinWrite = true, "async"
	}
}

func TestAssignmentVectors(t *testing.T) {
	var v struct{ Cases []assignment }
	load(t, "assignment.json", &v)
	if len(v.Cases) != 51 {
		t.Fatalf("%d cases, want 51", len(v.Cases))
	}
	for _, a := range v.Cases {
		t.Run(strings.ReplaceAll(a.Name, "/", " "), func(t *testing.T) {
			a.amend()
			e := compile(t, a.definition(t))
			q, note := a.query()
			d := e.Decide(q)
			lookup := d.NeedPin
			if d.NeedPin {
				q.Store = experiment.Down
				if a.Request.Store == "up" {
					q.Store = experiment.Up
					q.Pin, q.HasPin = a.pin(d.Unit)
					if d.NeedSession {
						q.SessPin, q.HasSessPin = a.pin(q.Session)
					}
				}
				d = e.Decide(q)
			}
			a.check(t, d, lookup, note)
		})
	}
}

func (a *assignment) check(t *testing.T, d experiment.Decision, lookup bool, note string) {
	t.Helper()
	want := a.Want
	if got := a.Experiment.Variants[d.Variant].ID; got != want.Variant || string(d.Reason) != want.Reason {
		t.Errorf("got %s, %s; want %s, %s", got, d.Reason, want.Variant, want.Reason)
	}
	if d.Bucket != want.Bucket || d.Exposure != want.Exposure || d.Analysed != want.Analysis || lookup != want.Lookup {
		t.Errorf("bucket %d, exposure %v, analysed %v, lookup %v; want %+v", d.Bucket, d.Exposure, d.Analysed, lookup, want)
	}
	unit := ""
	if d.HasUnit {
		unit = unitKey(d.Unit)
	}
	if unit != want.Unit {
		t.Errorf("unit %q, want %q", unit, want.Unit)
	}
	if note += d.Note; note != want.Note {
		t.Errorf("note %q, want %q", note, want.Note)
	}
	write := d.WritePin
	switch {
	case write == experiment.WriteNone:
		write = "none"
	case d.Pin.Flags&experiment.PinMerged != 0:
		write = "copy"
	}
	if write != want.PinWrite {
		t.Errorf("pin write %q, want %q", write, want.PinWrite)
	}
	if d.NeedPin {
		t.Error("it asks for the pin a second time")
	}
	if d.WritePin == experiment.WriteNone {
		return
	}
	pin := experiment.Pin{Variant: uint8(d.Variant), Gen: a.Experiment.Gen, Revision: 11, Flags: d.Pin.Flags & experiment.PinMerged}
	if d.Reason == experiment.ReasonEvicted {
		pin.Flags |= experiment.PinExcluded
	}
	if d.Pin != pin {
		t.Errorf("writes %+v, want %+v", d.Pin, pin)
	}
}
