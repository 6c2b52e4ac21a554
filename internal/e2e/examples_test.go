package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesAreValid checks the settings files of examples as an operator would.
func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range files {
		cmd := exec.Command(binary, "validate", f)
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}

// TestExampleClients runs the clients of examples: a whole answer is status 0,
// one that is refused or cut off is status 1 and says so.
func TestExampleClients(t *testing.T) {
	needs(t, "../../.cache/venv/bin/python")
	needs(t, "node/node_modules/openai")
	d := newDesk(t)
	d.start(t, "sluice serve --config examples/sluice.yaml")
	for _, client := range []string{"python examples/python/chat.py", "node examples/node/chat.mjs"} {
		for _, c := range []struct {
			question string
			ok       bool
			want     string
		}{
			{"hello", true, "variant "},
			{"[[fault:truncate@3]]", false, "cut off"},
			{"[[status:400]]", false, "refused: 400"},
		} {
			out, err := d.command(t.Context(), client+" '"+c.question+"'").CombinedOutput()
			if (err == nil) != c.ok || !strings.Contains(string(out), c.want) {
				t.Errorf("%s %s: %v, want %q in\n%s", client, c.question, err, c.want, out)
			}
		}
	}
}

// TestNoticesAreCurrent compares THIRD_PARTY_NOTICES with what the binary holds.
func TestNoticesAreCurrent(t *testing.T) {
	want, err := exec.Command("../../scripts/notices.sh").Output()
	if err != nil {
		t.Fatalf("scripts/notices.sh: %v", err)
	}
	have, err := os.ReadFile("../../THIRD_PARTY_NOTICES")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("THIRD_PARTY_NOTICES is stale: run scripts/notices.sh > THIRD_PARTY_NOTICES")
	}
}
