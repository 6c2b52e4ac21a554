package upstream

import (
	"cmp"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server on loopback.
type nameServer struct {
	conn net.PacketConn
	wg   sync.WaitGroup

	mu    sync.Mutex
	addrs []netip.Addr
	fail  dnsmessage.RCode
	mute  bool
	asked int
	// The resolver waits for an answer even when it is told not to.
	clients []net.Conn
	over    bool
	held    []func() // answers kept back while mute
}

func newNameServer(t *testing.T, addrs ...string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn}
	s.set(addrs...)
	s.wg.Go(s.run)
	t.Cleanup(func() {
		conn.Close()
		s.wg.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.clients {
			c.Close()
		}
		s.over = true
	})
	return s
}

func (s *nameServer) set(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs, s.fail, s.mute = nil, dnsmessage.RCodeSuccess, false
	for _, answer := range s.held {
		answer()
	}
	s.held = nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddr(a))
	}
}

func (s *nameServer) broken(code dnsmessage.RCode, mute bool) {
	s.mu.Lock()
	s.fail, s.mute = code, mute
	s.mu.Unlock()
}

func (s *nameServer) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *nameServer) run() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) == 0 {
			continue
		}
		q := m.Questions[0]
		s.mu.Lock()
		s.asked++
		m.Response, m.RecursionAvailable, m.RCode = true, true, s.fail
		m.Additionals = nil
		if s.fail == dnsmessage.RCodeSuccess {
			for _, a := range s.addrs {
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
				switch {
				case q.Type == dnsmessage.TypeA && a.Is4():
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
				case q.Type == dnsmessage.TypeAAAA && a.Is6():
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
		}
		if out, err := m.Pack(); err == nil {
			answer := func() { s.conn.WriteTo(out, from) }
			if s.mute {
				s.held = append(s.held, answer)
			} else {
				answer()
			}
		}
		s.mu.Unlock()
	}
}

// options of a pool that asks this server, often.
func (s *nameServer) options() PoolOptions {
	return PoolOptions{resolveEvery: 50 * time.Millisecond, Resolver: &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "udp", s.conn.LocalAddr().String())
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.clients = append(s.clients, c); s.over {
				c.Close()
			}
			return c, nil
		}}}
}

// replicas are servers on one port of several loopback addresses.
type replicas struct {
	port string

	mu    sync.Mutex
	hosts map[string]string // Host headers seen, by address
	calls map[string]int    // POSTs, by address
	hold  chan struct{}     // streams wait for it before they end
}

func newReplicas(t *testing.T, addrs ...string) *replicas {
	t.Helper()
	r := &replicas{hosts: map[string]string{}, calls: map[string]int{}, hold: make(chan struct{})}
	for _, a := range addrs {
		ln, err := net.Listen("tcp", net.JoinHostPort(a, cmp.Or(r.port, "0")))
		if err != nil {
			t.Skipf("no address %s here: %v", a, err)
		}
		_, r.port, _ = net.SplitHostPort(ln.Addr().String())
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.serve(a, w, q) })}
		go srv.Serve(ln)
		t.Cleanup(func() { srv.Close() })
	}
	return r
}

func (r *replicas) serve(addr string, w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	r.hosts[addr] = q.Host
	if q.Method == http.MethodPost {
		r.calls[addr]++
	}
	r.mu.Unlock()
	if q.Method == http.MethodGet {
		w.WriteHeader(404)
		return
	}
	if !strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, okBody)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, roleEvent+event("a", ""))
	w.(http.Flusher).Flush()
	<-r.hold
	io.WriteString(w, event("b", "stop")+usageEvent+doneEvent)
}

func (r *replicas) url(host string) string { return "dns:http://" + host + ":" + r.port + "/v1" }

func (r *replicas) called(addr string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[addr]
}

// urls lists what gets traffic.
func urls(u *Upstream) (list []string) {
	for _, s := range u.Status() {
		if s.Ready {
			list = append(list, strings.TrimPrefix(s.URL, "http://"))
		}
	}
	return list
}

// A dns: endpoint is every address of its name, and follows it under traffic.
func TestDNSEndpoints(t *testing.T) {
	r := newReplicas(t, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	ns := newNameServer(t, "127.0.0.1", "127.0.0.2")
	p, ups := poolWith(t, ns.options(), Config{Name: "a", Endpoints: []string{r.url("vllm.headless.example")}, Balance: balanceRound})
	u := ups["a"]
	at := func(hosts ...string) (list []string) {
		for _, h := range hosts {
			list = append(list, h+":"+r.port+"/v1")
		}
		return list
	}
	if !u.FirstCheckDone() || !slices.Equal(urls(u), at("127.0.0.1", "127.0.0.2")) {
		t.Fatalf("%+v", u.Status())
	}
	for range 4 {
		if res, _ := do(t, p, request(t, chatBody, to(u))); res.Outcome != Success || !strings.Contains(res.Endpoint, "127.0.0.") {
			t.Fatalf("%s at %s", res.Outcome, res.Endpoint)
		}
	}
	r.mu.Lock()
	if r.calls["127.0.0.1"] != 2 || r.calls["127.0.0.2"] != 2 {
		t.Errorf("calls %v", r.calls)
	}
	for a, h := range r.hosts {
		if h != "vllm.headless.example:"+r.port {
			t.Errorf("%s was called as %q", a, h)
		}
	}
	r.mu.Unlock()

	// A stream runs on the address that vanishes; it ends normally, and nothing
	// new goes there.
	begun, ended := make(chan string, 1), make(chan Result, 1)
	go func() {
		rec := &recorder{}
		rec.onCommit = func() { begun <- rec.metas[0].Endpoint }
		ended <- p.Do(t.Context(), request(t, usageBody, to(u)), rec)
	}()
	on := <-begun
	host, _, _ := strings.Cut(strings.TrimPrefix(on, "http://"), ":")
	stays := map[string]string{"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[host]
	kept := u.endpoints()[slices.IndexFunc(u.endpoints(), func(e *endpoint) bool { return strings.Contains(e.base, stays) })]
	ns.set(stays, "127.0.0.3")
	waitFor(t, "the new address", func() bool { return slices.Equal(urls(u), at(stays, "127.0.0.3")) })
	if !slices.Contains(u.endpoints(), kept) {
		t.Error("the address that stayed is another endpoint now")
	}
	n := r.called(host)
	for range 6 {
		do(t, p, request(t, chatBody, to(u)))
	}
	if r.called(host) != n || r.called("127.0.0.3") == 0 {
		t.Errorf("the vanished address got %d calls, the new one %d", r.called(host)-n, r.called("127.0.0.3"))
	}
	close(r.hold)
	if res := <-ended; res.Outcome != Success {
		t.Errorf("the stream on the vanished address: %s", res.Outcome)
	}

	// A name server that fails, or says nothing, changes nothing but the status.
	for _, b := range []struct {
		code dnsmessage.RCode
		mute bool
	}{{dnsmessage.RCodeServerFailure, false}, {dnsmessage.RCodeRefused, false}} {
		ns.broken(b.code, b.mute)
		waitFor(t, "the problem in the status", func() bool { return u.Status()[0].State == stateFailing })
		if s := u.Status()[0]; s.URL != r.url("vllm.headless.example") || !strings.Contains(s.Reason, "stay in use") || len(urls(u)) != 2 {
			t.Errorf("%+v", u.Status())
		}
		ns.set(stays, "127.0.0.3")
		waitFor(t, "the problem's end", func() bool { return len(u.Status()) == 2 })
	}
	// No address is an answer.
	for _, code := range []dnsmessage.RCode{dnsmessage.RCodeNameError, dnsmessage.RCodeSuccess} {
		ns.set()
		ns.broken(code, false)
		waitFor(t, "no endpoint", func() bool { return len(u.endpoints()) == 0 })
		if s := u.Status(); len(s) != 1 || s[0].Ready || !strings.Contains(s[0].Reason, "no address") {
			t.Errorf("%+v", s)
		}
		if res, _ := do(t, p, request(t, chatBody, to(u))); res.Outcome != NoEndpoint || res.Failure.Code != "no_ready_endpoint" {
			t.Errorf("without an address: %s", res.Outcome)
		}
		ns.set("127.0.0.1")
		waitFor(t, "its return", func() bool { return slices.Equal(urls(u), at("127.0.0.1")) })
	}
}

// Configuration changes keep the addresses of a name; drain works by the name
// and by the address.
func TestDNSOverConfiguration(t *testing.T) {
	r := newReplicas(t, "127.0.0.1", "127.0.0.2")
	ns := newNameServer(t, "127.0.0.1", "127.0.0.2")
	cfg := Config{Name: "a", Endpoints: []string{r.url("gpu")}}
	p, ups := poolWith(t, ns.options(), cfg)
	before := slices.Clone(ups["a"].endpoints())
	for _, tt := range []struct {
		drained []string
		ready   int
	}{{[]string{"http://127.0.0.2:" + r.port}, 1}, {[]string{r.url("gpu")}, 0}, {[]string{"*"}, 0}, {nil, 2}} {
		cfg.Drained = tt.drained
		ups, err := p.Apply([]Config{cfg})
		if err != nil {
			t.Fatal(err)
		}
		if got := urls(ups["a"]); len(got) != tt.ready || !slices.Equal(ups["a"].endpoints(), before) {
			t.Errorf("drained %v: ready %v", tt.drained, got)
		}
	}
	cfg.Endpoints = append(cfg.Endpoints, "http://127.0.0.1:"+r.port+"/v1")
	more, err := p.Apply([]Config{cfg})
	if err != nil {
		t.Fatal(err)
	}
	if got := more["a"].endpoints(); len(got) != 3 || !slices.Equal(got[:2], before) {
		t.Errorf("%d endpoints", len(got))
	}
	// The older configuration follows the name still, as far as it loses addresses.
	ns.set("127.0.0.2")
	waitFor(t, "the change", func() bool { return len(more["a"].endpoints()) == 2 })
	if before[0].ready.Load() {
		t.Error("a vanished address is ready for requests that began before")
	}
	cfg.TLS.CAFile = "/does/not/exist"
	cfg.Endpoints = []string{"dns:https://gpu:1/v1"}
	if _, err := p.Apply([]Config{cfg}); err == nil {
		t.Error("a certificate that cannot be read was taken")
	}
	if _, err := p.Apply(nil); err != nil {
		t.Fatal(err)
	}
	asked := ns.questions()
	time.Sleep(200 * time.Millisecond)
	if n := ns.questions() - asked; n > 2 {
		t.Errorf("%d questions after the upstream was removed", n)
	}
}

// Until the name has been resolved the first check is not done; a resolver that
// says nothing does not hold the process back.
func TestDNSSilence(t *testing.T) {
	ns := newNameServer(t)
	ns.broken(dnsmessage.RCodeSuccess, true)
	p := NewPool(ns.options())
	defer func() { ns.set(); p.Close() }()
	ups, err := p.Apply([]Config{{Name: "a", Endpoints: []string{"dns:http://gpu.example:8000/v1"}}})
	if err != nil {
		t.Fatal(err)
	}
	if p.Ready(context.Background(), 20*time.Millisecond) || ups["a"].FirstCheckDone() {
		t.Error("ready before the name was resolved")
	}
	if s := ups["a"].Status(); len(s) != 1 || s[0].State != stateStarting || s[0].Ready {
		t.Errorf("%+v", s)
	}
}

// TLS verifies the name, not the address.
func TestDNSWithTLS(t *testing.T) {
	var host string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(404)
			return
		}
		host = r.Host + " " + r.TLS.ServerName
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, okBody)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600)
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	ns := newNameServer(t, "127.0.0.1")
	p, ups := poolWith(t, ns.options(), // httptest's certificate is for example.com and the address
		Config{Name: "a", Endpoints: []string{"dns:https://example.com:" + port + "/v1"}, TLS: TLS{CAFile: ca}},
		Config{Name: "b", Endpoints: []string{"dns:https://other.test:" + port + "/v1"}, TLS: TLS{CAFile: ca}})
	if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success || host != "example.com:"+port+" example.com" {
		t.Errorf("%s, called as %q", res.Outcome, host)
	}
	if s := ups["b"].Status()[0]; s.Ready || !strings.Contains(s.Reason, "TLS certificate") {
		t.Errorf("a certificate for another name was taken: %+v", s)
	}
}

// A connect error has the name resolved soon.
func TestDNSAfterConnectError(t *testing.T) {
	r := newReplicas(t, "127.0.0.1")
	ns := newNameServer(t, "127.0.0.1", "127.0.0.9") // nothing listens on the second
	o := ns.options()
	o.resolveEvery = time.Hour
	p, ups := poolWith(t, o, Config{Name: "a", Endpoints: []string{r.url("gpu.example")}, Readiness: Readiness{Interval: time.Hour}})
	waitFor(t, "the resolution that the failed check asks for", func() bool { return ns.questions() >= 4 })
	for _, e := range ups["a"].endpoints() {
		e.ready.Store(true)
	}
	asked := ns.questions()
	for range 20 {
		if res, _ := do(t, p, request(t, chatBody, to(ups["a"]))); res.Outcome != Success {
			t.Fatal(res.Outcome)
		}
	}
	ns.set("127.0.0.1")
	waitFor(t, "the resolution that the failed call asks for", func() bool { return ns.questions() > asked && len(ups["a"].endpoints()) == 1 })
}

func TestManyAddresses(t *testing.T) {
	var addrs []string
	for i := range 2 * maxAddresses {
		addrs = append(addrs, netip.AddrFrom4([4]byte{127, 1, byte(i / 250), byte(i % 250)}).String())
	}
	var s script
	s.serve(map[string]string{"GET /v1/models": oneModel})
	o := newNameServer(t).options()
	o.carrier, o.resolveEvery = s.options().carrier, time.Hour
	p, _ := poolWith(t, o, Config{Name: "a", Endpoints: []string{"dns:http://gpu.example:1/v1"}})
	m := p.members[memberKey{"a", "dns:http://gpu.example:1/v1"}]
	var known addresses
	for _, a := range addrs {
		known.four = append(known.four, netip.MustParseAddr(a))
	}
	p.arrive(m, known, nil)
	if st, ok := m.trouble(); !ok || !strings.Contains(st.Reason, "512 addresses; the first 256") || len(m.list) != maxAddresses {
		t.Errorf("%d endpoints, %+v", len(m.list), st)
	}
}

func TestLocated(t *testing.T) {
	for _, tt := range []struct{ base, ip, want, addr string }{
		{"http://gpu:8000/v1", "10.0.0.1", "http://10.0.0.1:8000/v1", "10.0.0.1:8000"},
		{"http://gpu/openai/v1", "fd00::1", "http://[fd00::1]/openai/v1", "[fd00::1]:80"},
		{"https://gpu/v1", "fd00::1", "https://[fd00::1]/v1", "[fd00::1]:443"},
	} {
		u, err := parseBase(tt.base)
		if err != nil {
			t.Fatal(err)
		}
		base, addr := located(u, netip.MustParseAddr(tt.ip))
		if again, err := NormalizeBase(base); base != tt.want || addr != tt.addr || err != nil || again != base {
			t.Errorf("%s %s: %s at %s, %v", tt.base, tt.ip, base, addr, err)
		}
	}
}
