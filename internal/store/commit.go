package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/router"
)

// Commit runs one change: it locks the head, reads the newest snapshot, lets
// Mutate edit a private copy, validates, and writes document, keys and audit
// row, all in one transaction. It answers the snapshot that is newest
// afterwards and the audit row; the audit row is nil when nothing changed, and
// then nothing is written. A dry run answers both and writes nothing.
//
// Errors of Mutate and Validate come back unchanged (errors.Is, errors.As);
// others are router.ErrConflict, router.ErrFenced or ErrUnavailable. ErrUnavailable from a cut
// connection may mean that the change was written: read before trying again.
// Mutate must not call the Store.
func (s *Store) Commit(ctx context.Context, ch router.Change) (*router.Snapshot, *router.Audit, error) {
	return s.CommitAbove(ctx, 0, ch)
}

// CommitAbove is Commit with a revision greater than floor. When the newest
// revision is below floor, the document is written again under a higher one
// even if Mutate (which may be nil) changes nothing.
func (s *Store) CommitAbove(ctx context.Context, floor int64, ch router.Change) (*router.Snapshot, *router.Audit, error) {
	if ch.DryRun {
		ctx, cancel := s.bound(ctx)
		defer cancel()
		raw, err := readHead(ctx, s.r)
		if err != nil {
			return nil, nil, s.wrap("dry run", err)
		}
		fence, err := s.Fence(ctx)
		if err != nil {
			return nil, nil, err
		}
		if ch.Fence > 0 && ch.Fence < fence {
			return nil, nil, router.ErrFenced
		}
		c, err := s.prepare(raw, floor, ch)
		if err != nil {
			return nil, nil, err
		}
		return c.after, c.audit, nil
	}
	var c *commit
	var inner error // of Mutate or Validate: not the database's
	err := s.tx(ctx, "commit", func(ctx context.Context, tx *sql.Tx) error {
		h, err := lockHead(ctx, tx)
		if err != nil {
			return err
		}
		if ch.Fence > 0 && ch.Fence < h.fence {
			return router.ErrFenced
		}
		h.fence = max(h.fence, ch.Fence)
		raw, err := readHead(ctx, tx)
		if err != nil {
			return err
		}
		if there, err := audited(ctx, tx, ch.ID); err != nil {
			return err
		} else if there {
			ch.ID = ""
		}
		if c, inner = s.prepare(raw, floor, ch); inner != nil {
			return inner
		}
		if c.audit == nil {
			return nil
		}
		return s.write(ctx, tx, h, c)
	})
	if inner != nil {
		return nil, nil, inner
	}
	if err != nil {
		return nil, nil, err
	}
	return c.after, c.audit, nil
}

// head is the locked row that serialises commits and the audit chain.
type head struct {
	seq   int64
	hash  string
	fence int64
}

// lockHead takes the row's lock in PostgreSQL; SQLite's transaction has the
// whole database already.
func lockHead(ctx context.Context, tx *sql.Tx) (head, error) {
	var h head
	err := tx.QueryRowContext(ctx, `
		UPDATE head SET writes = writes + 1 WHERE id = 1
		RETURNING audit_seq, audit_hash, fence`).Scan(&h.seq, &h.hash, &h.fence)
	return h, err
}

// Fence is the highest leadership that the database has seen.
func (s *Store) Fence(ctx context.Context) (fence int64, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	err = s.r.QueryRowContext(ctx, `SELECT fence FROM head WHERE id = 1`).Scan(&fence)
	return fence, s.wrap("read fence", err)
}

// RaiseFence begins a leadership: commits below it are refused from now on. It
// is router.ErrFenced when a later one has begun already.
func (s *Store) RaiseFence(ctx context.Context, fence int64) error {
	return s.tx(ctx, "raise fence", func(ctx context.Context, tx *sql.Tx) error {
		h, err := lockHead(ctx, tx)
		if err != nil {
			return err
		}
		if fence < h.fence {
			return router.ErrFenced
		}
		_, err = tx.ExecContext(ctx, `UPDATE head SET fence = $1 WHERE id = 1`, fence)
		return err
	})
}

// compact is the JSON that is stored, so that what is read back is what was hashed.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("the details of the change are not JSON: %w", err)
	}
	return b.Bytes(), nil
}

// commit is a prepared write.
type commit struct {
	change        router.Change
	before, after *router.Snapshot
	document      string
	audit         *router.Audit // nil: nothing changes
}

func (s *Store) prepare(raw *rawSnapshot, floor int64, ch router.Change) (*commit, error) {
	before, err := raw.decode()
	if err != nil {
		return nil, err
	}
	after, err := raw.decode()
	if err != nil {
		return nil, err
	}
	now := s.now().UTC()
	rev := max(raw.revision+1, floor+1, now.UnixMilli()*256)
	if rev > maxRevision {
		return nil, fmt.Errorf("revision %d is out of range; check the clock of this machine", rev)
	}
	if ch.Mutate != nil {
		if err := ch.Mutate(after, rev); err != nil {
			return nil, err
		}
	}
	c := &commit{change: ch, before: before, after: after}
	changed, err := stamp(before, after, rev, now)
	if err != nil {
		return nil, err
	}
	if !changed && raw.revision >= floor {
		c.after = before
		return c, nil
	}
	after.Document.Revision = rev
	if s.validate != nil {
		if err := s.validate(after); err != nil {
			return nil, err
		}
	}
	doc, err := json.Marshal(after.Document)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	c.document = string(doc)
	c.audit = &router.Audit{
		ID: idOr(ch.ID), Revision: rev, Time: now, Actor: ch.Actor, Role: ch.Role, IP: ch.IP,
		RequestID: ch.RequestID, Action: ch.Action, Object: ch.Object, Reason: ch.Reason,
	}
	c.audit.Details = ch.Details
	c.audit.Before, c.audit.After, err = diff(before, after, ch.Object)
	return c, err
}

func (s *Store) write(ctx context.Context, tx *sql.Tx, h head, c *commit) error {
	a := c.audit
	h, err := appendAudit(ctx, tx, h, a)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO revisions (revision, created_at, actor, action, object, reason, fence, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		a.Revision, micros(a.Time), a.Actor, a.Action, a.Object, a.Reason, h.fence, c.document)
	if err != nil {
		return err
	}
	if err := writeKeys(ctx, tx, c); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE head SET revision = $1, audit_seq = $2, audit_hash = $3, fence = $4 WHERE id = 1`,
		a.Revision, h.seq, h.hash, h.fence)
	if err == nil && s.pg != nil {
		_, err = tx.ExecContext(ctx, `SELECT pg_notify('`+channel+`', $1)`, fmt.Sprint(a.Revision))
	}
	return err
}

func writeKeys(ctx context.Context, tx *sql.Tx, c *commit) error {
	old := map[string]router.Key{}
	for _, k := range c.before.Keys {
		old[k.ID] = k
	}
	type upsert struct {
		key  router.Key
		body []byte
	}
	var changed []upsert
	for _, k := range c.after.Keys {
		body, err := json.Marshal(k)
		if err != nil {
			return fmt.Errorf("encode key %s: %w", k.ID, err)
		}
		if o, ok := old[k.ID]; !ok || !equalJSON(o, k) {
			changed = append(changed, upsert{k, body})
		}
		delete(old, k.ID)
	}
	// Removals first: a new key may take over a removed one's hash.
	for id := range old {
		if _, err := tx.ExecContext(ctx, `DELETE FROM api_keys WHERE id = $1`, id); err != nil {
			return err
		}
	}
	for _, u := range changed {
		var revoked any
		if !u.key.RevokedAt.IsZero() {
			revoked = micros(u.key.RevokedAt)
		}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO api_keys (id, hash, name, tenant, body, revoked_at, revision) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, name = excluded.name, tenant = excluded.tenant,
				body = excluded.body, revoked_at = excluded.revoked_at, revision = excluded.revision`,
			u.key.ID, u.key.Hash, text(u.key.Name), text(u.key.Tenant), string(u.body), revoked, c.audit.Revision)
		if err != nil {
			return err
		}
	}
	return nil
}

// checkKeys refuses what the tables' constraints would refuse, with words.
func checkKeys(keys []router.Key) error {
	ids, hashes := map[string]bool{}, map[string]bool{}
	for _, k := range keys {
		switch {
		case k.ID == "" || k.Hash == "":
			return errors.New("an API key needs an id and a hash")
		case ids[k.ID]:
			return fmt.Errorf("API key id %q occurs twice", k.ID)
		case hashes[k.Hash]:
			return fmt.Errorf("API key %q has the same secret as another key", k.Name)
		}
		ids[k.ID], hashes[k.Hash] = true, true
	}
	return nil
}

// text makes a string that both engines take: valid UTF-8 without NUL.
func text(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
