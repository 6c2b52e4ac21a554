// Package fakellm is an inference server without a model: it speaks the wire
// format of vLLM, TGI, SGLang, llama.cpp or OpenAI, counts the tokens that it
// says it used, and can be told to fail in the ways real servers fail. The demo
// runs on it and the tests inject faults with it. It hides the byte shapes of
// the dialects.
//
// What one answer looks like is chosen by, in this order: a directive in the
// request's text, such as [[tokens:7 fault:truncate@3]], then Options.Choose,
// then the default Behaviour.
package fakellm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Behaviour is what one answer looks like.
type Behaviour struct {
	Tokens     int           // output tokens; 0 = 8, capped by the request's max_tokens
	TTFT       time.Duration // before the first byte of the answer
	Gap        time.Duration // between events
	Fault      Fault
	After      int    // content events before the fault
	Status     int    // of FaultStatus and the in-band faults; 0 = 500
	RetryAfter string // header of FaultStatus
	Cached     int    // cached input tokens that usage reports
	Reasoning  int    // reasoning output tokens that usage reports
	Tool       bool   // answer with a tool call instead of text
	Text       string // the text to answer with, cut into events between words; "" = some words
	// Odds is the probability that the fault happens, 0 = always.
	Odds float64
	// Over limits the fault to requests of more input tokens: the long prompt that
	// does not fit.
	Over int
	Down time.Duration // how long the server is away after Die; 0 = 3 s
	// Rejects are features that are answered 400, as by an engine started without
	// them: tools, json, n, logprobs, image, stop.
	Rejects []string
}

// Fault is a way to fail.
type Fault string

// The faults. All but Status, Unserved, Hang, Refuse and Die happen after a 200.
const (
	NoFault    Fault = ""
	Status     Fault = "status"      // answer with Behaviour.Status and the dialect's error body
	Unserved   Fault = "unserved"    // 404: the model has another name here
	Die        Fault = "die"         // the process is killed, as for want of memory, and starts again after Behaviour.Down
	Truncate   Fault = "truncate"    // clean end of the connection in mid-answer
	Reset      Fault = "reset"       // RST in mid-answer
	Hang       Fault = "hang"        // silence from there on, until the client goes
	Empty      Fault = "empty"       // 200 and nothing
	DoneOnly   Fault = "done_only"   // 200 and only [DONE]
	ErrorEvent Fault = "error_event" // an error object in the stream (or as a 200 body)
	Garbage    Fault = "garbage"     // 200 and bytes that are no JSON
	NoDone     Fault = "no_done"     // complete, but without [DONE]
	Refuse     Fault = "refuse"      // close the connection without an answer
	// Whole answers that are no use, as HTTP sees it nothing is wrong.
	Blank        Fault = "blank"         // no content
	BadJSON      Fault = "bad_json"      // prose, whatever was demanded
	BadArguments Fault = "bad_arguments" // the arguments of a tool call are cut short
	Think        Fault = "think"         // the reasoning comes in the content
	Echo         Fault = "echo"          // the system prompt is recited
)

// Options configure a Server.
type Options struct {
	Dialect string   // openai (default) vllm tgi sglang llamacpp
	Models  []string // served ids; empty: any name is served
	Default Behaviour
	Choose  func(Call) Behaviour // nil: Default
	Addr    string               // "" = a free loopback port
	// MaxModelLen is what /v1/models of a vLLM tells, and the input tokens above
	// which a request is answered 400; 0 = no limit.
	MaxModelLen int
	Slots       int // answers in the making at once; the rest waits, for ever. 0 = no limit
	// PrefixCache is how many messages of conversations stay cached; what a
	// request has of them is reported as cached input. 0 = none.
	PrefixCache int
	// Control lets another process script this one: POST /control takes a
	// Behaviour, GET /control answers Counts, POST /restart?down=3s ends the
	// process for so long.
	Control bool
	// Journal gets a line of JSON each time that usage leaves this server, at
	// once, so that the books survive a kill: {"request","in","out"}, where the
	// last line of a request counts. Nil: none.
	Journal io.Writer
}

// Call is what Choose may look at.
type Call struct {
	API, Model, User string
	Stream           bool
	Body             []byte
	N                int64 // number of the call, from 1
}

// Counts are the server's own books. Tokens of an answer are counted when they
// are generated, also when nobody is there any more to read them.
type Counts struct {
	Calls, Streams, Completed, Failed, Aborted int64
	InputTokens, OutputTokens                  int64
	// By the last usage object of each answer that left this server.
	ReportedInput, ReportedOutput int64
	InFlight                      int64
	// Words of the prompts, and those that the prefix cache had.
	PromptWords, CachedWords int64
}

// Server is a running fake.
type Server struct {
	opt                                                                          Options
	behaviour                                                                    atomic.Pointer[Behaviour]
	ready                                                                        atomic.Bool
	asleep                                                                       atomic.Bool
	life                                                                         atomic.Pointer[life]
	addr                                                                         string
	calls, streams, completed, failed, aborted, in, out, repIn, repOut, inflight atomic.Int64

	promptWords, cachedWords     atomic.Int64
	waiting, restarts, preempted atomic.Int64
	prefixes                     *prefixes

	slots   chan struct{}
	journal sync.Mutex
	mu      sync.Mutex
	byModel map[string]int64
	aborts  []time.Time // when clients were seen going, newest last, at most 1000
	onCall  func(Call, http.Header)
	closed  bool
	away    *time.Timer // of a restart
}

// Start listens on Options.Addr and serves until Close.
func Start(o Options) (*Server, error) {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Dialect == "" {
		o.Dialect = "openai"
	}
	ln, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("fake upstream: %w", err)
	}
	s := &Server{opt: o, addr: ln.Addr().String(), byModel: map[string]int64{}}
	if o.Slots > 0 {
		s.slots = make(chan struct{}, o.Slots)
	}
	if o.PrefixCache > 0 {
		s.prefixes = newPrefixes(o.PrefixCache)
	}
	s.ready.Store(true)
	s.behaviour.Store(&o.Default)
	s.bear(ln)
	return s, nil
}

// URL is the base URL with /v1.
func (s *Server) URL() string { return "http://" + s.addr + "/v1" }

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// Set replaces the default behaviour for the calls to come.
func (s *Server) Set(b Behaviour) { s.behaviour.Store(&b) }

// SetReady makes the server answer "loading" while false.
func (s *Server) SetReady(ok bool) { s.ready.Store(ok) }

// SetAsleep makes a vLLM say that it sleeps.
func (s *Server) SetAsleep(on bool) { s.asleep.Store(on) }

// OnCall sets an observer of calls; it runs before the answer.
func (s *Server) OnCall(f func(Call, http.Header)) { s.mu.Lock(); s.onCall = f; s.mu.Unlock() }

// Counts returns the books as they are now.
func (s *Server) Counts() Counts {
	return Counts{s.calls.Load(), s.streams.Load(), s.completed.Load(), s.failed.Load(), s.aborted.Load(),
		s.in.Load(), s.out.Load(), s.repIn.Load(), s.repOut.Load(), s.inflight.Load(),
		s.promptWords.Load(), s.cachedWords.Load()}
}

// Models returns how many calls named each model.
func (s *Server) Models() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[string]int64, len(s.byModel))
	for k, v := range s.byModel {
		m[k] = v
	}
	return m
}

// Aborts returns when clients were seen going away.
func (s *Server) Aborts() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.aborts...)
}

func (s *Server) abort() {
	s.aborted.Add(1)
	s.mu.Lock()
	if len(s.aborts) < 1000 {
		s.aborts = append(s.aborts, time.Now())
	}
	s.mu.Unlock()
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for path, api := range map[string]string{
		"/chat/completions": "chat", "/completions": "completions",
		"/embeddings": "embeddings", "/responses": "responses",
	} {
		mux.HandleFunc("POST /v1"+path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, api) })
	}
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /metrics", s.metrics)
	if s.opt.Control {
		mux.HandleFunc("GET /control", func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(s.Counts()) })
		mux.HandleFunc("POST /control", s.control)
		mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
			down, err := time.ParseDuration(r.URL.Query().Get("down"))
			if err != nil || down < 0 {
				http.Error(w, "want ?down= and a time, such as 3s", http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusAccepted)
			http.NewResponseController(w).Flush()
			s.Restart(down)
		})
	}
	if s.opt.Dialect == "vllm" {
		mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"is_sleeping":%t}`, s.asleep.Load())
		})
	}
	return mux
}

// control replaces the behaviour.
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	var b Behaviour
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, "want a Behaviour: "+err.Error(), http.StatusBadRequest)
		return
	}
	s.Set(b)
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if !s.ready.Load() {
		s.loading(w)
		return
	}
	if s.opt.Dialect == "llamacpp" {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"status":"ok"}`)
	}
}

func (s *Server) loading(w http.ResponseWriter) {
	if s.opt.Dialect == "llamacpp" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(503)
		fmt.Fprint(w, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`)
		return
	}
	w.WriteHeader(503)
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if !s.ready.Load() {
		s.loading(w)
		return
	}
	type item struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
		MaxLen  int    `json:"max_model_len,omitempty"`
	}
	list := make([]item, 0, len(s.opt.Models))
	for _, m := range s.opt.Models {
		i := item{ID: m, Object: "model", Created: created, OwnedBy: s.opt.Dialect}
		if s.opt.Dialect == "vllm" {
			i.MaxLen = s.opt.MaxModelLen
		}
		list = append(list, i)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
}

// wait sleeps unless the client goes first.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// directive reads [[tokens:7 fault:truncate@3 status:503 ttft:20ms]] out of a body.
func directive(body string, b *Behaviour) {
	_, rest, ok := strings.Cut(body, "[[")
	if !ok {
		return
	}
	text, _, ok := strings.Cut(rest, "]]")
	if !ok {
		return
	}
	for word := range strings.FieldsSeq(text) {
		k, v, _ := strings.Cut(word, ":")
		switch k {
		case "tokens":
			fmt.Sscan(v, &b.Tokens)
		case "status":
			b.Fault = Status
			fmt.Sscan(v, &b.Status)
		case "fault":
			name, at, _ := strings.Cut(v, "@")
			b.Fault = Fault(name)
			fmt.Sscan(at, &b.After)
		case "code":
			fmt.Sscan(v, &b.Status)
		case "ttft":
			b.TTFT, _ = time.ParseDuration(v)
		case "gap":
			b.Gap, _ = time.ParseDuration(v)
		case "cached":
			fmt.Sscan(v, &b.Cached)
		case "reasoning":
			fmt.Sscan(v, &b.Reasoning)
		case "tool":
			b.Tool = true
		}
	}
}
