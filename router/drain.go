package router

import (
	"slices"
	"strings"
	"time"

	"sluice/upstream"
)

// DrainAll in Upstream.Drained stands for every endpoint.
const DrainAll = "*"

// CodeUnknownEndpoint is the EditError's code for an endpoint that is not there.
const CodeUnknownEndpoint = "endpoint_unknown"

// Drain stops new calls to one endpoint of an upstream, or to all with endpoint
// "". known are base URLs that may be named beside the configured ones: what a
// dns: endpoint resolves to.
func Drain(doc *Document, revision int64, now time.Time, name, endpoint string, known []string) error {
	return editDrained(doc, revision, now, name, endpoint, known, func(u *Upstream, base string, _ []string) {
		switch {
		case base == "":
			u.Drained = []string{DrainAll}
		case !drains(u, base):
			u.Drained = append(u.Drained, base)
		}
	})
}

// Enable takes Drain back.
func Enable(doc *Document, revision int64, now time.Time, name, endpoint string, known []string) error {
	return editDrained(doc, revision, now, name, endpoint, known, func(u *Upstream, base string, all []string) {
		if base == "" {
			u.Drained = nil
			return
		}
		if slices.Contains(u.Drained, DrainAll) {
			u.Drained = all // all the others stay drained
		}
		u.Drained = slices.DeleteFunc(slices.Clone(u.Drained), func(d string) bool { return normalBase(d) == base || d == DrainAll })
		if len(u.Drained) == 0 {
			u.Drained = nil
		}
	})
}

func drains(u *Upstream, base string) bool {
	return slices.ContainsFunc(u.Drained, func(d string) bool { return d == DrainAll || normalBase(d) == base })
}

// normalBase is a base URL in its one form, or what it is not one of.
func normalBase(s string) string {
	if b, err := upstream.NormalizeBase(s); err == nil {
		return b
	}
	return s
}

func editDrained(doc *Document, revision int64, now time.Time, name, endpoint string, known []string, f func(u *Upstream, base string, all []string)) error {
	return edit(doc, revision, now, selfUpstream(name), func(d *Document) error {
		u := d.Upstream(name)
		if u == nil {
			return notFound("upstream", name)
		}
		var all []string
		for _, e := range slices.Concat(u.Endpoints, known) {
			if b := normalBase(e); !slices.Contains(all, b) {
				all = append(all, b)
			}
		}
		base := ""
		if endpoint != "" {
			if base = normalBase(endpoint); !slices.Contains(all, base) {
				return &EditError{CodeUnknownEndpoint, "upstream/" + name, "it has no endpoint " + clip(endpoint) + "; there are " + strings.Join(all, ", ")}
			}
		}
		f(u, base, all)
		return nil
	})
}
