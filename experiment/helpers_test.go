package experiment_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sluice/experiment"
)

// load reads testdata/name into v.
func load(t testing.TB, name string, v any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// attrs is a request's attributes.
type attrs map[string]string

func (a attrs) Attr(name string) (string, bool) { v, ok := a[name]; return v, ok }

// table makes an allocation of full coverage.
func table(t testing.TB, counts []int, revision int64) *experiment.Ownership {
	t.Helper()
	o, err := experiment.NewOwnership(counts, counts, revision)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// change moves o to counts and returns the new table and what moved.
func change(t testing.TB, o *experiment.Ownership, counts []int, revision int64) (*experiment.Ownership, int) {
	t.Helper()
	next, moved, err := o.Change(counts, revision)
	if err != nil {
		t.Fatal(err)
	}
	return next, moved
}

// variants makes active variants of these names.
func variants(names ...string) []experiment.VariantDef {
	var out []experiment.VariantDef
	for _, n := range names {
		out = append(out, experiment.VariantDef{Name: n})
	}
	return out
}

// definition is a running A/B test of control, b and c at revision 11: 5000,
// 5000, 0 at generation 1 (revision 10), then 8000, 1000, 1000.
func definition(t testing.TB) experiment.Definition {
	t.Helper()
	o, _ := change(t, table(t, []int{5000, 5000, 0}, 10), []int{8000, 1000, 1000}, 11)
	return experiment.Definition{
		Key: "exp1", Seed: "seed-exp1", State: experiment.Running, Stickiness: experiment.ByUser,
		Generation: 1, GenRevision: 10, Variants: variants("control", "b", "c"), Winner: -1, Allocation: o,
	}
}

func compile(t testing.TB, def experiment.Definition) *experiment.Experiment {
	t.Helper()
	e, err := experiment.New(def)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// user is a query of a user of tenant acme. Of seed-exp1, u1 is in bucket 5086
// (b, never contested), u0 in 9209 (b until revision 11, then c), u3 in 6188
// (b, then control).
func user(id string) *experiment.Query {
	return &experiment.Query{
		Unit: experiment.Unit{Type: "user", Tenant: "acme", ID: id}, HasUnit: true,
		Override: -1, Revision: 11,
	}
}

// pinned is user(id) after the store answered with p.
func pinned(id string, p experiment.Pin) *experiment.Query {
	q := user(id)
	q.Store, q.HasPin, q.Pin = experiment.Up, true, p
	return q
}
