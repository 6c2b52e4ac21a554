package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"sluice/internal/store"
)

// holdsSecret marks operations whose answer must not be kept.
const holdsSecret = "holds_secret"

// idempotent answers a repeated POST with its first result (draft-ietf-httpapi-
// idempotency-key-header): same key and body, same answer; another body, 422;
// still running, 409. Answers with a secret are not kept: their replay is 409.
func (a *API) idempotent(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		key := ctx.Header("Idempotency-Key")
		if key == "" || ctx.Method() != http.MethodPost || ctx.Query("dry_run") == "true" {
			next(ctx)
			return
		}
		body, err := io.ReadAll(io.LimitReader(ctx.BodyReader(), 5<<20))
		if err != nil {
			huma.WriteErr(api, ctx, http.StatusBadRequest, "The body could not be read.")
			return
		}
		u := ctx.URL()
		sum := sha256.Sum256(append([]byte(u.RawQuery+"\n"), body...))
		who, route := actorOf(ctx.Context()).Name, ctx.Method()+" "+u.Path
		state, status, header, kept, err := a.cfg.Store.IdempotencyBegin(ctx.Context(), key, who, route, hex.EncodeToString(sum[:]))
		switch {
		case err != nil:
			// Without the database nothing can be changed but kills and rollbacks,
			// which may be repeated at will.
			next(&replayContext{humaContext: ctx, body: bytes.NewReader(body)})
			return
		case state == store.IdempotencyMismatch:
			a.refuse(api, ctx, http.StatusUnprocessableEntity, "idempotency_mismatch", "This Idempotency-Key was used with another body.")
			return
		case state == store.IdempotencyRunning:
			a.refuse(api, ctx, http.StatusConflict, "idempotency_running", "The first request with this Idempotency-Key has not ended; try again in a moment.")
			return
		case state == store.IdempotencyDone && len(kept) == 0:
			a.refuse(api, ctx, http.StatusConflict, "already_created", "The request with this Idempotency-Key succeeded; its answer held a secret and is not kept. Create another.")
			return
		case state == store.IdempotencyDone:
			replay(ctx, status, header, kept)
			return
		}
		rec := &replayContext{humaContext: ctx, body: bytes.NewReader(body), header: http.Header{}}
		next(rec)
		if rec.status >= 500 || rec.status == 0 {
			a.cfg.Store.IdempotencyAbandon(ctx.Context(), key, who, route)
			return
		}
		h, _ := json.Marshal(rec.header)
		out := rec.out.Bytes()
		if secret, _ := ctx.Operation().Metadata[holdsSecret].(bool); secret && rec.status < 300 {
			out = nil
		}
		if err := a.cfg.Store.IdempotencyFinish(ctx.Context(), key, who, route, rec.status, h, out); err != nil {
			a.log.Warn("an idempotent answer could not be kept", "err", err)
		}
	}
}

func (a *API) refuse(api huma.API, ctx huma.Context, status int, code, detail string) {
	p := newProblem(status, code, detail)
	p.RequestID = requestID(ctx.Context())
	ctx.SetHeader("Content-Type", "application/problem+json")
	ctx.SetStatus(status)
	json.NewEncoder(ctx.BodyWriter()).Encode(p)
}

func replay(ctx huma.Context, status int, header, body []byte) {
	var h http.Header
	json.Unmarshal(header, &h)
	for k, v := range h {
		for _, one := range v {
			ctx.SetHeader(k, one)
		}
	}
	ctx.SetHeader("Idempotency-Replayed", "true")
	ctx.SetStatus(status)
	ctx.BodyWriter().Write(body)
}

// replayContext gives the body again and copies the answer.
type replayContext struct {
	humaContext
	body   io.Reader
	header http.Header
	status int
	out    bytes.Buffer
}

func (c *replayContext) Unwrap() huma.Context  { return c.humaContext }
func (c *replayContext) BodyReader() io.Reader { return c.body }
func (c *replayContext) SetStatus(s int)       { c.status = s; c.humaContext.SetStatus(s) }
func (c *replayContext) Status() int           { return c.status }
func (c *replayContext) SetHeader(k, v string) {
	if c.header != nil {
		c.header.Set(k, v)
	}
	c.humaContext.SetHeader(k, v)
}
func (c *replayContext) BodyWriter() io.Writer { return io.MultiWriter(&c.out, c.humaContext.BodyWriter()) }

// humaContext is embedded under another name, since huma.Context has a method Context.
type humaContext = huma.Context
