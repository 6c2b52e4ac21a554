package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	defaultAdmin = "http://127.0.0.1:8081"
	maxAnswer    = 64 << 20 // bytes of an answer of the admin API
)

// remote is where the admin API is and who calls it. The token never comes
// from a flag's value: those are visible to every process of the machine.
type remote struct{ admin, tokenFile string }

func (r *remote) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&r.admin, "admin", "", "URL of the admin API (SLUICE_ADMIN_URL; "+defaultAdmin+")")
	f.StringVar(&r.tokenFile, "token-file", "", "file that holds the admin token (else SLUICE_ADMIN_TOKEN)")
}

// client calls the admin API.
type client struct {
	base  string // without a slash at the end
	token string
	http  *http.Client
}

func (r *remote) client(a *cli) (*client, error) {
	base := firstOf(r.admin, a.getenv("SLUICE_ADMIN_URL"), defaultAdmin)
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--admin %q: want a URL such as %s", base, defaultAdmin)
	}
	if u.User != nil {
		return nil, usagef("--admin may not hold a password; the token comes from SLUICE_ADMIN_TOKEN or --token-file")
	}
	token := a.getenv("SLUICE_ADMIN_TOKEN")
	if file := firstOf(r.tokenFile, a.getenv("SLUICE_ADMIN_TOKEN_FILE")); file != "" && (r.tokenFile != "" || token == "") {
		if token, err = readSmall(file); err != nil {
			return nil, fmt.Errorf("the admin token cannot be read: %w", err)
		}
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the admin token has characters that a header cannot carry")
	}
	u.RawQuery, u.Fragment = "", ""
	return &client{
		base:  strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/admin/v1"),
		token: token,
		http: &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a token follows no redirect
		}},
	}, nil
}

// answer is a successful response.
type answer struct {
	status int
	etag   string
	body   []byte
}

func (r *answer) decode(v any) error {
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("the admin API's answer cannot be read: %w", err)
	}
	return nil
}

// call sends one request below /admin/v1. body, unless nil, is sent as JSON;
// ifMatch, unless "", as If-Match. An answer of 4xx or 5xx is a *problem.
func (c *client) call(ctx context.Context, method, path string, query url.Values, ifMatch string, body any) (*answer, error) {
	return c.send(ctx, method, "/admin/v1"+path, query, ifMatch, body)
}

func (c *client) send(ctx context.Context, method, path string, query url.Values, ifMatch string, body any) (*answer, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/problem+json")
	req.Header.Set("User-Agent", "sluice-cli")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if ifMatch != "" {
		req.Header.Set("If-Match", ifMatch)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("the admin API at %s cannot be reached: %w; is sluice running? --admin and SLUICE_ADMIN_URL say where", c.base, unwrapURL(err))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the admin API's answer broke off: %w", err)
	case len(data) > maxAnswer:
		return nil, fmt.Errorf("the admin API's answer is larger than %d MiB", maxAnswer>>20)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, readProblem(resp, data)
	}
	return &answer{resp.StatusCode, resp.Header.Get("ETag"), data}, nil
}

// update does a write that is guarded by the ETag of what get reads: with the
// caller's own ifMatch as it is, else with a fresh one and one more try when
// somebody was faster.
func (c *client) update(ctx context.Context, get, method, path string, query url.Values, ifMatch string, body any) (*answer, error) {
	if ifMatch != "" {
		return c.call(ctx, method, path, query, quoteETag(ifMatch), body)
	}
	for try := 0; ; try++ {
		now, err := c.call(ctx, http.MethodGet, get, nil, "", nil)
		if err != nil {
			return nil, err
		}
		if now.etag == "" {
			return nil, fmt.Errorf("GET %s gave no ETag; pass --if-match", get)
		}
		out, err := c.call(ctx, method, path, query, now.etag, body)
		var p *problem
		if try == 0 && errors.As(err, &p) && p.Status == http.StatusPreconditionFailed {
			continue
		}
		return out, err
	}
}

// quoteETag takes 17 as well as "17".
func quoteETag(s string) string {
	if s == "*" || strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "W/") {
		return s
	}
	return `"` + s + `"`
}

// problem is an RFC 9457 answer.
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Location string `json:"location"`
		Message  string `json:"message"`
	} `json:"errors"`
	Current string `json:"current_etag"`
}

func readProblem(resp *http.Response, data []byte) error {
	p := &problem{}
	if json.Unmarshal(data, p) != nil || p.Title == "" && p.Detail == "" {
		text := strings.TrimSpace(string(data[:min(len(data), 200)]))
		p = &problem{Detail: text}
		if text == "" || strings.HasPrefix(text, "<") {
			p.Detail = "the server answered " + resp.Status
		}
	}
	p.Status = resp.StatusCode
	return p
}

func (p *problem) conflict() bool {
	return p.Status == http.StatusConflict || p.Status == http.StatusPreconditionFailed
}

// Error is one readable line with the code, and one for each field below it.
func (p *problem) Error() string {
	var b strings.Builder
	b.WriteString(printable(firstOf(p.Detail, p.Title)))
	fmt.Fprintf(&b, " (%s)", printable(firstOf(p.Code, fmt.Sprintf("HTTP %d", p.Status))))
	for _, e := range p.Errors {
		if len(p.Errors) == 1 && strings.HasSuffix(p.Detail, e.Message) {
			break // the line above says it
		}
		b.WriteString("\n  " + printable(e.Location))
		if e.Location != "" {
			b.WriteString(": ")
		}
		b.WriteString(printable(e.Message))
	}
	if p.Status == http.StatusUnauthorized {
		b.WriteString("\n  the token comes from SLUICE_ADMIN_TOKEN or --token-file")
	}
	return b.String()
}

func unwrapURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

func firstOf(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}
