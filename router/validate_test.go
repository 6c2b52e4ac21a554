package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sluice/router"
)

func TestValidateRules(t *testing.T) {
	t.Parallel()
	const (
		upV2    = `{"name": "v2", "dialect": "vllm", "endpoints": ["http://gpu2:8000/v1"]}`
		plain   = `{"name": "plain", "default": {"upstream": "v1"}}`
		canary  = `"name": "canary", "weight": 1000`
		control = `"name": "control", "weight": 9000`
		params  = `"params": {"temperature": 0.6}`
		unit    = `"from": ["header:x-user-id", "body:user"]`
		baseln  = `"baseline": "control",`
		second  = `{"key": "other", "model": "chat", "kind": "ab", "state": "draft", "baseline": "a",
			"variants": [{"name": "a", "weight": 10000, "upstream": "v1"}]%s}`
		endExps = `"fallback": "control"}
     ]}`
	)
	extra := func(members string) string { return baseln + members + "," }
	tests := []struct {
		name  string
		pairs []string
		path  string // "" = valid
		code  string
		says  string // part of the message
	}{
		{name: "base is valid"},
		{"upstream name", []string{`"name": "v2"`, `"name": "V 2"`}, "/upstreams/1/name", "name_invalid", "lower-case"},
		{"duplicate upstream", []string{`{"name": "v2", "dialect"`, `{"name": "v1", "dialect"`}, "/upstreams/1/name", "duplicate_name", "twice"},
		{"dialect", []string{`"dialect": "vllm", "endpoints": ["http://gpu2`, `"dialect": "vlm", "endpoints": ["http://gpu2`}, "/upstreams/1/dialect", "invalid_value", "sglang"},
		{"no endpoints", []string{`["http://gpu2:8000/v1"]`, `[]`}, "/upstreams/1/endpoints", "required", "at least one"},
		{"endpoint scheme", []string{`http://gpu2:8000/v1`, `ftp://gpu2/v1`}, "/upstreams/1/endpoints/0", "endpoint_invalid", "http"},
		{"endpoint twice", []string{`["http://gpu2:8000/v1"]`, `["http://gpu2:8000/v1","http://gpu2:8000/v1/"]`}, "/upstreams/1/endpoints/1", "duplicate_name", "twice"},
		{"endpoint with a password", []string{`http://gpu2:8000/v1`, `http://me:hunter2@gpu2:8000/v1`}, "/upstreams/1/endpoints/0", "secret_literal", "must not be written here"},
		{"endpoint by DNS is valid", []string{`http://gpu2:8000/v1`, `dns:http://vllm-headless:8000/v1`}, "", "", ""},
		{"credential by name is valid", []string{upV2, upV2[:len(upV2)-1] + `, "credential": "vllm_key"}`}, "", "", ""},
		{"literal key", []string{upV2, upV2[:len(upV2)-1] + `, "credential": "sk-abc123"}`}, "/upstreams/1/credential", "secret_literal", "must not be written here"},
		{"literal bearer", []string{upV2, upV2[:len(upV2)-1] + `, "credential": "Bearer abc"}`}, "/upstreams/1/credential", "secret_literal", "must not be written here"},
		{"literal with a colon", []string{upV2, upV2[:len(upV2)-1] + `, "credential": "user:pass"}`}, "/upstreams/1/credential", "secret_literal", "must not be written here"},
		{"literal that is random", []string{upV2, upV2[:len(upV2)-1] + `, "credential": "f81d4fae7dec11d0a76500a0c91e6bf6"}`}, "/upstreams/1/credential", "secret_literal", "must not be written here"},
		{"usage exact on vllm is valid", []string{upV2, upV2[:len(upV2)-1] + `, "usage": "exact"}`}, "", "", ""},
		{"usage exact on openai", []string{upV2, strings.Replace(upV2[:len(upV2)-1], "vllm", "openai", 1) + `, "usage": "exact"}`}, "/upstreams/1/usage", "usage_exact_unsupported", "sglang"},
		{"usage word", []string{upV2, upV2[:len(upV2)-1] + `, "usage": "precise"}`}, "/upstreams/1/usage", "invalid_value", "final, exact"},
		{"hedge quantile", []string{upV2, upV2[:len(upV2)-1] + `, "hedge": {"quantile": 1.5}}`}, "/upstreams/1/hedge/quantile", "out_of_range", "0.95"},
		{"hedge share", []string{upV2, upV2[:len(upV2)-1] + `, "hedge": {"quantile": 0.95, "max_share": 2}}`}, "/upstreams/1/hedge/max_share", "out_of_range", "0.5"},
		{"wake with a password", []string{upV2, upV2[:len(upV2)-1] + `, "cold_start": {"max_wait": "30s", "wake": "http://u:p@h/"}}`}, "/upstreams/1/cold_start/wake", "endpoint_invalid", "without user"},
		{"balance word", []string{upV2, upV2[:len(upV2)-1] + `, "balance": "random"}`}, "/upstreams/1/balance", "invalid_value", "round_robin"},
		{"negative timeout", []string{upV2, upV2[:len(upV2)-1] + `, "timeouts": {"first_byte": "-1s"}}`}, "/upstreams/1/timeouts/first_byte", "duration_negative", "0s"},
		{"negative limit", []string{upV2, upV2[:len(upV2)-1] + `, "limits": {"max_in_flight": -1}}`}, "/upstreams/1/limits/max_in_flight", "out_of_range", "0 to"},
		{"readiness path", []string{upV2, upV2[:len(upV2)-1] + `, "readiness": {"path": "health"}}`}, "/upstreams/1/readiness/path", "invalid_value", "'/'"},
		{"credential header", []string{upV2, upV2[:len(upV2)-1] + `, "headers": {"request": ["Authorization"]}}`}, "/upstreams/1/headers/request/0", "header_forbidden", "never passed on"},
		{"header of the gateway", []string{upV2, upV2[:len(upV2)-1] + `, "headers": {"request": ["X-Tag", "x-forwarded-for"]}}`}, "/upstreams/1/headers/request/1", "header_forbidden", "never passed on"},
		{"header of the scheduler", []string{upV2, upV2[:len(upV2)-1] + `, "headers": {"request": ["x-vllm-priority"]}}`}, "/upstreams/1/headers/request/0", "header_forbidden", "never passed on"},
		{"not a header", []string{upV2, upV2[:len(upV2)-1] + `, "headers": {"response": ["x y"]}}`}, "/upstreams/1/headers/response/0", "header_invalid", "not the name"},
		{"half of a key pair", []string{upV2, upV2[:len(upV2)-1] + `, "tls": {"cert_file": "a"}}`}, "/upstreams/1/tls", "invalid_value", "both or neither"},
		{"price decimals", []string{`"input": "0.20"`, `"input": "0.1234567"`}, "/upstreams/0/price/input", "price_invalid", "6 decimals"},
		{"negative price", []string{`"input": "0.20"`, `"input": "-1"`}, "/upstreams/0/price/input", "price_invalid", ""},
		{"price of a variant", []string{params, `"price": {"output": "x"}`}, "/experiments/0/variants/1/price/output", "price_invalid", ""},
		{"gpu price", []string{upV2, upV2[:len(upV2)-1] + `, "gpu": {"usd_per_gpu_hour": "cheap"}}`}, "/upstreams/1/gpu/usd_per_gpu_hour", "price_invalid", "decimal"},

		{"model name with a space", []string{`"name": "plain"`, `"name": "pl ain"`}, "/models/1/name", "name_invalid", "without space"},
		{"model name too long", []string{`"name": "plain"`, `"name": "` + strings.Repeat("x", 129) + `"`}, "/models/1/name", "name_invalid", "128"},
		{"duplicate model", []string{`"name": "plain"`, `"name": "chat"`}, "/models/1/name", "duplicate_name", "/models/0"},
		{"alias is a model", []string{`"gpt-4o"`, `"plain"`}, "/models/0/aliases/0", "duplicate_name", "/models/1"},
		{"alias twice", []string{plain, plain[:len(plain)-1] + `, "aliases": ["gpt-4*"]}`}, "/models/1/aliases/0", "duplicate_name", "/models/0"},
		{"star in the middle", []string{`"gpt-4*"`, `"gpt-*-x"`}, "/models/0/aliases/1", "alias_invalid", "end"},
		{"default upstream", []string{plain, strings.Replace(plain, "v1", "v3", 1)}, "/models/1/default/upstream", "upstream_unknown", "did you mean"},
		{"no default upstream", []string{plain, strings.Replace(plain, `{"upstream": "v1"}`, `{}`, 1)}, "/models/1/default/upstream", "required", "name the upstream"},

		{"experiment key", []string{`"key": "chat-v2"`, `"key": "-chat"`}, "/experiments/0/key", "name_invalid", "lower-case"},
		{"experiment key too long", []string{`"key": "chat-v2"`, `"key": "` + strings.Repeat("a", 64) + `"`}, "/experiments/0/key", "name_invalid", "63"},
		{"experiment model", []string{`"model": "chat"`, `"model": "chatt"`}, "/experiments/0/model", "model_unknown", `"chat"`},
		{"kind", []string{`"kind": "canary"`, `"kind": "abn"`}, "/experiments/0/kind", "invalid_value", "canary, ab"},
		{"state", []string{`"state": "running"`, `"state": "on"`}, "/experiments/0/state", "invalid_value", "draft"},
		{"stickiness word", []string{baseln, extra(`"stickiness": "pin"`)}, "/experiments/0/stickiness", "invalid_value", "bucket"},
		{"stickiness none of a canary is valid", []string{baseln, extra(`"stickiness": "none"`)}, "", "", ""},
		{"switch", []string{baseln, extra(`"switch": "session"`)}, "/experiments/0/switch", "invalid_value", "conversation"},
		{"switch after the conversation", []string{baseln, extra(`"switch": "conversation"`)}, "", "", ""},
		{"switch of draws", []string{baseln, extra(`"switch": "conversation", "stickiness": "none"`)}, "/experiments/0/switch", "switch_without_units", "from: [conversation]"},
		{"merge without pins", []string{baseln, extra(`"merge": true`)}, "/experiments/0/merge", "needs_pins", "stickiness: user"},
		{"merge", []string{baseln, extra(`"merge": true, "stickiness": "user"`)}, "", "", ""},
		{"block_below without pins", []string{baseln, extra(`"block_below": 1`)}, "/experiments/0/block_below", "needs_pins", "stickiness: user"},
		{"block_below to come", []string{baseln, extra(`"block_below": 2, "stickiness": "user"`)}, "/experiments/0/block_below", "out_of_range", "generation"},
		{"block_below negative", []string{baseln, extra(`"block_below": -1, "stickiness": "user"`)}, "/experiments/0/block_below", "out_of_range", "generation"},
		{"holdout without a name", []string{baseln, extra(`"holdout": {"name": "", "share": 100}`)}, "/experiments/0/holdout/name", "name_invalid", "lower-case"},
		{"holdout of everybody", []string{baseln, extra(`"holdout": {"name": "q4", "share": 10000}`)}, "/experiments/0/holdout/share", "out_of_range", "9999"},
		{"holdout of nobody", []string{baseln, extra(`"holdout": {"name": "q4", "share": 0}`)}, "/experiments/0/holdout/share", "out_of_range", "1 to"},
		{"holdout", []string{baseln, extra(`"holdout": {"name": "q4", "share": 500}`)}, "", "", ""},
		{"stickiness none of an A/B test", []string{`"kind": "canary"`, `"kind": "ab"`, baseln, extra(`"stickiness": "none"`)}, "/experiments/0/stickiness", "stickiness_none", "canary only"},
		{"hash", []string{baseln, extra(`"hash": "crc32"`)}, "/experiments/0/hash", "invalid_value", "growthbook2"},
		{"seed", []string{`"seed-1"`, `"Seed:1"`}, "/experiments/0/seed", "seed_invalid", "lower-case"},
		{"imported seed is valid", []string{`"seed-1"`, `"Seed:1"`, baseln, extra(`"hash": "growthbook2"`)}, "", "", ""},
		{"generation", []string{baseln, extra(`"generation": 70000`)}, "/experiments/0/generation", "out_of_range", "65535"},
		{"baseline missing", []string{baseln, ``}, "/experiments/0/baseline", "required", "rollback"},
		{"baseline unknown", []string{baseln, `"baseline": "old",`}, "/experiments/0/baseline", "variant_unknown", "old"},
		{"baseline killed", []string{control, control + `, "state": "killed"`}, "/experiments/0/variants/0/state", "baseline_killed", "roll back"},
		{"winner missing", []string{`"state": "running"`, `"state": "promoted"`}, "/experiments/0/winner", "required", "winner"},
		{"winner unknown", []string{baseln, extra(`"winner": "x"`)}, "/experiments/0/winner", "variant_unknown", "x"},
		{"weights 9900", []string{canary, `"name": "canary", "weight": 900`}, "/experiments/0/variants", "weights_sum", "weights sum to 9900, want 10000"},
		{"weights 12000", []string{canary, `"name": "canary", "weight": 3000`}, "/experiments/0/variants", "weights_sum", "weights sum to 12000, want 10000"},
		{"all zero", []string{canary, `"name": "canary", "weight": 0`, control, `"name": "control", "weight": 0`}, "/experiments/0/variants", "weights_sum", "sum to 0"},
		{"negative weight", []string{canary, `"name": "canary", "weight": -1`, control, `"name": "control", "weight": 10001`}, "/experiments/0/variants/1/weight", "weight_negative", "-1"},
		{"weight over 10000", []string{control, `"name": "control", "weight": 10001`}, "/experiments/0/variants/0/weight", "weight_range", "10000"},
		{"weight 0 is valid", []string{canary, `"name": "canary", "weight": 0`, control, `"name": "control", "weight": 10000`}, "", "", ""},
		{"variant name", []string{canary, `"name": "Canary", "weight": 1000`}, "/experiments/0/variants/1/name", "name_invalid", "lower-case"},
		{"variant twice", []string{canary, `"name": "control", "weight": 1000`}, "/experiments/0/variants/1/name", "duplicate_name", "unique"},
		{"variant upstream", []string{`"upstream": "v2", "model": "Qwen3-8B-awq"`, `"upstream": "gone", "model": "Qwen3-8B-awq"`}, "/experiments/0/variants/1/upstream", "upstream_unknown", "create it first"},
		{"variant state", []string{canary, canary + `, "state": "dead"`}, "/experiments/0/variants/1/state", "invalid_value", "killed"},
		{"version is a header", []string{`"8b-awq-3"`, `"a\r\nx: y"`}, "/experiments/0/variants/1/version", "invalid_value", "printable"},
		{"fallback to itself", []string{`"fallback": "control"`, `"fallback": "canary"`}, "/experiments/0/variants/1/fallback", "fallback_self", "itself"},
		{"fallback unknown", []string{`"fallback": "control"`, `"fallback": "x"`}, "/experiments/0/variants/1/fallback", "variant_unknown", "x"},
		{"fallback cycle", []string{control, control + `, "fallback": "canary"`}, "/experiments/0/variants/0/fallback", "fallback_cycle", "cycle"},
		{"params model", []string{params, `"params": {"model": "x"}`}, "/experiments/0/variants/1/params/model", "params_forbidden", "own model"},
		{"params stream", []string{params, `"params": {"stream": true}`}, "/experiments/0/variants/1/params/stream", "params_forbidden", ""},
		{"params_default stream_options", []string{params, `"params_default": {"stream_options": {}}`}, "/experiments/0/variants/1/params_default/stream_options", "params_forbidden", ""},
		{"params_remove messages", []string{params, `"params_remove": ["messages"]`}, "/experiments/0/variants/1/params_remove/0", "params_forbidden", "prompt"},
		{"params set and removed", []string{params, params + `, "params_remove": ["temperature"]`}, "/experiments/0/variants/1/params_remove/0", "params_conflict", "keep one"},

		{"unit ip", []string{unit, `"from": ["ip"]`}, "/experiments/0/unit/from/0", "unit_source_invalid", "NAT"},
		{"unit forwarded header", []string{unit, `"from": ["header:X-Forwarded-For"]`}, "/experiments/0/unit/from/0", "unit_source_invalid", "NAT"},
		{"unit credential header", []string{unit, `"from": ["header:authorization"]`}, "/experiments/0/unit/from/0", "unit_source_invalid", "no identity"},
		{"unit word", []string{unit, `"from": ["email"]`}, "/experiments/0/unit/from/0", "unit_source_invalid", "header:NAME"},
		{"unit empty", []string{unit, `"from": []`}, "/experiments/0/unit/from", "required", "default chain"},
		{"unit twice", []string{unit, `"from": ["user", "body:user"]`}, "/experiments/0/unit/from/1", "duplicate_name", "twice"},
		{"all sources are valid", []string{unit, `"from": ["key_user","header:x-a","cookie:sid","safety_identifier","user","metadata.user_id","session","conversation","key"]`}, "", "", ""},
		{"slice empty", []string{baseln, extra(`"slice": [5000, 5000]`)}, "/experiments/0/slice", "slice_invalid", "from < to"},
		{"slice outside", []string{baseln, extra(`"slice": [0, 10001]`)}, "/experiments/0/slice", "slice_invalid", "10000"},
		{"two experiments on one model", []string{endExps, endExps + "," + fmt.Sprintf(second, "")}, "/experiments/1/slice", "slice_overlap", "disjoint"},
		{"two with slices that touch are valid", []string{baseln, extra(`"slice": [0, 5000]`), endExps, endExps + "," + fmt.Sprintf(second, `, "slice": [5000, 10000]`)}, "", "", ""},
		{"an archived one owns no slice", []string{`"state": "running"`, `"state": "archived"`, endExps, endExps + "," + fmt.Sprintf(second, "")}, "", "", ""},
		{"experiment key twice", []string{endExps, endExps + "," + strings.Replace(fmt.Sprintf(second, ""), "other", "chat-v2", 1)}, "/experiments/1/key", "duplicate_name", "unique"},
		{"targeting attr", []string{baseln, extra(`"targeting": [{"attr": "plan", "op": "in", "values": ["pro"]}]`)}, "/experiments/0/targeting/0/attr", "attr_invalid", "tag:NAME"},
		{"targeting by a credential", []string{baseln, extra(`"targeting": [{"attr": "header:Cookie", "op": "in", "values": ["x"]}]`)}, "/experiments/0/targeting/0/attr", "attr_forbidden", "nobody"},
		{"targeting op", []string{baseln, extra(`"targeting": [{"attr": "tenant", "op": "regex", "values": ["x"]}]`)}, "/experiments/0/targeting/0/op", "invalid_value", "semver_gte"},
		{"targeting without values", []string{baseln, extra(`"targeting": [{"attr": "tenant", "op": "in", "values": []}]`)}, "/experiments/0/targeting/0/values", "required", "at least one"},
		{"targeting percent", []string{baseln, extra(`"targeting": [{"attr": "unit", "op": "percent", "values": ["101"]}]`)}, "/experiments/0/targeting/0", "rule_invalid", "percentage"},
		{"targeting version", []string{baseln, extra(`"targeting": [{"attr": "header:x-app", "op": "semver_gte", "values": ["new"]}]`)}, "/experiments/0/targeting/0", "rule_invalid", "version"},
		{"fixed without rules", []string{baseln, extra(`"fixed": [{"rules": [], "variant": "canary"}]`)}, "/experiments/0/fixed/0/rules", "required", "everybody"},
		{"fixed variant", []string{baseln, extra(`"fixed": [{"rules": [{"attr": "tenant", "op": "in", "values": ["a"]}], "variant": "x"}]`)}, "/experiments/0/fixed/0/variant", "variant_unknown", "x"},
		{"override header", []string{baseln, extra(`"override_headers": ["authorization"]`)}, "/experiments/0/override_headers/0", "header_forbidden", "x-llm-variant"},
		{"allocation", []string{baseln, extra(`"allocation": {"revision": 1, "runs": [[0, 10, 0, 0, 1]]}`)}, "/experiments/0/allocation", "allocation_invalid", "leave allocation out"},
		{"ramp typo", []string{baseln, extra(`"ramp": {"stepz": [100]}`)}, "/experiments/0/ramp/stepz", "unknown_member", "steps"},
		{"ramp shape", []string{baseln, extra(`"ramp": [100]`)}, "/experiments/0/ramp", "wrong_type", "object"},
		{"ramp of the design is valid", []string{baseln, extra(`"ramp": {"steps": [100, 500], "min_duration": "10m", "max_duration": "2h", "min_units": 50}`)}, "", "", ""},
		{"guardrails shape", []string{baseln, extra(`"guardrails": {"metric": "error"}`)}, "/experiments/0/guardrails", "wrong_type", "list"},
		{"guardrail typo", []string{baseln, extra(`"guardrails": [{"metrik": "error"}]`)}, "/experiments/0/guardrails/0/metrik", "unknown_member", "metric"},
		{"metrics by name are valid", []string{baseln, extra(`"metrics": {"thumbs": {"type": "binary", "direction": "up"}}`)}, "", "", ""},
		{"shadow typo", []string{baseln, extra(`"shadow": {"rate": 1}`)}, "/experiments/0/shadow/rate", "unknown_member", "percent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ps := router.Validate(parse(t, with(t, tt.pairs...)), router.ValidateOptions{})
			if tt.path == "" {
				if len(ps) > 0 {
					t.Fatalf("got problems:\n%v", ps)
				}
				return
			}
			for _, p := range ps {
				if p.Path == tt.path && p.Code == tt.code {
					if !strings.Contains(p.Message, tt.says) {
						t.Errorf("message %q does not say %q", p.Message, tt.says)
					}
					return
				}
			}
			t.Fatalf("want %s at %s, got:\n%v (%+v)", tt.code, tt.path, ps, ps)
		})
	}
}

func TestValidateFindsAllAtOnce(t *testing.T) {
	t.Parallel()
	d := parse(t, with(t, `"name": "v2"`, `"name": "V2"`, `"kind": "canary"`, `"kind": "x"`, `"weight": 9000`, `"weight": 1`))
	ps := router.Validate(d, router.ValidateOptions{})
	for _, code := range []string{"name_invalid", "invalid_value", "weights_sum", "upstream_unknown"} {
		found := false
		for _, p := range ps {
			found = found || p.Code == code
		}
		if !found {
			t.Errorf("no %s among:\n%v", code, ps)
		}
	}
}

func TestValidateSizes(t *testing.T) {
	t.Parallel()
	many := doc(t)
	for i := range router.MaxObjects + 1 {
		many.Models = append(many.Models, router.Model{Name: fmt.Sprint("m", i), Default: router.Route{Upstream: "v1"}})
	}
	variants := doc(t)
	for i := range router.MaxVariants {
		variants.Experiments[0].Variants = append(variants.Experiments[0].Variants, router.Variant{Name: fmt.Sprint("x", i), Upstream: "v1"})
	}
	large := doc(t)
	for i := range 10 {
		large.Experiments[0].Variants = append(large.Experiments[0].Variants, router.Variant{
			Name: fmt.Sprint("x", i), Upstream: "v1", Prompt: &router.Prompt{SystemPrepend: strings.Repeat("x", 500_000)}})
	}
	badRaw := doc(t)
	badRaw.Experiments[0].Variants[1].Params["top_p"] = []byte("{")
	for name, tt := range map[string]struct {
		d    *router.Document
		code string
	}{
		"1001 models":      {many, "too_many"},
		"252 variants":     {variants, "variants_count"},
		"5 MB of prompts":  {large, "document_too_large"},
		"params not JSON":  {badRaw, "params_invalid"},
		"no document":      {nil, "required"},
		"revision too big": {&router.Document{Revision: 1 << 53}, "out_of_range"},
		"bad tombstone":    {&router.Document{Tombstones: []string{"v1"}}, "invalid_value"},
	} {
		ps := router.Validate(tt.d, router.ValidateOptions{})
		if len(ps) == 0 || ps[0].Code != tt.code {
			t.Errorf("%s: got %.300v, want %s", name, ps, tt.code)
		}
	}
}

func TestValidateSecretsAgainstSettings(t *testing.T) {
	t.Parallel()
	d := doc(t)
	d.Upstreams[0].Credential = "vllm"
	known := func(name string) bool { return name == "vllm" || name == "sk-prod" }
	if ps := router.Validate(d, router.ValidateOptions{Secrets: known}); len(ps) > 0 {
		t.Errorf("a known name: %v", ps)
	}
	d.Upstreams[0].Credential = "sk-prod" // a strange name, but it is one
	if ps := router.Validate(d, router.ValidateOptions{Secrets: known}); len(ps) > 0 {
		t.Errorf("a known name like a key: %v", ps)
	}
	d.Upstreams[0].Credential = "other"
	ps := router.Validate(d, router.ValidateOptions{Secrets: known})
	if len(ps) != 1 || ps[0].Code != "secret_unknown" {
		t.Errorf("an unknown name: %v", ps)
	}
	d.Upstreams[0].Credential = "sk-CANARY-1234567890"
	ps = router.Validate(d, router.ValidateOptions{Secrets: known})
	if len(ps) != 1 || ps[0].Code != "secret_literal" || strings.Contains(ps.Error(), "CANARY") {
		t.Errorf("a literal secret must be refused and not repeated: %v", ps)
	}
}

func TestParseDocumentIsStrict(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in, path, code, says string
	}{
		{"empty", ``, "", "invalid_json", "empty"},
		{"not JSON", "{\n\"upstreams\": [,]}", "", "invalid_json", "line 2"},
		{"trailing data", `{} {}`, "", "invalid_json", "not valid JSON"},
		{"not an object", `[]`, "", "wrong_type", "an object"},
		{"unknown member", with(t, `"dialect"`, `"dialekt"`), "/upstreams/0/dialekt", "unknown_member", `did you mean "dialect"`},
		{"unknown member deep", with(t, `"system_prepend"`, `"system"`), "/experiments/0/variants/1/prompt/system", "unknown_member", "remove it"},
		{"upper case is unknown", with(t, `"kind"`, `"Kind"`), "/experiments/0/Kind", "unknown_member", `"kind"`},
		{"twice", with(t, `"kind": "canary"`, `"kind": "canary", "kind": "ab"`), "/experiments/0/kind", "duplicate_member", "twice"},
		{"weight missing", with(t, `"weight": 1000, `, ``), "/experiments/0/variants/1/weight", "required", "explicit weight"},
		{"weight null", with(t, `"weight": 1000`, `"weight": null`), "/experiments/0/variants/1/weight", "required", "explicit weight"},
		{"weight a string", with(t, `"weight": 1000`, `"weight": "1000"`), "/experiments/0/variants/1/weight", "wrong_type", "a whole number, got a string"},
		{"weight a fraction", with(t, `"weight": 1000`, `"weight": 33.3`), "/experiments/0/variants/1/weight", "wrong_type", "got 33.3"},
		{"weight huge", with(t, `"weight": 1000`, `"weight": 1e99`), "/experiments/0/variants/1/weight", "wrong_type", "whole number"},
		{"endpoints a string", with(t, `["http://gpu2:8000/v1"]`, `"http://gpu2:8000/v1"`), "/upstreams/1/endpoints", "wrong_type", "a list"},
		{"null in a list", with(t, `["http://gpu2:8000/v1"]`, `[null]`), "/upstreams/1/endpoints/0", "wrong_type", "null"},
		{"duration a number", with(t, `"price"`, `"timeouts": {"connect": 5}, "price"`), "/upstreams/0/timeouts/connect", "wrong_type", `"30s"`},
		{"duration without unit", with(t, `"price"`, `"timeouts": {"connect": "5"}, "price"`), "/upstreams/0/timeouts/connect", "wrong_type", "unit"},
		{"slice of three", with(t, `"baseline"`, `"slice": [0, 1, 2], "baseline"`), "/experiments/0/slice", "wrong_type", "exactly 2"},
		{"time", with(t, `"baseline"`, `"created_at": "today", "baseline"`), "/experiments/0/created_at", "wrong_type", "2026"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := router.ParseDocument([]byte(tt.in))
			var ps router.Problems
			if !errors.As(err, &ps) {
				t.Fatalf("got %v", err)
			}
			p := ps[0]
			if p.Path != tt.path || p.Code != tt.code || !strings.Contains(p.Message, tt.says) {
				t.Errorf("got %+v, want %s at %q saying %q", p, tt.code, tt.path, tt.says)
			}
		})
	}
}

func TestParseDocumentDoesNotRepeatSecrets(t *testing.T) {
	t.Parallel()
	_, err := router.ParseDocument([]byte(with(t, `"dialect": "vllm"`, `"warmup": "sk-CANARY", "dialect": "vllm"`)))
	if err == nil || strings.Contains(err.Error(), "CANARY") {
		t.Errorf("got %v", err)
	}
}

func TestDocumentRoundTrip(t *testing.T) {
	t.Parallel()
	d := doc(t, `"price": {"input"`, `"timeouts": {"connect": "2s", "first_byte": "1h30m0s", "total": "0s"}, "deny_fields": [], "stream": {"keep_alive": "500ms"}, "price": {"input"`)
	first := asJSON(t, d)
	again := asJSON(t, parse(t, first))
	if first != again {
		t.Errorf("changed:\n%s\n%s", first, again)
	}
	for _, want := range []string{`"first_byte":"1h30m"`, `"total":"0s"`, `"deny_fields":[]`, `"keep_alive":"500ms"`} {
		if !strings.Contains(first, want) {
			t.Errorf("no %s in %s", want, first)
		}
	}
}

func TestCloneIsDeep(t *testing.T) {
	t.Parallel()
	d := doc(t, `"price": {"input"`, `"timeouts": {"connect": "2s"}, "deny_fields": ["a"], "headers": {"request": ["x-a"]}, "price": {"input"`,
		`"baseline": "control"`, `"baseline": "control", "slice": [0, 10000], "targeting": [{"attr": "tenant", "op": "in", "values": ["a"]}], "ramp": {"steps": [100], "max_weight": 100}`)
	before := asJSON(t, d)
	s := &router.Snapshot{Document: *d, Keys: []router.Key{{ID: "k", Tags: map[string]string{"a": "b"}, Scopes: []string{"identity"}}}}
	beforeS := asJSON(t, s)
	c := s.Clone()
	u, e := &c.Document.Upstreams[0], &c.Document.Experiments[0]
	*u.Timeouts.Connect = 1
	(*u.DenyFields)[0] = "z"
	u.Headers.Request[0], u.Endpoints[0], *u.Price.Input = "z", "z", "z"
	c.Document.Models[0].Aliases[0] = "z"
	e.Unit.From[0], e.Targeting[0].Values[0], e.Slice[0], e.Ramp[0] = "z", "z", 9, 'z'
	e.Variants[1].Params["temperature"][0] = '9'
	e.Variants[1].Prompt.SystemPrepend = "z"
	e.Allocation.Runs[0][2] = 9
	c.Keys[0].Tags["a"], c.Keys[0].Scopes[0] = "z", "z"
	if got := asJSON(t, s); got != beforeS {
		t.Errorf("the snapshot changed:\n%s\n%s", beforeS, got)
	}
	if got := asJSON(t, d); got != before {
		t.Errorf("the document changed:\n%s\n%s", before, got)
	}
}
