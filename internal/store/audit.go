package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"sluice/router"
)

// AuditFilter selects audit rows; empty members match all.
type AuditFilter = router.AuditFilter

// Audit lists rows, newest first. next is the cursor of the next page, 0 after the last.
func (s *Store) Audit(ctx context.Context, f AuditFilter) (rows []router.Audit, next int64, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	limit := pageSize(f.Limit)
	rs, err := s.r.QueryContext(ctx, `SELECT `+auditColumns+` FROM audit
		 WHERE seq < $1 AND ($2 = '' OR actor = $2) AND ($3 = '' OR object = $3) AND ($4 = '' OR action = $4)
		   AND ($5 = '' OR substr(object, 1, $6) = $5)
		 ORDER BY seq DESC LIMIT $7`,
		newestFirst(f.Before), f.Actor, f.Object, f.Action, f.ObjectPrefix, len([]rune(f.ObjectPrefix)), limit+1)
	if err != nil {
		return nil, 0, s.wrap("read audit", err)
	}
	defer rs.Close()
	var last int64
	for rs.Next() {
		seq, a, err := scanAudit(rs)
		if err != nil {
			return nil, 0, s.wrap("read audit", err)
		}
		if len(rows) == limit {
			next = last
			break
		}
		rows, last = append(rows, a), seq
	}
	return rows, next, s.wrap("read audit", rs.Err())
}

// AppendAudit writes a row for something that changes no snapshot (a token, a
// login, a refused action). Time, Revision, Prev and Hash are set here, and ID
// where it is empty. It answers nil for an ID that has its row already.
func (s *Store) AppendAudit(ctx context.Context, a router.Audit) (*router.Audit, error) {
	there := false
	err := s.tx(ctx, "append audit", func(ctx context.Context, tx *sql.Tx) error {
		h, err := lockHead(ctx, tx)
		if err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, `SELECT revision FROM head WHERE id = 1`).Scan(&a.Revision); err != nil {
			return err
		}
		if there, err = audited(ctx, tx, a.ID); err != nil || there {
			return err
		}
		a.ID, a.Time = idOr(a.ID), s.now().UTC()
		if h, err = appendAudit(ctx, tx, h, &a); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE head SET audit_seq = $1, audit_hash = $2 WHERE id = 1`, h.seq, h.hash)
		return err
	})
	if err != nil || there {
		return nil, err
	}
	return &a, nil
}

func idOr(id string) string {
	if id == "" {
		return uuid.Must(uuid.NewV7()).String()
	}
	return id
}

// audited reports that the decision of that name has its row.
func audited(ctx context.Context, tx *sql.Tx, id string) (bool, error) {
	if id == "" {
		return false, nil
	}
	var n int
	err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM audit WHERE id = $1`, id).Scan(&n)
	return n > 0, err
}

// VerifyAudit recomputes the chain from its first row to the head. It answers
// the number of rows that hold, and an error naming the first that does not:
// changed, removed, inserted, or cut off at the end.
func (s *Store) VerifyAudit(ctx context.Context) (rows int64, err error) {
	var h head
	if err := s.r.QueryRowContext(ctx, `SELECT audit_seq, audit_hash FROM head WHERE id = 1`).Scan(&h.seq, &h.hash); err != nil {
		return 0, s.wrap("verify audit", err)
	}
	rs, err := s.r.QueryContext(ctx, `SELECT `+auditColumns+` FROM audit WHERE seq <= $1 ORDER BY seq`, h.seq)
	if err != nil {
		return 0, s.wrap("verify audit", err)
	}
	defer rs.Close()
	prev := ""
	for rs.Next() {
		seq, a, err := scanAudit(rs)
		if err != nil {
			return rows, s.wrap("verify audit", err)
		}
		switch want := auditHash(a); {
		case seq != rows+1:
			return rows, fmt.Errorf("audit row %d is missing", rows+1)
		case a.Prev != prev:
			return rows, fmt.Errorf("audit row %d (%s) does not follow the row before it", seq, a.ID)
		case a.Hash != want:
			return rows, fmt.Errorf("audit row %d (%s) was changed after it was written", seq, a.ID)
		}
		rows, prev = rows+1, a.Hash
	}
	if err := rs.Err(); err != nil {
		return rows, s.wrap("verify audit", err)
	}
	if rows != h.seq || prev != h.hash {
		return rows, fmt.Errorf("audit ends at row %d, the head says %d: rows were removed", rows, h.seq)
	}
	return rows, nil
}

// appendAudit writes a behind h, completes it with the chain's hashes, and
// answers the head that the caller must store in the same transaction.
func appendAudit(ctx context.Context, tx *sql.Tx, h head, a *router.Audit) (head, error) {
	var err error
	if a.Details, err = compact(a.Details); err != nil {
		return h, err
	}
	for _, p := range []*string{&a.Actor, &a.Role, &a.IP, &a.RequestID, &a.Action, &a.Object, &a.Reason} {
		*p = text(*p)
	}
	a.Time = fromMicros(micros(a.Time)) // what is read back is what was hashed
	a.Prev = h.hash
	a.Hash = auditHash(*a)
	h.seq, h.hash = h.seq+1, a.Hash
	_, err = tx.ExecContext(ctx, `INSERT INTO audit (seq, `+auditFields+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		h.seq, a.ID, a.Revision, micros(a.Time), a.Actor, a.Role, a.IP, a.RequestID, a.Action, a.Object, a.Reason,
		rawText(a.Before), rawText(a.After), rawText(a.Details), a.Prev, a.Hash)
	return h, err
}

const (
	auditFields  = `id, revision, created_at, actor, role, ip, request_id, action, object, reason, value_before, value_after, details, prev, hash`
	auditColumns = `seq, ` + auditFields
)

func scanAudit(rs *sql.Rows) (seq int64, a router.Audit, err error) {
	var at int64
	var before, after, details sql.NullString
	err = rs.Scan(&seq, &a.ID, &a.Revision, &at, &a.Actor, &a.Role, &a.IP, &a.RequestID, &a.Action, &a.Object, &a.Reason,
		&before, &after, &details, &a.Prev, &a.Hash)
	a.Time = fromMicros(at)
	if before.Valid {
		a.Before = json.RawMessage(before.String)
	}
	if after.Valid {
		a.After = json.RawMessage(after.String)
	}
	if details.Valid {
		a.Details = json.RawMessage(details.String)
	}
	return seq, a, err
}

func rawText(b json.RawMessage) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// auditHash is SHA-256 over the row's canonical JSON: the members of
// router.Audit in their order, without hash, behind the hash of the row before.
func auditHash(a router.Audit) string {
	a.Hash = ""
	b, err := json.Marshal(a)
	if err != nil { // a stored value that is no JSON any more: changed
		b = fmt.Appendf(nil, "%q %q %v", a.Before, a.After, err)
	}
	h := sha256.New()
	h.Write([]byte(a.Prev))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}
