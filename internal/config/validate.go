package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice/experiment/ramp"
	"sluice/router"
)

// Validate reports every setting that does not fit, with the place that set
// it; nil, or Problems. It connects to nothing and reads no secret.
func (c *Config) Validate() error {
	v := validator{c: c}
	v.listeners()
	v.server()
	v.stores()
	v.secrets()
	v.rollouts()
	v.resources()
	if c.Admin.BasePath != "" && (!strings.HasPrefix(c.Admin.BasePath, "/") || strings.ContainsAny(c.Admin.BasePath, "?# \\") || strings.Contains(c.Admin.BasePath, "//") || strings.Contains(c.Admin.BasePath, "..")) {
		v.add("admin.base_path", "want a path such as /sluice")
	}
	return v.problems.orNil()
}

// CheckKeys is the rest of the listener rule, for when the number of API keys
// is known: a data address that others can reach, which asks for keys, needs
// one to exist.
func (c *Config) CheckKeys(n int) error {
	if n > 0 || c.AuthNone() || IsLoopback(c.Server.Listen) {
		return nil
	}
	v := validator{c: c}
	v.add("server.listen", "%q can be reached from other machines and no API key exists: start on 127.0.0.1 and create one with `sluice key create`, or set auth.data: none if anybody may call it", c.Server.Listen)
	return v.problems.orNil()
}

type validator struct {
	c        *Config
	problems Problems
}

func (v *validator) add(path, format string, args ...any) {
	v.problems = append(v.problems, v.c.origins[path].pos.at(path, format, args...))
}

// listeners holds the rules of design.md sections 5 and 10.
func (v *validator) listeners() {
	c := v.c
	data, admin := v.address("server.listen", c.Server.Listen), v.address("admin.listen", c.Admin.Listen)
	if data && !IsLoopback(c.Server.Listen) && c.Auth.Data == "" {
		v.add("server.listen", "%q can be reached from other machines and auth.data is not set: set auth.data: keys and create a key, or auth.data: none if anybody may call it", c.Server.Listen)
	}
	if admin && !IsLoopback(c.Admin.Listen) && c.Admin.Token == "" {
		v.add("admin.listen", "%q can be reached from other machines and admin.token is empty: set admin.token (SLUICE_ADMIN_TOKEN), or listen on 127.0.0.1", c.Admin.Listen)
	}
	if data && admin && sameAddress(c.Server.Listen, c.Admin.Listen) {
		v.add("admin.listen", "the same address as server.listen (%s); give it another port", c.Admin.Listen)
	}
	if c.Metrics.Listen != "" && v.address("metrics.listen", c.Metrics.Listen) {
		if sameAddress(c.Metrics.Listen, c.Server.Listen) || sameAddress(c.Metrics.Listen, c.Admin.Listen) {
			v.add("metrics.listen", "the address %s is taken by server.listen or admin.listen; give it another port", c.Metrics.Listen)
		}
	}
	if t := c.Admin.Token.Reveal(); t != "" && strings.TrimSpace(t) != t {
		v.add("admin.token", "the token begins or ends with white space")
	} else if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.add("admin.token", "the token has characters that a header cannot carry; use printable ASCII without spaces")
	}
}

func (v *validator) address(path, addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		hint := ""
		if _, perr := strconv.ParseUint(addr, 10, 16); perr == nil {
			hint = fmt.Sprintf("; did you mean \":%s\"?", addr)
		}
		v.add(path, "want host:port such as 127.0.0.1:8080, got %q%s", addr, hint)
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		v.add(path, "the port of %q is not a number from 0 to 65535", addr)
		return false
	} else if strconv.FormatUint(n, 10) != port {
		v.add(path, "write the port of %q as %d", addr, n)
		return false
	}
	if strings.ContainsAny(host, "/@ ") {
		v.add(path, "%q is no host", host)
		return false
	}
	return true
}

func sameAddress(a, b string) bool {
	ha, pa, _ := net.SplitHostPort(a)
	hb, pb, _ := net.SplitHostPort(b)
	every := func(h string) bool { return h == "" || h == "0.0.0.0" || h == "::" }
	return pa == pb && pa != "0" && (ha == hb || every(ha) || every(hb))
}

func (v *validator) server() {
	s := v.c.Server
	if s.MaxBody < 1 {
		v.add("server.max_body", "must be more than 0")
	}
	if s.MaxBufferedBytes < s.MaxBody {
		v.add("server.max_buffered_bytes", "%s is less than one body of server.max_body (%s)", s.MaxBufferedBytes, s.MaxBody)
	}
	if s.ReadDeadline <= 0 {
		v.add("server.read_deadline", "must be more than 0s: without it a silent client holds its connection for ever")
	}
	if s.WriteDeadline <= 0 {
		v.add("server.write_deadline", "must be more than 0s: without it a client that reads nothing holds its stream for ever")
	}
	if (s.TLS.Cert == "") != (s.TLS.Key == "") {
		v.add("server.tls", "cert and key belong together; write both or neither")
	}
	for _, o := range s.CORS.Origins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.String() != u.Scheme+"://"+u.Host) {
			v.add("server.cors.origins", "%q is no origin; write https://app.example.com, without a path, or *", o)
		}
	}
	for _, h := range s.OverrideHeaders {
		if !headerName.MatchString(h) || slices.Contains(reservedHeaders, strings.ToLower(h)) {
			v.add("server.override_headers", "%q cannot be used as the name of an override header", h)
		}
	}
}

var (
	headerName      = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	secretName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	literalSecret   = regexp.MustCompile(`^(sk-|hf_|gsk_|ghp_|xox|eyJ|Bearer )|^[A-Za-z0-9+/_-]{40,}=*$`)
	reservedHeaders = []string{"authorization", "cookie", "host", "content-type", "content-length", "x-user-id", "x-request-id", "api-key", "x-api-key"}
)

func (v *validator) stores() {
	raw := v.c.Storage.URL.Reveal()
	scheme, rest, _ := strings.Cut(raw, ":")
	switch scheme {
	case "sqlite":
		if strings.Trim(rest, "/") == "" {
			v.add("storage.url", "sqlite: names no file; write sqlite:data/sluice.db")
		}
	case "postgres", "postgresql":
		if u, err := url.Parse(raw); err != nil || u.Host == "" && u.Query().Get("host") == "" {
			v.add("storage.url", "not a URL; write postgres://user:password@host:5432/database, with special characters percent-encoded")
		}
	case "":
		v.add("storage.url", "want sqlite:PATH or postgres://…; it may not be empty")
	default:
		v.add("storage.url", "unknown scheme; want sqlite:PATH or postgres://…")
	}
	raw = v.c.Redis.URL.Reveal()
	if raw == "" {
		return
	}
	u, err := url.Parse(raw)
	if err != nil {
		v.add("redis.url", "not a URL; write redis://user:password@host:6379/0, with special characters percent-encoded")
		return
	}
	if !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) {
		v.add("redis.url", "unknown scheme; want redis://host:6379/0 or rediss://…")
	} else if u.Scheme != "unix" && u.Host == "" {
		v.add("redis.url", "names no host; write redis://host:6379/0")
	}
}

// secrets checks the references; values are read later, one by one. What looks
// like a secret itself is refused and not shown.
func (v *validator) secrets() {
	for _, name := range slices.Sorted(keysOf(v.c.Secrets)) {
		ref, path := v.c.Secrets[name], "secrets."+name
		switch {
		case !secretName.MatchString(name):
			v.add(path, "a secret's name has letters, digits, '.', '_' and '-' only")
		case (ref.Env == "") == (ref.File == ""):
			v.add(path, "want exactly one of env and file")
		case ref.Env != "" && !isEnvName(ref.Env):
			v.add(path, "env is not the name of a variable; a secret may not be written here")
		case ref.File != "" && literalSecret.MatchString(ref.File):
			v.add(path, "file looks like a secret itself; write the path of a file that holds it")
		}
	}
}

// rollouts checks what rollouts talk to.
func (v *validator) rollouts() {
	w := v.c.Webhook
	if raw := w.URL.Reveal(); raw != "" && !webAddress(raw) {
		v.add("webhook.url", "not a URL of http or https; write https://hooks.example.com/sluice")
	}
	if w.URL == "" && (w.Secret != "" || len(w.Events) > 0) {
		v.add("webhook.url", "is missing: nothing is sent without it")
	}
	if _, ok := v.c.Secrets[w.Secret]; w.Secret != "" && !ok {
		if literalSecret.MatchString(w.Secret) || strings.HasPrefix(w.Secret, "whsec_") {
			v.add("webhook.secret", "is the name of an entry of `secrets:`, this looks like the secret itself: put it into a variable or a file and name it there")
		} else {
			v.add("webhook.secret", "%s; add secrets: {%s: {env: VARIABLE}}", unknown("secret", w.Secret, slices.Sorted(keysOf(v.c.Secrets))), w.Secret)
		}
	}
	for _, e := range w.Events {
		if !slices.Contains(ramp.Notices, e) {
			v.add("webhook.events", "%s", unknown("event", e, ramp.Notices))
		}
	}
	if w.Link != "" && !webAddress(w.Link) {
		v.add("webhook.link", "%q is no address; write https://sluice.example.com", w.Link)
	}
	for _, p := range v.c.Limits.Prometheus {
		if !webAddress(p) {
			v.add("guardrails.prometheus", "%q is no base URL; write http://prometheus:9090", p)
		}
	}
}

// webAddress tells a URL of http or https with a host.
func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func (v *validator) resources() {
	doc := v.c.Resources
	if doc == nil {
		return
	}
	for i, u := range doc.Upstreams {
		at := fmt.Sprintf("/upstreams/%d", i)
		if literalSecret.MatchString(u.Credential) || u.Credential != "" && !secretName.MatchString(u.Credential) {
			v.addAt(at+"/credential", "a credential is the name of an entry of `secrets:`, this looks like the secret itself: put it into a variable or a file and name it there")
		} else if _, ok := v.c.Secrets[u.Credential]; u.Credential != "" && !ok {
			v.addAt(at+"/credential", "%s; add secrets: {%s: {env: VARIABLE}}", unknown("secret", u.Credential, slices.Sorted(keysOf(v.c.Secrets))), u.Credential)
		}
	}
	seen := len(v.problems)
	for _, p := range router.Validate(doc, router.ValidateOptions{}) {
		pos, path := v.c.Locate(p.Path)
		q := pos.at(path, "%s", p.Message)
		if !slices.ContainsFunc(v.problems[:seen], func(o Problem) bool { return o.Path == path }) {
			v.problems = append(v.problems, q)
		}
	}
}

func (v *validator) addAt(pointer, format string, args ...any) {
	pos, path := v.c.Locate(pointer)
	v.problems = append(v.problems, pos.at(path, format, args...))
}

// Locate turns a JSON pointer into Resources into the place in the file and
// the path in its own notation; of the nearest parent where the file does not
// have the member.
func (c *Config) Locate(pointer string) (Pos, string) {
	return locate(c.resources, Pos{Source: c.file}, pointer, "resources")
}

func locate(n *node, whole Pos, pointer, path string) (Pos, string) {
	pos := whole
	if n != nil {
		pos = n.pos
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if part == "" {
			continue
		}
		var next *node
		if i, err := strconv.Atoi(part); err == nil {
			path += "[" + part + "]"
			if n != nil && n.kind == listNode && i >= 0 && i < len(n.items) {
				next = n.items[i]
			}
		} else {
			path = join(path, part)
			if n != nil && n.kind == mappingNode {
				next = n.member(part)
			}
		}
		if n = next; n != nil {
			pos = n.pos
		}
	}
	return pos, path
}

// Secret reads the secret of that name from its variable or file, every time
// it is called, so that a rotated file takes effect. ok is false when there is
// no such entry or it cannot be read; SecretError says why.
func (c *Config) Secret(name string) (value string, ok bool) {
	value, err := c.secret(name)
	return value, err == nil
}

// SecretNames lists the entries of `secrets:` in order of name.
func (c *Config) SecretNames() []string { return sortedKeys(c.Secrets) }

// SecretError says why Secret has no value, nil when it has one.
func (c *Config) SecretError(name string) error {
	_, err := c.secret(name)
	return err
}

func (c *Config) secret(name string) (string, error) {
	ref, ok := c.Secrets[name]
	switch {
	case !ok:
		return "", fmt.Errorf("there is no secret %q: add secrets: {%s: {env: VARIABLE}} or {file: /path}", name, name)
	case ref.Env != "":
		if v := c.getenv(ref.Env); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("secret %q: the variable %s is not set", name, ref.Env)
	}
	v, err := readSecretFile(ref.File)
	if err == nil && v == "" {
		err = fmt.Errorf("the file %s is empty", ref.File)
	}
	if err != nil {
		return "", fmt.Errorf("secret %q: %w", name, err)
	}
	return v, nil
}
