package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/router"
	"sluice/upstream/wire"
)

func TestKillSetOverlay(t *testing.T) {
	t.Parallel()
	d := doc(t)
	user := who(t, compile(t, d), "canary", 1)[0]
	for _, tt := range []struct {
		kill router.KillEntry
		want string
	}{
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "canary"}, "control killed"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "*"}, "control rolled_back"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 2, Variant: "*"}, "canary bucket"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "gone"}, "canary bucket"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "control"}, "canary bucket"},
		{router.KillEntry{Experiment: "other", Generation: 1, Variant: "*"}, "canary bucket"},
	} {
		table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{Kills: []router.KillEntry{tt.kill}, Epoch: 3})
		must(t, err)
		p := route(t, table, query("chat", user))
		if got := p.Variant.Name + " " + string(p.Decision.Reason); got != tt.want || table.Epoch != 3 {
			t.Errorf("%+v: got %s, want %s", tt.kill, got, tt.want)
		}
	}
}

func TestCompileTwiceIsEqual(t *testing.T) {
	t.Parallel()
	d := doc(t, `"params": {"temperature": 0.6}`, `"params": {"temperature": 0.6, "top_p": 1, "seed": 2, "logprobs": true}`)
	s, u := &router.Snapshot{Document: *d}, ups(d)
	a, err := router.Compile(s, u, router.CompileOptions{})
	must(t, err)
	b, err := router.Compile(s, u, router.CompileOptions{})
	must(t, err)
	if got := a.Upstreams(); len(got) != 2 || got[0] != u["v1"] || got[1] != u["v2"] {
		t.Errorf("upstreams %v", got)
	}
	if !reflect.DeepEqual(a, b) {
		t.Error("two compiles of one snapshot differ")
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	d := doc(t)
	d.Upstreams[0].Credential = "vllm"
	u := ups(d)
	delete(u, "v2")
	d.Experiments[0].Baseline = "x"
	_, err := router.Compile(&router.Snapshot{Document: *d, Keys: []router.Key{{ID: "k", Hash: "zz"}}}, u,
		router.CompileOptions{Secrets: func(string) bool { return false }})
	var ps router.Problems
	if !errors.As(err, &ps) || len(ps) != 4 {
		t.Fatalf("want all four problems, got %v", err)
	}
	for _, code := range []string{"secret_unknown", "upstream_missing", "variant_unknown", "key_invalid"} {
		if !strings.Contains(fmt.Sprintf("%#v", ps), code) {
			t.Errorf("no %s in %+v", code, ps)
		}
	}
}

func TestUpstreamConfigs(t *testing.T) {
	t.Parallel()
	d := doc(t, `"dialect": "vllm", "endpoints": ["http://gpu1`, `"credential": "vllm", "usage": "exact", "balance": "prefix", "timeouts": {"connect": "0s", "total": "1m"},
		"deny_fields": [], "headers": {"request": ["X-A"]}, "readiness": {"interval": "3s", "up": 1}, "dialect": "vllm", "endpoints": ["http://gpu1`)
	got, ps := router.UpstreamConfigs(d, func(name string) (string, bool) { return "s3cret", name == "vllm" })
	if len(ps) > 0 || len(got) != 2 {
		t.Fatalf("%v %v", got, ps)
	}
	c := got[0]
	if c.Credential != "s3cret" || !c.UsageExact || c.Balance != "prefix" || c.Timeouts.Connect != -1 || c.Timeouts.Total != time.Minute ||
		c.Timeouts.FirstByte != 0 || c.DenyFields == nil || c.ReqHeaders[0] != "x-a" || c.Readiness.Interval != 3*time.Second || c.Readiness.Up != 1 {
		t.Errorf("got %+v", c)
	}
	if got[1].DenyFields != nil || got[1].Credential != "" {
		t.Errorf("got %+v", got[1])
	}
	got, ps = router.UpstreamConfigs(d, nil)
	if len(got) != 1 || len(ps) != 1 || ps[0].Path != "/upstreams/0/credential" {
		t.Errorf("unresolvable: %v %v", got, ps)
	}
	d.Upstreams[0].Credential = "sk-CANARY"
	if _, ps := router.UpstreamConfigs(d, nil); strings.Contains(ps.Error(), "CANARY") {
		t.Errorf("repeats a secret: %v", ps)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	hash := func(s string) string { return fmt.Sprintf("%x", sha(s)) }
	keys := []router.Key{
		{ID: "a", Hash: hash("sk-a")},
		{ID: "b", Hash: hash("sk-b"), ExpiresAt: t0},
		{ID: "c", Hash: hash("sk-c"), RevokedAt: t0, ExpiresAt: t0},
	}
	table := compile(t, doc(t), keys...)
	for secret, want := range map[string]string{"sk-a": "", "sk-b": "expired", "sk-c": "revoked", "sk-d": "unknown", "": "unknown", strings.Repeat("x", 1<<20): "unknown"} {
		k, ok := table.Key(secret, t0)
		if got := table.KeyStatus(secret, t0); got != want || ok != (want == "") || ok && "sk-"+k.ID != secret {
			t.Errorf("%.10s: got %q %v", secret, got, ok)
		}
	}
	if k, ok := table.Key("sk-b", t0.Add(-time.Second)); !ok || k.ID != "b" {
		t.Error("not expired yet")
	}
}

func TestLiveNeverGoesBack(t *testing.T) {
	t.Parallel()
	var live router.Live
	if live.Load() != nil {
		t.Error("nothing was stored yet")
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 500 {
				live.Store(&router.Table{Revision: int64((i*7+w*13)%500 + 1), Epoch: int64(i % 3)})
			}
		})
		wg.Go(func() {
			revision, epoch := int64(0), int64(0)
			for range 2000 {
				if table := live.Load(); table != nil {
					if table.Revision < revision || table.Revision == revision && table.Epoch < epoch {
						t.Errorf("went from %d/%d to %d/%d", revision, epoch, table.Revision, table.Epoch)
						return
					}
					revision, epoch = table.Revision, table.Epoch
				}
			}
		})
	}
	wg.Wait()
	if live.Load().Revision != 500 || live.Store(&router.Table{Revision: 499, Epoch: 9}) || live.Store(&router.Table{Revision: 500, Epoch: live.Load().Epoch}) {
		t.Error("an older or equal table was taken")
	}
	if !live.Store(&router.Table{Revision: 500, Epoch: 10}) {
		t.Error("a newer kill set on the same revision is taken")
	}
}

// What answers are checked for follows from the guardrails, and who can have a
// prompt to leak from the variants.
func TestCompileChecks(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]wire.Checks{
		``:                            0,
		`[]`:                          0,
		`[{"metric":"invalid_json"}]`: 0,
		`[{"metric":"error"},{"metric":"prompt_leak","max_rate":0.01}]`: wire.CheckPrompt,
	} {
		d := doc(t)
		d.Experiments[0].Guardrails = json.RawMessage(raw)
		for _, prompt := range []*router.Prompt{nil, {}, {SystemAppend: "Be brief."}} {
			d.Experiments[0].Variants[1].Prompt = prompt
			e, _ := compile(t, d).Experiment("chat-v2")
			if brings := prompt != nil && prompt.SystemAppend != ""; e.Checks != want || e.Prompts != brings {
				t.Errorf("%s, prompt %+v: checks %b, prompts %v", raw, prompt, e.Checks, e.Prompts)
			}
		}
	}
}
