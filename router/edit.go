package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// EditError is an edit that cannot be made, though its input is well formed.
type EditError struct {
	Code    string // one of the Code constants
	Object  string // "experiment/chat-v2"
	Message string // says what to do
}

func (e *EditError) Error() string { return e.Object + ": " + e.Message }

// The codes of an EditError.
const (
	CodeNotFound     = "not_found"
	CodeExists       = "already_exists"
	CodeInvalidState = "invalid_state"
	CodeInUse        = "in_use"
	CodeRuntimeField = "runtime_field"
	CodeRampActive   = "ramp_active" // a ramp decides it
	CodeCooldown     = "cooldown"    // rolled back too short a while ago
	CodeApproval     = "approval"    // a person must approve it
)

func notFound(kind, name string) error {
	return &EditError{CodeNotFound, kind + "/" + clip(name), fmt.Sprintf("there is no %s %q", kind, clip(name))}
}

// edit makes f's change to a copy, fills in and stamps what the server keeps,
// validates the whole, and only then lets doc have it: an edit that fails
// leaves doc as it was. Paths of problems below self are told relative to it.
//
// Every exported edit takes the document as it is, the revision the write will
// have and the time of the write; its error is an *EditError or Problems.
func edit(doc *Document, revision int64, now time.Time, self func(*Document) string, f func(*Document) error) error {
	next := doc.Clone()
	if err := f(next); err != nil {
		return err
	}
	if err := Normalize(next, doc, revision, now, nil); err != nil {
		return relative(err, self(next))
	}
	if ps := Validate(next, ValidateOptions{}); len(ps) > 0 {
		return relative(ps, self(next))
	}
	*doc = *next
	return nil
}

func relative(err error, self string) error {
	var ps Problems
	if self == "" || !errors.As(err, &ps) {
		return err
	}
	for i := range ps {
		if rest, below := strings.CutPrefix(ps[i].Path, self+"/"); below {
			ps[i].Path = "/" + rest
		}
	}
	return ps
}

// reduce is edit for what must always work (rollback, kill, pause): a fault
// elsewhere in the document does not hold it up.
func reduce(doc *Document, revision int64, now time.Time, key string, f func(*Experiment) error) error {
	next := doc.Clone()
	e := next.Experiment(key)
	if e == nil {
		return notFound("experiment", key)
	}
	if err := f(e); err != nil {
		return err
	}
	now = now.UTC().Truncate(time.Millisecond)
	stamp(next, doc, revision, now)
	next.Revision = revision
	*doc = *next
	return nil
}

func selfExperiment(key string) func(*Document) string {
	return func(d *Document) string {
		return at("/experiments", slices.IndexFunc(d.Experiments, func(e Experiment) bool { return e.Key == key }))
	}
}

func editExperiment(doc *Document, revision int64, now time.Time, key string, f func(*Experiment) error) error {
	return edit(doc, revision, now, selfExperiment(key), func(d *Document) error {
		e := d.Experiment(key)
		if e == nil {
			return notFound("experiment", key)
		}
		return f(e)
	})
}

// CreateExperiment adds e with its defaults filled in. It begins as a draft or,
// where e says so, running.
func CreateExperiment(doc *Document, revision int64, now time.Time, e Experiment) error {
	return edit(doc, revision, now, selfExperiment(e.Key), func(d *Document) error {
		return addExperiment(d, e)
	})
}

func addExperiment(d *Document, e Experiment) error {
	object := "experiment/" + clip(e.Key)
	if d.Experiment(e.Key) != nil {
		return &EditError{CodeExists, object, "an experiment with this key exists; change it, or choose another key"}
	}
	if e.State != "" && e.State != StateDraft && e.State != StateRunning {
		return &EditError{CodeInvalidState, object, fmt.Sprintf("an experiment begins as %s or %s, not %q", StateDraft, StateRunning, clip(e.State))}
	}
	if e.Allocation != nil || e.Generation > 1 || e.GenRevision != 0 || e.RunsFrom != 0 || e.Winner != "" {
		return &EditError{CodeRuntimeField, object, "allocation, generation, gen_revision and winner are kept by the server; leave them out"}
	}
	if e.RampState != nil || e.LastRollback != nil || e.Setup != nil {
		return &EditError{CodeRuntimeField, object, "ramp_state, last_rollback and setup are kept by the server; leave them out"}
	}
	e = cloneExperiment(e)
	for i, v := range e.Variants {
		e.Variants[i].CutStreams = false
		if v.State == VariantKilled {
			return &EditError{CodeRuntimeField, object, fmt.Sprintf("the variant %q cannot begin killed; give it weight 0", v.Name)}
		}
	}
	e.Generation = 0 // Normalize begins the first one at this revision
	e.CreatedAt, e.UpdatedAt, e.UpdatedRevision = time.Time{}, time.Time{}, 0
	d.raise("experiment/" + e.Key)
	d.Experiments = append(d.Experiments, e)
	return nil
}

// ArchiveExperiment hides an experiment that is not running: routing ignores
// it, and its slice is free. It is final; archiving twice changes nothing.
func ArchiveExperiment(doc *Document, revision int64, now time.Time, key string) error {
	return editExperiment(doc, revision, now, key, func(e *Experiment) error {
		if err := idle(e, "archived"); err != nil {
			return err
		}
		e.State = StateArchived
		return nil
	})
}

// DeleteExperiment removes an experiment that is not running and leaves a tombstone.
func DeleteExperiment(doc *Document, revision int64, now time.Time, key string) error {
	return edit(doc, revision, now, func(*Document) string { return "" }, func(d *Document) error {
		e := d.Experiment(key)
		if e == nil {
			return notFound("experiment", key)
		}
		if err := idle(e, "deleted"); err != nil {
			return err
		}
		removeExperiment(d, key)
		return nil
	})
}

func removeExperiment(d *Document, key string) {
	d.Experiments = slices.DeleteFunc(d.Experiments, func(e Experiment) bool { return e.Key == key })
	d.bury("experiment/" + key)
}

func idle(e *Experiment, verb string) error {
	if e.State == StateRunning || e.State == StatePaused {
		return invalidState(e, "it is %s; finish it or roll it back before it is %s", e.State, verb)
	}
	if e.Ramping() {
		return rampActive(e, "it bakes; end the bake with :advance, or roll it back, before it is "+verb)
	}
	return nil
}

func invalidState(e *Experiment, format string, args ...any) error {
	return &EditError{CodeInvalidState, "experiment/" + clip(e.Key), fmt.Sprintf(format, args...)}
}
