package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sluice/router"
)

// Revision is one entry of the history.
type Revision struct {
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
	Actor    string    `json:"actor"`
	Action   string    `json:"action"`
	Object   string    `json:"object"`
	Reason   string    `json:"reason,omitempty"`
}

// queryer is what a handle and *sql.Tx have in common.
type queryer interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

// Latest reads the newest snapshot; revision 0 and nothing in it before the first commit.
func (s *Store) Latest(ctx context.Context) (*router.Snapshot, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	raw, err := readHead(ctx, s.r)
	if err != nil {
		return nil, s.wrap("read newest revision", err)
	}
	return raw.decode()
}

// rawSnapshot is a snapshot as stored; decode gives a private copy each time.
type rawSnapshot struct {
	revision int64
	document string
	keys     []string
}

// readHead reads document and keys in one statement, which is one consistent
// view in both engines.
func readHead(ctx context.Context, q queryer) (*rawSnapshot, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT 0 AS part, '' AS id, r.revision, r.document AS body
		  FROM head h JOIN revisions r ON r.revision = h.revision
		UNION ALL
		SELECT 1, k.id, k.revision, k.body FROM api_keys k
		ORDER BY 1, 2`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	raw := &rawSnapshot{document: "{}"}
	for rows.Next() {
		var part int
		var rev int64
		var id, body string
		if err := rows.Scan(&part, &id, &rev, &body); err != nil {
			return nil, err
		}
		if part == 0 {
			raw.revision, raw.document = rev, body
		} else {
			raw.keys = append(raw.keys, body)
		}
	}
	return raw, rows.Err()
}

func (r *rawSnapshot) decode() (*router.Snapshot, error) {
	s := &router.Snapshot{}
	if err := json.Unmarshal([]byte(r.document), &s.Document); err != nil {
		return nil, fmt.Errorf("revision %d: stored document is not readable: %w", r.revision, err)
	}
	s.Document.Revision = r.revision
	for _, body := range r.keys {
		var k router.Key
		if err := json.Unmarshal([]byte(body), &k); err != nil {
			return nil, fmt.Errorf("revision %d: stored key is not readable: %w", r.revision, err)
		}
		s.Keys = append(s.Keys, k)
	}
	return s, nil
}

// LatestRevision reads the newest revision, 0 before the first commit.
func (s *Store) LatestRevision(ctx context.Context) (int64, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var rev int64
	err := s.r.QueryRowContext(ctx, `SELECT revision FROM head WHERE id = 1`).Scan(&rev)
	return rev, s.wrap("read newest revision", err)
}

// At reads the document of one revision, ErrNotFound without it. Keys have no
// history: Snapshot.Keys is nil.
func (s *Store) At(ctx context.Context, revision int64) (*router.Snapshot, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	raw := rawSnapshot{revision: revision}
	err := s.r.QueryRowContext(ctx, `SELECT document FROM revisions WHERE revision = $1`, revision).Scan(&raw.document)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("revision %d: %w", revision, ErrNotFound)
	}
	if err != nil {
		return nil, s.wrap("read revision", err)
	}
	return raw.decode()
}

// History lists revisions, newest first, at most limit (1..200), older than
// before (0 = from the newest).
func (s *Store) History(ctx context.Context, limit int, before int64) ([]Revision, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rows, err := s.r.QueryContext(ctx, `
		SELECT revision, created_at, actor, action, object, reason FROM revisions
		 WHERE revision < $1 ORDER BY revision DESC LIMIT $2`, newestFirst(before), pageSize(limit))
	if err != nil {
		return nil, s.wrap("read history", err)
	}
	defer rows.Close()
	var out []Revision
	for rows.Next() {
		var r Revision
		var at int64
		if err := rows.Scan(&r.Revision, &at, &r.Actor, &r.Action, &r.Object, &r.Reason); err != nil {
			return nil, s.wrap("read history", err)
		}
		r.Time = fromMicros(at)
		out = append(out, r)
	}
	return out, s.wrap("read history", rows.Err())
}

const maxRevision = 1<<53 - 1 // exact in a double

func newestFirst(before int64) int64 {
	if before <= 0 {
		return 1<<63 - 1
	}
	return before
}

func pageSize(limit int) int {
	if limit < 1 {
		return 50
	}
	return min(limit, 200)
}
