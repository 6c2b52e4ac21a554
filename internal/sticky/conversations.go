package sticky

import (
	"context"
	"strconv"
	"strings"
	"time"

	"sluice/experiment"
)

// Conversations are remembered like units, but not for as long: each period has
// hashes of its own, which Redis forgets as a whole. A conversation that goes on
// moves into the next one, so it is remembered for one to two periods after its
// last request. There is no copy in the database: who forgets a conversation
// lets it go where its unit goes.
const conversationPeriod = 12 * time.Hour

// conversationMark is in no experiment's key.
const conversationMark = "/"

func (s *Store) conversationName(exp string, ago int64) string {
	n := s.o.Now().UnixNano()/int64(conversationPeriod) - ago
	return exp + conversationMark + strconv.FormatInt(n, 10)
}

func ofConversation(u unit) bool { return strings.Contains(u.exp, conversationMark) }

// GetConversation reads the pin of a running conversation; bounds and ErrDown
// are as for Get.
func (s *Store) GetConversation(ctx context.Context, exp string, field [8]byte, shard uint16) (experiment.Pin, bool, error) {
	pin, found, err := s.Get(ctx, s.conversationName(exp, 0), field, shard)
	if found {
		return pin, true, nil
	}
	before := s.conversationName(exp, 1)
	if err != nil {
		if c, ok := s.turns.get(unit{before, field}); ok {
			return c.pin, true, nil
		}
		return experiment.Pin{}, false, err
	}
	if pin, found, err = s.Get(ctx, before, field, shard); found {
		s.PutConversation(exp, field, shard, pin)
	}
	return pin, found, err
}

// PutConversation remembers in the background what a conversation runs on, over
// what was remembered of it; it never blocks. While the store is away only this
// replica knows.
func (s *Store) PutConversation(exp string, field [8]byte, shard uint16, pin experiment.Pin) {
	u, h := unit{s.conversationName(exp, 0), field}, s.health.Load()
	if c, ok := s.turns.get(u); ok && c.pin.Variant == pin.Variant && c.pin.Gen == pin.Gen && (c.queued || c.life == h.life) {
		return
	}
	if h.state != Up { // the queue is for units
		s.turns.put(u, cached{pin: pin})
		return
	}
	s.enqueue(u, shard, pin)
}

// cacheOf is where u is remembered: conversations come and go faster than
// units and must not push them out.
func (s *Store) cacheOf(u unit) *cache {
	if ofConversation(u) {
		return s.turns
	}
	return s.cache
}
