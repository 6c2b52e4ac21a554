// Package store keeps what must survive: every revision of the domain document,
// API keys, the hash-chained audit log, the ledger of requests and its rollups,
// in SQLite or PostgreSQL. It is the only package with SQL in it, and hides the
// engine, transactions, migrations and retries. One SQL text serves both
// engines: times are unix microseconds, money nano-USD, JSON text.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"sluice/router"
)

// Options of Open.
type Options struct {
	// URL is "sqlite:PATH", "sqlite::memory:" (nothing kept) or "postgres://…".
	URL string
	// Validate is run on what a commit would write; nil accepts everything.
	Validate func(*router.Snapshot) error
	// Log gets migrations and lost listeners; nil discards.
	Log *slog.Logger
	// Now is the clock of revisions and audit rows; nil is time.Now.
	Now func() time.Time
	// Timeout bounds a call whose context has no deadline; 0 is 10 s.
	Timeout time.Duration
	// MaxConns bounds the PostgreSQL pool; 0 is 10.
	MaxConns int
	// Lazy makes Open succeed while the database is away: calls answer
	// ErrUnavailable until it is back, and the first one then migrates.
	Lazy bool
}

// Store is a database with the current schema. It is safe for concurrent use.
type Store struct {
	w, r     handle // one writer and several readers on SQLite, the same pool on PostgreSQL
	pg       *pgx.ConnConfig
	where    string // for errors: a path or host, never a password
	file     string // of SQLite, "" in memory
	validate func(*router.Snapshot) error
	log      *slog.Logger
	now      func() time.Time
	timeout  time.Duration

	exposed exposed

	opening chan struct{} // capacity 1: one migration at a time
	opened  atomic.Bool
}

// handle is a pool of connections behind the check that the schema is current.
type handle struct {
	*sql.DB
	ready func(context.Context) error
}

type row interface{ Scan(dst ...any) error }

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (h handle) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	return h.DB.QueryContext(ctx, query, args...)
}

func (h handle) QueryRowContext(ctx context.Context, query string, args ...any) row {
	if err := h.ready(ctx); err != nil {
		return failedRow{err}
	}
	return h.DB.QueryRowContext(ctx, query, args...)
}

func (h handle) BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	return h.DB.BeginTx(ctx, o)
}

// Open connects, migrates the schema to the newest version and answers a ready
// Store. Replicas that start together wait for each other's migration. A schema
// newer than this binary is ErrNewerSchema; a database that cannot be reached,
// created or written is ErrUnavailable. No error contains a password.
func Open(ctx context.Context, o Options) (*Store, error) {
	s, err := configure(o)
	if err != nil {
		return nil, err
	}
	err = s.ready(ctx)
	if err == nil || o.Lazy && errors.Is(err, ErrUnavailable) {
		return s, nil
	}
	return nil, errors.Join(err, s.Close())
}

// ready migrates the schema once the database is there.
func (s *Store) ready(ctx context.Context) error {
	if s.opened.Load() {
		return nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return s.cannotOpen(ctx.Err())
	}
	if s.opened.Load() {
		return nil
	}
	if err := s.ping(ctx); err != nil {
		return err
	}
	if err := s.migrateUp(ctx); err != nil {
		return err
	}
	s.opened.Store(true)
	return nil
}

// ping creates the SQLite file, which a lazy Open may not have been able to.
func (s *Store) ping(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if s.file != "" {
		if err := createFile(s.file); err != nil {
			return s.cannotOpen(err)
		}
	}
	if err := s.waitForLock(ctx, func() error { return s.w.PingContext(ctx) }); err != nil {
		return s.cannotOpen(err)
	}
	return nil
}

// waitForLock calls f until SQLite does not answer that somebody else holds the
// lock. It waits for locks itself, but not for the one that turns on WAL, which
// processes that create a file together all want.
func (s *Store) waitForLock(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || s.pg != nil || !lostRace(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func createFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	// SQLite says "unable to open database file (14)"; the system says why.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// configure makes the pools; nothing is connected yet.
func configure(o Options) (*Store, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{opening: make(chan struct{}, 1), where: t.where, validate: o.Validate, log: o.Log, now: o.Now, timeout: o.Timeout}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.timeout <= 0 {
		s.timeout = 10 * time.Second
	}
	if t.pg != nil {
		s.openPostgres(t.pg, o.MaxConns)
	} else if err := s.openSQLite(t); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) cannotOpen(err error) error {
	return unavailable(fmt.Errorf("cannot open %s: %w; check that it exists and is writable, or set storage.url", s.where, scrub(err)))
}

func (s *Store) openPostgres(cfg *pgx.ConnConfig, conns int) {
	if conns <= 0 {
		conns = 10
	}
	s.pg = cfg
	s.w = handle{stdlib.OpenDB(*cfg), s.ready}
	s.w.SetMaxOpenConns(conns)
	s.w.SetMaxIdleConns(min(conns, 4))
	s.w.SetConnMaxIdleTime(5 * time.Minute)
	s.w.SetConnMaxLifetime(30 * time.Minute)
	s.r = s.w
}

func (s *Store) openSQLite(t target) error {
	s.file = t.path
	open := func(dsn string, conns int) (handle, error) {
		c, err := sqlite.NewConnector(dsn)
		if err != nil {
			return handle{}, s.cannotOpen(err)
		}
		db := sql.OpenDB(c)
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		return handle{db, s.ready}, nil
	}
	var err error
	if s.w, err = open(t.writer, 1); err != nil {
		return err
	}
	if t.path == "" { // an in-memory database lives in its one connection
		s.r = s.w
		return nil
	}
	if s.r, err = open(t.reader, 4); err != nil {
		return errors.Join(err, s.w.Close())
	}
	return nil
}

// Close ends all connections; calls in flight fail.
func (s *Store) Close() error {
	err := s.w.Close()
	if s.r.DB != s.w.DB {
		err = errors.Join(err, s.r.Close())
	}
	return err
}

// Engine is "sqlite" or "postgres".
func (s *Store) Engine() string {
	if s.pg != nil {
		return "postgres"
	}
	return "sqlite"
}

// Ping reports ErrUnavailable when the database does not answer.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var one int
	return s.wrap("ping", s.r.QueryRowContext(ctx, `SELECT 1`).Scan(&one))
}

func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// tx runs fn in a write transaction, again when the engine says that a lost
// race is the only fault. What fn wrote is gone when it returns an error.
func (s *Store) tx(ctx context.Context, op string, fn func(context.Context, *sql.Tx) error) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var err error
	for try := range 6 {
		if try > 0 {
			select {
			case <-ctx.Done():
				return s.wrap(op, err)
			case <-time.After(time.Duration(try*try) * 5 * time.Millisecond):
			}
		}
		if err = s.once(ctx, fn); err == nil || !lostRace(err) {
			return s.wrap(op, err)
		}
	}
	return fmt.Errorf("%s: %w (%s)", op, router.ErrConflict, scrub(err).Error())
}

func (s *Store) once(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	tx, err := s.w.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no-op after Commit; also when fn panics
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }
