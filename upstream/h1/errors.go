package h1

import (
	"errors"
	"fmt"
)

// DialError is a call of which nothing was sent: no connection could be made,
// or the request cannot be put on the wire.
type DialError struct{ Err error }

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// CallError is a connection that failed before the head of an answer was there.
type CallError struct {
	Reused bool // the connection had served a call before
	Empty  bool // not one byte of an answer came
	Err    error
}

func (e *CallError) Error() string { return "no answer: " + e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }

// Stale tells whether err is the loss of a kept connection before any byte of
// an answer: most likely the server had closed it already.
func Stale(err error) bool {
	var e *CallError
	return errors.As(err, &e) && e.Reused && e.Empty
}

// ProtocolError is an answer that breaks HTTP/1.1 or a limit of this client. It
// does not quote the answer.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "malformed HTTP answer: " + e.What }

func malformed(format string, args ...any) error {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// errClosed answers reads of a body that was closed.
var errClosed = errors.New("the body of the answer is closed")
