package store

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
)

const maxBatch = 64 // rows of one statement; times 40 columns is far below both engines' limits

// inBatches calls fn with runs of rows whose lengths are powers of two, so
// that few distinct statements exist for the drivers to cache.
func inBatches(rows [][]any, fn func(values string, args []any) error) error {
	for len(rows) > 0 {
		n := maxBatch
		for n > len(rows) {
			n /= 2
		}
		args := make([]any, 0, n*len(rows[0]))
		for _, r := range rows[:n] {
			args = append(args, r...)
		}
		if err := fn(placeholders(n, len(rows[0])), args); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func placeholders(rows, cols int) string {
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
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(p))
		}
		b.WriteByte(')')
	}
	return b.String()
}

func insertAll(ctx context.Context, tx *sql.Tx, into, conflict string, rows [][]any) error {
	return inBatches(rows, func(values string, args []any) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO `+into+` VALUES `+values+` `+conflict, args...)
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
