package sticky

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
)

// redisBackend keeps everything in Redis under the keys of
// reference/experiments.md 4.2. Three clients, so that no kind of work waits
// for another's connections: hot for the request path (no retries, deadlines
// from the context), slow for the rest, and one connection that blocks for news.
type redisBackend struct {
	hot, slow, news redis.UniversalClient

	prefix  string
	cluster bool
	ttl     string // of pins, in whole seconds
}

// newRedis does not connect; it fails on a wrong URL only.
func newRedis(o Options) (*redisBackend, error) {
	quietRedis()
	r := &redisBackend{prefix: o.Prefix, ttl: fmt.Sprint(int64(o.PinTTL / time.Second))}
	for _, c := range []struct {
		client *redis.UniversalClient
		pool   int
	}{{&r.hot, 0}, {&r.slow, 8}, {&r.news, 2}} {
		u, cluster, err := universal(o)
		if err != nil {
			return nil, err
		}
		r.cluster = cluster
		u.ContextTimeoutEnabled = true
		u.DialerRetries = 1
		u.PipelinePoolSize = -1 // pipelines are most of what we send: one pool
		u.DisableIdentity = true
		u.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		if u.DialTimeout == 0 {
			u.DialTimeout = time.Second
		}
		u.ReadBufferSize, u.WriteBufferSize = 8<<10, 8<<10
		u.MaxRetries = -1 // a retry could exceed the budget; callers try again themselves
		if c.pool > 0 {
			u.PoolSize = c.pool
		}
		*c.client = redis.NewUniversalClient(u)
	}
	return r, nil
}

// universal parses o.URL into the options of a single server, a cluster or
// sentinels; the bool says cluster.
func universal(o Options) (*redis.UniversalOptions, bool, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		// url.Error repeats the URL, which may hold a password.
		return nil, false, errors.New("redis.url: not a URL; write redis://HOST:PORT/DB")
	}
	q := u.Query()
	cluster := q.Get("cluster") == "true" || q.Has("addr") && !q.Has("master_name")
	q.Del("cluster")
	u.RawQuery = q.Encode()
	var out *redis.UniversalOptions
	switch {
	case q.Has("master_name"):
		f, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, false, urlError(err)
		}
		out = &redis.UniversalOptions{Addrs: f.SentinelAddrs, MasterName: f.MasterName, DB: f.DB,
			SentinelUsername: f.SentinelUsername, SentinelPassword: f.SentinelPassword,
			Username: f.Username, Password: f.Password, TLSConfig: f.TLSConfig, PoolSize: f.PoolSize, DialTimeout: f.DialTimeout}
	case cluster:
		c, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, false, urlError(err)
		}
		out = &redis.UniversalOptions{Addrs: c.Addrs, IsClusterMode: true, Username: c.Username, Password: c.Password,
			TLSConfig: c.TLSConfig, PoolSize: c.PoolSize, DialTimeout: c.DialTimeout}
	default:
		s, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, false, urlError(err)
		}
		out = &redis.UniversalOptions{Addrs: []string{s.Addr}, DB: s.DB, Username: s.Username, Password: s.Password,
			TLSConfig: s.TLSConfig, PoolSize: s.PoolSize, DialTimeout: s.DialTimeout}
		if s.Network == "unix" {
			out.Dialer = unixDialer
		}
	}
	if o.TLS != nil {
		if out.TLSConfig == nil {
			return nil, false, errors.New("redis.url: TLS is configured but the scheme is not rediss://")
		}
		t := o.TLS.Clone()
		if t.ServerName == "" {
			t.ServerName = out.TLSConfig.ServerName
		}
		out.TLSConfig = t
	}
	return out, cluster, nil
}

func urlError(err error) error {
	return fmt.Errorf("redis.url: %s", strings.TrimPrefix(err.Error(), "redis: "))
}

// quietRedis turns off the library's own log lines, one per failed connection:
// during an outage they would be a storm. The store logs changes of state.
var quietRedis = sync.OnceFunc(func() { redis.SetLogger(noLog{}) })

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func (r *redisBackend) close() error {
	return errors.Join(r.hot.Close(), r.slow.Close(), r.news.Close())
}

// key names a key of the shared state; the hash tag keeps all of them on one
// slot, so that scripts may use several.
func (r *redisBackend) key(name string) string { return r.prefix + ":{x}:" + name }

// pinKey names the hash of one shard of an experiment's pins.
func (r *redisBackend) pinKey(exp string, shard uint16) string {
	b := make([]byte, 0, len(r.prefix)+len(exp)+16)
	b = append(b, r.prefix...)
	b = append(b, ":pin:{"...)
	b = append(b, exp...)
	b = append(b, ':')
	b = strconv.AppendUint(b, uint64(shard%shards), 10)
	return string(append(b, '}'))
}

// warmConns is how many connections of the hot pool are set up ahead of the
// requests: a handshake within the budget of a read may be too much.
const warmConns = 4

func (r *redisBackend) warm(ctx context.Context) error {
	var g errgroup.Group
	for range warmConns {
		g.Go(func() error { return r.hot.Ping(ctx).Err() })
	}
	return g.Wait()
}

func (r *redisBackend) probe(ctx context.Context, warm bool) (probe, error) {
	if warm {
		if err := r.warm(ctx); err != nil {
			return probe{}, err
		}
	}
	p := r.slow.Pipeline()
	epoch, ver := p.Get(ctx, r.key("pins")), p.HGet(ctx, r.key("snap"), "ver")
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return probe{}, err
	}
	out := probe{epoch: epoch.Val()}
	if ver.Err() == nil {
		rev, err := ver.Int64()
		if err != nil {
			return probe{}, fmt.Errorf("published revision: %w", err)
		}
		out.revision = rev
	}
	return out, nil
}
