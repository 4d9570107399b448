//! Rows of idempotency keys. What may become of a row, `mamparo_core` decides.

use mamparo_core::message::idempotency::{Phase, Record};
use mamparo_core::time::WallTime;
use sqlx::{Result, Row, Sqlite, SqliteConnection};

use crate::backend::KeyRows;
use crate::columns::{column_error, count_of, time_of};
use crate::idempotency::StoredResponse;

impl KeyRows for Sqlite {
    // The transaction has the only write lock there is.
    async fn claim_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<Option<Record>> {
        load(conn, caller, key).await
    }

    async fn lock_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<Option<Record>> {
        load(conn, caller, key).await
    }

    async fn load_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<Option<Record>> {
        load(conn, caller, key).await
    }

    async fn save_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
        record: &Record,
        answer: Option<(&StoredResponse, WallTime)>,
    ) -> Result<()> {
        save(conn, caller, key, record, answer).await
    }

    async fn load_response(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<StoredResponse> {
        response(conn, caller, key).await
    }

    async fn forget_keys(conn: &mut SqliteConnection, now: WallTime, max: u32) -> Result<u64> {
        forget(conn, now, max).await
    }
}

pub(super) async fn load(
    conn: &mut SqliteConnection,
    caller: &str,
    key: &str,
) -> Result<Option<Record>> {
    let row = sqlx::query(
        "SELECT fingerprint, epoch, phase, lease_until, keep_until
         FROM mamparo_idempotency WHERE caller = ?1 AND key = ?2",
    )
    .bind(caller)
    .bind(key)
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let phase = match row.try_get("phase")? {
        "released" => Phase::Released,
        "completed" => Phase::Completed,
        // The table's CHECK admits nothing else.
        _running => Phase::Running { lease_until: time_of(&row, "lease_until")? },
    };
    Ok(Some(Record {
        fingerprint: row.try_get("fingerprint")?,
        epoch: row.try_get("epoch")?,
        keep_until: time_of(&row, "keep_until")?,
        phase,
    }))
}

pub(super) async fn save(
    conn: &mut SqliteConnection,
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
        "INSERT OR REPLACE INTO mamparo_idempotency (caller, key, fingerprint, epoch, phase,
             lease_until, keep_until, completed_at, status, headers, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )
    .bind(caller)
    .bind(key)
    .bind(&record.fingerprint)
    .bind(record.epoch)
    .bind(phase)
    .bind(lease_until)
    .bind(record.keep_until.unix_millis())
    .bind(answer.map(|(_, now)| now.unix_millis()))
    .bind(response.map(|response| response.status))
    .bind(headers)
    .bind(response.map(|response| response.body.as_slice()))
    .execute(conn)
    .await
    .map(drop)
}

pub(super) async fn response(
    conn: &mut SqliteConnection,
    caller: &str,
    key: &str,
) -> Result<StoredResponse> {
    let row = sqlx::query(
        "SELECT status, headers, body FROM mamparo_idempotency
         WHERE caller = ?1 AND key = ?2 AND phase = 'completed'",
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

pub(super) async fn forget(conn: &mut SqliteConnection, now: WallTime, max: u32) -> Result<u64> {
    sqlx::query(
        "DELETE FROM mamparo_idempotency WHERE rowid IN (SELECT rowid FROM mamparo_idempotency
         WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2)",
    )
    .bind(now.unix_millis())
    .bind(max)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}
