package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice/internal/demo"
	"sluice/internal/testenv"
)

// ramping is the demo's experiment with a ramp, as the admin API tells it.
type ramping struct {
	State     string
	RampState struct {
		Phase, Reason string
		Step          int
	} `json:"ramp_state"`
}

// demoRun is a running demo whose ramp is watched.
type demoRun struct {
	*gateway
	t *testing.T
}

func startDemo(t *testing.T) demoRun {
	t.Helper()
	port, admin := testenv.FreePort(t), testenv.FreePort(t)
	g := &gateway{t: t, Dir: t.TempDir()}
	g.Data, g.Admin = fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", admin)
	g.run([]string{"demo", "--port", fmt.Sprint(port), "--admin-port", fmt.Sprint(admin), "--rate", "60"})
	return demoRun{g, t}
}

func (d demoRun) now() (r ramping) {
	d.t.Helper()
	d.admin("GET", "/experiments/"+demo.Ramp, "", &r)
	return r
}

// until waits for the ramp to stand so, and fails when it is rolled back instead.
func (d demoRun) until(what string, patience time.Duration, ok func(r ramping) bool) ramping {
	d.t.Helper()
	var r ramping
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if r = d.now(); ok(r) {
			return r
		}
	}
	d.t.Fatalf("not within %v: %s; it is %+v", patience, what, r)
	return r
}

func (d demoRun) cli(args ...string) {
	d.t.Helper()
	out, err := exec.Command(binary, append(args, "--admin", d.Admin)...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func growing(r ramping) bool {
	return r.State == "running" && r.RampState.Phase == "ramping" && r.RampState.Step >= 0
}

// TestDemoRollsBack: a variant that breaks is rolled back by itself, with a
// reason in numbers; an outage that both variants share holds the ramp.
func TestDemoRollsBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	d := startDemo(t)
	d.until("the ramp takes its first step", time.Minute, growing)

	d.cli("demo", "break", "--all")
	d.until("the ramp holds in an outage of both", time.Minute, func(r ramping) bool {
		if r.State == "rolled_back" {
			t.Fatal("the canary is blamed for an outage that the variants share")
		}
		return r.RampState.Phase == "holding" && r.RampState.Reason == "baseline_unhealthy"
	})
	d.cli("demo", "heal", "--all")

	// The evidence of the outage is the step's; a new generation begins without.
	d.cli("experiment", "rollback", demo.Ramp, "--reason", "the outage is over")
	time.Sleep(5 * time.Second) // the demo's cooldown
	d.cli("experiment", "start", demo.Ramp)
	d.until("the ramp takes its first step again", 3*time.Minute, growing) // the outage is in the last minute of the baseline
	d.cli("demo", "break", "large", "--how", "400")
	d.until("a variant that rejects everything is rolled back", time.Minute, func(r ramping) bool { return r.State == "rolled_back" })
	var page struct {
		Items []struct{ Action, Reason string }
	}
	d.admin("GET", "/experiments/"+demo.Ramp+"/history?limit=1", "", &page)
	if len(page.Items) != 1 || page.Items[0].Action != "ramp.rollback" || !strings.Contains(page.Items[0].Reason, "rejected") {
		t.Errorf("the history does not tell why: %+v", page)
	}
}
