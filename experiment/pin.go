package experiment

import (
	"encoding/binary"
	"fmt"
)

// Bytes is the pin as a store keeps it.
func (p Pin) Bytes() [8]byte {
	var b [8]byte
	b[0] = p.Variant
	binary.BigEndian.PutUint16(b[1:3], p.Gen)
	binary.BigEndian.PutUint32(b[3:7], p.Revision)
	b[7] = p.Flags
	return b
}

// ParsePin reads what Bytes wrote. It fails on another length; a variant that
// does not exist (any more) is Decide's to judge, and unknown flags are kept.
func ParsePin(b []byte) (Pin, error) {
	if len(b) != 8 {
		return Pin{}, fmt.Errorf("a pin is 8 bytes, this is %d", len(b))
	}
	return Pin{
		Variant:  b[0],
		Gen:      binary.BigEndian.Uint16(b[1:3]),
		Revision: binary.BigEndian.Uint32(b[3:7]),
		Flags:    b[7],
	}, nil
}

// PutWins is the put rule, the same for every store: a put is written if there
// is no pin, or the stored generation is lower, or what is stored is expect.
// After it, the stored pin is put if it won, else stored.
func PutWins(stored *Pin, put Pin, expect *Pin) bool {
	return stored == nil || stored.Gen < put.Gen || expect != nil && *stored == *expect
}
