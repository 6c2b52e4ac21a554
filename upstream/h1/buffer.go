package h1

import "sync"

// readSize is what one read takes: most answers fit with their head, and of a
// stream whatever has come.
const readSize = 4 << 10

// maxHead bounds the head of an answer.
const maxHead = 64 << 10

var (
	readPool  = sync.Pool{New: func() any { return new([readSize]byte) }}
	writePool = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}
)

// putWrite gives a buffer of a request back.
func putWrite(b *[]byte) {
	if cap(*b) <= 2*oneWrite {
		writePool.Put(b)
	}
}

// buffer holds what was read and not used yet: b[r:w]. It has memory only while
// it needs it.
type buffer struct {
	b    []byte
	pool *[readSize]byte // b's memory, nil when it is not from the pool
	r, w int
}

func (b *buffer) len() int { return b.w - b.r }

// room makes place for reading: at least one byte after w.
func (b *buffer) room() {
	switch {
	case b.b == nil:
		b.pool = readPool.Get().(*[readSize]byte)
		b.b, b.r, b.w = b.pool[:], 0, 0
	case b.r == b.w:
		b.r, b.w = 0, 0
	case b.w == len(b.b) && b.r > 0:
		b.w = copy(b.b, b.b[b.r:b.w])
		b.r = 0
	case b.w == len(b.b):
		n := make([]byte, 2*len(b.b))
		w := copy(n, b.b)
		b.drop()
		b.b, b.w = n, w
	}
}

// drop gives the memory back, and what is in it up.
func (b *buffer) drop() {
	if b.pool != nil {
		readPool.Put(b.pool)
	}
	*b = buffer{}
}

// rest drops the memory when nothing is in it.
func (b *buffer) rest() {
	if b.b != nil && b.r == b.w {
		b.drop()
	}
}
