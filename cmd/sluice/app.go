package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"sluice/internal/config"
	"sluice/internal/control"
	"sluice/internal/preflight"
	"sluice/internal/readings"
	"sluice/internal/rollout"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/internal/webhook"
	"sluice/metrics"
	"sluice/router"
	"sluice/server"
	"sluice/server/admin"
	"sluice/upstream"
)

// app is one running gateway, wired top to bottom in newApp.
type app struct {
	cfg      *config.Config
	log      *slog.Logger
	access   io.Writer
	reg      *prometheus.Registry
	store    *store.Store
	sticky   *sticky.Store
	pool     *upstream.Pool
	live     *router.Live
	rec      *metrics.Recorder
	data     *server.Server
	control  *control.Controller
	rollouts *rollout.Rollouts
	prober   *preflight.Prober
	reader   *readings.Reader
	webhook  *webhook.Sender // nil: nobody is told
	admin    http.Handler
	// adminDone is closed when the admin listener shuts down.
	adminDone chan struct{}
	version   string
	replica   string
}

// appOptions are what differs between serve and demo.
type appOptions struct {
	stdout, stderr io.Writer
	version        string
	seed           *router.Document
	extra          http.Handler // more admin routes below /demo/
	badge          string       // the environment shown in the UI
}

// tune sets what suits a proxy, where the operator has not: garbage is short-lived
// and small, so that collecting it at four times the live heap costs a few MB
// and saves most of the collector's work.
func tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	uuid.EnableRandPool()
	// net/http prints unexpected bytes of an idle upstream connection there,
	// which may be text of an answer.
	stdlog.SetOutput(io.Discard)
}

// newApp opens the stores, reads or seeds the document and compiles the first
// table. What it opened is closed by close, also after an error.
func newApp(ctx context.Context, cfg *config.Config, o appOptions) (a *app, err error) {
	tune()
	a = &app{cfg: cfg, log: newLogger(cfg, o.stderr), live: &router.Live{}, reg: prometheus.NewRegistry(), version: o.version, adminDone: make(chan struct{})}
	host, _ := os.Hostname()
	a.replica = host + "-" + uuid.NewString()[:8]
	defer func() {
		if err != nil {
			a.close(context.WithoutCancel(ctx))
		}
	}()
	for _, w := range cfg.Warnings() {
		a.log.Warn(w)
	}
	switch cfg.Log.Access {
	case "stdout":
		a.access = o.stdout
	case "stderr":
		a.access = o.stderr
	}
	if err := a.openStores(ctx); err != nil {
		return a, err
	}
	a.pool = upstream.NewPool(upstream.PoolOptions{Log: a.log})
	a.openMetrics()
	if err := a.openRollouts(); err != nil {
		return a, err
	}
	if err := a.openData(); err != nil {
		return a, err
	}
	if err := a.openControl(o.seed); err != nil {
		return a, err
	}
	if err := a.control.Start(ctx); err != nil {
		return a, err
	}
	if err := cfg.CheckKeys(a.liveKeys()); err != nil {
		return a, err
	}
	a.admin, err = admin.New(admin.Config{
		Control: a.control, Store: a.store, Pool: a.pool, Live: a.live, Recorder: a.rec, Pins: a.sticky, Rollouts: a.rollouts, Preflights: a.prober, Notify: a.webhook.Notify,
		Metrics: promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: a.reg}),
		Token:   cfg.Admin.Token.Reveal(), BasePath: cfg.Admin.BasePath, Listen: cfg.Admin.Listen,
		Log: a.log, Extra: o.extra, Badge: o.badge, Version: a.version, AuthKeys: !cfg.AuthNone(), Done: a.adminDone,
	})
	return a, err
}

func newLogger(cfg *config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(cfg.Log.Level)) != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

func (a *app) openStores(ctx context.Context) (err error) {
	a.store, err = store.Open(ctx, store.Options{URL: a.cfg.Storage.URL.Reveal(), Log: a.log, Lazy: true})
	if err != nil {
		return err
	}
	a.sticky, err = sticky.Open(ctx, sticky.Options{
		URL: a.cfg.Redis.URL.Reveal(), ReplicaID: a.replica, Log: a.log, Backup: a.store,
		Count: func(c sticky.Counter, n int64) { a.countSticky(string(c), n) },
	})
	return err
}

// countSticky may be called before the recorder is there.
func (a *app) countSticky(event string, n int64) {
	if r := a.rec; r != nil {
		r.CountSticky(event, n)
	}
}

func (a *app) openMetrics() {
	a.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.rec = metrics.New(metrics.Options{
		Registerer: a.reg, Writer: a.store, AccessLog: a.access, Log: a.log, Version: a.version,
		UpstreamStates: a.upstreamStates,
		KnownModel: func(name string) bool {
			t := a.live.Load()
			if t == nil {
				return false
			}
			_, ok := t.Model(name)
			return ok
		},
	})
}

func (a *app) openData() (err error) {
	c := a.cfg
	a.data, err = server.New(server.Config{
		Live: a.live, Doer: a.pool, Pins: a.sticky, Recorder: a.rec, Trials: a.rollouts.Collector(), Unsupervised: a.rollouts.Unsupervised, Log: a.log, AuthKeys: !c.AuthNone(),
		MaxBody: int64(c.Server.MaxBody), MaxBuffered: int64(c.Server.MaxBufferedBytes),
		ReadTimeout: c.Server.ReadDeadline, WriteTimeout: c.Server.WriteDeadline,
		CORSOrigins: c.Server.CORS.Origins, DrainDelay: c.DrainDelay(), DrainTimeout: c.Server.Drain.Timeout,
		CertFile: c.Server.TLS.Cert, KeyFile: c.Server.TLS.Key,
		Ready:    func() bool { return a.pool.Ready(context.Background(), 0) },
		Degraded: a.degraded, Skew: func(ctx context.Context) (int, int64) { return a.control.Skew(ctx) },
	})
	return err
}

// upstreamTimeouts says "off" as upstream does: there 0 is its own default.
func upstreamTimeouts(c config.Timeouts) upstream.Timeouts {
	off := func(d time.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d
	}
	return upstream.Timeouts{Connect: off(c.Connect), FirstByte: off(c.FirstByte), BetweenBytes: off(c.BetweenBytes), Total: off(c.Total)}
}

func (a *app) openControl(seed *router.Document) (err error) {
	path := ""
	if a.cfg.DataDir != "" {
		path = filepath.Join(a.cfg.DataDir, "snapshot.json")
	}
	a.control, err = control.New(control.Options{
		Store: a.store, Sticky: a.sticky, Pool: a.pool, Live: a.live, Shared: a.cfg.Redis.URL.Reveal() != "",
		Timeouts: upstreamTimeouts(a.cfg.Upstreams.Timeouts), Secrets: a.cfg.Secret, Seed: seed, OverrideHeaders: a.cfg.Server.OverrideHeaders, SnapshotPath: path, ReplicaID: a.replica,
		Addr: a.cfg.Server.Listen, Quiesced: a.data.Quiesced, Log: a.log,
		Hooks: control.Hooks{
			Revision:      a.swapped,
			CompileFailed: func(int64, error) { a.rec.SetConfig(0, false, time.Now()) },
		},
	})
	return err
}

func (a *app) degraded() []string {
	if a.control == nil {
		return nil
	}
	var list []string
	for _, d := range a.control.Degraded() {
		list = append(list, d.Code+": "+d.Message)
	}
	return list
}

func (a *app) liveKeys() int { return len(a.live.Load().Snapshot.Keys) }

// run serves until ctx ends, then drains. A second signal is the caller's: it
// exits the process.
func (a *app) run(ctx context.Context, ready func(data, adm net.Addr)) error {
	dataLn, err := listen(a.cfg.Server.Listen, "server.listen")
	if err != nil {
		return err
	}
	adminLn, err := listen(a.cfg.Admin.Listen, "admin.listen")
	if err != nil {
		return errors.Join(err, dataLn.Close())
	}
	var metricsLn net.Listener
	if addr := a.cfg.Metrics.Listen; addr != "" {
		if metricsLn, err = listen(addr, "metrics.listen"); err != nil {
			return errors.Join(err, dataLn.Close(), adminLn.Close())
		}
	}
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	g, gctx := errgroup.WithContext(work)
	adminSrv := sideServer(a.admin, sideBody, a.log)
	adminSrv.RegisterOnShutdown(func() { close(a.adminDone) }) // ends the streams of events
	g.Go(func() error { return a.control.Run(gctx) })
	g.Go(func() error { return a.rollouts.Run(gctx) })
	if a.webhook != nil {
		g.Go(func() error { return a.webhook.Run(gctx) })
	}
	g.Go(func() error { return a.rec.Run(gctx) })
	g.Go(func() error { return a.retain(gctx) })
	g.Go(func() error { return a.data.Serve(dataLn) })
	g.Go(func() error { return ignoreClosed(adminSrv.Serve(adminLn)) })
	var metricsSrv *http.Server
	if metricsLn != nil {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
		metricsSrv = sideServer(mux, sideBody, a.log)
		g.Go(func() error { return ignoreClosed(metricsSrv.Serve(metricsLn)) })
	}
	a.pool.Ready(ctx, 2*time.Second)
	a.log.Info("serving", "version", a.version, "data", dataLn.Addr().String(), "admin", adminLn.Addr().String(),
		"storage", a.cfg.Storage.URL.String(), "redis", a.cfg.Redis.URL.String(), "revision", a.live.Load().Revision)
	if ready != nil {
		ready(dataLn.Addr(), adminLn.Addr())
	}
	select {
	case <-ctx.Done():
	case <-gctx.Done():
	}
	a.log.Info("draining", "in_flight", a.data.InFlight(), "delay", a.cfg.DrainDelay().String(), "timeout", a.cfg.Server.Drain.Timeout.String())
	err = a.data.Shutdown(context.WithoutCancel(ctx))
	// The admin plane stays up while streams finish, the ledger is flushed last.
	shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if adminSrv.Shutdown(shut) != nil {
		adminSrv.Close()
	}
	if metricsSrv != nil {
		metricsSrv.Close()
	}
	stopWork()
	if werr := g.Wait(); werr != nil && !errors.Is(werr, context.Canceled) {
		err = errors.Join(err, werr)
	}
	a.log.Info("stopped")
	return err
}

// sideBody is how long the listeners beside the data plane wait for a body.
const sideBody = 15 * time.Second

// sideServer is a listener beside the data plane. No client holds one of its
// connections by sending half a request.
func sideServer(h http.Handler, body time.Duration, log *slog.Logger) *http.Server {
	return &http.Server{Handler: server.BoundBody(h, body), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
}

// retain drops what is older than it needs to be, once an hour.
func (a *app) retain(ctx context.Context) error {
	t := time.NewTicker(time.Hour)
	defer t.Stop()
	for {
		if _, err := a.store.Retain(ctx, store.Retention{}); err != nil && ctx.Err() == nil {
			a.log.Warn("old ledger rows could not be deleted", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *app) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a.closeRollouts()
	if a.pool != nil {
		a.pool.Close()
	}
	if a.sticky != nil {
		a.sticky.Close(ctx)
	}
	if a.store != nil {
		a.store.Close()
	}
}

func listen(addr, setting string) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return ln, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
