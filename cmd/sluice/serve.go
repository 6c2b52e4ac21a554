package main

import (
	"context"
	"fmt"
	"net"

	"sluice/internal/config"
	"sluice/internal/store"
)

// runServe runs the gateway until ctx ends.
func runServe(ctx context.Context, cfg *config.Config, o serveOptions) error {
	if o.NoMigrate {
		if err := refuseOldSchema(ctx, cfg); err != nil {
			return err
		}
	}
	a, err := newApp(ctx, cfg, appOptions{stdout: o.Stdout, stderr: o.Stderr, version: o.Version, seed: cfg.Resources})
	if err != nil {
		return err
	}
	defer a.close(context.WithoutCancel(ctx))
	return a.run(ctx, func(net.Addr, net.Addr) {})
}

// refuseOldSchema is --no-migrate: somebody else migrates, and before this start.
func refuseOldSchema(ctx context.Context, cfg *config.Config) error {
	list, err := store.MigrationStatus(ctx, store.Options{URL: cfg.Storage.URL.Reveal()})
	if err != nil {
		return err
	}
	for _, m := range list {
		if !m.Applied {
			return fmt.Errorf("the database lacks migration %d (%s); run sluice migrate up, or start without --no-migrate", m.Version, m.Name)
		}
	}
	return nil
}
