package experiment

import (
	"cmp"
	"strings"
)

// version is a parsed semantic version; its parts are slices of the source, so
// that parsing does not allocate. Missing minor and patch are "".
type version struct {
	core [3]string
	pre  string // without the hyphen, "" for a release
}

// maxVersion bounds a version that a client may send.
const maxVersion = 256

// parseVersion reads "1", "1.2", "v1.2.3", "1.2.3-rc.1+build". Numbers may have
// any length; the build is ignored, as precedence does.
func parseVersion(s string) (v version, ok bool) {
	if len(s) > maxVersion {
		return version{}, false
	}
	s = strings.TrimPrefix(s, "v")
	s, build, hasBuild := strings.Cut(s, "+")
	if hasBuild && !identifiers(build) {
		return version{}, false
	}
	s, pre, hasPre := strings.Cut(s, "-")
	if hasPre && !identifiers(pre) {
		return version{}, false
	}
	v.pre = pre
	for i := range v.core {
		part, rest, more := strings.Cut(s, ".")
		if !digits(part) {
			return version{}, false
		}
		v.core[i] = part
		if !more {
			return v, true
		}
		s = rest
	}
	return version{}, false // a fourth part
}

// compareVersions orders by semver precedence.
func compareVersions(a, b version) int {
	for i := range a.core {
		if c := compareNumbers(a.core[i], b.core[i]); c != 0 {
			return c
		}
	}
	switch {
	case a.pre == b.pre:
		return 0
	case a.pre == "":
		return 1
	case b.pre == "":
		return -1
	}
	return comparePre(a.pre, b.pre)
}

func comparePre(a, b string) int {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		var c int
		switch dx, dy := digits(x), digits(y); {
		case dx && dy:
			c = compareNumbers(x, y)
		case dx:
			c = -1 // numbers come before words
		case dy:
			c = 1
		default:
			c = strings.Compare(x, y)
		}
		switch {
		case c != 0:
			return c
		case !moreA && !moreB:
			return 0
		case !moreA:
			return -1
		case !moreB:
			return 1
		}
		a, b = restA, restB
	}
}

// compareNumbers compares decimal digits of any length; "" is 0.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func digits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// identifiers reports whether s is dot-separated, non-empty [0-9A-Za-z-] words.
func identifiers(s string) bool {
	last := byte('.')
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '.' && last == '.' {
			return false
		}
		if !lowerDigit(c) && (c < 'A' || c > 'Z') && c != '-' && c != '.' {
			return false
		}
		last = c
	}
	return last != '.'
}
