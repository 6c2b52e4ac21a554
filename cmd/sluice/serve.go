package main

import (
	"context"
	"net"

	"sluice/internal/config"
)

// runServe runs the gateway until ctx ends.
func runServe(ctx context.Context, cfg *config.Config, o serveOptions) error {
	a, err := newApp(ctx, cfg, appOptions{stdout: o.Stdout, stderr: o.Stderr, version: o.Version, seed: cfg.Resources})
	if err != nil {
		return err
	}
	defer a.close(context.WithoutCancel(ctx))
	return a.run(ctx, func(net.Addr, net.Addr) {})
}
