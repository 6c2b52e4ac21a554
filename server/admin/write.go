package admin

import (
	"context"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/router"
)

// WriteIn are the parameters that every change takes.
type WriteIn struct {
	DryRun         bool   `query:"dry_run" doc:"validate and answer what would be, write nothing"`
	Wait           string `query:"wait" enum:"applied" doc:"answer when every live replica has the change"`
	Timeout        string `query:"timeout" doc:"longest wait, such as 3s; at most 30s" default:"3s" maxLength:"32"`
	IdempotencyKey string `header:"Idempotency-Key" doc:"1 to 255 printable ASCII characters; repeating a POST with the same key and body answers the first success"`
}

// ReasonIn is the reason of a change whose body is an object of its own.
type ReasonIn struct {
	Reason string `query:"reason" doc:"why, for the audit log; at most 1000 characters"`
}

// MatchIn is If-Match.
type MatchIn struct {
	IfMatch string `header:"If-Match" doc:"the ETag that was read; * will do for rollback, kill, pause, drain and enable"`
}

// written is what every change answers beside its object.
type written struct {
	Revision int64             `json:"revision" doc:"of the document after the change"`
	Changed  bool              `json:"changed" doc:"false: everything was so already, nothing was written"`
	Applied  *bool             `json:"applied,omitempty" doc:"with wait=applied: whether every live replica has it"`
	Missing  []string          `json:"missing,omitempty" doc:"replicas that do not have it yet"`
	Deferred bool              `json:"deferred,omitempty" doc:"in force already, but the database is away: document and audit follow when it is back"`
	DryRun   bool              `json:"dry_run,omitempty"`
	Changes  []router.DiffLine `json:"changes,omitempty" doc:"of a dry run: what would change"`
}

// etag of a revision.
func etag(revision int64) string { return `"` + itoa(revision) + `"` }

// tagOf is the ETag header of a change's answer. What a dry run shows does not
// exist, so it has none.
func (w *written) tagOf(revision int64) string {
	if w != nil && (w.DryRun || w.Deferred) {
		return ""
	}
	return etag(revision)
}

// notModified is the answer to a read that the client has already, else nil.
func notModified(ifNoneMatch string, revision int64) error {
	for one := range strings.SplitSeq(ifNoneMatch, ",") {
		one = strings.TrimPrefix(strings.TrimSpace(one), "W/")
		if one == "*" || one == etag(revision) {
			return &Problem{Status: http.StatusNotModified, etag: etag(revision)}
		}
	}
	return nil
}

// precondition checks If-Match against the object's revision in the newest
// document; it is called inside the commit.
func precondition(ifMatch string, star bool, current int64) error {
	failed := func(code, detail string) error {
		p := newProblem(http.StatusPreconditionFailed, code, detail)
		p.CurrentETag = etag(current)
		return p
	}
	switch v := strings.TrimSpace(ifMatch); {
	case v == "" && star:
		return nil // one call must do: the safe direction loses no race
	case v == "":
		p := newProblem(http.StatusPreconditionRequired, "if_match_required", "Send If-Match with the ETag that you read, so that a change made meanwhile is not overwritten.")
		p.Errors = []ProblemField{{Location: "header.If-Match", Code: p.Code, Message: "is missing"}}
		return p
	case v == "*" && star:
		return nil
	case v == "*":
		return failed("if_match_star", "If-Match: * is accepted for rollback, kill, pause, drain and enable only; send the ETag that you read.")
	default:
		for one := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(one) == etag(current) {
				return nil
			}
		}
		return failed("stale", "The object has changed since you read it, or the ETag is another object's; read it again and decide anew.")
	}
}

// mutation edits a private copy of the newest snapshot.
type mutation func(s *router.Snapshot, revision int64, now time.Time) error

// change describes one write for commit.
type change struct {
	action, object, reason string
	in                     WriteIn
	mutate                 mutation
	// through replaces Control.Commit for kill and rollback.
	through func(ctx context.Context, ch router.Change) (router.CommitResult, error)
}

// commit runs a change and waits for the replicas where that was asked.
func (a *API) commit(ctx context.Context, c change) (*router.Snapshot, *written, error) {
	if err := checkReason(c.reason); err != nil {
		return nil, nil, err
	}
	timeout, err := waitTimeout(c.in)
	if err != nil {
		return nil, nil, err
	}
	who := actorOf(ctx)
	var before *router.Document
	ch := router.Change{
		Actor: who.Name, Role: who.Role, IP: who.IP, RequestID: requestID(ctx), Action: c.action, Object: c.object, Reason: c.reason,
		DryRun: c.in.DryRun,
		Mutate: func(s *router.Snapshot, revision int64) error {
			before = s.Document.Clone()
			if err := c.mutate(s, revision, time.Now().UTC()); err != nil {
				return err
			}
			return mayAim(who, before, &s.Document)
		},
	}
	through := c.through
	if through == nil || c.in.DryRun {
		through = a.cfg.Control.Commit
	}
	res, err := through(ctx, ch)
	if err != nil {
		return nil, nil, err
	}
	w := &written{Revision: res.Revision, Changed: res.Audit != nil || res.Deferred, Deferred: res.Deferred, DryRun: c.in.DryRun}
	if c.in.DryRun {
		w.Changes = router.Diff(before, &res.Snapshot.Document)
		if !w.Changed {
			w.Changes = nil
		}
		return res.Snapshot, w, nil
	}
	if c.in.Wait == "applied" {
		ok, missing := a.cfg.Control.WaitApplied(ctx, res.Revision, timeout)
		w.Applied, w.Missing = &ok, missing
	}
	return res.Snapshot, w, nil
}

// mayAim lets only an admin say where a credential is sent.
func mayAim(who actor, before, after *router.Document) error {
	if who.Role == roleAdmin {
		return nil
	}
	aim := func(u *router.Upstream) string {
		if u == nil || u.Credential == "" {
			return ""
		}
		return u.Credential + "\n" + strings.Join(u.Endpoints, "\n")
	}
	for i := range after.Upstreams {
		u := &after.Upstreams[i]
		if now := aim(u); now != "" && now != aim(before.Upstream(u.Name)) {
			return newProblem(http.StatusForbidden, "admin_required", "The upstream "+clip(u.Name, 63)+" has a credential; only the role admin may say to which endpoints it is sent.")
		}
	}
	return nil
}

const maxReason = 1000

func checkReason(s string) error {
	if utf8.RuneCountInString(s) > maxReason {
		return newProblem(http.StatusUnprocessableEntity, "reason_too_long", "The reason is longer than 1000 characters; shorten it.")
	}
	if !printable(s, "\n\t") {
		return newProblem(http.StatusUnprocessableEntity, "invalid_reason", "The reason has control characters; leave them out.")
	}
	return nil
}

// printable reports text without control characters but those of also.
func printable(s, also string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune(also, r) })
}

func waitTimeout(in WriteIn) (time.Duration, error) {
	if in.Timeout == "" {
		return 3 * time.Second, nil
	}
	d, err := time.ParseDuration(in.Timeout)
	if err != nil || d < 0 || d > 30*time.Second {
		return 0, field(http.StatusUnprocessableEntity, "invalid_timeout", "query.timeout", "must be a duration from 0s to 30s, such as 3s")
	}
	return d, nil
}
