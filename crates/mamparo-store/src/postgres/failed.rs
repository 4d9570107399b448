//! Failed messages: their table, and what PostgreSQL says differently.

use super::headers_of;

/// The tables of failed messages.
pub(super) const V1: &str = "
CREATE TABLE mamparo_failed (
    seq           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer      TEXT NOT NULL,
    id            TEXT NOT NULL,
    kind          TEXT NOT NULL,
    exchange      TEXT NOT NULL,
    routing_key   TEXT NOT NULL,
    key           TEXT NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('failed', 'replayed', 'discarded', 'archived')),
    reason        TEXT NOT NULL,
    error         TEXT NOT NULL,
    error_group   TEXT NOT NULL,
    attempts      BIGINT NOT NULL,
    failures      BIGINT NOT NULL,
    replays       BIGINT NOT NULL,
    first_failure BIGINT NOT NULL,
    last_failure  BIGINT NOT NULL,
    host          TEXT NOT NULL,
    version       TEXT NOT NULL,
    edited_to     TEXT,
    actor         TEXT,
    action_reason TEXT,
    acted_at      BIGINT,
    owner         TEXT,
    lease_until   BIGINT,
    headers       TEXT NOT NULL,
    body          BYTEA NOT NULL,
    UNIQUE (consumer, id)
);
CREATE INDEX mamparo_failed_open ON mamparo_failed (consumer, seq) WHERE status = 'failed';
CREATE INDEX mamparo_failed_owner ON mamparo_failed (owner) WHERE owner IS NOT NULL;
CREATE INDEX mamparo_failed_acted ON mamparo_failed (acted_at) WHERE acted_at IS NOT NULL;

CREATE TABLE mamparo_failed_log (
    seq      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       BIGINT NOT NULL,
    what     TEXT NOT NULL,
    who      TEXT NOT NULL,
    why      TEXT NOT NULL
);
CREATE INDEX mamparo_failed_log_message ON mamparo_failed_log (consumer, id, seq);
";

crate::backend::failed_rows::implement_failed_rows!(
    sqlx::Postgres,
    "SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(",
    "SELECT value FROM json_array_elements_text(CAST(",
    " AS json))",
    "strpos"
);
