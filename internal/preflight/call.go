package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
	"sluice/upstream/wire"
)

const (
	// lowest is below every priority that a variant can have: who really asks goes
	// first.
	lowest    = -1
	userAgent = "sluice-preflight"
	maxAnswer = 1 << 20 // of an answer, the rest is not looked at
	maxSaid   = 300     // characters of a server's own words
)

// reply is how one variant answered one request.
type reply struct {
	outcome   upstream.Outcome
	status    int    // of the upstream; of the gateway when it was not called; 0 none
	said      string // the failure's message, "" without failure
	endpoint  string
	stream    bool
	complete  bool // the answer came to its proper end
	whole     bool // all of body is there
	body      []byte
	first     time.Duration // to the first token, 0 = none came
	took      time.Duration
	choices   []choice
	usage     *usage
	malformed string // what is wrong with the answer's form
}

type choice struct {
	text, reasoning string
	calls           []toolCall
	finish          string
	logprobs        bool
}

type toolCall struct{ name, arguments string }

type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
}

// busy tells that the request was turned away for want of room: it says nothing
// about the variant.
func (r *reply) busy() bool {
	return r.outcome == upstream.QueueFull || r.outcome == upstream.UpRateLimited || r.outcome == upstream.RateLimited
}

// transient tells that another try may go better.
func (r *reply) transient() bool {
	switch r.outcome {
	case upstream.NoEndpoint, upstream.Unreachable, upstream.Truncated:
		return true
	case upstream.Error:
		return r.status >= 502 && r.status <= 504
	}
	return r.busy()
}

// failure is what went wrong, in words; "" for a success.
func (r *reply) failure() string {
	if r.outcome == upstream.Success {
		return ""
	}
	said := r.said
	if said == "" {
		said = strings.ReplaceAll(string(r.outcome), "_", " ")
	}
	if r.status > 0 {
		return strconv.Itoa(r.status) + ": " + said
	}
	return said
}

// sink takes an answer; it is the client's side of upstream.Pool.Do.
type sink struct {
	r *reply
	// seen is called with what has come so far; nil for nothing.
	seen func(body []byte)
}

func (k *sink) Commit(m upstream.Meta) { k.r.stream, k.r.whole = m.Stream, true }

func (k *sink) Write(p []byte) error {
	if room := maxAnswer - len(k.r.body); room < len(p) {
		p, k.r.whole = p[:room], false
	}
	k.r.body = append(k.r.body, p...)
	if k.seen != nil {
		k.seen(k.r.body)
	}
	return nil
}

func (k *sink) FailInBand(f upstream.Failure) error {
	k.r.said, k.r.status = said(&f), f.Status
	return nil
}

// call sends body to v through the path of a request: its upstream, model,
// parameters and prompt, with its credential, limits and breakers, but behind
// everybody else in the queue, and once.
func (p *Prober) call(ctx context.Context, s *subject, api wire.API, body []byte, seen func(body []byte)) *reply {
	r := &reply{}
	head, ferr := wire.Scan(body, api)
	if ferr != nil { // the bodies are ours
		r.outcome, r.said = upstream.InternalError, "the probe itself is malformed: "+ferr.Message
		return r
	}
	target := s.variant.Target
	target.Priority = lowest
	id := uuid.NewString()
	start := time.Now()
	req := upstream.Request{
		API: api, Head: head, Body: body, RequestID: id, Key: userAgent,
		Header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {userAgent}},
		Next: func(n int, _ *upstream.Attempt, _ bool) (upstream.Target, string, bool) {
			return target, "", n == 0
		},
		Progress: func(answer bool, at time.Duration) {
			if !answer {
				r.first = at
			}
		},
	}
	res := p.o.Doer.Do(ctx, &req, &sink{r: r, seen: seen})
	r.took = time.Since(start)
	r.outcome, r.endpoint = res.Outcome, res.Endpoint
	if n := len(res.Attempts); n > 0 {
		last := &res.Attempts[n-1]
		if r.endpoint == "" {
			r.endpoint = last.Endpoint
		}
		if last.Status > 0 && r.status == 0 {
			r.status = last.Status
		}
	}
	if res.Failure != nil {
		r.said = said(res.Failure)
		if r.status/100 == 2 || r.status == 0 {
			r.status = res.Failure.Status
		}
	}
	p.meter(s, id, start, api, &req, &res)
	if r.outcome == upstream.Success {
		r.read()
	}
	return r
}

// meter books what the call used: it is real cost of the variant, and no traffic.
func (p *Prober) meter(s *subject, id string, start time.Time, api wire.API, req *upstream.Request, res *upstream.Result) {
	if p.o.Record == nil || len(res.Attempts) == 0 {
		return
	}
	ev := metrics.Event{
		Time: start, RequestID: id, API: api.String(), Model: s.model, Experiment: s.experiment, Assigned: s.variant.Name, Served: s.variant.Name,
		Version: s.variant.Version, Role: metrics.RoleProbe, Bucket: -1, Revision: s.revision, Generation: s.generation, Outcome: string(res.Outcome), Status: res.Status,
		Stream: req.Head.Stream, Duration: time.Since(start), Queued: res.Queued, FinishReason: res.Finish, Endpoint: res.Endpoint,
		Upstream: s.variant.Target.Upstream.Name(),
	}
	if ev.Stream {
		ev.TTFT = res.TTFT
	}
	for i := range res.Attempts {
		if res.Attempts[i].Endpoint != "" {
			ev.Attempts = append(ev.Attempts, router.Metered(&res.Attempts[i]))
		}
	}
	if len(ev.Attempts) > 0 {
		p.o.Record(ev)
	}
}

// said is a failure's message, fit for a line of a report.
func said(f *upstream.Failure) string {
	text := f.Message
	if text == "" && f.Body != nil {
		text = wire.ParseError(f.Status, f.ContentType, f.Body, wire.OpenAI).Message
	}
	return tidy(text)
}

// tidy makes one line of what a server wrote, at most maxSaid characters.
func tidy(text string) string {
	text = strings.ToValidUTF8(text, "�")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if utf8.RuneCountInString(text) > maxSaid {
		text = string([]rune(text)[:maxSaid]) + "…"
	}
	return text
}

// message is a choice's message or delta in every dialect.
type message struct {
	Content    json.RawMessage `json:"content"`
	Reasoning  string          `json:"reasoning"`
	Reasoning2 string          `json:"reasoning_content"`
	ToolCalls  []struct {
		Index    int `json:"index"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type answer struct {
	Choices []struct {
		Index    int             `json:"index"`
		Message  message         `json:"message"`
		Delta    message         `json:"delta"`
		Text     string          `json:"text"`
		Finish   string          `json:"finish_reason"`
		Logprobs json.RawMessage `json:"logprobs"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

const maxChoices = 16

// add puts a part of an answer to what is known of it.
func (r *reply) add(a *answer) {
	if a.Usage != nil {
		r.usage = a.Usage
	}
	for i := range a.Choices {
		c := &a.Choices[i]
		if c.Index < 0 || c.Index >= maxChoices {
			continue
		}
		for len(r.choices) <= c.Index {
			r.choices = append(r.choices, choice{})
		}
		to := &r.choices[c.Index]
		to.text += c.Text
		if c.Finish != "" {
			to.finish = c.Finish
		}
		to.logprobs = to.logprobs || len(c.Logprobs) > 0 && c.Logprobs[0] == '{'
		to.take(&c.Message)
		to.take(&c.Delta)
	}
}

func (c *choice) take(m *message) {
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		c.text += text
	}
	c.reasoning += m.Reasoning + m.Reasoning2
	for _, t := range m.ToolCalls {
		at := t.Index
		if at < 0 || at >= maxChoices {
			continue
		}
		for len(c.calls) <= at {
			c.calls = append(c.calls, toolCall{})
		}
		c.calls[at].name += t.Function.Name
		c.calls[at].arguments += t.Function.Arguments
	}
}

var errNoJSON = errors.New("no JSON")

// read makes choices of the bytes.
func (r *reply) read() {
	if !r.whole {
		r.malformed = fmt.Sprintf("the answer to a few tokens is longer than %d bytes", maxAnswer)
		return
	}
	if !r.stream {
		var a answer
		if err := json.Unmarshal(r.body, &a); err != nil {
			r.malformed = "the answer is " + errNoJSON.Error() + " of a completion"
			return
		}
		r.add(&a)
		r.complete = true
		return
	}
	for line := range bytes.Lines(r.body) {
		data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			r.complete = true
			continue
		}
		var a answer
		if err := json.Unmarshal(data, &a); err != nil {
			r.malformed = "an event of the stream is " + errNoJSON.Error()
			return
		}
		r.add(&a)
	}
}
