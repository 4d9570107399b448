//! Failed messages: their table, and what SQLite says differently.

use super::headers_of;

/// The tables of failed messages.
pub(super) const V2: &str = "
CREATE TABLE mamparo_failed (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
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
    attempts      INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    replays       INTEGER NOT NULL,
    first_failure INTEGER NOT NULL,
    last_failure  INTEGER NOT NULL,
    host          TEXT NOT NULL,
    version       TEXT NOT NULL,
    edited_to     TEXT,
    actor         TEXT,
    action_reason TEXT,
    acted_at      INTEGER,
    owner         TEXT,
    lease_until   INTEGER,
    headers       TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body          BLOB NOT NULL,
    UNIQUE (consumer, id)
);
CREATE INDEX mamparo_failed_open ON mamparo_failed (consumer, seq) WHERE status = 'failed';
CREATE INDEX mamparo_failed_owner ON mamparo_failed (owner) WHERE owner IS NOT NULL;
CREATE INDEX mamparo_failed_acted ON mamparo_failed (acted_at) WHERE acted_at IS NOT NULL;

CREATE TABLE mamparo_failed_log (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       INTEGER NOT NULL,
    what     TEXT NOT NULL,
    who      TEXT NOT NULL,
    why      TEXT NOT NULL
);
CREATE INDEX mamparo_failed_log_message ON mamparo_failed_log (consumer, id, seq);
";

crate::backend::failed_rows::implement_failed_rows!(
    sqlx::Sqlite,
    "SELECT value FROM json_each(",
    "SELECT value FROM json_each(",
    ")",
    "instr"
);
