package upstream

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"sluice/upstream/wire"
)

func TestErrorMapping(t *testing.T) {
	var fx struct {
		Cases []struct {
			From        string
			Status      int
			ContentType string          `json:"content_type"`
			Body        json.RawMessage `json:"body"`
			Base64      string          `json:"body_base64"`
			Client      map[string]any
		}
	}
	loadHTTP(t, "error_mapping.json", &fx)
	for _, c := range fx.Cases {
		if c.Status == 0 {
			continue // made by the gateway: TestRetryPolicy, TestNoReadyEndpoint
		}
		t.Run(c.From, func(t *testing.T) {
			body := string(c.Body)
			var s string
			if json.Unmarshal(c.Body, &s) == nil {
				body = s
			}
			if c.Base64 != "" {
				b, _ := base64.StdEncoding.DecodeString(c.Base64)
				body = string(b)
			}
			if c.ContentType == "" {
				c.ContentType = "application/json"
			}
			up := newPeer(t, func(tn *turn) { tn.reply(c.Status, c.ContentType, body) })
			p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
			res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
			f := res.Failure
			if f == nil {
				t.Fatalf("no failure: %+v", res)
			}
			sent := f.Body
			if sent == nil {
				sent = wire.AppendEnvelope(nil, f.Message, f.Type, f.Param, f.Code)
			}
			var env struct {
				Error struct {
					Message, Type string
					Code          any
				}
			}
			if err := json.Unmarshal(sent, &env); err != nil {
				t.Fatalf("the client's body is not an envelope: %v\n%s", err, sent)
			}
			for k, want := range c.Client {
				switch k {
				case "status":
					if float64(f.Status) != want {
						t.Errorf("status %d, want %v", f.Status, want)
					}
				case "body":
					if string(sent) != body {
						t.Errorf("body %s, want identical", sent)
					}
				case "error.type":
					if env.Error.Type != want {
						t.Errorf("type %q, want %q", env.Error.Type, want)
					}
				case "error.message":
					w := want.(string)
					if in, ok := strings.CutPrefix(w, "contains "); ok {
						if !strings.Contains(env.Error.Message, strings.Trim(in, "'")) {
							t.Errorf("message %q, want it to contain %s", env.Error.Message, in)
						}
					} else if w == "non-empty" && env.Error.Message == "" || w != "non-empty" && env.Error.Message != w {
						t.Errorf("message %q, want %q", env.Error.Message, w)
					}
				case "must_not_contain":
					if strings.Contains(string(sent), want.(string)) {
						t.Errorf("body %s", sent)
					}
				}
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"Retry-After", "30", "30"},
		{"Retry-After", "Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT"},
		{"Retry-After", "-5", ""},
		{"Retry-After", "soon", ""},
		{"Retry-After", "NaN", ""},
		{"Retry-After", "99999999999", "86400"},
		{"Retry-After-Ms", "1500", "1500"},
		{"Retry-After-Ms", "-1", ""},
	} {
		up := newPeer(t, func(tn *turn) {
			tn.reply(429, "application/json", "{}", tt.name+": "+tt.value, "X-Ratelimit-Limit-Tokens: 5")
		})
		p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
		res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
		f := res.Failure
		if got := f.RetryAfter + f.RetryMS; got != tt.want || f.Header.Get("X-Ratelimit-Limit-Tokens") != "5" || f.Status != 429 || f.Code != "upstream_rate_limited" {
			t.Errorf("%s %q: passed %q, want %q; failure %+v", tt.name, tt.value, got, tt.want, f)
		}
	}
	// Everything rate limited: the shortest wait.
	limit := func(after string) string {
		return newPeer(t, func(tn *turn) { tn.reply(429, "application/json", "{}", "Retry-After: "+after) }).url()
	}
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{limit("30"), limit("7"), limit("20")}})
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if res.Failure.RetryAfter != "7" || len(res.Attempts) != 3 || res.Failure.NoRetry {
		t.Errorf("all limited: %+v after %q", res.Failure, outcomes(res))
	}
}
