package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"sluice/internal/config"
	"sluice/internal/demo"
)

// demoUsers is how many synthetic users talk.
const demoUsers = 500

// runDemo runs the gateway with built-in upstreams and users, on loopback, in a
// temporary directory.
func runDemo(ctx context.Context, o demoOptions) error {
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return err
	}
	if o.Keep {
		fmt.Fprintln(o.Stderr, "everything is kept in", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	d, err := demo.Start()
	if err != nil {
		return err
	}
	defer d.Close()
	cfg := config.Default()
	cfg.Server.Listen = fmt.Sprintf("127.0.0.1:%d", o.Port)
	cfg.Admin.Listen = fmt.Sprintf("127.0.0.1:%d", o.AdminPort)
	cfg.Storage.URL = config.SecretURL("sqlite:" + filepath.Join(dir, "sluice.db"))
	cfg.DataDir = dir
	cfg.Log.Format, cfg.Log.Level, cfg.Log.Access = "text", "warn", "off"
	a, err := newApp(ctx, cfg, appOptions{stdout: o.Stdout, stderr: o.Stderr, version: o.Version, seed: d.Document(), extra: d.Handler(), badge: "DEMO"})
	if err != nil {
		return err
	}
	defer a.close(context.WithoutCancel(ctx))
	users, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	err = a.run(ctx, func(data, adm net.Addr) {
		demoBanner(o.Stdout, o.Version, data.String(), adm.String())
		if o.Rate > 0 {
			wg.Go(func() {
				demo.Traffic{BaseURL: "http://" + data.String() + "/v1", Key: "none", Users: demoUsers, Rate: o.Rate, Models: demo.Models}.Run(users)
			})
		}
	})
	stop()
	wg.Wait()
	return err
}

func demoBanner(w io.Writer, version, data, adm string) {
	fmt.Fprintf(w, `
  sluice %s demo: everything here is fake and stays on this machine

  UI        http://%s/ui
  API       http://%s/v1     (no key needed)
  Try       curl -N http://%s/v1/chat/completions -d '{"model":"chat","stream":true,"user":"me","messages":[{"role":"user","content":"hi"}]}'
  Split     sluice experiment set-weights chat-small-vs-large small=50 large=50
  Roll back sluice experiment rollback chat-small-vs-large
  Ramp      sluice experiment watch assist-large        a canary that grows by itself, in minutes
  Break it  sluice demo break large --how 400           and see it rolled back; heal it: sluice demo heal large
            sluice demo break --all                     an outage of both: the ramp holds and blames nobody
  Metrics   http://%s/metrics

  Ctrl-C ends it and leaves nothing behind.

`, version, adm, data, data, adm)
}
