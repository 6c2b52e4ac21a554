package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/metrics"
)

// Usage is asked and answered in these.
type (
	UsageQuery = metrics.UsageQuery
	UsageRow   = metrics.UsageRow
)

var (
	minuteDims = map[string]string{"model": "model", "experiment": "experiment", "variant": "variant", "role": "role"}
	hourDims   = map[string]string{"model": "model", "experiment": "experiment", "variant": "variant", "role": "role",
		"tenant": "tenant", "key": "key_id", "upstream": "upstream"}
	timeDims = map[string]int64{"minute": 1, "hour": 60, "day": 1440}
)

// Usage sums the rollups: never the ledger, so that it stays fast and complete
// when old events are gone.
func (s *Store) Usage(ctx context.Context, q UsageQuery) (rows []UsageRow, truncated bool, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	query, args, err := usageSQL(q, s.now())
	if err != nil {
		return nil, false, err
	}
	limit := q.Limit
	if limit < 1 || limit > 10000 {
		limit = 1000
	}
	rs, err := s.r.QueryContext(ctx, query+fmt.Sprintf(" LIMIT %d", limit+1), args...)
	if err != nil {
		return nil, false, s.wrap("read usage", err)
	}
	defer rs.Close()
	for rs.Next() {
		if len(rows) == limit {
			return rows, true, nil
		}
		r, err := scanUsage(rs, q.GroupBy)
		if err != nil {
			return nil, false, s.wrap("read usage", err)
		}
		rows = append(rows, r)
	}
	return rows, false, s.wrap("read usage", rs.Err())
}

func usageSQL(q UsageQuery, now time.Time) (string, []any, error) {
	dims, table, column, unit := minuteDims, "rollups", "minute", int64(1)
	names := slices.Concat(q.GroupBy, sortedKeys(q.Filter))
	for _, n := range names {
		if minuteDims[n] == "" && hourDims[n] != "" {
			dims, table, column, unit = hourDims, "usage_hours", "hour", 60
		}
	}
	if q.Until.IsZero() {
		q.Until = now
	}
	from, to := int64(0), unixMinute(q.Until)
	if !q.Since.IsZero() {
		from = unixMinute(q.Since)
		from -= ((from % unit) + unit) % unit
	}
	args := []any{from, to}
	where := " WHERE " + column + " >= $1 AND " + column + " <= $2"
	for _, n := range sortedKeys(q.Filter) {
		if dims[n] == "" {
			return "", nil, fmt.Errorf("usage: unknown filter %q; use model, experiment, variant, role, tenant, key or upstream", n)
		}
		args = append(args, text(q.Filter[n]))
		where += fmt.Sprintf(" AND %s = $%d", dims[n], len(args))
	}
	var group []string
	for _, n := range q.GroupBy {
		switch {
		case dims[n] != "":
			group = append(group, dims[n])
		case timeDims[n] >= unit:
			group = append(group, fmt.Sprintf("%s - %s %% %d", column, column, timeDims[n]))
		default:
			return "", nil, fmt.Errorf("usage: cannot group by %q here; use model, experiment, variant, role, tenant, key, upstream, hour, day, or minute without the last three", n)
		}
	}
	errs := "coalesce(sum(CASE WHEN outcome LIKE 'upstream!_%' ESCAPE '!' OR outcome IN ('no_endpoint', 'queue_full', 'internal_error') THEN requests ELSE 0 END), 0)"
	if table == "usage_hours" {
		errs = bigint("errors")
	}
	cols := append(slices.Clone(group), bigint("requests"), errs)
	for _, c := range sumColumns {
		cols = append(cols, bigint(c))
	}
	query := "SELECT " + strings.Join(cols, ", ") + " FROM " + table + where
	if len(group) > 0 {
		ordinals := make([]string, len(group))
		for i := range group {
			ordinals[i] = fmt.Sprint(i + 1)
		}
		query += " GROUP BY " + strings.Join(ordinals, ", ") + " ORDER BY " + strings.Join(ordinals, ", ")
	}
	return query, args, nil
}

// bigint sums a column; PostgreSQL's sum of BIGINT is a NUMERIC.
func bigint(column string) string { return "CAST(coalesce(sum(" + column + "), 0) AS BIGINT)" }

func scanUsage(rs *sql.Rows, by []string) (UsageRow, error) {
	r := UsageRow{Group: make(map[string]string, len(by))}
	dst := make([]any, 0, len(by)+12)
	names := make([]string, len(by))
	times := make([]int64, len(by))
	for i, n := range by {
		if timeDims[n] > 0 {
			dst = append(dst, &times[i])
		} else {
			dst = append(dst, &names[i])
		}
	}
	var priced int64
	dst = append(dst, &r.Requests, &r.Errors, &r.Attempts, &r.Metered, &r.Estimated, &priced, &r.Input, &r.Cached,
		&r.CacheWrite, &r.Output, &r.Reasoning, &r.CostNano)
	if err := rs.Scan(dst...); err != nil {
		return r, err
	}
	r.Unpriced = r.Metered - priced
	for i, n := range by {
		if timeDims[n] > 0 {
			names[i] = time.Unix(times[i]*60, 0).UTC().Format(time.RFC3339)
		}
		r.Group[n] = names[i]
	}
	return r, nil
}

// Totals are sums over the whole ledger, for reconciliation.
type Totals struct {
	Requests, Attempts                                    int64
	Input, Cached, CacheWrite, Output, Reasoning          int64
	CostNano                                              int64 // of the priced attempts
	Metered, Estimated, Unpriced                          int64 // attempts
	Outcomes                                              map[string]int64
	RollupRequests, RollupInput, RollupOutput, RollupCost int64 // the same from the minute rollups
}

// Totals reads events and rollups; it is slow on a long ledger.
func (s *Store) Totals(ctx context.Context) (Totals, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	t := Totals{Outcomes: map[string]int64{}}
	var cols []string
	for _, c := range []string{"attempts", "input_tokens", "cached_tokens", "cache_write", "output_tokens", "reasoning", "cost_nano"} {
		cols = append(cols, bigint(c))
	}
	err := s.r.QueryRowContext(ctx, "SELECT "+strings.Join(cols, ", ")+" FROM events").Scan(
		&t.Attempts, &t.Input, &t.Cached, &t.CacheWrite, &t.Output, &t.Reasoning, &t.CostNano)
	if err != nil {
		return t, s.wrap("read totals", err)
	}
	err = s.r.QueryRowContext(ctx, "SELECT "+strings.Join([]string{
		bigint("requests"), bigint("input_tokens"), bigint("output_tokens"), bigint("cost_nano"),
		bigint("metered"), bigint("estimated"), bigint("metered - priced")}, ", ")+" FROM rollups").Scan(
		&t.RollupRequests, &t.RollupInput, &t.RollupOutput, &t.RollupCost, &t.Metered, &t.Estimated, &t.Unpriced)
	if err != nil {
		return t, s.wrap("read totals", err)
	}
	rs, err := s.r.QueryContext(ctx, "SELECT outcome, count(*) FROM events GROUP BY outcome")
	if err != nil {
		return t, s.wrap("read totals", err)
	}
	defer rs.Close()
	for rs.Next() {
		var o string
		var n int64
		if err := rs.Scan(&o, &n); err != nil {
			return t, s.wrap("read totals", err)
		}
		t.Outcomes[o] = n
		t.Requests += n
	}
	return t, s.wrap("read totals", rs.Err())
}
