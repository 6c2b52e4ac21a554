package router

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Limits of a document. MaxVariants is what a byte can number: 255 is "nobody".
const (
	MaxObjects  = 1000 // upstreams, models, experiments, endpoints, aliases, parameters: of each
	MaxVariants = 250

	maxTombstones = 10_000
	maxPrompt     = 1 << 20 // bytes of one prompt addition
	maxLabel      = 128
)

// ValidateOptions are what validation cannot know from the document.
type ValidateOptions struct {
	// Secrets says whether a credential's name resolves; nil: not known here, not checked.
	Secrets func(name string) bool
}

// nameRE is the form of the names of experiments, variants and upstreams.
var nameRE = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

const nameRule = "use 1 to 63 lower-case letters, digits and '-', beginning with a letter or digit"

// Validate finds all faults of d; nil when there is none.
func Validate(d *Document, o ValidateOptions) Problems {
	c := &checker{o: o, d: d, upstreams: map[string]bool{}, models: map[string]bool{}}
	if d == nil {
		c.add("", "required", "there is no document")
		return c.problems
	}
	if d.Revision < 0 || d.Revision >= 1<<53 {
		c.add("/revision", "out_of_range", "a revision is between 0 and 2^53-1")
	}
	// Too large is refused before anything walks it.
	sized := c.most("/upstreams", len(d.Upstreams), MaxObjects, "upstreams")
	sized = c.most("/models", len(d.Models), MaxObjects, "models") && sized
	sized = c.most("/experiments", len(d.Experiments), MaxObjects, "experiments") && sized
	sized = c.most("/tombstones", len(d.Tombstones), maxTombstones, "tombstones") && sized
	if !sized {
		return c.problems
	}
	for i := range d.Upstreams {
		c.upstream(at("/upstreams", i), &d.Upstreams[i])
	}
	c.modelNames()
	for i := range d.Models {
		c.model(at("/models", i), &d.Models[i])
	}
	keys := map[string]bool{}
	for i := range d.Experiments {
		e, path := &d.Experiments[i], at("/experiments", i)
		if keys[e.Key] {
			c.add(path+"/key", "duplicate_name", "the key %q is used twice; keys are unique", clip(e.Key))
		}
		keys[e.Key] = true
		c.experiment(path, e)
	}
	c.slices()
	c.holdouts()
	c.tombstones()
	c.size()
	return c.problems
}

func (c *checker) size() {
	raw, err := json.Marshal(c.d)
	switch {
	case err != nil:
		// Only a raw member that is not JSON can do this, and it was named above.
		if len(c.problems) == 0 {
			c.add("", "invalid_json", "the document has no JSON form: %v", err)
		}
	case len(raw) > MaxDocumentBytes:
		c.add("", "document_too_large", "the document has %d bytes, at most %d are allowed; split it or shorten the prompts", len(raw), MaxDocumentBytes)
	}
}

func (c *checker) tombstones() {
	for i, t := range c.d.Tombstones {
		kind, name, ok := strings.Cut(t, "/")
		if !ok || name == "" || !slices.Contains([]string{"upstream", "model", "experiment"}, kind) {
			c.add(at("/tombstones", i), "invalid_value", `a tombstone names a deleted object, like "upstream/v1"`)
		}
	}
}

// modelNames checks that every public name and alias means one model.
func (c *checker) modelNames() {
	owner := map[string]string{} // name or alias -> the path that has it
	claim := func(path, name string) {
		if first, taken := owner[name]; taken {
			c.add(path, "duplicate_name", "%q is already the name or an alias of the model at %s; a name means one model", clip(name), first)
			return
		}
		owner[name] = path
	}
	for i, m := range c.d.Models {
		c.models[m.Name] = true
		claim(at("/models", i, "name"), m.Name)
	}
	for i, m := range c.d.Models {
		for j, a := range m.Aliases {
			if j >= MaxObjects {
				break // reported by model
			}
			claim(at("/models", i, "aliases", j), a)
		}
	}
}

func (c *checker) model(path string, m *Model) {
	if msg := publicName(m.Name); msg != "" {
		c.add(path+"/name", "name_invalid", "a model name %s", msg)
	}
	if c.most(path+"/aliases", len(m.Aliases), MaxObjects, "aliases") {
		for j, a := range m.Aliases {
			p := at(path, "aliases", j)
			if msg := publicName(a); msg != "" {
				c.add(p, "name_invalid", "an alias %s", msg)
			} else if i := strings.IndexByte(a, '*'); i >= 0 && i != len(a)-1 {
				c.add(p, "alias_invalid", "%q: a '*' may stand only at the end of an alias", a)
			}
		}
	}
	c.upstreamRef(path+"/default/upstream", m.Default.Upstream)
	c.served(path+"/default/model", m.Default.Model)
}

// publicName says what is wrong with a model name, "" when nothing is.
func publicName(s string) string {
	const rule = "is 1 to 128 printable ASCII characters without space"
	if len(s) < 1 || len(s) > 128 {
		return rule
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return rule
		}
	}
	return ""
}

func (c *checker) served(path, s string) {
	if len(s) > 512 || hasControl(s) {
		c.add(path, "name_invalid", "a served model name has at most 512 bytes and no control characters")
	}
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func (c *checker) upstreamRef(path, name string) {
	switch {
	case name == "":
		c.add(path, "required", "name the upstream that serves this; it is missing")
	case !c.upstreams[name]:
		c.add(path, "upstream_unknown", "there is no upstream %q%s", clip(name), hint(name, c.upstreams))
	}
}

// hint proposes the closest name that exists.
func hint(name string, names map[string]bool) string {
	best, dist := "", 3
	for n := range names {
		if d := distance(name, n); d < dist || d == dist && n < best {
			best, dist = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return "; create it first"
}
