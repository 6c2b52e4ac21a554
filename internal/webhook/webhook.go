// Package webhook tells one receiver outside what happens to rollouts: a signed
// POST per event. It hides the queue, the repetitions and the shapes of what is
// sent. Who notifies never waits; a message is sent again until it has been
// taken or is ten minutes old, so a receiver may see one twice, with the same
// id.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"sluice/experiment/ramp"
)

// The formats of a message.
const (
	JSON  = "json"
	Slack = "slack" // what incoming webhooks of Slack take, and those made like them
)

// How a message ended, for Options.Count.
const (
	Delivered = "delivered"
	Failed    = "failed"  // given up
	Dropped   = "dropped" // pushed out of a full queue, or left at the end
)

const (
	maxQueue   = 256
	maxAge     = 10 * time.Minute // then it is given up
	timeout    = 10 * time.Second // of one call
	drainLimit = 5 * time.Second
	backOff    = time.Second // doubles
	backOffMax = time.Minute
	maxAnswer  = 4 << 10
)

// Options configure a Sender.
type Options struct {
	URL    string // of the process settings, never of the document
	Format string // "" is json
	Events []string
	// Secret answers the key that messages are signed with, anew for each call, so
	// that a rotated one takes effect; nil signs nothing.
	Secret func() (string, bool)
	Link   string                   // the address under which people reach the UI; "" leaves links out
	Log    *slog.Logger             // nil = discard
	Count  func(result string)      // nil = nobody counts
	Client func() http.RoundTripper // nil = a transport of its own; for tests
}

// Sender delivers notices. Make one with New, run it with Run.
type Sender struct {
	o    Options
	host string // for logs: the URL itself may hold a secret
	http *http.Client

	mu     sync.Mutex // guards what follows
	queue  []message
	recent []string // ids, so that one event is one message
	ended  bool
	wake   chan struct{}
	stats  Stats
}

// Stats are counts since the start.
type Stats struct {
	Delivered, Failed, Dropped int64
	Queued                     int
}

// message is a notice that waits.
type message struct {
	id    string
	n     ramp.Notice
	since time.Time
}

// New checks o; it connects to nothing.
func New(o Options) (*Sender, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("webhook: the url is not one of http or https, such as https://hooks.example.com/sluice")
	}
	switch o.Format {
	case "":
		o.Format = JSON
	case JSON, Slack:
	default:
		return nil, fmt.Errorf("webhook: unknown format %q; use json or slack", o.Format)
	}
	for _, e := range o.Events {
		if !slices.Contains(ramp.Notices, e) {
			return nil, fmt.Errorf("webhook: unknown event %q", e)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(string) {}
	}
	s := &Sender{o: o, host: u.Scheme + "://" + u.Host, wake: make(chan struct{}, 1)}
	s.http = &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if o.Client != nil {
		s.http.Transport = o.Client()
	} else {
		s.http.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: timeout, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true}
	}
	return s, nil
}

// Notify queues n and returns at once. The same event told again is one message.
// A full queue gives up its oldest. A nil Sender does nothing.
func (s *Sender) Notify(n ramp.Notice) {
	if s == nil || len(s.o.Events) > 0 && !slices.Contains(s.o.Events, n.Event) {
		return
	}
	m := message{id: idOf(&n), n: n, since: time.Now()}
	s.mu.Lock()
	if slices.Contains(s.recent, m.id) {
		s.mu.Unlock()
		return
	}
	lost := 0
	if s.ended {
		lost = 1
	} else {
		if len(s.recent) == maxQueue {
			s.recent = slices.Delete(s.recent, 0, 1)
		}
		s.recent = append(s.recent, m.id)
		if len(s.queue) == maxQueue {
			s.queue = slices.Delete(s.queue, 0, 1)
			lost = 1
		}
		s.queue = append(s.queue, m)
	}
	s.stats.Dropped += int64(lost)
	s.mu.Unlock()
	if lost > 0 {
		s.o.Count(Dropped)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Stats reads the counts.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued = len(s.queue)
	return st
}

// Run delivers until ctx ends, in the order of the notices, then what is queued
// within 5 s. Call it once.
func (s *Sender) Run(ctx context.Context) error {
	defer s.http.CloseIdleConnections()
	// What ends is the waiting, not a call that is under way.
	end, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(drainLimit, cancel) })
	defer stop()
	for {
		m, ok := s.take()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				if m, ok = s.take(); !ok {
					s.finish()
					return nil
				}
			}
		}
		result := s.deliver(ctx, end, m)
		s.count(result, 1)
		if end.Err() != nil {
			s.finish()
			return nil
		}
	}
}

func (s *Sender) take() (message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return message{}, false
	}
	m := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	return m, true
}

// finish gives up what is left.
func (s *Sender) finish() {
	s.mu.Lock()
	n := len(s.queue)
	s.queue, s.ended = nil, true
	s.mu.Unlock()
	if n > 0 {
		s.o.Log.Warn("webhook: messages were left at the end", "receiver", s.host, "messages", n)
	}
	s.count(Dropped, n)
}

func (s *Sender) count(result string, n int) {
	s.mu.Lock()
	switch result {
	case Delivered:
		s.stats.Delivered += int64(n)
	case Failed:
		s.stats.Failed += int64(n)
	case Dropped:
		s.stats.Dropped += int64(n)
	}
	s.mu.Unlock()
	for range n {
		s.o.Count(result)
	}
}

// deliver sends m until it has been taken or is too old. ctx ended means that
// the process ends: from then on there is no waiting but until end.
func (s *Sender) deliver(ctx, end context.Context, m message) string {
	body, err := s.body(&m)
	if err != nil {
		s.o.Log.Error("webhook: a message cannot be written", "event", m.n.Event, "err", err)
		return Failed
	}
	for try := 0; ; try++ {
		after, err := s.post(end, m.id, body)
		if err == nil {
			return Delivered
		}
		log := s.o.Log.With("receiver", s.host, "event", m.n.Event, "experiment", m.n.Experiment, "id", m.id, "err", err)
		pause := max(after, backOff<<min(try, 10))
		pause = min(pause, backOffMax)/2 + rand.N(min(pause, backOffMax)/2)
		switch {
		case end.Err() != nil:
			log.Warn("webhook: a message was not delivered before the end")
			return Dropped
		case errors.Is(err, errRefused):
			log.Error("webhook: the receiver refuses a message, which is not sent again")
			return Failed
		case time.Since(m.since)+pause > maxAge:
			log.Error("webhook: a message could not be delivered and is given up", "tries", try+1)
			return Failed
		case try == 0:
			log.Warn("webhook: a message was not taken; it is sent again")
		}
		if ctx.Err() != nil {
			pause = min(pause, drainLimit/4)
		}
		if !wait(ctx, end, pause) {
			return Dropped
		}
	}
}

// wait pauses; the end of ctx cuts it short, the end of end makes it false.
func wait(ctx, end context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	done := ctx.Done()
	if ctx.Err() != nil {
		done = nil
	}
	select {
	case <-t.C:
	case <-done:
	case <-end.Done():
	}
	return end.Err() == nil
}
