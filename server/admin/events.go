package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"sluice/experiment/ramp"
	"sluice/router"
)

const (
	maxStreams   = 100
	watchEvery   = 100 * time.Millisecond
	heartbeat    = 15 * time.Second
	writeTimeout = 10 * time.Second
	streamBuffer = 64 // events; a reader that is further behind is sent away and may come back
)

// event is one message of GET /events.
type event struct {
	name string // change | ramp | degraded
	id   int64  // of a change: its revision
	data any
}

// changeEvent is a new revision that serves here.
type changeEvent struct {
	Revision int64  `json:"revision"`
	Action   string `json:"action,omitempty"` // unknown while the database is away
	Object   string `json:"object,omitempty"`
	Actor    string `json:"actor,omitempty"`
}

// rampEvent is how a rollout stands, told when that changes.
type rampEvent struct {
	Experiment string            `json:"experiment"`
	State      string            `json:"state"`
	Phase      ramp.Phase        `json:"phase,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Step       int               `json:"step"`
	Weights    map[string]int    `json:"weights"`
	Decision   ramp.Decision     `json:"decision"`
	Guardrails map[string]string `json:"guardrails"` // "variant/name" -> PASS, FAIL or OPEN
	Supervised bool              `json:"supervised"`
}

// degradedEvent is all that does not work from now on.
type degradedEvent struct {
	Degraded []router.Degraded `json:"degraded"`
}

// hub watches the table while somebody listens, and tells all listeners.
type hub struct {
	a *API

	mu      sync.Mutex // guards what follows
	streams map[chan event]struct{}
	stop    context.CancelFunc // of the watcher, nil without one
}

// join answers a stream of events from now on; nil when there are too many.
// leave must be called once.
func (h *hub) join() (events chan event, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) >= maxStreams {
		return nil, nil
	}
	if h.streams == nil {
		h.streams = map[chan event]struct{}{}
	}
	events = make(chan event, streamBuffer)
	h.streams[events] = struct{}{}
	if h.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.stop = cancel
		go h.watch(ctx, h.look())
	}
	return events, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.streams, events)
		if len(h.streams) == 0 && h.stop != nil {
			h.stop()
			h.stop = nil
		}
	}
}

// view is what is compared.
type view struct {
	revision, epoch int64
	degraded        []router.Degraded
}

func (h *hub) look() view {
	v := view{degraded: h.a.cfg.Control.Degraded()}
	if t := h.a.cfg.Live.Load(); t != nil {
		v.revision, v.epoch = t.Revision, t.Epoch
	}
	return v
}

func (h *hub) watch(ctx context.Context, last view) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	ramps := map[string]rampEvent{}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := h.look()
		if now.revision != last.revision || now.epoch != last.epoch {
			for _, e := range h.a.changesSince(ctx, last.revision, now.revision) {
				h.tell(ctx, e)
			}
		}
		if !slices.Equal(now.degraded, last.degraded) {
			h.tell(ctx, event{name: "degraded", data: degradedEvent{now.degraded}})
		}
		if n%rampEvery == 0 {
			for _, e := range h.a.rampsNow(ctx, ramps) {
				h.tell(ctx, e)
			}
		}
		last = now
	}
}

// rampEvery is how many looks lie between two at the rollouts, whose reports
// are made once a second.
const rampEvery = int(time.Second / watchEvery)

// rampsNow are the rollouts that stand otherwise than told, and notes them.
// Numbers alone are no news: whoever shows them reads GET …/ramp.
func (a *API) rampsNow(ctx context.Context, told map[string]rampEvent) (out []event) {
	t := a.cfg.Live.Load()
	if a.cfg.Rollouts == nil || t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for i := range t.Snapshot.Document.Experiments {
		e := &t.Snapshot.Document.Experiments[i]
		r, err := a.cfg.Rollouts.Report(ctx, e.Key)
		if err != nil {
			delete(told, e.Key)
			continue
		}
		now := rampEvent{Experiment: e.Key, State: r.State, Phase: r.Phase, Reason: r.Reason, Step: r.Step, Weights: r.Weights,
			Decision: r.Decision, Guardrails: map[string]string{}, Supervised: r.Supervised}
		for _, tr := range r.Treatments {
			for _, v := range tr.Verdicts {
				now.Guardrails[tr.Name+"/"+v.Name] = string(v.Decision)
			}
		}
		was, known := told[e.Key]
		told[e.Key] = now
		was.Decision.Text = now.Decision.Text
		if !known || !reflect.DeepEqual(was, now) {
			out = append(out, event{name: "ramp", data: now})
		}
	}
	return out
}

// tell never waits: a stream that is full is closed.
func (h *hub) tell(ctx context.Context, e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // another watcher has begun
	}
	for s := range h.streams {
		select {
		case s <- e:
		default:
			delete(h.streams, s)
			close(s)
		}
	}
}

// changesSince names what was committed after one revision and up to another,
// oldest first; without the database, and for a kill that only Redis has, it is
// the revision alone.
func (a *API) changesSince(ctx context.Context, after, upTo int64) []event {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, _, err := a.cfg.Store.Audit(ctx, router.AuditFilter{Limit: 200})
	var out []event
	for _, r := range slices.Backward(rows) {
		if err == nil && r.Revision > after && r.Revision <= upTo {
			out = append(out, event{"change", r.Revision, changeEvent{r.Revision, r.Action, r.Object, r.Actor}})
		}
	}
	if len(out) == 0 {
		return []event{{"change", upTo, changeEvent{Revision: upTo}}}
	}
	return out
}

func (a *API) registerEvents(r chi.Router, api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	problem := &huma.Response{Description: "Problem", Content: map[string]*huma.MediaType{"application/problem+json": {Schema: schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")}}}
	api.OpenAPI().AddOperation(&huma.Operation{
		OperationID: "events", Method: http.MethodGet, Path: "/events", Tags: []string{"status"},
		Summary:     "Changes as they happen, as server-sent events",
		Description: "event: change with {revision, action, object, actor} for each revision that serves here; event: ramp with {experiment, state, phase, step, weights, decision, guardrails} when a rollout stands otherwise; event: degraded with {degraded: […]} when that changes and once at the start. A comment every 15 s. Last-Event-ID begins after that revision.",
		Parameters:  []*huma.Param{{Name: "Last-Event-ID", In: "header", Description: "revision of the last change that was seen", Schema: &huma.Schema{Type: "integer"}}},
		Responses: map[string]*huma.Response{
			"200": {Description: "OK", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: "string"}}}},
			"401": problem, "403": problem, "422": problem, "429": problem,
		},
	})
	r.Get("/events", a.stream)
}

func (a *API) stream(w http.ResponseWriter, r *http.Request) {
	var after int64
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil || n < 0 {
			a.writeProblem(w, r, field(http.StatusUnprocessableEntity, "invalid_parameter", "header.Last-Event-ID", "must be a revision"))
			return
		}
		after = n
	}
	events, leave := a.events.join()
	if events == nil {
		p := newProblem(http.StatusTooManyRequests, "too_many_streams", "There are 100 streams of events already; close some or poll GET /status.")
		p.retryAfter = "15"
		a.writeProblem(w, r, p)
		return
	}
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &eventWriter{w: w, ctl: http.NewResponseController(w)}
	first := []event{{name: "degraded", data: degradedEvent{a.cfg.Control.Degraded()}}}
	if now := a.events.look().revision; after > 0 && after < now {
		first = append(a.changesSince(r.Context(), after, now), first...)
	}
	for _, e := range first {
		if out.event(e) != nil {
			return
		}
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-a.cfg.Done:
			return
		case e, open := <-events:
			if !open {
				return
			}
			err = out.event(e)
		case <-beat.C:
			err = out.write(": still here\n\n")
		}
		if err != nil {
			return
		}
	}
}

// eventWriter writes events, each within a deadline.
type eventWriter struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
}

func (o *eventWriter) event(e event) error {
	data, err := json.Marshal(e.data)
	if err != nil {
		return err
	}
	id := ""
	if e.id > 0 {
		id = fmt.Sprintf("id: %d\n", e.id)
	}
	return o.write(fmt.Sprintf("event: %s\n%sdata: %s\n\n", e.name, id, data))
}

func (o *eventWriter) write(s string) error {
	// A recorder of tests has no deadlines; a connection always has.
	_ = o.ctl.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := o.w.Write([]byte(s)); err != nil {
		return err
	}
	return o.ctl.Flush()
}
