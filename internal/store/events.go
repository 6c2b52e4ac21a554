package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"sluice/metrics"
)

var eventColumns = []string{
	"request_id", "created_at", "client_request_id", "api", "model", "experiment", "generation", "assigned", "served",
	"version", "role", "source", "bucket", "reason", "revision", "unit", "analysed", "key_id", "tenant", "upstream",
	"endpoint", "outcome", "status", "stream", "ttft", "duration", "overhead", "finish_reason", "retry_count", "attempts",
	"input_tokens", "cached_tokens", "cache_write", "output_tokens", "reasoning", "cost_nano", "estimated",
}

var attemptColumns = []string{
	"request_id", "n", "started_at", "variant", "upstream", "endpoint", "outcome", "status", "duration", "reason",
	"input_tokens", "cached_tokens", "cache_write", "output_tokens", "reasoning", "cost_nano", "estimated",
}

var (
	intoEvents    = "events (" + strings.Join(eventColumns, ", ") + ")"
	intoAttempts  = "attempts (" + strings.Join(attemptColumns, ", ") + ")"
	intoExposures = "exposures (experiment, generation, unit, variant, revision, created_at)"
)

// WriteEvents stores a batch in one transaction: ledger, attempts, rollups and
// first exposures. It is idempotent by request id, also within the batch: an
// event that is already stored changes nothing. Events without a request id
// are skipped.
func (s *Store) WriteEvents(ctx context.Context, evs []metrics.Event) error {
	batch := make(map[string]*metrics.Event, len(evs))
	var rows [][]any
	for i := range evs {
		e := &evs[i]
		id := text(e.RequestID)
		if id == "" || batch[id] != nil {
			continue
		}
		batch[id] = e
		rows = append(rows, eventRow(id, e))
	}
	if len(rows) == 0 {
		return nil
	}
	// In the order of their ids, so that writers of overlapping batches wait for
	// each other instead of locking each other out.
	slices.SortFunc(rows, func(a, b []any) int { return strings.Compare(a[0].(string), b[0].(string)) })
	err := s.writeBatch(ctx, batch, rows, s.insertNew)
	if errors.Is(err, errStored) {
		return s.writeBatch(ctx, batch, rows, s.insertMissing)
	}
	return err
}

// errStored says that a row of the batch is stored already: an earlier commit
// whose answer was lost. It is rare, and finding out which is what costs.
var errStored = errors.New("an event is stored already")

// insertFunc stores rows and answers the ids of those that were not there before.
type insertFunc func(ctx context.Context, tx *sql.Tx, rows [][]any) (fresh []string, err error)

func (s *Store) writeBatch(ctx context.Context, batch map[string]*metrics.Event, rows [][]any, insert insertFunc) error {
	var sums *rollup
	err := s.tx(ctx, "write events", func(ctx context.Context, tx *sql.Tx) error {
		fresh, err := insert(ctx, tx, rows)
		if err != nil {
			return err
		}
		sums = newRollup(&s.exposed)
		var attempts [][]any
		for _, id := range fresh {
			e := batch[id]
			if !plainCall(e) {
				for n := range e.Attempts {
					attempts = append(attempts, attemptRow(id, n, &e.Attempts[n]))
				}
			}
			sums.add(e)
		}
		if err := s.insertAll(ctx, tx, intoAttempts, "", attempts); err != nil {
			return err
		}
		return sums.write(ctx, s, tx)
	})
	if err == nil {
		s.exposed.add(sums.exposures)
	}
	return err
}

// plainCall reports whether the request made one call of which everything but
// its start is in the request's own row.
func plainCall(e *metrics.Event) bool {
	if len(e.Attempts) != 1 {
		return false
	}
	a := &e.Attempts[0]
	return a.Outcome == e.Outcome && a.Upstream == e.Upstream && a.Endpoint == e.Endpoint && a.Variant == e.Served && a.Reason == ""
}

// insertNew expects every row to be new, and fails with errStored when one is not.
func (s *Store) insertNew(ctx context.Context, tx *sql.Tx, rows [][]any) (fresh []string, err error) {
	var stored int64
	err = s.inBatches(ctx, tx, intoEvents, "ON CONFLICT (request_id) DO NOTHING", rows, func(st *statement, args []any) error {
		n, err := st.exec(ctx, args)
		stored += n
		return err
	})
	if err == nil && stored != int64(len(rows)) {
		return nil, errStored
	}
	for _, r := range rows {
		fresh = append(fresh, r[0].(string))
	}
	return fresh, err
}

// insertMissing lets the database say which rows were new.
func (s *Store) insertMissing(ctx context.Context, tx *sql.Tx, rows [][]any) (fresh []string, err error) {
	const rest = "ON CONFLICT (request_id) DO NOTHING RETURNING request_id"
	err = s.inBatches(ctx, tx, intoEvents, rest, rows, func(st *statement, args []any) error {
		rs, err := st.query(ctx, args)
		if err != nil {
			return err
		}
		defer rs.Close()
		for rs.Next() {
			var id string
			if err := rs.Scan(&id); err != nil {
				return err
			}
			fresh = append(fresh, id)
		}
		return rs.Err()
	})
	return fresh, err
}

func eventRow(id string, e *metrics.Event) []any {
	t := total(e)
	unit := ""
	if e.HasUnit {
		unit = hex.EncodeToString(e.Unit[:])
	}
	row := []any{
		id, micros(e.Time), text(e.ClientRequestID), text(e.API), text(e.Model), text(e.Experiment), int64(e.Generation),
		text(e.Assigned), text(e.Served), text(e.Version), role(e), text(e.Source), int64(e.Bucket), text(e.Reason), e.Revision,
		unit, flag(e.Analysed), text(e.KeyID), text(e.Tenant), text(e.Upstream), text(e.Endpoint), text(e.Outcome),
		int64(e.Status), flag(e.Stream), nullIf(e.TTFT <= 0, e.TTFT.Microseconds()), e.Duration.Microseconds(),
		e.Overhead.Microseconds(), text(e.FinishReason), int64(e.RetryCount), int64(len(e.Attempts)),
	}
	return append(row, tokens(t.metered > 0, t.input, t.cached, t.cacheWrite, t.output, t.reasoning,
		nullIf(t.priced == 0, t.cost), t.estimated > 0)...)
}

func attemptRow(id string, n int, a *metrics.Attempt) []any {
	row := []any{
		id, int64(n), micros(a.Start), text(a.Variant), text(a.Upstream), text(a.Endpoint), text(a.Outcome), int64(a.Status),
		a.Duration.Microseconds(), text(a.Reason),
	}
	return append(row, tokens(a.HasUsage, a.Input, a.Cached, a.CacheWr, a.Output, a.Reasoning,
		nullIf(!a.Priced, a.CostNano), a.HasUsage && a.Estimated)...)
}

func tokens(metered bool, in, cached, cacheWrite, out, reasoning int64, cost any, estimated bool) []any {
	n := !metered
	return []any{nullIf(n, in), nullIf(n, cached), nullIf(n, cacheWrite), nullIf(n, out), nullIf(n, reasoning), cost, flag(estimated)}
}

// sums are additive counts of tokens and money; metered, estimated and priced
// count attempts with usage.
type sums struct {
	attempts, metered, estimated, priced         int64
	input, cached, cacheWrite, output, reasoning int64
	cost                                         int64 // nano-USD of the priced attempts
}

func (t *sums) add(a *metrics.Attempt) {
	t.attempts++
	if a.HasUsage {
		t.metered++
		t.input += a.Input
		t.cached += a.Cached
		t.cacheWrite += a.CacheWr
		t.output += a.Output
		t.reasoning += a.Reasoning
		if a.Estimated {
			t.estimated++
		}
	}
	if a.Priced {
		t.cost += a.CostNano
		if a.HasUsage {
			t.priced++
		}
	}
}

func total(e *metrics.Event) sums {
	var t sums
	for i := range e.Attempts {
		t.add(&e.Attempts[i])
	}
	return t
}

func role(e *metrics.Event) string {
	if e.Role == "" {
		return "primary"
	}
	return text(e.Role)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func nullIf(null bool, v int64) any {
	if null {
		return nil
	}
	return v
}

func unixMinute(t time.Time) int64 {
	sec := t.Unix()
	return (sec - ((sec%60)+60)%60) / 60
}
