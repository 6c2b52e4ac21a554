package admin

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/internal/control"
	"sluice/router"
)

// writeIn are the parameters that every change takes.
type writeIn struct {
	DryRun         bool   `query:"dry_run" doc:"validate and answer what would be, write nothing"`
	Wait           string `query:"wait" enum:"applied" doc:"answer when every live replica has the change"`
	Timeout        string `query:"timeout" doc:"longest wait, such as 3s; at most 30s" default:"3s"`
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"repeating a POST with the same key answers the first result"`
}

// matchIn is If-Match.
type matchIn struct {
	IfMatch string `header:"If-Match" doc:"the ETag that was read, or * for rollback and kill"`
}

// written is what every change answers beside its object.
type written struct {
	Revision int64    `json:"revision" doc:"of the document after the change"`
	Applied  *bool    `json:"applied,omitempty" doc:"with wait=applied: whether every live replica has it"`
	Missing  []string `json:"missing,omitempty" doc:"replicas that do not have it yet"`
	Deferred bool     `json:"deferred,omitempty" doc:"in force through Redis while the database is away"`
	DryRun   bool     `json:"dry_run,omitempty"`
}

// etag of a revision.
func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// precondition checks If-Match against the object's revision in the newest
// document; it is called inside the commit.
func precondition(ifMatch string, star bool, current int64) error {
	switch v := strings.TrimSpace(ifMatch); {
	case v == "":
		return newProblem(http.StatusPreconditionRequired, "if_match_required", "Send If-Match with the ETag that you read, so that a change made meanwhile is not overwritten.")
	case v == "*":
		if star {
			return nil
		}
		p := newProblem(http.StatusPreconditionFailed, "if_match_star", "If-Match: * is accepted for rollback and kill only; send the ETag that you read.")
		p.CurrentETag = etag(current)
		return p
	default:
		for _, one := range strings.Split(v, ",") {
			if strings.TrimSpace(one) == etag(current) {
				return nil
			}
		}
		p := newProblem(http.StatusPreconditionFailed, "stale", "The object has changed since you read it; read it again and decide anew.")
		p.CurrentETag = etag(current)
		return p
	}
}

// change describes one write for commit.
type change struct {
	action, object, reason string
	in                     writeIn
	mutate                 func(s *router.Snapshot, revision int64, now time.Time) error
	// through replaces Control.Commit for kill and rollback.
	through func(ctx context.Context, ch router.Change) (control.CommitResult, error)
}

// commit runs a change and waits for the replicas where that was asked.
func (a *API) commit(ctx context.Context, c change) (*router.Snapshot, written, error) {
	if len(c.reason) > 1000 {
		return nil, written{}, newProblem(http.StatusUnprocessableEntity, "reason_too_long", "The reason is longer than 1000 characters.")
	}
	timeout, err := waitTimeout(c.in)
	if err != nil {
		return nil, written{}, err
	}
	who := actorOf(ctx)
	ch := router.Change{
		Actor: who.Name, Role: who.Role, IP: who.IP, RequestID: requestID(ctx), Action: c.action, Object: c.object, Reason: c.reason,
		DryRun: c.in.DryRun,
		Mutate: func(s *router.Snapshot, revision int64) error { return c.mutate(s, revision, time.Now().UTC()) },
	}
	through := c.through
	if through == nil || c.in.DryRun {
		through = a.cfg.Control.Commit
	}
	res, err := through(ctx, ch)
	if err != nil {
		return nil, written{}, a.problemOf(ctx, err)
	}
	w := written{Revision: res.Revision, Deferred: res.Deferred, DryRun: c.in.DryRun}
	if c.in.Wait == "applied" && !c.in.DryRun {
		ok, missing := a.cfg.Control.WaitApplied(ctx, res.Revision, timeout)
		w.Applied, w.Missing = &ok, missing
	}
	return res.Snapshot, w, nil
}

func waitTimeout(in writeIn) (time.Duration, error) {
	if in.Timeout == "" {
		return 3 * time.Second, nil
	}
	d, err := time.ParseDuration(in.Timeout)
	if err != nil || d < 0 || d > 30*time.Second {
		return 0, newProblem(http.StatusUnprocessableEntity, "invalid_timeout", "timeout must be a duration between 0s and 30s, such as 3s.")
	}
	return d, nil
}

func missingObject(kind, name string) error {
	return newProblem(http.StatusNotFound, "not_found", fmt.Sprintf("There is no %s %q.", kind, name))
}
