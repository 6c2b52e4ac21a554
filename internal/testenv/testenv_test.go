package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice/internal/testenv"
)

// send runs one inline command on a fresh connection.
func send(addr, cmd string, wait time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(wait))
	fmt.Fprintf(c, "%s\r\n", cmd)
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

func mustSend(t *testing.T, addr, cmd, want string) {
	t.Helper()
	if got, err := send(addr, cmd, 5*time.Second); err != nil || got != want {
		t.Fatalf("%s: got %q, %v, want %q", cmd, got, err, want)
	}
}

func TestRedisFaults(t *testing.T) {
	s := testenv.Redis(t)
	mustSend(t, s.Addr, "SET k v", "+OK")
	s.Pause()
	if got, err := send(s.Addr, "PING", 100*time.Millisecond); err == nil {
		t.Fatalf("a paused redis answered %q", got)
	}
	s.Resume()
	mustSend(t, s.Addr, "EXISTS k", ":1")
	s.FlushAll()
	mustSend(t, s.Addr, "EXISTS k", ":0")
	mustSend(t, s.Addr, "SET k v", "+OK")
	s.Kill()
	if _, err := send(s.Addr, "PING", time.Second); err == nil {
		t.Fatal("a killed redis answered")
	}
	s.Restart()
	mustSend(t, s.Addr, "EXISTS k", ":0")
	s.Pause()
	s.Restart() // a paused one is killed first
	mustSend(t, s.Addr, "PING", "+PONG")
}

func TestRedisKeepsDataByOption(t *testing.T) {
	s := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	mustSend(t, s.Addr, "SET k v", "+OK")
	s.Restart()
	mustSend(t, s.Addr, "EXISTS k", ":1")
}

func query(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, sql)
	return err
}

func TestPostgresGivesSeparateDatabases(t *testing.T) {
	a, b := testenv.Postgres(t), testenv.Postgres(t)
	for _, url := range []string{a, b} {
		if err := query(url, "create table x (i int)"); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
	}
}

func TestPostgresServerFaults(t *testing.T) {
	s := testenv.PostgresServer(t)
	url := s.Database()
	if err := query(url, "create table x (i int)"); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := query(url, "select 1"); err == nil {
		t.Fatal("a stopped server answered")
	}
	s.Restart()
	s.Kill()
	s.Restart()
	if err := query(url, "select i from x"); err != nil {
		t.Fatalf("after kill and restart: %v", err)
	}
}

func TestPrometheusIsReady(t *testing.T) {
	url := testenv.Prometheus(t, "global: {scrape_interval: 1s}\n")
	resp, err := http.Get(url + "/api/v1/query?query=vector(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), `"success"`) {
		t.Fatalf("query: %s", body)
	}
}

func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		p := testenv.FreePort(t)
		if seen[p] {
			t.Fatalf("port %d twice", p)
		}
		seen[p] = true
	}
}

// TestNothingOutlivesTheProcess runs a child test process that starts services
// and is killed; the services must be gone soon after.
func TestNothingOutlivesTheProcess(t *testing.T) {
	if os.Getenv("TESTENV_CHILD") == "1" {
		r, pg := testenv.Redis(t), testenv.Postgres(t)
		fmt.Printf("child %s %s\n", r.Addr, pg)
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesTheProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "TESTENV_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var redis, pg string
	for sc := bufio.NewScanner(out); sc.Scan(); {
		if _, err := fmt.Sscanf(sc.Text(), "child %s %s", &redis, &pg); err == nil {
			break
		}
		if strings.Contains(sc.Text(), "--- SKIP") {
			t.Skip("the child skipped: " + sc.Text())
		}
	}
	mustSend(t, redis, "PING", "+PONG")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, rerr := send(redis, "PING", time.Second)
		perr := query(pg, "select 1")
		if rerr != nil && perr != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still answering after the end of the process: redis %v, postgres %v", rerr == nil, perr == nil)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
