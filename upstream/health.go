package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// maxCheckBody bounds what is read of a check's answer; metrics pages are large.
const maxCheckBody = 4 << 20

// sleepProbe remembers how an engine can be asked whether it sleeps.
type sleepProbe uint8

const (
	sleepUnknown sleepProbe = iota
	sleepPath               // GET /is_sleeping and GET /is_paused
	sleepOnly               // GET /is_sleeping
	sleepMetric             // vllm:engine_sleep_state in /metrics
	sleepNone
)

// probe runs the dialect's own check, or the configured path.
func (w *watcher) probe(ctx context.Context, set *settings) result {
	e := w.e
	var r result
	switch {
	case set.readiness.Path != "":
		r = e.probeHealth(ctx, set, hostRoot(e.url), set.readiness.Path)
	case set.dialect == wire.OpenAI:
		return w.probeModels(ctx, set)
	default:
		r = e.probeHealth(ctx, set, serverRoot(e.url), "/health")
	}
	if r.state == stateReady && set.dialect == wire.VLLM {
		return w.probeSleep(ctx, set)
	}
	return r
}

// probeModels is the check that any OpenAI-compatible server passes: one that
// has no list of models, or wants another key for it, still serves.
func (w *watcher) probeModels(ctx context.Context, set *settings) result {
	a, err := w.e.fetch(ctx, set, http.MethodGet, join(w.e.url, "/models"), nil, maxCheckBody)
	switch s := a.status; {
	case err != nil:
		return unreachable(err)
	case s/100 == 2, s == 401, s == 403, s == 404, s == 405:
		w.listed(a, time.Now())
		return result{state: stateReady}
	case s == 503:
		return result{state: stateLoading, reason: "GET /models answered 503"}
	}
	return result{state: stateFailing, reason: fmt.Sprintf("GET /models answered %d", a.status)}
}

func (e *endpoint) probeHealth(ctx context.Context, set *settings, root *url.URL, path string) result {
	a, err := e.fetch(ctx, set, http.MethodGet, join(root, path), nil, maxCheckBody)
	switch {
	case err != nil:
		return unreachable(err)
	case a.status/100 == 2:
		return result{state: stateReady}
	case a.status == 503:
		// Loading, warming up, scaling, draining: it says so itself.
		return result{state: stateLoading, reason: "GET " + path + " answered 503"}
	case a.status == 404:
		return result{state: stateFailing, reason: "GET " + path + " answered 404; set readiness.path or the right dialect"}
	}
	return result{state: stateFailing, reason: fmt.Sprintf("GET %s answered %d", path, a.status)}
}

func unreachable(err error) result {
	return result{
		state: stateUnreachable, reason: "the check got no answer: " + errorKind(err),
		refused: errors.Is(err, syscall.ECONNREFUSED),
	}
}

// probeSleep asks a vLLM whether it sleeps or is paused: its /health passes, and
// requests would hang. It is asked at /is_sleeping and /is_paused where the
// server has them (development mode), else by its metrics. A server that has
// neither cannot be put to sleep.
func (w *watcher) probeSleep(ctx context.Context, set *settings) result {
	root := serverRoot(w.e.url)
	if w.asleep == sleepUnknown || w.asleep == sleepPath || w.asleep == sleepOnly {
		var v struct {
			Sleeping bool `json:"is_sleeping"`
			Paused   bool `json:"is_paused"`
		}
		a, err := w.e.fetch(ctx, set, http.MethodGet, join(root, "/is_sleeping"), nil, maxCheckBody)
		switch {
		case err != nil:
			return result{state: stateReady}
		case a.status != http.StatusOK:
			w.asleep = sleepMetric
		case json.Unmarshal(a.body, &v) == nil && v.Sleeping:
			w.asleep = sleepPath
			return result{state: stateAsleep, reason: "the engine is asleep; wake it up"}
		case w.asleep == sleepOnly:
			return result{state: stateReady}
		default:
			w.asleep = sleepPath
			a, err = w.e.fetch(ctx, set, http.MethodGet, join(root, "/is_paused"), nil, maxCheckBody)
			if err == nil && a.status/100 == 4 {
				w.asleep = sleepOnly // an older version
			}
			if err == nil && a.status == http.StatusOK && json.Unmarshal(a.body, &v) == nil && v.Paused {
				return result{state: stateAsleep, reason: "the engine is paused; resume it"}
			}
			return result{state: stateReady}
		}
	}
	if w.asleep != sleepMetric {
		return result{state: stateReady}
	}
	a, err := w.e.fetch(ctx, set, http.MethodGet, join(root, "/metrics"), nil, maxCheckBody)
	if err != nil {
		return result{state: stateReady}
	}
	if a.status == http.StatusOK {
		w.page = a.body
	}
	found, awake := sleepState(a.body)
	if a.status != http.StatusOK || !found {
		w.asleep = sleepNone
	} else if !awake {
		return result{state: stateAsleep, reason: "the engine is asleep; wake it up"}
	}
	return result{state: stateReady}
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

// answer is a whole one.
type answer struct {
	status int
	body   []byte // its beginning, at most as much as was asked for
}

// fetch makes a call of the gateway's own, with the upstream's credential.
// Redirects are not followed. A kept connection that the server has closed is
// replaced once.
func (e *endpoint) fetch(ctx context.Context, set *settings, method string, u *url.URL, body []byte, limit int64) (answer, error) {
	r := &h1.Request{Method: method, URL: u, Body: body, Fields: []h1.Field{
		{Name: "Accept", Value: "application/json, text/plain"},
		{Name: "Accept-Encoding", Value: "identity"},
		{Name: "User-Agent", Value: "sluice-check"},
	}}
	if body != nil {
		r.Fields = append(r.Fields, h1.Field{Name: hdrContentType, Value: jsonType})
	}
	if set.auth != "" {
		r.Fields = append(r.Fields, h1.Field{Name: hdrAuth, Value: set.auth})
	}
	resp, err := set.carrier.Do(ctx, r)
	if err != nil && h1.Stale(err) {
		r.Fresh = true
		resp, err = set.carrier.Do(ctx, r)
	}
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return answer{}, err
	}
	return answer{resp.Status, read}, nil
}
