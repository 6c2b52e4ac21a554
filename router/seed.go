package router

import (
	"fmt"
	"time"
)

// SeedReport says what Seed added and what it left out, and why.
type SeedReport struct {
	Added   []string   `json:"added"`
	Skipped []SeedSkip `json:"skipped,omitempty"`
}

// SeedSkip is an object that a seed did not add: it exists, it was deleted, or
// something it refers to is missing.
type SeedSkip struct {
	Object string `json:"object"`
	Why    string `json:"why"` // exists | deleted | "there is no upstream/v1"
}

// Seed adds the objects of resources that do not exist and were not deleted; it
// never overwrites. An object that refers to one that was deleted since is left
// out too. When there is nothing to add, doc is not touched.
func Seed(doc *Document, revision int64, now time.Time, resources *Document) (SeedReport, error) {
	report := SeedReport{Added: []string{}}
	// What the file itself gets wrong is an error even where it would be skipped.
	if ps := duplicates(resources); len(ps) > 0 {
		return report, ps
	}
	s := seeding{report: &report, dead: map[string]bool{}}
	for _, t := range doc.Tombstones {
		s.dead[t] = true
	}
	next := doc.Clone()
	if err := s.all(next, resources); err != nil {
		return report, err
	}
	if len(report.Added) == 0 {
		return report, nil
	}
	err := edit(doc, revision, now, func(*Document) string { return "" }, func(d *Document) error {
		*d = *next
		return nil
	})
	return report, err
}

type seeding struct {
	report *SeedReport
	dead   map[string]bool
}

func (s *seeding) all(d *Document, resources *Document) error {
	for _, u := range resources.Upstreams {
		if s.adds("upstream/"+u.Name, d.Upstream(u.Name) != nil) {
			u = cloneUpstream(u)
			u.UpdatedRevision = 0
			d.Upstreams = append(d.Upstreams, u)
		}
	}
	for _, m := range resources.Models {
		if s.adds("model/"+m.Name, d.Model(m.Name) != nil, "upstream/"+m.Default.Upstream) {
			m = cloneModel(m)
			m.UpdatedRevision = 0
			d.Models = append(d.Models, m)
		}
	}
	for i, e := range resources.Experiments {
		refs := []string{"model/" + e.Model}
		for _, v := range e.Variants {
			refs = append(refs, "upstream/"+v.Upstream)
		}
		if s.adds("experiment/"+e.Key, d.Experiment(e.Key) != nil, refs...) {
			if err := addExperiment(d, e); err != nil {
				return fmt.Errorf("resources/experiments[%d]: %w", i, err)
			}
		}
	}
	return nil
}

// adds decides on one object, and remembers one that is skipped as missing for
// those that refer to it.
func (s *seeding) adds(object string, exists bool, refs ...string) bool {
	why := ""
	switch {
	case exists:
		why = "exists"
	case s.dead[object]:
		why = "deleted"
	default:
		for _, r := range refs {
			if s.dead[r] {
				why = "there is no " + r + ": it was deleted"
			}
		}
	}
	if why == "" {
		s.report.Added = append(s.report.Added, object)
		return true
	}
	s.report.Skipped = append(s.report.Skipped, SeedSkip{object, why})
	if !exists {
		s.dead[object] = true
	}
	return false
}
