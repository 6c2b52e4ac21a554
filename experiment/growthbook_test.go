package experiment_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/experiment"
)

// TestGrowthBookCases runs GrowthBook's public suite, which is not part of
// this repository: it lies beside the checkout or at $SLUICE_SHARED. It proves
// the bucketing by somebody else's numbers.
func TestGrowthBookCases(t *testing.T) {
	dir := os.Getenv("SLUICE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "vectors", "growthbook_cases.json"))
	if err != nil {
		t.Skipf("no GrowthBook cases: %v", err)
	}
	var v struct {
		Hash, GetBucketRange, ChooseVariation, InNamespace, StickyBucket [][]json.RawMessage
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	for _, key := range []struct {
		name  string
		cases [][]json.RawMessage
		want  int
		run   func(*testing.T, []json.RawMessage)
	}{
		{"hash", v.Hash, 15, growthBookHash},
		{"getBucketRange", v.GetBucketRange, 13, growthBookRange},
		{"chooseVariation", v.ChooseVariation, 13, growthBookChoose},
		{"inNamespace", v.InNamespace, 16, growthBookNamespace},
		{"stickyBucket", v.StickyBucket, 13, growthBookSticky},
	} {
		t.Run(key.name, func(t *testing.T) {
			if len(key.cases) != key.want {
				t.Fatalf("%d cases, want %d", len(key.cases), key.want)
			}
			for _, c := range key.cases {
				key.run(t, c)
			}
			t.Logf("%d cases", len(key.cases))
		})
	}
}

// growthBookHash: seed, value, version, fraction or null.
func growthBookHash(t *testing.T, c []json.RawMessage) {
	want := arg[*float64](t, c[3])
	got, ok := experiment.GrowthBookHash(arg[string](t, c[0]), arg[string](t, c[1]), arg[int](t, c[2]))
	if ok != (want != nil) || ok && got != *want {
		t.Errorf("hash %s: %v %v", c, got, ok)
	}
}

// growthBookRange: name, [variations, coverage, weights], ranges.
func growthBookRange(t *testing.T, c []json.RawMessage) {
	in := arg[[3]json.RawMessage](t, c[1])
	got := experiment.GrowthBookRanges(arg[int](t, in[0]), arg[float64](t, in[1]), arg[[]float64](t, in[2]))
	want := arg[[][2]float64](t, c[2])
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", c[0], got, want)
		return
	}
	for i := range want {
		if math.Abs(got[i][0]-want[i][0]) > 1e-6 || math.Abs(got[i][1]-want[i][1]) > 1e-6 {
			t.Errorf("%s: %v, want %v", c[0], got, want)
		}
	}
}

// growthBookChoose: name, fraction, ranges, index.
func growthBookChoose(t *testing.T, c []json.RawMessage) {
	got := experiment.GrowthBookChoose(arg[float64](t, c[1]), arg[[][2]float64](t, c[2]))
	if want := arg[int](t, c[3]); got != want {
		t.Errorf("%s: %d, want %d", c[0], got, want)
	}
}

// growthBookNamespace: name, id, [namespace, from, to], whether it is inside. A
// namespace is hashed with version 1 under "__" and its name.
func growthBookNamespace(t *testing.T, c []json.RawMessage) {
	ns := arg[[3]json.RawMessage](t, c[2])
	n, _ := experiment.GrowthBookHash("__"+arg[string](t, ns[0]), arg[string](t, c[1]), 1)
	got := experiment.GrowthBookChoose(n, [][2]float64{{arg[float64](t, ns[1]), arg[float64](t, ns[2])}}) == 0
	if want := arg[bool](t, c[3]); got != want {
		t.Errorf("%s: %v, want %v", c[0], got, want)
	}
}

type (
	growthBookRule struct {
		Key, Seed                        string
		HashAttribute, FallbackAttribute string
		HashVersion                      int
		BucketVersion, MinBucketVersion  uint16
		DisableStickyBucketing           bool
		Condition                        map[string]string
		Variations                       []any
		Weights                          []float64
	}
	growthBookDoc struct {
		AttributeName, AttributeValue string
		Assignments                   map[string]string
	}
)

// growthBookSticky: name, context, documents before, feature, result or null,
// documents after. Their document of an attribute is our pin of a unit, their
// bucketVersion our generation, minBucketVersion block_below, the fallback
// attribute the session of merge. A document may hold several versions, a pin
// is of the highest.
func growthBookSticky(t *testing.T, c []json.RawMessage) {
	var ctx struct {
		Attributes map[string]string
		Features   map[string]struct{ Rules []growthBookRule }
	}
	if err := json.Unmarshal(c[1], &ctx); err != nil {
		t.Fatal(err)
	}
	name, feature := arg[string](t, c[0]), arg[string](t, c[3])
	rule := ctx.Features[feature].Rules[0]
	e := growthBookExperiment(t, feature, &rule)

	pins := map[experiment.Unit]experiment.Pin{}
	for _, d := range arg[[]growthBookDoc](t, c[2]) {
		pins[experiment.Unit{Type: "user", Tenant: d.AttributeName, ID: d.AttributeValue}] = growthBookPin(t, d)
	}
	q := &experiment.Query{Override: -1, Attrs: tags(ctx.Attributes)}
	for _, attribute := range []string{rule.HashAttribute, rule.FallbackAttribute} {
		u := experiment.Unit{Type: "user", Tenant: attribute, ID: ctx.Attributes[attribute]}
		switch {
		case u.ID == "":
		case !q.HasUnit:
			q.Unit, q.HasUnit = u, true
		default:
			q.Session, q.HasSession = u, true
		}
	}
	d := e.Decide(q)
	if d.NeedPin {
		q.Store = experiment.Up
		q.Pin, q.HasPin = lookup(pins, q.Unit)
		q.SessPin, q.HasSessPin = lookup(pins, q.Session)
		d = e.Decide(q)
	}
	if d.WritePin != experiment.WriteNone {
		var stored, expect *experiment.Pin
		if p, ok := pins[q.Unit]; ok {
			stored = &p
		}
		if d.WritePin == experiment.WriteReplace {
			expect = &q.Pin
		}
		if experiment.PutWins(stored, d.Pin, expect) {
			pins[q.Unit] = d.Pin
		}
	}

	want := arg[*struct {
		VariationID      int
		StickyBucketUsed bool
		Bucket           float64
	}](t, c[4])
	used := d.Reason == experiment.ReasonPin || d.Reason == experiment.ReasonMerged
	switch {
	case want == nil:
		if d.Reason != experiment.ReasonBlocked {
			t.Errorf("%s: %+v, want nobody let in", name, d)
		}
	case d.Variant != want.VariationID || used != want.StickyBucketUsed || d.Bucket != int(math.Round(want.Bucket*10000)):
		t.Errorf("%s: variation %d, %s, bucket %d; want %+v", name, d.Variant, d.Reason, d.Bucket, *want)
	}
	for _, doc := range arg[map[string]growthBookDoc](t, c[5]) {
		wrote, has := pins[experiment.Unit{Type: "user", Tenant: doc.AttributeName, ID: doc.AttributeValue}]
		after := growthBookPin(t, doc)
		if !has || wrote.Variant != after.Variant || wrote.Gen != after.Gen {
			t.Errorf("%s: %s is pinned to %+v (%v), want %+v", name, doc.AttributeName, wrote, has, after)
		}
	}
}

func growthBookExperiment(t *testing.T, feature string, rule *growthBookRule) *experiment.Experiment {
	names, counts := []string{}, []int{}
	for i, r := range experiment.GrowthBookRanges(len(rule.Variations), 1, rule.Weights) {
		names = append(names, "v"+strconv.Itoa(i))
		counts = append(counts, int(math.Round(r[1]*10000))-int(math.Round(r[0]*10000)))
	}
	def := experiment.Definition{
		Key: feature, Seed: feature, State: experiment.Running, Stickiness: experiment.ByUser, Hash: "growthbook1",
		Generation: rule.BucketVersion, BlockBelow: rule.MinBucketVersion, Merge: true,
		Variants: variants(names...), Winner: -1, Allocation: table(t, counts, 0),
	}
	if rule.HashVersion == 2 {
		def.Hash = "growthbook2"
	}
	if rule.Seed != "" {
		def.Seed = rule.Seed
	}
	if rule.DisableStickyBucketing {
		def.Stickiness, def.Merge = experiment.ByBucket, false
	}
	for attribute, value := range rule.Condition {
		def.Targeting = append(def.Targeting, experiment.Rule{Attr: "tag:" + attribute, Op: "in", Values: []string{value}})
	}
	return compile(t, def)
}

// growthBookPin is the highest version of a document, whose keys are
// "experiment__version".
func growthBookPin(t *testing.T, d growthBookDoc) (p experiment.Pin) {
	versions := map[int]string{}
	for k, v := range d.Assignments {
		_, n, _ := strings.Cut(k, "__")
		version, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		versions[version] = v
	}
	var list []int
	for n := range versions {
		list = append(list, n)
	}
	highest := slices.Max(list)
	variant, err := strconv.Atoi(versions[highest])
	if err != nil {
		t.Fatal(err)
	}
	return experiment.Pin{Variant: uint8(variant), Gen: uint16(highest)}
}

// tags answers GrowthBook's attributes as a key's tags.
type tags map[string]string

func (a tags) Attr(name string) (string, bool) {
	v, ok := a[strings.TrimPrefix(name, "tag:")]
	return v, ok
}

func lookup(pins map[experiment.Unit]experiment.Pin, u experiment.Unit) (experiment.Pin, bool) {
	p, ok := pins[u]
	return p, ok
}

func arg[T any](t *testing.T, raw json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return v
}
