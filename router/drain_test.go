package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/router"
)

func TestDrainAndEnable(t *testing.T) {
	t.Parallel()
	const a, b, c = "http://a:1/v1", "http://b:1/v1", "http://c:1/v1"
	type step struct {
		edit func(*router.Document, int64, time.Time, string, string, []string) error
		what string
		want string
	}
	for name, steps := range map[string][]step{
		"one":                    {{router.Drain, a, "[" + a + "]"}, {router.Drain, b, "[" + a + " " + b + "]"}, {router.Enable, a, "[" + b + "]"}, {router.Enable, b, "[]"}},
		"all":                    {{router.Drain, "", "[*]"}, {router.Enable, "", "[]"}},
		"again":                  {{router.Drain, a, "[" + a + "]"}, {router.Drain, a, "[" + a + "]"}, {router.Drain, "", "[*]"}, {router.Drain, a, "[*]"}},
		"another form":           {{router.Drain, "HTTP://A:1/v1/", "[" + a + "]"}, {router.Enable, a + "/", "[]"}},
		"one out of all":         {{router.Drain, "", "[*]"}, {router.Enable, b, "[" + a + " " + c + "]"}},
		"enable what serves":     {{router.Enable, a, "[]"}},
		"an address of dns":      {{router.Drain, c, "[" + c + "]"}},
		"enable all after a few": {{router.Drain, a, "[" + a + "]"}, {router.Drain, c, "[" + a + " " + c + "]"}, {router.Enable, "", "[]"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &router.Document{Revision: 1, Upstreams: []router.Upstream{{Name: "v1", Endpoints: []string{a, b}}}}
			for i, s := range steps {
				if err := s.edit(d, int64(i+2), time.Now(), "v1", s.what, []string{c}); err != nil {
					t.Fatal(i, err)
				}
				if got := fmt.Sprint(d.Upstreams[0].Drained); got != s.want {
					t.Fatalf("step %d: %s, want %s", i, got, s.want)
				}
			}
		})
	}
	d := &router.Document{Revision: 1, Upstreams: []router.Upstream{{Name: "v1", Endpoints: []string{a, b}}}}
	var e *router.EditError
	if err := router.Drain(d, 2, time.Now(), "v1", "http://z/v1", nil); !errors.As(err, &e) || e.Code != router.CodeUnknownEndpoint || !strings.Contains(e.Message, b) {
		t.Errorf("an unknown endpoint: %v", err)
	}
	if err := router.Drain(d, 2, time.Now(), "v9", "", nil); !errors.As(err, &e) || e.Code != router.CodeNotFound {
		t.Errorf("an unknown upstream: %v", err)
	}
}
