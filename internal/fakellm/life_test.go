package fakellm

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/engine"
)

func page(t *testing.T, s *Server) string {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// eventually waits for something that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal(what)
}

// TestMetricsByDialect: the gateway's own reader understands each page, and what
// waits is not counted as running.
func TestMetricsByDialect(t *testing.T) {
	for _, dialect := range []string{"vllm", "sglang", "tgi", "llamacpp"} {
		t.Run(dialect, func(t *testing.T) {
			s, err := Start(Options{Dialect: dialect, Slots: 2, Default: Behaviour{Fault: Hang}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for range 5 {
				go func() {
					if resp, err := http.Post(s.URL()+"/chat/completions", "application/json", strings.NewReader(`{"model":"m"}`)); err == nil {
						resp.Body.Close()
					}
				}()
			}
			var got engine.Load
			eventually(t, "the load does not become 2 running and 3 waiting", func() bool {
				var ok bool
				got, ok = engine.ParseLoad(dialect, []byte(page(t, s)))
				return ok && got.Running == 2 && got.Waiting == 3
			})
			if d := cmp.Diff(engine.Load{Running: 2, Waiting: 3, KVUse: 1}, got); d != "" {
				t.Error(d)
			}
		})
	}
	s, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := page(t, s); !strings.Contains(got, "404") {
		t.Errorf("openai has a page of metrics: %s", got)
	}
}

// started reads the process's start from a page.
func started(t *testing.T, page string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^process_start_time_seconds (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no start time in %s", page)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestRestart: answers under way are cut, connections refused, and what comes
// back is a new process on the same address; the server's own books go on.
func TestRestart(t *testing.T) {
	s, err := Start(Options{Dialect: "vllm"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if resp := post(t, s.URL()+"/chat/completions", `{"model":"m"}`); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	before := page(t, s)
	s.Set(Behaviour{Fault: Hang})
	cut := make(chan error, 1)
	go func() {
		resp, err := http.Post(s.URL()+"/chat/completions", "application/json", strings.NewReader(`{"model":"m"}`))
		if err == nil {
			resp.Body.Close()
		}
		cut <- err
	}()
	eventually(t, "the call does not arrive", func() bool { return s.Counts().InFlight == 1 })
	s.Restart(time.Hour)
	s.Restart(0) // during a restart: none
	if err := <-cut; err == nil {
		t.Error("an answer under way survived")
	}
	if _, err := http.Get("http://" + s.Addr() + "/health"); err == nil {
		t.Error("it accepts connections while it is away")
	}
	s.mu.Lock()
	s.away.Reset(0)
	s.mu.Unlock()
	eventually(t, "it does not come back", func() bool {
		resp, err := http.Get("http://" + s.Addr() + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	after := page(t, s)
	if a, b := started(t, before), started(t, after); !(b > a) {
		t.Errorf("it started at %v, before at %v", b, a)
	}
	for text, want := range map[string]string{before: "8.0", after: "0.0"} {
		if !strings.Contains(text, fmt.Sprintf(`vllm:generation_tokens_total{engine="0",model_name="fake"} %s`, want)) {
			t.Errorf("want %s generated tokens in\n%s", want, text)
		}
	}
	if c := s.Counts(); c.Calls != 2 || c.OutputTokens != 8 || s.Restarts() != 1 {
		t.Errorf("the books do not go on: %+v, %d restarts", c, s.Restarts())
	}
}

func TestCloseEndsARestart(t *testing.T) {
	s, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Restart(time.Hour)
	s.Close()
	s.Close()
	s.rise()
	if _, err := http.Get(s.URL() + "/models"); err == nil {
		t.Error("it serves after Close")
	}
	s.Restart(0)
	if s.Restarts() != 1 {
		t.Error("a closed server restarts")
	}
}

// TestScriptedFaults are the failures that a gateway is to tell apart by status
// and text.
func TestScriptedFaults(t *testing.T) {
	long := strings.Repeat("word ", 200)
	for name, c := range map[string]struct {
		b      Behaviour
		o      Options
		body   string
		status int // 0: no answer
		has    string
	}{
		"rejected":              {b: Behaviour{Fault: Status, Status: 400}, body: `{}`, status: 400, has: `"type":"BadRequestError"`},
		"wrong served name":     {b: Behaviour{Fault: Unserved}, body: `{"model":"gpt-x"}`, status: 404, has: "The model `gpt-x` does not exist."},
		"never by odds":         {b: Behaviour{Fault: Status, Status: 503, Odds: 1e-300}, body: `{}`, status: 200},
		"always by odds":        {b: Behaviour{Fault: Status, Status: 503, Odds: 1}, body: `{}`, status: 503},
		"short enough":          {b: Behaviour{Fault: Die, Over: 100}, body: `{}`, status: 200},
		"out of memory":         {b: Behaviour{Fault: Die, Over: 100, Down: time.Hour}, body: `{"messages":[{"role":"user","content":"` + long + `"}]}`},
		"too long":              {o: Options{MaxModelLen: 100}, body: `{"messages":[{"role":"user","content":"` + long + `"}]}`, status: 400, has: "maximum context length is 100 tokens"},
		"no tool parser":        {b: Behaviour{Rejects: []string{"tools"}}, body: `{"tools":[{}]}`, status: 400, has: "--enable-auto-tool-choice"},
		"one choice":            {b: Behaviour{Rejects: []string{"n"}}, body: `{"n":2}`, status: 400, has: "n must be 1"},
		"no json":               {b: Behaviour{Rejects: []string{"json"}}, body: `{"response_format":{"type":"json_schema"}}`, status: 400, has: "response_format"},
		"no images":             {b: Behaviour{Rejects: []string{"image"}}, body: `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, status: 400, has: "0 image"},
		"no logprobs":           {b: Behaviour{Rejects: []string{"logprobs"}}, body: `{"logprobs":true}`, status: 400, has: "logprobs"},
		"no stop":               {b: Behaviour{Rejects: []string{"stop"}}, body: `{"stop":["x"]}`, status: 400, has: "stop is not"},
		"does what it is asked": {b: Behaviour{Rejects: []string{"tools", "n", "json", "image", "logprobs", "stop"}}, body: `{"n":1,"logprobs":false}`, status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Dialect, c.o.Default = "vllm", c.b
			s, err := Start(c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			resp, err := http.Post(s.URL()+"/chat/completions", "application/json", strings.NewReader(c.body))
			if err != nil {
				if c.status != 0 {
					t.Fatal(err)
				}
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(string(body), c.has) {
				t.Errorf("%d %s, want %d with %q", resp.StatusCode, body, c.status, c.has)
			}
		})
	}
}
