// Package testenv runs the real services that tests talk to (Redis,
// PostgreSQL, Prometheus) from Debian's packages, on free loopback ports and
// in temporary directories, and stops them when the test ends. It hides ports,
// users, start-up waits and the cleaning up after a killed test process.
//
// A missing binary skips the test and names the package to install; with
// CI=true it fails the test instead.
package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// startTimeout bounds the wait for a service to answer; generous, because
// packages are tested in parallel on small machines.
const startTimeout = 60 * time.Second

// Ports come from below the kernel's usual ephemeral range (32768 and up), so
// that no outgoing connection takes the port of a service that is down for a
// moment.
const (
	portLow  = 15000
	portHigh = 30000
)

// FreePort returns a TCP port that nothing listens on at 127.0.0.1. Until the
// test ends no other test process on this machine is given the same port.
func FreePort(t testing.TB) int {
	t.Helper()
	port, release, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// freePort reserves a port by an flock on a file named after it, which the
// kernel lets go of when the process ends, however it ends.
func freePort() (int, func(), error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sluice-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, fmt.Errorf("reserve a port: %w", err)
	}
	for range 1000 {
		port := portLow + rand.IntN(portHigh-portLow)
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, nil, fmt.Errorf("reserve a port: %w", err)
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || !listenable(port) {
			f.Close()
			continue
		}
		return port, func() { f.Close() }, nil
	}
	return 0, nil, fmt.Errorf("no free port between %d and %d on 127.0.0.1", portLow, portHigh)
}

func listenable(port int) bool {
	l, err := net.Listen("tcp", addr(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func addr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Missing ends the test for lack of a binary that the Debian package pkg has:
// a skip, or a failure when CI=true.
func Missing(t testing.TB, binary, pkg string) {
	t.Helper()
	msg := fmt.Sprintf("%s is not installed: apt-get install %s", binary, pkg)
	if os.Getenv("CI") == "true" {
		t.Fatal(msg)
	}
	t.Skip(msg)
}

// binary finds name on PATH or among the glob patterns (the last match wins,
// that is the highest version), or ends the test.
func binary(t testing.TB, name, pkg string, globs ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, g := range globs {
		if m, _ := filepath.Glob(g); len(m) > 0 {
			return m[len(m)-1]
		}
	}
	Missing(t, name, pkg)
	return ""
}
