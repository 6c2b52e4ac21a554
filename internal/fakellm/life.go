package fakellm

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// life is one run of the server's process: what a restart takes away.
type life struct {
	http    *http.Server
	born    time.Time
	in, out int64 // tokens of the lives before: the engine's own counters begin at 0
	aborted int64
}

// bear serves on ln as a new process.
func (s *Server) bear(ln net.Listener) {
	l := &life{born: time.Now(), in: s.in.Load(), out: s.out.Load(), aborted: s.aborted.Load()}
	l.http = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Second}
	s.life.Store(l)
	go l.http.Serve(ln)
}

// Restart ends the process at once: open connections are cut, new ones refused.
// After down it is back on the same address with a new start time and counters
// at 0. A restart during one is none.
func (s *Server) Restart(down time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.away != nil {
		return
	}
	s.restarts.Add(1)
	s.life.Load().http.Close()
	if s.prefixes != nil {
		s.prefixes.clear()
	}
	s.away = time.AfterFunc(down, s.rise)
}

// rise is the end of a restart.
func (s *Server) rise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = nil
	if s.closed {
		return
	}
	ln, err := net.Listen("tcp", s.addr)
	if err != nil { // somebody else has the port, as happens to real servers
		s.away = time.AfterFunc(100*time.Millisecond, s.rise)
		return
	}
	s.bear(ln)
}

// Close stops for good, at once, and cuts what is open.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	if s.away != nil {
		s.away.Stop()
	}
	s.mu.Unlock()
	s.life.Load().http.Close()
}

// Restarts is how often the process began anew.
func (s *Server) Restarts() int64 { return s.restarts.Load() }

// Preempt adds to the requests that a vLLM says it put back for want of cache.
func (s *Server) Preempt(n int64) { s.preempted.Add(n) }

// metrics is the engine's page, by its dialect's names; OpenAI has none.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	l := s.life.Load()
	waiting := s.waiting.Load()
	running := max(s.inflight.Load()-waiting, 0)
	in, out := s.in.Load()-l.in, s.out.Load()-l.out
	full := 64
	if s.opt.Slots > 0 {
		full = s.opt.Slots
	}
	use := min(float64(running)/float64(full), 1)
	born := fmt.Sprintf("process_start_time_seconds %.3f\n", float64(l.born.UnixMilli())/1000)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	switch s.opt.Dialect {
	case "vllm":
		const of = `{engine="0",model_name="fake"}`
		fmt.Fprintf(w, "vllm:num_requests_running%s %d.0\nvllm:num_requests_waiting%s %d.0\nvllm:kv_cache_usage_perc%s %g\nvllm:num_preemptions_total%s %d.0\n"+
			"vllm:prompt_tokens_total%s %d.0\nvllm:generation_tokens_total%s %d.0\n"+
			"vllm:request_success_total{engine=\"0\",finished_reason=\"abort\"} %d.0\n%s", of, running, of, waiting, of, use, of, s.preempted.Load(), of, in, of, out, s.aborted.Load()-l.aborted, born)
	case "sglang":
		const of = `{engine_type="unified",model_name="fake",tp_rank="0"}`
		fmt.Fprintf(w, "sglang:num_running_reqs%s %d.0\nsglang:num_queue_reqs%s %d.0\nsglang:token_usage%s %g\nsglang:prompt_tokens_total%s %d.0\nsglang:generation_tokens_total%s %d.0\n%s",
			of, running, of, waiting, of, use, of, in, of, out, born)
	case "tgi":
		fmt.Fprintf(w, "tgi_batch_current_size %d\ntgi_queue_size %d\ntgi_batch_current_max_tokens %d\ntgi_batch_max_total_tokens %d\ntgi_request_generated_tokens_sum %d\n",
			running, waiting, int(use*1000), 1000, out)
	case "llamacpp":
		fmt.Fprintf(w, "llamacpp:requests_processing %d\nllamacpp:requests_deferred %d\nllamacpp:kv_cache_usage_ratio %g\nllamacpp:prompt_tokens_total %d\nllamacpp:tokens_predicted_total %d\n",
			running, waiting, use, in, out)
	default:
		http.NotFound(w, r)
	}
}
