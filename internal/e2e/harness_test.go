package e2e

import (
	"bufio"
	"bytes"
	"context"
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
	"syscall"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

var binary string

func TestMain(m *testing.M) {
	if conf := os.Getenv(fakeProcess); conf != "" {
		runFake(conf) // this process is an upstream that a test can kill
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-o", binary, "sluice/cmd/sluice")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "the binary does not build:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// gateway is a running `sluice serve`.
type gateway struct {
	t           testing.TB
	cmd         *exec.Cmd
	Data, Admin string // http://127.0.0.1:PORT
	Dir         string
	mu          sync.Mutex
	access      []map[string]any
	log         bytes.Buffer
	done        chan error
}

// serve starts the binary with a file of settings; %DATA% and %ADMIN% in it are
// the listeners' addresses.
func serve(t testing.TB, dir, yaml string, env ...string) *gateway {
	t.Helper()
	g := &gateway{t: t, Dir: dir}
	data, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	g.Data, g.Admin = "http://"+data, "http://"+admin
	yaml = strings.NewReplacer("%DATA%", data, "%ADMIN%", admin, "%DIR%", dir).Replace(yaml)
	file := filepath.Join(dir, fmt.Sprintf("sluice-%s.yaml", strings.ReplaceAll(data, ":", "-")))
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	g.run([]string{"serve", "--config", file}, env...)
	return g
}

func (g *gateway) run(args []string, env ...string) {
	g.t.Helper()
	done := make(chan error, 1)
	g.done = done
	g.cmd = exec.Command(binary, args...)
	g.cmd.Dir = g.Dir
	g.cmd.Env = append(os.Environ(), env...)
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	g.cmd.Stderr = &locked{mu: &g.mu, w: &g.log}
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { defer close(read); g.readAccess(out) }()
	cmd := g.cmd
	go func() { <-read; done <- cmd.Wait() }()
	g.t.Cleanup(func() { g.stop() })
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		resp, err := http.Get(g.Data + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
		}
		select {
		case err := <-g.done:
			g.done <- err
			g.t.Fatalf("sluice ended: %v\n%s", err, g.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
	g.t.Fatalf("sluice is not ready after 20 s\n%s", g.Log())
}

func (g *gateway) readAccess(out io.Reader) {
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var line map[string]any
		if json.Unmarshal(sc.Bytes(), &line) == nil && line["request_id"] != nil {
			g.mu.Lock()
			g.access = append(g.access, line)
			g.mu.Unlock()
		}
	}
}

// stop ends the gateway as an operator would and reports its exit status.
func (g *gateway) stop() error {
	if g.cmd.ProcessState != nil {
		return nil
	}
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-g.done:
		g.done <- err
		return err
	case <-time.After(20 * time.Second):
		g.cmd.Process.Kill()
		return errors.New("did not stop within 20 s")
	}
}

// Log is the process log so far.
func (g *gateway) Log() string { g.mu.Lock(); defer g.mu.Unlock(); return g.log.String() }

// Access waits until n access-log lines are there and returns all.
func (g *gateway) Access(n int) []map[string]any {
	g.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		g.mu.Lock()
		lines := append([]map[string]any(nil), g.access...)
		g.mu.Unlock()
		if len(lines) >= n {
			return lines
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("%d access-log lines, want %d", len(lines), n)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.w.Write(p) }

// admin calls the admin API and decodes the answer into out.
func (g *gateway) admin(method, path, body string, out any, header ...string) *http.Response {
	g.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, g.Admin+"/admin/v1"+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			g.t.Fatalf("%s %s: %v: %s", method, path, err, b)
		}
	}
	return resp
}

// chat sends one unary chat request as the user; it returns the answer, its body read.
func (g *gateway) chat(user, text string, extra ...string) (*http.Response, string) {
	g.t.Helper()
	req, _ := http.NewRequest("POST", g.Data+"/v1/chat/completions", strings.NewReader(chatBody(text, false)))
	req.Header.Set("Content-Type", "application/json")
	if user != "" {
		req.Header.Set("X-User-Id", user)
	}
	for i := 0; i+1 < len(extra); i += 2 {
		req.Header.Set(extra[i], extra[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, string(b)
}

func chatBody(text string, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "chat", "stream": stream, "messages": []any{map[string]string{"role": "user", "content": text}}})
	return string(b)
}

// fake starts an upstream without a model.
func fake(t testing.TB, o fakellm.Options) *fakellm.Server {
	t.Helper()
	s, err := fakellm.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// command runs the binary to its end and returns what it printed.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}
