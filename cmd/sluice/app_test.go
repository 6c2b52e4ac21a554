package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"sluice/internal/config"
	"sluice/upstream"
)

// TestSideServerEndsHalfARequest: whether or not a handler reads the body, its
// answer comes and the connection ends when the client sends nothing more.
func TestSideServerEndsHalfARequest(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/reads", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusRequestTimeout)
	})
	srv := sideServer(mux, 100*time.Millisecond, slog.New(slog.DiscardHandler))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	for path, status := range map[string]int{"/reads": 408, "/reads-nothing": 404} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: no answer: %v", path, err)
		}
		if resp.StatusCode != status {
			t.Errorf("%s: status %d, want %d", path, resp.StatusCode, status)
		}
		io.Copy(io.Discard, resp.Body)
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection goes on: %v", path, err)
		}
	}
}

func TestUpstreamTimeoutsOff(t *testing.T) {
	got := upstreamTimeouts(config.Timeouts{Connect: time.Second, Total: time.Hour})
	if want := (upstream.Timeouts{Connect: time.Second, FirstByte: -1, BetweenBytes: -1, Total: time.Hour}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
