package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"sluice/migrations"
)

// Migration is one step of the schema.
type Migration struct {
	Version   int64
	Name      string
	Applied   bool
	AppliedAt time.Time // zero when not applied
}

// provider has the lock of PostgreSQL's session, so that replicas that start
// together migrate one after the other; SQLite's writer is exclusive anyway.
func (s *Store) provider() (*goose.Provider, error) {
	dialect := goose.DialectSQLite3
	opts := []goose.ProviderOption{goose.WithSlog(s.log), goose.WithDisableGlobalRegistry(true)}
	if s.pg != nil {
		dialect = goose.DialectPostgres
		l, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120))
		if err != nil {
			return nil, err
		}
		opts = append(opts, goose.WithSessionLocker(l))
	}
	return goose.NewProvider(dialect, s.w.DB, migrations.FS, opts...)
}

func newest(p *goose.Provider) int64 {
	var v int64
	for _, src := range p.ListSources() {
		v = max(v, src.Version)
	}
	return v
}

func (s *Store) migrateUp(ctx context.Context) error {
	p, err := s.provider()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := s.checkSchema(ctx, p); err != nil {
		return err
	}
	if _, err := s.up(ctx, p); err != nil {
		return s.wrap("migrate", err)
	}
	return s.checkSchema(ctx, p) // a newer replica may have migrated in between
}

// up applies what is missing. SQLite has no lock over several migrations, only
// over each: who loses a race finds the table there, and at the next try that
// nothing is missing.
func (s *Store) up(ctx context.Context, p *goose.Provider) (done []*goose.MigrationResult, err error) {
	lock, cancel := s.bound(ctx)
	defer cancel()
	for try := range 5 {
		err = s.waitForLock(lock, func() error { done, err = p.Up(ctx); return err })
		if err == nil || s.pg != nil || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
	}
	return done, err
}

func (s *Store) checkSchema(ctx context.Context, p *goose.Provider) error {
	v, err := p.GetDBVersion(ctx)
	if err != nil {
		return s.wrap("read schema version", err)
	}
	if v > newest(p) {
		return fmt.Errorf("%w: %s has schema %d, this binary knows %d; start the newer release, or take the schema back with its \"sluice migrate down\"",
			ErrNewerSchema, s.where, v, newest(p))
	}
	return nil
}

// Migrate changes the schema: direction "up" to the newest version, "down" by
// one step, which drops that step's tables with their rows. It answers the
// versions that were applied or taken back.
func Migrate(ctx context.Context, o Options, direction string) (ms []Migration, err error) {
	err = withSchema(ctx, o, "migrate", func(s *Store, p *goose.Provider) error {
		var done []*goose.MigrationResult
		var err error
		switch direction {
		case "up":
			done, err = s.up(ctx, p)
		case "down":
			var r *goose.MigrationResult
			if r, err = p.Down(ctx); r != nil {
				done = append(done, r)
			}
			if errors.Is(err, goose.ErrNoNextVersion) {
				err = nil
			}
		default:
			return fmt.Errorf("migrate: unknown direction %q; use up or down", direction)
		}
		if err != nil {
			return s.wrap("migrate "+direction, err)
		}
		for _, r := range done {
			ms = append(ms, Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: direction == "up"})
		}
		return nil
	})
	return ms, err
}

// MigrationStatus lists the steps that this binary knows, oldest first. It
// changes nothing but the empty bookkeeping table of a new database.
func MigrationStatus(ctx context.Context, o Options) (ms []Migration, err error) {
	err = withSchema(ctx, o, "migration status", func(s *Store, p *goose.Provider) error {
		list, err := p.Status(ctx)
		if err != nil {
			return s.wrap("migration status", err)
		}
		for _, st := range list {
			m := Migration{Version: st.Source.Version, Name: st.Source.Path, Applied: st.State == goose.StateApplied}
			if m.Applied {
				m.AppliedAt = st.AppliedAt.UTC()
			}
			ms = append(ms, m)
		}
		return nil
	})
	return ms, err
}

// withSchema calls f on a database whose schema is not newer than this binary.
func withSchema(ctx context.Context, o Options, op string, f func(*Store, *goose.Provider) error) error {
	s, err := configure(o)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.ping(ctx); err != nil {
		return err
	}
	p, err := s.provider()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := s.checkSchema(ctx, p); err != nil {
		return err
	}
	return f(s, p)
}
