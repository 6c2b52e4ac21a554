package store

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// target is a parsed storage URL.
type target struct {
	where          string // safe to show
	path           string // SQLite file, "" in memory
	writer, reader string // SQLite DSNs
	pg             *pgx.ConnConfig
}

func parseURL(raw string) (target, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	switch {
	case ok && scheme == "sqlite":
		return parseSQLite(rest)
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		return parsePostgres(raw)
	case raw == "":
		return target{}, errors.New(`storage.url is empty; use "sqlite:data/sluice.db" or "postgres://user@host/database"`)
	}
	// The URL may hold a password: name the scheme at most.
	if !ok {
		scheme = "none"
	}
	return target{}, fmt.Errorf(`storage.url: unknown scheme %.20q; use "sqlite:data/sluice.db" or "postgres://user@host/database"`, scheme)
}

func parseSQLite(path string) (target, error) {
	if path == ":memory:" {
		dsn := "file::memory:?" + pragmas("MEMORY", false).Encode()
		return target{where: "sqlite::memory:", writer: dsn, reader: dsn}, nil
	}
	path = strings.TrimPrefix(path, "//") // sqlite:///abs and sqlite:rel are both usual
	if path == "" || strings.ContainsAny(path, "?#\x00") {
		return target{}, fmt.Errorf("storage.url: %q is not a file path; use \"sqlite:data/sluice.db\"", path)
	}
	path = filepath.Clean(path)
	name := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String()
	return target{
		where: path, path: path,
		writer: name + "?" + pragmas("WAL", false).Encode(),
		reader: name + "?" + pragmas("WAL", true).Encode(),
	}, nil
}

// pragmas gives the driver's settings; the writer begins every transaction
// IMMEDIATE, so that it waits for the lock at the start and never half way.
func pragmas(journal string, reader bool) url.Values {
	q := url.Values{}
	for _, p := range []string{"busy_timeout(5000)", "journal_mode(" + journal + ")", "synchronous(NORMAL)", "foreign_keys(1)"} {
		q.Add("_pragma", p)
	}
	if reader {
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Set("_txlock", "immediate")
	}
	return q
}

func parsePostgres(raw string) (target, error) {
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		// The driver's message quotes parts of the URL.
		return target{}, errors.New("storage.url is not a valid PostgreSQL URL; use postgres://user:password@host:5432/database?sslmode=…, with special characters of the password percent-encoded")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 5 * time.Second
	}
	set := func(k, v string) {
		if _, ok := cfg.RuntimeParams[k]; !ok {
			cfg.RuntimeParams[k] = v
		}
	}
	set("application_name", "sluice")
	// A replica that is cut off in the middle of a commit must not hold the
	// head's lock until TCP notices.
	set("idle_in_transaction_session_timeout", "15000")
	set("lock_timeout", "5000")
	return target{where: fmt.Sprintf("postgres://%s:%d/%s", cfg.Host, cfg.Port, cfg.Database), pg: cfg}, nil
}
