package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/testenv"
)

func TestServesTwoModels(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	small := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	large := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-small", small, "-large", large}, io.Discard) }()
	for _, at := range []string{small, large} {
		deadline := time.Now().Add(10 * time.Second)
		for {
			resp, err := http.Post("http://"+at+"/v1/chat/completions", "application/json",
				strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"[[tokens:3]] hi"}]}`))
			if err == nil {
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if !strings.Contains(string(body), `"usage"`) {
					t.Errorf("%s answered %s", at, body)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUsersTalk(t *testing.T) {
	var n atomic.Int64
	enough := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" || !strings.HasPrefix(r.Header.Get("X-User-Id"), "user-") {
			t.Errorf("request to %s by %q", r.URL.Path, r.Header.Get("X-User-Id"))
		}
		if n.Add(1) == 5 {
			close(enough)
		}
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-users", srv.URL + "/v1", "-rate", "200"}, io.Discard) }()
	<-enough
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRejectsFlags(t *testing.T) {
	for _, args := range [][]string{{"-users", "http://x", "-rate", "0"}, {"-users", "http://x", "-rate", "NaN"}, {"-nonsense"}, {"-small", "nowhere:x"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
