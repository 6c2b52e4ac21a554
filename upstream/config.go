package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sluice/upstream/wire"
)

// Defaults of Timeouts and Readiness.
const (
	defaultConnect      = 2 * time.Second
	defaultFirstByte    = 10 * time.Minute
	defaultBetweenBytes = 2 * time.Minute
	defaultInterval     = 2 * time.Second
	defaultDown         = 3
	defaultUp           = 2
	defaultQueueTimeout = 10 * time.Second
	defaultSlowStart    = 10 * time.Second
	defaultHedgeMin     = time.Second
	defaultHedgeShare   = 0.05
)

// drainAll in Config.Drained stands for every endpoint.
const drainAll = "*"

// Balancing policies.
const (
	balanceLeast = "least_outstanding"
	balanceRound = "round_robin"
	balancePref  = "prefix"
	balanceLoad  = "load"
)

// SupportsExact tells whether a dialect can count the tokens of every chunk,
// so that `usage: exact` may be set.
func SupportsExact(d wire.Dialect) bool { return d == wire.VLLM || d == wire.SGLang }

// withDefaults returns c with every default filled in and everything in its
// one form, or says what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	fail := func(format string, args ...any) (Config, error) {
		return Config{}, fmt.Errorf("upstream %q: "+format, append([]any{c.Name}, args...)...)
	}
	if c.Name == "" {
		return Config{}, errors.New("an upstream has no name")
	}
	switch c.Dialect {
	case "":
		c.Dialect = wire.OpenAI
	case wire.OpenAI, wire.VLLM, wire.TGI, wire.SGLang, wire.LlamaCPP:
	default:
		return fail("unknown dialect %q; use openai, vllm, tgi, sglang or llamacpp", c.Dialect)
	}
	if c.UsageExact && !SupportsExact(c.Dialect) {
		return fail("usage: exact needs a dialect that counts every chunk (vllm, sglang), not %s", c.Dialect)
	}
	switch c.Balance {
	case "":
		c.Balance = balanceLeast
	case balanceLeast, balanceRound, balancePref, balanceLoad:
	default:
		return fail("unknown balance %q; use least_outstanding, round_robin, prefix or load", c.Balance)
	}
	bases := make([]string, 0, len(c.Endpoints))
	for _, e := range c.Endpoints {
		b, err := NormalizeBase(e)
		if err != nil {
			return fail("%w", err)
		}
		for _, old := range bases {
			if old == b {
				return fail("endpoint %s is listed twice", b)
			}
		}
		bases = append(bases, b)
	}
	c.Endpoints = bases
	drained := make([]string, len(c.Drained))
	for i, d := range c.Drained {
		drained[i] = d
		if b, err := NormalizeBase(d); err == nil {
			drained[i] = b // what is no endpoint (any more) drains nothing
		}
	}
	c.Drained = drained
	if strings.ContainsAny(c.Credential, "\r\n\x00") {
		return fail("the credential has a line break; check the secret's source")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return fail("tls needs both cert_file and key_file, or neither")
	}
	c.Timeouts = c.Timeouts.withDefaults()
	c.Readiness = c.Readiness.withDefaults()
	if p := c.Readiness.Path; p != "" && !strings.HasPrefix(p, "/") {
		return fail("readiness path %q must start with /", p)
	}
	orDefault(&c.Limits.QueueTimeout, defaultQueueTimeout)
	orDefault(&c.SlowStart, defaultSlowStart)
	orDefault(&c.Hedge.Min, defaultHedgeMin)
	if c.Hedge.MaxShare == 0 {
		c.Hedge.MaxShare = defaultHedgeShare
	}
	if c.DenyFields == nil {
		c.DenyFields = wire.DenyDefaults(c.Dialect)
	}
	return c, nil
}

// DefaultTimeouts are those of an upstream that has none; 0 is off.
func DefaultTimeouts() Timeouts { return Timeouts{}.withDefaults() }

// Or takes from other what t leaves out.
func (t Timeouts) Or(other Timeouts) Timeouts {
	return Timeouts{
		Connect: cmp.Or(t.Connect, other.Connect), FirstByte: cmp.Or(t.FirstByte, other.FirstByte),
		BetweenBytes: cmp.Or(t.BetweenBytes, other.BetweenBytes), Total: cmp.Or(t.Total, other.Total),
	}
}

// drains tells whether the endpoint of that base URL gets no new calls.
func (c *Config) drains(base string) bool {
	return slices.Contains(c.Drained, base) || slices.Contains(c.Drained, drainAll)
}

func (t Timeouts) withDefaults() Timeouts {
	orDefault(&t.Connect, defaultConnect)
	orDefault(&t.FirstByte, defaultFirstByte)
	orDefault(&t.BetweenBytes, defaultBetweenBytes)
	orDefault(&t.Total, 0)
	return t
}

// orDefault fills in what is absent; from then on 0 is off.
func orDefault(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
	*d = max(*d, 0)
}

func (r Readiness) withDefaults() Readiness {
	if r.Interval <= 0 {
		r.Interval = defaultInterval
	}
	if r.Down <= 0 {
		r.Down = defaultDown
	}
	if r.Up <= 0 {
		r.Up = defaultUp
	}
	return r
}

// headerSet is a set of canonical header names.
type headerSet map[string]struct{}

func newHeaderSet(names []string, allowed func(string) bool) headerSet {
	if len(names) == 0 {
		return nil
	}
	s := make(headerSet, len(names))
	for _, n := range names {
		n = http.CanonicalHeaderKey(strings.TrimSpace(n))
		if n != "" && allowed(n) {
			s[n] = struct{}{}
		}
	}
	return s
}

func (s headerSet) has(name string) bool {
	_, ok := s[name]
	return ok
}
