package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/router"
)

// stamp sets the revision at which each object last changed, whatever Mutate
// left there, and reports whether anything differs at all. An experiment whose
// only difference is updated_at has not changed.
func stamp(before, after *router.Snapshot, rev int64, now time.Time) (changed bool, err error) {
	if err := checkKeys(after.Keys); err != nil {
		return false, err
	}
	b, a := &before.Document, &after.Document
	stampAll(b.Upstreams, a.Upstreams, func(u *router.Upstream) (string, *int64) { return u.Name, &u.UpdatedRevision }, rev, nil)
	stampAll(b.Models, a.Models, func(m *router.Model) (string, *int64) { return m.Name, &m.UpdatedRevision }, rev, nil)
	stampAll(b.Experiments, a.Experiments, func(e *router.Experiment) (string, *int64) { return e.Key, &e.UpdatedRevision }, rev,
		func(old, e *router.Experiment, same bool) {
			switch {
			case same:
				e.UpdatedAt = old.UpdatedAt
			case old == nil && e.CreatedAt.IsZero():
				e.CreatedAt, e.UpdatedAt = now, now
			default:
				e.UpdatedAt = now
			}
		})
	a.Revision = b.Revision
	byID := func(x, y router.Key) int { return strings.Compare(x.ID, y.ID) }
	slices.SortFunc(after.Keys, byID)
	slices.SortFunc(before.Keys, byID)
	return !equalJSON(b, a) || !equalJSON(before.Keys, after.Keys), nil
}

func stampAll[T any](before, after []T, at func(*T) (name string, revision *int64), rev int64, touch func(old, now *T, same bool)) {
	old := make(map[string]*T, len(before))
	for i := range before {
		name, _ := at(&before[i])
		old[name] = &before[i]
	}
	for i := range after {
		name, stamped := at(&after[i])
		o := old[name]
		*stamped = rev
		same := false
		if o != nil {
			_, r := at(o)
			*stamped = *r
			// Compare with the same times, whatever Mutate put there.
			x, ok := any(&after[i]).(*router.Experiment)
			if ok {
				updated := x.UpdatedAt
				x.UpdatedAt = any(o).(*router.Experiment).UpdatedAt
				same = equalJSON(o, &after[i])
				x.UpdatedAt = updated
			} else {
				same = equalJSON(o, &after[i])
			}
			if !same {
				*stamped = rev
			}
		}
		if touch != nil {
			touch(o, &after[i], same)
		}
	}
}

func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	// nil and empty lists mean the same in a document.
	return errX == nil && errY == nil && bytes.Equal(canonical(x), canonical(y))
}

func canonical(b []byte) []byte {
	if bytes.Equal(b, []byte("null")) {
		return []byte("[]")
	}
	for _, list := range []string{"upstreams", "models", "experiments"} {
		b = bytes.Replace(b, []byte(`"`+list+`":null`), []byte(`"`+list+`":[]`), 1)
	}
	return b
}

// diff answers the named object before and after. For an object that is not a
// single one ("document") it answers all objects that differ, by name.
func diff(before, after *router.Snapshot, object string) (b, a json.RawMessage, err error) {
	x, err := objects(before)
	if err != nil {
		return nil, nil, err
	}
	y, err := objects(after)
	if err != nil {
		return nil, nil, err
	}
	if x[object] != nil || y[object] != nil {
		return x[object], y[object], nil
	}
	for name, v := range x {
		if bytes.Equal(v, y[name]) {
			delete(x, name)
			delete(y, name)
		}
	}
	if len(x) > 0 {
		if b, err = json.Marshal(x); err != nil {
			return nil, nil, err
		}
	}
	if len(y) > 0 {
		a, err = json.Marshal(y)
	}
	return b, a, err
}

// objects names every object of a snapshot; hashes of secrets are left out.
func objects(s *router.Snapshot) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	add := func(kind, name string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", kind, name, err)
		}
		out[kind+"/"+name] = b
		return nil
	}
	for _, u := range s.Document.Upstreams {
		if err := add("upstream", u.Name, u); err != nil {
			return nil, err
		}
	}
	for _, m := range s.Document.Models {
		if err := add("model", m.Name, m); err != nil {
			return nil, err
		}
	}
	for _, e := range s.Document.Experiments {
		if err := add("experiment", e.Key, e); err != nil {
			return nil, err
		}
	}
	for _, k := range s.Keys {
		k.Hash = ""
		if err := add("key", k.ID, k); err != nil {
			return nil, err
		}
	}
	return out, nil
}
