// Package migrations holds the embedded SQL, one text for SQLite and PostgreSQL.
package migrations

import "embed"

// FS has the goose migrations at its root.
//
//go:embed *.sql
var FS embed.FS
