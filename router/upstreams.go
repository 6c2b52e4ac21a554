package router

import (
	"slices"
	"strings"
	"time"

	"sluice/upstream"
	"sluice/upstream/wire"
)

// UpstreamConfigs are the upstreams of d, ready for upstream.New, with their
// credentials resolved. secrets nil resolves none. An upstream with a problem
// is left out.
func UpstreamConfigs(d *Document, secrets func(name string) (string, bool)) ([]upstream.Config, Problems) {
	var ps Problems
	out := make([]upstream.Config, 0, len(d.Upstreams))
	for i := range d.Upstreams {
		u := &d.Upstreams[i]
		c := upstreamConfig(u)
		if u.Credential != "" {
			var ok bool
			if secrets != nil {
				c.Credential, ok = secrets(u.Credential)
			}
			if !ok {
				name := u.Credential
				if looksSecret(name) {
					name = "…"
				}
				ps = append(ps, Problem{at("/upstreams", i, "credential"), "secret_unknown",
					"the secret " + name + " of the upstream " + clip(u.Name) + " does not resolve; add it to `secrets:` in the process settings of this replica"})
				continue
			}
		}
		out = append(out, c)
	}
	return out, ps
}

func upstreamConfig(u *Upstream) upstream.Config {
	c := upstream.Config{
		Name: u.Name, Dialect: wire.Dialect(u.Dialect), Endpoints: slices.Clone(u.Endpoints),
		UsageExact: u.Usage == "exact", Balance: u.Balance,
	}
	if l := u.Limits; l != nil {
		c.Limits = upstream.Limits{MaxInFlight: l.MaxInFlight, MaxQueue: l.MaxQueue, QueueTimeout: orOff(l.QueueTimeout)}
	}
	if u.Warmup != nil {
		c.Warmup = u.Warmup.Requests
	}
	if s := u.ColdStart; s != nil {
		c.ColdStart = upstream.ColdStart{MaxWait: time.Duration(s.MaxWait), Wake: s.Wake}
	}
	if h := u.Hedge; h != nil {
		c.Hedge = upstream.Hedge{Quantile: h.Quantile, Min: orOff(h.Min), MaxShare: h.MaxShare}
	}
	c.SlowStart, c.Drained = orOff(u.SlowStart), slices.Clone(u.Drained)
	if t := u.Timeouts; t != nil {
		c.Timeouts = upstream.Timeouts{
			Connect: orOff(t.Connect), FirstByte: orOff(t.FirstByte),
			BetweenBytes: orOff(t.BetweenBytes), Total: orOff(t.Total),
		}
	}
	if r := u.Readiness; r != nil {
		c.Readiness = upstream.Readiness{Path: r.Path, Down: r.Down, Up: r.Up}
		if r.Interval != nil {
			c.Readiness.Interval = time.Duration(*r.Interval)
		}
	}
	if u.DenyFields != nil {
		c.DenyFields = append([]string{}, *u.DenyFields...) // empty is not nil
	}
	if u.Headers != nil {
		c.ReqHeaders, c.RespHeaders = lower(u.Headers.Request), lower(u.Headers.Response)
	}
	if u.TLS != nil {
		c.TLS = upstream.TLS{CAFile: u.TLS.CAFile, CertFile: u.TLS.CertFile, KeyFile: u.TLS.KeyFile}
	}
	return c
}

// orOff turns "absent: the default, 0s: off" into "0: the default, negative: off".
func orOff(d *Duration) time.Duration {
	switch {
	case d == nil:
		return 0
	case *d == 0:
		return -1
	}
	return time.Duration(*d)
}

func lower(names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, strings.ToLower(n))
	}
	return out
}
