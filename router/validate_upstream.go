package router

import (
	"net/url"
	"regexp"
	"strings"

	"sluice/metrics"
	"sluice/upstream"
	"sluice/upstream/wire"
)

func (c *checker) upstream(path string, u *Upstream) {
	if !nameRE.MatchString(u.Name) {
		c.add(path+"/name", "name_invalid", "%q is not a name of an upstream; %s", clip(u.Name), nameRule)
	}
	if c.upstreams[u.Name] {
		c.add(path+"/name", "duplicate_name", "the upstream %q is written twice; names are unique", clip(u.Name))
	}
	c.upstreams[u.Name] = true
	dialect := wire.Dialect(u.Dialect)
	c.oneOf(path+"/dialect", u.Dialect, "", string(wire.OpenAI), string(wire.VLLM), string(wire.TGI), string(wire.SGLang), string(wire.LlamaCPP))
	c.endpoints(path+"/endpoints", u.Endpoints)
	c.credential(path+"/credential", u.Credential)
	c.oneOf(path+"/usage", u.Usage, "", "final", "exact")
	if u.Usage == "exact" && !upstream.SupportsExact(dialect) {
		c.add(path+"/usage", "usage_exact_unsupported", "usage: exact needs a dialect that reports usage in every chunk (vllm, sglang); this upstream is %q: set its dialect or write usage: final", or(u.Dialect, "openai"))
	}
	c.oneOf(path+"/balance", u.Balance, "", "least_outstanding", "round_robin", "prefix", "load")
	c.upstreamTimes(path, u)
	c.upstreamNumbers(path, u)
	if u.Headers != nil {
		c.headerNames(path+"/headers/request", u.Headers.Request)
		c.headerNames(path+"/headers/response", u.Headers.Response)
	}
	if u.DenyFields != nil && c.most(path+"/deny_fields", len(*u.DenyFields), MaxObjects, "fields") {
		for i, f := range *u.DenyFields {
			if f == "" || len(f) > maxLabel {
				c.add(at(path, "deny_fields", i), "invalid_value", "a denied field is the name of a member of the request body, 1 to 128 bytes")
			}
		}
	}
	c.price(path+"/price", u.Price)
	if u.TLS != nil && (u.TLS.CertFile == "") != (u.TLS.KeyFile == "") {
		c.add(path+"/tls", "invalid_value", "cert_file and key_file belong together; write both or neither")
	}
}

func (c *checker) endpoints(path string, list []string) {
	if len(list) == 0 {
		c.add(path, "required", `an upstream needs at least one endpoint, like "http://gpu1:8000/v1"`)
	}
	if !c.most(path, len(list), MaxObjects, "endpoints") {
		return
	}
	seen := map[string]bool{}
	for i, e := range list {
		p := at(path, i)
		if hasUserinfo(e) {
			c.add(p, "secret_literal", "a secret must not be written here: the URL holds a user or password; name it in credential instead")
			continue
		}
		base, err := upstream.NormalizeBase(e)
		switch {
		case err != nil:
			c.add(p, "endpoint_invalid", "%v", err)
		case seen[base]:
			c.add(p, "duplicate_name", "the endpoint %q is written twice", clip(base))
		}
		seen[base] = true
	}
}

func hasUserinfo(endpoint string) bool {
	u, err := url.Parse(strings.TrimPrefix(endpoint, "dns:"))
	if err != nil {
		// A URL that does not parse may still hold "user:password@".
		return strings.Contains(endpoint, "@")
	}
	return u.User != nil
}

var secretNameRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// secretPrefixes begin the keys of well-known services.
var secretPrefixes = []string{"sk-", "sk_", "pk-", "hf_", "gsk_", "ghp_", "github_pat_", "xoxb-", "akia", "aiza", "eyj", "bearer", "basic"}

func (c *checker) credential(path, name string) {
	if name == "" || c.o.Secrets != nil && c.o.Secrets(name) {
		return
	}
	if looksSecret(name) {
		// The value is never repeated: this message reaches logs and browsers.
		c.add(path, "secret_literal", "a secret must not be written here; write the name of an entry of `secrets:` in the process settings, and the secret itself into the variable or file it names")
		return
	}
	if c.o.Secrets != nil {
		c.add(path, "secret_unknown", "no secret is called %q; add it to `secrets:` in the process settings, like secrets: {%s: {env: VAR}}", name, name)
	}
}

func looksSecret(s string) bool {
	if !secretNameRE.MatchString(s) {
		return true
	}
	low := strings.ToLower(s)
	for _, p := range secretPrefixes {
		if strings.HasPrefix(low, p) {
			return true
		}
	}
	// A long unbroken run of letters and digits is a key, not a name.
	run, digits := 0, 0
	for i := range len(s) {
		switch b := s[i]; {
		case b == '-' || b == '_' || b == '.':
			run, digits = 0, 0
			continue
		case b >= '0' && b <= '9':
			digits++
		}
		if run++; run >= 24 && digits >= 4 {
			return true
		}
	}
	return false
}

func (c *checker) upstreamTimes(path string, u *Upstream) {
	check := func(name string, d *Duration) {
		if d != nil && *d < 0 {
			c.add(path+name, "duration_negative", "a duration must not be negative; write \"0s\" to switch it off, leave it out for the default")
		}
	}
	if t := u.Timeouts; t != nil {
		check("/timeouts/connect", t.Connect)
		check("/timeouts/first_byte", t.FirstByte)
		check("/timeouts/between_bytes", t.BetweenBytes)
		check("/timeouts/total", t.Total)
	}
	if u.Readiness != nil {
		check("/readiness/interval", u.Readiness.Interval)
	}
	if u.Limits != nil {
		check("/limits/queue_timeout", u.Limits.QueueTimeout)
	}
	if u.Stream != nil {
		check("/stream/keep_alive", u.Stream.KeepAlive)
		check("/stream/keep_alive_before", u.Stream.KeepAliveBefore)
	}
	if u.ColdStart != nil {
		check("/cold_start/max_wait", &u.ColdStart.MaxWait)
	}
	check("/slow_start", u.SlowStart)
	if u.Hedge != nil {
		check("/hedge/min", u.Hedge.Min)
	}
}

func (c *checker) upstreamNumbers(path string, u *Upstream) {
	check := func(name string, n, most int) {
		if n < 0 || n > most {
			c.add(path+name, "out_of_range", "want a whole number from 0 to %d", most)
		}
	}
	if r := u.Readiness; r != nil {
		check("/readiness/down", r.Down, 1000)
		check("/readiness/up", r.Up, 1000)
		if r.Path != "" && (r.Path[0] != '/' || len(r.Path) > 1024 || hasControl(r.Path) || strings.Contains(r.Path, " ")) {
			c.add(path+"/readiness/path", "invalid_value", "a readiness path begins with '/' and has no spaces; leave it out for the dialect's own check")
		}
	}
	if l := u.Limits; l != nil {
		check("/limits/max_in_flight", l.MaxInFlight, 1_000_000)
		check("/limits/max_queue", l.MaxQueue, 1_000_000)
	}
	if u.Warmup != nil {
		check("/warmup/requests", u.Warmup.Requests, 1000)
	}
	c.hedge(path+"/hedge", u.Hedge)
	c.coldStart(path+"/cold_start", u.ColdStart)
	if g := u.GPU; g != nil {
		check("/gpu/count", g.Count, 100_000)
		if g.USDPerGPUHour != "" {
			if _, err := metrics.ParsePrice(metrics.PriceStrings{Request: &g.USDPerGPUHour}); err != nil {
				c.add(path+"/gpu/usd_per_gpu_hour", "price_invalid", "want a decimal string in USD with at most 6 decimals, like \"2.50\"")
			}
		}
	}
}

func (c *checker) hedge(path string, h *Hedge) {
	if h == nil {
		return
	}
	if !(h.Quantile >= 0.5 && h.Quantile < 1) {
		c.add(path+"/quantile", "out_of_range", "want a quantile of the time to first token from 0.5 to below 1, like 0.95; leave hedge out to switch it off")
	}
	if !(h.MaxShare >= 0 && h.MaxShare <= 0.5) {
		c.add(path+"/max_share", "out_of_range", "want the share of requests that may be sent twice, from 0 to 0.5")
	}
}

func (c *checker) coldStart(path string, s *ColdStart) {
	if s == nil || s.Wake == "" {
		return
	}
	if w, err := url.Parse(s.Wake); err != nil || w.User != nil || w.Host == "" || w.Scheme != "http" && w.Scheme != "https" {
		c.add(path+"/wake", "endpoint_invalid", "want an http or https URL without user and password")
	}
}

func (c *checker) headerNames(path string, names []string) {
	if !c.most(path, len(names), MaxObjects, "headers") {
		return
	}
	for i, n := range names {
		switch {
		case !isToken(n):
			c.add(at(path, i), "header_invalid", "%q is not the name of a header", clip(n))
		case !upstream.Passable(n):
			c.add(at(path, i), "header_forbidden", "the header %q carries a credential, belongs to the connection, steers an engine or is the gateway's own; it is never passed on", strings.ToLower(n))
		}
	}
}

// isToken says whether s may be the name of a header or cookie.
func isToken(s string) bool {
	if s == "" || len(s) > maxLabel {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0 {
			continue
		}
		return false
	}
	return true
}

func (c *checker) price(path string, p *Price) {
	if p == nil {
		return
	}
	for _, m := range []struct {
		name string
		s    *string
	}{
		{"input", p.Input}, {"cached_input", p.CachedInput}, {"cache_write", p.CacheWrite},
		{"output", p.Output}, {"reasoning", p.Reasoning}, {"request", p.Request},
	} {
		// Each member alone, so that every fault gets its path.
		if _, err := metrics.ParsePrice(metrics.PriceStrings{Input: m.s}); err != nil {
			c.add(at(path, m.name), "price_invalid", "%s", strings.TrimPrefix(err.Error(), "price.input: "))
		}
	}
}

func parsePrice(p *Price) (*metrics.Price, error) {
	if p == nil {
		return nil, nil
	}
	return metrics.ParsePrice(metrics.PriceStrings{
		Input: p.Input, CachedInput: p.CachedInput, CacheWrite: p.CacheWrite,
		Output: p.Output, Reasoning: p.Reasoning, Request: p.Request,
	})
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
