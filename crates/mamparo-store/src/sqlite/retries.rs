//! Messages that wait in their broker's queue: their table.

pub(super) const V2: &str = "
CREATE TABLE mamparo_retries (
    consumer   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    since      INTEGER NOT NULL,
    returns    INTEGER NOT NULL,
    owner      TEXT,
    headers    TEXT NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
CREATE INDEX mamparo_retries_since ON mamparo_retries (since);
";

crate::backend::implement_retry_rows!(sqlx::Sqlite);
