package upstream

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sluice/upstream/wire"
)

func TestApplyKeepsWhatIsTheSame(t *testing.T) {
	one, two := okPeer(t), okPeer(t)
	cfg := Config{Name: "a", Endpoints: []string{one.url()}}
	p, first := pool(t, cfg, Config{Name: "b", Endpoints: []string{one.url()}})
	do(t, p, request(t, chatBody, to(first["a"])))

	cfg.Endpoints = []string{one.url() + "/"} // the same in another spelling
	same, err := p.Apply([]Config{cfg, {Name: "b", Endpoints: []string{one.url()}}})
	if err != nil || same["a"] != first["a"] || same["b"] != first["b"] {
		t.Fatalf("an unchanged upstream was replaced: %v", err)
	}
	if first["a"].endpoints()[0] == first["b"].endpoints()[0] {
		t.Error("two upstreams share an endpoint")
	}

	cfg.Endpoints = append(cfg.Endpoints, two.url())
	cfg.Credential = "key"
	changed, err := p.Apply([]Config{cfg})
	if err != nil || changed["a"] == first["a"] || len(changed) != 1 {
		t.Fatalf("%v %v", changed, err)
	}
	if changed["a"].endpoints()[0] != first["a"].endpoints()[0] || !changed["a"].endpoints()[0].ready.Load() {
		t.Error("the endpoint was not kept")
	}
	set := changed["a"].endpoints()[0].set.Load()
	conns := one.conns.Load()
	do(t, p, request(t, chatBody, to(changed["a"])))
	if set.auth != "Bearer key" || one.conns.Load() > conns {
		t.Errorf("auth %q, %d new connections", set.auth, one.conns.Load()-conns)
	}
	// A request of an older table still works.
	if res, _ := do(t, p, request(t, chatBody, to(first["b"]))); res.Outcome != Success {
		t.Errorf("removed upstream: %s", res.Outcome)
	}
	cfg.Timeouts.Connect = 1 // connections depend on it
	if changed, err = p.Apply([]Config{cfg}); err != nil || changed["a"].endpoints()[0].set.Load().carrier == set.carrier {
		t.Errorf("the connections were kept: %v", err)
	}
	p.Close()
	if _, err := p.Apply(nil); err == nil {
		t.Error("Apply after Close")
	}
}

// A stream that began before its upstream was changed or removed goes on.
func TestStreamSurvivesApply(t *testing.T) {
	goOn := make(chan struct{})
	up := newPeer(t, func(tn *turn) {
		tn.head(200, "text/event-stream")
		tn.chunk(roleEvent + event("a", ""))
		<-goOn
		tn.chunk(event("b", "stop") + usageEvent + doneEvent)
		tn.finish()
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	var once sync.Once
	rec := &recorder{onWrite: func(int) error {
		once.Do(func() {
			for _, cfgs := range [][]Config{{{Name: "a", Endpoints: []string{up.url()}, Credential: "x", Timeouts: Timeouts{Connect: 1e9}}}, nil} {
				if _, err := p.Apply(cfgs); err != nil {
					t.Error(err)
				}
			}
			close(goOn)
		})
		return nil
	}}
	res := p.Do(context.Background(), request(t, usageBody, to(ups["a"])), rec)
	if res.Outcome != Success || !strings.HasSuffix(rec.text(), doneEvent) {
		t.Errorf("%s: %q", res.Outcome, rec.text())
	}
}

func TestConfigErrors(t *testing.T) {
	p := NewPool(PoolOptions{})
	defer p.Close()
	old, err := p.Apply([]Config{{Name: "keep", Endpoints: []string{"http://127.0.0.1:9/v1"}}})
	if err != nil {
		t.Fatal(err)
	}
	ok := []string{"http://h/v1"}
	bad := filepath.Join(t.TempDir(), "bad.pem")
	os.WriteFile(bad, []byte("no"), 0o600)
	for _, tt := range []struct {
		want string
		cfgs []Config
	}{
		{"no name", []Config{{Endpoints: ok}}},
		{"defined twice", []Config{{Name: "a"}, {Name: "a"}}},
		{"listed twice", []Config{{Name: "a", Endpoints: []string{"http://h", "http://h/v1/"}}}},
		{"unknown dialect", []Config{{Name: "a", Dialect: "ollama"}}},
		{"usage: exact", []Config{{Name: "a", Dialect: wire.TGI, UsageExact: true}}},
		{"usage: exact", []Config{{Name: "a", UsageExact: true}}},
		{"unknown balance", []Config{{Name: "a", Balance: "random"}}},
		{"scheme", []Config{{Name: "a", Endpoints: []string{"ftp://h"}}}},
		{"line break", []Config{{Name: "a", Credential: "a\nb"}}},
		{"cert_file and key_file", []Config{{Name: "a", TLS: TLS{CertFile: "x"}}}},
		{"ca_file", []Config{{Name: "a", Endpoints: []string{"https://h"}, TLS: TLS{CAFile: "/does/not/exist"}}}},
		{"PEM", []Config{{Name: "a", Endpoints: []string{"https://h"}, TLS: TLS{CAFile: bad}}}},
		{"must start with /", []Config{{Name: "a", Readiness: Readiness{Path: "health"}}}},
	} {
		if _, err := p.Apply(tt.cfgs); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want an error with %q", err, tt.want)
		}
	}
	now, err := p.Apply([]Config{{Name: "keep", Endpoints: []string{"http://127.0.0.1:9/v1"}}})
	if err != nil || now["keep"] != old["keep"] {
		t.Errorf("a refused configuration changed something: %v", err)
	}
}

// The readiness check of each dialect, against what its servers answer.
func TestDialectChecks(t *testing.T) {
	type reply = map[string]string // path → "status body"
	tests := []struct {
		dialect wire.Dialect
		path    string
		answers reply
		state   string
	}{
		{wire.OpenAI, "", reply{"/v1/models": "200 {}"}, stateReady},
		{wire.OpenAI, "", reply{"/v1/models": "401 {}"}, stateReady},
		{wire.OpenAI, "", reply{"/v1/models": "403 {}"}, stateReady},
		{wire.OpenAI, "", reply{"/v1/models": "404 {}"}, stateReady},
		{wire.OpenAI, "", reply{"/v1/models": "405 {}"}, stateReady},
		{wire.OpenAI, "", reply{"/v1/models": "500 {}"}, stateFailing},
		{wire.OpenAI, "", reply{"/v1/models": "302 {}"}, stateFailing},
		{wire.OpenAI, "", reply{"/v1/models": "503 {}"}, stateLoading},
		{wire.VLLM, "", reply{"/health": "200 "}, stateReady},
		{wire.VLLM, "", reply{"/health": "503 "}, stateLoading},
		{wire.VLLM, "", reply{"/health": "200 ", "/is_sleeping": `200 {"is_sleeping":true}`}, stateAsleep},
		{wire.VLLM, "", reply{"/health": "200 ", "/is_sleeping": `200 {"is_sleeping":false}`}, stateReady},
		{wire.VLLM, "", reply{"/health": "200 ", "/metrics": "200 # HELP\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1.0\n"}, stateAsleep},
		{wire.VLLM, "", reply{"/health": "200 ", "/metrics": "200 vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 1.0\n"}, stateReady},
		{wire.VLLM, "", reply{"/health": "404 "}, stateFailing},
		{wire.TGI, "", reply{"/health": "200 "}, stateReady},
		{wire.TGI, "", reply{"/health": `503 {"error":"unhealthy","error_type":"healthcheck"}`}, stateLoading},
		{wire.SGLang, "", reply{"/health": "200 "}, stateReady},
		{wire.SGLang, "", reply{"/health": "503 "}, stateLoading},
		{wire.LlamaCPP, "", reply{"/health": `200 {"status":"ok"}`}, stateReady},
		{wire.LlamaCPP, "", reply{"/health": `503 {"error":{"message":"Loading model"}}`}, stateLoading},
		{wire.OpenAI, "/custom/ready", reply{"/custom/ready": "204 "}, stateReady},
		{wire.VLLM, "/custom/ready", reply{"/custom/ready": "500 "}, stateFailing},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.dialect, tt.answers), func(t *testing.T) {
			t.Parallel()
			up := okPeer(t)
			var mu sync.Mutex
			var auth string
			up.check = func(tn *turn) {
				mu.Lock()
				auth = tn.req.Header.Get("Authorization")
				mu.Unlock()
				status, body := 404, ""
				if a, ok := tt.answers[tn.req.URL.Path]; ok {
					fmt.Sscan(a, &status)
					_, body, _ = strings.Cut(a, " ")
				}
				if status == 204 {
					tn.send("HTTP/1.1 204 X\r\n\r\n")
					return
				}
				tn.reply(status, "text/plain", body)
			}
			_, ups := pool(t, Config{Name: "a", Dialect: tt.dialect, Endpoints: []string{up.url()}, Credential: "k", Readiness: Readiness{Path: tt.path}})
			s := ups["a"].Status()[0]
			if s.State != tt.state || s.Ready != (tt.state == stateReady) || (s.Reason == "") != s.Ready {
				t.Errorf("%+v, want %s", s, tt.state)
			}
			mu.Lock()
			defer mu.Unlock()
			if auth != "Bearer k" {
				t.Errorf("the check sent %q", auth)
			}
		})
	}
	_, ups := pool(t, Config{Name: "a", Endpoints: []string{"http://127.0.0.1:1/v1"}})
	if s := ups["a"].Status()[0]; s.State != stateUnreachable || !strings.Contains(s.Reason, "connection refused") {
		t.Errorf("%+v", s)
	}
}

// The alarm of a refused credential names the upstream and never the key.
func TestCredentialAlarm(t *testing.T) {
	var log bytes.Buffer
	up := newPeer(t, func(tn *turn) { tn.reply(401, "application/json", `{"error":"your key sk-CANARY is wrong"}`) })
	p, ups := poolWith(t, PoolOptions{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))},
		Config{Name: "a", Endpoints: []string{up.url()}, Credential: "sk-CANARY"})
	for range 5 {
		res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
		if f := res.Failure; res.Outcome != Error || f.Status != 502 || strings.Contains(f.Message+string(f.Body)+fmt.Sprint(res.Attempts[0].Err), "CANARY") {
			t.Errorf("%+v", f)
		}
	}
	p.Close()
	if s := log.String(); strings.Count(s, "credential") != 2 || strings.Contains(s, "CANARY") { // message and hint of one line
		t.Errorf("log %s", s)
	}
}

// TLS and HTTP/2: own roots, no trust without them, streams and cancel.
func TestTLS(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2=", h2), func(t *testing.T) {
			gone := make(chan struct{}, 1)
			var proto string
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					w.WriteHeader(404)
					return
				}
				proto = r.Proto
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, roleEvent+event("a", ""))
				w.(http.Flusher).Flush()
				if r.Header.Get("Openai-Beta") == "hang" {
					<-r.Context().Done()
					gone <- struct{}{}
					return
				}
				fmt.Fprint(w, event("b", "stop")+usageEvent+doneEvent)
			}))
			srv.EnableHTTP2 = h2
			srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			srv.StartTLS()
			defer srv.Close()
			ca := filepath.Join(t.TempDir(), "ca.pem")
			os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600)
			p, ups := pool(t,
				Config{Name: "a", Endpoints: []string{srv.URL}, TLS: TLS{CAFile: ca}},
				Config{Name: "untrusted", Endpoints: []string{srv.URL}})
			if s := ups["untrusted"].Status()[0]; s.Ready || !strings.Contains(s.Reason, "TLS certificate") {
				t.Errorf("%+v", s)
			}
			res, rec := do(t, p, request(t, usageBody, to(ups["a"])))
			if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]; res.Outcome != Success || !strings.HasSuffix(rec.text(), doneEvent) || proto != want {
				t.Fatalf("%s over %s: %q", res.Outcome, proto, rec.text())
			}
			ctx, cancel := context.WithCancel(context.Background())
			r := request(t, usageBody, to(ups["a"]))
			r.Header.Set("Openai-Beta", "hang")
			res = p.Do(ctx, r, &recorder{onWrite: func(int) error { cancel(); return nil }})
			<-gone
			if res.Outcome != Canceled {
				t.Errorf("%s", res.Outcome)
			}
			p.Close()
		})
	}
}

func TestDeniedField(t *testing.T) {
	up := okPeer(t)
	p, ups := pool(t,
		Config{Name: "v", Dialect: wire.VLLM, Endpoints: []string{up.url()}},
		Config{Name: "none", Dialect: wire.VLLM, Endpoints: []string{up.url()}, DenyFields: []string{}},
		Config{Name: "own", Endpoints: []string{up.url()}, DenyFields: []string{"seed"}})
	_ = p
	for _, tt := range []struct{ up, body, want string }{
		{"v", `{"model":"m","priority":1}`, "priority"},
		{"v", `{"model":"m","pri\u006frity":1}`, "priority"},
		{"v", `{"model":"m","seed":1}`, ""},
		{"none", `{"model":"m","priority":1}`, ""},
		{"own", `{"model":"m","seed":1}`, "seed"},
		{"own", `{"model":"m","metadata":{"seed":1}}`, ""},
	} {
		h, ferr := wire.Scan([]byte(tt.body), wire.Chat)
		if ferr != nil {
			t.Fatal(ferr)
		}
		if got, denied := ups[tt.up].DeniedField(&h, []byte(tt.body)); got != tt.want || denied != (tt.want != "") {
			t.Errorf("%s %s: %q", tt.up, tt.body, got)
		}
	}
}
