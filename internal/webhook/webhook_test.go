package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sluice/experiment/ramp"
	"sluice/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func notice(event string, revision int64) ramp.Notice {
	return ramp.Notice{Event: event, At: time.Unix(1_764_500_000, 0).UTC(), Experiment: "chat-v2", Model: "chat", Generation: 3, Revision: revision,
		Variant: "canary", Baseline: "control", Step: 1, Steps: 5, Weight: 500, Text: "rolled back: 11 of 40 requests failed"}
}

// receiver is a server in memory, so that time can be virtual.
type receiver struct {
	mu     sync.Mutex
	answer func(n int, r *http.Request) (*http.Response, error)
	seen   []call
}

type call struct {
	at     time.Time
	header http.Header
	body   []byte
}

func (c *receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.seen = append(c.seen, call{time.Now(), r.Header.Clone(), body})
	n := len(c.seen)
	c.mu.Unlock()
	return c.answer(n, r)
}

func (c *receiver) calls() []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]call(nil), c.seen...)
}

func status(code int, header ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20)))}, nil
}

func sender(t *testing.T, c *receiver, o webhook.Options) *webhook.Sender {
	t.Helper()
	if o.URL == "" {
		o.URL = "https://hooks.test/secret-path"
	}
	o.Client = func() http.RoundTripper { return c }
	s, err := webhook.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs s until the returned function is called, which waits for its end.
func run(t *testing.T, s *webhook.Sender) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// verify is the receiver's part of Standard Webhooks, from its description:
// base64(HMAC-SHA256(key, id + "." + timestamp + "." + body)) with "v1,".
func verify(t *testing.T, key []byte, h http.Header, body []byte) {
	t.Helper()
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	ok := false
	for one := range strings.FieldsSeq(h.Get("webhook-signature")) {
		got, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, "v1,"))
		ok = ok || err == nil && strings.HasPrefix(one, "v1,") && hmac.Equal(got, mac.Sum(nil))
	}
	if !ok {
		t.Errorf("the signature %q does not verify", h.Get("webhook-signature"))
	}
}

func TestDelivery(t *testing.T) {
	t.Parallel()
	got := make(chan call, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- call{time.Now(), r.Header, body}
		w.WriteHeader(http.StatusAccepted)
	}))
	defer srv.Close()
	var counted sync.Map
	s, err := webhook.New(webhook.Options{URL: srv.URL + "/hook?x=1", Secret: func() (string, bool) {
		return "whsec_" + base64.StdEncoding.EncodeToString([]byte("key of ours")), true
	},
		Link: "https://sluice.test/base/", Count: func(r string) { counted.Store(r, true) }})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	s.Notify(notice(ramp.NoticeRolledBack, 17))
	c := <-got
	stop()
	verify(t, []byte("key of ours"), c.header, c.body)
	if ts, err := strconv.ParseInt(c.header.Get("webhook-timestamp"), 10, 64); err != nil || time.Since(time.Unix(ts, 0)).Abs() > time.Minute {
		t.Errorf("timestamp %q", c.header.Get("webhook-timestamp"))
	}
	var p struct {
		ID, Type string
		Data     struct {
			Event, Experiment, Variant, Text, Title string
			Weight, Step, Steps                     int
			Links                                   map[string]string
		}
	}
	if err := json.Unmarshal(c.body, &p); err != nil {
		t.Fatal(err)
	}
	if p.ID != c.header.Get("webhook-id") || !strings.HasPrefix(p.ID, "evt_") || p.Type != "rollout.rolled_back" {
		t.Errorf("id %q, type %q", p.ID, p.Type)
	}
	d := p.Data
	if d.Experiment != "chat-v2" || d.Weight != 500 || d.Text != "rolled back: 11 of 40 requests failed" || d.Title != "chat-v2: canary rolled back, at 5 %" ||
		d.Links["experiment"] != "https://sluice.test/base/ui/experiments/chat-v2" {
		t.Errorf("got %s", c.body)
	}
	if st := s.Stats(); st != (webhook.Stats{Delivered: 1}) {
		t.Errorf("stats %+v", st)
	}
	if _, ok := counted.Load(webhook.Delivered); !ok {
		t.Error("it was not counted")
	}
}

func TestSlack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &receiver{answer: func(int, *http.Request) (*http.Response, error) { return status(200) }}
		s := sender(t, c, webhook.Options{Format: webhook.Slack, Link: "https://sluice.test"})
		defer run(t, s)()
		n := notice(ramp.NoticePaused, 1)
		n.Reason, n.Actor = "<!channel> & <@U1>\nsecond line", "ana"
		n.Text = strings.Repeat("é", 5000)
		s.Notify(n)
		synctest.Wait()
		body := string(c.calls()[0].body)
		var m struct {
			Text   string
			Blocks []struct {
				Type     string
				Text     struct{ Type, Text string }
				Elements []struct{ Type, Text string }
			}
		}
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(body, "<!channel>") || strings.Contains(body, "<@U1>") {
			t.Error("a reason can mention people")
		}
		if m.Text == "" || len(m.Blocks) != 2 || m.Blocks[0].Text.Type != "mrkdwn" || len([]rune(m.Blocks[0].Text.Text)) > 3000 {
			t.Errorf("got %.300s", body)
		}
		if got, want := m.Blocks[1].Elements[0].Text, "generation 3 · step 2 of 5 · by ana · <https://sluice.test/ui/experiments/chat-v2|open>"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A receiver that is away for minutes gets the message in the end, with the same
// id and a signature of its own each time; the messages behind it come in order.
func TestRepeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := time.Now().Add(5 * time.Minute)
		c := &receiver{}
		c.answer = func(n int, r *http.Request) (*http.Response, error) {
			switch {
			case time.Now().After(away):
				return status(204)
			case n%3 == 0:
				return nil, errors.New("connection refused")
			case n%3 == 1:
				return status(503)
			}
			return status(429, "Retry-After", "20")
		}
		s := sender(t, c, webhook.Options{Secret: func() (string, bool) { return "plain", true }})
		defer run(t, s)()
		s.Notify(notice(ramp.NoticeStarted, 1))
		s.Notify(notice(ramp.NoticeAdvanced, 2))
		s.Notify(notice(ramp.NoticeStarted, 1)) // the same event again is the same message
		time.Sleep(7 * time.Minute)
		calls := c.calls()
		ids := map[string]bool{}
		for _, one := range calls {
			verify(t, []byte("plain"), one.header, one.body)
			ids[one.header.Get("webhook-id")] = true
		}
		if len(ids) != 2 || s.Stats() != (webhook.Stats{Delivered: 2}) {
			t.Errorf("%d ids, %+v", len(ids), s.Stats())
		}
		if n := len(calls); n < 8 || n > 30 {
			t.Errorf("%d calls in five minutes", n)
		}
		first := calls[0].header.Get("webhook-id")
		for i, one := range calls {
			if last := i == len(calls)-1; last == (one.header.Get("webhook-id") == first) {
				t.Errorf("call %d is out of order", i)
			}
			if i > 0 && i < len(calls)-1 {
				if d := one.at.Sub(calls[i-1].at); d < 400*time.Millisecond || d > time.Minute {
					t.Errorf("%v between two tries", d)
				}
			}
		}
	})
}

func TestGivesUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(int, *http.Request) (*http.Response, error)
		most   int
		within time.Duration
	}{
		"refused": {func(int, *http.Request) (*http.Response, error) { return status(400) }, 1, time.Second},
		"gone":    {func(int, *http.Request) (*http.Response, error) { return status(410) }, 1, time.Second},
		"a redirect to the inside": {func(int, *http.Request) (*http.Response, error) {
			return status(302, "Location", "http://169.254.169.254/")
		}, 1, time.Second},
		"down for ever": {func(int, *http.Request) (*http.Response, error) { return status(500) }, 40, 10 * time.Minute},
		"hangs": {func(_ int, r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, 40, 10*time.Minute + 11*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{answer: c.answer}
				s := sender(t, r, webhook.Options{})
				defer run(t, s)()
				s.Notify(notice(ramp.NoticeHeld, 1))
				time.Sleep(c.within)
				synctest.Wait()
				if n := len(r.calls()); n > c.most {
					t.Errorf("%d calls", n)
				}
				if st := s.Stats(); st.Failed != 1 || st.Queued != 0 {
					t.Errorf("after %v: %+v", c.within, st)
				}
			})
		})
	}
}

// Notify never waits, and a full queue keeps the newest.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		r := &receiver{answer: func(int, *http.Request) (*http.Response, error) { <-open; return status(200) }}
		s := sender(t, r, webhook.Options{Events: []string{ramp.NoticeAdvanced}})
		defer run(t, s)()
		start := time.Now()
		s.Notify(notice(ramp.NoticeAdvanced, 0))
		synctest.Wait()
		for i := range 300 {
			s.Notify(notice(ramp.NoticeAdvanced, int64(i+1)))
			s.Notify(notice(ramp.NoticeHeld, int64(i+1))) // not asked for
		}
		if time.Since(start) != 0 {
			t.Error("Notify waited")
		}
		close(open)
		synctest.Wait()
		if st, want := s.Stats(), (webhook.Stats{Delivered: 257, Dropped: 44}); st != want {
			t.Errorf("got %+v, want %+v", st, want)
		}
		calls := r.calls()
		if !bytes.Contains(calls[len(calls)-1].body, []byte(`"revision":300`)) {
			t.Error("the newest was dropped")
		}
	})
}

// At the end what is queued is delivered, for 5 s at most.
func TestDrain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(n int, r *http.Request) (*http.Response, error)
		want   webhook.Stats
		took   time.Duration
	}{
		"takes them": {func(int, *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			return status(200)
		}, webhook.Stats{Delivered: 4}, time.Second},
		"takes no one": {func(int, *http.Request) (*http.Response, error) { return status(500) }, webhook.Stats{Dropped: 4}, 5 * time.Second},
		"hangs": {func(_ int, r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, webhook.Stats{Dropped: 4}, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{answer: c.answer}
				s := sender(t, r, webhook.Options{})
				stop := run(t, s)
				for i := range 4 {
					s.Notify(notice(ramp.NoticeAdvanced, int64(i+1)))
				}
				start := time.Now()
				stop()
				if took := time.Since(start); took > c.took {
					t.Errorf("took %v", took)
				}
				s.Notify(notice(ramp.NoticeAdvanced, 99)) // after the end
				c.want.Dropped++
				if st := s.Stats(); st != c.want {
					t.Errorf("got %+v, want %+v", st, c.want)
				}
			})
		})
	}
}

// What is logged has neither the URL, which is a secret with Slack, nor the key.
func TestLogsNoSecrets(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int, *http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }}
		s := sender(t, r, webhook.Options{URL: "http://user:pass@10.0.0.1/services/T0/B0/xyzzy", Log: slog.New(slog.NewTextHandler(&log, nil)),
			Secret: func() (string, bool) { return "plugh", true }})
		stop := run(t, s)
		s.Notify(notice(ramp.NoticeHeld, 1))
		time.Sleep(time.Second)
		stop()
	})
	if log.Len() == 0 {
		t.Fatal("nothing was logged")
	}
	for _, secret := range []string{"xyzzy", "user", "pass", "plugh"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q: %s", secret, log.String())
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, o := range []webhook.Options{
		{}, {URL: "ftp://x"}, {URL: "/path"}, {URL: "http://"}, {URL: "http://x", Format: "xml"}, {URL: "http://x", Events: []string{"exploded"}}, {URL: "http://x\n"},
	} {
		if _, err := webhook.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		} else if strings.Contains(err.Error(), "ftp://x") {
			t.Errorf("the error shows the url: %v", err)
		}
	}
	var none *webhook.Sender
	none.Notify(ramp.Notice{}) // no webhook is configured
}

// A secret that does not resolve keeps the message for later.
func TestSecretComesLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		secret, ok := "", false
		r := &receiver{answer: func(int, *http.Request) (*http.Response, error) { return status(200) }}
		s := sender(t, r, webhook.Options{Secret: func() (string, bool) { mu.Lock(); defer mu.Unlock(); return secret, ok }})
		defer run(t, s)()
		s.Notify(notice(ramp.NoticeHeld, 1))
		time.Sleep(time.Minute)
		if n := len(r.calls()); n != 0 {
			t.Fatalf("%d messages left unsigned", n)
		}
		mu.Lock()
		secret, ok = "whsec_***", true
		mu.Unlock()
		time.Sleep(time.Minute)
		if n := len(r.calls()); n != 0 {
			t.Fatalf("%d messages were signed with a broken key", n)
		}
		mu.Lock()
		secret = "later"
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		calls := r.calls()
		if len(calls) != 1 {
			t.Fatalf("%d calls", len(calls))
		}
		verify(t, []byte("later"), calls[0].header, calls[0].body)
		if diff := cmp.Diff(webhook.Stats{Delivered: 1}, s.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}
