// Package config loads the process settings of design.md section 4: one strict
// YAML file, environment variables and flags, in the order flag > env > file >
// default. It hides YAML, interpolation, positions and where each value came
// from. The `resources:` section of the file comes out as a router.Document.
package config

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"sluice/router"
)

// Config is the whole of the process settings. The tags drive the decoder, the
// JSON Schema and `config show`: json names the key, enum lists the only
// values, desc explains it. Durations are written "5s", sizes "64MiB".
type Config struct {
	Server    Server               `json:"server" desc:"The data plane."`
	Admin     Admin                `json:"admin" desc:"The admin API, UI, metrics and pprof."`
	Storage   Storage              `json:"storage" desc:"The database: the durable truth."`
	Redis     Redis                `json:"redis" desc:"Sticky state shared by several replicas."`
	Metrics   Metrics              `json:"metrics" desc:"An extra listener for scrapers."`
	Secrets   map[string]SecretRef `json:"secrets" desc:"Names that an upstream's credential refers to, and where each secret is read."`
	Auth      Auth                 `json:"auth" desc:"Who may call the data plane."`
	Log       Log                  `json:"log" desc:"The process log and the access log."`
	DataDir   string               `json:"data_dir" desc:"Directory of the last good snapshot; empty: none is kept."`
	Webhook   Webhook              `json:"webhook" desc:"Who is told what happens to rollouts; nobody without."`
	Limits    Guardrails           `json:"guardrails" desc:"What guardrails may reach."`
	Upstreams UpstreamDefaults     `json:"upstream_defaults" desc:"What upstreams have that do not say otherwise."`
	Resources *router.Document     `json:"resources" desc:"Seeds objects that do not exist yet; never interpolated."`

	origins   map[string]Origin
	resources *node  // for Locate
	file      string // Sources.Path
	// getenv is for Secret; a function, so that printing a Config cannot show
	// the environment.
	getenv   func(string) string
	warnings []string
}

// Server are the settings of the data plane's listener.
type Server struct {
	Listen           string        `json:"listen" desc:"host:port of the data plane."`
	TLS              TLS           `json:"tls" desc:"TLS on the data plane; off without."`
	Drain            Drain         `json:"drain" desc:"Shutdown."`
	MaxBody          Size          `json:"max_body" desc:"Largest request body; over it 413."`
	ReadDeadline     time.Duration `json:"read_deadline" desc:"Longest silence while a request is read."`
	WriteDeadline    time.Duration `json:"write_deadline" desc:"Longest time for one write to a client."`
	MaxBufferedBytes Size          `json:"max_buffered_bytes" desc:"Bytes of request bodies held at once; over it 503."`
	CORS             CORS          `json:"cors" desc:"Browser origins; off without any."`
	OverrideHeaders  []string      `json:"override_headers" desc:"More header names that force a variant, beside x-sluice-variant."`
}

// TLS names the files of a key pair, PEM. They are followed: a renewed pair is
// used within seconds.
type TLS struct {
	Cert string `json:"cert" desc:"File with the certificate and what it is signed by, PEM."`
	Key  string `json:"key" desc:"File with the private key, PEM."`
}

// Drain is how the process stops. A nil Delay is 0 on a loopback listener and
// 5 s elsewhere; Config.DrainDelay decides.
type Drain struct {
	Delay   *time.Duration `json:"delay" desc:"Serving goes on for so long after readyz said 503; 5s, on loopback 0."`
	Timeout time.Duration  `json:"timeout" desc:"Longest wait for streams in flight."`
}

// CORS lists the browser origins that may call the data plane ("*" is any).
type CORS struct {
	Origins []string `json:"origins" desc:"Origins such as https://app.example.com, or *."`
}

// Admin are the settings of the admin listener.
type Admin struct {
	Listen   string `json:"listen" desc:"host:port of the admin API and UI."`
	Token    Secret `json:"token" desc:"Bearer token with role admin; empty: loopback only."`
	BasePath string `json:"base_path" desc:"Path prefix of the UI and API behind a proxy, such as /sluice."`
}

// Storage is the database.
type Storage struct {
	URL SecretURL `json:"url" desc:"sqlite:PATH or postgres://user:password@host/database."`
}

// Redis is the shared sticky store; an empty URL embeds it in the process.
type Redis struct {
	URL SecretURL `json:"url" desc:"redis://, rediss:// or unix://, a cluster with ?cluster=true, sentinels with ?master_name=NAME; empty: embedded."`
}

// Metrics is the optional listener with /metrics only.
type Metrics struct {
	Listen string `json:"listen" desc:"host:port with /metrics only; empty: none."`
}

// SecretRef says where a secret is read: exactly one of the two.
type SecretRef struct {
	Env  string `json:"env" desc:"Name of an environment variable."`
	File string `json:"file" desc:"Path of a file; trailing newlines are dropped."`
}

// Auth says who may call the data plane.
type Auth struct {
	// Data is "none", "keys" or "" (not set: as none, on loopback only).
	Data string `json:"data" enum:"none,keys" desc:"none: anybody; keys: API keys. Not set: none, on loopback only."`
}

// Log are the settings of the process log and the access log.
type Log struct {
	Format string `json:"format" enum:"json,text" desc:"Form of the process log."`
	Level  string `json:"level" enum:"debug,info,warn,error" desc:"Least level that is logged."`
	Access string `json:"access" enum:"stdout,stderr,off" desc:"Where the access log goes, one JSON line a request."`
}

// Webhook is the one receiver of messages about rollouts.
type Webhook struct {
	URL    Secret   `json:"url" desc:"Where messages are POSTed, http or https; empty: nowhere."`
	Secret string   `json:"secret" desc:"Name of the entry of secrets that messages are signed with; empty: they are not signed."`
	Format string   `json:"format" enum:"json,slack" desc:"json, or what incoming webhooks of Slack take."`
	Events []string `json:"events" desc:"What to tell; all without: started, advanced, held, approval_needed, paused, resumed, rolled_back, promoted, completed, killed, srm, budget."`
	Link   string   `json:"link" desc:"Address under which people reach the UI, for links in messages, such as https://sluice.example.com."`
}

// Guardrails is what guardrails of experiments may reach.
type Guardrails struct {
	Prometheus []string `json:"prometheus" desc:"Base URLs of the Prometheus servers that guardrails may ask; any without."`
}

// UpstreamDefaults is what holds for upstreams whose document says nothing.
type UpstreamDefaults struct {
	Timeouts Timeouts `json:"timeouts" desc:"How long to wait for an upstream; 0s: for ever."`
}

// Timeouts have the names of an upstream's own.
type Timeouts struct {
	Connect      time.Duration `json:"connect" desc:"Longest wait for a connection; 0s: no limit."`
	FirstByte    time.Duration `json:"first_byte" desc:"From the request's end to the first event, or the header of a whole answer; 0s: no limit."`
	BetweenBytes time.Duration `json:"between_bytes" desc:"Longest silence within an answer; 0s: no limit."`
	Total        time.Duration `json:"total" desc:"Longest answer; 0s: no limit."`
}

// Default returns the settings without file, environment and flags.
func Default() *Config {
	return &Config{
		Server: Server{
			Listen:           "127.0.0.1:8080",
			Drain:            Drain{Timeout: 15 * time.Minute},
			MaxBody:          64 << 20,
			ReadDeadline:     30 * time.Second,
			WriteDeadline:    30 * time.Second,
			MaxBufferedBytes: 1 << 30,
		},
		Admin:   Admin{Listen: "127.0.0.1:8081"},
		Storage: Storage{URL: "sqlite:data/sluice.db"},
		Log:     Log{Format: "json", Level: "info", Access: "stdout"},
		DataDir: "data",
		Webhook: Webhook{Format: "json"},
		Upstreams: UpstreamDefaults{
			Timeouts: Timeouts{Connect: 2 * time.Second, FirstByte: 10 * time.Minute, BetweenBytes: 2 * time.Minute},
		},
		getenv: func(string) string { return "" },
	}
}

// DrainDelay is server.drain.delay, by the listener where it is not set.
func (c *Config) DrainDelay() time.Duration {
	switch {
	case c.Server.Drain.Delay != nil:
		return *c.Server.Drain.Delay
	case IsLoopback(c.Server.Listen):
		return 0
	}
	return 5 * time.Second
}

// AuthNone reports whether the data plane asks for no key.
func (c *Config) AuthNone() bool { return c.Auth.Data != "keys" }

// Warnings are remarks about settings that work but are probably not meant.
func (c *Config) Warnings() []string { return c.warnings }

// IsLoopback reports whether a host:port address can be reached from this
// machine only. A name other than localhost counts as reachable from outside.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
