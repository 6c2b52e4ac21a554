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
	"sync/atomic"
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

// leakKinds are requests that fail, each in its way: their text for the fake
// server, and whether their client leaves. gateway marks those that no server
// gets.
var leakKinds = []struct {
	name, body     string
	leave, gateway bool
}{
	{"400", ask("[[status:400]]", false), false, false},
	{"500", ask("[[status:500]]", true), false, false},
	{"429", ask("[[status:429]]", true), false, false},
	{"empty", ask("[[fault:empty]]", true), false, false},
	{"garbage", ask("[[fault:garbage]]", false), false, false},
	{"truncated", ask("[[fault:truncate@2]]", true), false, false},
	{"reset", ask("[[fault:reset@2]]", true), false, false},
	{"error event", ask("[[fault:error_event@2]]", true), false, false},
	{"refused", ask("[[fault:refuse]]", true), false, false},
	{"left", ask("[[tokens:50 gap:5ms]]", true), true, false},
	{"left, hung", ask("[[fault:hang]]", false), true, false},
	{"broken body", `{"model":"chat","messages":[`, false, true},
	{"unknown", strings.Replace(ask("hi", false), `"chat"`, `"nope"`, 1), false, true},
	{"whole answer", ask("hi", true), false, false},
}

// TestNothingLeaks sends many requests of each failing kind; goroutines and
// descriptors come back (scenario leak). SLUICE_LEAK=5000 is the long form.
func TestNothingLeaks(t *testing.T) {
	n := 100
	if v, err := strconv.Atoi(os.Getenv("SLUICE_LEAK")); err == nil {
		n = v
	}
	// Each worker has a model and an upstream of its own, and sends good requests
	// between the bad: an open breaker would keep all that follows from the server,
	// and nothing be tested.
	const workers = 16
	up := fake(t, fakellm.Options{})
	doc := document(up.URL())
	for w := range workers {
		u, m := doc.Upstreams[0], doc.Models[0]
		u.Name, m.Name = "w"+strconv.Itoa(w), "chat"+strconv.Itoa(w)
		m.Default.Upstream = u.Name
		doc.Upstreams, doc.Models = append(doc.Upstreams, u), append(doc.Models, m)
	}
	p := newPlane(t, doc, nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	send := func(w int, body string, leave bool) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if leave {
			time.AfterFunc(5*time.Millisecond, cancel)
		}
		body = strings.Replace(body, `"chat"`, `"chat`+strconv.Itoa(w)+`"`, 1)
		if resp, err := postTo(ctx, client, p.url, body); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	good := ask("hi", true)
	run := func(body string, leave bool) (reached int64) {
		before := up.Counts().Calls
		var wg sync.WaitGroup
		var sent atomic.Int64
		for w := range workers {
			wg.Go(func() {
				for sent.Add(1) <= int64(n) {
					send(w, good, false)
					send(w, good, false)
					send(w, body, leave)
				}
			})
		}
		wg.Wait()
		client.CloseIdleConnections()
		return up.Counts().Calls - before - 2*int64(n)
	}
	use := func() (goroutines, descriptors int) {
		list, _ := os.ReadDir("/proc/self/fd")
		return runtime.NumGoroutine(), len(list)
	}
	run(good, false)
	time.Sleep(6 * time.Second) // idle connections to upstreams close after 4 s
	baseG, baseF := use()
	for _, k := range leakKinds {
		reached := run(k.body, k.leave)
		t.Logf("%d of %s, %d reached the server", n, k.name, reached)
		switch least := int64(n); {
		case k.gateway && reached != 0:
			t.Errorf("%s reached the server", k.name)
		case k.gateway:
		case k.leave && reached < least/2, !k.leave && reached < least:
			t.Errorf("%s: only %d of %d reached the server", k.name, reached, n)
		}
	}
	settled(t, "what failed", func() bool {
		g, f := use()
		return g <= baseG+5 && f <= baseF+5 && p.srv.InFlight() == 0
	})
}
