package sticky_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

func works(t *testing.T, s *sticky.Store) {
	t.Helper()
	eventually(t, "up", s.Up)
	mustPut(t, s, "e", 1, pin(2, 1), nil)
	if p, found := mustGet(t, s, "e", 1); !found || p != pin(2, 1) {
		t.Errorf("%+v, %v", p, found)
	}
	if err := s.Publish(t.Context(), 1, []byte("{}")); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	crt, pemKey := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(crt, certPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pemKey, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	port := testenv.FreePort(t)
	testenv.Redis(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", crt, "--tls-key-file", pemKey, "--tls-ca-cert-file", crt, "--tls-auth-clients", "no")
	url := fmt.Sprintf("rediss://127.0.0.1:%d", port)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	works(t, open(t, sticky.Options{URL: url, TLS: &tls.Config{RootCAs: pool}}))
	if s := open(t, sticky.Options{URL: url}); s.Up() || s.Stats().State != sticky.Down {
		t.Errorf("an unknown authority was trusted: %+v", s.Stats())
	}
	if _, err := sticky.Open(t.Context(), sticky.Options{URL: "redis://127.0.0.1:1", ReplicaID: "a", TLS: &tls.Config{}}); err == nil {
		t.Error("TLS settings with redis:// were ignored")
	}
}

func TestSentinel(t *testing.T) {
	master := testenv.Redis(t)
	_, masterPort, _ := net.SplitHostPort(master.Addr)
	port := testenv.FreePort(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 %s 1\n", port, masterPort)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", conf, "--sentinel")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	works(t, open(t, sticky.Options{URL: fmt.Sprintf("redis://127.0.0.1:%d?master_name=main", port)}))
	if n, err := client(t, master.URL).Exists(t.Context(), "sluice:pin:{e:1}").Result(); err != nil || n != 1 {
		t.Errorf("the pin is not on the master: %d, %v", n, err)
	}
}

func TestOpenRefusesWrongOptions(t *testing.T) {
	for name, o := range map[string]sticky.Options{
		"no replica id": {},
		"scheme":        {ReplicaID: "a", URL: "amqp://127.0.0.1"},
	} {
		if _, err := sticky.Open(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
