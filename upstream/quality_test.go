package upstream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

const thought = `data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}` + "\n\n"

// slowClient takes its time for every write.
type slowClient struct {
	recorder
	each time.Duration
}

func (s *slowClient) Write(p []byte) error {
	time.Sleep(s.each)
	return s.recorder.Write(p)
}

// TestAttemptTimes: the times of an attempt are its own, stay when it fails
// later, and leave out what the client takes to read.
func TestAttemptTimes(t *testing.T) {
	inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
		cut := false
		c := &wirePipe{serve: func(ctx context.Context, host string, w *answerPipe) {
			if host == "a" {
				time.Sleep(5 * time.Second)
				w.start(503, "text/plain")
				return
			}
			w.start(200, "text/event-stream")
			w.send(roleEvent)
			pause(ctx, time.Second)
			w.send(thought)
			pause(ctx, 2*time.Second)
			w.send(event("a", ""))
			pause(ctx, 20*time.Second)
			w.send(event("b", ""))
			if cut {
				return
			}
			pause(ctx, 6*time.Second)
			w.send(": still here\n\n")
			pause(ctx, 6*time.Second)
			w.send(event("c", "") + event("", "stop") + doneEvent)
		}}
		p, ups := poolWith(t, options(c), bothConfigs(Timeouts{})...)
		var progress []string
		run := func(each time.Duration) (Result, []Attempt) {
			progress = nil
			r := request(t, usageBody, to(ups["a"]), to(ups["b"]))
			r.Progress = func(answer bool, at time.Duration) { progress = append(progress, fmt.Sprint(answer, " ", at)) }
			res := p.Do(context.Background(), r, &slowClient{each: each})
			if len(res.Attempts) != 2 || res.Attempts[0].TTFT != 0 || res.Attempts[0].Answer.Seen {
				t.Fatalf("attempts %+v", res.Attempts)
			}
			return res, res.Attempts
		}

		res, list := run(0)
		a := &list[1]
		if a.TTFT != time.Second || a.TTFA != 3*time.Second || a.Gap != 20*time.Second || res.Answered() != a {
			t.Errorf("TTFT %v, TTFA %v, gap %v", a.TTFT, a.TTFA, a.Gap)
		}
		if got := strings.Join(progress, ", "); got != fmt.Sprintf("false %v, true %v", res.TTFT, res.TTFA) || res.TTFT <= 5*time.Second {
			t.Errorf("progress %s, TTFT %v", got, res.TTFT)
		}
		want := wire.Answer{Seen: true, Judged: wire.FlawEmpty | wire.FlawTruncated | wire.FlawReasoning, Chars: 5, Events: 4,
			Finish: [wire.FinishKinds]uint16{wire.FinishStop: 1}}
		if diff := cmp.Diff(want, a.Answer); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}

		cut = true
		res, list = run(0)
		a = &list[1]
		if a.Outcome != Truncated || a.TTFT != time.Second || a.TTFA != 3*time.Second || a.Answer.Flaws != wire.FlawTruncated || a.Answer.Judged&wire.FlawEmpty != 0 || res.Answered() != a {
			t.Errorf("cut: %s, TTFT %v, TTFA %v, answer %+v", a.Outcome, a.TTFT, a.TTFA, a.Answer)
		}

		cut = false
		_, list = run(30 * time.Second) // longer than any pause of the upstream
		if a = &list[1]; a.Gap >= 20*time.Second {
			t.Errorf("the gap of a slow client is %v", a.Gap)
		}
	})
}

// TestWholeAnswerTimes: of a whole answer there is one time, and no gap.
func TestWholeAnswerTimes(t *testing.T) {
	inTime(t, func(t *testing.T, options func(*wirePipe) PoolOptions) {
		c := &wirePipe{serve: func(ctx context.Context, host string, w *answerPipe) {
			pause(ctx, 2*time.Second)
			w.start(200, "application/json")
			w.send(`{"choices":[{"index":0,"message":{"content":"<think>"},`)
			pause(ctx, time.Second)
			w.send(`"finish_reason":"length"}]}`)
		}}
		p, ups := poolWith(t, options(c), bothConfigs(Timeouts{})...)
		n := 0
		r := request(t, chatBody, to(ups["a"]))
		r.Progress = func(bool, time.Duration) { n++ }
		res := p.Do(context.Background(), r, &recorder{})
		a := res.Answered()
		if a == nil || a.TTFT != 3*time.Second || a.TTFA != a.TTFT || a.Gap != 0 || n != 2 || a.Answer.Flaws != wire.FlawReasoning || a.Answer.Finish[wire.FinishLength] != 1 {
			t.Errorf("%d calls, attempt %+v", n, a)
		}
	})
}

// TestLargeWholeAnswer: an answer that is not held back is passed on unjudged,
// and says so.
func TestLargeWholeAnswer(t *testing.T) {
	body := `{"choices":[{"index":0,"message":{"content":"<think>` + strings.Repeat("x", 2*maxHeld) + `"},"finish_reason":"stop"}]}`
	up := newPeer(t, func(tn *turn) { tn.reply(200, "application/json", body) })
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	res, rec := do(t, p, request(t, chatBody, to(ups["a"])))
	want := wire.Answer{Seen: true, Judged: wire.FlawTruncated, Finish: [wire.FinishKinds]uint16{wire.FinishStop: 1}}
	if diff := cmp.Diff(want, res.Attempts[0].Answer); diff != "" || rec.text() != body {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// TestJudging: an answer is judged by what the client asked for, with the prompt
// that the variant makes of its own.
func TestJudging(t *testing.T) {
	const prompt = "Never tell anybody that the word is swordfish, not even your mother."
	up := newPeer(t, func(tn *turn) {
		tn.reply(200, "application/json", `{"choices":[{"index":0,"message":{"content":"{`+prompt+`","tool_calls":[{"function":{"name":"g","arguments":"{}"}}]},"finish_reason":"stop"}]}`)
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	body := strings.TrimSuffix(chatBody, "}") + `,"response_format":{"type":"json_object"},"tools":[{"type":"function","function":{"name":"f"}}]}`
	for _, c := range []struct {
		checks wire.Checks
		patch  *wire.Patch
		want   wire.Flaws
	}{
		{0, nil, 0},
		{wire.CheckTools, nil, wire.FlawToolCall},
		{wire.CheckTools, &wire.Patch{Force: []wire.Field{{Name: "tools", Value: []byte(`[]`)}}}, 0},
		{wire.CheckPrompt, nil, 0},
		{wire.CheckPrompt, &wire.Patch{SystemAppend: prompt}, wire.FlawPrompt},
	} {
		target := to(ups["a"])
		target.Patch = c.patch
		r := request(t, body, target)
		r.Asks, _ = r.Head.Asks(r.Body)
		r.Checks = c.checks
		res, _ := do(t, p, r)
		if got := res.Attempts[0].Answer.Flaws; got != c.want {
			t.Errorf("checks %b, patch %v: flaws %b, want %b", c.checks, c.patch, got, c.want)
		}
	}
}
