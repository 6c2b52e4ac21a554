package upstream

import (
	"context"
	"sync"
	"time"
)

// life is the context of one attempt. It ends when the client goes, a time-out
// passes or the attempt is over, and Err is the cause itself. It has no values:
// nothing below needs the client's. A context.WithCancelCause would do the same
// with five times the garbage.
type life struct {
	mu    sync.Mutex
	cause error
	done  chan struct{} // made when asked for
	ends  []func()      // nil where stopped
	room  [1]func()
}

var _ context.Context = (*life)(nil)

// end ends it with cause; the first one stays. The functions of AfterFunc have
// run when it returns.
func (l *life) end(cause error) {
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = cause
	ends := l.ends
	l.ends = nil
	if l.done != nil {
		close(l.done)
	}
	l.mu.Unlock()
	for _, f := range ends {
		if f != nil {
			f()
		}
	}
}

// AfterFunc is what package context asks for in a context that is not its own.
// f must be quick: end waits for it.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		go f()
		return func() bool { return false }
	}
	if l.ends == nil {
		l.ends = l.room[:0]
	}
	i := len(l.ends)
	l.ends = append(l.ends, f)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ends == nil || l.ends[i] == nil {
			return false
		}
		l.ends[i] = nil
		return true
	}
}

// Err returns the cause, nil while it lives.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.cause != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *life) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (l *life) Value(any) any                           { return nil }
