package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tally is what the clients of a chaos run saw.
type tally struct {
	sent, answered, left atomic.Int64

	mu     sync.Mutex
	failed map[string]int // by class and why it could not be hidden
	wrong  []string       // failures that should have been hidden
}

// phase is what may fail now.
type phase struct {
	name    string
	allDown bool // nothing can answer
}

// load sends requests at a steady pace until ctx ends.
type load struct {
	gateways []*gateway
	client   *http.Client
	rate     float64
	seen     func(*http.Response) // each answer's header; nil: nobody
	now      atomic.Pointer[phase]
	tally    tally
	wg       sync.WaitGroup
}

func (l *load) run(ctx context.Context, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	tick := time.NewTicker(time.Duration(float64(time.Second) / l.rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			l.wg.Wait()
			return
		case <-tick.C:
		}
		g, kind, user := l.gateways[n%len(l.gateways)], r.IntN(10), r.IntN(200)
		l.wg.Go(func() { l.one(g, user, kind < 6, kind == 9) })
	}
}

// one sends a request and judges its answer.
func (l *load) one(g *gateway, user int, stream, leaves bool) {
	before := l.now.Load()
	l.tally.sent.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if leaves {
		time.AfterFunc(50*time.Millisecond, cancel)
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", g.Data+"/v1/chat/completions", strings.NewReader(chatBody("hello there", stream)))
	req.Header.Set("Content-Type", "application/json")
	if user%4 > 0 {
		req.Header.Set("X-User-Id", fmt.Sprint("user-", user))
	}
	class, content := l.answer(req, stream)
	switch {
	case class == "":
		l.tally.answered.Add(1)
	case leaves && ctx.Err() != nil:
		l.tally.left.Add(1)
	default:
		l.fail(class, content, before, l.now.Load())
	}
}

// answer returns "" for a whole answer, else what was wrong with it, and whether
// the client had a part of the text by then.
func (l *load) answer(req *http.Request, stream bool) (class string, content bool) {
	resp, err := l.client.Do(req)
	if err != nil {
		return "no answer: " + root(err).Error(), false
	}
	defer resp.Body.Close()
	if l.seen != nil {
		l.seen(resp)
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return fmt.Sprintf("%d %s", resp.StatusCode, codeOf(b)), false
	}
	if !stream {
		b, err := io.ReadAll(resp.Body)
		if err != nil || !json.Valid(b) {
			return "half an answer", true
		}
		return "", true
	}
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		line := sc.Bytes()
		switch {
		case bytes.Equal(line, []byte("data: [DONE]")):
			return "", true
		case bytes.Contains(line, []byte(`"error"`)):
			return "in-band " + codeOf(bytes.TrimPrefix(line, []byte("data: "))), content
		case bytes.Contains(line, []byte(`"content":"`)) && !bytes.Contains(line, []byte(`"content":""`)):
			content = true
		}
	}
	return "cut without a word", content
}

func root(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

func codeOf(b []byte) string {
	var v struct {
		Error struct{ Code any }
	}
	if json.Unmarshal(b, &v) != nil {
		return "no envelope"
	}
	return fmt.Sprint(v.Error.Code)
}

// fail books a failure with the reason why it could not be hidden, if there is one.
func (l *load) fail(class string, content bool, before, after *phase) {
	l.tally.mu.Lock()
	defer l.tally.mu.Unlock()
	switch {
	case strings.HasPrefix(class, "in-band") && content:
		l.tally.failed[class+": a stream past its commit point on the replica that failed"]++
	case before.allDown || after.allDown:
		l.tally.failed[class+": every replica of both variants was down"]++
	default:
		l.tally.wrong = append(l.tally.wrong, fmt.Sprintf("%s (%s to %s)", class, before.name, after.name))
	}
}

// report is the table of a run.
func (l *load) report() string {
	var b strings.Builder
	t := &l.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(&b, "sent %d, answered whole %d, left by their client %d\n", t.sent.Load(), t.answered.Load(), t.left.Load())
	var keys []string
	for k := range t.failed {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "failed %5d  %s\n", t.failed[k], k)
	}
	fmt.Fprintf(&b, "failed %5d  without a reason\n", len(t.wrong))
	return b.String()
}
