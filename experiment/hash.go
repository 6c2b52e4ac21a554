package experiment

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
)

// HashKind is the bucketing function of an experiment. It is part of the
// experiment and frozen while it runs: another one moves everybody.
type HashKind uint8

// The hash kinds. The GrowthBook ones exist so that an imported experiment
// keeps every user where it was; they hash the raw id, without type and tenant.
const (
	SHA256 HashKind = iota
	GrowthBook1
	GrowthBook2
)

// ParseHash reads a Definition.Hash: "" or "sha256", "growthbook1", "growthbook2".
func ParseHash(name string) (HashKind, error) {
	switch name {
	case "", "sha256":
		return SHA256, nil
	case "growthbook1":
		return GrowthBook1, nil
	case "growthbook2":
		return GrowthBook2, nil
	}
	return 0, fmt.Errorf("hash %q is unknown; use sha256 (the default), growthbook1 or growthbook2", name)
}

// Limits of a unit's parts, in bytes. None of seed, type and tenant may hold a
// colon, so the hashed string is unambiguous.
const (
	maxUnitType = 16
	maxTenant   = 64
	maxUnitID   = 512
	maxSeed     = 64
)

// ValidUnit reports whether u can be assigned. A unit that is not valid is
// treated as missing: cutting or cleaning an id would make two people one.
func ValidUnit(u Unit) bool {
	if len(u.ID) == 0 || len(u.ID) > maxUnitID ||
		len(u.Type) == 0 || len(u.Type) > maxUnitType || len(u.Tenant) > maxTenant {
		return false
	}
	for i := 0; i < len(u.Type); i++ {
		if c := u.Type[i]; !lowerDigit(c) && c != '_' {
			return false
		}
	}
	for i := 0; i < len(u.Tenant); i++ {
		c := u.Tenant[i]
		if !lowerDigit(c) && (c < 'A' || c > 'Z') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func lowerDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func validSeed(s string) bool {
	if len(s) == 0 || len(s) > maxSeed {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !lowerDigit(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}

// Bucket maps 32 hash bits to 0..Buckets-1. The product fits in 2^53, so SQL
// and JavaScript get the same number.
func Bucket(h32 uint32) int { return int(uint64(h32) * Buckets >> 32) }

// hashBuf holds the longest hash input of a valid unit (662 bytes) on the
// stack; a longer one spills to the heap and is hashed all the same.
type hashBuf [1024]byte

// Hash is the digest of u under seed:
// SHA-256("b1:" seed ":" type ":" tenant ":" id). It does not allocate.
func Hash(seed string, u Unit) Digest {
	var buf hashBuf
	b := append(buf[:0], "b1:"...)
	b = append(b, seed...)
	b = append(b, ':')
	return digestOf(appendUnit(b, u))
}

func digestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest{
		Bucket: Bucket(binary.BigEndian.Uint32(sum[0:4])),
		Field:  [8]byte(sum[8:16]),
		Shard:  binary.BigEndian.Uint16(sum[16:18]),
	}
}

// HashWith is Hash with the bucket taken by kind. Field and Shard are always
// those of Hash, so pins do not depend on the kind.
func HashWith(kind HashKind, seed string, u Unit) Digest {
	d := Hash(seed, u)
	switch kind {
	case GrowthBook1:
		// Thousandths, spread over the same layout of 10,000.
		d.Bucket = int(growthBook1(seed, u.ID)) * (Buckets / 1000)
	case GrowthBook2:
		d.Bucket = int(growthBook2(seed, u.ID))
	}
	return d
}

// appendUnit appends the unit key "type:tenant:id".
func appendUnit(b []byte, u Unit) []byte {
	b = append(b, u.Type...)
	b = append(b, ':')
	b = append(b, u.Tenant...)
	b = append(b, ':')
	return append(b, u.ID...)
}

// growthBook1 is GrowthBook's first hash, 0..999. Different seeds give it the
// same parity for every id; it is here for imports only.
func growthBook1(seed, value string) uint32 {
	return fnv32a(fnv32a(fnvOffset, value), seed) % 1000
}

// growthBook2 is GrowthBook's second hash, 0..9999.
func growthBook2(seed, value string) uint32 {
	h := fnv32a(fnv32a(fnvOffset, seed), value)
	var buf [10]byte
	return fnv32a(fnvOffset, strconv.AppendUint(buf[:0], uint64(h), 10)) % 10000
}

const (
	fnvOffset uint32 = 2166136261
	fnvPrime  uint32 = 16777619
)

// fnv32a goes on with FNV-1a from h over the bytes of s.
func fnv32a[S string | []byte](h uint32, s S) uint32 {
	for i := 0; i < len(s); i++ {
		h = (h ^ uint32(s[i])) * fnvPrime
	}
	return h
}
