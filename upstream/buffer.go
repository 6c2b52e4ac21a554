package upstream

import (
	"sync"

	"sluice/upstream/wire"
)

// readSize is the buffer that an open stream holds while it waits; it is what
// most of the memory of a quiet stream is made of, hence small.
const readSize = 4 << 10

// keepSize is the largest byte slice that goes back to the pool.
const keepSize = 128 << 10

var (
	readPool   = sync.Pool{New: func() any { return new([readSize]byte) }}
	bytesPool  = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}
	streamPool = sync.Pool{New: func() any { return wire.NewStream(wire.StreamOptions{}) }}
)

func getBytes() *[]byte {
	b := bytesPool.Get().(*[]byte)
	*b = (*b)[:0]
	return b
}

func putBytes(b *[]byte) {
	if b != nil && cap(*b) <= keepSize {
		bytesPool.Put(b)
	}
}
