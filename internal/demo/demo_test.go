package demo

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/experiment/ramp"
)

func start(t *testing.T) *Demo {
	t.Helper()
	d, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// answer asks the built-in upstream large; status 0 means that no answer came.
func answer(t *testing.T, d *Demo, more string) (status int, body string) {
	t.Helper()
	c := &http.Client{Timeout: 2 * time.Second}
	resp, err := c.Post(d.servers["large"].URL()+"/chat/completions", "application/json", strings.NewReader(
		`{"model":"large","messages":[{"role":"system","content":"never say this"},{"role":"user","content":"hi"}]`+more+`}`))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, "cut: " + err.Error()
	}
	return resp.StatusCode, string(b)
}

func TestEveryWayFails(t *testing.T) {
	const tool, inJSON = `,"tools":[{}]`, `,"response_format":{"type":"json_object"}`
	for how, c := range map[string]struct {
		more   string
		status int
		has    string
	}{
		"400":      {"", 400, "BadRequestError"},
		"404":      {"", 404, "does not exist"},
		"500":      {"", 500, "scripted"},
		"empty":    {"", 200, `"content":""`},
		"truncate": {"", 200, "cut: "},
		"garbage":  {"", 200, "not json"},
		"json":     {inJSON, 200, `Sure! Here is the JSON`},
		"tools":    {tool, 200, `"arguments":"{\"q\": \"weath"`},
		"think":    {"", 200, `think\u003e`},
		"leak":     {"", 200, "never say this"},
		"hang":     {"", 0, "Timeout"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			if err := d.Break("large", how); err != nil {
				t.Fatal(err)
			}
			status, body := answer(t, d, c.more)
			if status != c.status || !strings.Contains(body, c.has) {
				t.Errorf("%d %s, want %d with %q", status, body, c.status, c.has)
			}
			if err := d.Break("large", ""); err != nil {
				t.Fatal(err)
			}
			for range 5 { // a healthy server fails now and then
				if status, body = answer(t, d, ""); status == 200 && strings.Contains(body, `"finish_reason":"stop"`) {
					return
				}
			}
			t.Errorf("healed, it answers %d %s", status, body)
		})
	}
}

// TestFlakySlowAndExpensive are seen in many answers only.
func TestFlakySlowAndExpensive(t *testing.T) {
	d := start(t)
	draw := func(how string) (failed, tokens int, first time.Duration) {
		if err := d.Break("large", how); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			b := d.behave(profiles[1])
			if b.Odds > 0 && b.Odds < 1 {
				failed++
			}
			tokens += b.Tokens
			first += b.TTFT
		}
		return failed, tokens, first
	}
	_, usual, quick := draw("")
	if _, _, first := draw("slow"); first < 15*quick || first > 25*quick {
		t.Errorf("first tokens after %v in all, usually %v: want 20 times as long", first, quick)
	}
	if failed, _, _ := draw("flaky"); failed != 2000 {
		t.Errorf("%d of 2000 answers may fail, want all", failed)
	}
	if _, many, _ := draw("expensive"); many < 5*usual || many > 7*usual {
		t.Errorf("%d tokens, usually %d: want six times as many", many, usual)
	}
}

func TestCrashLoop(t *testing.T) {
	d := start(t)
	if err := d.Break("large", "restart"); err != nil {
		t.Fatal(err)
	}
	s := d.servers["large"]
	for deadline := time.Now().Add(5 * time.Second); s.Restarts() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not crash")
		}
	}
	if status, _ := answer(t, d, ""); status != 0 {
		t.Errorf("status %d while it is away", status)
	}
	if err := d.Break("large", "500"); err != nil { // ends the loop
		t.Fatal(err)
	}
	d.crashing.Wait()
}

func TestHandler(t *testing.T) {
	d := start(t)
	h := d.Handler()
	do := func(method, path, body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	for _, c := range []struct {
		path, body string
		status     int
		want       string
		broken     string
	}{
		{"/demo/break", `{"upstream":"large"}`, 200, `{"broken":"500","upstream":"large"}`, `{"large":"500"}`},
		{"/demo/break", `{"upstream":"large","how":"slow"}`, 200, `{"broken":"slow","upstream":"large"}`, `{"large":"slow"}`},
		{"/demo/break", `{"all":true,"how":"400"}`, 200, `{"broken":"400","upstream":""}`, `{"large":"400","small":"400"}`},
		{"/demo/heal", `{"upstream":"small"}`, 200, `{"broken":"","upstream":"small"}`, `{"large":"400"}`},
		{"/demo/heal", `{"all":true,"how":"500"}`, 200, `{"broken":"","upstream":""}`, `{}`},
		{"/demo/break", `{"upstream":"huge"}`, 404, `they are large, small`, `{}`},
		{"/demo/break", `{"upstream":"large","how":"melt"}`, 404, `the ways are 400, 404, 500`, `{}`},
		{"/demo/break", `{"all":true,"how":"melt"}`, 404, `the ways are`, `{}`},
		{"/demo/break", `large`, 400, `send {"upstream"`, `{}`},
	} {
		status, body := do("POST", c.path, c.body)
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, status, body, c.status, c.want)
		}
		_, state := do("GET", "/demo/", "")
		if !strings.Contains(state, `"broken":`+c.broken) || !strings.Contains(state, `"upstreams":["large","small"]`) {
			t.Errorf("after %s %s: %s, want broken %s", c.path, c.body, state, c.broken)
		}
	}
}

// TestDocument: what the demo starts with is what the ramp's own reader accepts,
// and users ask for every model of it.
func TestDocument(t *testing.T) {
	d := start(t)
	doc := d.Document()
	for _, m := range doc.Models {
		if !slices.Contains(Models, m.Name) {
			t.Errorf("nobody asks for %s", m.Name)
		}
	}
	for _, e := range doc.Experiments {
		if e.Key != Ramp {
			continue
		}
		c, err := ramp.Parse(e.Ramp)
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.Guardrails(e.Guardrails, false)
		if err != nil || len(list) < 10 {
			t.Errorf("%d guardrails, %v", len(list), err)
		}
	}
}

func TestUsersAskForToolsAndJSON(t *testing.T) {
	tools, inJSON := 0, 0
	for range 1000 {
		req := ask("assist", "u")
		if raw, err := json.Marshal(req); err != nil || !strings.Contains(string(raw), `"role":"system"`) {
			t.Fatalf("%s, %v", raw, err)
		}
		if req.Tools != nil {
			tools++
		}
		if req.ResponseFormat != nil {
			inJSON++
		}
	}
	if tools < 120 || tools > 280 || inJSON < 120 || inJSON > 280 {
		t.Errorf("%d with tools and %d for JSON of 1000, want about 200 each", tools, inJSON)
	}
}
