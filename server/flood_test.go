package server

import (
	"context"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

// TestCancelFlood drops 30 streams at once, each a good part under way: readiness is answered
// meanwhile, and nothing is left over (scenario cancel_flood).
func TestCancelFlood(t *testing.T) {
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), nil)
	const streams = 30
	ctx, drop := context.WithCancel(t.Context())
	defer drop()
	client := &http.Client{Transport: &http.Transport{}}
	read := make(chan struct{}, streams)
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			resp, err := postTo(ctx, client, p.url, ask("[[tokens:3000]]", true))
			if err != nil {
				t.Error(err)
				read <- struct{}{}
				return
			}
			defer resp.Body.Close()
			io.CopyN(io.Discard, resp.Body, 400<<10)
			read <- struct{}{}
			<-ctx.Done()
		})
	}
	for range streams {
		<-read
	}
	drop()
	var took []time.Duration
	for range 100 {
		start := time.Now()
		resp, err := http.Get(p.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("readyz answered %d", resp.StatusCode)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("readyz while %d streams are dropped: p50 %s, p99 %s", streams, took[50], took[98])
	wg.Wait()
	settled(t, "the flood", func() bool { return p.srv.InFlight() == 0 && up.Counts().InFlight == 0 })
}

func settled(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s has not settled", what)
		}
	}
}

// TestNothingLeaks sends many requests of each failing kind; goroutines and
// descriptors come back (scenario leak). SLUICE_LEAK=5000 is the long form.
func TestNothingLeaks(t *testing.T) {
	n := 200
	if v, err := strconv.Atoi(os.Getenv("SLUICE_LEAK")); err == nil {
		n = v
	}
	a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	p := newPlane(t, document(a.URL(), b.URL()), nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	run := func(body string, leave bool) {
		var wg sync.WaitGroup
		work := make(chan struct{})
		for range 16 {
			wg.Go(func() {
				for range work {
					ctx, cancel := context.WithCancel(context.Background())
					if leave {
						time.AfterFunc(5*time.Millisecond, cancel)
					}
					if resp, err := postTo(ctx, client, p.url, body); err == nil {
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					cancel()
				}
			})
		}
		for range n {
			work <- struct{}{}
		}
		close(work)
		wg.Wait()
		client.CloseIdleConnections()
	}
	use := func() (goroutines, descriptors int) {
		list, _ := os.ReadDir("/proc/self/fd")
		return runtime.NumGoroutine(), len(list)
	}
	run(ask("hi", true), false)
	time.Sleep(6 * time.Second) // idle connections to upstreams close after 4 s
	baseG, baseF := use()
	for name, c := range map[string]struct {
		body  string
		leave bool
	}{
		"400":          {ask("[[status:400]]", false), false},
		"500":          {ask("[[status:500]]", true), false},
		"429":          {ask("[[status:429]]", true), false},
		"empty":        {ask("[[fault:empty]]", true), false},
		"garbage":      {ask("[[fault:garbage]]", false), false},
		"truncated":    {ask("[[fault:truncate@2]]", true), false},
		"reset":        {ask("[[fault:reset@2]]", true), false},
		"error event":  {ask("[[fault:error_event@2]]", true), false},
		"refused":      {ask("[[fault:refuse]]", true), false},
		"left":         {ask("[[tokens:50 gap:5ms]]", true), true},
		"left, hung":   {ask("[[fault:hang]]", false), true},
		"broken body":  {`{"model":"chat","messages":[`, false},
		"unknown":      {strings.Replace(ask("hi", false), `"chat"`, `"nope"`, 1), false},
		"whole answer": {ask("hi", true), false},
	} {
		run(c.body, c.leave)
		t.Logf("%d of %s", n, name)
	}
	settled(t, "what failed", func() bool {
		g, f := use()
		return g <= baseG+5 && f <= baseF+5 && p.srv.InFlight() == 0
	})
}
