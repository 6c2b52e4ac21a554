package experiment

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// rule is a compiled Rule.
type rule struct {
	op     ruleOp
	attr   string
	values []string
	set    map[string]struct{} // instead of values, when there are many
	floor  version             // semver_gte
	below  int                 // percent, in buckets
	seed   string              // percent
}

type ruleOp uint8

const (
	opIn ruleOp = iota
	opNotIn
	opPrefix
	opSemver
	opPercent
)

// fewValues is up to where a linear search beats a map.
const fewValues = 8

// UnitAttr is the attribute of a percent rule that takes the unit itself.
const UnitAttr = "unit"

// CheckRule reports what is wrong with r. It takes any attribute name; which
// names exist is the caller's to say.
func CheckRule(r Rule) error {
	_, err := compileRule(r, "")
	return err
}

func compileRules(rules []Rule, seed string) ([]rule, error) {
	var errs []error
	out := make([]rule, 0, len(rules))
	for i, r := range rules {
		c, err := compileRule(r, seed)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %d: %w", i, err))
			continue
		}
		out = append(out, c)
	}
	return out, errors.Join(errs...)
}

func compileRule(r Rule, seed string) (rule, error) {
	c := rule{attr: r.Attr, values: slices.Clone(r.Values)}
	if r.Attr == "" && r.Op != "percent" {
		return rule{}, errors.New("no attr; name the attribute to test")
	}
	if len(r.Values) == 0 {
		return rule{}, fmt.Errorf("%s %s: no values", r.Attr, r.Op)
	}
	switch r.Op {
	case "in", "not_in":
		if r.Op == "not_in" {
			c.op = opNotIn
		}
		if len(r.Values) > fewValues {
			c.set, c.values = make(map[string]struct{}, len(r.Values)), nil
			for _, v := range r.Values {
				c.set[v] = struct{}{}
			}
		}
	case "prefix":
		c.op = opPrefix
		if slices.Contains(r.Values, "") {
			return rule{}, fmt.Errorf("%s prefix: an empty prefix matches every value", r.Attr)
		}
	case "semver_gte":
		c.op = opSemver
		floor, ok := parseVersion(r.Values[0])
		if !ok || len(r.Values) != 1 {
			return rule{}, fmt.Errorf("%s semver_gte: give one version such as \"1.4.0\", not %q", r.Attr, r.Values)
		}
		c.floor = floor
	case "percent":
		return compilePercent(r, c, seed)
	default:
		return rule{}, fmt.Errorf("op %q is unknown; use in, not_in, prefix, semver_gte or percent", r.Op)
	}
	return c, nil
}

func compilePercent(r Rule, c rule, seed string) (rule, error) {
	c.op, c.seed = opPercent, seed
	if c.attr == "" {
		c.attr = UnitAttr
	}
	below, ok := parsePercent(r.Values[0])
	if !ok {
		return rule{}, fmt.Errorf("%s percent: %q is not a percentage from 0 to 100 with at most 2 decimals", c.attr, r.Values[0])
	}
	c.below = below
	switch {
	case len(r.Values) > 2:
		return rule{}, fmt.Errorf("%s percent: give the percentage and at most a seed, not %q", c.attr, r.Values)
	case len(r.Values) == 2 && !validSeed(r.Values[1]):
		return rule{}, fmt.Errorf("%s percent: %w", c.attr, errSeed(r.Values[1]))
	case len(r.Values) == 2:
		c.seed = r.Values[1]
	}
	return c, nil
}

// parsePercent reads "12.34" (a % sign may follow) as hundredths of a percent, exactly.
func parsePercent(s string) (int, bool) {
	whole, frac, dot := strings.Cut(strings.TrimSuffix(s, "%"), ".")
	if len(whole) == 0 || len(whole) > 3 || dot && (len(frac) == 0 || len(frac) > 2) {
		return 0, false
	}
	frac += "00"[len(frac):]
	n := 0
	for _, part := range [2]string{whole, frac} {
		for i := 0; i < len(part); i++ {
			if part[i] < '0' || part[i] > '9' {
				return 0, false
			}
			n = n*10 + int(part[i]-'0')
		}
	}
	return n, n <= Buckets
}

// match reports whether all rules hold for q. It does not allocate.
func match(rules []rule, q *Query) bool {
	for i := range rules {
		if !rules[i].match(q) {
			return false
		}
	}
	return true
}

func (r *rule) match(q *Query) bool {
	if r.op == opPercent && r.attr == UnitAttr {
		return r.matchUnit(q)
	}
	var value string
	var ok bool
	if q.Attrs != nil {
		value, ok = q.Attrs.Attr(r.attr)
	}
	if !ok {
		return r.op == opNotIn
	}
	switch r.op {
	case opIn:
		return r.has(value)
	case opNotIn:
		return !r.has(value)
	case opPrefix:
		for _, p := range r.values {
			if strings.HasPrefix(value, p) {
				return true
			}
		}
		return false
	case opSemver:
		v, ok := parseVersion(value)
		return ok && compareVersions(v, r.floor) >= 0
	case opPercent:
		var buf hashBuf
		return r.percent(append(r.prefix(&buf), value...))
	}
	return false
}

func (r *rule) has(value string) bool {
	if r.set != nil {
		_, ok := r.set[value]
		return ok
	}
	return slices.Contains(r.values, value)
}

func (r *rule) matchUnit(q *Query) bool {
	if !q.HasUnit || !ValidUnit(q.Unit) {
		return false
	}
	var buf hashBuf
	return r.percent(appendUnit(r.prefix(&buf), q.Unit))
}

// prefix begins the input of a percent rule's hash. "t1:" keeps it apart from
// the bucketing's "b1:": with one hash for the gate and the variant, a 10 %
// gate would reach only some of the variants.
func (r *rule) prefix(buf *hashBuf) []byte {
	b := append(buf[:0], "t1:"...)
	b = append(b, r.seed...)
	b = append(b, 0)
	b = append(b, r.attr...)
	return append(b, 0)
}

func (r *rule) percent(input []byte) bool {
	sum := sha256.Sum256(input)
	return Bucket(binary.BigEndian.Uint32(sum[:4])) < r.below
}
