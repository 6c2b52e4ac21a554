package control_test

import (
	"testing"
	"time"

	"sluice/internal/control"
	"sluice/router"
	"sluice/upstream"
)

// seenPool notes what it was last asked for.
type seenPool struct {
	control.Pool
	timeouts upstream.Timeouts
}

func (p *seenPool) Apply(cfgs []upstream.Config) (map[string]*upstream.Upstream, error) {
	p.timeouts = cfgs[0].Timeouts
	return p.Pool.Apply(cfgs)
}

func TestTimeoutsOfUpstreamsThatHaveNone(t *testing.T) {
	seed := document(t, base)
	off, slow := router.Duration(0), router.Duration(time.Minute)
	seed.Upstreams[0].Timeouts = &router.Timeouts{FirstByte: &slow, BetweenBytes: &off}
	pool := &seenPool{}
	start(t, settings{id: "a", db: sqliteURL(t), change: func(o *control.Options) {
		pool.Pool, o.Pool, o.Seed = o.Pool, pool, seed
		o.Timeouts = upstream.Timeouts{Connect: time.Second, FirstByte: time.Hour, BetweenBytes: time.Hour, Total: -1}
	}})
	want := upstream.Timeouts{Connect: time.Second, FirstByte: time.Minute, BetweenBytes: -1, Total: -1}
	if pool.timeouts != want {
		t.Errorf("got %+v, want %+v", pool.timeouts, want)
	}
}
