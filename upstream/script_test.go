package upstream

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/h1"
)

// script is a server without a network, in virtual time: what it answers is a
// function. Its zero value refuses connections.
type script struct {
	mu     sync.Mutex
	answer func(ctx context.Context, r *h1.Request) (status int, body string, err error)
	seen   []string // method, host and path
	open   int      // POSTs under way
	most   int      // of them at once
}

// on replaces the answer.
func (s *script) on(f func(ctx context.Context, r *h1.Request) (int, string, error)) {
	s.mu.Lock()
	s.answer = f
	s.mu.Unlock()
}

// serve answers by "METHOD path"; what is not in it is a 404.
func (s *script) serve(pages map[string]string) {
	s.on(func(_ context.Context, r *h1.Request) (int, string, error) {
		page, ok := pages[r.Method+" "+r.URL.Path]
		if !ok {
			return 404, "", nil
		}
		return 200, page, nil
	})
}

func (s *script) hang() {
	s.on(func(ctx context.Context, r *h1.Request) (int, string, error) {
		<-ctx.Done()
		return 0, "", ctx.Err()
	})
}

func (s *script) refuse() { s.on(nil) }

// count returns how many requests began with prefix.
func (s *script) count(prefix string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

func (s *script) options() PoolOptions {
	return PoolOptions{carrier: func(carrierKey) (carrier, error) { return s, nil }}
}

func (s *script) Do(ctx context.Context, r *h1.Request) (*h1.Response, error) {
	post := r.Method == "POST"
	s.mu.Lock()
	f := s.answer
	s.seen = append(s.seen, r.Method+" "+r.URL.Host+r.URL.Path)
	if post {
		s.open++
		s.most = max(s.most, s.open)
	}
	s.mu.Unlock()
	defer func() {
		if post {
			s.mu.Lock()
			s.open--
			s.mu.Unlock()
		}
	}()
	if f == nil {
		return nil, &h1.DialError{Err: io.ErrClosedPipe}
	}
	if r.Sent != nil {
		r.Sent()
	}
	status, body, err := f(ctx, r)
	if err != nil {
		return nil, err
	}
	return &h1.Response{Status: status, Length: int64(len(body)), Body: whole{bytes.NewReader([]byte(body))},
		Fields: []h1.Field{{Name: hdrContentType, Value: jsonType}}}, nil
}

func (s *script) CloseIdleConnections() {}
func (s *script) Close()                {}

// whole is a body in memory.
type whole struct{ *bytes.Reader }

func (w whole) Next() ([]byte, error) { return io.ReadAll(w.Reader) }
func (w whole) Finish()               {}
func (w whole) Close() error          { return nil }

// after waits and compares the state of the only endpoint.
func after(t *testing.T, u *Upstream, d time.Duration, state, reason string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	s := u.Status()[0]
	if s.State != state || s.Ready != (state == stateReady) || !strings.Contains(s.Reason, reason) {
		t.Errorf("after %v: ready %v, %s (%s), want %s (%s)", d, s.Ready, s.State, s.Reason, state, reason)
	}
}
