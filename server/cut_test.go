package server

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/router"
)

// open sends a streaming request and reads up to its first piece of text.
func (p *plane) open(user string) (*http.Response, *bufio.Reader) {
	p.t.Helper()
	req, err := http.NewRequest("POST", p.url+"/v1/chat/completions", strings.NewReader(ask("[[tokens:2000]]", true)))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("X-User-Id", user)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { resp.Body.Close() })
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			p.t.Fatal(err)
		}
		if strings.Contains(line, `"content":"`) {
			return resp, r
		}
	}
}

// A kill lets streams finish, unless it cuts them: then they end in-band at
// once, and those of other variants do not notice.
func TestKillCutsStreams(t *testing.T) {
	slow := fakellm.Behaviour{Gap: 20 * time.Millisecond}
	a, b := fake(t, fakellm.Options{Default: slow}), fake(t, fakellm.Options{Default: slow})
	for _, c := range []struct {
		name string
		edit func(d *router.Document, revision int64) error
		cut  bool
	}{
		{"kill", killCanary, false},
		{"kill with streams", func(d *router.Document, revision int64) error {
			if err := killCanary(d, revision); err != nil {
				return err
			}
			return router.CutStreams(d, revision, time.Now(), "exp", "canary")
		}, true},
		{"rollback with streams", func(d *router.Document, revision int64) error {
			if err := router.Rollback(d, revision, time.Now(), "exp"); err != nil {
				return err
			}
			return router.CutStreams(d, revision, time.Now(), "exp", "*")
		}, true},
		{"cut without a kill", func(d *router.Document, revision int64) error {
			return router.CutStreams(d, revision, time.Now(), "exp", "canary")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t, twoVariants(a.URL(), b.URL(), 5000, 5000), nil)
			var canary, control *http.Response
			var of, rest *bufio.Reader
			for i := 0; canary == nil || control == nil; i++ {
				resp, r := p.open("u" + strings.Repeat("x", i))
				if resp.Header.Get("X-Sluice-Variant") == "canary" {
					canary, of = resp, r
				} else {
					control, rest = resp, r
				}
			}
			p.edit(c.edit)
			p.srv.CutStreams()
			if !c.cut {
				for range 20 {
					if _, err := of.ReadString('\n'); err != nil {
						t.Fatalf("a stream that should finish: %v", err)
					}
				}
				return
			}
			all, err := io.ReadAll(of)
			if !strings.Contains(string(all), `"code":"variant_stopped"`) || strings.Contains(string(all), "[DONE]") || err == nil {
				t.Errorf("the stream ended with %v and\n%s", err, all)
			}
			for range 20 {
				if _, err := rest.ReadString('\n'); err != nil {
					t.Fatalf("the baseline's stream was cut too: %v", err)
				}
			}
			if resp, _ := p.post("/v1/chat/completions", ask("[[tokens:1]]", false), "X-User-Id", "u"); resp.Header.Get("X-Sluice-Variant") != "control" {
				t.Errorf("afterwards %v", resp.Header)
			}
			for _, ev := range p.rec.wait(t, 2) {
				if ev.Assigned == "canary" && ev.Outcome != "shutting_down" {
					t.Errorf("recorded as %s: no server failed", ev.Outcome)
				}
			}
		})
	}
}

// However a kill and the beginning of streams fall together, no stream of the
// variant goes on after it.
func TestCutRaces(t *testing.T) {
	a := fake(t, fakellm.Options{Default: fakellm.Behaviour{Gap: time.Millisecond}})
	b := fake(t, fakellm.Options{Default: fakellm.Behaviour{Gap: 20 * time.Millisecond}})
	for n := range 10 {
		p := newPlane(t, twoVariants(a.URL(), b.URL(), 0, 10000), nil)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				resp, err := http.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(ask("[[tokens:400]]", true)))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				if resp.Header.Get("X-Sluice-Variant") == "canary" && strings.Contains(string(body), "[DONE]") {
					t.Error("a stream of the variant ran to its end")
				}
			})
		}
		time.Sleep(time.Duration(n) * time.Millisecond / 2) // when in their lives it comes
		p.edit(func(d *router.Document, revision int64) error {
			if err := killCanary(d, revision); err != nil {
				return err
			}
			return router.CutStreams(d, revision, time.Now(), "exp", "canary")
		})
		p.srv.CutStreams()
		wg.Wait()
		// A client may have the whole answer before its handler has returned.
		for end := time.Now().Add(5 * time.Second); p.srv.streams.count() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d streams are still known", p.srv.streams.count())
			}
		}
	}
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of)
}
