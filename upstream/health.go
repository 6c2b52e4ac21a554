package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// checkTimeout is generous: a saturated engine answers late.
const checkTimeout = 5 * time.Second

// slowCheckTimeout is SGLang's: its /health generates a token and takes at
// least a second.
const slowCheckTimeout = 10 * time.Second

// maxCheckBody bounds what is read of a check's answer; metrics pages are large.
const maxCheckBody = 4 << 20

// sleepProbe remembers how an engine can be asked whether it sleeps.
type sleepProbe uint8

const (
	sleepUnknown sleepProbe = iota
	sleepPath               // GET /is_sleeping
	sleepMetric             // vllm:engine_sleep_state in /metrics
	sleepNone
)

// watch checks e until ctx ends.
func (p *Pool) watch(ctx context.Context, e *endpoint) {
	for {
		p.check(ctx, e)
		set := e.set.Load()
		// Jitter keeps the checks of many endpoints and replicas apart.
		d := time.Duration(float64(set.readiness.Interval) * (0.9 + 0.2*rand.Float64()))
		t := time.NewTimer(d)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

func (p *Pool) check(ctx context.Context, e *endpoint) {
	set := e.set.Load()
	limit := checkTimeout
	if set.dialect == wire.SGLang {
		limit = slowCheckTimeout
	}
	started := time.Now()
	cctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r := e.probe(cctx, set)
	if ctx.Err() != nil {
		return // the pool closed: nothing was learned
	}
	if r.state != stateReady {
		e.sleep = sleepUnknown // it may come back as another version
	} else if !e.ready.Load() {
		p.forget(e.upstream)
	}
	if e.apply(r, set.readiness, started, time.Now()) {
		st := e.status()
		if st.Ready {
			p.log.Info("endpoint is ready", "upstream", e.upstream, "endpoint", e.base)
		} else {
			p.log.Warn("endpoint is not ready", "upstream", e.upstream, "endpoint", e.base, "state", st.State, "reason", st.Reason)
		}
	}
}

// probe runs the dialect's own check, or the configured path.
func (e *endpoint) probe(ctx context.Context, set *settings) result {
	if p := set.readiness.Path; p != "" {
		return e.probeHealth(ctx, set, hostRoot(e.url), p)
	}
	switch set.dialect {
	case wire.VLLM:
		r := e.probeHealth(ctx, set, serverRoot(e.url), "/health")
		if r.state == stateReady && e.asleep(ctx, set) {
			return result{stateAsleep, "the engine is asleep or paused; wake it up"}
		}
		return r
	case wire.TGI, wire.SGLang, wire.LlamaCPP:
		return e.probeHealth(ctx, set, serverRoot(e.url), "/health")
	}
	return e.probeModels(ctx, set)
}

// probeModels is the check that any OpenAI-compatible server passes: one that
// has no list of models, or wants another key for it, still serves.
func (e *endpoint) probeModels(ctx context.Context, set *settings) result {
	status, _, err := e.get(ctx, set, join(e.url, "/models"))
	switch {
	case err != nil:
		return unreachable(err)
	case status/100 == 2, status == 401, status == 403, status == 404, status == 405:
		return result{state: stateReady}
	case status == 503:
		return result{stateLoading, "GET /models answered 503"}
	}
	return result{stateFailing, fmt.Sprintf("GET /models answered %d", status)}
}

func (e *endpoint) probeHealth(ctx context.Context, set *settings, root *url.URL, path string) result {
	status, _, err := e.get(ctx, set, join(root, path))
	switch {
	case err != nil:
		return unreachable(err)
	case status/100 == 2:
		return result{state: stateReady}
	case status == 503:
		// Loading, warming up, scaling, draining: it says so itself.
		return result{stateLoading, "GET " + path + " answered 503"}
	case status == 404:
		return result{stateFailing, "GET " + path + " answered 404; set readiness.path or the right dialect"}
	}
	return result{stateFailing, fmt.Sprintf("GET %s answered %d", path, status)}
}

func unreachable(err error) result {
	return result{stateUnreachable, "the check got no answer: " + errorKind(err)}
}

// asleep asks a vLLM whether it sleeps: at /is_sleeping where the server has it
// (development mode), else by its metrics. A server that has neither cannot be
// put to sleep.
func (e *endpoint) asleep(ctx context.Context, set *settings) bool {
	root := serverRoot(e.url)
	if e.sleep == sleepUnknown || e.sleep == sleepPath {
		status, body, err := e.get(ctx, set, join(root, "/is_sleeping"))
		if err != nil {
			return false
		}
		if status == 200 {
			e.sleep = sleepPath
			var v struct {
				Sleeping bool `json:"is_sleeping"`
			}
			return json.Unmarshal(body, &v) == nil && v.Sleeping
		}
		e.sleep = sleepMetric
	}
	if e.sleep != sleepMetric {
		return false
	}
	status, body, err := e.get(ctx, set, join(root, "/metrics"))
	if err != nil {
		return false
	}
	found, awake := sleepState(body)
	if status != 200 || !found {
		e.sleep = sleepNone
	}
	return found && !awake
}

// sleepState reads vllm:engine_sleep_state{sleep_state="awake"} of all engines.
func sleepState(page []byte) (found, awake bool) {
	for line := range bytes.Lines(page) {
		if !bytes.HasPrefix(line, []byte("vllm:engine_sleep_state{")) || !bytes.Contains(line, []byte(`sleep_state="awake"`)) {
			continue
		}
		found = true
		if _, v, ok := bytes.Cut(line, []byte("} ")); ok && len(v) > 0 && v[0] != '0' {
			awake = true
		}
	}
	return found, awake
}

// get fetches u with the upstream's credential. Redirects are not followed.
func (e *endpoint) get(ctx context.Context, set *settings, u *url.URL) (status int, body []byte, err error) {
	fields := []h1.Field{{Name: "Accept", Value: "application/json, text/plain"}, {Name: "Accept-Encoding", Value: "identity"}, {Name: "User-Agent", Value: "sluice-check"}}
	if set.auth != "" {
		fields = append(fields, h1.Field{Name: hdrAuth, Value: set.auth})
	}
	resp, err := set.carrier.Do(ctx, &h1.Request{Method: http.MethodGet, URL: u, Fields: fields})
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxCheckBody))
	if err != nil {
		return 0, nil, err
	}
	return resp.Status, body, nil
}
