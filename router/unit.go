package router

import (
	"encoding/hex"
	"net/http"
	"strings"

	"sluice/experiment"
)

const maxUnitID = 512

// sessionHeader names a session, not a user, and needs no scope.
const sessionHeader = "X-Session-Id"

// unit finds who is asking, by e's sources in order; the first present wins. Headers
// and cookies are believed from keys with the scope identity (or without auth)
// only; body members of other keys count within that key alone.
func (t *Table) unit(e *CompiledExperiment, q *Query) (experiment.Unit, bool) {
	ns := t.namespace(q)
	trusted := q.AuthNone || q.Key.HasScope(ScopeIdentity)
	claimed := ns.own // the namespace of what the caller claims
	if trusted {
		claimed = ns.tenant
	}
	for _, s := range e.sources {
		typ, tenant, id := "user", ns.tenant, ""
		switch s.kind {
		case fromKeyUser:
			if q.Key != nil {
				id = q.Key.User
			}
		case fromHeader:
			switch {
			case s.name == sessionHeader:
				typ, id = "session", header(q.Header, s.name)
			case trusted:
				id = header(q.Header, s.name)
			}
		case fromCookie:
			if trusted {
				id = cookie(q.Header, s.name)
			}
		case fromSafetyIdentifier, fromUser, fromMetadataUser:
			tenant, id = claimed, bodyID(q, s.kind)
		case fromSession:
			typ, id = "session", sessionID(q)
		case fromConversation:
			typ, tenant, id = "conversation", ns.own, conversation(q)
		case fromKey:
			if q.Key != nil {
				typ, id = "key", q.Key.ID
			}
		}
		if present(id) {
			return experiment.Unit{Type: typ, Tenant: tenant, ID: id}, true
		}
	}
	return experiment.Unit{}, false
}

// namespace is the key's; all empty without auth.
func (t *Table) namespace(q *Query) (ns keyTenant) {
	if q.Key == nil {
		return ns
	}
	ns, known := t.tenants[q.Key.ID]
	if !known {
		tenant := unitTenant(q.Key.Tenant)
		ns = keyTenant{tenant, hashed(tenant + "\x00" + q.Key.ID)}
	}
	return ns
}

func sessionID(q *Query) string {
	id := header(q.Header, sessionHeader)
	if !present(id) && q.Head != nil {
		id = q.Head.MetadataSessionID
	}
	return id
}

// session is the session of a request as a unit, beside its user (merge).
func (t *Table) session(q *Query) (experiment.Unit, bool) {
	id := sessionID(q)
	if !present(id) {
		return experiment.Unit{}, false
	}
	return experiment.Unit{Type: "session", Tenant: t.namespace(q).tenant, ID: id}, true
}

func bodyID(q *Query, kind sourceKind) string {
	switch {
	case q.Head == nil:
		return ""
	case kind == fromSafetyIdentifier:
		return q.Head.SafetyIdentifier
	case kind == fromUser:
		return q.Head.User
	}
	return q.Head.MetadataUserID
}

// conversation is the same over the turns of one chat; the key is mixed in by
// the unit's namespace.
func conversation(q *Query) string {
	if q.Head == nil {
		return ""
	}
	id, ok := q.Head.Conversation(q.Body)
	if !ok {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// present says whether s identifies anybody: a constant that stands for
// "unknown" would put all its users into one bucket, and an id that is too long
// is not cut, because that would make two people one.
func present(s string) bool {
	if s == "" || len(s) > maxUnitID {
		return false
	}
	s = strings.TrimSpace(s)
	switch len(s) {
	case 0:
		return false
	case 4:
		return !strings.EqualFold(s, "null") && !strings.EqualFold(s, "none")
	case 9:
		return !strings.EqualFold(s, "undefined") && !strings.EqualFold(s, "anonymous")
	}
	return true
}

// header is a header's value, "" when it is absent or sent with several values:
// who is meant is then open.
func header(h http.Header, canonical string) string {
	values := h[canonical]
	if len(values) == 0 {
		return ""
	}
	for _, v := range values[1:] {
		if v != values[0] {
			return ""
		}
	}
	return values[0]
}

// cookie finds a cookie without parsing the rest; one that is sent twice with
// different values is absent.
func cookie(h http.Header, name string) string {
	found, value := false, ""
	for _, line := range h["Cookie"] {
		for line != "" {
			var part string
			part, line, _ = strings.Cut(line, ";")
			n, v, ok := strings.Cut(strings.TrimSpace(part), "=")
			if !ok || n != name {
				continue
			}
			if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
				v = v[1 : len(v)-1]
			}
			if found && v != value {
				return ""
			}
			found, value = true, v
		}
	}
	return value
}

// Attr answers the targeting attributes (experiment.Attrs): tenant, key, model
// (as requested), api, tag:NAME, and the headers that the rules name.
func (q *Query) Attr(name string) (string, bool) {
	switch name {
	case "model":
		return q.Model, q.Model != ""
	case "api":
		return q.API.String(), true
	case "tenant":
		if q.Key == nil {
			return "", false
		}
		return q.Key.Tenant, q.Key.Tenant != ""
	case "key":
		if q.Key == nil {
			return "", false
		}
		return q.Key.ID, true
	}
	if canonical, ok := q.headerAttrs[name]; ok {
		v := header(q.Header, canonical)
		return v, v != ""
	}
	if tag, ok := strings.CutPrefix(name, "tag:"); ok && q.Key != nil {
		v, ok := q.Key.Tags[tag]
		return v, ok
	}
	return "", false
}
