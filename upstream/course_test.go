package upstream

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/guard"
)

// TestWhyNobodyMayBeCalled: a pause that all servers ask for is a rate limit;
// else retry-after is when the first of them may be called again.
func TestWhyNobodyMayBeCalled(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cool    [2]time.Duration // 0 = does not cool down
		broken  [2]bool
		outcome Outcome
		after   []string
		noRetry bool
	}{
		{"all cool down", [2]time.Duration{60 * time.Second, 7 * time.Second}, [2]bool{}, UpRateLimited, []string{"7"}, false},
		{"one fails, the other cools down for longer", [2]time.Duration{60 * time.Second, 0}, [2]bool{false, true}, NoEndpoint, []string{"5", "6", "7", "8"}, false},
		{"one fails, the other cools down for less", [2]time.Duration{2 * time.Second, 0}, [2]bool{false, true}, NoEndpoint, []string{"2"}, false},
		{"one does both", [2]time.Duration{60 * time.Second, 30 * time.Second}, [2]bool{false, true}, NoEndpoint, []string{"30"}, false},
		{"all fail", [2]time.Duration{}, [2]bool{true, true}, NoEndpoint, []string{"5", "6", "7", "8"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{}
				p, ups := poolWith(t, s.options(), hosts("a", "a", "b"))
				for i, e := range ups["a"].endpoints() {
					if d := tt.cool[i]; d > 0 {
						e.guard.CoolDown(time.Now(), d)
					}
					for range 5 {
						if turn, ok := e.guard.Begin(time.Now()); ok && tt.broken[i] {
							turn.End(guard.Failure)
						}
					}
				}
				res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
				if f := res.Failure; res.Outcome != tt.outcome || !slices.Contains(tt.after, f.RetryAfter) || f.NoRetry != tt.noRetry || s.total() != 0 {
					t.Errorf("%v %+v after %d calls", res.Outcome, f, s.total())
				}
			})
		})
	}
}

// TestNextAndTheSinkTakeTurns: what Next decides is what the sink tells.
func TestNextAndTheSinkTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: 44 * time.Second}
		p, ups := poolWith(t, s.options(), hosts("a", "a"), hosts("b", "b"))
		s.set("a", 503)
		s.set("b", 503)
		r := request(t, streamBody)
		r.KeepAliveBefore = 45 * time.Second
		deciding := 0 // not atomic: -race would see it
		r.Next = func(n int, _ *Attempt, _ bool) (Target, string, bool) {
			deciding++
			defer func() { deciding-- }()
			if n == 0 {
				return to(ups["a"]), "", true
			}
			time.Sleep(3 * time.Second) // the comment is due meanwhile
			return to(ups["b"]), "fallback", n == 1
		}
		rec := &recorder{onCommit: func() {
			if deciding != 0 {
				t.Error("the response was opened while Next ran")
			}
		}}
		p.Do(t.Context(), r, rec)
		if !strings.Contains(rec.text(), ": ping") {
			t.Errorf("no comment: %q", rec.text())
		}
	})
}
