package e2e

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

// TestCancelReachesTheUpstream closes clients in every phase and measures until
// the upstream sees it; the bound of 100 ms is reported, not asserted, but an
// upstream that never sees it fails the test.
func TestCancelReachesTheUpstream(t *testing.T) {
	up := fake(t, fakellm.Options{Dialect: "vllm"})
	g := serve(t, t.TempDir(), fmt.Sprintf(plainYAML, "vllm", up.URL(), "exact"))
	var took []time.Duration
	sent := 0
	for _, c := range []struct {
		name, text string
		stream     bool
		reset      bool
		half       bool
		lines      int // to read before closing
	}{
		{"streaming, FIN", "[[tokens:1000 gap:10ms]]", true, false, false, 20},
		{"streaming, RST", "[[tokens:1000 gap:10ms]]", true, true, false, 20},
		{"streaming, half-close", "[[tokens:1000 gap:10ms]]", true, false, true, 20},
		{"before the first byte", "[[ttft:30s]]", true, false, false, 0},
		{"unary", "[[ttft:30s]]", false, false, false, 0},
		{"unary, half-close", "[[ttft:30s]]", false, false, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 5 {
				seen := len(up.Aborts())
				conn, err := net.Dial("tcp", strings.TrimPrefix(g.Data, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				body := chatBody(c.text, c.stream)
				calls := up.Counts().Calls
				fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				r := bufio.NewReader(conn)
				for range c.lines {
					if _, err := r.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
				until(t, "the call reaches the upstream", func() bool { return up.Counts().Calls > calls })
				sent++
				tcp := conn.(*net.TCPConn)
				begin := time.Now()
				switch {
				case c.reset:
					tcp.SetLinger(0)
					tcp.Close()
				case c.half:
					tcp.CloseWrite()
				default:
					tcp.Close()
				}
				until(t, "the upstream sees the client go", func() bool { return len(up.Aborts()) > seen })
				took = append(took, up.Aborts()[seen].Sub(begin))
				conn.Close()
			}
		})
	}
	for _, l := range g.Access(sent) {
		if l["outcome"] != "canceled" || l["status"].(float64) != 499 {
			t.Errorf("a cancelled request is logged as %v %v", l["outcome"], l["status"])
		}
	}
	slices.Sort(took)
	t.Logf("%d cancels: the upstream saw the close after p50 %v, max %v", len(took), took[len(took)/2], took[len(took)-1])
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("10 s later: %s has not happened", what)
		}
	}
}
