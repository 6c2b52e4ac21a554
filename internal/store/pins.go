package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"

	"sluice/experiment"
	"sluice/internal/sticky"
)

var _ sticky.PinBackup = (*Store)(nil)

const pinColumns = "experiment, field, shard, variant, generation, revision, flags"

// Of two copies the higher generation stays, then the later revision modulo
// 2^32: the difference, seen as a signed 32-bit number, is not negative.
const pinConflict = `ON CONFLICT (experiment, field) DO UPDATE SET shard = excluded.shard, variant = excluded.variant,
	generation = excluded.generation, revision = excluded.revision, flags = excluded.flags
	WHERE excluded.generation > pins.generation OR (excluded.generation = pins.generation
		AND (excluded.revision - pins.revision + 4294967296) % 4294967296 < 2147483648)`

// SavePins implements sticky.PinBackup; of two copies of one unit the newer stays.
func (s *Store) SavePins(ctx context.Context, pins []sticky.PinRecord) error {
	newest := map[[2]string]sticky.PinRecord{}
	for _, p := range pins {
		k := [2]string{text(p.Experiment), hex.EncodeToString(p.Field[:])}
		if old, ok := newest[k]; !ok || p.Pin.Gen > old.Pin.Gen ||
			p.Pin.Gen == old.Pin.Gen && int32(p.Pin.Revision-old.Pin.Revision) >= 0 {
			newest[k] = p
		}
	}
	var rows [][]any
	for k, p := range newest {
		rows = append(rows, []any{k[0], k[1], int64(p.Shard), int64(p.Pin.Variant), int64(p.Pin.Gen), int64(p.Pin.Revision), int64(p.Pin.Flags)})
	}
	slices.SortFunc(rows, func(a, b []any) int { return compareKey(a[:2], b[:2]) })
	return s.tx(ctx, "save pins", func(ctx context.Context, tx *sql.Tx) error {
		return s.insertAll(ctx, tx, "pins ("+pinColumns+")", pinConflict, rows)
	})
}

// LoadPins implements sticky.PinBackup with batches of at most 1,000, so that
// no read lasts long.
func (s *Store) LoadPins(ctx context.Context, yield func([]sticky.PinRecord) error) error {
	exp, field := "", ""
	for {
		batch, err := s.pinsAfter(ctx, exp, field)
		if err != nil {
			return s.wrap("load pins", err)
		}
		if len(batch) == 0 {
			return nil
		}
		last := batch[len(batch)-1]
		exp, field = last.Experiment, hex.EncodeToString(last.Field[:])
		if err := yield(batch); err != nil {
			return err
		}
	}
}

func (s *Store) pinsAfter(ctx context.Context, exp, field string) ([]sticky.PinRecord, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rs, err := s.r.QueryContext(ctx, `SELECT `+pinColumns+` FROM pins
		WHERE experiment > $1 OR (experiment = $1 AND field > $2) ORDER BY experiment, field LIMIT 1000`, exp, field)
	if err != nil {
		return nil, err
	}
	defer rs.Close()
	var out []sticky.PinRecord
	for rs.Next() {
		var r sticky.PinRecord
		var f string
		var p experiment.Pin
		if err := rs.Scan(&r.Experiment, &f, &r.Shard, &p.Variant, &p.Gen, &p.Revision, &p.Flags); err != nil {
			return nil, err
		}
		b, err := hex.DecodeString(f)
		if err != nil || len(b) != len(r.Field) {
			return nil, fmt.Errorf("stored pin %s/%q is not 8 bytes of hex", r.Experiment, f)
		}
		copy(r.Field[:], b)
		r.Pin = p
		out = append(out, r)
	}
	return out, rs.Err()
}

// DropPins implements sticky.PinBackup.
func (s *Store) DropPins(ctx context.Context, exp string) error {
	return s.tx(ctx, "drop pins", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM pins WHERE experiment = $1`, text(exp))
		return err
	})
}
