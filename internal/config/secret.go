package config

import (
	"encoding/json"
	"log/slog"
	"net/url"
	"strings"
)

const redacted = "[redacted]"

// Secret is a value that prints as "[redacted]" (or "" when empty) through
// every formatter, encoder and logger; only Reveal gives it.
type Secret string

// Reveal returns the value itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer, for %#v.
func (s Secret) GoString() string { return `config.Secret("` + s.String() + `")` }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// SecretURL is a URL that may hold a password; it prints without it, and
// without query members that name one.
type SecretURL string

// Reveal returns the URL itself.
func (u SecretURL) Reveal() string { return string(u) }

// String implements fmt.Stringer.
func (u SecretURL) String() string {
	s := string(u)
	if s == "" || strings.HasPrefix(s, "sqlite:") {
		return s
	}
	p, err := url.Parse(s)
	if err != nil || p.Host == "" {
		// A DSN in another form ("host=… password=…") or a typing error: nothing
		// in it is known to be harmless.
		return redacted
	}
	if _, has := p.User.Password(); has {
		p.User = url.UserPassword(p.User.Username(), "redacted")
	}
	q := p.Query()
	for k := range q {
		if l := strings.ToLower(k); strings.Contains(l, "pass") || strings.Contains(l, "token") || strings.Contains(l, "secret") {
			q.Set(k, "redacted")
			p.RawQuery = q.Encode()
		}
	}
	return p.String()
}

// GoString implements fmt.GoStringer, for %#v.
func (u SecretURL) GoString() string { return `config.SecretURL("` + u.String() + `")` }

// MarshalJSON implements json.Marshaler.
func (u SecretURL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// MarshalText implements encoding.TextMarshaler.
func (u SecretURL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue implements slog.LogValuer.
func (u SecretURL) LogValue() slog.Value { return slog.StringValue(u.String()) }
