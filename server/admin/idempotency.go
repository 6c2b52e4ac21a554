package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// holdsSecret marks operations whose answer must not be kept.
const holdsSecret = "holds_secret"

// The states of Store.IdempotencyBegin.
const (
	idempotencyRunning  = "running"
	idempotencyMismatch = "mismatch"
	idempotencyDone     = "done"
)

// idempotent answers a repeated POST with its first success (draft-ietf-httpapi-
// idempotency-key-header): same key and body, same answer; another body, 422;
// still running, 409. Answers with a secret are not kept: their replay is 409.
// A failure changed nothing and is not kept, so that it may be tried again.
func (a *API) idempotent(ctx huma.Context, next func(huma.Context)) {
	key := ctx.Header("Idempotency-Key")
	if dry, _ := strconv.ParseBool(ctx.Query("dry_run")); key == "" || ctx.Method() != http.MethodPost || dry {
		next(ctx)
		return
	}
	if len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		refuse(ctx, field(http.StatusUnprocessableEntity, "invalid_idempotency_key", "header.Idempotency-Key", "must have 1 to 255 printable ASCII characters"))
		return
	}
	body, _ := ctx.Context().Value(keyRawBody).([]byte)
	u := ctx.URL()
	sum := sha256.Sum256(append([]byte(u.RawQuery+"\n"), body...))
	who, route := actorOf(ctx.Context()).Name, ctx.Method()+" "+u.Path
	state, status, header, kept, err := a.cfg.Store.IdempotencyBegin(ctx.Context(), key, who, route, hex.EncodeToString(sum[:]))
	switch {
	case err != nil:
		// Without the database nothing can be changed but by kill and rollback,
		// which may be repeated at will.
		next(ctx)
	case state == idempotencyMismatch:
		refuse(ctx, field(http.StatusUnprocessableEntity, "idempotency_mismatch", "header.Idempotency-Key", "was used with another body or query; take a new key for a new request"))
	case state == idempotencyRunning:
		p := newProblem(http.StatusConflict, "idempotency_running", "The first request with this Idempotency-Key has not ended; try again in a moment.")
		p.retryAfter = "1"
		refuse(ctx, p)
	case state == idempotencyDone && len(kept) == 0:
		refuse(ctx, newProblem(http.StatusConflict, "already_created", "The request with this Idempotency-Key succeeded; its answer held a secret and is not kept. Revoke what it created and create another."))
	case state == idempotencyDone:
		replay(ctx, status, header, kept)
	default:
		a.record(ctx, next, key, who, route)
	}
}

// record runs the request and keeps its answer if it is a success.
func (a *API) record(ctx huma.Context, next func(huma.Context), key, who, route string) {
	rec := &recorder{humaContext: ctx, header: http.Header{}}
	done := false
	defer func() {
		// The answer is there whether or not its reader still is.
		keep := context.WithoutCancel(ctx.Context())
		if !done || rec.status < 200 || rec.status >= 300 {
			if err := a.cfg.Store.IdempotencyAbandon(keep, key, who, route); err != nil {
				a.log.Warn("an idempotency key could not be given back; it is in a minute", "err", err)
			}
			return
		}
		header, err := json.Marshal(rec.header)
		out := rec.out.Bytes()
		if secret, _ := ctx.Operation().Metadata[holdsSecret].(bool); secret {
			out = nil
		}
		if err == nil {
			err = a.cfg.Store.IdempotencyFinish(keep, key, who, route, rec.status, header, out)
		}
		if err != nil {
			a.log.Warn("an idempotent answer could not be kept", "err", err)
		}
	}()
	next(rec)
	done = true
}

func refuse(ctx huma.Context, p *Problem) {
	p.RequestID = requestID(ctx.Context())
	for k, v := range p.GetHeaders() {
		ctx.SetHeader(k, v[0])
	}
	ctx.SetHeader("Content-Type", "application/problem+json")
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p) // the client is gone: nobody to tell
}

func replay(ctx huma.Context, status int, header, body []byte) {
	var h http.Header
	if json.Unmarshal(header, &h) == nil {
		for k, v := range h {
			for _, one := range v {
				ctx.SetHeader(k, one)
			}
		}
	}
	ctx.SetHeader("Idempotency-Replayed", "true")
	ctx.SetStatus(status)
	_, _ = ctx.BodyWriter().Write(body)
}

// recorder copies the answer.
type recorder struct {
	humaContext
	header http.Header
	status int
	out    bytes.Buffer
}

func (c *recorder) Unwrap() huma.Context { return c.humaContext }
func (c *recorder) SetStatus(s int)      { c.status = s; c.humaContext.SetStatus(s) }
func (c *recorder) Status() int          { return c.status }
func (c *recorder) SetHeader(k, v string) {
	c.header.Set(k, v)
	c.humaContext.SetHeader(k, v)
}
func (c *recorder) BodyWriter() io.Writer { return io.MultiWriter(&c.out, c.humaContext.BodyWriter()) }

// humaContext is embedded under another name, since huma.Context has a method Context.
type humaContext = huma.Context
