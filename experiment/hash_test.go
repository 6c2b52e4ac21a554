package experiment_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"sluice/experiment"
)

func TestHashVectors(t *testing.T) {
	var v struct {
		Cases []struct {
			Seed     string
			UnitType string `json:"unit_type"`
			Tenant   string
			ID       string
			H32      uint32
			Bucket   int
			PinField string `json:"pin_field"`
			PinShard uint16 `json:"pin_shard_14"`
		}
		Edges []struct {
			H32    uint32
			Bucket int
		}
	}
	load(t, "bucketing.json", &v)
	if len(v.Cases) != 26 || len(v.Edges) != 10 {
		t.Fatalf("%d cases and %d edges, want 26 and 10", len(v.Cases), len(v.Edges))
	}
	for _, c := range v.Cases {
		u := experiment.Unit{Type: c.UnitType, Tenant: c.Tenant, ID: c.ID}
		d := experiment.Hash(c.Seed, u)
		if d.Bucket != c.Bucket || hex.EncodeToString(d.Field[:]) != c.PinField || d.Shard&(1<<14-1) != c.PinShard {
			t.Errorf("Hash(%q, %v) = %+v, want bucket %d, field %s, shard %d", c.Seed, u, d, c.Bucket, c.PinField, c.PinShard)
		}
		if b := experiment.Bucket(c.H32); b != c.Bucket {
			t.Errorf("Bucket(%d) = %d, want %d", c.H32, b, c.Bucket)
		}
		if !experiment.ValidUnit(u) {
			t.Errorf("ValidUnit(%v) = false", u)
		}
	}
	for _, c := range v.Edges {
		if b := experiment.Bucket(c.H32); b != c.Bucket {
			t.Errorf("Bucket(%d) = %d, want %d", c.H32, b, c.Bucket)
		}
	}
}

func TestHashIsUnambiguous(t *testing.T) {
	u := func(typ, tenant, id string) experiment.Unit {
		return experiment.Unit{Type: typ, Tenant: tenant, ID: id}
	}
	pairs := []struct {
		seedA, seedB string
		a, b         experiment.Unit
	}{
		{"ab", "a", u("user", "", "c"), u("user", "", "bc")},
		{"s", "s", u("user", "a", "b"), u("user", "", "a:b")},
		{"s", "s", u("user", "", "1"), u("session", "", "1")},
		{"s", "s", u("user", "acme", "1"), u("user", "globex", "1")},
		{"s", "s", u("user", "", "é"), u("user", "", "e\u0301")},
		{"s", "s", u("user", "", "a"), u("user", "", "a ")},
	}
	for _, p := range pairs {
		if experiment.Hash(p.seedA, p.a).Field == experiment.Hash(p.seedB, p.b).Field {
			t.Errorf("%q %v and %q %v hash alike", p.seedA, p.a, p.seedB, p.b)
		}
	}
}

func TestValidUnit(t *testing.T) {
	long := strings.Repeat("x", 513)
	tests := []struct {
		name string
		u    experiment.Unit
		want bool
	}{
		{"plain", experiment.Unit{Type: "user", ID: "1"}, true},
		{"512 bytes", experiment.Unit{Type: "user", ID: long[:512]}, true},
		{"any bytes", experiment.Unit{Type: "user", ID: "\x00\xff:\n"}, true},
		{"tenant", experiment.Unit{Type: "user", Tenant: "A_c.m-3", ID: "1"}, true},
		{"empty id", experiment.Unit{Type: "user"}, false},
		{"513 bytes", experiment.Unit{Type: "user", ID: long}, false},
		{"no type", experiment.Unit{ID: "1"}, false},
		{"upper-case type", experiment.Unit{Type: "User", ID: "1"}, false},
		{"long type", experiment.Unit{Type: strings.Repeat("a", 17), ID: "1"}, false},
		{"colon in type", experiment.Unit{Type: "a:b", ID: "1"}, false},
		{"colon in tenant", experiment.Unit{Type: "user", Tenant: "a:b", ID: "1"}, false},
		{"long tenant", experiment.Unit{Type: "user", Tenant: long[:65], ID: "1"}, false},
	}
	for _, tt := range tests {
		if got := experiment.ValidUnit(tt.u); got != tt.want {
			t.Errorf("%s: ValidUnit = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestHashAllocatesNothing(t *testing.T) {
	u := experiment.Unit{Type: strings.Repeat("t", 16), Tenant: strings.Repeat("t", 64), ID: strings.Repeat("i", 512)}
	seed := strings.Repeat("s", 64)
	for _, kind := range []experiment.HashKind{experiment.SHA256, experiment.GrowthBook1, experiment.GrowthBook2} {
		if n := testing.AllocsPerRun(100, func() { experiment.HashWith(kind, seed, u) }); n != 0 {
			t.Errorf("hash kind %d: %v allocations", kind, n)
		}
	}
}

func TestGrowthBookHashVectors(t *testing.T) {
	var v struct {
		Cases []struct {
			Seed, Value string
			V1          int `json:"v1_bucket_of_1000"`
			V2          int `json:"v2_bucket_of_10000"`
		}
	}
	load(t, "growthbook_hash.json", &v)
	if len(v.Cases) != 8 {
		t.Fatalf("%d cases, want 8", len(v.Cases))
	}
	for _, c := range v.Cases {
		u := experiment.Unit{Type: "user", Tenant: "acme", ID: c.Value}
		if got := experiment.HashWith(experiment.GrowthBook1, c.Seed, u).Bucket; got != c.V1*10 {
			t.Errorf("growthbook1 %q %q: bucket %d, want %d", c.Seed, c.Value, got, c.V1*10)
		}
		d := experiment.HashWith(experiment.GrowthBook2, c.Seed, u)
		if d.Bucket != c.V2 {
			t.Errorf("growthbook2 %q %q: bucket %d, want %d", c.Seed, c.Value, d.Bucket, c.V2)
		}
		if d.Field != experiment.Hash(c.Seed, u).Field {
			t.Errorf("growthbook2 %q %q: the pin field depends on the hash kind", c.Seed, c.Value)
		}
	}
}

func TestExperimentDigest(t *testing.T) {
	for _, hash := range []string{"", "growthbook1", "growthbook2"} {
		def := definition(t)
		def.Hash = hash
		e := compile(t, def)
		q := user("u1")
		if got, want := e.Digest(q.Unit), e.Decide(q).Digest; got != want {
			t.Errorf("hash %q: Digest = %+v, Decide's is %+v", hash, got, want)
		}
	}
}

func TestParseHash(t *testing.T) {
	for name, want := range map[string]experiment.HashKind{
		"": experiment.SHA256, "sha256": experiment.SHA256,
		"growthbook1": experiment.GrowthBook1, "growthbook2": experiment.GrowthBook2,
	} {
		if got, err := experiment.ParseHash(name); err != nil || got != want {
			t.Errorf("ParseHash(%q) = %v, %v", name, got, err)
		}
	}
	if _, err := experiment.ParseHash("md5"); err == nil {
		t.Error("ParseHash(md5) did not fail")
	}
}

func FuzzHash(f *testing.F) {
	f.Add("seed", "user", "acme", "1")
	f.Add("", "", "", "")
	f.Add(strings.Repeat("s", 2000), "t", "x", strings.Repeat("i", 5000))
	f.Fuzz(func(t *testing.T, seed, typ, tenant, id string) {
		u := experiment.Unit{Type: typ, Tenant: tenant, ID: id}
		for _, kind := range []experiment.HashKind{experiment.SHA256, experiment.GrowthBook1, experiment.GrowthBook2} {
			d := experiment.HashWith(kind, seed, u)
			if d.Bucket < 0 || d.Bucket >= experiment.Buckets {
				t.Fatalf("bucket %d", d.Bucket)
			}
		}
		if experiment.ValidUnit(u) && (id == "" || len(id) > 512 || strings.Contains(typ+tenant, ":")) {
			t.Fatalf("ValidUnit(%q) = true", u)
		}
	})
}
