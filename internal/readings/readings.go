// Package readings answers what limits are held against: what a variant's
// engines say of themselves, and what a Prometheus server answers to a query. It
// hides who is asked, when and over what wire. A reading is there at once or not
// at all; asking is what keeps it fresh.
package readings

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"sluice/experiment/guardrail"
	"sluice/router"
	"sluice/upstream"
)

const (
	every      = 5 * time.Second // a query at most so often
	timeout    = 5 * time.Second
	old        = 20 * time.Second // a reading is not believed after
	forgotten  = 5 * time.Minute  // since it was asked for last
	maxQueries = 256
	maxAtOnce  = 8
	maxQuery   = 8 << 10
	maxAnswer  = 1 << 20
)

// Options configure a Reader.
type Options struct {
	Table func() *router.Table // that serves now; may answer nil before the first
	// Servers are base URLs of the Prometheus servers that may be asked; empty: any.
	Servers []string
	Client  http.RoundTripper // nil = one of its own; for tests
	Log     *slog.Logger      // nil = discard
}

// Reader reads. Close it.
type Reader struct {
	o      Options
	http   *http.Client
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	turn   chan struct{}

	mu      sync.Mutex // guards what follows
	queries map[source]*query
	closed  bool
}

// source is a query and where it is asked.
type source struct{ url, query string }

// query is what is known of one.
type query struct {
	begun, asked time.Time // it was last sent; its reading was last wanted
	under        bool      // way
	value        float64
	at           time.Time // of value; zero = none
	why          string    // there is none
}

// New returns a Reader that has asked nobody.
func New(o Options) *Reader {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reader{o: o, queries: map[source]*query{}, turn: make(chan struct{}, maxAtOnce)}
	r.http = &http.Client{Timeout: timeout, Transport: o.Client,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if o.Client == nil {
		r.http.Transport = &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10}
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close cuts what is under way and waits for it.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.wg.Wait()
	r.http.CloseIdleConnections()
}

// Read answers a limit's reading for a variant, at once; known is false without
// one that is fresh. Of engines: waiting (requests) and kv_use (0 to 1) are the
// highest of the endpoints that get traffic, all of which must tell; preemptions
// are those of the last minute and restarts those of the last hour, over all
// endpoints.
func (r *Reader) Read(experiment, variant string, g *guardrail.Config) (value float64, known bool) {
	value, why := r.read(experiment, variant, g)
	return value, why == ""
}

// Why says why there is no reading; "" when there is one.
func (r *Reader) Why(experiment, variant string, g *guardrail.Config) string {
	_, why := r.read(experiment, variant, g)
	return why
}

func (r *Reader) read(experiment, variant string, g *guardrail.Config) (float64, string) {
	if g.Source == "prometheus" {
		return r.query(source{g.URL, g.Query})
	}
	u := r.upstream(experiment, variant)
	if u == nil {
		return 0, "there is no such variant"
	}
	return engine(u.Engine(), u.Name(), g.Metric)
}

// upstream finds a variant's; nil without one.
func (r *Reader) upstream(experiment, variant string) *upstream.Upstream {
	t := r.o.Table()
	if t == nil {
		return nil
	}
	e, ok := t.Experiment(experiment)
	if !ok {
		return nil
	}
	for _, v := range e.Variants {
		if v.Name == variant {
			return v.Target.Upstream
		}
	}
	return nil
}

// engine takes a metric out of what an upstream's engines say.
func engine(s upstream.EngineStatus, name, metric string) (float64, string) {
	if metric == guardrail.Restarts {
		return float64(s.Restarts), ""
	}
	switch {
	case s.Endpoints == 0:
		return 0, "no endpoint of " + name + " is ready"
	case s.Told < s.Endpoints:
		return 0, fmt.Sprintf("%d of %d endpoints of %s do not tell their load", s.Endpoints-s.Told, s.Endpoints, name)
	}
	switch metric {
	case guardrail.Waiting:
		return float64(s.MaxWaiting), ""
	case guardrail.KVUse:
		if s.MaxKVUse >= 0 {
			return s.MaxKVUse, ""
		}
	case guardrail.Preemptions:
		if s.Preempted >= 0 {
			return s.Preempted, ""
		}
	}
	return 0, "the engines of " + name + " do not tell " + metric
}

// query answers the last reading, and asks for the next when that is due.
func (r *Reader) query(src source) (float64, string) {
	base, why := r.allowed(src)
	if why != "" {
		return 0, why
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queries[src]
	if q == nil {
		if !r.room(now) {
			return 0, fmt.Sprintf("more than %d queries are asked already", maxQueries)
		}
		q = &query{why: "the first answer is not there yet"}
		r.queries[src] = q
	}
	q.asked = now
	if !q.under && !r.closed && now.Sub(q.begun) >= every {
		q.under, q.begun = true, now
		r.wg.Go(func() { r.refresh(base, src, q) })
	}
	switch {
	case q.why != "":
		return 0, q.why
	case now.Sub(q.at) > old:
		return 0, "the last answer is too old"
	}
	return q.value, ""
}

// room makes room for one query more. mu is held.
func (r *Reader) room(now time.Time) bool {
	if len(r.queries) < maxQueries {
		return true
	}
	for src, q := range r.queries {
		if !q.under && now.Sub(q.asked) > forgotten {
			delete(r.queries, src)
		}
	}
	return len(r.queries) < maxQueries
}

// allowed checks where a query wants to go: a document may not send the gateway
// anywhere but to servers that its operator has listed, if any are.
func (r *Reader) allowed(src source) (base *url.URL, why string) {
	u, err := url.Parse(src.url)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, "the url is not one of http or https"
	case u.User != nil:
		return nil, "the url has a user or password, which a document may not hold"
	case u.RawQuery != "" || u.Fragment != "":
		return nil, "the url has a query; write the base URL alone"
	case src.query == "" || len(src.query) > maxQuery:
		return nil, fmt.Sprintf("the query is empty or longer than %d bytes", maxQuery)
	}
	if len(r.o.Servers) == 0 {
		return u, ""
	}
	for _, s := range r.o.Servers {
		if o, err := url.Parse(s); err == nil && place(o) == place(u) {
			return u, ""
		}
	}
	return nil, "the server is none of guardrails.prometheus in the process settings"
}

// place is where a base URL leads, in one form.
func place(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port + strings.TrimRight(u.EscapedPath(), "/")
}
