package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// fakeProcess is the variable that makes this test binary an upstream.
const fakeProcess = "SLUICE_TEST_FAKE"

// fakeConfig is what an upstream of its own process is told.
type fakeConfig struct {
	Addr, Dialect, Journal string
	Loading                time.Duration // before it listens, as vLLM does
}

// runFake serves until the process is killed.
func runFake(conf string) {
	var c fakeConfig
	if err := json.Unmarshal([]byte(conf), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	journal, err := os.OpenFile(c.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	time.Sleep(c.Loading)
	_, err = fakellm.Start(fakellm.Options{Addr: c.Addr, Dialect: c.Dialect, Control: true, Journal: journal, Default: usual})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	select {}
}

// usual is how replicas behave without a fault.
var usual = fakellm.Behaviour{Tokens: 8, Gap: 10 * time.Millisecond, TTFT: 10 * time.Millisecond}

// replica is an upstream that is a process of its own.
type replica struct {
	t    testing.TB
	conf fakeConfig
	cmd  *exec.Cmd
}

func startReplica(t testing.TB) *replica {
	t.Helper()
	r := &replica{t: t, conf: fakeConfig{Addr: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), Dialect: "vllm", Journal: filepath.Join(t.TempDir(), "journal")}}
	r.start(0)
	t.Cleanup(r.kill)
	return r
}

func (r *replica) url() string { return "http://" + r.conf.Addr + "/v1" }

// start runs it (again); it loads for so long before its port is open.
func (r *replica) start(loading time.Duration) {
	r.conf.Loading = loading
	conf, _ := json.Marshal(r.conf)
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), fakeProcess+"="+string(conf))
	r.cmd.Stderr = os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		r.t.Error(err)
	}
}

func (r *replica) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}

func (r *replica) signal(s syscall.Signal) { r.cmd.Process.Signal(s) }

// behave scripts it; failures do not matter, since it may be dead.
func (r *replica) behave(b fakellm.Behaviour) {
	body, _ := json.Marshal(b)
	c := http.Client{Timeout: 2 * time.Second}
	if resp, err := c.Post("http://"+r.conf.Addr+"/control", "application/json", bytes.NewReader(body)); err == nil {
		resp.Body.Close()
	}
}

// up tells whether it answers.
func (r *replica) up() bool {
	c := http.Client{Timeout: time.Second}
	resp, err := c.Get("http://" + r.conf.Addr + "/health")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == 200
}

// tokens is what it told, by the gateway's request id.
func (r *replica) tokens(into map[string][2]int) {
	f, err := os.Open(r.conf.Journal)
	if err != nil {
		return // it never told anything
	}
	defer f.Close()
	last := map[string]fakellm.Told{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var t fakellm.Told
		if json.Unmarshal(sc.Bytes(), &t) == nil {
			last[t.Request] = t
		}
	}
	for _, t := range last {
		id := t.Request[:min(len(t.Request), 36)] // without the attempt's number
		sum := into[id]
		into[id] = [2]int{sum[0] + t.In, sum[1] + t.Out}
	}
}
