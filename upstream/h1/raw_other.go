//go:build !unix

package h1

// Without access to the descriptor, reads hold a buffer while they wait and
// the death of a kept connection is found when it is used.

func (c *conn) initRaw() {}

func (c *conn) readRaw(*buffer, bool) (int, error) { return 0, nil }

func (c *conn) peek() peeked { return peekNothing }
