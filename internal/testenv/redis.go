package testenv

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// RedisServer is a redis-server of one test. Its methods report failures on
// the test and may be called from any goroutine.
type RedisServer struct {
	URL  string // redis://127.0.0.1:port/0
	Addr string // 127.0.0.1:port

	t    testing.TB
	bin  string
	args []string
	dir  string
	holder
}

// Redis starts a redis-server without persistence. Further args are options of
// redis-server and win ("--appendonly", "yes" keeps the data over Restart).
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	bin := binary(t, "redis-server", "redis-server")
	port := FreePort(t)
	s := &RedisServer{Addr: addr(port), URL: "redis://" + addr(port) + "/0", t: t, bin: bin, dir: t.TempDir()}
	s.args = append([]string{
		"--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--daemonize", "no", "--protected-mode", "no",
	}, args...)
	t.Cleanup(s.Kill)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *RedisServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil {
		s.p.kill()
	}
	p, err := start(exec.Command(s.bin, s.args...), filepath.Join(s.dir, "redis.log"))
	if err != nil {
		return err
	}
	s.p = p
	return p.ready(func() error {
		reply, err := s.command("PING")
		if err == nil && reply != "+PONG" { // -LOADING
			err = fmt.Errorf("ping: %s", reply)
		}
		return err
	})
}

// Kill ends the server at once (SIGKILL) and waits until it is gone.
func (s *RedisServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil {
		s.p.kill()
	}
}

// Restart starts the server again on the same port, killing it first if it runs.
func (s *RedisServer) Restart() {
	if err := s.start(); err != nil {
		s.t.Errorf("restart redis: %v", err)
	}
}

// Pause stops the process (SIGSTOP): connections stay open and nothing answers.
func (s *RedisServer) Pause() { s.sig(syscall.SIGSTOP) }

// Resume lets a paused process run on.
func (s *RedisServer) Resume() { s.sig(syscall.SIGCONT) }

func (s *RedisServer) sig(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.p.signal(sig); err != nil {
		s.t.Error(err)
	}
}

// FlushAll removes all data.
func (s *RedisServer) FlushAll() {
	if reply, err := s.command("FLUSHALL"); err != nil || reply != "+OK" {
		s.t.Errorf("flushall: %q, %v", reply, err)
	}
}

// command sends an inline command on its own connection and returns the first line.
func (s *RedisServer) command(line string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(c, "%s\r\n", line); err != nil {
		return "", err
	}
	reply, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimRight(reply, "\r\n"), err
}
