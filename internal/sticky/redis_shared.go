package sticky

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	packAbove = 4 << 10   // documents above are stored compressed
	maxDoc    = 256 << 20 // bound of an unpacked document
)

func (r *redisBackend) publish(ctx context.Context, revision int64, doc []byte) error {
	packed, enc, err := pack(doc)
	if err != nil {
		return err
	}
	hash := docHash(doc)
	reply, err := scriptPublish.Run(ctx, r.slow, []string{r.key("snap"), r.key("log")}, revision, packed, enc, hash).Slice()
	if err != nil {
		return err
	}
	if len(reply) != 3 {
		return fmt.Errorf("publish script answered %v", reply)
	}
	if reply[0] == int64(1) {
		return nil
	}
	current, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
	if err != nil {
		return fmt.Errorf("published revision: %w", err)
	}
	return &StaleError{Revision: revision, Current: current, Differs: current == revision && reply[2] != hash}
}

func (r *redisBackend) latest(ctx context.Context) (int64, []byte, error) {
	f, err := r.slow.HMGet(ctx, r.key("snap"), "ver", "doc", "enc", "hash").Result()
	if err != nil {
		return 0, nil, err
	}
	if f[0] == nil {
		return 0, nil, ErrNone
	}
	var s [4]string
	for i := range f {
		s[i], _ = f[i].(string)
	}
	revision, err := strconv.ParseInt(s[0], 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("published revision: %w", err)
	}
	doc, err := unpack([]byte(s[1]), s[2], maxDoc)
	if err != nil {
		return 0, nil, fmt.Errorf("published revision %d: %w", revision, err)
	}
	if docHash(doc) != s[3] {
		return 0, nil, fmt.Errorf("published revision %d: its document does not match its hash", revision)
	}
	return revision, doc, nil
}

func docHash(doc []byte) string {
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:16])
}

func pack(doc []byte) ([]byte, string, error) {
	if len(doc) <= packAbove {
		return doc, "", nil
	}
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if _, err := w.Write(doc); err != nil {
		return nil, "", err
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return b.Bytes(), "gzip", nil
}

func unpack(b []byte, enc string, limit int) ([]byte, error) {
	switch enc {
	case "":
		return b, nil
	case "gzip":
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		doc, err := io.ReadAll(io.LimitReader(z, int64(limit)+1))
		if err == nil && len(doc) > limit {
			err = fmt.Errorf("larger than %d bytes unpacked", limit)
		}
		return doc, err
	default:
		return nil, fmt.Errorf("unknown encoding %q; a newer version wrote it", enc)
	}
}

// tail reads both logs in one blocking call. A flushed server starts its kill
// log again below the cursor; the watcher sees the flush and reads the set.
func (r *redisBackend) tail(ctx context.Context, c cursor) (cursor, error) {
	if c.kills == "" { // start at the end: the set itself was or will be read
		last, err := r.news.XRevRangeN(ctx, r.key("killlog"), "+", "-", 1).Result()
		if err != nil {
			return c, err
		}
		c.kills = "0-0"
		if len(last) > 0 {
			c.kills = last[0].ID
		}
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, tailBlock+lookTimeout)
	defer cancel()
	res, err := r.news.XRead(ctx, &redis.XReadArgs{
		Streams: []string{r.key("log"), r.key("killlog"), fmt.Sprintf("%d-0", c.revision), c.kills},
		Count:   1000, Block: tailBlock,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	for _, stream := range res {
		if len(stream.Messages) == 0 {
			continue
		}
		id := stream.Messages[len(stream.Messages)-1].ID
		if stream.Stream == r.key("killlog") {
			c.kills = id
			continue
		}
		ms, _, _ := strings.Cut(id, "-")
		rev, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return c, fmt.Errorf("change log: id %q: %w", id, err)
		}
		c.revision = max(c.revision, rev)
	}
	return c, nil
}

func killField(k KillEntry) string {
	name := fmt.Sprintf("%s/%d/%s", k.Experiment, k.Generation, k.Variant)
	if k.CutStreams {
		name += "/cut"
	}
	return name
}

func (r *redisBackend) addKills(ctx context.Context, kills []KillEntry) error {
	args := make([]any, 0, 2*len(kills))
	for _, k := range kills {
		b, err := json.Marshal(k)
		if err != nil {
			return err
		}
		args = append(args, killField(k), b)
	}
	return scriptKills.Run(ctx, r.slow, []string{r.key("kills"), r.key("killlog")}, args...).Err()
}

func (r *redisBackend) dropKills(ctx context.Context, exp string, before int) error {
	list, _, err := r.kills(ctx)
	if err != nil {
		return err
	}
	var fields []string
	var ended []any
	for _, k := range list {
		if k.Experiment != exp || k.Generation >= before {
			continue
		}
		b, err := json.Marshal(k)
		if err != nil {
			return err
		}
		fields, ended = append(fields, killField(k)), append(ended, killField(k), b)
	}
	if len(fields) == 0 {
		return nil
	}
	p := r.slow.TxPipeline()
	p.HDel(ctx, r.key("kills"), fields...)
	p.HSet(ctx, r.key("killed"), ended...)
	p.Expire(ctx, r.key("killed"), droppedAge)
	p.XAdd(ctx, &redis.XAddArgs{Stream: r.key("killlog"), MaxLen: 1000, Approx: true, Values: []string{"dropped", exp}})
	_, err = p.Exec(ctx)
	return err
}

// droppedAge, from the last drop, is longer than a replica may be cut off and
// still remember a kill: it would offer it again, and somebody drop it again.
const droppedAge = 30 * 24 * time.Hour

// kills skips entries that it cannot read: one bad entry must not hide a kill.
func (r *redisBackend) kills(ctx context.Context) (set, dropped []KillEntry, err error) {
	p := r.slow.TxPipeline()
	all, ended := p.HGetAll(ctx, r.key("kills")), p.HGetAll(ctx, r.key("killed"))
	if _, err := p.Exec(ctx); err != nil {
		return nil, nil, err
	}
	return killEntries(all.Val()), killEntries(ended.Val()), nil
}

func killEntries(hash map[string]string) []KillEntry {
	list := make([]KillEntry, 0, len(hash))
	for _, v := range hash {
		var k KillEntry
		if json.Unmarshal([]byte(v), &k) == nil && k.Experiment != "" && k.Variant != "" {
			list = append(list, k)
		}
	}
	return list
}

// indexAge is how long the index keeps a replica that is gone; its own key,
// which has ReplicaTTL, decides whether it is listed.
const indexAge = time.Hour

func (r *redisBackend) report(ctx context.Context, rep Replica) error {
	b, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	now := time.Now()
	p := r.slow.Pipeline()
	p.Set(ctx, r.key("rep:"+rep.ID), b, ReplicaTTL)
	p.ZAdd(ctx, r.key("reps"), redis.Z{Score: float64(now.Unix()), Member: rep.ID})
	p.ZRemRangeByScore(ctx, r.key("reps"), "-inf", strconv.FormatInt(now.Add(-indexAge).Unix(), 10))
	_, err = p.Exec(ctx)
	return err
}

func (r *redisBackend) forget(ctx context.Context, id string) error {
	p := r.slow.Pipeline()
	p.Del(ctx, r.key("rep:"+id))
	p.ZRem(ctx, r.key("reps"), id)
	_, err := p.Exec(ctx)
	return err
}

func (r *redisBackend) replicas(ctx context.Context) ([]Replica, error) {
	ids, err := r.slow.ZRange(ctx, r.key("reps"), 0, -1).Result()
	if err != nil || len(ids) == 0 {
		return []Replica{}, err
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = r.key("rep:" + id)
	}
	vals, err := r.slow.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	list := []Replica{}
	for _, v := range vals {
		var rep Replica
		if s, ok := v.(string); ok && json.Unmarshal([]byte(s), &rep) == nil {
			list = append(list, rep)
		}
	}
	slices.SortFunc(list, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func (r *redisBackend) acquire(ctx context.Context, id string, floor int64, ttl time.Duration) (int64, bool, error) {
	s, err := scriptLease.Run(ctx, r.slow, []string{r.key("leader"), r.key("fence")}, id, ttl.Milliseconds(), floor).Text()
	if err != nil || s == "" {
		return 0, false, err
	}
	fence, err := strconv.ParseInt(s, 10, 64)
	return fence, err == nil, err
}

func (r *redisBackend) renew(ctx context.Context, id string, fence int64, ttl time.Duration) (bool, error) {
	n, err := scriptRenew.Run(ctx, r.slow, []string{r.key("leader")}, fmt.Sprintf("%s %d", id, fence), ttl.Milliseconds()).Int()
	return n == 1, err
}

func (r *redisBackend) release(ctx context.Context, id string, fence int64) error {
	return scriptRenew.Run(ctx, r.slow, []string{r.key("leader")}, fmt.Sprintf("%s %d", id, fence), 0).Err()
}
