package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sluice/experiment"
	"sluice/router"
	"sluice/upstream/wire"
)

// talk is a request within a conversation that began with these words, its
// first or a later one.
func talk(t testing.TB, user, words string, later bool, headers ...string) *router.Query {
	t.Helper()
	body := `{"model":"chat","messages":[{"role":"system","content":"S"},{"role":"user","content":"` + words + `"}`
	if later {
		body += `,{"role":"assistant","content":"yes"},{"role":"user","content":"and now?"}`
	}
	q := query("chat", user, headers...)
	q.Body = []byte(body + "]}")
	head, err := wire.Scan(q.Body, wire.Chat)
	if err != nil {
		t.Fatal(err)
	}
	q.Head = &head
	return q
}

// decided is "variant reason" of a request.
func decided(t testing.TB, table *router.Table, q *router.Query, p router.Pins) string {
	t.Helper()
	plan, err := table.Route(t.Context(), q, p)
	must(t, err)
	return plan.Variant.Name + " " + string(plan.Decision.Reason)
}

// movers are a user whose bucket goes from control to canary between the
// tables, and one whose bucket stays with control.
func movers(t testing.TB, before, after *router.Table) (mover, stayer string) {
	t.Helper()
	a, _ := before.Experiment("chat-v2")
	b, _ := after.Experiment("chat-v2")
	for i := 0; mover == "" || stayer == ""; i++ {
		id := fmt.Sprint("user-", i)
		bucket := route(t, after, query("chat", id)).Decision.Digest.Bucket
		switch {
		case a.Exp.Owner(bucket) == 0 && b.Exp.Owner(bucket) == 1:
			mover = id
		case b.Exp.Owner(bucket) == 0:
			stayer = id
		}
	}
	return mover, stayer
}

func TestSwitchConversation(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"canary", "ab"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := doc(t, `"kind": "canary"`, `"kind": "`+kind+`", "switch": "conversation"`, `"fallback": "control"`, `"fallback": ""`)
			before := compile(t, d)
			must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 5000, "canary": 5000}))
			if kind == "ab" { // weights bind new units only: what moves the others is a new generation
				must(t, router.ResetPins(d, 3, t0, "chat-v2"))
			}
			after := compile(t, d)
			mover, stayer := movers(t, before, after)
			store := newPins()
			check := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s: got %s, want %s", what, got, want)
				}
			}
			check("it begins", decided(t, before, talk(t, mover, "hello", false), store), "control bucket")
			check("a second of the same user", decided(t, before, talk(t, mover, "bye", false), store), "control bucket")
			check("who stays", decided(t, before, talk(t, stayer, "hello", false), store), "control bucket")
			if store.asked != 0 {
				t.Errorf("%d reads before anybody moved", store.asked)
			}
			e, _ := after.Experiment("chat-v2")
			for user, want := range map[string]bool{mover: true, stayer: kind == "ab"} { // after a reset anybody may have moved
				plan, err := after.Route(t.Context(), talk(t, user, "explain", false), newPins())
				must(t, err)
				if got := e.Finishes(&plan.Decision); got != want {
					t.Errorf("%s: may finish elsewhere: %v", user, got)
				}
			}
			check("it finishes", decided(t, after, talk(t, mover, "hello", true), store), "control conversation")
			check("and again", decided(t, after, talk(t, mover, "hello", true), store), "control conversation")
			want := "canary bucket"
			check("a new one goes with its user", decided(t, after, talk(t, mover, "what is", false), store), want)
			if kind == "ab" {
				want = "canary bucket" // an uncontested bucket: the pin says the same
			}
			check("and stays there", decided(t, after, talk(t, mover, "what is", true), store), want)
			check("the same words begin anew", decided(t, after, talk(t, mover, "bye", false), store), want)
			check("and count as the new one", decided(t, after, talk(t, mover, "bye", true), store), want)
			check("another user's", decided(t, after, talk(t, stayer, "hello", true), store), "control bucket")
			check("one that nobody knows", decided(t, after, talk(t, mover, "lost", true), store), want)
			check("no conversation", decided(t, after, query("chat", mover), store), want)
			away := newPins()
			away.fail = errors.New("down")
			check("store away", decided(t, after, talk(t, mover, "hello", true), away), "canary provisional")
			check("store away, a first turn", decided(t, after, talk(t, mover, "hello", false), away), map[string]string{"canary": "canary bucket", "ab": "canary bucket"}[kind])
			check("no store", decided(t, after, talk(t, mover, "hello", true), nil), "canary provisional")

			must(t, router.Rollback(d, 4, t0, "chat-v2"))
			check("rollback beats it", decided(t, compile(t, d), talk(t, mover, "what is", true), store), "control rolled_back")
		})
	}
}

// What began on a variant that is killed or gets weight 0 goes at once.
func TestSwitchConversationIsNoShelter(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary"`, `"kind": "canary", "switch": "conversation"`,
		`"weight": 9000`, `"weight": 5000`, `"weight": 1000`, `"weight": 5000`, `"fallback": "control"}`, `"fallback": ""}, {"name": "third", "weight": 0, "upstream": "v1"}`)
	before := compile(t, d)
	// From canary to third.
	must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 5000, "canary": 1000, "third": 4000}))
	after := compile(t, d)
	a, _ := before.Experiment("chat-v2")
	b, _ := after.Experiment("chat-v2")
	var user string
	for i := 0; user == ""; i++ {
		id := fmt.Sprint("user-", i)
		bucket := route(t, after, query("chat", id)).Decision.Bucket
		if a.Exp.Owner(bucket) == 1 && b.Exp.Owner(bucket) == 2 {
			user = id
		}
	}
	store := newPins()
	if got := decided(t, before, talk(t, user, "hello", false), store); got != "canary bucket" {
		t.Fatal(got)
	}
	if got := decided(t, after, talk(t, user, "hello", true), store); got != "canary conversation" {
		t.Fatal(got)
	}
	plan, err := after.Route(t.Context(), talk(t, user, "hello", true), store)
	must(t, err)
	killed := doc(t)
	*killed = *d.Clone()
	must(t, router.Kill(killed, 3, t0, "chat-v2", "canary"))
	if got := decided(t, compile(t, killed), talk(t, user, "hello", true), store); got != "third bucket" {
		t.Errorf("killed: %s", got)
	}
	if v, reason, _ := router.Recheck(compile(t, killed), &plan); v.Name != "control" || reason != router.RecheckKilled {
		t.Errorf("killed while it runs: %s, %s", v.Name, reason)
	}
	must(t, router.SetWeights(d, 3, t0, "chat-v2", map[string]int{"control": 5000, "canary": 0, "third": 5000}))
	if got := decided(t, compile(t, d), talk(t, user, "hello", true), store); got != "third bucket" {
		t.Errorf("weight 0: %s", got)
	}
	if v, reason, _ := router.Recheck(compile(t, d), &plan); v.Name != "third" || reason != router.RecheckEvicted {
		t.Errorf("weight 0 while it runs: %s, %s", v.Name, reason)
	}
}

func TestReshuffleLetsConversationsFinish(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary"`, `"kind": "ab", "switch": "conversation"`, `"weight": 9000`, `"weight": 5000`, `"weight": 1000`, `"weight": 5000`, `"fallback": "control"`, `"fallback": ""`)
	before := compile(t, d)
	must(t, router.Reshuffle(d, 2, t0, "chat-v2"))
	after := compile(t, d)
	store, moved := newPins(), 0
	for i := range 40 {
		user := fmt.Sprint("user-", i)
		first := decided(t, before, talk(t, user, "hello", false), store)
		next := decided(t, after, talk(t, user, "hello", true), store)
		fresh := decided(t, after, talk(t, user, "else", false), store)
		if v, _, _ := strings.Cut(first, " "); !strings.HasPrefix(next, v+" ") {
			t.Fatalf("%s: %s became %s", user, first, next)
		}
		if strings.HasSuffix(next, " conversation") {
			moved++
			if strings.Fields(fresh)[0] == strings.Fields(first)[0] {
				t.Fatalf("%s is said to have moved, but has %s still", user, fresh)
			}
		}
	}
	if moved < 8 {
		t.Errorf("%d of 40 moved, want about half", moved)
	}
	if d.Experiment("chat-v2").RunsFrom != 1 {
		t.Errorf("runs_from %d", d.Experiment("chat-v2").RunsFrom)
	}
	must(t, router.Rollback(d, 3, t0, "chat-v2"))
	must(t, router.Start(d, 4, t0, "chat-v2"))
	if e := d.Experiment("chat-v2"); e.RunsFrom != 0 || e.GenRevision != 4 {
		t.Errorf("started anew: runs_from %d", e.RunsFrom)
	}
}

// A person who logs in keeps what the session had; two pins that differ take
// the person out of the analysis.
func TestMerge(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary"`, `"kind": "ab", "merge": true`, `"from": ["header:x-user-id", "body:user"]`, `"from": ["header:x-user-id", "session"]`,
		`"weight": 9000`, `"weight": 5000`, `"weight": 1000`, `"weight": 5000`, `"fallback": "control"`, `"fallback": ""`)
	table, store := compile(t, d), newPins()
	on := func(variant string, user func(i int) *router.Query) *router.Query {
		for i := 0; ; i++ {
			if q := user(i); route(t, table, q).Variant.Name == variant {
				return q
			}
		}
	}
	session := on("canary", func(i int) *router.Query { return query("chat", "", "x-session-id", fmt.Sprint("s", i)) })
	sid := session.Header.Get("x-session-id")
	both := on("control", func(i int) *router.Query { return query("chat", fmt.Sprint("u", i), "x-session-id", sid) })
	uid := both.Header.Get("x-user-id")

	if got := decided(t, table, session, store); got != "canary bucket" {
		t.Fatalf("anonymous: %s", got)
	}
	if got := decided(t, table, both, store); got != "canary merged" {
		t.Errorf("logged in: %s", got)
	}
	if got := decided(t, table, query("chat", uid), store); got != "canary pin" {
		t.Errorf("elsewhere: %s", got)
	}
	// Another browser, where the same person was on control as nobody.
	other := on("control", func(i int) *router.Query { return query("chat", "", "x-session-id", fmt.Sprint("o", i)) })
	decided(t, table, other, store)
	plan, err := table.Route(t.Context(), query("chat", uid, "x-session-id", other.Header.Get("x-session-id")), store)
	must(t, err)
	if plan.Variant.Name != "canary" || plan.Decision.Analysed || plan.Note != "merge_conflict" {
		t.Errorf("two pins: %s, analysed %v, note %q", plan.Variant.Name, plan.Decision.Analysed, plan.Note)
	}
	away := newPins()
	away.fail = errors.New("down")
	if got := decided(t, table, both, away); got != "control provisional" {
		t.Errorf("store away: %s", got)
	}
}

func TestBlockBelow(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary"`, `"kind": "ab"`, `"fallback": "control"`, `"fallback": ""`)
	store, first := newPins(), compile(t, d)
	if got := decided(t, first, query("chat", "old"), store); !strings.HasSuffix(got, " bucket") {
		t.Fatal(got)
	}
	must(t, router.ResetPins(d, 2, t0, "chat-v2"))
	must(t, router.PatchExperiment(d, 3, t0, "chat-v2", []byte(`{"block_below": 2}`)))
	table := compile(t, d)
	if got := decided(t, table, query("chat", "old"), store); got != "control blocked" {
		t.Errorf("seen before: %s", got)
	}
	if got := decided(t, table, query("chat", "new"), store); !strings.HasSuffix(got, " bucket") {
		t.Errorf("new: %s", got)
	}
	if err := router.PatchExperiment(d, 4, t0, "chat-v2", []byte(`{"block_below": 3}`)); codeOf(err) != "out_of_range" {
		t.Errorf("a generation to come: %v", err)
	}
}

// The same people are held out of every experiment that names the holdout.
func TestHoldoutIsOneSet(t *testing.T) {
	t.Parallel()
	const second = `, {"key": "plain-v2", "model": "plain", "kind": "ab", "state": "running", "holdout": {"name": "q4", "share": 2000}, "unit": {"from": ["header:x-user-id"]},
		"baseline": "a", "variants": [{"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 5000, "upstream": "v2"}]}
  ]
}`
	d := doc(t, `"kind": "canary"`, `"kind": "canary", "holdout": {"name": "q4", "share": 2000}`, "\n  ]\n}", second)
	table := compile(t, d)
	held := 0
	for i := range 1000 {
		id := fmt.Sprint("user-", i)
		a, b := route(t, table, query("chat", id)), route(t, table, query("plain", id))
		out := a.Decision.Reason == experiment.ReasonHoldout
		if out != (b.Decision.Reason == experiment.ReasonHoldout) {
			t.Fatalf("%s: %s and %s", id, a.Decision.Reason, b.Decision.Reason)
		}
		if out {
			held++
			if a.Variant.Name != "control" || !a.Decision.Exposure || a.Decision.Analysed {
				t.Fatalf("%+v", a.Decision)
			}
		}
	}
	if held < 150 || held > 250 {
		t.Errorf("%d of 1000 held out, want about 200", held)
	}
	for _, c := range []struct{ patch, code string }{
		{`{"holdout": {"name": "q4", "share": 3000}}`, router.CodeInvalidState}, // fixed while it runs
		{`{"holdout": null}`, router.CodeInvalidState},
		{`{"merge": true}`, router.CodeInvalidState},
	} {
		if err := router.PatchExperiment(d, 2, t0, "chat-v2", []byte(c.patch)); codeOf(err) != c.code {
			t.Errorf("%s: %v", c.patch, err)
		}
	}
	must(t, router.Rollback(d, 3, t0, "chat-v2"))
	if err := router.PatchExperiment(d, 4, t0, "chat-v2", []byte(`{"holdout": {"name": "q4", "share": 3000}}`)); codeOf(err) != "holdout_differs" {
		t.Errorf("another share under the same name: %v", err)
	}
}
