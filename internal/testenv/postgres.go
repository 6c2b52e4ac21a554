package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PGServer is a PostgreSQL server of one test. Its methods report failures on
// the test and may be called from any goroutine.
type PGServer struct {
	URL  string // of the database "postgres", as superuser over TCP
	Addr string // 127.0.0.1:port

	t testing.TB
	*cluster
	holder
}

// PostgresServer starts a server of the test's own, for tests that stop it.
func PostgresServer(t testing.TB) *PGServer {
	t.Helper()
	port := FreePort(t)
	c, err := newCluster(t, port)
	if err != nil {
		t.Fatal(err)
	}
	s := &PGServer{URL: c.url("postgres"), Addr: addr(port), t: t, cluster: c}
	t.Cleanup(func() {
		s.end(syscall.SIGQUIT)
		os.RemoveAll(c.dir)
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Database creates an empty database and returns its URL.
func (s *PGServer) Database() string {
	url, err := s.create()
	if err != nil {
		s.t.Error(err)
	}
	return url
}

// Stop shuts the server down in order; open connections are cut.
func (s *PGServer) Stop() { s.end(syscall.SIGINT) }

// Kill ends the server at once (SIGKILL).
func (s *PGServer) Kill() { s.end(syscall.SIGKILL) }

// Restart starts the server again on the same port with its data, killing it
// first if it runs.
func (s *PGServer) Restart() {
	s.end(syscall.SIGKILL)
	if err := s.start(); err != nil {
		s.t.Errorf("restart postgres: %v", err)
	}
}

func (s *PGServer) end(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil {
		s.p.end(sig)
	}
}

// start retries: after a SIGKILL the old backends hold the shared memory until
// they notice that their postmaster is gone.
func (s *PGServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		cmd := s.command()
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // immediate shutdown; leaves no shared memory behind
		if s.p, err = start(cmd, s.log()); err != nil {
			return err
		}
		if err = s.p.ready(s.ping); err == nil || !strings.Contains(err.Error(), "shared memory") {
			return err
		}
	}
	return err
}

// Postgres returns the URL of a fresh, empty database, which is dropped when
// the test ends. All calls of one test process share one server.
func Postgres(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.c, shared.err = startShared(t) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if shared.c == nil { // the first caller was skipped inside once
		pgBinary(t, "postgres")
		t.Fatal("the shared PostgreSQL server did not start in an earlier test")
	}
	url, err := shared.c.create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shared.c.drop(url) })
	return url
}

var shared struct {
	once sync.Once
	c    *cluster
	err  error
	keep *os.File // the write end of the reaper's pipe: closing it stops the server
}

// startShared starts the server that outlives the test. No goroutine waits for
// it (a leak check would find it): a shell does, which stops the server and
// removes its directory when the pipe from this process closes, that is when
// this process ends, however it ends.
func startShared(t testing.TB) (*cluster, error) {
	port, _, err := freePort() // held until the process ends
	if err != nil {
		return nil, err
	}
	c, err := newCluster(t, port)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	shared.keep = w
	out, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := c.command()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr.Setpgid = true // Ctrl-C goes to the tests; the reaper stops the server after them
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	reaper := exec.Command("/bin/sh", "-c", `cat >/dev/null; kill -QUIT $1; n=0
while [ -e "$2/data/postmaster.pid" ] && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; rm -rf "$2"`, "sh", strconv.Itoa(cmd.Process.Pid), c.dir)
	reaper.Stdin = r
	reaper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = reaper.Start()
	r.Close()
	if err != nil {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		return nil, fmt.Errorf("start the reaper of postgres: %w", err)
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		if err = c.ping(); err == nil {
			return c, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("postgres does not answer after %s (%w): %s", startTimeout, err, tail(c.log()))
		}
	}
}

// cluster is an initialised data directory and how to run and reach it.
type cluster struct {
	postgres string // binary
	dir      string // <dir>/data, sockets and the log beside it
	port     int
	cred     *syscall.Credential // nil: run as ourselves
	n        atomic.Int64
}

func pgBinary(t testing.TB, name string) string {
	t.Helper()
	return binary(t, name, "postgresql", "/usr/lib/postgresql/*/bin/"+name, "/usr/pgsql-*/bin/"+name)
}

// newCluster makes a data directory as initdb does. PostgreSQL refuses to run
// as root: then it runs as the package's user postgres.
func newCluster(t testing.TB, port int) (*cluster, error) {
	t.Helper()
	initdb := pgBinary(t, "initdb")
	c := &cluster{postgres: pgBinary(t, "postgres"), port: port}
	parent := os.TempDir()
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, fmt.Errorf("tests run as root, PostgreSQL cannot: %w; apt-get install postgresql creates the user", err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		c.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if fi, err := os.Stat(parent); err != nil || fi.Mode().Perm()&0o001 == 0 {
			parent = "/tmp" // a private TMPDIR of root is closed to postgres
		}
	}
	var err error
	if c.dir, err = c.mkdir(parent, "sluice-pg-"); err != nil {
		return nil, err
	}
	blank.once.Do(func() { blank.err = c.initdb(initdb, parent) })
	if err = blank.err; err == nil {
		err = c.run("cp", "-a", blank.data, filepath.Join(c.dir, "data"))
	}
	if err != nil {
		os.RemoveAll(c.dir)
		return nil, err
	}
	return c, nil
}

// blank is what initdb made, once for a test process: copying it costs a third.
var blank struct {
	once sync.Once
	data string
	err  error
	keep *os.File
}

func (c *cluster) initdb(initdb, parent string) error {
	dir, err := c.mkdir(parent, "sluice-pg-blank-")
	if err != nil {
		return err
	}
	// It goes when this process ends, however it ends: see startShared.
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	reaper := exec.Command("/bin/sh", "-c", `cat >/dev/null; rm -rf "$1"`, "sh", dir)
	reaper.Stdin, reaper.SysProcAttr = r, &syscall.SysProcAttr{Setpgid: true}
	err = reaper.Start()
	r.Close()
	if err != nil {
		os.RemoveAll(dir)
		return fmt.Errorf("start the reaper of %s: %w", dir, err)
	}
	blank.keep, blank.data = w, filepath.Join(dir, "data")
	return c.run(initdb, "-D", blank.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--wal-segsize=1", "--no-sync")
}

// mkdir makes a directory of the user that PostgreSQL runs as.
func (c *cluster) mkdir(parent, pattern string) (string, error) {
	dir, err := os.MkdirTemp(parent, pattern)
	if err == nil && c.cred != nil {
		err = os.Chown(dir, int(c.cred.Uid), int(c.cred.Gid))
	}
	return dir, err
}

// run runs a command as the user that PostgreSQL runs as.
func (c *cluster) run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.SysProcAttr = c.dir, &syscall.SysProcAttr{Credential: c.cred, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (c *cluster) log() string { return filepath.Join(c.dir, "postgres.log") }

func (c *cluster) command() *exec.Cmd {
	cmd := exec.Command(c.postgres, "-D", filepath.Join(c.dir, "data"), "-p", strconv.Itoa(c.port),
		"-c", "listen_addresses=127.0.0.1", "-k", c.dir, "-c", "fsync=off", "-c", "synchronous_commit=off",
		"-c", "full_page_writes=off", "-c", "shared_buffers=32MB", "-c", "max_connections=200", "-c", "autovacuum_naptime=10min")
	cmd.Dir, cmd.SysProcAttr = c.dir, &syscall.SysProcAttr{Credential: c.cred}
	return cmd
}

func (c *cluster) url(db string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr(c.port), db)
}

func (c *cluster) ping() error { return c.exec("select 1") }

func (c *cluster) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func (c *cluster) create() (string, error) {
	name := fmt.Sprintf("t%d", c.n.Add(1))
	if err := c.exec("create database " + name + " template template0"); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	return c.url(name), nil
}

// drop is best effort: the whole directory goes when the process ends.
func (c *cluster) drop(url string) {
	name := url[strings.LastIndexByte(url, '/')+1:]
	name, _, _ = strings.Cut(name, "?")
	_ = c.exec("drop database if exists " + name + " with (force)")
}
