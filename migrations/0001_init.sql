-- One text for SQLite and PostgreSQL. Times are unix microseconds, minutes are
-- unix minutes, money is nano-USD, JSON is TEXT, booleans are 0 or 1, ids are
-- made by the gateway.

-- +goose Up

-- The one row that every commit locks first: it serialises revisions and the audit chain.
CREATE TABLE head (
    id         BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    revision   BIGINT NOT NULL,
    audit_seq  BIGINT NOT NULL,
    audit_hash TEXT   NOT NULL,
    fence      BIGINT NOT NULL,
    writes     BIGINT NOT NULL
);
INSERT INTO head (id, revision, audit_seq, audit_hash, fence, writes) VALUES (1, 0, 0, '', 0, 0);

CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE revisions (
    revision   BIGINT NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL,
    actor      TEXT   NOT NULL,
    action     TEXT   NOT NULL,
    object     TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    fence      BIGINT NOT NULL,
    document   TEXT   NOT NULL
);

CREATE TABLE api_keys (
    id         TEXT   NOT NULL PRIMARY KEY,
    hash       TEXT   NOT NULL UNIQUE,
    name       TEXT   NOT NULL,
    tenant     TEXT   NOT NULL,
    body       TEXT   NOT NULL, -- the whole key as JSON; the columns beside it are for constraints and people
    revoked_at BIGINT,
    revision   BIGINT NOT NULL
);

CREATE TABLE admin_tokens (
    id           TEXT   NOT NULL PRIMARY KEY,
    hash         TEXT   NOT NULL UNIQUE,
    name         TEXT   NOT NULL,
    role         TEXT   NOT NULL,
    prefix       TEXT   NOT NULL,
    scope        TEXT   NOT NULL, -- JSON: route and experiment prefixes, CIDRs
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    last_used_at BIGINT,
    revoked_at   BIGINT
);

CREATE TABLE audit (
    seq          BIGINT NOT NULL PRIMARY KEY,
    id           TEXT   NOT NULL UNIQUE,
    revision     BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    actor        TEXT   NOT NULL,
    role         TEXT   NOT NULL,
    ip           TEXT   NOT NULL,
    request_id   TEXT   NOT NULL,
    action       TEXT   NOT NULL,
    object       TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    value_before TEXT,
    value_after  TEXT,
    prev         TEXT   NOT NULL,
    hash         TEXT   NOT NULL
);
CREATE INDEX audit_object ON audit (object, seq);
CREATE INDEX audit_actor ON audit (actor, seq);

-- The ledger: one row per request.
CREATE TABLE events (
    request_id        TEXT   NOT NULL PRIMARY KEY, -- UUIDv7: sorts by time
    created_at        BIGINT NOT NULL,
    client_request_id TEXT   NOT NULL,
    api               TEXT   NOT NULL,
    model             TEXT   NOT NULL,
    experiment        TEXT   NOT NULL, -- '' = none
    generation        BIGINT NOT NULL,
    assigned          TEXT   NOT NULL, -- '' = default
    served            TEXT   NOT NULL,
    version           TEXT   NOT NULL,
    role              TEXT   NOT NULL,
    source            TEXT   NOT NULL,
    bucket            BIGINT NOT NULL,
    reason            TEXT   NOT NULL,
    revision          BIGINT NOT NULL,
    unit              TEXT   NOT NULL, -- hex of the pin field, '' without unit
    analysed          BIGINT NOT NULL,
    key_id            TEXT   NOT NULL,
    tenant            TEXT   NOT NULL,
    upstream          TEXT   NOT NULL,
    endpoint          TEXT   NOT NULL,
    outcome           TEXT   NOT NULL,
    status            BIGINT NOT NULL,
    stream            BIGINT NOT NULL,
    ttft              BIGINT, -- microseconds, NULL = no first byte
    duration          BIGINT NOT NULL,
    overhead          BIGINT NOT NULL,
    finish_reason     TEXT   NOT NULL,
    retry_count       BIGINT NOT NULL,
    attempts          BIGINT NOT NULL,
    input_tokens      BIGINT, -- sums over the attempts, NULL = not metered
    cached_tokens     BIGINT,
    cache_write       BIGINT,
    output_tokens     BIGINT,
    reasoning         BIGINT,
    cost_nano         BIGINT, -- of the priced attempts, NULL = price unknown for all of them
    estimated         BIGINT NOT NULL
);

-- The calls of requests that made more or other than one plain call; the
-- figures of a single call are its request's own row.
CREATE TABLE attempts (
    request_id    TEXT   NOT NULL,
    n             BIGINT NOT NULL,
    started_at    BIGINT NOT NULL,
    variant       TEXT   NOT NULL,
    upstream      TEXT   NOT NULL,
    endpoint      TEXT   NOT NULL,
    outcome       TEXT   NOT NULL,
    status        BIGINT NOT NULL,
    duration      BIGINT NOT NULL,
    reason        TEXT   NOT NULL,
    input_tokens  BIGINT,
    cached_tokens BIGINT,
    cache_write   BIGINT,
    output_tokens BIGINT,
    reasoning     BIGINT,
    cost_nano     BIGINT,
    estimated     BIGINT NOT NULL,
    PRIMARY KEY (request_id, n)
);

-- Per minute and assigned variant; additive, so that any replica may add to any row.
CREATE TABLE rollups (
    minute        BIGINT NOT NULL,
    model         TEXT   NOT NULL,
    experiment    TEXT   NOT NULL,
    variant       TEXT   NOT NULL,
    role          TEXT   NOT NULL,
    outcome       TEXT   NOT NULL,
    requests      BIGINT NOT NULL,
    attempts      BIGINT NOT NULL,
    fallbacks     BIGINT NOT NULL,
    metered       BIGINT NOT NULL,
    estimated     BIGINT NOT NULL,
    priced        BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    cache_write   BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning     BIGINT NOT NULL,
    cost_nano     BIGINT NOT NULL,
    duration      BIGINT NOT NULL,
    ttft          BIGINT NOT NULL,
    ttft_count    BIGINT NOT NULL,
    PRIMARY KEY (minute, model, experiment, variant, role, outcome)
);
CREATE INDEX rollups_experiment ON rollups (experiment, minute);

-- Log-spaced latency histograms of the successes; rows older than a few hours are folded into hours.
CREATE TABLE rollup_latency (
    minute     BIGINT NOT NULL,
    model      TEXT   NOT NULL,
    experiment TEXT   NOT NULL,
    variant    TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    kind       TEXT   NOT NULL, -- ttft | duration
    bucket     BIGINT NOT NULL,
    count      BIGINT NOT NULL,
    PRIMARY KEY (minute, model, experiment, variant, role, kind, bucket)
);
CREATE INDEX rollup_latency_experiment ON rollup_latency (experiment, minute);

-- Per hour with the dimensions of a bill; kept when events are gone. Requests
-- are booked to the upstream that answered, tokens and cost to the upstream of
-- each attempt.
CREATE TABLE usage_hours (
    hour          BIGINT NOT NULL, -- unix minute at which the hour begins
    tenant        TEXT   NOT NULL,
    key_id        TEXT   NOT NULL,
    model         TEXT   NOT NULL,
    experiment    TEXT   NOT NULL,
    variant       TEXT   NOT NULL,
    role          TEXT   NOT NULL,
    upstream      TEXT   NOT NULL,
    requests      BIGINT NOT NULL,
    errors        BIGINT NOT NULL,
    attempts      BIGINT NOT NULL,
    metered       BIGINT NOT NULL,
    estimated     BIGINT NOT NULL,
    priced        BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    cache_write   BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning     BIGINT NOT NULL,
    cost_nano     BIGINT NOT NULL,
    PRIMARY KEY (hour, tenant, key_id, model, experiment, variant, role, upstream)
);

-- The first analysed request of a unit in a generation.
CREATE TABLE exposures (
    experiment TEXT   NOT NULL,
    generation BIGINT NOT NULL,
    unit       TEXT   NOT NULL,
    variant    TEXT   NOT NULL,
    revision   BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (experiment, generation, unit)
);

-- The durable copy of the pins that Redis holds.
CREATE TABLE pins (
    experiment TEXT   NOT NULL,
    field      TEXT   NOT NULL, -- hex
    shard      BIGINT NOT NULL,
    variant    BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    revision   BIGINT NOT NULL, -- low 32 bits
    flags      BIGINT NOT NULL,
    PRIMARY KEY (experiment, field)
);

CREATE TABLE idempotency (
    actor      TEXT   NOT NULL,
    route      TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    body_hash  TEXT   NOT NULL,
    status     BIGINT NOT NULL, -- 0 = still running
    header     TEXT   NOT NULL,
    body       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (actor, route, name)
);
CREATE INDEX idempotency_created ON idempotency (created_at);

CREATE TABLE replicas (
    id       TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    seen_at  BIGINT NOT NULL
);

-- +goose Down
DROP TABLE replicas;
DROP TABLE idempotency;
DROP TABLE pins;
DROP TABLE exposures;
DROP TABLE usage_hours;
DROP TABLE rollup_latency;
DROP TABLE rollups;
DROP TABLE attempts;
DROP TABLE events;
DROP TABLE audit;
DROP TABLE admin_tokens;
DROP TABLE api_keys;
DROP TABLE revisions;
DROP TABLE meta;
DROP TABLE head;
