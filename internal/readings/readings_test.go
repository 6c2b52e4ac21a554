package readings

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sluice/experiment/guardrail"
	"sluice/internal/testenv"
	"sluice/router"
	"sluice/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// round answers without a network.
type round func(*http.Request) (*http.Response, error)

func (f round) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func says(status int, body string) round {
	return func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(status)
		w.WriteString(body)
		return w.Result(), nil
	}
}

func vector(value string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"` + value + `"]}]}}`
}

func limit(url, query string) *guardrail.Config {
	return &guardrail.Config{Source: "prometheus", URL: url, Query: query}
}

// Nothing but one finite number is a reading: what is not one holds a ramp.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		server round
		value  float64
		why    string
	}{
		{"a vector of one", says(200, vector("0.25")), 0.25, ""},
		{"a scalar", says(200, `{"status":"success","data":{"resultType":"scalar","result":[1,"3"]}}`), 3, ""},
		{"NaN", says(200, vector("NaN")), 0, "the query's result is not a finite number"},
		{"infinity", says(200, vector("+Inf")), 0, "the query's result is not a finite number"},
		{"nothing", says(200, `{"status":"success","data":{"resultType":"vector","result":[]}}`), 0, "the query has no result"},
		{"two", says(200, `{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"1"]},{"value":[1,"2"]}]}}`), 0, "the query has 2 results; aggregate it to one, as by max()"},
		{"a matrix", says(200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`), 0, "the query's result is neither a scalar nor an instant vector"},
		{"words", says(200, vector("many")), 0, errMalformed.Error()},
		{"a number that is no string", says(200, `{"status":"success","data":{"resultType":"scalar","result":[1,3]}}`), 0, errMalformed.Error()},
		{"not JSON", says(200, "<html>"), 0, "status 200 and no answer of Prometheus; correct the url"},
		{"a wrong query", says(400, `{"status":"error","errorType":"bad_data","error":"secret text"}`), 0, "the server does not understand the query"},
		{"a failure", says(503, `{"status":"error","errorType":"timeout"}`), 0, "the query failed with status 503"},
		{"a redirect", says(302, ``), 0, "status 302 and no answer of Prometheus; correct the url"},
		{"too long", says(200, strings.Repeat(" ", maxAnswer+1)), 0, "the answer is longer than 1048576 bytes; aggregate the query to one value"},
		{"nobody there", func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("dial 10.0.0.1: secret") }, 0, "the server cannot be reached"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := New(Options{Client: c.server})
				defer r.Close()
				g := limit("http://prom:9090/", "max(x)")
				if _, known := r.Read("exp", "canary", g); known {
					t.Error("a reading before the first answer")
				}
				synctest.Wait()
				value, known := r.Read("exp", "canary", g)
				if value != c.value || known != (c.why == "") || r.Why("exp", "canary", g) != c.why {
					t.Errorf("%v %v: %q, want %v %q", value, known, r.Why("exp", "canary", g), c.value, c.why)
				}
			})
		})
	}
}

// A query is asked every 5 s at most, and its answer not believed after 20 s.
func TestFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, server := 0, says(200, vector("1"))
		r := New(Options{Client: round(func(req *http.Request) (*http.Response, error) { asked++; return server(req) })})
		defer r.Close()
		g := limit("http://prom:9090", "x")
		read := func() (known bool) { _, known = r.Read("e", "v", g); synctest.Wait(); return known }
		for range 100 {
			read()
			time.Sleep(100 * time.Millisecond)
		}
		if asked != 2 {
			t.Errorf("asked %d times in 10 s", asked)
		}
		server = func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		time.Sleep(old + time.Second)
		read() // sends the next, which hangs
		if read() {
			t.Error("a reading of 20 s ago is believed")
		}
		time.Sleep(timeout + time.Second)
		if why := r.Why("e", "v", g); why != "the server does not answer within 5s" {
			t.Errorf("%q", why)
		}
	})
}

// A document sends the gateway nowhere but where its operator allows.
func TestWhereQueriesGo(t *testing.T) {
	r := New(Options{Servers: []string{"https://Prom.example.com/base/"}, Client: says(200, vector("1"))})
	defer r.Close()
	for url, want := range map[string]string{
		"https://prom.example.com/base":      "",
		"https://prom.example.com:443/base/": "",
		"http://prom.example.com/base":       "the server is none of guardrails.prometheus in the process settings",
		"https://prom.example.com/":          "the server is none of guardrails.prometheus in the process settings",
		"https://prom.example.com.evil/base": "the server is none of guardrails.prometheus in the process settings",
		"https://u:p@prom.example.com/base":  "the url has a user or password, which a document may not hold",
		"https://prom.example.com/base?x=1":  "the url has a query; write the base URL alone",
		"file:///etc/passwd":                 "the url is not one of http or https",
		"":                                   "the url is not one of http or https",
		"://":                                "the url is not one of http or https",
	} {
		if _, why := r.allowed(source{url, "x"}); why != want {
			t.Errorf("%q: %q, want %q", url, why, want)
		}
	}
	for i := range maxQueries + 5 {
		r.Read("e", "v", limit("https://prom.example.com/base", fmt.Sprint("x", i)))
	}
	if n := len(r.queries); n != maxQueries {
		t.Errorf("%d queries are kept", n)
	}
}

// What engines say is a reading only when all of those with traffic say it.
func TestEngines(t *testing.T) {
	all := upstream.EngineStatus{Endpoints: 2, Told: 2, MaxWaiting: 7, MaxKVUse: 0.9, Preempted: 3, Restarts: 4}
	for _, c := range []struct {
		s      upstream.EngineStatus
		metric string
		value  float64
		why    string
	}{
		{all, guardrail.Waiting, 7, ""}, {all, guardrail.KVUse, 0.9, ""}, {all, guardrail.Preemptions, 3, ""}, {all, guardrail.Restarts, 4, ""},
		{upstream.EngineStatus{Restarts: 2}, guardrail.Restarts, 2, ""},
		{upstream.EngineStatus{}, guardrail.Waiting, 0, "no endpoint of v2 is ready"},
		{upstream.EngineStatus{Endpoints: 3, Told: 1}, guardrail.Waiting, 0, "2 of 3 endpoints of v2 do not tell their load"},
		{upstream.EngineStatus{Endpoints: 1, Told: 1, MaxKVUse: -1, Preempted: -1}, guardrail.KVUse, 0, "the engines of v2 do not tell kv_use"},
		{upstream.EngineStatus{Endpoints: 1, Told: 1, MaxKVUse: -1, Preempted: -1}, guardrail.Preemptions, 0, "the engines of v2 do not tell preemptions"},
	} {
		if value, why := engine(c.s, "v2", c.metric); value != c.value || why != c.why {
			t.Errorf("%+v %s: %v %q", c.s, c.metric, value, why)
		}
	}
	r := New(Options{Table: func() *router.Table { return nil }})
	defer r.Close()
	if _, known := r.Read("exp", "canary", &guardrail.Config{Source: "engine", Metric: guardrail.Waiting}); known {
		t.Error("a reading without a table")
	}
}

// The real one.
func TestPrometheus(t *testing.T) {
	base := testenv.Prometheus(t, "global: { scrape_interval: 1s }\n")
	r := New(Options{Servers: []string{base}})
	defer r.Close()
	read := func(query string) (value float64, why string) {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			value, known := r.Read("e", "v", limit(base, query))
			if why = r.Why("e", "v", limit(base, query)); known || why != "the first answer is not there yet" {
				return value, why
			}
		}
		return 0, why
	}
	for query, want := range map[string]string{"vector(0.25)": "", "scalar(vector(3))": "", "vector(0)/0": "the query's result is not a finite number", "nothing": "the query has no result", "max(": "the server does not understand the query"} {
		if value, why := read(query); why != want || want == "" && value == 0 {
			t.Errorf("%s: %v %q, want %q", query, value, why, want)
		}
	}
}
