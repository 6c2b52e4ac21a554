package upstream

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/fakellm"
)

// TestEnded: every attempt is told of when it is over, before the next begins,
// with whether a server was there at all.
func TestEnded(t *testing.T) {
	status := func(code int) *fakellm.Behaviour { return &fakellm.Behaviour{Fault: fakellm.Status, Status: code} }
	for _, tt := range []struct {
		name    string
		servers []*fakellm.Behaviour // nil: nothing listens there
		want    []string
	}{
		{"answered", []*fakellm.Behaviour{{}}, []string{"success"}},
		{"a second try", []*fakellm.Behaviour{status(503), status(503)}, []string{"upstream_error", "upstream_error"}},
		{"nobody there", []*fakellm.Behaviour{nil}, []string{"no_endpoint unreached"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var urls []string
			for _, b := range tt.servers {
				if b == nil {
					urls = append(urls, "http://127.0.0.1:1/v1")
					continue
				}
				s, err := fakellm.Start(fakellm.Options{Default: *b})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				urls = append(urls, s.URL())
			}
			p, ups := pool(t, Config{Name: "u", Endpoints: urls})
			var got []string
			asked := 0
			req := request(t, chatBody, to(ups["u"]))
			next := req.Next
			req.Next = func(n int, last *Attempt, same bool) (Target, string, bool) {
				if asked++; asked > len(got)+1 {
					t.Errorf("asked %d times when %d attempts are over", asked, len(got))
				}
				return next(n, last, same)
			}
			req.Ended = func(a *Attempt) {
				word := string(a.Outcome)
				if a.Unreached {
					word += " unreached"
				}
				got = append(got, word)
			}
			res, _ := do(t, p, req)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%v: %s", res.Outcome, diff)
			}
		})
	}
}

// TestUnreached: a server that goes away is told apart from one that fails, also
// when its breaker is open.
func TestUnreached(t *testing.T) {
	for _, gone := range []bool{true, false} {
		s, err := fakellm.Start(fakellm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, ups := pool(t, Config{Name: "u", Endpoints: []string{s.URL()}})
		if res, _ := do(t, p, request(t, chatBody, to(ups["u"]))); res.Outcome != Success {
			t.Fatalf("%v", res.Outcome)
		}
		if gone {
			s.Close()
		} else {
			defer s.Close()
			s.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 500})
		}
		var words []string
		for range 10 {
			req := request(t, chatBody, to(ups["u"]))
			req.Ended = func(a *Attempt) {
				if a.Unreached != gone && a.Outcome != Truncated { // of a connection that was kept
					t.Errorf("gone %t: %s is told as unreached %t", gone, a.Outcome, a.Unreached)
				}
				words = append(words, string(a.Outcome))
			}
			p.Do(context.Background(), req, &recorder{})
		}
		if all := strings.Join(words, " "); !strings.Contains(all, "no_endpoint") {
			t.Errorf("gone %t: the breaker never opened: %s", gone, all)
		}
	}
}
