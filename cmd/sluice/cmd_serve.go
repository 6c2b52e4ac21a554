package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/config"
)

// serveOptions is what `sluice serve` hands to the wiring beside the settings.
type serveOptions struct {
	NoMigrate      bool // refuse an old schema instead of migrating it
	Version        string
	Stdout, Stderr io.Writer
}

// demoOptions is what `sluice demo` hands to the wiring.
type demoOptions struct {
	Port, AdminPort int           // 0: any free one
	Rate            float64       // requests a second of the synthetic users
	Duration        time.Duration // 0: until interrupted
	Keep            bool          // keep the temporary directory
	Version         string
	Stdout, Stderr  io.Writer
}

func serveCommand(a *cli) *cobra.Command {
	var s settingsFlags
	var q config.Quick
	var noMigrate bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: `Run the gateway until SIGTERM or SIGINT, then finish the streams in flight.

Settings come from flags, then SLUICE_… variables, then the file of --config
(sluice.yaml in this directory, if it is there), then defaults.

Without any file, --upstream and --split put real servers behind an experiment:

  sluice serve --upstream v1=http://gpu1:8000/v1 --upstream v2=http://gpu2:8000/v1 --split v1=90,v2=10

Nothing is then kept when it ends, unless storage.url is set.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fallback := ""
			if len(q.Upstreams) == 0 {
				if fallback = defaultFile(); fallback != "" && s.file == "" && a.getenv("SLUICE_CONFIG") == "" {
					a.note("reading %s", fallback)
				}
			}
			c, err := config.Load(s.sources(a, fallback)) // its remarks go to the log
			if err != nil {
				return err
			}
			if err := a.quick(cmd, c, q); err != nil {
				return err
			}
			if err := c.Validate(); err != nil {
				return err
			}
			return runServe(cmd.Context(), c, serveOptions{NoMigrate: noMigrate, Version: readBuildInfo().Version, Stdout: a.stdout, Stderr: a.stderr})
		},
	}
	s.configFlag(cmd)
	s.override("listen", "server.listen", "host:port of the data plane")
	s.override("admin-listen", "admin.listen", "host:port of the admin API and UI")
	s.override("metrics-listen", "metrics.listen", "host:port with /metrics only")
	s.override("auth", "auth.data", "none or keys")
	s.override("data-dir", "data_dir", "directory of the last good snapshot")
	s.override("log-level", "log.level", "debug, info, warn or error")
	s.override("log-format", "log.format", "json or text")
	s.override("access-log", "log.access", "stdout, stderr or off")
	f := cmd.Flags()
	f.StringArrayVar(&q.Upstreams, "upstream", nil, "NAME=URL of a model server, may be repeated")
	f.StringVar(&q.Split, "split", "", "NAME=PERCENT,… over the upstreams; the first is the baseline")
	f.StringVar(&q.Model, "model", "", "NAME or NAME=SERVED: the model's public name, and its name on the upstreams")
	f.BoolVar(&noMigrate, "no-migrate", false, "do not migrate the database")
	return cmd
}

// quick turns --upstream, --split and --model into resources. The flags are the
// truth then: without a storage of the operator's own the state is in memory,
// so that a second start with another split means what it says.
func (a *cli) quick(cmd *cobra.Command, c *config.Config, q config.Quick) error {
	if len(q.Upstreams) == 0 && q.Split == "" && q.Model == "" {
		return nil
	}
	if c.Resources != nil {
		return usagef("--upstream, --split and --model are for starting without `resources:`; the file has them")
	}
	ups, err := config.ParseUpstreams(q.Upstreams)
	if err != nil {
		return usageError{err}
	}
	served := ""
	if q.Model == "" && len(ups) > 0 {
		// Mistakes on the command line come before the network.
		if _, err := config.QuickDocument(config.Quick{Upstreams: q.Upstreams, Split: q.Split, Model: "x"}, ""); err != nil {
			return usageError{err}
		}
		if served, err = config.ServedModel(cmd.Context(), ups); err != nil {
			return err
		}
		a.note("the upstreams serve %s", served)
	}
	if c.Resources, err = config.QuickDocument(q, served); err != nil {
		return usageError{err}
	}
	if c.Origins()["storage.url"].Kind == "default" {
		c.Storage.URL = "sqlite::memory:"
		if c.Origins()["data_dir"].Kind == "default" {
			c.DataDir = ""
		}
	}
	return nil
}

func demoCommand(a *cli) *cobra.Command {
	o := demoOptions{Version: readBuildInfo().Version, Stdout: a.stdout, Stderr: a.stderr}
	cmd := group(&cobra.Command{
		Use:   "demo",
		Short: "Try everything on this machine: built-in model servers, users, an experiment",
		Long: `Run the gateway with built-in model servers and a few hundred synthetic users on
an experiment that is already collecting. Everything is fake, stays on loopback
and is removed at the end.`,
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.Port < 0 || o.Port > 65535 || o.AdminPort < 0 || o.AdminPort > 65535:
			return usagef("a port is a number from 0 to 65535")
		case o.Port == o.AdminPort && o.Port != 0:
			return usagef("--port and --admin-port must differ")
		case o.Rate < 0 || o.Rate > 1000 || o.Rate != o.Rate:
			return usagef("--rate is a number from 0 to 1000 requests a second")
		case o.Duration < 0:
			return usagef("--duration may not be negative")
		}
		return runDemo(cmd.Context(), o)
	}
	f := cmd.Flags()
	f.IntVar(&o.Port, "port", 8080, "port of the data plane")
	f.IntVar(&o.AdminPort, "admin-port", 8081, "port of the admin API and UI")
	f.Float64Var(&o.Rate, "rate", 24, "requests a second of the synthetic users")
	f.DurationVar(&o.Duration, "duration", 0, "end after so long (0: until interrupted)")
	f.BoolVar(&o.Keep, "keep", false, "keep the temporary directory")
	cmd.AddCommand(breakCommand(a), healCommand(a))
	return cmd
}
