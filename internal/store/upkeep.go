package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// States of an idempotency key.
const (
	IdempotencyNew      = "new"      // reserved for the caller, who must Finish or Abandon it
	IdempotencyRunning  = "running"  // another request with it has not finished
	IdempotencyMismatch = "mismatch" // it was used with another body
	IdempotencyDone     = "done"     // status, header and body are the answer to repeat
)

// idempotencyKept is how long an answer is repeated; a reservation that was
// never finished (a crash) is given away sooner.
const (
	idempotencyKept    = 24 * time.Hour
	idempotencyRunning = time.Minute
)

// IdempotencyBegin reserves a key of one actor and route or answers what became of it.
func (s *Store) IdempotencyBegin(ctx context.Context, key, actor, route, bodyHash string) (state string, status int, header, body []byte, err error) {
	key, actor, route = text(key), text(actor), text(route)
	err = s.tx(ctx, "idempotency key", func(ctx context.Context, tx *sql.Tx) error {
		now := micros(s.now())
		_, err := tx.ExecContext(ctx, `DELETE FROM idempotency WHERE actor = $1 AND route = $2 AND name = $3
			AND (created_at < $4 OR (status = 0 AND created_at < $5))`,
			actor, route, key, now-idempotencyKept.Microseconds(), now-idempotencyRunning.Microseconds())
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `
			INSERT INTO idempotency (actor, route, name, body_hash, status, header, body, created_at)
			VALUES ($1, $2, $3, $4, 0, '', '', $5) ON CONFLICT (actor, route, name) DO NOTHING`, actor, route, key, bodyHash, now)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			state = IdempotencyNew
			return err
		}
		var hash, h, b string
		err = tx.QueryRowContext(ctx, `SELECT body_hash, status, header, body FROM idempotency
			WHERE actor = $1 AND route = $2 AND name = $3`, actor, route, key).Scan(&hash, &status, &h, &b)
		switch {
		case errors.Is(err, sql.ErrNoRows): // abandoned in between
			state = IdempotencyRunning
			return nil
		case err != nil:
			return err
		case hash != bodyHash:
			state, status = IdempotencyMismatch, 0
		case status == 0:
			state = IdempotencyRunning
		default:
			state, header, body = IdempotencyDone, []byte(h), []byte(b)
		}
		return nil
	})
	return state, status, header, body, err
}

// IdempotencyFinish stores the answer (status not 0) to repeat for 24 h.
func (s *Store) IdempotencyFinish(ctx context.Context, key, actor, route string, status int, header, body []byte) error {
	return s.tx(ctx, "idempotency key", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE idempotency SET status = $4, header = $5, body = $6
			WHERE actor = $1 AND route = $2 AND name = $3`, text(actor), text(route), text(key), status, text(string(header)), text(string(body)))
		return err
	})
}

// IdempotencyAbandon gives a reserved key back, after an answer that may be tried again.
func (s *Store) IdempotencyAbandon(ctx context.Context, key, actor, route string) error {
	return s.tx(ctx, "idempotency key", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM idempotency WHERE actor = $1 AND route = $2 AND name = $3 AND status = 0`,
			text(actor), text(route), text(key))
		return err
	})
}

// Retention says how long rows are kept; 0 is the default, negative keeps everything.
type Retention struct {
	Events  time.Duration // ledger and attempts; 30 days
	Minutes time.Duration // latencies by minute, then by hour; 6 h
	Rollups time.Duration // minute rollups and latencies by hour; 400 days
}

// Retain deletes what is older, in steps that do not hold the database for
// long. Bills (usage by hour), audit and revisions are never deleted.
func (s *Store) Retain(ctx context.Context, r Retention) (deleted int64, err error) {
	now := s.now()
	for p, d := range map[*time.Duration]time.Duration{&r.Events: 30 * 24 * time.Hour, &r.Minutes: 6 * time.Hour, &r.Rollups: 400 * 24 * time.Hour} {
		if *p == 0 {
			*p = d
		}
	}
	if r.Events > 0 {
		for {
			n, err := s.deleteEvents(ctx, micros(now.Add(-r.Events)))
			deleted += n
			if err != nil || n == 0 {
				if err != nil {
					return deleted, err
				}
				break
			}
		}
	}
	if r.Minutes > 0 {
		if err := s.foldLatency(ctx, unixMinute(now.Add(-r.Minutes))); err != nil {
			return deleted, err
		}
	}
	return deleted, s.tx(ctx, "retention", func(ctx context.Context, tx *sql.Tx) error {
		if r.Rollups > 0 {
			for _, table := range []string{"rollups", "rollup_latency"} {
				if _, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE minute < $1`, unixMinute(now.Add(-r.Rollups))); err != nil {
					return err
				}
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM idempotency WHERE created_at < $1`, micros(now.Add(-idempotencyKept)))
		return err
	})
}

func (s *Store) deleteEvents(ctx context.Context, before int64) (n int64, err error) {
	// Request ids are UUIDv7 and sort by time, so the primary key serves as the
	// index of times; the time itself is checked too.
	const some = `SELECT request_id FROM events WHERE request_id < $1 AND created_at < $2 ORDER BY request_id LIMIT 1000`
	bound := fmt.Sprintf("%012x", max(before, 0)/1000)
	bound = bound[:8] + "-" + bound[8:]
	err = s.tx(ctx, "retention", func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM attempts WHERE request_id IN (`+some+`)`, bound, before); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `DELETE FROM events WHERE request_id IN (`+some+`)`, bound, before)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return n, err
}

// foldLatency adds the minutes of whole past hours to the row of their hour's
// first minute.
func (s *Store) foldLatency(ctx context.Context, before int64) error {
	before -= before % 60
	return s.tx(ctx, "retention", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO rollup_latency (`+latencyPK+`, count)
			SELECT minute - minute % 60, model, experiment, variant, role, kind, bucket, `+bigint("count")+`
			  FROM rollup_latency WHERE minute < $1 AND minute % 60 <> 0
			 GROUP BY 1, 2, 3, 4, 5, 6, 7 `+adding("rollup_latency", latencyPK, []string{"count"}), before)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM rollup_latency WHERE minute < $1 AND minute % 60 <> 0`, before)
		return err
	})
}

// ReportReplica says that a replica is alive and serves a revision, and answers
// the ids of others that reported since.
func (s *Store) ReportReplica(ctx context.Context, id string, revision int64, since time.Time) (others []string, err error) {
	err = s.tx(ctx, "report replica", func(ctx context.Context, tx *sql.Tx) error {
		others = nil
		now := s.now()
		_, err := tx.ExecContext(ctx, `
			INSERT INTO replicas (id, revision, seen_at) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, seen_at = excluded.seen_at`, text(id), revision, micros(now))
		if err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, `DELETE FROM replicas WHERE seen_at < $1`, micros(now.Add(-time.Hour))); err != nil {
			return err
		}
		rs, err := tx.QueryContext(ctx, `SELECT id FROM replicas WHERE id <> $1 AND seen_at > $2 ORDER BY id`, text(id), micros(since))
		if err != nil {
			return err
		}
		defer rs.Close()
		for rs.Next() {
			var other string
			if err := rs.Scan(&other); err != nil {
				return err
			}
			others = append(others, other)
		}
		return rs.Err()
	})
	return others, err
}

// channel of PostgreSQL's NOTIFY.
const channel = "sluice_revision"

// Listen calls notice after every commit of any replica, as PostgreSQL tells
// it, until ctx ends; it reconnects by itself and calls notice once after each
// connect, for what was missed. On SQLite it only waits for ctx. A lost notice
// is possible: poll too.
func (s *Store) Listen(ctx context.Context, notice func()) {
	if s.pg == nil {
		<-ctx.Done()
		return
	}
	for wait := 250 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		began := time.Now()
		err := s.listen(ctx, notice)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 10*time.Second {
			wait = 250 * time.Millisecond
		}
		s.log.Warn("database notices interrupted; polling goes on", "err", scrub(err), "retry_in", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (s *Store) listen(ctx context.Context, notice func()) error {
	conn, err := pgx.ConnectConfig(ctx, s.pg.Copy())
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(end)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	notice()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		notice()
	}
}
