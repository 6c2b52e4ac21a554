package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// DiffLine is one changed object of a semantic diff.
type DiffLine struct {
	Object string   `json:"object"` // "experiment/chat-v2"
	Action string   `json:"action"` // create | update | delete
	Fields []string `json:"fields"` // "variants/canary/weight: 1000 → 2000"
}

// String is the line for people: "~ experiment/chat-v2" and its fields below.
func (l DiffLine) String() string {
	sign := map[string]string{"create": "+", "update": "~", "delete": "-"}[l.Action]
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", sign, l.Object)
	for _, f := range l.Fields {
		b.WriteString("\n    ")
		b.WriteString(f)
	}
	return b.String()
}

// serverMembers are kept by the server and never told as a difference.
var serverMembers = []string{"allocation", "gen_revision", "runs_from", "updated_revision", "updated_at", "created_at", "last_rollback"}

// Diff is the semantic difference from a to b, without what the server keeps
// for itself (revisions, times, allocation). Order of objects and variants is
// no difference; nil documents are empty.
func Diff(a, b *Document) []DiffLine {
	if a == nil {
		a = &Document{}
	}
	if b == nil {
		b = &Document{}
	}
	out := diffObjects("upstream/", a.Upstreams, b.Upstreams, func(u Upstream) string { return u.Name })
	out = append(out, diffObjects("model/", a.Models, b.Models, func(m Model) string { return m.Name })...)
	return append(out, diffObjects("experiment/", a.Experiments, b.Experiments, func(e Experiment) string { return e.Key })...)
}

func diffObjects[T any](prefix string, a, b []T, name func(T) string) []DiffLine {
	var out []DiffLine
	index := func(list []T, n string) int {
		return slices.IndexFunc(list, func(x T) bool { return name(x) == n })
	}
	for _, x := range b {
		i := index(a, name(x))
		if i < 0 {
			out = append(out, DiffLine{Object: prefix + name(x), Action: "create", Fields: diffFields(nil, plain(x))})
			continue
		}
		if fields := diffFields(plain(a[i]), plain(x)); len(fields) > 0 {
			out = append(out, DiffLine{Object: prefix + name(x), Action: "update", Fields: fields})
		}
	}
	for _, x := range a {
		if index(b, name(x)) < 0 {
			out = append(out, DiffLine{Object: prefix + name(x), Action: "delete", Fields: []string{}})
		}
	}
	return out
}

// plain is an object's JSON as maps, with variants by name.
func plain(x any) map[string]any {
	raw, err := json.Marshal(x)
	if err != nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	out := map[string]any{}
	if dec.Decode(&out) != nil {
		return nil
	}
	for _, name := range serverMembers {
		delete(out, name)
	}
	if state, ok := out["ramp_state"].(map[string]any); ok {
		for _, name := range []string{"setup", "since", "epoch", "heavy"} {
			delete(state, name)
		}
	}
	if list, ok := out["variants"].([]any); ok {
		byName := map[string]any{}
		for _, v := range list {
			if m, ok := v.(map[string]any); ok {
				n, _ := m["name"].(string)
				delete(m, "name")
				byName[n] = m
			}
		}
		out["variants"] = byName
	}
	return out
}

func diffFields(a, b map[string]any) []string {
	fields := []string{}
	var walk func(path string, x, y any)
	walk = func(path string, x, y any) {
		mx, okX := x.(map[string]any)
		my, okY := y.(map[string]any)
		if (okX || x == nil) && (okY || y == nil) && (okX || okY) {
			names := sortedKeys(mx)
			for n := range my {
				if _, both := mx[n]; !both {
					names = append(names, n)
				}
			}
			slices.Sort(names)
			for _, n := range names {
				walk(strings.TrimPrefix(path+"/"+n, "/"), mx[n], my[n])
			}
			return
		}
		sx, sy := shown(x), shown(y)
		if full(x) == full(y) {
			return
		}
		switch {
		case x == nil:
			fields = append(fields, path+": "+sy)
		case y == nil:
			fields = append(fields, path+": "+sx+" → (none)")
		default:
			fields = append(fields, path+": "+sx+" → "+sy)
		}
	}
	walk("", anyMap(a), anyMap(b))
	return fields
}

// anyMap keeps a nil map a nil interface.
func anyMap(m map[string]any) any {
	if m == nil {
		return nil
	}
	return m
}

func full(v any) string {
	if v == nil {
		return ""
	}
	raw, _ := json.Marshal(v)
	return string(raw)
}

// shown is a value cut to a readable length.
func shown(v any) string {
	s := full(v)
	if len(s) > 120 {
		s = strings.ToValidUTF8(s[:120], "") + "…"
	}
	return s
}
