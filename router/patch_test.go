package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/router"
)

func TestCreateExperiment(t *testing.T) {
	t.Parallel()
	body := `{"key": "plain-b", "model": "plain", "kind": "ab", "baseline": "a", "variants": [
		{"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 5000, "upstream": "v2"}]}`
	e, err := router.ParseExperiment([]byte(body))
	must(t, err)
	d := doc(t)
	d.Tombstones = []string{"experiment/plain-b"}
	must(t, router.CreateExperiment(d, 2, t0, *e))
	got := d.Experiment("plain-b")
	if got.State != "draft" || got.Stickiness != "user" || got.Seed == "" || got.Allocation == nil || len(d.Tombstones) != 0 {
		t.Errorf("got %+v, tombstones %v", got, d.Tombstones)
	}
	if err := router.CreateExperiment(d, 3, t0, *e); codeOf(err) != router.CodeExists {
		t.Errorf("twice: %v", err)
	}
	for name, tt := range map[string]struct {
		members, code string
	}{
		"state":      {`"state": "promoted"`, router.CodeInvalidState},
		"generation": {`"generation": 3`, router.CodeRuntimeField},
		"winner":     {`"winner": "a"`, router.CodeRuntimeField},
		"bad kind":   {`"kind": "x"`, "invalid_value"},
	} {
		s := strings.Replace(body, `"kind": "ab"`, tt.members, 1)
		e, err := router.ParseExperiment([]byte(s))
		must(t, err)
		if err := router.CreateExperiment(doc(t), 2, t0, *e); codeOf(err) != tt.code {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Paths are those of the object that was sent.
	bad, err := router.ParseExperiment([]byte(strings.Replace(body, `"upstream": "v2"`, `"upstream": "v9"`, 1)))
	must(t, err)
	var ps router.Problems
	if err := router.CreateExperiment(doc(t), 2, t0, *bad); !errors.As(err, &ps) || ps[0].Path != "/variants/1/upstream" {
		t.Errorf("got %+v", err)
	}
}

func TestPatchExperiment(t *testing.T) {
	t.Parallel()
	running := []struct {
		name, patch, code, says string
	}{
		{"targeting", `{"targeting":[{"attr":"tenant","op":"in","values":["a"]}]}`, "", ""},
		{"nothing", `{}`, "", ""},
		{"the default hash by name", `{"hash":"sha256"}`, "", ""},
		{"another hash while running", `{"hash":"growthbook2"}`, router.CodeInvalidState, "fixed while"},
		{"guardrails and back", `{"guardrails":[{"metric":"error"}],"ramp":null}`, "", ""},
		{"present state", `{"state":"running","key":"chat-v2","revision":1,"generation":1}`, "", ""},
		{"state", `{"state":"paused"}`, router.CodeRuntimeField, ":pause"},
		{"seed", `{"seed":"other"}`, router.CodeRuntimeField, ":reshuffle"},
		{"generation", `{"generation":2}`, router.CodeRuntimeField, ":reset-pins"},
		{"key", `{"key":"other"}`, router.CodeRuntimeField, "create"},
		{"revision", `{"revision":9}`, router.CodeRuntimeField, "If-Match"},
		{"allocation", `{"allocation":null,"seed":null}`, router.CodeRuntimeField, "weights"},
		{"winner", `{"winner":"canary"}`, router.CodeRuntimeField, ":promote"},
		{"unknown", `{"targetting":[]}`, "unknown_member", "targeting"},
		{"twice", `{"slice":null,"slice":[0,1]}`, "duplicate_member", "twice"},
		{"not an object", `[]`, "wrong_type", "object"},
		{"not JSON", `{`, "invalid_json", ""},
		{"unit while running", `{"unit":{"from":["session"]}}`, router.CodeInvalidState, "fixed while"},
		{"model while running", `{"model":"plain"}`, router.CodeInvalidState, "fixed while"},
		{"baseline while running", `{"baseline":"canary"}`, router.CodeInvalidState, "fixed while"},
		{"stickiness while running", `{"stickiness":"user"}`, router.CodeInvalidState, "fixed while"},
		{"smaller slice while running", `{"slice":[0,5000]}`, router.CodeInvalidState, "fixed while"},
		{"same unit written otherwise", `{"unit":{"from":["header:X-User-ID","user"]}}`, "", ""},
		{"variant gone", `{"variants":[{"name":"control","weight":10000,"upstream":"v1"}]}`, router.CodeInvalidState, "cannot be removed"},
		{"variant killed", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"canary","weight":1000,"upstream":"v2","state":"killed"}]}`, router.CodeRuntimeField, ":kill"},
		{"variant without weight", `{"variants":[{"name":"control","weight":10000,"upstream":"v1"},{"name":"canary","upstream":"v2"}]}`, "required", "explicit"},
		{"weights 9900", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"canary","weight":900,"upstream":"v2"}]}`, "weights_sum", "want 10000"},
		{"variant twice", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"control","weight":1000,"upstream":"v2"},{"name":"canary","weight":1000,"upstream":"v2"}]}`, "duplicate_name", "twice"},
	}
	for _, tt := range running {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := doc(t)
			before := asJSON(t, d)
			err := router.PatchExperiment(d, 2, t0, "chat-v2", []byte(tt.patch))
			if codeOf(err) != tt.code {
				t.Fatalf("got %v, want %q", err, tt.code)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.says) || asJSON(t, d) != before) {
				t.Errorf("got %v, want it to say %q and nothing changed", err, tt.says)
			}
		})
	}
}

func TestPatchMovesWeightsLikeSetWeights(t *testing.T) {
	t.Parallel()
	a, b := doc(t), doc(t)
	must(t, router.SetWeights(a, 2, t0, "chat-v2", map[string]int{"control": 7000, "canary": 3000}))
	// The order of a patch is not taken over: pins and the table go by number.
	must(t, router.PatchExperiment(b, 2, t0, "chat-v2", []byte(`{"variants":[
		{"name":"canary","weight":3000,"upstream":"v2","model":"Qwen3-8B-awq","version":"8b-awq-3","params":{"temperature":0.6},"prompt":{"system_prepend":"Be brief."},"fallback":"control"},
		{"name":"control","weight":7000,"upstream":"v1","model":"Qwen3-8B","version":"8b-1"}]}`)))
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

func TestAddAndRemoveVariants(t *testing.T) {
	t.Parallel()
	d := doc(t)
	first := owners(t, &d.Experiments[0])
	must(t, router.PatchExperiment(d, 2, t0, "chat-v2", []byte(`{"variants":[
		{"name":"extra","weight":500,"upstream":"v2"},
		{"name":"control","weight":8500,"upstream":"v1"},
		{"name":"canary","weight":1000,"upstream":"v2"}]}`)))
	e := &d.Experiments[0]
	if names := fmt.Sprint(e.Variants[0].Name, e.Variants[1].Name, e.Variants[2].Name); names != "controlcanaryextra" {
		t.Fatalf("numbers are kept: %s", names)
	}
	if n := moved(first, owners(t, e)); n != 500 {
		t.Errorf("moved %d, want 500", n)
	}
	must(t, router.Rollback(d, 3, t0, "chat-v2"))
	must(t, router.PatchExperiment(d, 4, t0, "chat-v2", []byte(`{"variants":[
		{"name":"control","weight":9500,"upstream":"v1"},
		{"name":"extra","weight":500,"upstream":"v2"}]}`)))
	e = &d.Experiments[0]
	own := owners(t, e)
	counts := [2]int{}
	for _, o := range own {
		counts[o]++
	}
	if counts != [2]int{9500, 500} || len(e.Variants) != 2 {
		t.Errorf("got %v with %d variants", counts, len(e.Variants))
	}
	must(t, router.Start(d, 5, t0, "chat-v2"))
	compile(t, d)
}

func TestUpstreamsAndModels(t *testing.T) {
	t.Parallel()
	d := doc(t)
	u, err := router.ParseUpstream([]byte(`{"name": "v3", "endpoints": ["http://gpu3:8000/v1"]}`))
	must(t, err)
	must(t, router.CreateUpstream(d, 2, t0, *u))
	m, err := router.ParseModel([]byte(`{"name": "extra", "default": {"upstream": "v3"}}`))
	must(t, err)
	must(t, router.CreateModel(d, 3, t0, *m))
	must(t, router.PatchModel(d, 4, t0, "extra", []byte(`{"aliases":["ex"],"name":"extra","updated_revision":3}`)))
	must(t, router.PatchUpstream(d, 5, t0, "v3", []byte(`{"timeouts":{"connect":"1s"}}`)))
	for name, tt := range map[string]struct {
		err        error
		code, says string
	}{
		"create twice":         {router.CreateUpstream(d, 6, t0, *u), router.CodeExists, "exists"},
		"create model twice":   {router.CreateModel(d, 6, t0, *m), router.CodeExists, "exists"},
		"delete used":          {router.DeleteUpstream(d, 6, t0, "v1"), router.CodeInUse, "model/chat, model/plain, experiment/chat-v2 (variant control)"},
		"delete used model":    {router.DeleteModel(d, 6, t0, "chat"), router.CodeInUse, "experiment/chat-v2"},
		"delete by a model":    {router.DeleteUpstream(d, 6, t0, "v3"), router.CodeInUse, "model/extra"},
		"rename":               {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"name":"v4"}`)), router.CodeRuntimeField, "name"},
		"patch unknown":        {router.PatchUpstream(d, 6, t0, "zz", []byte(`{}`)), router.CodeNotFound, "zz"},
		"patch unknown model":  {router.PatchModel(d, 6, t0, "zz", []byte(`{}`)), router.CodeNotFound, "zz"},
		"delete unknown":       {router.DeleteUpstream(d, 6, t0, "zz"), router.CodeNotFound, "zz"},
		"delete unknown model": {router.DeleteModel(d, 6, t0, "zz"), router.CodeNotFound, "zz"},
		"patch member":         {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"endpoint":[]}`)), "unknown_member", "endpoints"},
		"patch to nothing":     {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"endpoints":null}`)), "required", "endpoint"},
	} {
		if codeOf(tt.err) != tt.code || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: got %v", name, tt.err)
		}
	}
	must(t, router.DeleteModel(d, 7, t0, "extra"))
	must(t, router.DeleteUpstream(d, 8, t0, "v3"))
	if diff := cmp.Diff([]string{"model/extra", "upstream/v3"}, d.Tombstones); diff != "" {
		t.Error(diff)
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.Kill(d, 2, t0, "chat-v2", "canary"))
	raw := asJSON(t, router.View(&d.Experiments[0], 0))
	for _, want := range []string{`"revision":2`, `"state":"killed"`, `"state":"live"`, `"weight":1000`, `"targeting":[]`, `"slice":null`, `"ramp":null`, `"stickiness":"bucket"`} {
		if !strings.Contains(raw, want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
	if strings.Contains(raw, "allocation") {
		t.Error("the table is not shown")
	}
	// What is read may be sent back.
	must(t, router.PatchExperiment(d, 3, t0, "chat-v2", []byte(raw)))
	if got := d.Experiments[0].UpdatedRevision; got != 2 {
		t.Errorf("sending a view back changed the experiment (revision %d)", got)
	}
}
