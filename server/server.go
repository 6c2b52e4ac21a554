// Package server is the HTTP surface: the OpenAI-compatible data plane, health,
// and the listeners' lifecycle. It hides reading and bounding requests, the
// client's side of a stream, the error envelope and the drain. What a request
// means is router's business, what answers it upstream's.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"sluice/experiment/trial"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// Recorder takes the one event of each request; *metrics.Recorder is one.
type Recorder interface{ Record(metrics.Event) }

// Config is what New needs. Zero durations and sizes take the documented defaults.
type Config struct {
	Live     *router.Live
	Doer     upstream.Doer
	Pins     router.Pins // nil: none, contested units are answered from the table
	Recorder Recorder
	Log      *slog.Logger
	// Degraded names what is missing, for /readyz?verbose; nil: nothing ever.
	Degraded func() []string
	// Unsupervised says that nobody has led e for longer than its policy allows;
	// nil: all are led.
	Unsupervised func(e *router.CompiledExperiment) bool
	// Trials follows the requests of experiments with guardrails; nil: nobody does.
	Trials *trial.Collector
	// Skew is how many replicas live and how far apart their revisions are, for
	// /readyz?verbose; it heeds ctx. nil: not told.
	Skew func(ctx context.Context) (replicas int, skew int64)
	// Ready reports whether every endpoint's first check has returned; nil: yes.
	// It is asked until it says so, for at most 2 s after the first table.
	Ready func() bool

	AuthKeys       bool          // auth.data: keys
	MaxBody        int64         // 64 MiB
	MaxBuffered    int64         // 1 GiB over all requests
	ReadTimeout    time.Duration // rolling, 30 s
	WriteTimeout   time.Duration // rolling, 30 s
	CORSOrigins    []string      // empty: off
	DrainDelay     time.Duration
	DrainTimeout   time.Duration // 15 min
	MaxHeaderBytes int           // 64 KiB
	CertFile       string        // with KeyFile: TLS; both files are followed
	KeyFile        string
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.ReadTimeout, 30*time.Second)
	def(&c.WriteTimeout, 30*time.Second)
	def(&c.DrainTimeout, 15*time.Minute)
	if c.MaxBody == 0 {
		c.MaxBody = 64 << 20
	}
	if c.MaxBuffered == 0 {
		c.MaxBuffered = 1 << 30
	}
	if c.MaxHeaderBytes == 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Server is the data plane. Its Handler may be mounted anywhere; Serve and
// Shutdown run it on a listener of its own.
type Server struct {
	cfg      Config
	handler  http.Handler
	http     *http.Server
	buffered atomic.Int64
	inflight atomic.Int64
	draining atomic.Bool
	ready    atomic.Bool  // the first checks are over; it is never taken back
	loaded   atomic.Int64 // Unix nanoseconds since when a table is known to be there, 0 = none
	cancel   context.CancelCauseFunc
	epochs   epochs
	streams  streams
	cert     *certificate // nil: no TLS
}

// New returns a server for c; Live, Doer and Recorder are required.
func New(c Config) (*Server, error) {
	if c.Live == nil || c.Doer == nil || c.Recorder == nil {
		return nil, errors.New("server: Live, Doer and Recorder are required")
	}
	c.defaults()
	s := &Server{cfg: c}
	if c.CertFile != "" {
		var err error
		if s.cert, err = newCertificate(c.CertFile, c.KeyFile, c.Log); err != nil {
			return nil, err
		}
	}
	s.handler = BoundBody(s.parting(s.routes()), c.ReadTimeout)
	base, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	s.http = &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    c.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
		Protocols:         protocols(),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter},
		// No WriteTimeout: it is absolute and would cut long streams. Writes have a
		// rolling deadline of their own.
	}
	return s, nil
}

const (
	// maxStreams is how many requests one HTTP/2 connection may have under way;
	// SDKs open another connection for more.
	maxStreams = 1000
	// pingAfter finds HTTP/2 peers that vanished, as TCP keep-alive does below.
	pingAfter = 15 * time.Second
)

// protocols are what the listener speaks: HTTP/1, and HTTP/2 with TLS or without.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// parting asks clients to come back on another connection while the process
// drains, so that their next request meets a process that stays.
func (s *Server) parting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Handler returns the data plane without a listener.
func (s *Server) Handler() http.Handler { return s.handler }

// InFlight is the number of model requests that are being answered.
func (s *Server) InFlight() int64 { return s.inflight.Load() }

// Quiesced waits until no attempt that was decided under a revision below rev
// is still before its first byte upstream.
func (s *Server) Quiesced(ctx context.Context, rev int64) { s.epochs.wait(ctx, rev) }

// Serve accepts on ln until Shutdown; it returns nil after a shutdown.
func (s *Server) Serve(ln net.Listener) error {
	if s.cfg.Live.Load() != nil {
		s.loaded.CompareAndSwap(0, time.Now().UnixNano())
	}
	serve := s.http.Serve
	if s.cert != nil {
		s.http.TLSConfig = s.cert.tlsConfig()
		serve = func(ln net.Listener) error { return s.http.ServeTLS(ln, "", "") }
	}
	if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Degraded names what does not work as it should, for status pages.
func (s *Server) Degraded() (list []string) {
	if s.cfg.Degraded != nil {
		list = s.cfg.Degraded()
	}
	if s.cert != nil {
		if d := s.cert.degraded(); d != "" {
			list = append(list, d)
		}
	}
	return list
}

// Shutdown drains: unready at once, the delay (load balancers see readyz and
// stop sending), no new connections, streams finish up to the timeout, the rest
// are told in-band. Cancelling ctx skips the waiting.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	select {
	case <-time.After(s.cfg.DrainDelay):
	case <-ctx.Done():
	}
	drain, stop := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer stop()
	err := s.http.Shutdown(drain)
	if err == nil {
		s.cancel(upstream.ErrShuttingDown)
		return nil
	}
	s.cancel(upstream.ErrShuttingDown)
	// The handlers get a moment to say so in-band and to record their events.
	last, stop2 := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop2()
	if s.http.Shutdown(last) != nil {
		return s.http.Close()
	}
	return nil
}
