package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/internal/testenv"
)

// engine is one process of a real inference engine; scripts/test-engine.sh
// installs what it runs.
type engine struct {
	t    testing.TB
	kind string // the gateway's dialect: vllm | llamacpp
	url  string // http://127.0.0.1:PORT
	port int
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

func newEngine(t testing.TB, kind string) *engine {
	port := testenv.FreePort(t)
	return &engine{t: t, kind: kind, port: port, url: fmt.Sprintf("http://127.0.0.1:%d", port),
		log: filepath.Join(t.TempDir(), fmt.Sprintf("%s-%d.log", kind, port))}
}

// installed is the path of what test-engine.sh made; env names another one.
func (e *engine) installed(env, path string) string {
	e.t.Helper()
	if p := os.Getenv(env); p != "" {
		path = p
	} else {
		path = filepath.Join("../../.cache/engine", path)
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(abs)
	}
	if err != nil {
		e.t.Fatalf("%v: run scripts/test-engine.sh %s, or set %s", err, e.kind, env)
	}
	return abs
}

func (e *engine) command() *exec.Cmd {
	port := fmt.Sprint(e.port)
	if e.kind == "llamacpp" {
		return exec.Command(e.installed("SLUICE_LLAMA_SERVER", "llama-server"), "-m", e.installed("SLUICE_LLAMA_MODEL", "model.gguf"),
			"--host", "127.0.0.1", "--port", port, "-a", "chat", "-c", "16384", "-np", "4", "-t", "1", "--metrics", "--offline")
	}
	cmd := exec.Command(e.installed("SLUICE_VLLM", "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", e.installed("SLUICE_VLLM_MODEL", "tiny"),
		"--served-model-name", "chat", "--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--max-model-len", "4096",
		"--max-num-seqs", "8", "--enforce-eager", "--generation-config", "vllm")
	cmd.Env = append(os.Environ(), "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1",
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_HOST_IP=127.0.0.1")
	return cmd
}

// start runs the engine and does not wait for it to be ready.
func (e *engine) start() {
	e.t.Helper()
	out, err := os.Create(e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	defer out.Close()
	e.cmd = e.command()
	e.cmd.Stdout, e.cmd.Stderr = out, out
	e.cmd.Dir = filepath.Dir(e.log)
	// A group of its own: vLLM's workers are its children.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.done = make(chan struct{})
	go func() { defer close(e.done); e.cmd.Wait() }()
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("%s ends with:\n%s", e.log, e.tail())
		}
		e.kill()
	})
}

// kill ends the engine and its workers as a crash would.
func (e *engine) kill() {
	select {
	case <-e.done: // its id may be another's by now
	default:
		syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
		<-e.done
	}
}

func (e *engine) tail() []byte {
	b, _ := os.ReadFile(e.log)
	return b[max(0, len(b)-3000):]
}

// ready asks the engine itself.
func (e *engine) ready() bool {
	c := http.Client{Timeout: 2 * time.Second}
	resp, err := c.Get(e.url + "/health")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == 200
}

func (e *engine) await() time.Duration {
	e.t.Helper()
	start := time.Now()
	for !e.ready() {
		if time.Since(start) > 15*time.Minute {
			e.t.Fatalf("%s is not ready after 15 minutes:\n%s", e.kind, e.tail())
		}
		select {
		case <-e.done:
			e.t.Fatalf("%s ended: %v\n%s", e.kind, e.cmd.ProcessState, e.tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return time.Since(start)
}

// tokens are the engine's own counters since it started: prompt tokens, cached
// ones included, and generated ones. llama.cpp counts cached ones apart.
func (e *engine) tokens() (in, out float64) {
	e.t.Helper()
	m := scrape(e.t, e.url)
	if e.kind == "llamacpp" {
		return m.sum("llamacpp:prompt_tokens_total") + m.sum("llamacpp:prompt_tokens_cached_total"), m.sum("llamacpp:tokens_predicted_total")
	}
	return m.sum("vllm:prompt_tokens_total"), m.sum("vllm:generation_tokens_total")
}

// busy is the number of requests that the engine works on or holds.
func (e *engine) busy() float64 {
	e.t.Helper()
	m := scrape(e.t, e.url)
	if e.kind == "llamacpp" {
		return m.sum("llamacpp:requests_processing") + m.sum("llamacpp:requests_deferred")
	}
	return m.sum("vllm:num_requests_running") + m.sum("vllm:num_requests_waiting")
}
