package router

import (
	"encoding/json"
	"errors"
	"time"
)

// EditError is an edit that cannot be made, though its input is well formed.
type EditError struct {
	Code    string // not_found | already_exists | invalid_state | in_use | runtime_field
	Object  string // "experiment/chat-v2"
	Message string // says what to do
}

func (e *EditError) Error() string { return e.Object + ": " + e.Message }

// ApplyOptions steer ReplaceDocument.
type ApplyOptions struct {
	Prune   bool // delete what next does not name
	Runtime bool // also set the runtime members: state, kills, weights of a ramp
	Force   bool // restart a rolled-back generation; prune experiments that run
}

// ApplyReport says what ReplaceDocument did and what it left alone.
type ApplyReport struct {
	Changes []DiffLine `json:"changes"`
	// Drift are runtime members that differ and were kept (no Runtime).
	Drift []DiffLine `json:"drift,omitempty"`
	// Unpruned are objects that next does not name and that were kept (no Prune).
	Unpruned []string `json:"unpruned,omitempty"`
}

// SeedReport says what Seed added and what it left out, and why.
type SeedReport struct {
	Added   []string   `json:"added"`
	Skipped []SeedSkip `json:"skipped,omitempty"`
}

// SeedSkip is an object that a seed did not add: it exists, it was deleted, or
// something it refers to is missing.
type SeedSkip struct {
	Object string `json:"object"`
	Why    string `json:"why"` // exists | deleted | "upstream/v1 is missing"
}

// DiffLine is one changed object of a semantic diff.
type DiffLine struct {
	Object string   `json:"object"` // "experiment/chat-v2"
	Action string   `json:"action"` // create | update | delete
	Fields []string `json:"fields"` // "variants/canary/weight: 1000 → 2000"
}

// Preview says who would move under new weights.
type Preview struct {
	MovedBuckets int     `json:"moved_buckets"`
	Share        float64 `json:"share"` // of all units, 0..1
	Moves        []Move  `json:"moves"`
	Safe         bool    `json:"safe"`         // only baseline → one variant, or variants → baseline
	CarryOver    bool    `json:"carry_over"`   // units go from one treatment to another
	NeedsReason  bool    `json:"needs_reason"` // CarryOver
}

// Move is one stream of buckets between two variants.
type Move struct {
	From    string  `json:"from"`
	To      string  `json:"to"`
	Buckets int     `json:"buckets"`
	Share   float64 `json:"share"`
}

var errBuilding = errors.New("router: not built yet")

// Every edit below takes the document as it is, the revision the write will
// have and the time of the write. It changes doc only when it returns nil;
// otherwise the error is an *EditError or Problems.

// CreateExperiment adds e with its defaults filled in (state draft or running).
func CreateExperiment(doc *Document, revision int64, now time.Time, e Experiment) error {
	return errBuilding
}

// PatchExperiment applies an RFC 7396 merge patch to the API form of an
// experiment. Runtime members are refused, naming the verb; weights in it take
// the path of SetWeights.
func PatchExperiment(doc *Document, revision int64, now time.Time, key string, patch []byte) error {
	return errBuilding
}

// SetWeights sets the weights (basis points) of every variant, moving as few
// buckets as the change needs. A killed variant may only fall.
func SetWeights(doc *Document, revision int64, now time.Time, key string, weights map[string]int) error {
	return errBuilding
}

// PreviewWeights says who would move; doc is not changed.
func PreviewWeights(doc *Document, key string, weights map[string]int) (Preview, error) {
	return Preview{}, errBuilding
}

// Start runs an experiment; from rolled_back, completed and promoted it begins a new
// generation: kills are cleared, the ownership table is kept.
func Start(doc *Document, revision int64, now time.Time, key string) error { return errBuilding }

// Pause freezes enrolment; assigned units stay. Pausing a paused experiment changes nothing.
func Pause(doc *Document, revision int64, now time.Time, key string) error { return errBuilding }

// Resume runs a paused experiment again within its generation.
func Resume(doc *Document, revision int64, now time.Time, key string) error { return errBuilding }

// Rollback sends everybody to the baseline and keeps the weights. It is legal
// from every non-terminal state and idempotent.
func Rollback(doc *Document, revision int64, now time.Time, key string) error { return errBuilding }

// Kill takes a variant out for the rest of the generation; its buckets stay a
// tombstone that the baseline serves. Idempotent.
func Kill(doc *Document, revision int64, now time.Time, key, variant string) error {
	return errBuilding
}

// Promote makes variant serve everybody. Idempotent for the same winner.
func Promote(doc *Document, revision int64, now time.Time, key, variant string) error {
	return errBuilding
}

// Finish ends a running or paused experiment: the baseline serves.
func Finish(doc *Document, revision int64, now time.Time, key string) error { return errBuilding }

// ArchiveExperiment hides an experiment that is not running; routing ignores it.
func ArchiveExperiment(doc *Document, revision int64, now time.Time, key string) error {
	return errBuilding
}

// DeleteExperiment removes an experiment that is not running and leaves a tombstone.
func DeleteExperiment(doc *Document, revision int64, now time.Time, key string) error {
	return errBuilding
}

// CreateUpstream adds an upstream.
func CreateUpstream(doc *Document, revision int64, now time.Time, u Upstream) error {
	return errBuilding
}

// PatchUpstream applies an RFC 7396 merge patch.
func PatchUpstream(doc *Document, revision int64, now time.Time, name string, patch []byte) error {
	return errBuilding
}

// DeleteUpstream removes an upstream that nothing refers to (else code in_use) and leaves a tombstone.
func DeleteUpstream(doc *Document, revision int64, now time.Time, name string) error {
	return errBuilding
}

// CreateModel adds a public model.
func CreateModel(doc *Document, revision int64, now time.Time, m Model) error { return errBuilding }

// PatchModel applies an RFC 7396 merge patch.
func PatchModel(doc *Document, revision int64, now time.Time, name string, patch []byte) error {
	return errBuilding
}

// DeleteModel removes a model that no experiment refers to and leaves a tombstone.
func DeleteModel(doc *Document, revision int64, now time.Time, name string) error {
	return errBuilding
}

// ReplaceDocument makes doc equal to next, as PUT /document and `sluice apply`
// do; seeds, generations and ownership tables of experiments that exist are kept.
func ReplaceDocument(doc *Document, revision int64, now time.Time, next *Document, o ApplyOptions) (ApplyReport, error) {
	return ApplyReport{}, errBuilding
}

// Seed adds the objects of resources that do not exist and were not deleted; it never overwrites.
func Seed(doc *Document, revision int64, now time.Time, resources *Document) (SeedReport, error) {
	return SeedReport{}, errBuilding
}

// Diff is the semantic difference from a to b, without what the server keeps
// for itself (revisions, times, allocation).
func Diff(a, b *Document) []DiffLine { return nil }

// Normalize fills in the defaults of objects that lack them (seed, generation,
// stickiness, state, allocation, times) and stamps UpdatedRevision and
// UpdatedAt of exactly the objects that differ from prev (nil: none existed).
// random makes a seed; nil uses crypto/rand.
func Normalize(doc, prev *Document, revision int64, now time.Time, random func() string) error {
	return errBuilding
}

// ExperimentView is an experiment as the admin API shows it (design.md section 10).
type ExperimentView struct {
	Key           string          `json:"key"`
	Model         string          `json:"model"`
	Kind          string          `json:"kind"`
	State         string          `json:"state"`
	Seed          string          `json:"seed"`
	Hash          string          `json:"hash,omitempty"`
	Generation    int             `json:"generation"`
	Revision      int64           `json:"revision"`
	Unit          *Unit           `json:"unit"`
	Baseline      string          `json:"baseline"`
	Stickiness    string          `json:"stickiness"`
	Winner        string          `json:"winner,omitempty"`
	Variants      []VariantView   `json:"variants"`
	Targeting     json.RawMessage `json:"targeting"`
	Fixed         json.RawMessage `json:"fixed,omitempty"`
	Slice         *[2]int         `json:"slice"`
	OverrideNames []string        `json:"override_headers,omitempty"`
	Ramp          json.RawMessage `json:"ramp"`
	Guardrails    json.RawMessage `json:"guardrails"`
	Metrics       json.RawMessage `json:"metrics"`
	Shadow        json.RawMessage `json:"shadow"`
	CreatedAt     time.Time       `json:"created_at"`
	UpdatedAt     time.Time       `json:"updated_at"`
}

// VariantView is a variant as the admin API shows it; State is live, masked or killed.
type VariantView struct {
	Name          string                     `json:"name"`
	Weight        int                        `json:"weight"`
	State         string                     `json:"state"`
	Upstream      string                     `json:"upstream"`
	Model         string                     `json:"model"`
	Version       string                     `json:"version"`
	Params        map[string]json.RawMessage `json:"params,omitempty"`
	ParamsDefault map[string]json.RawMessage `json:"params_default,omitempty"`
	ParamsRemove  []string                   `json:"params_remove,omitempty"`
	Prompt        *Prompt                    `json:"prompt,omitempty"`
	Fallback      string                     `json:"fallback,omitempty"`
	Price         *Price                     `json:"price,omitempty"`
}

// View shows e; revision is its ETag (0: e.UpdatedRevision).
func View(e *Experiment, revision int64) ExperimentView { return ExperimentView{} }

// ParseDocument reads a document strictly: an unknown or repeated member, a
// wrong type, a missing weight is a problem with its JSON pointer. The error is Problems.
func ParseDocument(data []byte) (*Document, error) { return nil, errBuilding }

// ParseExperiment, ParseUpstream and ParseModel read one object as strictly.
func ParseExperiment(data []byte) (*Experiment, error) { return nil, errBuilding }

// ParseUpstream reads one upstream strictly.
func ParseUpstream(data []byte) (*Upstream, error) { return nil, errBuilding }

// ParseModel reads one model strictly.
func ParseModel(data []byte) (*Model, error) { return nil, errBuilding }

// Clone is a deep copy.
func (d *Document) Clone() *Document { return nil }

// Clone is a deep copy.
func (s *Snapshot) Clone() *Snapshot { return nil }

// Experiment finds an experiment by key, nil when absent. The pointer is into d.
func (d *Document) Experiment(key string) *Experiment { return nil }

// Upstream finds an upstream by name, nil when absent. The pointer is into d.
func (d *Document) Upstream(name string) *Upstream { return nil }

// Model finds a model by its public name (no aliases), nil when absent. The pointer is into d.
func (d *Document) Model(name string) *Model { return nil }

// ValidateOptions are what validation cannot know from the document.
type ValidateOptions struct {
	// Secrets says whether a credential's name resolves; nil: not known here, not checked.
	Secrets func(name string) bool
}

// Validate finds all faults of d; nil when there is none.
func Validate(d *Document, o ValidateOptions) Problems { return nil }

// Error joins the problems, one a line: "path: message".
func (ps Problems) Error() string { return "" }

// Err is nil without problems.
func (ps Problems) Err() error { return nil }
