package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

// told is what clients were told of one variant.
type told struct{ Requests, Input, Output int }

const engineUsers = 40

// books compares, for each variant, what the clients were told, the access log,
// /metrics and the ledger with the engine's own counters.
func (p *enginePair) books() {
	t := p.t
	before := p.settled(p.asked)
	var clients [2]told // of answers with usage
	silent := p.goSDK(&clients)
	p.python(&clients)
	total := 0
	for i := range clients {
		total += clients[i].Requests + silent[i]
	}
	after := p.settled(p.asked + total)
	for i := range after {
		after[i] = after[i].minus(before[i])
	}
	p.note("%-8s %8s | %-13s %-13s %-13s %-13s | %s", "variant", "requests", "engine in/out", "access log", "/metrics", "ledger", "SDKs were told (requests in/out)")
	for i, a := range after {
		c := clients[i]
		p.note("%-8s %8.0f | %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f | %d %d %d", p.variants[i], a.requests, a.engine[0], a.engine[1],
			a.log[0], a.log[1], a.metrics[0], a.metrics[1], a.ledger[0], a.ledger[1], c.Requests, c.Input, c.Output)
		if !a.agree() {
			t.Errorf("%s: tokens in/out: engine %v, access log %v, metrics %v, ledger %v", p.variants[i], a.engine, a.log, a.metrics, a.ledger)
		}
		if a.requests != float64(c.Requests+silent[i]) {
			t.Errorf("%s: %v requests in the access log, clients sent %d", p.variants[i], a.requests, c.Requests+silent[i])
		}
		if told := [2]float64{float64(c.Input), float64(c.Output)}; a.told != told {
			t.Errorf("%s: the SDKs were told %v tokens, the access log has %v for these requests", p.variants[i], told, a.told)
		}
		if a.requests == 0 || a.engine[1] == 0 {
			t.Errorf("%s got no traffic", p.variants[i])
		}
	}
	for _, l := range p.g.Access(0) {
		if l["estimated"] == true {
			t.Errorf("an estimate for a whole answer: %v", l)
		}
	}
}

// account is one variant's tokens, in and out, by book.
type account struct {
	requests                           float64
	engine, log, metrics, ledger, told [2]float64
}

func (a account) agree() bool {
	return a.engine == a.log && a.log == a.metrics && a.metrics == a.ledger
}

func (a account) minus(b account) account {
	a.requests -= b.requests
	for i := range a.engine {
		a.engine[i] -= b.engine[i]
		a.log[i] -= b.log[i]
		a.metrics[i] -= b.metrics[i]
		a.ledger[i] -= b.ledger[i]
		a.told[i] -= b.told[i]
	}
	return a
}

// settled reads the books once the access log and the ledger, which is written
// in batches, have all of the n requests sent so far.
func (p *enginePair) settled(n int) [2]account {
	p.t.Helper()
	p.g.Access(n)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		out, stored := p.counts()
		if stored >= n || time.Now().After(deadline) {
			return out
		}
	}
}

// counts reads every book as it is now, and how many requests the ledger has.
// The access log is summed by the variant that served, as the engine's counters are.
func (p *enginePair) counts() (out [2]account, stored int) {
	var usage struct {
		Items []struct {
			Requests int
			Group    map[string]string `json:"group"`
			Input    float64           `json:"input_tokens"`
			Output   float64           `json:"output_tokens"`
		}
	}
	p.g.admin("GET", "/usage?group_by=variant&since=1h", "", &usage)
	m := scrape(p.t, p.g.Admin)
	for _, u := range usage.Items {
		stored += u.Requests
	}
	for i, v := range p.variants {
		a := &out[i]
		a.engine[0], a.engine[1] = p.engines[i].tokens()
		a.metrics[0] = m.sum("sluice_input_tokens_total", `variant="`+v+`"`)
		a.metrics[1] = m.sum("sluice_output_tokens_total", `variant="`+v+`"`)
		for _, u := range usage.Items {
			if u.Group["variant"] == v {
				a.ledger[0], a.ledger[1] = a.ledger[0]+u.Input, a.ledger[1]+u.Output
			}
		}
		for _, l := range p.g.Access(0) {
			if l["served"] != v {
				continue
			}
			in, _ := l["input_tokens"].(float64)
			gen, _ := l["output_tokens"].(float64)
			a.requests, a.log[0], a.log[1] = a.requests+1, a.log[0]+in, a.log[1]+gen
			if !strings.HasPrefix(fmt.Sprint(l["client_request_id"]), "silent") {
				a.told[0], a.told[1] = a.told[0]+in, a.told[1]+gen
			}
		}
	}
	return out, stored
}

// goSDK asks as each user whole, streamed with usage and streamed without, and
// returns the number of the last kind.
func (p *enginePair) goSDK(clients *[2]told) (silent [2]int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan int)
	for range 4 {
		wg.Go(func() {
			for n := range work {
				seen := map[string]bool{}
				for _, kind := range []string{"whole", "usage", "silent"} {
					variant, u, err := p.sdkCall(n, kind)
					if err != nil {
						p.t.Errorf("user %d, %s: %v", n, kind, err)
						continue
					}
					i := 0
					if variant == p.variants[1] {
						i = 1
					}
					seen[variant] = true
					mu.Lock()
					if kind == "silent" {
						silent[i]++
					} else {
						clients[i].Requests++
						clients[i].Input += u.PromptTokens
						clients[i].Output += u.CompletionTokens
					}
					mu.Unlock()
				}
				if len(seen) > 1 {
					p.t.Errorf("user %d was given two variants", n)
				}
			}
		})
	}
	for n := range engineUsers {
		work <- n
	}
	close(work)
	wg.Wait()
	return silent
}

// asUser adds who asks, and marks the calls whose answers carry no usage.
type asUser struct{ user, mark string }

func (a asUser) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-User-Id", a.user)
	r.Header.Set("X-Request-Id", a.mark+"-"+a.user)
	return http.DefaultTransport.RoundTrip(r)
}

func (p *enginePair) sdkCall(n int, kind string) (variant string, u openai.Usage, err error) {
	c := openai.DefaultConfig("none")
	c.BaseURL = p.g.Data + "/v1"
	c.HTTPClient = &http.Client{Transport: asUser{fmt.Sprint("user-", n), kind}}
	client, q, seed := openai.NewClientWithConfig(c), ask(short(n)), 1
	q.MaxCompletionTokens, q.Seed = 3+n%6, &seed
	if kind == "whole" {
		r, err := client.CreateChatCompletion(p.t.Context(), q)
		if err == nil && (len(r.Choices) != 1 || r.Choices[0].FinishReason == "") {
			err = fmt.Errorf("no finish reason: %+v", r)
		}
		return r.Header().Get("X-Sluice-Variant"), r.Usage, err
	}
	if kind == "usage" {
		q.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	}
	s, err := client.CreateChatCompletionStream(p.t.Context(), q)
	if err != nil {
		return "", u, err
	}
	defer s.Close()
	finished, reported := false, false
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", u, err
		}
		for _, ch := range r.Choices {
			finished = finished || ch.FinishReason != ""
		}
		if r.Usage != nil {
			u, reported = *r.Usage, true
		}
	}
	if !finished || reported != (kind == "usage") {
		err = fmt.Errorf("finish reason seen: %v, usage seen: %v", finished, reported)
	}
	return s.Header().Get("X-Sluice-Variant"), u, err
}

// python runs openai-python over the same gateway, where it is installed.
func (p *enginePair) python(clients *[2]told) {
	t := p.t
	python, _ := filepath.Abs("../../.cache/venv/bin/python")
	if _, err := os.Stat(python); err != nil {
		p.note("openai-python is not installed (make test-deps): not run")
		return
	}
	cmd := exec.Command(python, "../../scripts/engine/sdk.py")
	cmd.Env = append(os.Environ(), "SLUICE_URL="+p.g.Data+"/v1", fmt.Sprint("USERS=", engineUsers), "NO_PROXY=127.0.0.1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var totals map[string]told
	if err == nil {
		err = json.Unmarshal(out, &totals)
	}
	if err != nil {
		t.Fatalf("openai-python: %v\n%s\n%s", err, out, stderr.String())
	}
	for i, v := range p.variants {
		clients[i].Requests += totals[v].Requests
		clients[i].Input += totals[v].Input
		clients[i].Output += totals[v].Output
	}
}
