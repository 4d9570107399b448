//! Rows of messages that wait in their broker's queue.

use std::future::Future;

use mamparo_core::message::headers::Headers;
use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::attempts::Attempt;

/// Rows of messages that wait in their broker's queue.
pub trait RetryRows: sqlx::Database + sealed::Sealed {
    /// Writes the row, or another state of it, with no owner.
    fn keep_retry(
        conn: &mut Self::Connection,
        message: (&str, &str),
        headers: &Headers,
        returns: u32,
        now: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The row's headers, how often it was given back, and its owner.
    fn read_retry(
        conn: &mut Self::Connection,
        message: (&str, &str),
    ) -> impl Future<Output = Result<Option<(Headers, u32, Option<String>)>>> + Send;

    /// Names the owner of the row.
    fn own_retry(
        conn: &mut Self::Connection,
        attempt: Attempt<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Deletes the row.
    fn drop_retry(
        conn: &mut Self::Connection,
        message: (&str, &str),
    ) -> impl Future<Output = Result<()>> + Send;

    /// How many rows a consumer has, and since when the oldest is as it is.
    fn count_retries(
        conn: &mut Self::Connection,
        consumer: &str,
    ) -> impl Future<Output = Result<(u64, Option<WallTime>)>> + Send;

    /// Deletes rows that are as they are since before then; how many.
    fn forget_retries(
        conn: &mut Self::Connection,
        before: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// The same statements on both databases.
macro_rules! implement_retry_rows {
    ($db:ty) => {
        impl $crate::backend::RetryRows for $db {
            async fn keep_retry(
                conn: &mut Self::Connection,
                (consumer, message_id): (&str, &str),
                headers: &mamparo_core::message::headers::Headers,
                returns: u32,
                now: mamparo_core::time::WallTime,
            ) -> sqlx::Result<()> {
                sqlx::query(
                    "INSERT INTO mamparo_retries (consumer, message_id, since, returns, headers)
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (consumer, message_id) DO UPDATE
                     SET since = excluded.since, returns = excluded.returns, owner = NULL,
                         headers = excluded.headers",
                )
                .bind(consumer)
                .bind(message_id)
                .bind(now.unix_millis())
                .bind(i64::from(returns))
                .bind($crate::columns::headers_to_json(headers)?)
                .execute(conn)
                .await
                .map(drop)
            }

            async fn read_retry(
                conn: &mut Self::Connection,
                (consumer, message_id): (&str, &str),
            ) -> sqlx::Result<
                Option<(mamparo_core::message::headers::Headers, u32, Option<String>)>,
            > {
                use sqlx::Row as _;
                let row = sqlx::query(
                    "SELECT headers, returns, owner FROM mamparo_retries
                     WHERE consumer = $1 AND message_id = $2",
                )
                .bind(consumer)
                .bind(message_id)
                .fetch_optional(conn)
                .await?;
                let Some(row) = row else { return Ok(None) };
                let headers: String = row.try_get("headers")?;
                let headers = $crate::columns::headers_from_json(&headers, "headers")?;
                let returns = $crate::columns::count_of(&row, "returns")?;
                Ok(Some((headers, returns, row.try_get("owner")?)))
            }

            async fn own_retry(
                conn: &mut Self::Connection,
                attempt: $crate::attempts::Attempt<'_>,
            ) -> sqlx::Result<()> {
                sqlx::query(
                    "UPDATE mamparo_retries SET owner = $3
                     WHERE consumer = $1 AND message_id = $2",
                )
                .bind(attempt.consumer)
                .bind(attempt.message_id)
                .bind(attempt.owner)
                .execute(conn)
                .await
                .map(drop)
            }

            async fn drop_retry(
                conn: &mut Self::Connection,
                (consumer, message_id): (&str, &str),
            ) -> sqlx::Result<()> {
                sqlx::query("DELETE FROM mamparo_retries WHERE consumer = $1 AND message_id = $2")
                    .bind(consumer)
                    .bind(message_id)
                    .execute(conn)
                    .await
                    .map(drop)
            }

            async fn count_retries(
                conn: &mut Self::Connection,
                consumer: &str,
            ) -> sqlx::Result<(u64, Option<mamparo_core::time::WallTime>)> {
                use sqlx::Row as _;
                let row = sqlx::query(
                    "SELECT count(*) AS rows, min(since) AS oldest FROM mamparo_retries
                     WHERE consumer = $1",
                )
                .bind(consumer)
                .fetch_one(conn)
                .await?;
                let oldest: Option<i64> = row.try_get("oldest")?;
                let oldest = oldest.map(mamparo_core::time::WallTime::from_unix_millis);
                Ok(($crate::columns::count_of(&row, "rows")?, oldest))
            }

            async fn forget_retries(
                conn: &mut Self::Connection,
                before: mamparo_core::time::WallTime,
                max: u32,
            ) -> sqlx::Result<u64> {
                // The time is asked for again: a row that came back in between is not old.
                sqlx::query(
                    "DELETE FROM mamparo_retries WHERE since < $1 AND (consumer, message_id) IN
                     (SELECT consumer, message_id FROM mamparo_retries
                      WHERE since < $1 ORDER BY since LIMIT $2)",
                )
                .bind(before.unix_millis())
                .bind(i64::from(max))
                .execute(conn)
                .await
                .map(|done| done.rows_affected())
            }
        }
    };
}

pub(crate) use implement_retry_rows;
