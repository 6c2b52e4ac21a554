package sticky

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"sluice/experiment"
)

// shards is the number of hashes that an experiment's pins are spread over:
// 2^14 keeps a hash below 512 fields, Redis's compact form, up to 8 million pins.
const shards = 1 << 14

// unit is a pin's key; shard is the digest's, unmasked.
type unit struct {
	exp   string
	field [8]byte
}

// putOp is one write: first come, or for what is passing the last.
type putOp struct {
	unit
	shard  uint16
	pin    experiment.Pin
	expect *experiment.Pin // also written over exactly this pin
	last   bool            // of a conversation: written over anything, kept for two periods
}

// putResult is what is stored after a putOp.
type putResult struct {
	written bool
	stored  experiment.Pin
}

// probe is the periodic look at the store. Epoch names one life of its pins:
// it is lost with them, and "" means that they were never (re)filled.
type probe struct {
	epoch    string
	revision int64
}

// cursor is where a follower of the change log stands.
type cursor struct {
	revision int64
	kills    string
}

// backend is the storage below Store. Every method is safe for concurrent use
// and returns by its context's deadline. Pins are read and written under the
// epoch the caller knows; errEpoch says that the store is in another one.
type backend interface {
	// probe with warm also sets up what the first reads after an outage need.
	probe(ctx context.Context, warm bool) (probe, error)
	close() error

	getPin(ctx context.Context, u unit, shard uint16, epoch string) (experiment.Pin, bool, error)
	putPins(ctx context.Context, ops []putOp, epoch string) ([]putResult, error)
	dropPins(ctx context.Context, exp string) error
	expirePins(ctx context.Context, exp string, after time.Duration) error

	// lockFill asks for the right to refill under a token used once. fillPins
	// renews it; it is lost with the store's data, so that markFilled, which
	// ends the refill and names the new epoch, vouches for every pin filled
	// under the token. Both answer errBusy when the right is lost.
	lockFill(ctx context.Context, token string) (bool, error)
	fillPins(ctx context.Context, token string, pins []PinRecord) error
	markFilled(ctx context.Context, token, epoch string) error
	unlockFill(ctx context.Context, token string) error

	publish(ctx context.Context, revision int64, doc []byte) error
	latest(ctx context.Context) (int64, []byte, error)
	// tail blocks up to a second for news after c; it returns the new position.
	tail(ctx context.Context, c cursor) (cursor, error)

	addKills(ctx context.Context, kills []KillEntry) error
	dropKills(ctx context.Context, exp string, before int) error
	// kills also returns what was dropped: an entry that is in neither was lost.
	kills(ctx context.Context) (set, dropped []KillEntry, err error)

	report(ctx context.Context, r Replica) error
	forget(ctx context.Context, id string) error
	replicas(ctx context.Context) ([]Replica, error)

	acquire(ctx context.Context, id string, floor int64, ttl time.Duration) (fence int64, ok bool, err error)
	renew(ctx context.Context, id string, fence int64, ttl time.Duration) (bool, error)
	release(ctx context.Context, id string, fence int64) error
	supervise(ctx context.Context, fence, seq int64, ttl time.Duration) error
	// supervised is how long the last heartbeat still lasts; not positive: none does.
	supervised(ctx context.Context) (time.Duration, error)

	observe(ctx context.Context, exp string, body []byte) error
	observed(ctx context.Context, exp, after string, most int) ([]Observation, error)
	checkpoint(ctx context.Context, exp string, fence int64, body []byte) error
	loadCheckpoint(ctx context.Context, exp string) ([]byte, error)
	share(ctx context.Context, exp, topic, id string, body []byte) error
	shared(ctx context.Context, exp, topic string) (map[string][]byte, error)
	dropRollout(ctx context.Context, exp string) error
}

// errEpoch: the store was emptied, and perhaps refilled, since the caller looked.
var errEpoch = fmt.Errorf("%w: it lost its data and is being refilled", ErrDown)

// encodePin gives the 8 bytes of reference/experiments.md 3.2.
func encodePin(p experiment.Pin) (b [8]byte) {
	b[0] = p.Variant
	binary.BigEndian.PutUint16(b[1:3], p.Gen)
	binary.BigEndian.PutUint32(b[3:7], p.Revision)
	b[7] = p.Flags
	return b
}

// decodePin is the inverse; ok is false for anything but 8 bytes.
func decodePin(b string) (p experiment.Pin, ok bool) {
	if len(b) != 8 {
		return p, false
	}
	p.Variant = b[0]
	p.Gen = uint16(b[1])<<8 | uint16(b[2])
	p.Revision = uint32(b[3])<<24 | uint32(b[4])<<16 | uint32(b[5])<<8 | uint32(b[6])
	p.Flags = b[7]
	return p, true
}

// wins is the put rule: whether op is written over cur.
func wins(op putOp, cur experiment.Pin) bool {
	return op.last || cur.Gen < op.pin.Gen || op.expect != nil && *op.expect == cur
}

// newer orders two copies of one unit's pin for the backup.
func newer(a, b experiment.Pin) bool {
	if a.Gen != b.Gen {
		return a.Gen > b.Gen
	}
	return int32(a.Revision-b.Revision) >= 0
}
