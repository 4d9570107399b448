//! Statements about failed messages that both databases understand, and what is made of them.

use sqlx::Result;

/// A failure of a known message counts when it is younger than the last one. Whoever does not know
/// when it happened ($16 = 0) can only report it again, unless the message was acted on in between.
///
/// After a replay the times do not decide, for two hosts' clocks differ: a copy that was put back for
/// the n-th time ($18) and fails is a new failure when the row knows of fewer replays, as it does until
/// the operator's own mark is made, or knows of as many and does not wait for a person.
pub(crate) const RECORD: &str = "INSERT INTO mamparo_failed
     (consumer, id, kind, exchange, routing_key, key, headers, body, reason, error, error_group,
      attempts, first_failure, last_failure, host, version, status, failures, replays)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $17, 'failed', 1,
      CAST($18 AS BIGINT))
     ON CONFLICT (consumer, id) DO UPDATE SET
      kind = excluded.kind, exchange = excluded.exchange, routing_key = excluded.routing_key,
      key = excluded.key, headers = excluded.headers, body = excluded.body,
      reason = excluded.reason, error = excluded.error, error_group = excluded.error_group,
      attempts = excluded.attempts, last_failure = excluded.last_failure, host = excluded.host,
      version = excluded.version, status = 'failed', failures = mamparo_failed.failures + 1,
      replays = CASE WHEN excluded.replays > mamparo_failed.replays THEN excluded.replays
       ELSE mamparo_failed.replays END,
      owner = NULL, lease_until = NULL, actor = NULL, action_reason = NULL, acted_at = NULL
     WHERE (excluded.last_failure > mamparo_failed.last_failure
       AND (CAST($16 AS BIGINT) = 1 OR mamparo_failed.status <> 'failed'))
      OR excluded.replays > mamparo_failed.replays
      OR (excluded.replays = mamparo_failed.replays AND mamparo_failed.status = 'replayed')
     RETURNING failures";

/// More replays than people make; a header that says more is somebody's joke.
pub(crate) const REPLAYS_MAX: u32 = 1_000_000;

pub(crate) const LOG: &str = "INSERT INTO mamparo_failed_log (consumer, id, at, what, who, why)
     VALUES ($1, $2, $3, 'failed', $4, $5)";

pub(crate) const SHOW_LOG: &str = "SELECT at, what, who, why FROM mamparo_failed_log
     WHERE consumer = $1 AND id = $2 ORDER BY seq";

pub(crate) const RELEASE: &str =
    "UPDATE mamparo_failed SET owner = NULL, lease_until = NULL WHERE owner = $1";

pub(crate) const COUNTS: &str = "SELECT consumer, reason, count(*) AS messages,
     min(first_failure) AS oldest FROM mamparo_failed WHERE status = 'failed'
     GROUP BY consumer, reason ORDER BY consumer, reason";

pub(crate) const GROUPS: &str = "SELECT consumer, error_group, reason, min(error) AS sample,
     min(kind) AS kind, count(DISTINCT kind) AS kinds, count(*) AS messages,
     min(first_failure) AS first_at, max(last_failure) AS last_at
     FROM mamparo_failed
     WHERE status = 'failed' AND (CAST($1 AS TEXT) IS NULL OR consumer = $1)
     GROUP BY consumer, error_group, reason
     ORDER BY messages DESC, consumer, error_group LIMIT $2";

pub(crate) const FORGET_LOG: &str = "DELETE FROM mamparo_failed_log
     WHERE consumer = $1 AND id = $2";

/// Numbers or texts as a JSON array: one prepared statement for any number of them.
pub(crate) fn array<T: serde::Serialize>(values: &[T]) -> Result<String> {
    serde_json::to_string(values).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// Implements [`FailedRows`] for a database. The statements are the same but for the way in which
/// a JSON array ($list) becomes numbers or texts, and a text is searched.
macro_rules! implement_failed_rows {
    ($database:ty, $numbers:literal, $texts:literal, $close:literal, $position:literal) => {
        use mamparo_core::message::lineage::replays;
        use mamparo_core::time::WallTime;
        use sqlx::{Result, Row as _};

        use crate::backend::FailedRows;
        use crate::backend::failed_rows as sql;
        use crate::columns::{count_of, headers_to_json, time_of};
        use crate::failed::{
            Acted, Counted, Entry, FailedMessage, Failure, Grouped, Query, Status, Target, clean,
        };
        use crate::queue::QueueMessage;

        type Connection = <$database as sqlx::Database>::Connection;
        type Row = <$database as sqlx::Database>::Row;

        /// Conditions of a query, $1 to $10.
        const CHOSEN: &str = concat!(
            " FROM mamparo_failed WHERE seq > $1",
            " AND (CAST($2 AS TEXT) IS NULL OR consumer = $2)",
            " AND (CAST($3 AS TEXT) IS NULL OR status = $3)",
            " AND (CAST($4 AS TEXT) IS NULL OR kind = $4)",
            " AND (CAST($5 AS TEXT) IS NULL OR key = $5)",
            " AND (CAST($6 AS BIGINT) IS NULL OR last_failure < $6)",
            " AND (CAST($7 AS BIGINT) IS NULL OR last_failure >= $7)",
            " AND (CAST($8 AS TEXT) IS NULL OR ",
            $position,
            "(lower(error), lower($8)) > 0)",
            " AND (CAST($9 AS TEXT) IS NULL OR error_group = $9)",
            " AND (CAST($10 AS TEXT) IS NULL OR id IN (",
            $texts,
            "$10",
            $close,
            "))",
        );

        const CLAIM: &str = concat!(
            "UPDATE mamparo_failed SET owner = $1, lease_until = $2
             WHERE status = 'failed' AND (owner IS NULL OR lease_until <= $3) AND seq IN (",
            $numbers,
            "$4",
            $close,
            ") RETURNING seq",
        );

        /// Rows that may be acted on: in the state, held by the owner if there is one, and acted on
        /// since the time if there is one.
        const TARGET: &str = concat!(
            " status = $1 AND (CAST($2 AS TEXT) IS NULL OR owner = $2)",
            " AND (CAST($3 AS BIGINT) IS NULL OR acted_at >= $3) AND seq IN (",
            $numbers,
            "$4",
            $close,
            ")",
        );

        async fn record(
            conn: &mut Connection,
            failure: &Failure<'_>,
            now: WallTime,
        ) -> Result<Option<i64>> {
            let message = failure.message;
            let (consumer, id) = (clean(failure.consumer), clean(&message.id));
            let last = failure.last_failure.unwrap_or(now);
            let first = failure.first_failure.unwrap_or(last);
            let (error, reason) = (clean(failure.error), clean(failure.reason));
            let failures: Option<i64> = sqlx::query_scalar(sql::RECORD)
                .bind(&consumer)
                .bind(&id)
                .bind(clean(&message.kind))
                .bind(clean(&message.exchange))
                .bind(clean(&message.routing_key))
                .bind(clean(&message.key))
                .bind(headers_to_json(&message.headers)?)
                .bind(&message.body)
                .bind(&reason)
                .bind(&error)
                .bind(failure.group().to_string())
                .bind(i64::from(failure.attempts))
                .bind(first.unix_millis())
                .bind(last.unix_millis())
                .bind(clean(failure.host))
                .bind(i64::from(failure.last_failure.is_some()))
                .bind(clean(failure.version))
                .bind(i64::from(replays(&message.headers).min(sql::REPLAYS_MAX)))
                .fetch_optional(&mut *conn)
                .await?;
            if failures.is_some() {
                let why = format!("{reason}: {error}");
                let log = sqlx::query(sql::LOG).bind(consumer).bind(id).bind(last.unix_millis());
                log.bind(clean(failure.host)).bind(why).execute(conn).await?;
            }
            Ok(failures)
        }

        fn failed_of(row: &Row) -> Result<FailedMessage> {
            Ok(FailedMessage {
                row: row.try_get("seq")?,
                consumer: row.try_get("consumer")?,
                status: Status::of(row.try_get("status")?),
                reason: row.try_get("reason")?,
                error: row.try_get("error")?,
                attempts: count_of(row, "attempts")?,
                failures: count_of(row, "failures")?,
                first_failure: time_of(row, "first_failure")?,
                last_failure: time_of(row, "last_failure")?,
                host: row.try_get("host")?,
                version: row.try_get("version")?,
                replays: count_of(row, "replays")?,
                edited_to: row.try_get("edited_to")?,
                actor: row.try_get("actor")?,
                action_reason: row.try_get("action_reason")?,
                acted_at: row
                    .try_get::<Option<i64>, _>("acted_at")?
                    .map(WallTime::from_unix_millis),
                message: QueueMessage {
                    id: row.try_get("id")?,
                    kind: row.try_get("kind")?,
                    exchange: row.try_get("exchange")?,
                    routing_key: row.try_get("routing_key")?,
                    key: row.try_get("key")?,
                    headers: headers_of(row, "headers")?,
                    body: row.try_get("body")?,
                },
            })
        }

        /// Binds what [`CHOSEN`] asks for.
        macro_rules! chosen {
            ($statement:expr, $query:expr) => {{
                let ids = (!$query.sift.ids.is_empty()).then(|| sql::array(&$query.sift.ids));
                $statement
                    .bind($query.after)
                    .bind($query.consumer.as_deref())
                    .bind($query.status.map(Status::word))
                    .bind($query.sift.kind.as_deref())
                    .bind($query.sift.key.as_deref())
                    .bind($query.sift.before.map(WallTime::unix_millis))
                    .bind($query.sift.since.map(WallTime::unix_millis))
                    .bind($query.sift.error.as_deref())
                    .bind($query.sift.group.map(|group| group.to_string()))
                    .bind(ids.transpose()?)
            }};
        }

        async fn act(
            conn: &mut Connection,
            target: &Target<'_>,
            acted: &Acted<'_>,
            now: WallTime,
        ) -> Result<u64> {
            // The history first: afterwards the rows are no longer what they were chosen by.
            let log =                 "INSERT INTO mamparo_failed_log (consumer, id, at, what, who, why)
                 SELECT consumer, id, CAST($5 AS BIGINT), CAST($6 AS TEXT), CAST($7 AS TEXT),
                     CAST($8 AS TEXT)
                 FROM mamparo_failed WHERE";
            let change = "UPDATE mamparo_failed SET status = $5, actor = $6, action_reason = $7,
                 acted_at = $8, replays = replays + $9, edited_to = coalesce($10, edited_to),
                 owner = NULL, lease_until = NULL WHERE";
            let rows = sql::array(target.rows)?;
            let since = target.acted_since.map(WallTime::unix_millis);
            let why = acted.edited_to.map_or_else(
                || acted.reason.to_owned(),
                |to| format!("{} (as {to})", acted.reason),
            );
            sqlx::query(sqlx::AssertSqlSafe(format!("{log}{TARGET}")))
                .bind(target.status.word())
                .bind(target.owner)
                .bind(since)
                .bind(&rows)
                .bind(now.unix_millis())
                .bind(acted.what)
                .bind(clean(acted.actor))
                .bind(clean(&why))
                .execute(&mut *conn)
                .await?;
            sqlx::query(sqlx::AssertSqlSafe(format!("{change}{TARGET}")))
                .bind(target.status.word())
                .bind(target.owner)
                .bind(since)
                .bind(&rows)
                .bind(acted.to.word())
                .bind(clean(acted.actor))
                .bind(clean(acted.reason))
                .bind(now.unix_millis())
                .bind(i64::from(acted.to == Status::Replayed))
                .bind(acted.edited_to)
                .execute(conn)
                .await
                .map(|done| done.rows_affected())
        }

        impl FailedRows for $database {
            async fn record_failure(
                conn: &mut Connection,
                failure: &Failure<'_>,
                now: WallTime,
            ) -> Result<Option<i64>> {
                record(conn, failure, now).await
            }

            async fn list_failed(
                conn: &mut Connection,
                query: &Query,
            ) -> Result<Vec<FailedMessage>> {
                let select = format!("SELECT *{CHOSEN} ORDER BY seq LIMIT $11");
                let statement = sqlx::query(sqlx::AssertSqlSafe(select));
                let statement = chosen!(statement, query).bind(i64::from(query.max));
                statement.fetch_all(conn).await?.iter().map(failed_of).collect()
            }

            async fn count_failed(conn: &mut Connection, query: &Query) -> Result<u64> {
                let select = format!("SELECT count(*) AS messages{CHOSEN}");
                let statement = sqlx::query(sqlx::AssertSqlSafe(select));
                count_of(&chosen!(statement, query).fetch_one(conn).await?, "messages")
            }

            async fn claim_failed(
                conn: &mut Connection,
                owner: &str,
                rows: &[i64],
                until: WallTime,
                now: WallTime,
            ) -> Result<Vec<i64>> {
                let claim = sqlx::query_scalar(CLAIM).bind(owner).bind(until.unix_millis());
                claim.bind(now.unix_millis()).bind(sql::array(rows)?).fetch_all(conn).await
            }

            async fn release_failed(conn: &mut Connection, owner: &str) -> Result<u64> {
                let released = sqlx::query(sql::RELEASE).bind(owner).execute(conn).await?;
                Ok(released.rows_affected())
            }

            async fn act_on_failed(
                conn: &mut Connection,
                target: &Target<'_>,
                acted: &Acted<'_>,
                now: WallTime,
            ) -> Result<u64> {
                act(conn, target, acted, now).await
            }

            async fn failed_log(
                conn: &mut Connection,
                consumer: &str,
                id: &str,
            ) -> Result<Vec<Entry>> {
                let rows =
                    sqlx::query(sql::SHOW_LOG).bind(consumer).bind(id).fetch_all(conn).await?;
                rows.iter()
                    .map(|row| {
                        Ok(Entry {
                            at: time_of(row, "at")?,
                            what: row.try_get("what")?,
                            who: row.try_get("who")?,
                            why: row.try_get("why")?,
                        })
                    })
                    .collect()
            }

            async fn failed_counts(conn: &mut Connection) -> Result<Vec<Counted>> {
                let rows = sqlx::query(sql::COUNTS).fetch_all(conn).await?;
                rows.iter()
                    .map(|row| {
                        Ok(Counted {
                            consumer: row.try_get("consumer")?,
                            reason: row.try_get("reason")?,
                            messages: count_of(row, "messages")?,
                            oldest: time_of(row, "oldest")?,
                        })
                    })
                    .collect()
            }

            async fn failed_groups(
                conn: &mut Connection,
                consumer: Option<&str>,
                max: u32,
            ) -> Result<Vec<Grouped>> {
                let groups = sqlx::query(sql::GROUPS).bind(consumer).bind(i64::from(max));
                let rows = groups.fetch_all(conn).await?;
                rows.iter()
                    .map(|row| {
                        Ok(Grouped {
                            consumer: row.try_get("consumer")?,
                            group: row.try_get("error_group")?,
                            reason: row.try_get("reason")?,
                            sample: row.try_get("sample")?,
                            kind: row.try_get("kind")?,
                            kinds: count_of(row, "kinds")?,
                            messages: count_of(row, "messages")?,
                            first: time_of(row, "first_at")?,
                            last: time_of(row, "last_at")?,
                        })
                    })
                    .collect()
            }

            async fn forget_failed(
                conn: &mut Connection,
                before: WallTime,
                max: u32,
            ) -> Result<u64> {
                // Asked twice: a row that was chosen, and has failed again before its turn came, is a
                // dead letter once more. So is one that was brought back.
                let forget = "DELETE FROM mamparo_failed WHERE acted_at < $1 AND status <> 'failed'
                     AND seq IN (SELECT seq FROM mamparo_failed
                     WHERE acted_at < $1 AND status <> 'failed' ORDER BY acted_at LIMIT $2)
                     RETURNING consumer, id";
                let forget = sqlx::query(forget).bind(before.unix_millis()).bind(i64::from(max));
                let rows = forget.fetch_all(&mut *conn).await?;
                for row in &rows {
                    let (consumer, id): (String, String) =
                        (row.try_get("consumer")?, row.try_get("id")?);
                    let log = sqlx::query(sql::FORGET_LOG).bind(consumer).bind(id);
                    log.execute(&mut *conn).await?;
                }
                Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
            }
        }
    };
}

pub(crate) use implement_failed_rows;
