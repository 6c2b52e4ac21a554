package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
	"sluice/internal/fakellm"
	"sluice/upstream"
)

// nobody takes an answer away.
type nobody struct{ h http.Header }

func (w *nobody) Header() http.Header         { return w.h }
func (w *nobody) Write(p []byte) (int, error) { return len(p), nil }
func (w *nobody) WriteHeader(int)             {}
func (w *nobody) Flush()                      {}

func (w *nobody) SetWriteDeadline(time.Time) error { return nil }
func (w *nobody) SetReadDeadline(time.Time) error  { return nil }

// BenchmarkExchange is what the server itself costs a request of 1 KB, without
// any network: from the header to the event, by an upstream that answers at once.
// The trials are those of the built-in guardrails.
func BenchmarkExchange(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprint("watched=", watched), func(b *testing.B) {
			a, c := fake(b, fakellm.Options{}), fake(b, fakellm.Options{})
			trials := trial.NewCollector(nil)
			answer := []byte(`{"id":"c","object":"chat.completion","choices":[]}`)
			p := newPlane(b, twoVariants(a.URL(), c.URL(), 5000, 5000), func(conf *Config) {
				conf.Trials, conf.Recorder = trials, discard{}
				conf.Doer = doer(func(ctx context.Context, r *upstream.Request, s upstream.Sink) upstream.Result {
					target, _, _ := r.Next(0, nil, true)
					r.Sent()
					list := []upstream.Attempt{{Target: target, Endpoint: "e", Outcome: upstream.Success, Status: 200, Start: time.Now(), HasUsage: true}}
					for _, told := range []bool{false, true} {
						if r.Progress != nil {
							r.Progress(told, time.Millisecond)
						}
					}
					s.Commit(upstream.Meta{Status: 200, Header: http.Header{}, Length: int64(len(answer)), Target: target, Attempts: 1})
					s.Write(answer)
					if r.Ended != nil {
						r.Ended(&list[0])
					}
					return upstream.Result{Outcome: upstream.Success, Status: 200, Committed: true, Served: target, Attempts: list}
				})
			})
			if watched {
				watchDefaults(b, p, trials)
			}
			h, body := p.srv.Handler(), ask(strings.Repeat("some words ", 90), false)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req := httptest.NewRequest("POST", "/v1/chat/completions", io.NopCloser(strings.NewReader(body)))
				req.Header["X-User-Id"] = []string{fmt.Sprint("user-", i%1000)}
				h.ServeHTTP(&nobody{http.Header{}}, req)
			}
		})
	}
}

func watchDefaults(b *testing.B, p *plane, c *trial.Collector) {
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"error"},{"metric":"slow_ttfa","threshold":"2s"},{"metric":"cost_per_request"}]`), false)
	if err != nil {
		b.Fatal(err)
	}
	thresholds, _ := trial.Fix(configs, new(trial.Profile))
	plan, err := trial.NewPlan(configs, trial.Setup{Thresholds: thresholds})
	if err != nil {
		b.Fatal(err)
	}
	e, _ := p.live.Load().Experiment("exp")
	c.Set(map[string]*trial.Watch{"exp": {Experiment: "exp", Generation: e.Generation, Epoch: 1, Variants: 2, Configs: configs, Plan: plan, Breaker: true}})
}
