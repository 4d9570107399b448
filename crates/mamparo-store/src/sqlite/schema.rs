//! The tables, and how an older database gets them. The crate's documentation explains the columns.

use sqlx::{Result, SqliteConnection};

use super::{failed, outbox, parked, queue, retries, shards};

/// Each entry takes the schema from version `index` to `index + 1`. Entries are never edited once
/// released; a change is a new entry.
const MIGRATIONS: &[&[&str]] = &[&[V1], V2];

/// The second version, by subject: each keeps its own.
const V2: &[&str] = &[outbox::V2, shards::V2, failed::V2, parked::V2, queue::V2, retries::V2];

/// The newest version that this program knows.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Brings the schema up to date, in the caller's transaction; the version that was found.
/// Changes nothing when that is newer than [`VERSION`].
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<i64> {
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS mamparo_schema (version INTEGER NOT NULL)")
        .execute(&mut *conn)
        .await?;
    let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM mamparo_schema")
        .fetch_one(&mut *conn)
        .await?;
    for (subjects, version) in MIGRATIONS.iter().zip(1_i64..) {
        if version > found {
            for subject in *subjects {
                sqlx::raw_sql(*subject).execute(&mut *conn).await?;
            }
            sqlx::query("INSERT INTO mamparo_schema (version) VALUES (?)")
                .bind(version)
                .execute(&mut *conn)
                .await?;
        }
    }
    Ok(found)
}

// Bodies stand last in their rows: a long one spills over to other pages, which whoever looks for a
// row's state then need not read.
//
// Only the first pending event of a key may leave. Which one that is stands in `head`: looking for it
// at each claim would read the whole backlog when few keys make up most of it. Triggers hand the mark
// on, so that a row that somebody deletes by hand can't leave its key stuck.
//
// AUTOINCREMENT keeps the number of a deleted row from being given out again: a late report about
// the old row must not hit a new one.
const V1: &str = "
CREATE TABLE mamparo_outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    tries        INTEGER NOT NULL DEFAULT 0,
    owner        TEXT,
    lease_until  INTEGER,
    confirmed_at INTEGER,
    head         INTEGER NOT NULL,
    error        TEXT,
    headers      TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body         BLOB NOT NULL
);
CREATE INDEX mamparo_outbox_ready ON mamparo_outbox (due_at, seq)
    WHERE confirmed_at IS NULL AND head = 1;
CREATE INDEX mamparo_outbox_pending ON mamparo_outbox (seq) WHERE confirmed_at IS NULL;
CREATE INDEX mamparo_outbox_key ON mamparo_outbox (key, seq) WHERE confirmed_at IS NULL;
CREATE INDEX mamparo_outbox_owner ON mamparo_outbox (owner) WHERE owner IS NOT NULL;
CREATE INDEX mamparo_outbox_confirmed ON mamparo_outbox (confirmed_at)
    WHERE confirmed_at IS NOT NULL;
CREATE TRIGGER mamparo_outbox_next_after_confirm
AFTER UPDATE OF confirmed_at ON mamparo_outbox WHEN NEW.confirmed_at IS NOT NULL AND NEW.key <> ''
BEGIN
    UPDATE mamparo_outbox SET head = 1 WHERE seq = (SELECT min(seq) FROM mamparo_outbox
        WHERE confirmed_at IS NULL AND key = NEW.key);
END;
CREATE TRIGGER mamparo_outbox_next_after_delete
AFTER DELETE ON mamparo_outbox WHEN OLD.confirmed_at IS NULL AND OLD.key <> ''
BEGIN
    UPDATE mamparo_outbox SET head = 1 WHERE seq = (SELECT min(seq) FROM mamparo_outbox
        WHERE confirmed_at IS NULL AND key = OLD.key);
END;

CREATE TABLE mamparo_inbox (
    consumer   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    duplicates INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
CREATE INDEX mamparo_inbox_applied ON mamparo_inbox (applied_at);

CREATE TABLE mamparo_attempts (
    consumer    TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    owner       TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    alive_until INTEGER NOT NULL,
    PRIMARY KEY (consumer, message_id, owner)
) WITHOUT ROWID;

CREATE TABLE mamparo_idempotency (
    caller      TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    phase       TEXT NOT NULL CHECK (phase IN ('running', 'released', 'completed')),
    lease_until INTEGER,
    keep_until  INTEGER NOT NULL,
    completed_at INTEGER,
    status      INTEGER,
    headers     TEXT,
    body        BLOB,
    PRIMARY KEY (caller, key)
);
CREATE INDEX mamparo_idempotency_keep ON mamparo_idempotency (keep_until);

CREATE TABLE mamparo_queues (
    name           TEXT PRIMARY KEY,
    message_ttl    INTEGER,
    dead_letter_to TEXT,
    published      INTEGER NOT NULL DEFAULT 0,
    moved_in       INTEGER NOT NULL DEFAULT 0,
    moved_out      INTEGER NOT NULL DEFAULT 0,
    acked          INTEGER NOT NULL DEFAULT 0,
    archived       INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX mamparo_queues_dead_letter ON mamparo_queues (dead_letter_to)
    WHERE dead_letter_to IS NOT NULL;

CREATE TABLE mamparo_bindings (
    exchange TEXT NOT NULL,
    pattern  TEXT NOT NULL,
    queue    TEXT NOT NULL REFERENCES mamparo_queues (name),
    PRIMARY KEY (exchange, pattern, queue)
) WITHOUT ROWID;

CREATE TABLE mamparo_messages (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT NOT NULL REFERENCES mamparo_queues (name),
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL,
    exchange    TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    key         TEXT NOT NULL,
    since       INTEGER NOT NULL,
    visible_at  INTEGER NOT NULL,
    epoch       INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    owner       TEXT,
    lease_until INTEGER,
    headers     TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body        BLOB NOT NULL
);
CREATE INDEX mamparo_messages_queue ON mamparo_messages (queue, seq);
CREATE INDEX mamparo_messages_since ON mamparo_messages (queue, since);
CREATE INDEX mamparo_messages_owner ON mamparo_messages (owner) WHERE owner IS NOT NULL;

CREATE TABLE mamparo_archive (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT NOT NULL,
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL,
    exchange    TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    key         TEXT NOT NULL,
    since       INTEGER NOT NULL,
    archived_at INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    headers     TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body        BLOB NOT NULL
);
CREATE INDEX mamparo_archive_queue ON mamparo_archive (queue, seq);
";
