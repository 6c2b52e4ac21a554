package router

import (
	"fmt"
	"net/textproto"
	"strings"

	"sluice/upstream"
)

// sourceKind is one way to learn who is asking.
type sourceKind uint8

const (
	fromKeyUser sourceKind = iota
	fromHeader
	fromCookie
	fromSafetyIdentifier
	fromUser
	fromMetadataUser
	fromSession
	fromConversation
	fromKey
)

// unitSource is one compiled entry of unit.from.
type unitSource struct {
	kind sourceKind
	name string // canonical header name, or cookie name
}

// defaultSources is the chain of design.md section 7 for an experiment that
// names none. `key` is not in it: it must be asked for.
var defaultSources = []unitSource{
	{kind: fromKeyUser},
	{kind: fromHeader, name: "X-User-Id"},
	{kind: fromSafetyIdentifier},
	{kind: fromUser},
	{kind: fromMetadataUser},
	{kind: fromSession},
	{kind: fromConversation},
}

// addressHeaders carry client addresses, which are no identity: one is
// thousands of people, one person has many.
var addressHeaders = map[string]bool{
	"x-forwarded-for": true, "x-real-ip": true, "forwarded": true, "true-client-ip": true,
	"cf-connecting-ip": true, "x-client-ip": true, "x-cluster-client-ip": true, "fastly-client-ip": true,
}

const unitGrammar = "key_user, header:NAME, cookie:NAME, body:user, body:safety_identifier, body:metadata.user_id, session, conversation, key"

// parseUnitSource reads one entry of unit.from.
func parseUnitSource(s string) (unitSource, error) {
	switch s {
	case "key_user":
		return unitSource{kind: fromKeyUser}, nil
	case "user", "body:user":
		return unitSource{kind: fromUser}, nil
	case "safety_identifier", "body:safety_identifier":
		return unitSource{kind: fromSafetyIdentifier}, nil
	case "metadata.user_id", "body:metadata.user_id":
		return unitSource{kind: fromMetadataUser}, nil
	case "session":
		return unitSource{kind: fromSession}, nil
	case "conversation":
		return unitSource{kind: fromConversation}, nil
	case "key":
		return unitSource{kind: fromKey}, nil
	}
	if kind, name, ok := strings.Cut(s, ":"); ok && isToken(name) {
		low := strings.ToLower(name)
		switch {
		case kind == "header" && addressHeaders[low]:
			return unitSource{}, errNoAddress
		case kind == "header" && upstream.Private(name):
			return unitSource{}, fmt.Errorf("the header %q carries a credential or belongs to the connection; it is no identity", low)
		case kind == "header":
			return unitSource{kind: fromHeader, name: textproto.CanonicalMIMEHeaderKey(name)}, nil
		case kind == "cookie":
			return unitSource{kind: fromCookie, name: name}, nil
		}
	}
	if low := strings.ToLower(s); low == "ip" || low == "remote_addr" || low == "client_ip" || low == "address" {
		return unitSource{}, errNoAddress
	}
	return unitSource{}, fmt.Errorf("%q is not a source of unit ids; use one of %s", clip(s), unitGrammar)
}

var errNoAddress = fmt.Errorf("an IP address is not offered as a unit: one NAT is thousands of people, one phone has many addresses; use one of %s", unitGrammar)

// compileSources is the chain of u; a bad entry is an error of its index.
func compileSources(u *Unit) ([]unitSource, error) {
	if u == nil {
		return defaultSources, nil
	}
	out := make([]unitSource, 0, len(u.From))
	for i, s := range u.From {
		src, err := parseUnitSource(s)
		if err != nil {
			return nil, fmt.Errorf("unit.from[%d]: %w", i, err)
		}
		out = append(out, src)
	}
	return out, nil
}
