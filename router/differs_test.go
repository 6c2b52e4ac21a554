package router_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/router"
)

func TestDiffers(t *testing.T) {
	t.Parallel()
	params := func(s string) map[string]json.RawMessage {
		return map[string]json.RawMessage{"temperature": json.RawMessage(s)}
	}
	tests := []struct {
		name     string
		variants []router.Variant
		want     []string
		warns    string // part of the only warning; "" none
	}{
		{"one variant", []router.Variant{{Upstream: "v1"}}, []string{}, ""},
		{"the same", []router.Variant{{Upstream: "v1"}, {Upstream: "v1", Model: "chat"}}, []string{}, "A/A"},
		{"upstream", []router.Variant{{Upstream: "v1"}, {Upstream: "v2"}}, []string{"upstream"}, ""},
		{"model", []router.Variant{{Upstream: "v1", Model: "a"}, {Upstream: "v1", Model: "b"}}, []string{"model"}, ""},
		{"spelling of a number", []router.Variant{{Params: params("1")}, {Params: params("1.0")}}, []string{}, "A/A"},
		{"a default is not a force", []router.Variant{{Params: params("1")}, {ParamsDefault: params("1")}}, []string{"params"}, ""},
		{"removed in another order", []router.Variant{{ParamsRemove: []string{"a", "b"}}, {ParamsRemove: []string{"b", "a"}}}, []string{}, "A/A"},
		{"an empty prompt is none", []router.Variant{{}, {Prompt: &router.Prompt{}}}, []string{}, "A/A"},
		{"prepended is not appended", []router.Variant{{Prompt: &router.Prompt{SystemPrepend: "x"}}, {Prompt: &router.Prompt{SystemAppend: "x"}}}, []string{"prompt"}, ""},
		{"third one too", []router.Variant{{Upstream: "v1"}, {Upstream: "v1"}, {Upstream: "v2", Model: "b", Prompt: &router.Prompt{SystemAppend: "x"}}},
			[]string{"model", "prompt", "upstream"}, "model, prompt and upstream"},
	}
	for _, tt := range tests {
		got, warnings := router.Differs(&router.Experiment{Model: "chat", Variants: tt.variants})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		if all := strings.Join(warnings, "\n"); warnings == nil || (tt.warns == "") != (all == "") || !strings.Contains(all, tt.warns) {
			t.Errorf("%s: warnings %q, want one with %q", tt.name, warnings, tt.warns)
		}
	}
}
