package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

type ctxKey int

const (
	keyRequestID ctxKey = iota
	keyActor
	keyRawBody // the bytes that strictBody read
)

const roleAdmin = "admin"

// actor is who calls.
type actor struct{ Name, Role, IP string }

func requestID(ctx context.Context) string { s, _ := ctx.Value(keyRequestID).(string); return s }

func actorOf(ctx context.Context) actor { a, _ := ctx.Value(keyActor).(actor); return a }

func (a *API) requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := uuid.NewV7()
		if err != nil {
			id = uuid.New()
		}
		w.Header().Set("X-Request-Id", id.String())
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyRequestID, id.String())))
	})
}

// failures slows down guessing: after many refusals a peer is refused without a look.
type failures struct {
	mu    sync.Mutex
	byIP  map[string]*strikes
	swept time.Time
}

type strikes struct {
	n     int
	until time.Time
}

const (
	maxStrikes = 20
	maxPeers   = 10_000 // remembered at once
)

func (f *failures) blocked(ip string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.byIP[ip]
	return s != nil && s.n >= maxStrikes && now.Before(s.until)
}

func (f *failures) strike(ip string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.swept) > time.Minute || len(f.byIP) >= maxPeers {
		for k, s := range f.byIP {
			if now.After(s.until) {
				delete(f.byIP, k)
			}
		}
		if f.byIP == nil || len(f.byIP) >= maxPeers {
			f.byIP = map[string]*strikes{}
		}
		f.swept = now
	}
	s := f.byIP[ip]
	if s == nil || now.After(s.until) {
		s = &strikes{}
		f.byIP[ip] = s
	}
	s.n++
	s.until = now.Add(time.Minute)
}

// authenticate lets a request in by the token or, without one configured, from
// this machine only. A browser on this machine is a way in for any web page, so
// Host and Origin are checked as well.
func (a *API) authenticate(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(a.cfg.Token))
	bad := &failures{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, p := a.caller(w, r, want, bad)
		if p == nil && !sameOrigin(r) {
			p = newProblem(http.StatusForbidden, "cross_origin", "A page of another origin may not use the admin API; open the UI or call from a program.")
		}
		if p != nil {
			a.writeProblem(w, r, p)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyActor, who)))
	})
}

func (a *API) caller(w http.ResponseWriter, r *http.Request, want [sha256.Size]byte, bad *failures) (actor, *Problem) {
	ip, loopback := peer(r)
	if a.cfg.Token == "" {
		if !loopback || !localHost(r.Host) {
			return actor{}, newProblem(http.StatusForbidden, "forbidden",
				"Without admin.token the admin listener answers this machine only, under the name localhost or a loopback address; set admin.token to use it from elsewhere.")
		}
		return actor{Name: "local", Role: roleAdmin, IP: ip}, nil
	}
	now, from := time.Now(), network(ip)
	if bad.blocked(from, now) {
		p := newProblem(http.StatusTooManyRequests, "too_many_failures", "Too many wrong tokens from this address; try again in a minute.")
		p.retryAfter = "60"
		return actor{}, p
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
		return actor{Name: "token:admin", Role: roleAdmin, IP: ip}, nil
	}
	challenge := `Bearer realm="sluice admin"`
	if r.Header.Get("Authorization") != "" {
		bad.strike(from, now)
		challenge += `, error="invalid_token"`
		a.log.Warn("wrong admin token", "request_id", requestID(r.Context()), "ip", ip)
	}
	w.Header().Set("WWW-Authenticate", challenge)
	return actor{}, newProblem(http.StatusUnauthorized, "unauthorized", "Send the admin token as Authorization: Bearer TOKEN.")
}

// network is what strikes are counted by: an IPv6 peer has a whole /64.
func network(ip string) string {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Is4() {
		return ip
	}
	p, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return p.String()
}

func safeMethod(m string) bool {
	return m == http.MethodGet || m == http.MethodHead || m == http.MethodOptions
}

func peer(r *http.Request) (ip string, loopback bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "", false
	}
	addr := ap.Addr().Unmap()
	return addr.String(), addr.IsLoopback()
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// sameOrigin accepts what is not a browser (neither header), a page of this very
// host, and for reading a link that was followed. It refuses reads of other
// pages too: without a token an image tag could start a CPU profile.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
	default:
		return safeMethod(r.Method) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}
