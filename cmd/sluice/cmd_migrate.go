package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/store"
)

// migration is a row of the results of migrate.
type migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

func migrateCommand(a *cli) *cobra.Command {
	cmd := group(&cobra.Command{Use: "migrate", Short: "Bring the database's schema up or down (serve runs `up` itself)"})
	step := func(use, short string, run func(*cobra.Command, store.Options) ([]store.Migration, error)) *cobra.Command {
		var s settingsFlags
		c := &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.load(a, defaultFile())
			if err != nil {
				return err
			}
			if err := c.Validate(); err != nil {
				return err
			}
			a.note("database: %s", c.Storage.URL)
			list, err := run(cmd, store.Options{URL: c.Storage.URL.Reveal()})
			if err != nil {
				return err
			}
			return a.printMigrations(list)
		}}
		s.configFlag(c)
		return c
	}
	up := step("up", "Apply every step that is missing", func(cmd *cobra.Command, o store.Options) ([]store.Migration, error) {
		return store.Migrate(cmd.Context(), o, "up")
	})
	status := step("status", "List the steps", func(cmd *cobra.Command, o store.Options) ([]store.Migration, error) {
		return store.MigrationStatus(cmd.Context(), o)
	})
	var steps int
	down := step("down", "Take steps back; their tables are dropped with all rows", func(cmd *cobra.Command, o store.Options) ([]store.Migration, error) {
		if steps < 1 {
			return nil, usagef("--steps is missing: say how many steps to take back, with the loss of their data")
		}
		var all []store.Migration
		for range steps {
			one, err := store.Migrate(cmd.Context(), o, "down")
			if all = append(all, one...); err != nil || len(one) == 0 {
				return all, err
			}
		}
		return all, nil
	})
	down.Flags().IntVar(&steps, "steps", 0, "how many steps to take back")
	cmd.AddCommand(up, status, down)
	return cmd
}

func (a *cli) printMigrations(list []store.Migration) error {
	rows := []migration{}
	for _, m := range list {
		rows = append(rows, migration(m))
	}
	return a.print(rows, func(w io.Writer) {
		if len(rows) == 0 {
			fmt.Fprintln(w, "nothing to do")
			return
		}
		row(w, "VERSION", "NAME", "APPLIED")
		for _, m := range rows {
			applied := "no"
			if m.Applied {
				applied = "yes"
			}
			if !m.AppliedAt.IsZero() {
				applied = m.AppliedAt.Format(time.RFC3339)
			}
			row(w, m.Version, m.Name, applied)
		}
	})
}
