package upstream

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

const goodTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// B040, B042, B084, B091: what may reach an upstream.
func TestRequestHeaders(t *testing.T) {
	up := okPeer(t)
	p, ups := pool(t,
		Config{Name: "open", Endpoints: []string{up.url()}, ReqHeaders: []string{"x-extra", "authorization", "cookie", "x-sluice-variant", "te", "x-forwarded-for", "accept-encoding"}},
		Config{Name: "keyed", Endpoints: []string{up.url()}, Credential: "secret"})
	h := http.Header{}
	for _, k := range strings.Fields(`Authorization X-Api-Key Api-Key X-Goog-Api-Key Cookie Proxy-Authorization Keep-Alive Te Trailer
		Transfer-Encoding Upgrade Expect X-Secret X-Sluice-Variant X-Forwarded-For X-Forwarded-Host Host Content-Length Accept-Encoding X-Vllm-Priority
		X-Data-Parallel-Rank X-Conversation-Id X-Override-Rid X-Session-Id X-Smg-Routing-Key Openai-Organization
		Openai-Project X-Request-Id Idempotency-Key Endpoint-Load-Metrics-Format X-Unknown X-Stainless-Retry-Count`) {
		h.Set(k, "CANARY")
	}
	h.Set("Connection", "keep-alive, x-secret, X-Extra")
	for k, v := range map[string]string{
		"Content-Type": "application/json; charset=utf-8", "Accept": "text/event-stream", "User-Agent": "OpenAI/Python 1",
		"Traceparent": goodTrace, "Tracestate": "a=b", "Openai-Beta": "x", "X-Extra": "named by Connection",
	} {
		h.Set(k, v)
	}
	r := request(t, chatBody, to(ups["open"]))
	r.Header = h
	before, _ := json.Marshal(h)
	do(t, p, r)
	if after, _ := json.Marshal(h); string(after) != string(before) {
		t.Error("the client's header was changed")
	}
	got := up.last().req.Header
	for k, vv := range got {
		if strings.Contains(strings.Join(vv, ""), "CANARY") || k == "X-Extra" {
			t.Errorf("%s reached the upstream: %q", k, vv)
		}
	}
	for k, want := range map[string]string{
		"Content-Type": "application/json; charset=utf-8", "Accept": "text/event-stream", "User-Agent": "OpenAI/Python 1",
		"Traceparent": goodTrace, "Tracestate": "a=b", "Openai-Beta": "x", "X-Request-Id": "req-1", "Accept-Encoding": "identity",
	} {
		if got.Get(k) != want {
			t.Errorf("%s = %q, want %q", k, got.Get(k), want)
		}
	}
	if n := up.last().req.ContentLength; n != int64(len(chatBody)) {
		t.Errorf("content-length %d", n)
	}

	r = request(t, chatBody, to(ups["keyed"]))
	r.Header = http.Header{"Authorization": {"Bearer CANARY"}, "Traceparent": {"customer_request_42"}, "X-Extra": {"1"}}
	do(t, p, r)
	got = up.last().req.Header
	if got.Get("Authorization") != "Bearer secret" || got["User-Agent"] != nil || got["Traceparent"] != nil || got["X-Extra"] != nil || got.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", got)
	}
}

func TestEveryAttemptHasItsOwnRequestID(t *testing.T) {
	var ids []string
	up := newPeer(t, func(tn *turn) {
		ids = append(ids, tn.req.Header.Get("X-Request-Id"))
		tn.reply(503, "text/plain", "")
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	do(t, p, request(t, chatBody, to(ups["a"]), to(ups["a"]), to(ups["a"])))
	if strings.Join(ids, " ") != "req-1 req-1-1 req-1-2" {
		t.Errorf("ids %q", ids)
	}
}

func TestValidTraceparent(t *testing.T) {
	for s, want := range map[string]bool{
		goodTrace:                       true,
		"01" + goodTrace[2:] + "-extra": true,
		"":                              false,
		goodTrace + "-extra":            false,
		"ff" + goodTrace[2:]:            false,
		strings.ToUpper(goodTrace):      false,
		goodTrace[:54]:                  false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"customer_request_42":                             false,
		"01" + goodTrace[2:] + strings.Repeat("x", 1<<20): false,
	} {
		if got := validTraceparent(s); got != want {
			t.Errorf("%.80q: %v, want %v", s, got, want)
		}
	}
}

func TestNormalizeBase(t *testing.T) {
	for in, want := range map[string]string{
		"http://h":                         "http://h/v1",
		"http://h/":                        "http://h/v1",
		"http://h/v1":                      "http://h/v1",
		"http://h/v1/":                     "http://h/v1",
		"HTTP://H:8000//v1//":              "http://h:8000/v1",
		"http://h/openai/v1":               "http://h/openai/v1",
		"https://h/api/v1/":                "https://h/api/v1",
		"http://h/custom":                  "http://h/custom",
		"http://[::1]:8000":                "http://[::1]:8000/v1",
		"http://h/a%2Fb/v1":                "http://h/a%2Fb/v1",
		"dns:http://vllm-headless:8000/v1": "dns:http://vllm-headless:8000/v1",
		"":                                 "",
		"h:8000":                           "",
		"gpu1":                             "",
		"ftp://h":                          "",
		"http://":                          "",
		"http:///v1":                       "",
		"http://u:p@h/v1":                  "",
		"http://h/v1?key=1":                "",
		"http://h/v1?":                     "",
		"http://h/v1#":                     "",
		"http://h:0":                       "",
		"http://h:65536":                   "",
		"http://h:":                        "",
		"http://h /v1":                     "",
		"http://h\\@evil/":                 "",
		"http://h/v1/chat/completions":     "",
		"http://h/\x00":                    "",
		"http://b\u00fccher.example/v1":    "",
		"http://xn--bcher-kva.example":     "http://xn--bcher-kva.example/v1",
		"dns:":                             "",
	} {
		got, err := NormalizeBase(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
		if want != "" {
			if again, err := NormalizeBase(got); err != nil || again != got {
				t.Errorf("%q is not stable: %q, %v", got, again, err)
			}
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	u, _ := parseBase("http://h/openai/v1")
	if got := join(u, "/chat/completions").String() + " " + join(serverRoot(u), "/health").String() + " " + hostRoot(u).String(); got != "http://h/openai/v1/chat/completions http://h/openai/health http://h" {
		t.Errorf("joins %s", got)
	}
	if u, _ = parseBase("http://h/a%2Fb/v1"); join(u, "/models").String() != "http://h/a%2Fb/v1/models" {
		t.Errorf("escaped path: %s", join(u, "/models"))
	}
}
