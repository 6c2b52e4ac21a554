// Package router holds the domain document (upstreams, models, experiments),
// compiles it into an immutable Table and answers "where does this request
// go?". It hides validation, name resolution and the atomic swap.
package router

import (
	"encoding/json"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// Document is the one logical configuration document. Its JSON form is what
// the database stores, the admin API shows and `sluice apply` sends; the same
// names are the YAML names below `resources:`.
type Document struct {
	Revision    int64        `json:"revision"`
	Upstreams   []Upstream   `json:"upstreams"`
	Models      []Model      `json:"models"`
	Experiments []Experiment `json:"experiments"`
	// Tombstones name deleted objects ("upstream/v1"), which a seed does not revive.
	Tombstones []string `json:"tombstones,omitempty"`
}

// Duration is a time.Duration written as a string ("5m").
type Duration time.Duration

// Upstream is a named set of interchangeable replicas.
type Upstream struct {
	Name            string     `json:"name"`
	Dialect         string     `json:"dialect,omitempty"`
	Endpoints       []string   `json:"endpoints"`
	Credential      string     `json:"credential,omitempty"` // name in the process's secrets, never a secret
	Usage           string     `json:"usage,omitempty"`      // final | exact
	Balance         string     `json:"balance,omitempty"`
	Timeouts        *Timeouts  `json:"timeouts,omitempty"`
	Readiness       *Readiness `json:"readiness,omitempty"`
	DenyFields      *[]string  `json:"deny_fields,omitempty"`
	Headers         *Headers   `json:"headers,omitempty"`
	Price           *Price     `json:"price,omitempty"`
	TLS             *TLS       `json:"tls,omitempty"`
	Limits          *Limits    `json:"limits,omitempty"`
	Warmup          *Warmup    `json:"warmup,omitempty"`
	SlowStart       *Duration  `json:"slow_start,omitempty"` // 10s
	ColdStart       *ColdStart `json:"cold_start,omitempty"`
	Hedge           *Hedge     `json:"hedge,omitempty"`
	Drained         []string   `json:"drained,omitempty"` // base URLs of endpoints, or "*"; set by :drain
	Stream          *Stream    `json:"stream,omitempty"`
	GPU             *GPU       `json:"gpu,omitempty"`              // kept for GPU cost: see docs/ARCHITECTURE.md, seams
	UpdatedRevision int64      `json:"updated_revision,omitempty"` // the ETag
}

// Stream are the keep-alive settings.
type Stream struct {
	KeepAlive       *Duration `json:"keep_alive,omitempty"`        // after the commit point, 15s
	KeepAliveBefore *Duration `json:"keep_alive_before,omitempty"` // 45s
}

// Timeouts, Readiness, Headers, TLS, Limits, Warmup, GPU and Price are the
// members of the same names in design.md section 6.
type (
	Timeouts struct {
		Connect      *Duration `json:"connect,omitempty"`
		FirstByte    *Duration `json:"first_byte,omitempty"`
		BetweenBytes *Duration `json:"between_bytes,omitempty"`
		Total        *Duration `json:"total,omitempty"`
	}
	Readiness struct {
		Path     string    `json:"path,omitempty"`
		Interval *Duration `json:"interval,omitempty"`
		Down     int       `json:"down,omitempty"`
		Up       int       `json:"up,omitempty"`
	}
	Headers struct {
		Request  []string `json:"request,omitempty"`
		Response []string `json:"response,omitempty"`
	}
	TLS struct {
		CAFile   string `json:"ca_file,omitempty"`
		CertFile string `json:"cert_file,omitempty"`
		KeyFile  string `json:"key_file,omitempty"`
	}
	Limits struct {
		MaxInFlight  int       `json:"max_in_flight,omitempty"`
		MaxQueue     int       `json:"max_queue,omitempty"`
		QueueTimeout *Duration `json:"queue_timeout,omitempty"`
	}
	Warmup struct {
		Requests int `json:"requests,omitempty"`
	}
	ColdStart struct {
		MaxWait Duration `json:"max_wait"`
		Wake    string   `json:"wake,omitempty"` // URL that is POSTed to when requests wait
	}
	Hedge struct {
		Quantile float64   `json:"quantile"`            // of the upstream's TTFT
		Min      *Duration `json:"min,omitempty"`       // 1s
		MaxShare float64   `json:"max_share,omitempty"` // 0.05
	}
	GPU struct {
		Count         int    `json:"count,omitempty"`
		USDPerGPUHour string `json:"usd_per_gpu_hour,omitempty"`
	}
	// Price members are decimal strings, USD per 1M tokens (request: USD per
	// request), at most 6 decimals; absent is unknown, "0" is free.
	Price struct {
		Input       *string `json:"input,omitempty"`
		CachedInput *string `json:"cached_input,omitempty"`
		CacheWrite  *string `json:"cache_write,omitempty"`
		Output      *string `json:"output,omitempty"`
		Reasoning   *string `json:"reasoning,omitempty"`
		Request     *string `json:"request,omitempty"`
	}
)

// Model is a public name and where it goes without an experiment.
type Model struct {
	Name            string   `json:"name"`
	Aliases         []string `json:"aliases,omitempty"` // exact before longest prefix ("gpt-4*")
	Default         Route    `json:"default"`
	EchoPublicModel bool     `json:"echo_public_model,omitempty"`
	ExposeHeaders   *bool    `json:"expose_headers,omitempty"` // nil = true
	UpdatedRevision int64    `json:"updated_revision,omitempty"`
}

// Route is an upstream and the served model name on it.
type Route struct {
	Upstream string `json:"upstream"`
	Model    string `json:"model,omitempty"` // "" = the public name
}

// Experiment is variants with weights over one model.
type Experiment struct {
	Key           string               `json:"key"`
	Model         string               `json:"model"`
	Kind          string               `json:"kind"`  // canary | ab
	State         string               `json:"state"` // draft running paused promoted rolled_back completed archived
	Seed          string               `json:"seed,omitempty"`
	Hash          string               `json:"hash,omitempty"` // "" (sha256) | growthbook1 | growthbook2
	Generation    int                  `json:"generation,omitempty"`
	GenRevision   int64                `json:"gen_revision,omitempty"` // revision at which the generation began
	Unit          *Unit                `json:"unit,omitempty"`
	Baseline      string               `json:"baseline"`
	Stickiness    string               `json:"stickiness,omitempty"`  // bucket | user | none; "" by kind
	Switch        string               `json:"switch,omitempty"`      // request | conversation; "" = request
	Merge         bool                 `json:"merge,omitempty"`       // a user takes over the pin of the session; stickiness user
	BlockBelow    int                  `json:"block_below,omitempty"` // units pinned in an earlier generation than this stay out; stickiness user
	Holdout       *Holdout             `json:"holdout,omitempty"`
	Winner        string               `json:"winner,omitempty"` // after promote
	Variants      []Variant            `json:"variants"`
	Targeting     []experiment.Rule    `json:"targeting,omitempty"`
	Fixed         []experiment.Segment `json:"fixed,omitempty"` // segments fixed to a variant
	Slice         *[2]int              `json:"slice,omitempty"`
	OverrideNames []string             `json:"override_headers,omitempty"` // more header names
	CreatedAt     time.Time            `json:"created_at,omitzero"`
	UpdatedAt     time.Time            `json:"updated_at,omitzero"`
	// RunsFrom is the revision since which conversations may still run (switch:
	// conversation), where that is before GenRevision; kept by the server.
	RunsFrom int64 `json:"runs_from,omitempty"`
	// Allocation is the ownership table, run-length coded; kept by the server.
	Allocation *experiment.Allocation `json:"allocation,omitempty"`
	// Ramp and Guardrails are what a person wrote: see Policy and Watched.
	Ramp       json.RawMessage `json:"ramp,omitempty"`
	Guardrails json.RawMessage `json:"guardrails,omitempty"`
	// RampState is the ramp's standing, LastRollback what was rolled back last;
	// both are kept by the server.
	RampState    *ramp.State   `json:"ramp_state,omitempty"`
	LastRollback *RollbackMark `json:"last_rollback,omitempty"`
	// Setup is what counts as slow in an experiment without a ramp, fixed once a
	// generation; kept by the server.
	Setup *trial.Setup `json:"setup,omitempty"`
	// Accepted, validated for shape and kept.
	Metrics         json.RawMessage `json:"metrics,omitempty"`
	Shadow          json.RawMessage `json:"shadow,omitempty"`
	UpdatedRevision int64           `json:"updated_revision,omitempty"`
}

// Unit is where the unit id comes from, in order; nil = the default chain.
type Unit struct {
	From []string `json:"from"`
}

// Holdout keeps a share of the units out of every experiment that names it: the
// same units in all of them, whatever their models and seeds.
type Holdout struct {
	Name  string `json:"name"`
	Share int    `json:"share"` // basis points, the same in every experiment that names it
}

// Variant is what a user may be given.
type Variant struct {
	Name          string                     `json:"name"`
	Weight        int                        `json:"weight"`                // basis points
	State         string                     `json:"state,omitempty"`       // "" = live | killed
	CutStreams    bool                       `json:"cut_streams,omitempty"` // killed, or rolled back, with its streams; kept by the server
	Upstream      string                     `json:"upstream"`
	Model         string                     `json:"model,omitempty"`
	Version       string                     `json:"version,omitempty"`
	Params        map[string]json.RawMessage `json:"params,omitempty"`
	ParamsDefault map[string]json.RawMessage `json:"params_default,omitempty"`
	ParamsRemove  []string                   `json:"params_remove,omitempty"`
	Prompt        *Prompt                    `json:"prompt,omitempty"`
	Fallback      string                     `json:"fallback,omitempty"`
	Priority      *int                       `json:"priority,omitempty"` // in an upstream's queue, 0..100; absent: 10, and 5 for a canary that is not the baseline
	Price         *Price                     `json:"price,omitempty"`
}

// Prompt is merged into the first system message.
type Prompt struct {
	SystemPrepend string `json:"system_prepend,omitempty"`
	SystemAppend  string `json:"system_append,omitempty"`
}

// Key is an API key of the data plane as the snapshot has it: a hash only.
type Key struct {
	ID        string            `json:"id"`
	Hash      string            `json:"hash"` // hex SHA-256 of the secret
	Name      string            `json:"name"`
	Tenant    string            `json:"tenant,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Models    []string          `json:"models,omitempty"` // allowed public models; empty = all
	Scopes    []string          `json:"scopes,omitempty"` // override, identity
	User      string            `json:"user,omitempty"`   // key-bound end user
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
	RevokedAt time.Time         `json:"revoked_at,omitzero"`
	CreatedAt time.Time         `json:"created_at,omitzero"`
	Prefix    string            `json:"prefix,omitempty"` // for people: sk-sluice-…ab12
}

// Snapshot is everything a Table is compiled from, at one revision.
type Snapshot struct {
	Document Document `json:"document"`
	Keys     []Key    `json:"keys"`
}
