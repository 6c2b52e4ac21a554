package experiment_test

import (
	"slices"
	"testing"
	"time"

	"sluice/experiment"
)

// one answers every attribute with itself, without allocating.
type one string

func (o one) Attr(string) (string, bool) { return string(o), true }

// hot are decisions that must not allocate: uncontested units with everything
// that is computed on the way.
func hot(t testing.TB) map[string]struct {
	e *experiment.Experiment
	q *experiment.Query
} {
	plain := definition(t)
	full := definition(t)
	full.Targeting = []experiment.Rule{
		{Attr: "tenant", Op: "in", Values: []string{"acme", "1.4.2", "globex"}},
		{Attr: "model", Op: "not_in", Values: []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}},
		{Attr: "header:x-app", Op: "prefix", Values: []string{"2", "1."}},
		{Attr: "header:x-version", Op: "semver_gte", Values: []string{"1.4.0-rc.1"}},
		{Attr: "unit", Op: "percent", Values: []string{"100"}},
	}
	full.Fixed = []experiment.Segment{{Variant: "c", Rules: []experiment.Rule{{Attr: "tenant", Op: "in", Values: []string{"qa"}}}}}
	full.LayerSeed, full.Slice = "layer-1", [2]int{0, 10000}
	full.HoldoutSeed, full.Holdout = "holdout-1", 1
	canary := definition(t)
	canary.Canary, canary.Stickiness = true, experiment.ByBucket
	imported := definition(t)
	imported.Hash = "growthbook2"
	imported.Allocation = table(t, []int{5000, 5000, 0}, 10)
	q := user("u1")
	attributed := user("u1")
	attributed.Attrs = one("1.4.2")
	down := user("u1")
	down.Store = experiment.Down
	none := &experiment.Query{Override: -1}
	return map[string]struct {
		e *experiment.Experiment
		q *experiment.Query
	}{
		"bucket":     {compile(t, canary), q},
		"user":       {compile(t, plain), q},
		"store-down": {compile(t, plain), down},
		"everything": {compile(t, full), attributed},
		"growthbook": {compile(t, imported), q},
		"no-unit":    {compile(t, plain), none},
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	for name, h := range hot(t) {
		d := h.e.Decide(h.q)
		if name != "no-unit" && d.Reason != experiment.ReasonBucket {
			t.Errorf("%s: %+v; the case does not test the path it names", name, d)
		}
		if n := testing.AllocsPerRun(100, func() { h.e.Decide(h.q) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	e := compile(t, definition(t))
	q := pinned("u0", experiment.Pin{Variant: 1, Gen: 1})
	if n := testing.AllocsPerRun(100, func() { e.Decide(q) }); n != 0 {
		t.Errorf("pinned: %v allocations", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	for name, h := range hot(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.e.Decide(h.q)
			}
			b.ReportMetric(p99(func() { h.e.Decide(h.q) }), "p99-ns")
		})
	}
	full, q := hot(b)["everything"].e, pinned("u1", experiment.Pin{Variant: 1, Gen: 1})
	q.Attrs = one("1.4.2")
	b.Run("everything-pinned", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			full.Decide(q)
		}
		b.ReportMetric(p99(func() { full.Decide(q) }), "p99-ns")
	})
}

// p99 times calls one by one; what the clock takes is in it.
func p99(f func()) float64 {
	took := make([]time.Duration, 20_000)
	for i := range took {
		from := time.Now()
		f()
		took[i] = time.Since(from)
	}
	slices.Sort(took)
	return float64(took[len(took)*99/100])
}

func BenchmarkHash(b *testing.B) {
	u := experiment.Unit{Type: "user", Tenant: "acme", ID: "550e8400-e29b-41d4-a716-446655440000"}
	b.ReportAllocs()
	for b.Loop() {
		experiment.Hash("a1b2c3d4e5f60718", u)
	}
}

func BenchmarkChange(b *testing.B) {
	o := table(b, []int{5000, 3000, 2000}, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := o.Change([]int{2000, 3000, 5000}, 2); err != nil {
			b.Fatal(err)
		}
	}
}
