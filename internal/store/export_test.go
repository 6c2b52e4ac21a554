package store

import "database/sql"

// ExecForTest runs SQL that no part of the product runs.
func ExecForTest(s *Store, query string, args ...any) (sql.Result, error) {
	return s.w.Exec(query, args...)
}

// ScanForTest reads one value.
func ScanForTest(s *Store, dst any, query string, args ...any) error {
	return s.w.QueryRow(query, args...).Scan(dst)
}
