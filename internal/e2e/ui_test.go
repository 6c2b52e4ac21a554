package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

// uiSettings are three variants on two upstreams; admin is the admin section.
func uiSettings(t *testing.T, admin string) string {
	a := fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"m-1"}})
	b := fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"m-1"}})
	return fmt.Sprintf(`
server: { listen: "%%DATA%%" }
admin: %s
storage: { url: "sqlite:%%DIR%%/sluice.db" }
auth: { data: none }
data_dir: "%%DIR%%"
resources:
  upstreams:
    - { name: v1, dialect: vllm, endpoints: ["%s"], price: { input: "0.20", output: "0.80" } }
    - { name: v2, dialect: vllm, endpoints: ["%s"], price: { input: "0.30", output: "1.20" } }
  models:
    - { name: chat, default: { upstream: v1, model: m-1 } }
  experiments:
    - key: chat-v2
      model: chat
      kind: canary
      state: running
      unit: { from: ["header:x-user-id"] }
      baseline: control
      variants:
        - { name: control, weight: 8000, upstream: v1, model: m-1, version: "1" }
        - { name: canary, weight: 1000, upstream: v2, model: m-1, version: "2" }
        - { name: third, weight: 1000, upstream: v2, model: m-1, version: "3", params: { temperature: 0.2 } }
`, admin, a.URL(), b.URL())
}

func TestUI(t *testing.T) {
	needBrowser(t)
	g := serve(t, t.TempDir(), uiSettings(t, `{ listen: "%ADMIN%" }`))
	runUI(t, g.Admin, g.Data, "")
}

// With a token and below a path, as behind a proxy.
func TestUIWithToken(t *testing.T) {
	needBrowser(t)
	const token = "a-token-for-the-test"
	g := serve(t, t.TempDir(), uiSettings(t, fmt.Sprintf(`{ listen: "%%ADMIN%%", token: %q, base_path: /sluice }`, token)))
	runUI(t, g.Admin+"/sluice", g.Data, token)
}

func needBrowser(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	for _, need := range []string{"/usr/bin/chromium", filepath.Join("node", "node_modules", "playwright-core")} {
		if _, err := os.Stat(need); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%v: run make test-deps", err)
			}
			t.Skipf("%v: run make test-deps", err)
		}
	}
}

// TestUIMovesARamp does a whole rollout by hand, with traffic.
func TestUIMovesARamp(t *testing.T) {
	needBrowser(t)
	r := startRollout(t, `{ steps: [500, 2000, 10000], min_duration: 1s, max_duration: 20m, min_units: 50, cooldown: 0s, ready: { probes: 1, interval: 100ms } }`)
	r.drive()
	runCases(t, "ramp.mjs", "SLUICE_ADMIN="+r.gs[0].Admin)
}

func runUI(t *testing.T, admin, data, token string) {
	t.Helper()
	runCases(t, "ui.mjs", "SLUICE_ADMIN="+admin, "SLUICE_DATA="+data, "SLUICE_TOKEN="+token)
}

// runCases runs a script that prints a line for each of its cases.
func runCases(t *testing.T, script string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", script)
	cmd.Dir = "node"
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	cases := 0
	sc := bufio.NewScanner(strings.NewReader(string(out)))
	for sc.Scan() {
		line := sc.Text()
		word, rest, _ := strings.Cut(line, " ")
		name, why, _ := strings.Cut(rest, ": ")
		if word != "ok" && word != "FAIL" {
			t.Log(line)
			continue
		}
		cases++
		t.Run(name, func(t *testing.T) {
			if word == "FAIL" {
				t.Error(why)
			}
		})
	}
	if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	if cases == 0 {
		t.Errorf("no case ran:\n%s", out)
	}
}
