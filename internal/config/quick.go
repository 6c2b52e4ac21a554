package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/router"
)

// Quick is `sluice serve --upstream NAME=URL … --split a=90,b=10 --model
// NAME[=SERVED]`: real servers behind an experiment without any file.
type Quick struct {
	Upstreams []string // NAME=URL, in order
	Split     string   // NAME=PERCENT,…; may be empty with one upstream
	Model     string   // NAME or NAME=SERVED
}

// NamedURL is one parsed --upstream.
type NamedURL struct{ Name, URL string }

var objectName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// ParseUpstreams reads NAME=URL arguments.
func ParseUpstreams(args []string) ([]NamedURL, error) {
	var list []NamedURL
	for _, arg := range args {
		name, raw, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("--upstream %q: want NAME=URL, such as v1=http://127.0.0.1:8000/v1", clip(arg))
		}
		if !objectName.MatchString(name) {
			return nil, fmt.Errorf("--upstream: the name %q must match %s", clip(name), objectName)
		}
		if slices.ContainsFunc(list, func(u NamedURL) bool { return u.Name == name }) {
			return nil, fmt.Errorf("--upstream: the name %q is given twice", name)
		}
		if err := checkBaseURL(raw); err != nil {
			return nil, fmt.Errorf("--upstream %s: %w", name, err)
		}
		list = append(list, NamedURL{name, raw})
	}
	return list, nil
}

func checkBaseURL(raw string) error {
	u, err := url.Parse(strings.TrimPrefix(raw, "dns:"))
	switch {
	case err != nil || u.Host == "":
		return errors.New("want a base URL such as http://127.0.0.1:8000/v1")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the scheme %q is not http or https", clip(u.Scheme))
	case u.User != nil:
		return errors.New("a URL may not hold a user or password; use a file with `secrets:` and `credential:`")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("a base URL has no ? and no #")
	}
	return nil
}

// QuickDocument makes the document of q. served is the model's name on the
// upstreams, for when q.Model does not give it (see ServedModel).
func QuickDocument(q Quick, served string) (*router.Document, error) {
	ups, err := ParseUpstreams(q.Upstreams)
	if err != nil {
		return nil, err
	}
	if len(ups) == 0 {
		return nil, errors.New("--split and --model need at least one --upstream NAME=URL")
	}
	public, onUpstream := served, served
	if q.Model != "" {
		name, alias, renamed := strings.Cut(q.Model, "=")
		if name == "" || renamed && alias == "" {
			return nil, fmt.Errorf("--model %q: want NAME or NAME=SERVED", clip(q.Model))
		}
		public, onUpstream = name, name
		if renamed {
			onUpstream = alias
		}
	}
	if public == "" {
		return nil, errors.New("the model's name is not known; pass --model NAME[=SERVED]")
	}
	if len(public) > 128 || strings.ContainsFunc(public, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("--model %q: a model name is 1 to 128 printable ASCII characters without space", clip(public))
	}
	doc := &router.Document{Models: []router.Model{{Name: public, Default: router.Route{Upstream: ups[0].Name, Model: onUpstream}}}}
	for _, u := range ups {
		doc.Upstreams = append(doc.Upstreams, router.Upstream{Name: u.Name, Endpoints: []string{u.URL}})
	}
	if q.Split == "" {
		if len(ups) > 1 {
			return nil, fmt.Errorf("%d upstreams need --split, such as --split %s=90,%s=10", len(ups), ups[0].Name, ups[1].Name)
		}
		return doc, nil
	}
	weights, order, err := parseSplit(q.Split, ups)
	if err != nil {
		return nil, err
	}
	exp := router.Experiment{Key: "split", Model: public, Kind: "canary", State: "running", Stickiness: "bucket", Baseline: order[0]}
	for _, name := range order {
		exp.Variants = append(exp.Variants, router.Variant{Name: name, Weight: weights[name], Upstream: name, Model: onUpstream})
	}
	doc.Models[0].Default.Upstream = exp.Baseline
	doc.Experiments = []router.Experiment{exp}
	return doc, nil
}

// parseSplit reads "v1=90,v2=10" into basis points, in the order written.
func parseSplit(split string, ups []NamedURL) (weights map[string]int, order []string, err error) {
	var names []string
	for _, u := range ups {
		names = append(names, u.Name)
	}
	weights, order, err = ParseWeights(split, false)
	if err != nil {
		return nil, nil, fmt.Errorf("--split: %w", err)
	}
	for _, name := range order {
		if !slices.Contains(names, name) {
			return nil, nil, fmt.Errorf("--split: %s", unknown("upstream", name, names))
		}
	}
	for _, name := range names {
		if !slices.Contains(order, name) {
			return nil, nil, fmt.Errorf("--split: upstream %q has no share; write %s=0 to give it none", name, name)
		}
	}
	return weights, order, nil
}

// ParseWeights reads "a=90,b=10" into basis points that add up to exactly
// 10000. Numbers are percent with up to two decimals, or whole basis points
// with bp. order is as written.
func ParseWeights(s string, bp bool) (weights map[string]int, order []string, err error) {
	weights = map[string]int{}
	sum := 0
	for part := range strings.SplitSeq(s, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" {
			return nil, nil, fmt.Errorf("%q: want NAME=NUMBER, such as v1=90,v2=10", clip(part))
		}
		if _, twice := weights[name]; twice {
			return nil, nil, fmt.Errorf("%q is given twice", clip(name))
		}
		w, err := parsePoints(strings.TrimSuffix(number, "%"), bp)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", clip(name), err)
		}
		weights[name] = w
		order = append(order, name)
		sum += w
	}
	if sum != 10000 {
		if bp {
			return nil, nil, fmt.Errorf("the weights add up to %d basis points, want exactly 10000", sum)
		}
		return nil, nil, fmt.Errorf("the shares add up to %s %%, want exactly 100", FormatPercent(sum))
	}
	return weights, order, nil
}

// parsePoints reads one number without going through binary fractions.
func parsePoints(s string, bp bool) (int, error) {
	whole, frac, dot := strings.Cut(s, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	switch {
	case bp && (dot || !digits(whole)):
		return 0, fmt.Errorf("%q is not a whole number of basis points from 0 to 10000", clip(s))
	case !digits(whole) || dot && !digits(frac):
		return 0, fmt.Errorf("%q is not a percentage from 0 to 100", clip(s))
	case len(strings.TrimRight(frac, "0")) > 2:
		return 0, fmt.Errorf("%q has more than two decimals; the smallest step is 0.01 %%", clip(s))
	}
	if !bp {
		whole += (frac + "00")[:2]
	}
	n, err := strconv.Atoi(whole)
	if err != nil || n > 10000 {
		if bp {
			return 0, fmt.Errorf("%q is more than 10000 basis points", clip(s))
		}
		return 0, fmt.Errorf("%q is more than 100 %%", clip(s))
	}
	return n, nil
}

// FormatPercent writes basis points as percent: 1234 is "12.34", 9000 is "90".
func FormatPercent(bp int) string {
	s := strconv.FormatFloat(float64(bp)/100, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// ServedModel asks every upstream for its models and returns the one id that
// all of them report. The error says what each answered when there is not
// exactly one, and to pass --model.
func ServedModel(ctx context.Context, ups []NamedURL) (string, error) {
	client := &http.Client{
		Timeout:       10 * time.Second,
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var common []string
	var found []string
	for i, u := range ups {
		ids, err := listModels(ctx, client, u.URL)
		if err != nil {
			return "", fmt.Errorf("the model's name cannot be read from upstream %s: %w; start it, or pass --model NAME[=SERVED]", u.Name, err)
		}
		found = append(found, fmt.Sprintf("%s serves %s", u.Name, shortList(ids)))
		if i == 0 {
			common = ids
		} else {
			common = slices.DeleteFunc(common, func(id string) bool { return !slices.Contains(ids, id) })
		}
	}
	switch len(common) {
	case 1:
		return common[0], nil
	case 0:
		return "", fmt.Errorf("the upstreams have no model in common (%s); pass --model NAME=SERVED, or use a file to give each variant its own model", strings.Join(found, ", "))
	}
	return "", fmt.Errorf("the upstreams have several models in common: %s; pass --model NAME to choose", shortList(common))
}

func shortList(ids []string) string {
	if len(ids) == 0 {
		return "no model"
	}
	shown := make([]string, 0, 10)
	for _, id := range ids[:min(len(ids), 10)] {
		shown = append(shown, clip(id))
	}
	if len(ids) > 10 {
		shown = append(shown, fmt.Sprintf("and %d more", len(ids)-10))
	}
	return strings.Join(shown, ", ")
}

// listModels reads GET {base}/models; no id is answered twice.
func listModels(ctx context.Context, client *http.Client, base string) ([]string, error) {
	target := strings.TrimRight(strings.TrimPrefix(base, "dns:"), "/") + "/models"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is not a URL", clip(base))
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("GET %s: %w", target, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		hint := ""
		if resp.StatusCode == http.StatusNotFound && !strings.HasSuffix(strings.TrimRight(base, "/"), "/v1") {
			hint = " (does the base URL end in /v1?)"
		}
		return nil, fmt.Errorf("GET %s answered %d%s", target, resp.StatusCode, hint)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", target, err)
	}
	var body struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("GET %s did not answer with a list of models", target)
	}
	var ids []string
	for _, m := range body.Data {
		if m.ID != "" && !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
	}
	return ids, nil
}
