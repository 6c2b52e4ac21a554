package upstream

import (
	"net/url"
	"strings"
	"sync"
	"time"
)

// memberKey is a member's identity over configuration changes.
type memberKey struct{ upstream, base string }

// member is what one configured base URL stands for: one endpoint, or as many
// as its name has addresses.
type member struct {
	key  memberKey
	url  *url.URL // without dns:
	name *name    // nil: one endpoint

	// Guarded by the pool's mu.
	list []*endpoint
	up   *Upstream // whose configuration new endpoints get
}

// name is what is known of a dns: name.
type name struct {
	first chan struct{} // closed when the first resolution has returned
	again chan struct{} // asks for a resolution before its time
	stop  func()        // ends the resolutions

	mu      sync.Mutex // guards what follows
	state   string     // "" when all is well
	problem string     // in words
	since   time.Time
}

func newMember(upstream, base string, now time.Time) (*member, error) {
	rest, dns := strings.CutPrefix(base, dnsPrefix)
	u, err := parseBase(rest)
	if err != nil {
		return nil, err
	}
	m := &member{key: memberKey{upstream, base}, url: u}
	if !dns {
		m.list = []*endpoint{newEndpoint(m, base, "", now)}
		return m, nil
	}
	m.name = &name{first: make(chan struct{}), again: make(chan struct{}, 1),
		state: stateStarting, problem: "its name is being resolved", since: now}
	return m, nil
}

// end stops the checks. The pool's mu is held, or the pool is closed.
func (m *member) end() {
	if m.name != nil {
		m.name.stop()
	}
	for _, e := range m.list {
		e.stop()
		e.set.Load().carrier.Close()
	}
}

// unchecked returns what is closed when the first resolution, or the first check
// of an endpoint, that is not done yet is; nil when all are. The pool's mu is
// held.
func (m *member) unchecked() <-chan struct{} {
	if m.name != nil && !done(m.name.first) {
		return m.name.first
	}
	for _, e := range m.list {
		if !done(e.first) {
			return e.first
		}
	}
	return nil
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lookAgain asks for the name to be resolved soon: an address of it did not
// answer.
func (m *member) lookAgain() {
	if m.name == nil {
		return
	}
	select {
	case m.name.again <- struct{}{}:
	default:
	}
}

// trouble is what is wrong with the name itself, as people see it.
func (m *member) trouble() (s EndpointStatus, ok bool) {
	if m.name == nil {
		return s, false
	}
	m.name.mu.Lock()
	defer m.name.mu.Unlock()
	if m.name.state == "" {
		return s, false
	}
	return EndpointStatus{URL: m.key.base, State: m.name.state, Reason: m.name.problem, Since: m.name.since}, true
}

// note keeps what a resolution has come to, "" when all is well, and reports
// whether that is new.
func (n *name) note(state, problem string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == state && n.problem == problem {
		return false
	}
	n.state, n.problem, n.since = state, problem, now
	return true
}
