package experiment_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice/experiment"
)

func TestTargetingOps(t *testing.T) {
	many := strings.Split("a b c d e f g h i j k l m n o p", " ")
	tests := []struct {
		attr, op string
		values   []string
		request  attrs
		want     bool
	}{
		{"tenant", "in", []string{"acme", "globex"}, attrs{"tenant": "globex"}, true},
		{"tenant", "in", []string{"acme"}, attrs{"tenant": "Acme"}, false},
		{"tenant", "in", []string{"acme"}, nil, false},
		{"tag:plan", "in", many, attrs{"tag:plan": "p"}, true},
		{"tag:plan", "in", many, attrs{"tag:plan": "q"}, false},
		{"tag:plan", "not_in", many, attrs{"tag:plan": "q"}, true},
		{"tenant", "not_in", []string{"acme"}, attrs{"tenant": "acme"}, false},
		{"tenant", "not_in", []string{"acme"}, nil, true},
		{"header:x-app", "prefix", []string{"web/", "ios/"}, attrs{"header:x-app": "ios/3"}, true},
		{"header:x-app", "prefix", []string{"web/"}, attrs{"header:x-app": "web"}, false},
		{"header:x-app", "prefix", []string{"web/"}, nil, false},
		{"v", "semver_gte", []string{"1.4"}, attrs{"v": "1.10.0"}, true},
		{"v", "semver_gte", []string{"1.4"}, attrs{"v": "1.4.0-rc.1"}, false},
		{"v", "semver_gte", []string{"1.4"}, attrs{"v": "latest"}, false},
		{"v", "semver_gte", []string{"1.4"}, nil, false},
		{"tenant", "percent", []string{"100"}, attrs{"tenant": "acme"}, true},
		{"tenant", "percent", []string{"0"}, attrs{"tenant": "acme"}, false},
		{"tenant", "percent", []string{"100"}, nil, false},
		{"", "percent", []string{"100%"}, nil, true},
	}
	for _, tt := range tests {
		def := definition(t)
		def.Targeting = []experiment.Rule{{Attr: tt.attr, Op: tt.op, Values: tt.values}}
		q := user("u1")
		if tt.request != nil {
			q.Attrs = tt.request
		}
		d := compile(t, def).Decide(q)
		if got := d.Reason != experiment.ReasonTargeting; got != tt.want {
			t.Errorf("%s %s %v of %v: %v, want %v", tt.attr, tt.op, tt.values, tt.request, got, tt.want)
		}
		if !tt.want && (d.Variant != 0 || d.Exposure || d.WritePin != "") {
			t.Errorf("%s %s %v of %v: %+v", tt.attr, tt.op, tt.values, tt.request, d)
		}
	}
}

func TestRulesAreAConjunction(t *testing.T) {
	def := definition(t)
	def.Targeting = []experiment.Rule{
		{Attr: "tenant", Op: "in", Values: []string{"acme"}},
		{Attr: "model", Op: "prefix", Values: []string{"chat"}},
	}
	e := compile(t, def)
	for _, tt := range []struct {
		a    attrs
		want experiment.Reason
	}{
		{attrs{"tenant": "acme", "model": "chat-large"}, experiment.ReasonBucket},
		{attrs{"tenant": "acme", "model": "embed"}, experiment.ReasonTargeting},
		{attrs{"tenant": "globex", "model": "chat"}, experiment.ReasonTargeting},
	} {
		q := user("u1")
		q.Attrs = tt.a
		if d := e.Decide(q); d.Reason != tt.want {
			t.Errorf("%v: %s, want %s", tt.a, d.Reason, tt.want)
		}
	}
}

func TestCheckRule(t *testing.T) {
	tests := []struct {
		attr, op string
		values   []string
		err      string
	}{
		{"tenant", "in", []string{""}, ""},
		{"tenant", "is", []string{"a"}, `op "is" is unknown`},
		{"", "in", []string{"a"}, "no attr"},
		{"tenant", "in", nil, "no values"},
		{"tenant", "prefix", []string{"a", ""}, "empty prefix"},
		{"v", "semver_gte", []string{"one"}, "give one version"},
		{"v", "semver_gte", []string{"1", "2"}, "give one version"},
		{"", "percent", []string{"12.34"}, ""},
		{"unit", "percent", []string{"0.01%", "other-seed"}, ""},
		{"unit", "percent", []string{"100.00"}, ""},
		{"unit", "percent", []string{"100.01"}, "not a percentage"},
		{"unit", "percent", []string{"12.345"}, "not a percentage"},
		{"unit", "percent", []string{"-1"}, "not a percentage"},
		{"unit", "percent", []string{"1e1"}, "not a percentage"},
		{"unit", "percent", []string{"5."}, "not a percentage"},
		{"unit", "percent", []string{""}, "not a percentage"},
		{"unit", "percent", []string{"NaN"}, "not a percentage"},
		{"unit", "percent", []string{"5", "Bad Seed"}, "seed"},
		{"unit", "percent", []string{"5", "a", "b"}, "at most a seed"},
	}
	for _, tt := range tests {
		err := experiment.CheckRule(experiment.Rule{Attr: tt.attr, Op: tt.op, Values: tt.values})
		checkErr(t, fmt.Sprintf("%s %s %q", tt.attr, tt.op, tt.values), err, tt.err)
	}
}

// TestSemverOrder compares every pair of an ascending list through the rule.
func TestSemverOrder(t *testing.T) {
	ascending := []string{
		"0.0.1", "0.9", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta",
		"1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "v1.0.0", "1.0.1", "1.2", "1.10.0", "2",
		"2.0.18446744073709551616", "18446744073709551617.0.0",
	}
	same := [][2]string{{"1", "1.0.0"}, {"1.0.0+a", "1.0.0+b.1"}, {"v1.2", "1.2.0"}, {"01.2", "1.02.0"}, {"1.0.0-rc+x", "1.0.0-rc"}}
	compiled := map[string]*experiment.Experiment{} // by floor
	gte := func(value, floor string) bool {
		e := compiled[floor]
		if e == nil {
			def := definition(t)
			def.Targeting = []experiment.Rule{{Attr: "v", Op: "semver_gte", Values: []string{floor}}}
			e = compile(t, def)
			compiled[floor] = e
		}
		q := user("u1")
		q.Attrs = attrs{"v": value}
		return e.Decide(q).Reason == experiment.ReasonBucket
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got := gte(a, b); got != (i >= j) {
				t.Errorf("%s >= %s is %v", a, b, got)
			}
		}
	}
	for _, p := range same {
		if !gte(p[0], p[1]) || !gte(p[1], p[0]) {
			t.Errorf("%s and %s differ", p[0], p[1])
		}
	}
	for _, bad := range []string{"", "v", "1.", ".1", "1..2", "1.2.3.4", "1.2.x", "1.0.0-", "1.0.0-a..b", "1.0.0+", "1.0.0-a_b", "-1", " 1", strings.Repeat("1", 300)} {
		if gte(bad, "0") {
			t.Errorf("%q counts as a version", bad)
		}
	}
}

// TestPercentSeeds: the percentage has a domain of its own, another seed draws
// others, and long values are hashed whole.
func TestPercentSeeds(t *testing.T) {
	in := func(values ...string) (units []int) {
		def := definition(t)
		def.Targeting = []experiment.Rule{{Attr: "tag:id", Op: "percent", Values: values}}
		e := compile(t, def)
		for i := range 2000 {
			q := user("u1")
			q.Attrs = attrs{"tag:id": strings.Repeat("x", i%1500) + fmt.Sprint(i)}
			if e.Decide(q).Reason != experiment.ReasonTargeting {
				units = append(units, i)
			}
		}
		return units
	}
	own, other, twice := in("25"), in("25", "other"), in("25", "other")
	if len(own) < 400 || len(own) > 600 || slices.Equal(own, other) || !slices.Equal(other, twice) {
		t.Errorf("%d units with the experiment's seed, %d and %d with another", len(own), len(other), len(twice))
	}
}
