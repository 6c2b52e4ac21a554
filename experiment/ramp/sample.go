package ramp

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
)

// Sample counts distinct units in bounded memory. Up to sampleSize it keeps them
// all and is exact; beyond, it keeps those whose hash begins with more and more
// zero bits (Wegman's adaptive sampling), the same ones in every sample, so that
// several samples can be compared at the coarsest one's level. The zero value is
// empty.
type Sample struct {
	level  uint8    // kept are hashes below 2^(32-level)
	hashes []uint32 // ascending; 32 bits of a unit's hash tell thousands apart
}

// sampleSize bounds what a Sample keeps: 16 kB, exact to 4,096 units, within 2 %
// (one standard error) beyond.
const sampleSize = 4096

// Add counts a unit by its hash, of which the upper half is used.
func (s *Sample) Add(unit uint64) { s.add(uint32(unit >> 32)) }

func (s *Sample) add(h uint32) {
	if h>>(32-s.level) != 0 && s.level > 0 {
		return
	}
	i, found := slices.BinarySearch(s.hashes, h)
	if found {
		return
	}
	s.hashes = slices.Insert(s.hashes, i, h)
	for len(s.hashes) > sampleSize {
		s.level++
		s.hashes = s.hashes[:s.below(s.level)]
	}
}

// below is how many of the kept are in the sample of that level.
func (s *Sample) below(level uint8) int {
	if level == 0 {
		return len(s.hashes)
	}
	i, _ := slices.BinarySearch(s.hashes, uint32(1)<<(32-level))
	return i
}

// Count is the number of distinct units, an estimate once it is above sampleSize.
func (s *Sample) Count() int { return len(s.hashes) << s.level }

// Has reports a unit that is kept.
func (s *Sample) has(h uint32) bool {
	_, ok := slices.BinarySearch(s.hashes, h)
	return ok
}

// Merge counts what o counts.
func (s *Sample) Merge(o *Sample) {
	if o.level > s.level {
		s.level = o.level
		s.hashes = s.hashes[:s.below(s.level)]
	}
	for _, h := range o.hashes {
		s.add(h)
	}
}

// clone shares nothing with s.
func (s *Sample) clone() Sample { return Sample{s.level, slices.Clone(s.hashes)} }

// MarshalJSON writes the level and the differences of the hashes, packed.
func (s Sample) MarshalJSON() ([]byte, error) {
	out := []byte{s.level}
	last := uint32(0)
	for _, h := range s.hashes {
		out = binary.AppendUvarint(out, uint64(h-last))
		last = h
	}
	return json.Marshal(base64.StdEncoding.EncodeToString(out))
}

// UnmarshalJSON reads them.
func (s *Sample) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	packed, err := base64.StdEncoding.DecodeString(text)
	bad := errors.New("a sample of units is damaged")
	if err != nil || len(packed) == 0 || packed[0] > 31 {
		return bad
	}
	*s = Sample{level: packed[0]}
	last := uint64(0)
	for rest := packed[1:]; len(rest) > 0; {
		d, n := binary.Uvarint(rest)
		if n <= 0 || last+d >= 1<<(32-s.level) || d == 0 && len(s.hashes) > 0 || len(s.hashes) == sampleSize {
			*s = Sample{}
			return bad
		}
		last += d
		s.hashes = append(s.hashes, uint32(last))
		rest = rest[n:]
	}
	return nil
}
