package sticky

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxState bounds an unpacked checkpoint or share.
const maxState = 64 << 20

func (r *redisBackend) observe(ctx context.Context, exp string, body []byte) error {
	p, key := r.slow.Pipeline(), r.key("obs:"+exp)
	p.XAdd(ctx, &redis.XAddArgs{Stream: key, MaxLen: observations, Approx: true, Values: []any{"b", body}})
	p.Expire(ctx, key, rolloutTTL)
	_, err := p.Exec(ctx)
	return err
}

func (r *redisBackend) observed(ctx context.Context, exp, after string, most int) ([]Observation, error) {
	key := r.key("obs:" + exp)
	p := r.slow.Pipeline()
	got, last := p.XRangeN(ctx, key, "("+after, "+", int64(most)), p.XRevRangeN(ctx, key, "+", "-", 1)
	if _, err := p.Exec(ctx); err != nil {
		return nil, err
	}
	list := got.Val()
	if tip := last.Val(); len(list) == 0 && len(tip) > 0 {
		from, err := parseStreamID(after)
		if err != nil {
			return nil, err
		}
		at, err := parseStreamID(tip[0].ID)
		if err != nil {
			return nil, err
		}
		if at.less(from) { // the stream was lost and begun again by an earlier clock
			if list, err = r.slow.XRangeN(ctx, key, "-", "+", int64(most)).Result(); err != nil {
				return nil, err
			}
		}
	}
	out := make([]Observation, 0, len(list))
	for _, m := range list {
		id, err := parseStreamID(m.ID)
		if err != nil {
			return nil, err
		}
		body, _ := m.Values["b"].(string)
		out = append(out, Observation{ID: m.ID, At: id.ms, Body: []byte(body)})
	}
	return out, nil
}

func (r *redisBackend) checkpoint(ctx context.Context, exp string, fence int64, body []byte) error {
	packed, enc, err := pack(body)
	if err != nil {
		return err
	}
	n, err := scriptCheckpoint.Run(ctx, r.slow, []string{r.key("ctl:" + exp)}, fence, packed, enc, int64(rolloutTTL/time.Second)).Int()
	if err == nil && n == 0 {
		return ErrFenced
	}
	return err
}

func (r *redisBackend) loadCheckpoint(ctx context.Context, exp string) ([]byte, error) {
	f, err := r.slow.HMGet(ctx, r.key("ctl:"+exp), "body", "enc").Result()
	if err != nil {
		return nil, err
	}
	body, ok := f[0].(string)
	if !ok {
		return nil, ErrNone
	}
	enc, _ := f[1].(string)
	return unpack([]byte(body), enc, maxState)
}

func (r *redisBackend) shareKey(exp, topic string) string { return r.key("share:" + exp + ":" + topic) }

// share writes the encoding in front of the body: "gzip:…" or ":…".
func (r *redisBackend) share(ctx context.Context, exp, topic, id string, body []byte) error {
	packed, enc, err := pack(body)
	if err != nil {
		return err
	}
	p := r.slow.TxPipeline()
	p.HSet(ctx, r.shareKey(exp, topic), id, enc+":"+string(packed))
	p.Expire(ctx, r.shareKey(exp, topic), rolloutTTL)
	p.SAdd(ctx, r.key("shares:"+exp), topic)
	p.Expire(ctx, r.key("shares:"+exp), rolloutTTL)
	_, err = p.Exec(ctx)
	return err
}

func (r *redisBackend) shared(ctx context.Context, exp, topic string) (map[string][]byte, error) {
	all, err := r.slow.HGetAll(ctx, r.shareKey(exp, topic)).Result()
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(all))
	for id, v := range all {
		enc, packed, _ := strings.Cut(v, ":")
		body, err := unpack([]byte(packed), enc, maxState)
		if err != nil {
			return nil, fmt.Errorf("what %s shared of %s: %w", id, exp, err)
		}
		out[id] = body
	}
	return out, nil
}

func (r *redisBackend) dropRollout(ctx context.Context, exp string) error {
	topics, err := r.slow.SMembers(ctx, r.key("shares:"+exp)).Result()
	if err != nil {
		return err
	}
	keys := []string{r.key("obs:" + exp), r.key("ctl:" + exp), r.key("shares:" + exp)}
	for _, topic := range topics {
		keys = append(keys, r.shareKey(exp, topic))
	}
	return r.slow.Del(ctx, keys...).Err()
}

func (r *redisBackend) supervise(ctx context.Context, fence, seq int64, ttl time.Duration) error {
	return r.slow.Set(ctx, r.key("sup"), fmt.Sprintf("%d:%d", fence, seq), ttl).Err()
}

func (r *redisBackend) supervised(ctx context.Context) (time.Duration, error) {
	return r.slow.PTTL(ctx, r.key("sup")).Result() // negative without the key
}
