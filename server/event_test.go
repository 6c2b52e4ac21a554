package server

import (
	"context"
	"io"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/fakellm"
	"sluice/upstream"
)

type doer func(ctx context.Context, r *upstream.Request, s upstream.Sink) upstream.Result

func (d doer) Do(ctx context.Context, r *upstream.Request, s upstream.Sink) upstream.Result {
	return d(ctx, r, s)
}

// slowly is a body that comes in two parts with a pause between them.
type slowly struct {
	parts []string
	pause time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	if len(s.parts) == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	n := copy(p, s.parts[0])
	s.parts = s.parts[1:]
	return n, nil
}

// TestOverheadIsOurs: a client that takes its time to send is no overhead of the gateway.
func TestOverheadIsOurs(t *testing.T) {
	live := newPlane(t, document(fake(t, fakellm.Options{}).URL()), nil).live
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		s, err := New(Config{Live: live, Recorder: rec, Doer: doer(func(context.Context, *upstream.Request, upstream.Sink) upstream.Result {
			time.Sleep(time.Second)
			return upstream.Result{Outcome: upstream.Success, Status: 200, Committed: true}
		})})
		if err != nil {
			t.Fatal(err)
		}
		body := ask("hi", false)
		r := httptest.NewRequest("POST", "/v1/chat/completions", &slowly{parts: []string{body[:10], body[10:]}, pause: 4 * time.Second})
		s.Handler().ServeHTTP(httptest.NewRecorder(), r)
		if ev := rec.evs[0]; ev.Overhead != 0 || ev.Duration != 9*time.Second || ev.Outcome != "success" {
			t.Errorf("overhead %v of %v, outcome %s; want 0 of 9s", ev.Overhead, ev.Duration, ev.Outcome)
		}
	})
}
