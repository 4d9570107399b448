//! Rows of idempotency keys. What may become of a row, `mamparo_core` decides.

use mamparo_core::message::idempotency::{Phase, Record};
use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, Result, Row};

use crate::backend::KeyRows;
use crate::columns::{column_error, count_of, time_of};
use crate::idempotency::StoredResponse;

pub(super) const V1: &str = "
CREATE TABLE mamparo_idempotency (
    caller       TEXT NOT NULL,
    key          TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    epoch        BIGINT NOT NULL,
    phase        TEXT NOT NULL CHECK (phase IN ('running', 'released', 'completed')),
    lease_until  BIGINT,
    keep_until   BIGINT NOT NULL,
    completed_at BIGINT,
    status       BIGINT,
    headers      TEXT,
    body         BYTEA,
    PRIMARY KEY (caller, key)
);
CREATE INDEX mamparo_idempotency_keep ON mamparo_idempotency (keep_until);
";

pub(super) const LOAD: &str = "SELECT fingerprint, epoch, phase, lease_until, keep_until
     FROM mamparo_idempotency WHERE caller = $1 AND key = $2";

pub(super) const LOCK: &str = "SELECT fingerprint, epoch, phase, lease_until, keep_until
     FROM mamparo_idempotency WHERE caller = $1 AND key = $2 FOR NO KEY UPDATE";

pub(super) const FORGET: &str = "DELETE FROM mamparo_idempotency WHERE ctid = ANY (ARRAY(
     SELECT ctid FROM mamparo_idempotency WHERE keep_until <= $1
     ORDER BY keep_until LIMIT $2 FOR UPDATE SKIP LOCKED))";

impl KeyRows for Postgres {
    /// A row must be there to be locked, so a new key gets one first. Of two that come together, the
    /// second waits here, and then finds what the first has written.
    async fn claim_key(conn: &mut PgConnection, caller: &str, key: &str) -> Result<Option<Record>> {
        let row = sqlx::query(
            "INSERT INTO mamparo_idempotency AS row
                 (caller, key, fingerprint, epoch, phase, keep_until)
             VALUES ($1, $2, '', 0, 'released', 0)
             ON CONFLICT (caller, key) DO UPDATE SET epoch = row.epoch
             RETURNING xmax = 0 AS fresh, fingerprint, epoch, phase, lease_until, keep_until",
        )
        .bind(caller)
        .bind(key)
        .fetch_one(conn)
        .await?;
        if row.try_get("fresh")? { Ok(None) } else { record_of(&row).map(Some) }
    }

    async fn lock_key(conn: &mut PgConnection, caller: &str, key: &str) -> Result<Option<Record>> {
        let row = sqlx::query(LOCK).bind(caller).bind(key).fetch_optional(conn).await?;
        row.as_ref().map(record_of).transpose()
    }

    async fn load_key(conn: &mut PgConnection, caller: &str, key: &str) -> Result<Option<Record>> {
        let row = sqlx::query(LOAD).bind(caller).bind(key).fetch_optional(conn).await?;
        row.as_ref().map(record_of).transpose()
    }

    async fn save_key(
        conn: &mut PgConnection,
        caller: &str,
        key: &str,
        record: &Record,
        answer: Option<(&StoredResponse, WallTime)>,
    ) -> Result<()> {
        let (phase, lease_until) = match record.phase {
            Phase::Running { lease_until } => ("running", Some(lease_until.unix_millis())),
            Phase::Released => ("released", None),
            Phase::Completed => ("completed", None),
        };
        let response = answer.map(|(response, _)| response);
        let headers = response
            .map(|response| serde_json::to_string(&response.headers))
            .transpose()
            .map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
        sqlx::query(
            "UPDATE mamparo_idempotency SET fingerprint = $3, epoch = $4, phase = $5,
                 lease_until = $6, keep_until = $7, completed_at = $8, status = $9, headers = $10,
                 body = $11
             WHERE caller = $1 AND key = $2",
        )
        .bind(caller)
        .bind(key)
        .bind(&record.fingerprint)
        .bind(record.epoch)
        .bind(phase)
        .bind(lease_until)
        .bind(record.keep_until.unix_millis())
        .bind(answer.map(|(_, now)| now.unix_millis()))
        .bind(response.map(|response| i64::from(response.status)))
        .bind(headers)
        .bind(response.map(|response| response.body.as_slice()))
        .execute(conn)
        .await
        .map(drop)
    }

    async fn load_response(
        conn: &mut PgConnection,
        caller: &str,
        key: &str,
    ) -> Result<StoredResponse> {
        let row = sqlx::query(
            "SELECT status, headers, body FROM mamparo_idempotency
             WHERE caller = $1 AND key = $2 AND phase = 'completed'",
        )
        .bind(caller)
        .bind(key)
        .fetch_one(conn)
        .await?;
        Ok(StoredResponse {
            status: count_of(&row, "status")?,
            headers: serde_json::from_str(row.try_get("headers")?)
                .map_err(|source| column_error("headers", source))?,
            body: row.try_get("body")?,
        })
    }

    async fn forget_keys(conn: &mut PgConnection, now: WallTime, max: u32) -> Result<u64> {
        sqlx::query(FORGET)
            .bind(now.unix_millis())
            .bind(i64::from(max))
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    }
}

fn record_of(row: &PgRow) -> Result<Record> {
    let phase = match row.try_get("phase")? {
        "released" => Phase::Released,
        "completed" => Phase::Completed,
        // The table's CHECK admits nothing else.
        _running => Phase::Running { lease_until: time_of(row, "lease_until")? },
    };
    Ok(Record {
        fingerprint: row.try_get("fingerprint")?,
        epoch: row.try_get("epoch")?,
        keep_until: time_of(row, "keep_until")?,
        phase,
    })
}
