package preflight

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/internal/fakellm"
)

// until waits for a check to be so.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("30 s later: not %s", what)
		}
	}
}

var want = ramp.Ready{Probes: 3, Interval: 10 * time.Millisecond, MaxTTFT: 2 * time.Second}

// A variant is ready after so many probes in a row, and not when one fails.
func TestReady(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{}, "", Traffic{})
	if c := b.Ready("exp", "canary", want); c.OK || c.Text != "0 of 3 probes of canary in a row have passed" {
		t.Errorf("at once: %+v", c)
	}
	until(t, "ready", func() bool { return b.Ready("exp", "canary", want).OK })
	if c := b.Ready("exp", "nobody", want); c.OK || !strings.Contains(c.Text, "no variant nobody") {
		t.Errorf("%+v", c)
	}
	if c := b.Ready("no", "canary", want); c.OK || c.Text != ErrUnknown.Error() {
		t.Errorf("%+v", c)
	}
	if c := b.Ready("exp", "control", ramp.Ready{}); !c.OK {
		t.Errorf("without probes: %+v", c)
	}
}

func TestNotReady(t *testing.T) {
	for _, c := range []struct {
		name string
		b    fakellm.Behaviour
		want ramp.Ready
		text string
	}{
		{"fails", fakellm.Behaviour{Fault: fakellm.Status, Status: 500}, want, "canary fails its probes: "},
		{"empty", fakellm.Behaviour{Fault: fakellm.Blank}, want, "canary fails its probes: the answer is empty"},
		{"slow", fakellm.Behaviour{TTFT: 300 * time.Millisecond}, ramp.Ready{Probes: 3, Interval: time.Millisecond, MaxTTFT: 50 * time.Millisecond}, "canary fails its probes: no first token within 50ms"},
		{"hangs", fakellm.Behaviour{Fault: fakellm.Hang}, ramp.Ready{Probes: 3, Interval: time.Millisecond, MaxTTFT: 50 * time.Millisecond}, "canary fails its probes: no first token within 50ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t, fakellm.Options{}, fakellm.Options{Default: c.b}, "", Traffic{})
			until(t, c.text, func() bool { return strings.HasPrefix(b.Ready("exp", "canary", c.want).Text, c.text) })
			b.canary.Set(quickly)
			until(t, "ready when it is well", func() bool { return b.Ready("exp", "canary", c.want).OK })
		})
	}
}

// What was taken away gets no more probes.
func TestNoProbesOfWhatWasTakenAway(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{}, "", Traffic{})
	until(t, "ready", func() bool { return b.Ready("exp", "canary", want).OK })
	e, _ := b.table.Experiment("exp")
	if !b.mayServe(gateKey{"exp", "canary"}) {
		t.Fatal("it may not serve")
	}
	e.State = experiment.RolledBack
	if b.mayServe(gateKey{"exp", "canary"}) {
		t.Error("rolled back, and probed")
	}
	e.State = experiment.Running
	e.Variants[1].Killed = true
	if b.mayServe(gateKey{"exp", "canary"}) {
		t.Error("killed, and probed")
	}
}

// A server for embeddings only is probed with those.
func TestReadyOfEmbeddings(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{}, "", Traffic{})
	e, _ := b.table.Experiment("exp")
	s := newSubject(e.Variants[1])
	s.model, s.experiment = "chat", "exp"
	kind := 0
	if why := b.knockAny(s, want, &kind); why != "" || kind != 0 {
		t.Errorf("chat: %q, kind %d", why, kind)
	}
	b.canary.Set(fakellm.Behaviour{Tokens: 3, Fault: fakellm.Status, Status: 404})
	if why := b.knockAny(s, want, &kind); !strings.HasPrefix(why, "404") || kind != 0 {
		t.Errorf("nothing there: %q, kind %d", why, kind)
	}
}

// A breaker that is open is waited for: what it did before says nothing about
// what it is now.
func TestOpenBreaker(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{Default: fakellm.Behaviour{Fault: fakellm.Status, Status: 500}}, "", Traffic{})
	e, _ := b.table.Experiment("exp")
	s := newSubject(e.Variants[1])
	s.model, s.experiment = "chat", "exp"
	kind := 0
	up := e.Variants[1].Target.Upstream
	until(t, "open", func() bool { b.knockAny(s, want, &kind); return up.Status()[0].Breaker == "open" })
	b.canary.Set(quickly)
	check := b.Check("exp")
	if check.OK || !strings.Contains(check.Text, "has failed too often and rests for some seconds") {
		t.Errorf("at once: %+v", check)
	}
	until(t, "OK when it is well", func() bool { return b.Check("exp").OK })
}

// Only what lasts stands in the way for minutes.
func TestRepeats(t *testing.T) {
	result := func(probe string, status int, blocks bool) *ramp.Preflight {
		return &ramp.Preflight{Probes: []ramp.Probe{{Name: probe, Results: []ramp.ProbeResult{{Variant: "canary", State: ramp.ProbeFailed, Status: status, Blocks: blocks}}}}}
	}
	for _, c := range []struct {
		probe  string
		status int
		blocks bool
		want   time.Duration
	}{
		{"chat", 503, true, againSoon},
		{"chat", 0, true, againSoon},
		{"chat", 404, true, again},
		{"chat", 503, false, again},
		{"tools_auto", 500, true, again},
	} {
		if got := (&kept{report: result(c.probe, c.status, c.blocks)}).lasts(); got != c.want {
			t.Errorf("%s %d: %s, want %s", c.probe, c.status, got, c.want)
		}
	}
}

// Who asks while one is under way gets that one; when all have gone it ends.
func TestJoinAndLeave(t *testing.T) {
	slow := fakellm.Options{Default: fakellm.Behaviour{TTFT: time.Second}}
	b := setup(t, slow, slow, "", Traffic{})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for range 2 {
		go func() { _, err := b.Preflight(ctx, "exp"); errs <- err }()
	}
	until(t, "joined", func() bool {
		b.Prober.mu.Lock()
		defer b.Prober.mu.Unlock()
		f := b.flights["exp"]
		return f != nil && f.waiting == 2
	})
	if c := b.Check("exp"); c.OK || !strings.HasPrefix(c.Text, "the preflight is under way: ") {
		t.Errorf("%+v", c)
	}
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	until(t, "over", func() bool {
		b.Prober.mu.Lock()
		defer b.Prober.mu.Unlock()
		return b.flights["exp"] == nil
	})
	if b.Last("exp") != nil {
		t.Error("a preflight that nobody waited for left a report")
	}
	b.Close()
	if _, err := b.Preflight(t.Context(), "exp"); err == nil {
		t.Error("asked after the end")
	}
}

// Answers that are made to hurt: endless, not text, not JSON.
func TestHostileAnswers(t *testing.T) {
	for _, c := range []struct{ name, content, body, want string }{
		{"long", "application/json", `{"choices":[{"message":{"content":"` + strings.Repeat("x", maxAnswer+10) + `"},"finish_reason":"stop"}]}`, "the answer to a few tokens is longer than 1048576 bytes"},
		{"list", "application/json", `[1,2,3]`, ""},
		{"many", "application/json", `{"choices":[{"index":99999999,"message":{"content":"x"},"finish_reason":"stop"}]}`, "the answer has no choice"},
		{"negative", "application/json", `{"choices":[{"index":-1,"message":{"content":"x"},"finish_reason":"stop"}]}`, "the answer has no choice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &reply{whole: true}
			k := &sink{r: r}
			k.r.whole = true
			for rest := c.body; rest != ""; {
				n := min(len(rest), 64<<10)
				if err := k.Write([]byte(rest[:n])); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if len(r.body) > maxAnswer {
				t.Errorf("%d bytes are held", len(r.body))
			}
			r.read()
			if got := says(r); got == "" || c.want != "" && got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := tidy("\x00a\xffb\n\tc " + strings.Repeat("é", 400)); strings.ContainsAny(got, "\x00\n\t") || len([]rune(got)) != maxSaid+1 {
		t.Errorf("%q", got)
	}
}
