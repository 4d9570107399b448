//! Messages that wait in their broker's queue: their table.

pub(super) const V1: &str = "
CREATE TABLE mamparo_retries (
    consumer   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    since      BIGINT NOT NULL,
    returns    BIGINT NOT NULL,
    owner      TEXT,
    headers    TEXT NOT NULL,
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX mamparo_retries_since ON mamparo_retries (since);
";

crate::backend::implement_retry_rows!(sqlx::Postgres);
