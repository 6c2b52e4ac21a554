package fakellm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

const created = 1764500000

// request is what the fake reads of a body.
type request struct {
	Model        string   `json:"model"`
	Stream       bool     `json:"stream"`
	Instructions string   `json:"instructions"`
	N            int      `json:"n"`
	User         string   `json:"user"`
	MaxTokens    *float64 `json:"max_tokens"`
	MaxComp      *float64 `json:"max_completion_tokens"`
	Logprobs     any      `json:"logprobs"`
	Tools        []any    `json:"tools"`
	Stop         any      `json:"stop"`
	Format       *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	Encoding string            `json:"encoding_format"`
	Input    json.RawMessage   `json:"input"`
	Messages []json.RawMessage `json:"messages"`
	Options  *struct {
		IncludeUsage bool `json:"include_usage"`
		Continuous   bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// answer is one answer in the making.
type answer struct {
	s     *Server
	req   request
	b     Behaviour
	api   string
	in    int // input tokens
	words []string
	short bool // cut by max_tokens
	fl    http.Flusher
	w     http.ResponseWriter
	r     *http.Request

	toldIn, toldOut int // of the last usage that left this server
}

// told books the usage that has just left: it replaces what was told before.
func (a *answer) told(out int) {
	out *= a.req.N
	a.s.repIn.Add(int64(a.in - a.toldIn))
	a.s.repOut.Add(int64(out - a.toldOut))
	a.toldIn, a.toldOut = a.in, out
	if j := a.s.opt.Journal; j != nil {
		line, _ := json.Marshal(Told{a.r.Header.Get("X-Request-Id"), a.in, out})
		a.s.journal.Lock()
		j.Write(append(line, '\n'))
		a.s.journal.Unlock()
	}
}

// Told is a line of Options.Journal.
type Told struct {
	Request string `json:"request"`
	In      int    `json:"in"`
	Out     int    `json:"out"`
}

var vocabulary = strings.Fields("the model of a gateway routes each request to an upstream and streams tokens back one by one so that cost can be told apart")

func (s *Server) serve(w http.ResponseWriter, r *http.Request, api string) {
	n := s.calls.Add(1)
	s.inflight.Add(1)
	defer s.inflight.Add(-1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.failed.Add(1)
		return
	}
	var req request
	if err := json.Unmarshal(body, &req); err != nil {
		s.failed.Add(1)
		s.fail(w, 400, "BadRequestError", "invalid JSON: "+err.Error())
		return
	}
	call := Call{API: api, Model: req.Model, User: req.User, Stream: req.Stream, Body: body, N: n}
	s.mu.Lock()
	if len(s.byModel) < 1000 {
		s.byModel[req.Model]++
	}
	on := s.onCall
	s.mu.Unlock()
	if on != nil {
		on(call, r.Header)
	}
	b := *s.behaviour.Load()
	if s.opt.Choose != nil {
		b = s.opt.Choose(call)
	}
	directive(string(body), &b)
	if b.Odds > 0 && rand.Float64() >= b.Odds || b.Over > 0 && inputTokens(body) <= b.Over {
		b.Fault = NoFault
	}
	if !s.ready.Load() {
		s.failed.Add(1)
		s.loading(w)
		return
	}
	if len(s.opt.Models) > 0 && !contains(s.opt.Models, req.Model) && s.opt.Dialect != "sglang" && s.opt.Dialect != "tgi" {
		s.failed.Add(1)
		s.unserved(w, req.Model)
		return
	}
	if why := s.rejected(&req, body, b.Rejects); why != "" {
		s.failed.Add(1)
		s.fail(w, 400, "BadRequestError", why)
		return
	}
	if s.opt.Dialect == "vllm" && req.Options != nil && !req.Stream {
		s.failed.Add(1)
		s.fail(w, 400, "BadRequestError", "Stream options can only be defined when `stream=True`.")
		return
	}
	a := &answer{s: s, req: req, b: b, api: api, in: inputTokens(body), w: w, r: r}
	a.fl, _ = w.(http.Flusher)
	if s.prefixes != nil {
		words, cached := s.prefixes.lookup(req.Messages)
		s.promptWords.Add(int64(words))
		s.cachedWords.Add(int64(cached))
		a.b.Cached = min(cached, a.in)
	}
	a.plan()
	if s.slots != nil {
		s.waiting.Add(1)
		select {
		case s.slots <- struct{}{}:
			s.waiting.Add(-1)
			defer func() { <-s.slots }()
		case <-r.Context().Done():
			s.waiting.Add(-1)
			s.abort()
			return
		}
	}
	a.run()
}

// plan fixes the output.
func (a *answer) plan() {
	n := a.b.Tokens
	if n == 0 {
		n = 8
	}
	for _, m := range []*float64{a.req.MaxTokens, a.req.MaxComp} {
		if m != nil && *m >= 0 && *m < float64(n) {
			n, a.short = int(*m), true
		}
	}
	if a.req.N < 1 {
		a.req.N = 1
	}
	if len(a.req.Tools) > 0 {
		a.b.Tool = true
	}
	a.words = a.text(n)
}

// text is what the answer says, event by event: n words of nothing, unless the
// request or the behaviour wants it otherwise.
func (a *answer) text(n int) (words []string) {
	say := a.b.Text
	switch a.b.Fault {
	case Blank, BadJSON, Think, Echo:
		a.b.Tool = false
	}
	switch a.b.Fault {
	case Blank:
		return nil
	case BadJSON:
		say = "Sure! Here is the JSON that you asked for: {\"ok\": true, "
	case Think:
		say = "<think>The user wants an answer. I shall give one.</think> " + say
	case Echo:
		say = "My instructions are: " + a.system()
	}
	if say == "" && a.req.Format != nil && strings.HasPrefix(a.req.Format.Type, "json") {
		return []string{`{"ok"`, `:`, `true}`}
	}
	if say != "" {
		words = strings.SplitAfter(say, " ")
	}
	if say == "" || a.b.Fault == Think && a.b.Text == "" {
		for i := range n {
			words = append(words, vocabulary[(i+a.in)%len(vocabulary)]+" ")
		}
	}
	return words
}

// system is the text of the request's system messages.
func (a *answer) system() string {
	var all []string
	for _, raw := range a.req.Messages {
		var m struct {
			Role    string `json:"role"`
			Content any    `json:"content"`
		}
		if json.Unmarshal(raw, &m) != nil || m.Role != "system" && m.Role != "developer" {
			continue
		}
		switch c := m.Content.(type) {
		case string:
			all = append(all, c)
		case []any:
			for _, part := range c {
				if p, ok := part.(map[string]any); ok {
					text, _ := p["text"].(string)
					all = append(all, text)
				}
			}
		}
	}
	if a.req.Instructions != "" {
		all = append(all, a.req.Instructions)
	}
	return strings.Join(all, "\n\n")
}

func (a *answer) run() {
	s := a.s
	if !wait(a.r.Context(), a.b.TTFT) {
		s.abort()
		return
	}
	switch a.b.Fault {
	case Status:
		s.failed.Add(1)
		if a.b.RetryAfter != "" {
			a.w.Header().Set("Retry-After", a.b.RetryAfter)
		}
		status := a.b.Status
		if status == 0 {
			status = 500
		}
		s.fail(a.w, status, typeOf(status), fmt.Sprintf("scripted status %d", status))
		return
	case Unserved:
		s.failed.Add(1)
		s.unserved(a.w, a.req.Model)
		return
	case Die:
		s.failed.Add(1)
		down := a.b.Down
		if down == 0 {
			down = 3 * time.Second
		}
		s.Restart(down)
		return
	case Refuse:
		s.failed.Add(1)
		a.cut(false)
		return
	case Hang:
		if a.b.After == 0 {
			<-a.r.Context().Done()
			s.abort()
			return
		}
	}
	if a.req.Stream && a.api != "embeddings" {
		s.streams.Add(1)
		a.stream()
		return
	}
	a.unary()
}

// typeOf is the type that engines write into the error of a status.
func typeOf(status int) string {
	switch status {
	case 400, 413, 415, 422:
		return "BadRequestError"
	case 404:
		return "NotFoundError"
	}
	return "InternalServerError"
}

func (s *Server) unserved(w http.ResponseWriter, model string) {
	s.fail(w, 404, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", model))
}

// rejected is why an engine without these features refuses the request; "" where
// it does not.
func (s *Server) rejected(req *request, body []byte, features []string) string {
	if most := s.opt.MaxModelLen; most > 0 && inputTokens(body) > most {
		return fmt.Sprintf("This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", most, inputTokens(body))
	}
	for _, f := range features {
		switch {
		case f == "tools" && len(req.Tools) > 0:
			return `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`
		case f == "json" && req.Format != nil && strings.HasPrefix(req.Format.Type, "json"):
			return "response_format is not supported by this engine"
		case f == "n" && req.N > 1:
			return "n must be 1 with this engine"
		case f == "logprobs" && req.Logprobs == true:
			return "logprobs are not supported by this engine"
		case f == "image" && bytes.Contains(body, []byte(`"image_url"`)):
			return "At most 0 image(s) may be provided in one request."
		case f == "stop" && req.Stop != nil:
			return "stop is not supported by this engine"
		}
	}
	return ""
}

// cut ends the connection without ceremony, by FIN or RST.
func (a *answer) cut(reset bool) {
	c, _, err := http.NewResponseController(a.w).Hijack()
	if err != nil {
		return
	}
	if t, ok := c.(*net.TCPConn); ok && reset {
		t.SetLinger(0)
	}
	c.Close()
}

// inputTokens counts words of the text; one rule for every dialect.
func inputTokens(body []byte) int {
	return 3 + len(strings.Fields(string(body)))
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// fail writes the dialect's own error body.
func (s *Server) fail(w http.ResponseWriter, status int, typ, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	m, _ := json.Marshal(msg)
	switch s.opt.Dialect {
	case "tgi":
		kind := "generation"
		switch {
		case status == 429:
			kind = "overloaded"
		case status < 500:
			kind = "validation"
		}
		fmt.Fprintf(w, `{"error":%s,"error_type":"%s"}`, m, kind)
	case "sglang":
		fmt.Fprintf(w, `{"object":"error","message":%s,"type":"%s","param":null,"code":%d}`, m, typ, status)
	case "llamacpp":
		fmt.Fprintf(w, `{"error":{"code":%d,"message":%s,"type":"server_error"}}`, status, m)
	case "vllm":
		param := "null"
		if status == 404 {
			param = `"model"`
		}
		fmt.Fprintf(w, `{"error":{"message":%s,"type":"%s","param":%s,"code":%d}}`, m, typ, param, status)
	default:
		code := "null"
		if status == 404 {
			code = `"model_not_found"`
		}
		fmt.Fprintf(w, `{"error":{"message":%s,"type":"invalid_request_error","param":null,"code":%s}}`, m, code)
	}
}
