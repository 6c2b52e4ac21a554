package sticky

import (
	"context"
	"sync"
	"time"
)

const (
	backupBatch = 1000
	backupLimit = 200_000
	backupEvery = time.Second
)

// backup collects new pins until they are copied to the database.
type backup struct {
	mu     sync.Mutex
	dirty  map[unit]PinRecord
	saving []PinRecord   // taken, and not known to be in the database
	full   chan struct{} // capacity 1: a batch is ready
	turn   chan struct{} // capacity 1: held while the database is written
}

func newBackup() *backup {
	return &backup{dirty: map[unit]PinRecord{}, full: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// add reports whether there was room.
func (b *backup) add(r PinRecord) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := unit{r.Experiment, r.Field}
	if old, ok := b.dirty[u]; ok && !newer(r.Pin, old.Pin) {
		return true
	} else if !ok && len(b.dirty) >= backupLimit {
		return false
	}
	b.dirty[u] = r
	if len(b.dirty) >= backupBatch {
		select {
		case b.full <- struct{}{}:
		default:
		}
	}
	return true
}

// take removes up to n records.
func (b *backup) take(n int) []PinRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]PinRecord, 0, min(n, len(b.dirty)))
	for u, r := range b.dirty {
		if len(out) == n {
			break
		}
		out = append(out, r)
		delete(b.dirty, u)
	}
	b.saving = out
	return out
}

func (b *backup) saved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saving = nil
}

// pending copies what has not reached the database.
func (b *backup) pending() []PinRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]PinRecord, 0, len(b.dirty)+len(b.saving))
	for _, r := range b.dirty { // newer than those being saved
		out = append(out, r)
	}
	return append(out, b.saving...)
}

func (b *backup) drop(exp string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for u := range b.dirty {
		if u.exp == exp {
			delete(b.dirty, u)
		}
	}
}

func (b *backup) len() int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.dirty)
}

// flushBackup copies new pins to the database once a second or once a batch is
// full, and a last time when the queue has been drained in Close.
func (s *Store) flushBackup() {
	defer close(s.backupDone)
	if s.backup == nil {
		<-s.queueDone
		return
	}
	tick := time.NewTicker(backupEvery)
	defer tick.Stop()
	for {
		last := false
		select {
		case <-s.backup.full:
		case <-tick.C:
		case <-s.queueDone:
			last = true
		}
		ok := true
		for ok && s.backup.len() > 0 {
			ok = s.saveBatch()
		}
		if last {
			return
		}
		if !ok { // a database that is away is asked again at the next tick
			select {
			case <-tick.C:
			case <-s.queueDone:
			}
		}
	}
}

func (s *Store) saveBatch() bool {
	s.backup.turn <- struct{}{}
	defer func() { <-s.backup.turn }()
	batch := s.backup.take(backupBatch)
	defer s.backup.saved()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	err := s.o.Backup.SavePins(ctx, batch)
	if err == nil {
		return true
	}
	s.counters.add(CountBackupError, 1)
	for _, r := range batch {
		if !s.backup.add(r) {
			s.counters.add(CountBackupDropped, 1)
		}
	}
	return false
}
