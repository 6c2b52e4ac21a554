package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sluice/router"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// exchange is one model request from its first header to its event.
type exchange struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	api    wire.API
	start  time.Time
	id     string
	client string // the client's own request id, if it is fit for a log

	table    *router.Table
	key      *router.Key
	head     wire.Head
	asks     wire.Asks
	prompt   int64 // estimated tokens
	query    router.Query
	plan     router.Plan
	cur      *router.CompiledVariant // being tried or serving
	reason   string
	fellBack bool
	began    time.Time                              // of the first attempt
	epoch    atomic.Pointer[epoch]                  // of the attempt that has not sent its first byte
	serving  atomic.Pointer[router.CompiledVariant] // cur, as CutStreams may read it
	cut      context.CancelCauseFunc                // nil: no stream of an experiment

	refused *upstream.Failure // by the gateway itself; wins while nothing is committed
	result  upstream.Result
	size    int           // of the request body
	reading time.Duration // until the client had sent it

	deadline, giveUp time.Time // the client's own; zero = none

	witness
}

func newRequestID() string {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.NewString()
	}
	return id.String()
}

// model handles one POST endpoint.
func (s *Server) model(api wire.API) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.inflight.Add(1)
		defer s.inflight.Add(-1)
		x := &exchange{s: s, w: w, r: r, api: api, start: time.Now(), id: newRequestID()}
		x.client = clientRequestID(r.Header)
		defer x.finish()
		x.serve()
	}
}

// finish is the one exit of every model request: it answers what was refused,
// records the event and, where the stream cannot end honestly, cuts the line.
func (x *exchange) finish() {
	if v := recover(); v != nil {
		if v == http.ErrAbortHandler {
			panic(v)
		}
		x.s.cfg.Log.Error("panic while serving a request", "request_id", x.id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		x.result.Outcome, x.result.Abort = upstream.InternalError, x.result.Committed
		if !x.result.Committed {
			x.result.Status = http.StatusInternalServerError
		}
		x.result.Failure = failure(500, "internal_error", "The gateway failed; the request id tells its operator where.")
	}
	x.sent()
	if f := x.refused; f != nil && !x.result.Committed {
		x.result.Failure, x.result.Status, x.result.Outcome = f, f.Status, outcomeOf(f)
	}
	x.settle()
	if f := x.result.Failure; f != nil && !x.result.Committed && x.result.Outcome != upstream.Canceled {
		x.answerHeadersOfFailure()
		x.s.writeError(x.w, x.id, f)
	}
	ev := x.event()
	x.rest(&ev)
	x.s.cfg.Recorder.Record(ev)
	// Who went away may have closed one direction only and be reading still:
	// returning would answer with an empty 200.
	if x.result.Abort || x.result.Outcome == upstream.Canceled {
		panic(http.ErrAbortHandler)
	}
}

// settle takes a fallback back that was chosen but never called, because the
// retry budget was spent or its queue was full.
func (x *exchange) settle() {
	list := x.result.Attempts
	if x.result.Failure == nil || len(list) == 0 {
		return
	}
	last := &list[len(list)-1]
	v, ok := last.Target.Tag.(*router.CompiledVariant)
	if !ok || v == x.cur {
		return
	}
	x.cur, x.fellBack = v, false
	for i := range list {
		x.fellBack = x.fellBack || list[i].Reason == "fallback"
	}
}

func (x *exchange) answerHeadersOfFailure() {
	if x.plan.Model != nil && x.cur != nil {
		x.answerHeaders(x.w.Header(), upstream.Meta{Attempts: x.calls()})
	}
}

// canceled ends an exchange whose client is gone before anything was tried.
func (x *exchange) canceled() {
	x.result.Outcome, x.result.Status = upstream.Canceled, 499
}

func (x *exchange) serve() {
	x.table = x.s.cfg.Live.Load()
	if x.table == nil {
		x.refused = failure(http.StatusServiceUnavailable, "no_ready_endpoint", "The gateway has no configuration yet.")
		x.refused.RetryAfter = "1"
		return
	}
	if x.key, x.refused = x.s.authenticate(x.table, x.r.Header); x.refused != nil {
		return
	}
	if x.refused = checkHeaders(x.r); x.refused != nil {
		return
	}
	if x.deadline, x.giveUp, x.refused = patience(x.r.Header, x.start); x.refused != nil {
		return
	}
	asked := time.Now()
	body, release, f, err := x.s.readBody(x.w, x.r)
	defer release()
	x.reading = time.Since(asked)
	if x.refused = f; f != nil {
		return
	}
	if err != nil {
		x.canceled()
		return
	}
	x.size = len(body)
	var fe *wire.FieldError
	if x.head, fe = wire.Scan(body, x.api); fe != nil {
		x.refused = paramFailure(fe.Param, fe.Message)
		return
	}
	x.asks, x.prompt = x.head.Asks(body)
	if x.refused = x.route(body); x.refused != nil {
		return
	}
	x.do(body, release)
}

func (x *exchange) route(body []byte) *upstream.Failure {
	x.query = router.Query{
		Model: x.head.Model, API: x.api, Head: &x.head, Body: body, Header: x.r.Header,
		Key: x.key, RequestID: x.id, Unsupervised: x.s.cfg.Unsupervised, AuthNone: !x.s.cfg.AuthKeys, Loopback: loopback(x.r.RemoteAddr),
	}
	plan, err := x.table.Route(x.r.Context(), &x.query, x.s.cfg.Pins)
	if err != nil {
		return routeFailure(err)
	}
	x.plan, x.cur, x.reason = plan, plan.Variant, string(plan.Decision.Reason)
	return x.denied(x.cur)
}

// denied refuses a member of the body that v's upstream does not take from clients.
func (x *exchange) denied(v *router.CompiledVariant) *upstream.Failure {
	name, denied := v.Target.Upstream.DeniedField(&x.head, x.query.Body)
	if !denied {
		return nil
	}
	return paramFailure(name, "The member "+name+" controls the engine and is not accepted from clients here.")
}

func routeFailure(err error) *upstream.Failure {
	var re *router.RouteError
	if !errors.As(err, &re) {
		return failure(http.StatusInternalServerError, "internal_error", "The request could not be routed.")
	}
	f := failure(http.StatusBadRequest, re.Code, re.Message)
	f.Param = re.Param
	switch re.Code {
	case "model_not_found":
		f.Status = http.StatusNotFound
	case "permission_denied":
		f.Status = http.StatusForbidden
	}
	return f
}

// do runs the attempts and the relay. release is called when nobody needs the
// body any more, which in a stream is long before its end.
func (x *exchange) do(body []byte, release func()) {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	defer x.follow(cancel)()
	k := &sink{x: x, w: x.w, rc: http.NewResponseController(x.w), renew: x.s.cfg.WriteTimeout}
	req := upstream.Request{
		API: x.api, Head: x.head, Body: body, Header: x.r.Header, RequestID: x.id,
		Next: x.next, Beside: x.beside, Sent: x.sent, Key: x.caller(), Deadline: x.deadline,
		Asks: x.asks, Checks: x.checks(),
		Progress: x.progress, Ended: x.ended,
		KeepAliveBefore: x.cur.KeepAliveBefore, KeepAliveAfter: x.cur.KeepAlive,
	}
	if x.plan.Model.EchoPublic {
		req.EchoModel = x.head.Model
	}
	req.Release = func() {
		req.Body, x.query.Body = nil, nil // nothing else refers to it
		release()
	}
	x.began = time.Now()
	x.result = x.s.cfg.Doer.Do(ctx, &req, k)
}

// checks are those of the answer. JSON and tool calls are looked at wherever they
// are asked for: it costs nobody else anything.
func (x *exchange) checks() wire.Checks {
	c := wire.CheckJSON | wire.CheckTools
	if e := x.plan.Experiment; e != nil {
		c |= e.Checks
	}
	return c
}

// clientRequestID accepts up to 128 printable characters; anything else is not logged.
func clientRequestID(h http.Header) string {
	v := h["X-Request-Id"]
	if len(v) != 1 || len(v[0]) > 128 {
		return ""
	}
	if strings.IndexFunc(v[0], func(r rune) bool { return r < 0x21 || r > 0x7e }) >= 0 {
		return ""
	}
	return v[0]
}

func loopback(remote string) bool {
	ap, err := netip.ParseAddrPort(remote)
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
