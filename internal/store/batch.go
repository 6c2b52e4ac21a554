package store

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
)

// Rows of one statement; times 40 columns is far below both engines' limits.
// PostgreSQL saves round trips, SQLite gains nothing above 16.
const (
	maxBatchSQLite   = 16
	maxBatchPostgres = 64
)

// statement is one INSERT of a batch. SQLite parses it once for a transaction;
// pgx keeps parsed statements by their text anyway.
type statement struct {
	tx   *sql.Tx
	text string
	stmt *sql.Stmt // nil on PostgreSQL
}

// exec answers how many rows it wrote.
func (st *statement) exec(ctx context.Context, args []any) (int64, error) {
	var res sql.Result
	var err error
	if st.stmt != nil {
		res, err = st.stmt.ExecContext(ctx, args...)
	} else {
		res, err = st.tx.ExecContext(ctx, st.text, args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (st *statement) query(ctx context.Context, args []any) (*sql.Rows, error) {
	if st.stmt != nil {
		return st.stmt.QueryContext(ctx, args...)
	}
	return st.tx.QueryContext(ctx, st.text, args...)
}

// inBatches calls fn with runs of rows whose lengths are powers of two, so
// that few distinct statements exist. The text is into, VALUES, then rest.
func (s *Store) inBatches(ctx context.Context, tx *sql.Tx, into, rest string, rows [][]any, fn func(st *statement, args []any) error) error {
	limit := maxBatchSQLite
	if s.pg != nil {
		limit = maxBatchPostgres
	}
	var st *statement // of the last length; lengths only fall
	last := 0
	for len(rows) > 0 {
		n := limit
		for n > len(rows) {
			n /= 2
		}
		if n != last {
			next := &statement{tx: tx, text: "INSERT INTO " + into + " VALUES " + placeholders(n, len(rows[0]), s.pg != nil) + " " + rest}
			if s.pg == nil {
				stmt, err := tx.PrepareContext(ctx, next.text)
				if err != nil {
					return err
				}
				defer stmt.Close() // at most one for each power of two
				next.stmt = stmt
			}
			st, last = next, n
		}
		args := make([]any, 0, n*len(rows[0]))
		for _, r := range rows[:n] {
			args = append(args, r...)
		}
		if err := fn(st, args); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// placeholders are numbered for PostgreSQL. For SQLite $1 is a name, which it
// looks up one by one: with a thousand of them an insert costs 10 times as much
// as with plain question marks.
func placeholders(rows, cols int, numbered bool) string {
	var b strings.Builder
	p := 0
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		for j := range cols {
			p++
			if j == 0 {
				b.WriteByte('(')
			} else {
				b.WriteByte(',')
			}
			if numbered {
				b.WriteByte('$')
				b.WriteString(strconv.Itoa(p))
			} else {
				b.WriteByte('?')
			}
		}
		b.WriteByte(')')
	}
	return b.String()
}

func (s *Store) insertAll(ctx context.Context, tx *sql.Tx, into, conflict string, rows [][]any) error {
	return s.inBatches(ctx, tx, into, conflict, rows, func(st *statement, args []any) error {
		_, err := st.exec(ctx, args)
		return err
	})
}

// adding gives the ON CONFLICT clause of an additive table.
func adding(table, key string, sums []string) string {
	var b strings.Builder
	b.WriteString("ON CONFLICT (" + key + ") DO UPDATE SET ")
	for i, c := range sums {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(c + " = " + table + "." + c + " + excluded." + c)
	}
	return b.String()
}
