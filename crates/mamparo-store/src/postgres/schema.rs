//! The tables, and how an older database gets them. The crate's documentation explains the columns;
//! each subject keeps its own.

use sqlx::{Result, postgres::PgConnection};

use super::{failed, history, idempotency, inbox, outbox, parked, retries, shards};

/// Each entry takes the schema from version `index` to `index + 1`. Entries are never edited once
/// released; a change is a new entry.
const MIGRATIONS: &[&[&str]] = &[V1];

/// The first version, by subject.
const V1: &[&str] = &[
    outbox::V1,
    history::V1,
    shards::V1,
    inbox::V1,
    idempotency::V1,
    failed::V1,
    parked::V1,
    retries::V1,
];

/// The newest version that this program knows.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Lets one process migrate at a time. Any number will do that nobody else takes: "mamparo" in ASCII.
const LOCK: i64 = 0x6d_61_6d_70_61_72_6f;

/// Brings the schema up to date, in the caller's transaction; the version that was found.
/// Changes nothing when that is newer than [`VERSION`].
pub(super) async fn migrate(conn: &mut PgConnection) -> Result<i64> {
    // `CREATE TABLE IF NOT EXISTS` fails when two do it together.
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *conn).await?;
    let exists = "SELECT to_regclass(format('%I.mamparo_schema', current_schema())) IS NOT NULL";
    let exists: bool = sqlx::query_scalar(exists).fetch_one(&mut *conn).await?;
    if !exists {
        sqlx::raw_sql("CREATE TABLE mamparo_schema (version BIGINT NOT NULL)")
            .execute(&mut *conn)
            .await?;
    }
    let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM mamparo_schema")
        .fetch_one(&mut *conn)
        .await?;
    for (subjects, version) in MIGRATIONS.iter().zip(1_i64..) {
        if version > found {
            for subject in *subjects {
                sqlx::raw_sql(*subject).execute(&mut *conn).await?;
            }
            sqlx::query("INSERT INTO mamparo_schema (version) VALUES ($1)")
                .bind(version)
                .execute(&mut *conn)
                .await?;
        }
    }
    Ok(found)
}
