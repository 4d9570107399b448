//! Messages that wait for another attempt.

use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Result, Row, Sqlite, SqliteConnection};

use super::queue::message_of;
use crate::backend::ParkedRows;
use crate::backend::parked::{CONSUMERS, FIND, FIRST, SEIZE};
use crate::columns::{count_of, headers_to_json, time_of};
use crate::parked::{Claimed, Entry, Failure, ParkedRow, Wait};
use crate::queue::QueueMessage;

/// `head` marks the first row of its key, which alone may be handed out: looking for it at each
/// claim would read everything that waits behind a key that stays parked.
pub(super) const V2: &str = "
CREATE TABLE mamparo_parked (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer    TEXT NOT NULL,
    id          TEXT NOT NULL,
    key         TEXT NOT NULL,
    head        INTEGER NOT NULL,
    visible_at  INTEGER NOT NULL,
    epoch       INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    owner       TEXT,
    attempts    INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    exchange    TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    history     TEXT NOT NULL CHECK (json_type(history) = 'array'),
    headers     TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body        BLOB NOT NULL,
    UNIQUE (consumer, id)
);
CREATE INDEX mamparo_parked_due ON mamparo_parked (consumer, visible_at) WHERE head = 1;
CREATE INDEX mamparo_parked_key ON mamparo_parked (consumer, key, seq) WHERE key <> '';
CREATE INDEX mamparo_parked_owner ON mamparo_parked (owner) WHERE owner IS NOT NULL;
";

/// A row that still has an owner was neither settled nor given back: that is a loss.
pub(super) const CLAIM: &str = "UPDATE mamparo_parked
     SET owner = $1, visible_at = $2, epoch = epoch + 1, losses = losses + (owner IS NOT NULL)
     WHERE seq IN (SELECT seq FROM mamparo_parked WHERE consumer = $3 AND head = 1
         AND visible_at <= $4 ORDER BY visible_at, seq LIMIT $5)
     RETURNING seq, epoch, losses, id, kind, exchange, routing_key, key, headers, body";

/// The look of an idle consumer.
pub(super) const NEXT: &str =
    "SELECT min(visible_at) FROM mamparo_parked WHERE consumer = $1 AND head = 1";

/// Does anything of the key wait?
pub(super) const IS_PARKED: &str = "SELECT EXISTS (SELECT 1 FROM mamparo_parked
     WHERE consumer = $1 AND key = $2 AND key <> '')";

impl ParkedRows for Sqlite {
    /// The writer is ours since `BEGIN IMMEDIATE`.
    async fn lock_parked_key(_: &mut SqliteConnection, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    async fn park(
        conn: &mut SqliteConnection,
        consumer: &str,
        message: &QueueMessage,
        wait: &Wait,
        failure: Option<&Failure>,
    ) -> Result<bool> {
        let history: Vec<_> = failure.map(|failure| failure.to_json(wait)).into_iter().collect();
        sqlx::query(
            "INSERT INTO mamparo_parked (consumer, id, key, head, visible_at, attempts, since,
                 kind, exchange, routing_key, history, headers, body)
             SELECT $1, $2, $3, $3 = '' OR NOT EXISTS (SELECT 1 FROM mamparo_parked
                 WHERE consumer = $1 AND key = $3 AND key <> ''), $4, $5, $6, $7, $8, $9, $10, $11, $12
             WHERE true
             ON CONFLICT (consumer, id) DO NOTHING",
        )
        .bind(consumer)
        .bind(&message.id)
        .bind(&message.key)
        .bind(wait.due.unix_millis())
        .bind(wait.attempts)
        .bind(wait.now.unix_millis())
        .bind(&message.kind)
        .bind(&message.exchange)
        .bind(&message.routing_key)
        .bind(serde_json::Value::Array(history).to_string())
        .bind(headers_to_json(&message.headers)?)
        .bind(&message.body)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn is_parked(conn: &mut SqliteConnection, consumer: &str, key: &str) -> Result<bool> {
        sqlx::query_scalar(IS_PARKED).bind(consumer).bind(key).fetch_one(conn).await
    }

    async fn look_up(
        conn: &mut SqliteConnection,
        consumer: &str,
        messages: &[(&str, &str)],
    ) -> Result<Vec<String>> {
        let asked = serde_json::to_string(messages);
        let asked = asked.map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
        sqlx::query_scalar(
            "SELECT m.value ->> 0 FROM json_each($2) AS m
             WHERE EXISTS (SELECT 1 FROM mamparo_parked WHERE consumer = $1 AND id = m.value ->> 0)
             OR EXISTS (SELECT 1 FROM mamparo_parked
                 WHERE consumer = $1 AND key = m.value ->> 1 AND key <> '')",
        )
        .bind(consumer)
        .bind(asked)
        .fetch_all(conn)
        .await
    }

    async fn insert_inbox_unless_parked(
        conn: &mut SqliteConnection,
        entry: Entry<'_>,
        now: WallTime,
    ) -> Result<Option<i64>> {
        sqlx::query_scalar(
            "INSERT INTO mamparo_inbox (consumer, message_id, kind, applied_at)
             SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT 1 FROM mamparo_parked
                 WHERE consumer = $1 AND key = $5 AND key <> '')
             ON CONFLICT (consumer, message_id) DO UPDATE SET duplicates = duplicates + 1
             RETURNING duplicates",
        )
        .bind(entry.consumer)
        .bind(entry.message_id)
        .bind(entry.kind)
        .bind(now.unix_millis())
        .bind(entry.key)
        .fetch_optional(conn)
        .await
    }

    async fn claim_parked(
        conn: &mut SqliteConnection,
        consumer: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Claimed>> {
        let rows = sqlx::query(CLAIM)
            .bind(owner)
            .bind(until.unix_millis())
            .bind(consumer)
            .bind(now.unix_millis())
            .bind(max)
            .fetch_all(conn)
            .await?;
        let mut claimed = rows.iter().map(claimed).collect::<Result<Vec<_>>>()?;
        // RETURNING promises no order.
        claimed.sort_unstable_by_key(|claimed| claimed.row);
        Ok(claimed)
    }

    async fn renew_parked(
        conn: &mut SqliteConnection,
        rows: &[i64],
        owner: &str,
        until: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_parked SET visible_at = $1 WHERE owner = $2
             AND seq IN (SELECT value FROM json_each($3))",
        )
        .bind(until.unix_millis())
        .bind(owner)
        // A JSON array: one prepared statement for any number of rows.
        .bind(serde_json::Value::from(rows).to_string())
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn next_parked(conn: &mut SqliteConnection, consumer: &str) -> Result<Option<WallTime>> {
        let next: Option<i64> = sqlx::query_scalar(NEXT).bind(consumer).fetch_one(conn).await?;
        Ok(next.map(WallTime::from_unix_millis))
    }

    async fn park_again(
        conn: &mut SqliteConnection,
        row: i64,
        epoch: i64,
        message: &QueueMessage,
        wait: &Wait,
        failure: &Failure,
    ) -> Result<bool> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, losses = 0, visible_at = $1, attempts = $2,
                 headers = $3, history = json_insert(history, '$[#]', json($4))
             WHERE seq = $5 AND epoch = $6 AND owner IS NOT NULL",
        )
        .bind(wait.due.unix_millis())
        .bind(wait.attempts)
        .bind(headers_to_json(&message.headers)?)
        .bind(failure.to_json(wait).to_string())
        .bind(row)
        .bind(epoch)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn release_parked(
        conn: &mut SqliteConnection,
        row: i64,
        epoch: i64,
        due: WallTime,
    ) -> Result<bool> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, visible_at = $1
             WHERE seq = $2 AND epoch = $3 AND owner IS NOT NULL",
        )
        .bind(due.unix_millis())
        .bind(row)
        .bind(epoch)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn release_all_parked(
        conn: &mut SqliteConnection,
        consumer: &str,
        owner: &str,
        now: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, visible_at = $1
             WHERE owner = $2 AND consumer = $3",
        )
        .bind(now.unix_millis())
        .bind(owner)
        .bind(consumer)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn remove_parked(conn: &mut SqliteConnection, row: i64, epoch: i64) -> Result<bool> {
        let removed: Option<(String, String)> = sqlx::query_as(
            "DELETE FROM mamparo_parked WHERE seq = $1 AND epoch = $2 AND owner IS NOT NULL
             RETURNING consumer, key",
        )
        .bind(row)
        .bind(epoch)
        .fetch_optional(&mut *conn)
        .await?;
        let Some((consumer, key)) = removed else { return Ok(false) };
        if !key.is_empty() {
            sqlx::query(
                "UPDATE mamparo_parked SET head = 1 WHERE seq = (SELECT min(seq) FROM mamparo_parked
                     WHERE consumer = $1 AND key = $2 AND key <> '')",
            )
            .bind(consumer)
            .bind(key)
            .execute(conn)
            .await?;
        }
        Ok(true)
    }

    async fn make_due(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
        now: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_parked SET visible_at = $1 WHERE consumer = $2 AND owner IS NULL
             AND ($3 IS NULL OR id = $3) AND ($4 IS NULL OR key = $4) AND visible_at > $1",
        )
        .bind(now.unix_millis())
        .bind(consumer)
        .bind(message_id)
        .bind(key)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn list_parked(
        conn: &mut SqliteConnection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> Result<Vec<ParkedRow>> {
        let rows = sqlx::query(
            "SELECT * FROM mamparo_parked WHERE consumer = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        )
        .bind(consumer)
        .bind(after)
        .bind(max)
        .fetch_all(conn)
        .await?;
        rows.iter().map(shown).collect()
    }

    async fn list_first_parked(
        conn: &mut SqliteConnection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> Result<Vec<(ParkedRow, u64)>> {
        let rows = sqlx::query(FIRST).bind(consumer).bind(after).bind(i64::from(max));
        let rows = rows.fetch_all(conn).await?;
        rows.iter().map(|row| Ok((shown(row)?, count_of(row, "behind")?))).collect()
    }

    async fn find_parked(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
    ) -> Result<Option<ParkedRow>> {
        let row = sqlx::query(FIND).bind(consumer).bind(message_id).bind(key);
        row.fetch_optional(conn).await?.as_ref().map(shown).transpose()
    }

    async fn seize_parked(
        conn: &mut SqliteConnection,
        row: i64,
        owner: &str,
        until: WallTime,
        now: WallTime,
    ) -> Result<Option<i64>> {
        let seized = sqlx::query_scalar(SEIZE).bind(owner).bind(until.unix_millis()).bind(row);
        seized.bind(now.unix_millis()).fetch_optional(conn).await
    }

    async fn parked_consumers(conn: &mut SqliteConnection) -> Result<Vec<String>> {
        sqlx::query_scalar(CONSUMERS).fetch_all(conn).await
    }

    async fn parked_stats(
        conn: &mut SqliteConnection,
        consumer: &str,
    ) -> Result<(u64, Option<WallTime>)> {
        let row = sqlx::query(
            "SELECT count(*) AS waiting, min(since) AS oldest FROM mamparo_parked
             WHERE consumer = $1",
        )
        .bind(consumer)
        .fetch_one(conn)
        .await?;
        let oldest: Option<i64> = row.try_get("oldest")?;
        Ok((count_of(&row, "waiting")?, oldest.map(WallTime::from_unix_millis)))
    }
}

fn claimed(row: &SqliteRow) -> Result<Claimed> {
    let losses: i64 = row.try_get("losses")?;
    Ok(Claimed {
        row: row.try_get("seq")?,
        epoch: row.try_get("epoch")?,
        suspect: losses > 0,
        message: message_of(row)?,
    })
}

fn shown(row: &SqliteRow) -> Result<ParkedRow> {
    let owner: Option<String> = row.try_get("owner")?;
    Ok(ParkedRow {
        row: row.try_get("seq")?,
        first: row.try_get("head")?,
        due: time_of(row, "visible_at")?,
        since: time_of(row, "since")?,
        attempts: count_of(row, "attempts")?,
        in_hand: owner.is_some(),
        history: row.try_get("history")?,
        message: message_of(row)?,
    })
}
