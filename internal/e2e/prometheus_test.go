package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/demo"
	"sluice/internal/testenv"
	"sluice/metrics/dashboards"
)

// TestDashboardsOnTheDemo lets a real Prometheus scrape a gateway with the
// demo's upstreams and users, and runs every panel's query.
func TestDashboardsOnTheDemo(t *testing.T) {
	port, admin := testenv.FreePort(t), testenv.FreePort(t)
	g := &gateway{t: t, Dir: t.TempDir()}
	g.Data, g.Admin = fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", admin)
	rules, err := filepath.Abs("../../deploy/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	prom := testenv.Prometheus(t, fmt.Sprintf(`
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [ "%s" ]
scrape_configs: [ { job_name: sluice, static_configs: [ { targets: ["127.0.0.1:%d"] } ] } ]
`, rules, admin))
	g.run([]string{"demo", "--port", fmt.Sprint(port), "--admin-port", fmt.Sprint(admin), "--rate", "60"})
	// Something of everything that a panel shows: a fallback, an error, a retry.
	for range 20 {
		g.chat("u", "[[status:400]]")
	}
	var last error
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		last = dashboards.CheckPanels(ctx, prom, true)
		cancel()
		if last == nil {
			return
		}
	}
	t.Errorf("panels without data: %v", last)
}

// TestDemoLeavesNothing starts and ends the demo and its upstreams.
func TestDemoLeavesNothing(t *testing.T) {
	d, err := demo.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if names := strings.Join(d.Names(), " "); names != "large small" {
		t.Errorf("built-in upstreams: %s", names)
	}
	if err := d.Break("nope", "500"); err == nil || !strings.Contains(err.Error(), "large, small") {
		t.Errorf("an unknown upstream: %v", err)
	}
	if err := d.Break("large", "melt"); err == nil {
		t.Error("an unknown way to break is accepted")
	}
}
