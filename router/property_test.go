package router_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"sluice/experiment"
	"sluice/router"
)

// randomWeights draws weights that sum to 10000.
func randomWeights(r *rapid.T, e *router.Experiment) map[string]int {
	out, left := map[string]int{}, experiment.Buckets
	for i, v := range e.Variants {
		w := left
		if i < len(e.Variants)-1 {
			w = rapid.IntRange(0, left).Draw(r, "weight")
		}
		out[v.Name], left = w, left-w
	}
	return out
}

// Any sequence of edits keeps the document valid and compilable, its revision
// rising, its table equal to its weights, and never moves more than the total
// variation of the weights. What is refused changes nothing.
func TestEditsKeepInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := doc(t)
		const key = "chat-v2"
		names := 0
		for revision := int64(2); revision < 9; revision++ {
			e := d.Experiment(key)
			before, was, text := ownerNames(t, e), router.WeightsView(e), asJSON(t, d)
			generation := e.Generation
			var err error
			switch op := rapid.IntRange(0, 11).Draw(r, "op"); op {
			case 0, 1, 2:
				err = router.SetWeights(d, revision, t0, key, randomWeights(r, e))
			case 3:
				err = router.Start(d, revision, t0, key)
			case 4:
				err = router.Pause(d, revision, t0, key)
			case 5:
				err = router.Resume(d, revision, t0, key)
			case 6:
				err = router.Rollback(d, revision, t0, key)
			case 7:
				err = router.Kill(d, revision, t0, key, rapid.SampledFrom(e.Variants).Draw(r, "victim").Name)
			case 8:
				err = router.Promote(d, revision, t0, key, rapid.SampledFrom(e.Variants).Draw(r, "winner").Name)
			case 9, 10: // add a variant, or leave one out, by a patch
				var list []router.Variant
				drop := -1
				if op == 10 {
					drop = rapid.IntRange(0, len(e.Variants)-1).Draw(r, "drop")
				}
				for i, v := range e.Variants {
					if i != drop {
						list = append(list, v)
					}
				}
				if op == 9 {
					names++
					list = append(list, router.Variant{Name: fmt.Sprint("n", names), Upstream: "v2"})
				}
				if len(list) == 0 {
					continue
				}
				w := randomWeights(r, &router.Experiment{Variants: list})
				for i := range list {
					list[i].Weight, list[i].Fallback = w[list[i].Name], ""
				}
				err = router.PatchExperiment(d, revision, t0, key, []byte(`{"variants":`+asJSON(t, list)+`}`))
			case 11:
				file := parse(t, base)
				_, err = router.ReplaceDocument(d, revision, t0, file, router.ApplyOptions{Runtime: rapid.Bool().Draw(r, "runtime")})
			}
			if err != nil {
				if asJSON(t, d) != text {
					r.Fatalf("a refused edit (%v) changed the document", err)
				}
				continue
			}
			checkInvariants(r, t, d, revision)
			e = d.Experiment(key)
			if e.Generation < generation {
				r.Fatalf("generation %d after %d", e.Generation, generation)
			}
			now := router.WeightsView(e)
			tv := 0
			for name := range union(was, now) {
				tv += max(now[name]-was[name], was[name]-now[name])
			}
			n := 0
			for b, name := range ownerNames(t, e) {
				if before[b] != name {
					n++
				}
			}
			if n != tv/2 {
				r.Fatalf("moved %d buckets, the total variation is %d", n, tv/2)
			}
		}
		if _, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{}); err != nil {
			r.Fatalf("does not compile: %v", err)
		}
	})
}

// ownerNames is who owns each bucket, by name: numbers change when a variant goes.
func ownerNames(t testing.TB, e *router.Experiment) []string {
	own := owners(t, e)
	out := make([]string, len(own))
	for b, o := range own {
		out[b] = e.Variants[o].Name
	}
	return out
}

func union(a, b map[string]int) map[string]bool {
	out := map[string]bool{}
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

func checkInvariants(r *rapid.T, t *testing.T, d *router.Document, revision int64) {
	if d.Revision != revision {
		r.Fatalf("revision %d, want %d", d.Revision, revision)
	}
	if ps := router.Validate(d, router.ValidateOptions{}); len(ps) > 0 {
		r.Fatalf("invalid: %v", ps)
	}
	for i := range d.Experiments {
		e := &d.Experiments[i]
		if e.UpdatedRevision > revision || e.GenRevision > revision {
			r.Fatalf("revisions from the future: %d %d", e.UpdatedRevision, e.GenRevision)
		}
		own, err := experiment.DecodeAllocation(e.Allocation, len(e.Variants))
		if err != nil {
			r.Fatal(err)
		}
		counts := own.Counts(len(e.Variants))
		for j, v := range e.Variants {
			if counts[j] != v.Weight {
				r.Fatalf("%s owns %d buckets of weight %d", v.Name, counts[j], v.Weight)
			}
		}
	}
	if again, err := router.ParseDocument([]byte(asJSON(t, d))); err != nil || asJSON(t, again) != asJSON(t, d) {
		r.Fatalf("does not survive its own JSON: %v", err)
	}
}
