package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// PatchExperiment applies an RFC 7396 merge patch to the API form of an
// experiment. Runtime members are refused, naming the verb (a value that is
// the present one passes); weights in it take the path of SetWeights.
func PatchExperiment(doc *Document, revision int64, now time.Time, key string, patch []byte) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		members, err := patchMembers(patch)
		if err != nil {
			return err
		}
		if err := dropRuntime(e, members); err != nil {
			return err
		}
		want, err := patched[Experiment](patchBase(e), members)
		if err != nil {
			return err
		}
		return replaceExperiment(e, *want, revision, now, replaceOptions{})
	})
}

// patchBase is what a patch of an experiment is merged into: the stored form
// without what the server keeps.
func patchBase(e *Experiment) Experiment {
	base := *e
	base.Allocation, base.RampState, base.LastRollback, base.Setup = nil, nil, nil, nil
	return base
}

// dropRuntime takes the runtime members out of a patch, and refuses those that
// would change something.
func dropRuntime(e *Experiment, members map[string]json.RawMessage) error {
	var now map[string]json.RawMessage
	for _, name := range sortedKeys(members) {
		how, runtime := runtimeMembers[name]
		if !runtime {
			continue
		}
		if now == nil {
			now = presentMembers(e)
		}
		if !sameJSON(now[name], members[name]) {
			return &EditError{CodeRuntimeField, "experiment/" + e.Key, fmt.Sprintf("%s cannot be patched: %s", name, how)}
		}
		delete(members, name)
	}
	return nil
}

func presentMembers(e *Experiment) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, form := range []any{e, View(e, 0)} {
		if raw, err := json.Marshal(form); err == nil {
			_ = json.Unmarshal(raw, &out) // an object of our own making
		}
	}
	return out
}

func sameJSON(a, b json.RawMessage) bool {
	decode := func(raw json.RawMessage) any {
		if len(raw) == 0 {
			return nil
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) != nil {
			return &raw // equal to nothing
		}
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}

// patched merges members into base and reads the result strictly.
func patched[T any](base T, members map[string]json.RawMessage) (*T, error) {
	target, err := json.Marshal(base)
	if err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	patch, err := json.Marshal(members)
	if err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	merged, err := mergePatch(target, patch, 0)
	if err != nil {
		return nil, err
	}
	return parseStrict[T](merged)
}

// CreateUpstream adds an upstream.
func CreateUpstream(doc *Document, revision int64, now time.Time, u Upstream) error {
	return edit(doc, revision, now, selfUpstream(u.Name), func(d *Document) error {
		if d.Upstream(u.Name) != nil {
			return &EditError{CodeExists, "upstream/" + clip(u.Name), "an upstream with this name exists; change it, or choose another name"}
		}
		u := cloneUpstream(u)
		u.UpdatedRevision = 0
		d.raise("upstream/" + u.Name)
		d.Upstreams = append(d.Upstreams, u)
		return nil
	})
}

// PatchUpstream applies an RFC 7396 merge patch.
func PatchUpstream(doc *Document, revision int64, now time.Time, name string, patch []byte) error {
	return edit(doc, revision, now, selfUpstream(name), func(d *Document) error {
		u := d.Upstream(name)
		if u == nil {
			return notFound("upstream", name)
		}
		want, err := patchNamed(*u, "upstream/"+name, patch, map[string]any{"name": u.Name, "updated_revision": u.UpdatedRevision})
		if err != nil {
			return err
		}
		*u = *want
		return nil
	})
}

// DeleteUpstream removes an upstream that nothing refers to (else code in_use)
// and leaves a tombstone.
func DeleteUpstream(doc *Document, revision int64, now time.Time, name string) error {
	return edit(doc, revision, now, func(*Document) string { return "" }, func(d *Document) error {
		if d.Upstream(name) == nil {
			return notFound("upstream", name)
		}
		if users := d.usersOfUpstream(name); len(users) > 0 {
			return inUse("upstream/"+name, users)
		}
		d.Upstreams = slices.DeleteFunc(d.Upstreams, func(u Upstream) bool { return u.Name == name })
		d.bury("upstream/" + name)
		return nil
	})
}

// CreateModel adds a public model.
func CreateModel(doc *Document, revision int64, now time.Time, m Model) error {
	return edit(doc, revision, now, selfModel(m.Name), func(d *Document) error {
		if d.Model(m.Name) != nil {
			return &EditError{CodeExists, "model/" + clip(m.Name), "a model with this name exists; change it, or choose another name"}
		}
		m := cloneModel(m)
		m.UpdatedRevision = 0
		d.raise("model/" + m.Name)
		d.Models = append(d.Models, m)
		return nil
	})
}

// PatchModel applies an RFC 7396 merge patch.
func PatchModel(doc *Document, revision int64, now time.Time, name string, patch []byte) error {
	return edit(doc, revision, now, selfModel(name), func(d *Document) error {
		m := d.Model(name)
		if m == nil {
			return notFound("model", name)
		}
		want, err := patchNamed(*m, "model/"+name, patch, map[string]any{"name": m.Name, "updated_revision": m.UpdatedRevision})
		if err != nil {
			return err
		}
		*m = *want
		return nil
	})
}

// DeleteModel removes a model that no experiment refers to (else code in_use)
// and leaves a tombstone.
func DeleteModel(doc *Document, revision int64, now time.Time, name string) error {
	return edit(doc, revision, now, func(*Document) string { return "" }, func(d *Document) error {
		if d.Model(name) == nil {
			return notFound("model", name)
		}
		if users := d.usersOfModel(name); len(users) > 0 {
			return inUse("model/"+name, users)
		}
		d.Models = slices.DeleteFunc(d.Models, func(m Model) bool { return m.Name == name })
		d.bury("model/" + name)
		return nil
	})
}

// patchNamed patches an object whose fixed members may be sent, unchanged.
// revision is the API's name of the ETag and passes the same way.
func patchNamed[T any](base T, object string, patch []byte, fixed map[string]any) (*T, error) {
	members, err := patchMembers(patch)
	if err != nil {
		return nil, err
	}
	fixed["revision"] = fixed["updated_revision"]
	for name, value := range fixed {
		got, sent := members[name]
		if !sent {
			continue
		}
		if present, err := json.Marshal(value); err != nil || !sameJSON(present, got) {
			return nil, &EditError{CodeRuntimeField, object, fmt.Sprintf("%s cannot be patched; leave it out", name)}
		}
		delete(members, name)
	}
	return patched(base, members)
}

func inUse(object string, users []string) error {
	shown := users[:min(len(users), 10)]
	more := ""
	if n := len(users) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return &EditError{CodeInUse, object, fmt.Sprintf("it is used by %s%s; change or delete them first", strings.Join(shown, ", "), more)}
}

func (d *Document) usersOfUpstream(name string) []string {
	var out []string
	for _, m := range d.Models {
		if m.Default.Upstream == name {
			out = append(out, "model/"+m.Name)
		}
	}
	for _, e := range d.Experiments {
		for _, v := range e.Variants {
			if v.Upstream == name {
				out = append(out, "experiment/"+e.Key+" (variant "+v.Name+")")
			}
		}
	}
	return out
}

func (d *Document) usersOfModel(name string) []string {
	var out []string
	for _, e := range d.Experiments {
		if e.Model == name {
			out = append(out, "experiment/"+e.Key)
		}
	}
	return out
}

func selfUpstream(name string) func(*Document) string {
	return func(d *Document) string {
		return at("/upstreams", slices.IndexFunc(d.Upstreams, func(u Upstream) bool { return u.Name == name }))
	}
}

func selfModel(name string) func(*Document) string {
	return func(d *Document) string {
		return at("/models", slices.IndexFunc(d.Models, func(m Model) bool { return m.Name == name }))
	}
}
