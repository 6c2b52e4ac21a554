package testenv

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Prometheus starts a Prometheus server with the given configuration file's
// text and returns its base URL once it is ready.
func Prometheus(t testing.TB, configYAML string) string {
	t.Helper()
	bin := binary(t, "prometheus", "prometheus")
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(configYAML), 0o644); err != nil {
		t.Fatal(err)
	}
	listen := addr(FreePort(t))
	p, err := start(exec.Command(bin, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "tsdb"),
		"--web.listen-address="+listen, "--log.level=warn"), filepath.Join(dir, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	err = p.ready(func() error {
		resp, err := client.Get("http://" + listen + "/-/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("ready: %s", resp.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + listen
}
