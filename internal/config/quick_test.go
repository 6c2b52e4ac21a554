package config_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sluice/internal/config"
)

func TestQuickDocument(t *testing.T) {
	t.Parallel()
	two := []string{"v1=http://127.0.0.1:1/v1", "v2=http://127.0.0.1:2/v1"}
	doc, err := config.QuickDocument(config.Quick{Upstreams: two, Split: "v2=12.34,v1=87.66", Model: "chat=Qwen"}, "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"revision":0,"upstreams":[{"name":"v1","endpoints":["http://127.0.0.1:1/v1"]},{"name":"v2","endpoints":["http://127.0.0.1:2/v1"]}],` +
		`"models":[{"name":"chat","default":{"upstream":"v2","model":"Qwen"}}],` +
		`"experiments":[{"key":"split","model":"chat","kind":"canary","state":"running","baseline":"v2","stickiness":"bucket","variants":[` +
		`{"name":"v2","weight":1234,"upstream":"v2","model":"Qwen"},{"name":"v1","weight":8766,"upstream":"v1","model":"Qwen"}]}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	doc, err = config.QuickDocument(config.Quick{Upstreams: two[:1]}, "found")
	if err != nil || len(doc.Experiments) != 0 || doc.Models[0].Name != "found" || doc.Models[0].Default.Upstream != "v1" {
		t.Errorf("one upstream: %+v, %v", doc, err)
	}

	for _, tt := range []struct {
		name  string
		q     config.Quick
		wants string
	}{
		{"no upstream", config.Quick{Split: "a=100"}, "--split and --model need at least one --upstream NAME=URL"},
		{"no name", config.Quick{Upstreams: []string{"http://h/v1"}}, `--upstream "http://h/v1": want NAME=URL, such as v1=http://127.0.0.1:8000/v1`},
		{"bad name", config.Quick{Upstreams: []string{"V1=http://h/v1"}}, `--upstream: the name "V1" must match ^[a-z0-9][a-z0-9-]{0,62}$`},
		{"twice", config.Quick{Upstreams: []string{"a=http://h", "a=http://i"}}, `--upstream: the name "a" is given twice`},
		{"scheme", config.Quick{Upstreams: []string{"a=ftp://h"}}, `--upstream a: the scheme "ftp" is not http or https`},
		{"no host", config.Quick{Upstreams: []string{"a=127.0.0.1:80"}}, `--upstream a: want a base URL such as http://127.0.0.1:8000/v1`},
		{"password", config.Quick{Upstreams: []string{"a=http://u:hunter2@h"}}, "--upstream a: a URL may not hold a user or password; use a file with `secrets:` and `credential:`"},
		{"query", config.Quick{Upstreams: []string{"a=http://h/?k=1"}}, "--upstream a: a base URL has no ? and no #"},
		{"no split", config.Quick{Upstreams: two, Model: "m"}, "2 upstreams need --split, such as --split v1=90,v2=10"},
		{"sum", config.Quick{Upstreams: two, Model: "m", Split: "v1=90,v2=9.99"}, "--split: the shares add up to 99.99 %, want exactly 100"},
		{"three decimals", config.Quick{Upstreams: two, Model: "m", Split: "v1=90.005,v2=9.995"}, `--split: v1: "90.005" has more than two decimals; the smallest step is 0.01 %`},
		{"unknown", config.Quick{Upstreams: two, Model: "m", Split: "v1=90,v3=10"}, "--split: unknown upstream `v3`, did you mean `v1`?"},
		{"left out", config.Quick{Upstreams: two, Model: "m", Split: "v1=100"}, `--split: upstream "v2" has no share; write v2=0 to give it none`},
		{"negative", config.Quick{Upstreams: two, Model: "m", Split: "v1=-1,v2=101"}, `--split: v1: "-1" is not a percentage from 0 to 100`},
		{"huge", config.Quick{Upstreams: two, Model: "m", Split: "v1=99999999999999999999,v2=1"}, `--split: v1: "99999999999999999999" is more than 100 %`},
		{"no number", config.Quick{Upstreams: two, Model: "m", Split: "v1,v2"}, `--split: "v1": want NAME=NUMBER, such as v1=90,v2=10`},
		{"no model", config.Quick{Upstreams: two, Split: "v1=90,v2=10"}, "the model's name is not known; pass --model NAME[=SERVED]"},
		{"empty served", config.Quick{Upstreams: two, Split: "v1=90,v2=10", Model: "a="}, `--model "a=": want NAME or NAME=SERVED`},
		{"model with space", config.Quick{Upstreams: two, Split: "v1=90,v2=10", Model: "a b"}, `--model "a b": a model name is 1 to 128 printable ASCII characters without space`},
	} {
		_, err := config.QuickDocument(tt.q, "")
		if err == nil || err.Error() != tt.wants {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.wants)
		}
	}
}

func TestWeightsAreExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bp := rapid.IntRange(0, 10000).Draw(t, "bp")
		s := "a=" + config.FormatPercent(bp) + ",b=" + config.FormatPercent(10000-bp) + "%"
		w, order, err := config.ParseWeights(s, false)
		if err != nil || w["a"] != bp || w["b"] != 10000-bp || len(order) != 2 {
			t.Fatalf("%s: %v %v", s, w, err)
		}
		w, _, err = config.ParseWeights(fmt.Sprintf("a=%d,b=%d", bp, 10000-bp), true)
		if err != nil || w["a"] != bp {
			t.Fatalf("basis points: %v %v", w, err)
		}
	})
	if _, _, err := config.ParseWeights("a=99.5,b=0.5", true); err == nil || !strings.Contains(err.Error(), "whole number of basis points") {
		t.Errorf("fractions of basis points: %v", err)
	}
}

func TestServedModel(t *testing.T) {
	t.Parallel()
	server := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/v1"
	}
	one, both := server(200, `{"data":[{"id":"a"},{"id":"a"}]}`), server(200, `{"data":[{"id":"b"},{"id":"a"}]}`)
	other, none := server(200, `{"data":[{"id":"c"}]}`), server(200, `{"data":[]}`)
	for _, tt := range []struct {
		name string
		urls []string
		want string // the model, or what the error says
	}{
		{"one in common", []string{one, both}, "a"},
		{"slash at the end", []string{one + "/"}, "a"},
		{"several", []string{both}, "the upstreams have several models in common: b, a; pass --model NAME to choose"},
		{"none in common", []string{one, other}, "the upstreams have no model in common (u0 serves a, u1 serves c); pass --model NAME=SERVED"},
		{"no model", []string{none}, "(u0 serves no model)"},
		{"forgotten /v1", []string{strings.TrimSuffix(one, "/v1")}, "answered 404 (does the base URL end in /v1?)"},
		{"not JSON", []string{server(200, "hello")}, "did not answer with a list of models"},
		{"refused", []string{server(401, "")}, "answered 401"},
		{"away", []string{"http://127.0.0.1:1/v1"}, "the model's name cannot be read from upstream u0: GET http://127.0.0.1:1/v1/models: "},
	} {
		var ups []config.NamedURL
		for i, u := range tt.urls {
			ups = append(ups, config.NamedURL{Name: fmt.Sprintf("u%d", i), URL: u})
		}
		got, err := config.ServedModel(context.Background(), ups)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
