package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
)

// Sentinels of this package; router.ErrConflict is the fourth.
var (
	// ErrUnavailable reports that the database cannot be reached or written
	// now; the caller degrades and tries again.
	ErrUnavailable = errors.New("database unavailable")
	// ErrNewerSchema reports a database that a newer release has migrated.
	ErrNewerSchema = errors.New("database schema is newer than this binary")
	// ErrNotFound reports a revision or row that does not exist.
	ErrNotFound = errors.New("not found")
)

// unavailableError matches ErrUnavailable; packages that cannot import this
// one ask for the method.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error        { return e.error }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e unavailableError) Unavailable() bool    { return true }

func unavailable(err error) error { return unavailableError{err} }

// wrap adds the operation to a database error and marks it as ErrUnavailable
// where the engine, not the request, is at fault.
func (s *Store) wrap(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnavailable):
		return err
	case isUnavailable(err):
		return unavailable(fmt.Errorf("%s: database %s: %w", op, s.where, scrub(err)))
	}
	return fmt.Errorf("%s: %w", op, err)
}

func isUnavailable(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code[:2] {
		case "08", "53", "57", "58", "XX": // connection, resources, operator, system, internal
			return true
		}
		return pe.Code == "25006" || pe.Code == "25P03" // read-only standby, idle in transaction
	}
	var se *sqlite.Error
	if errors.As(err, &se) {
		switch se.Code() & 0xff {
		case 5, 6, 7, 8, 10, 11, 13, 14, 26: // busy locked nomem readonly ioerr corrupt full cantopen notadb
			return true
		}
		return false
	}
	var ce *pgconn.ConnectError
	var ne net.Error
	return errors.As(err, &ce) || errors.As(err, &ne) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, sql.ErrConnDone) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err)
}

// lostRace reports errors after which the same transaction may succeed.
func lostRace(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code == "40001" || pe.Code == "40P01" || pe.Code == "55P03"
	}
	var se *sqlite.Error
	if errors.As(err, &se) {
		return se.Code()&0xff == 5
	}
	// Nothing was sent yet: a pooled connection that died while idle.
	return pgconn.SafeToRetry(err)
}

// scrub cuts what a driver may quote of its connection string.
func scrub(err error) error {
	var pe *pgconn.ParseConfigError
	if errors.As(err, &pe) {
		return errors.New("invalid connection settings")
	}
	return err
}
