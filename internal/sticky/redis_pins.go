package sticky

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/experiment"
)

func unixDialer(ctx context.Context, _, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", addr)
}

// getPin reads the pin, then the epoch: if the epoch is still the one that the
// caller knows, the store held all its pins when the first read found none. On
// a cluster the two may be on different servers, and the epoch is left to the
// watcher.
func (r *redisBackend) getPin(ctx context.Context, u unit, shard uint16, epoch string) (experiment.Pin, bool, error) {
	var pin, now *redis.StringCmd
	if r.cluster {
		pin = r.hot.HGet(ctx, r.pinKey(u.exp, shard), string(u.field[:]))
	} else {
		p := r.hot.Pipeline()
		pin = p.HGet(ctx, r.pinKey(u.exp, shard), string(u.field[:]))
		now = p.Get(ctx, r.key("pins"))
		_, _ = p.Exec(ctx) // each command has its own error
	}
	if err := pin.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return experiment.Pin{}, false, err
	}
	if got, ok := decodePin(pin.Val()); ok {
		return got, true, nil
	}
	if now == nil {
		return experiment.Pin{}, false, nil
	}
	if err := now.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return experiment.Pin{}, false, err
	}
	if now.Val() != epoch {
		return experiment.Pin{}, false, errEpoch
	}
	return experiment.Pin{}, false, nil
}

func (r *redisBackend) putArgs(op putOp, epoch string) ([]string, []any) {
	keys, expect, ttl := []string{r.pinKey(op.exp, op.shard)}, "", r.ttl
	if op.last {
		expect, ttl = "*", strconv.Itoa(int(2*conversationPeriod/time.Second))
	}
	if op.expect != nil {
		b := encodePin(*op.expect)
		expect = string(b[:])
	}
	if r.cluster {
		epoch = ""
	} else {
		keys = append(keys, r.key("pins"))
	}
	pin := encodePin(op.pin)
	return keys, []any{string(op.field[:]), string(pin[:]), expect, epoch, ttl}
}

func (r *redisBackend) putPins(ctx context.Context, ops []putOp, epoch string) ([]putResult, error) {
	if len(ops) == 1 {
		keys, args := r.putArgs(ops[0], epoch)
		res, err := putReply(scriptPut.Run(ctx, r.hot, keys, args...))
		return []putResult{res}, err
	}
	out, err := r.putBatch(ctx, ops, epoch, scriptPut.EvalSha)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") { // a server that was restarted
		out, err = r.putBatch(ctx, ops, epoch, scriptPut.Eval)
	}
	return out, err
}

type runScript func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// putBatch is not atomic; after an error some may be written, and writing them
// again answers the same.
func (r *redisBackend) putBatch(ctx context.Context, ops []putOp, epoch string, run runScript) ([]putResult, error) {
	p := r.slow.Pipeline()
	cmds := make([]*redis.Cmd, len(ops))
	for i, op := range ops {
		keys, args := r.putArgs(op, epoch)
		cmds[i] = run(ctx, p, keys, args...)
	}
	_, _ = p.Exec(ctx)
	out := make([]putResult, len(ops))
	for i, cmd := range cmds {
		var err error
		if out[i], err = putReply(cmd); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func putReply(cmd *redis.Cmd) (putResult, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return putResult{}, err
	}
	if len(reply) == 2 {
		if n, ok := reply[0].(int64); ok && n < 0 {
			return putResult{}, errEpoch
		} else if s, isString := reply[1].(string); ok && isString {
			if pin, ok := decodePin(s); ok {
				return putResult{written: n == 1, stored: pin}, nil
			}
		}
	}
	return putResult{}, fmt.Errorf("put script answered %v", reply)
}

// eachShard runs f for every shard's key of an experiment, in pipelines.
func (r *redisBackend) eachShard(ctx context.Context, exp string, f func(p redis.Pipeliner, key string)) error {
	const batch = 1024
	for i := 0; i < shards; i += batch {
		p := r.slow.Pipeline()
		for s := i; s < i+batch; s++ {
			f(p, r.pinKey(exp, uint16(s)))
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *redisBackend) dropPins(ctx context.Context, exp string) error {
	return r.eachShard(ctx, exp, func(p redis.Pipeliner, key string) { p.Unlink(ctx, key) })
}

func (r *redisBackend) expirePins(ctx context.Context, exp string, after time.Duration) error {
	return r.eachShard(ctx, exp, func(p redis.Pipeliner, key string) { p.PExpire(ctx, key, after) })
}

// fillTTL is how long a refiller may be silent before another takes over.
const fillTTL = 10 * time.Second

func (r *redisBackend) lockFill(ctx context.Context, token string) (bool, error) {
	return r.slow.SetNX(ctx, r.key("fill"), token, fillTTL).Result()
}

func (r *redisBackend) fillPins(ctx context.Context, token string, pins []PinRecord) error {
	for len(pins) > 0 {
		n := min(len(pins), 1000)
		p := r.slow.Pipeline()
		for _, rec := range pins[:n] {
			pin, key := encodePin(rec.Pin), r.pinKey(rec.Experiment, rec.Shard)
			p.HSetNX(ctx, key, string(rec.Field[:]), string(pin[:]))
			if r.ttl != "0" {
				p.Do(ctx, "EXPIRE", key, r.ttl)
			}
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		pins = pins[n:]
	}
	n, err := scriptRenew.Run(ctx, r.slow, []string{r.key("fill")}, token, fillTTL.Milliseconds()).Int()
	return heldFill(n, err)
}

func (r *redisBackend) markFilled(ctx context.Context, token, epoch string) error {
	n, err := scriptFilled.Run(ctx, r.slow, []string{r.key("fill"), r.key("pins")}, token, epoch).Int()
	return heldFill(n, err)
}

func heldFill(n int, err error) error {
	if err == nil && n == 0 {
		err = errBusy
	}
	return err
}

func (r *redisBackend) unlockFill(ctx context.Context, token string) error {
	return scriptRenew.Run(ctx, r.slow, []string{r.key("fill")}, token, 0).Err()
}
