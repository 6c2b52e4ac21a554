package metrics

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// PriceStrings are a price as it is written: decimal strings, USD per 1M
// tokens (Request: USD per request), at most 6 decimals. nil is unknown, "0" is
// free.
type PriceStrings struct {
	Input, CachedInput, CacheWrite, Output, Reasoning, Request *string
}

// Price is a parsed price. The zero value and nil price nothing.
//
// USD per 1M tokens with 6 decimals is a whole number of pico-USD per token,
// so nothing is rounded before the sum of a request.
type Price struct {
	input, cached, cacheWrite, output, reasoning rate
	request                                      int64 // pico-USD per request
}

// rate is pico-USD per token, or unknown.
type rate struct {
	pico  int64
	known bool
}

const (
	maxDecimals = 6
	// maxUnits bounds a price at a million USD per 1M tokens (or per request), so
	// that no later product leaves 128 bits and a request's fee stays in int64.
	maxUnits = 1_000_000_000_000 // micro-USD
	// picoPerMicro converts a request's micro-USD to pico-USD.
	picoPerMicro = 1_000_000
	picoPerNano  = 1000
)

// MaxTokens bounds one token count of one attempt; more is an engine's mistake
// (or malice) and would poison sums.
const MaxTokens = 1_000_000_000_000

// ParsePrice parses p. A member that is absent falls back: cached_input and
// cache_write to input, reasoning to output. It returns nil without an error
// when no member is given: the price is unknown, which is not zero. The error
// names the member and says what a price looks like.
func ParsePrice(p PriceStrings) (*Price, error) {
	var out Price
	var fee rate
	any := false
	for _, m := range []struct {
		name string
		s    *string
		to   *rate
	}{
		{"input", p.Input, &out.input},
		{"cached_input", p.CachedInput, &out.cached},
		{"cache_write", p.CacheWrite, &out.cacheWrite},
		{"output", p.Output, &out.output},
		{"reasoning", p.Reasoning, &out.reasoning},
		{"request", p.Request, &fee},
	} {
		if m.s == nil {
			continue
		}
		micro, err := parseMicro(*m.s)
		if err != nil {
			return nil, fmt.Errorf("price.%s: %w", m.name, err)
		}
		*m.to = rate{micro, true}
		any = true
	}
	if !any {
		return nil, nil
	}
	out.request = fee.pico * picoPerMicro
	out.cached = out.cached.or(out.input)
	out.cacheWrite = out.cacheWrite.or(out.input)
	out.reasoning = out.reasoning.or(out.output)
	return &out, nil
}

func (r rate) or(other rate) rate {
	if r.known {
		return r
	}
	return other
}

// parseMicro reads digits[.digits] as millionths.
func parseMicro(s string) (int64, error) {
	whole, frac, dot := strings.Cut(s, ".")
	if !digits(whole) || dot && !digits(frac) {
		return 0, fmt.Errorf("%s is not a price; write a decimal string such as %q", clip(s), "0.20")
	}
	if len(frac) > maxDecimals {
		return 0, fmt.Errorf("%s has more than %d decimals; prices are USD per 1M tokens with at most %d", clip(s), maxDecimals, maxDecimals)
	}
	var v int64
	for _, c := range []byte(whole + frac + "000000"[len(frac):]) {
		v = v*10 + int64(c-'0')
		if v > maxUnits {
			return 0, fmt.Errorf("%s is more than 1000000 USD; prices are USD per 1M tokens", clip(s))
		}
	}
	return v, nil
}

func digits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// clip quotes s for an error, at most 40 bytes of it.
func clip(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%q…", s[:40])
	}
	return fmt.Sprintf("%q", s)
}

// Tokens are the counts of one attempt in normal form: Input includes Cached
// and CacheWrite, Output includes Reasoning.
type Tokens struct {
	Input, Cached, CacheWrite, Output, Reasoning int64
}

// Normal returns t with impossible counts clamped, and how many were: negative
// or absurd counts, and parts that are larger than their whole.
func (t Tokens) Normal() (Tokens, int) {
	n := 0
	clamp := func(v *int64, most int64) {
		if c := min(max(*v, 0), most); c != *v {
			*v = c
			n++
		}
	}
	clamp(&t.Input, MaxTokens)
	clamp(&t.Cached, t.Input)
	clamp(&t.CacheWrite, t.Input-t.Cached)
	clamp(&t.Output, MaxTokens)
	clamp(&t.Reasoning, t.Output)
	return t, n
}

// Cost returns what t costs in nano-USD, the request's fee included: summed in
// pico-USD, rounded half-even once. t is clamped as Normal does. ok is false
// when the price is unknown: p is nil, or tokens were used that have no price.
// A sum beyond int64 pico-USD (9.2 million USD) is held at that bound.
func (p *Price) Cost(t Tokens) (nano int64, ok bool) {
	if p == nil {
		return 0, false
	}
	t, _ = t.Normal()
	sum := uint128{lo: uint64(p.request)}
	for _, part := range [...]struct {
		tokens int64
		rate   rate
	}{
		{t.Input - t.Cached - t.CacheWrite, p.input},
		{t.Cached, p.cached},
		{t.CacheWrite, p.cacheWrite},
		{t.Output - t.Reasoning, p.output},
		{t.Reasoning, p.reasoning},
	} {
		if part.tokens == 0 {
			continue
		}
		if !part.rate.known {
			return 0, false
		}
		sum = sum.addMul(uint64(part.tokens), uint64(part.rate.pico))
	}
	if sum.hi != 0 || sum.lo > math.MaxInt64 {
		sum.lo = math.MaxInt64
	}
	return roundNano(int64(sum.lo)), true
}

// uint128 cannot overflow here: five products of at most 10^12 × 10^12.
type uint128 struct{ hi, lo uint64 }

func (u uint128) addMul(a, b uint64) uint128 {
	hi, lo := bits.Mul64(a, b)
	lo, carry := bits.Add64(u.lo, lo, 0)
	hi, _ = bits.Add64(u.hi, hi, carry)
	return uint128{hi, lo}
}

// roundNano divides by 1000, half to even; pico is not negative.
func roundNano(pico int64) int64 {
	q, r := pico/picoPerNano, pico%picoPerNano
	if r > picoPerNano/2 || r == picoPerNano/2 && q&1 == 1 {
		q++
	}
	return q
}

// FormatUSD writes nano-USD as a decimal number of USD: exact, without an
// exponent or trailing zeros ("0.00122745", "12", "-0.5").
func FormatUSD(nano int64) string {
	return string(appendUSD(nil, nano))
}

func appendUSD(b []byte, nano int64) []byte {
	u := uint64(nano)
	if nano < 0 {
		b = append(b, '-')
		u = -u
	}
	b = appendUint(b, u/1e9)
	frac := u % 1e9
	if frac == 0 {
		return b
	}
	b = append(b, '.')
	for div := uint64(1e8); frac != 0; div /= 10 {
		b = append(b, byte('0'+frac/div))
		frac %= div
	}
	return b
}
