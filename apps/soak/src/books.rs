//! What was sent and what came of it, in the tables that the verdict is read from.
//!
//! There is no unique key on the effects: an effect that happened twice is to be seen, not prevented.

use std::future::Future;

use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, StoreError};
use sqlx::{Pool, Postgres, Row as _, Sqlite};

/// An effect in the order of its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The message that had it.
    pub message: String,
    /// The message's key.
    pub key: String,
    /// The message's number within its key, from 1 on.
    pub seq: i64,
}

/// A database that the soak can run on.
pub trait Books: Backend + Sized {
    /// Opens the store with the soak's own tables.
    fn open(address: &str) -> impl Future<Output = Result<Store<Self>, StoreError>> + Send;

    /// The last number that was sent for `key`, 0 for none.
    fn last_sent(
        pool: &Pool<Self>,
        run: &str,
        key: &str,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Records that a message is sent, in the transaction that enqueues it.
    fn sent(
        conn: &mut Self::Connection,
        run: &str,
        key: &str,
        seq: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Records an effect, in the handler's transaction.
    fn effect(
        conn: &mut Self::Connection,
        queue: &str,
        effect: &Effect,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// How many were sent.
    fn count_sent(pool: &Pool<Self>, run: &str) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// How many different messages had their effect in `queue`.
    fn count_effects(
        pool: &Pool<Self>,
        queue: &str,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// All effects of `queue`, oldest first.
    fn effects(
        pool: &Pool<Self>,
        queue: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<Effect>>> + Send;
}

macro_rules! books {
    ($database:ty, $store:ty, $id:literal) => {
        impl Books for $database {
            async fn open(address: &str) -> Result<Store<Self>, StoreError> {
                let store = <$store>::open(address).await?;
                store.apply(concat!(
                    "CREATE TABLE IF NOT EXISTS soak_sent (
                         run TEXT NOT NULL, key TEXT NOT NULL, seq BIGINT NOT NULL,
                         PRIMARY KEY (run, key, seq));
                     CREATE TABLE IF NOT EXISTS soak_effects (id ", $id, ",
                         queue TEXT NOT NULL, message TEXT NOT NULL, key TEXT NOT NULL,
                         seq BIGINT NOT NULL);
                     CREATE INDEX IF NOT EXISTS soak_effects_queue ON soak_effects (queue, id);"
                )).await?;
                Ok(store)
            }

            async fn last_sent(pool: &Pool<Self>, run: &str, key: &str) -> sqlx::Result<i64> {
                let sql = "SELECT coalesce(max(seq), 0) FROM soak_sent WHERE run = $1 AND key = $2";
                sqlx::query_scalar(sql).bind(run).bind(key).fetch_one(pool).await
            }

            async fn sent(
                conn: &mut Self::Connection,
                run: &str,
                key: &str,
                seq: i64,
            ) -> sqlx::Result<()> {
                let sql = "INSERT INTO soak_sent (run, key, seq) VALUES ($1, $2, $3)";
                sqlx::query(sql).bind(run).bind(key).bind(seq).execute(conn).await.map(drop)
            }

            async fn effect(
                conn: &mut Self::Connection,
                queue: &str,
                effect: &Effect,
            ) -> sqlx::Result<()> {
                let sql = "INSERT INTO soak_effects (queue, message, key, seq)
                           VALUES ($1, $2, $3, $4)";
                sqlx::query(sql)
                    .bind(queue)
                    .bind(&effect.message)
                    .bind(&effect.key)
                    .bind(effect.seq)
                    .execute(conn)
                    .await
                    .map(drop)
            }

            async fn count_sent(pool: &Pool<Self>, run: &str) -> sqlx::Result<i64> {
                let sql = "SELECT count(*) FROM soak_sent WHERE run = $1";
                sqlx::query_scalar(sql).bind(run).fetch_one(pool).await
            }

            async fn count_effects(pool: &Pool<Self>, queue: &str) -> sqlx::Result<i64> {
                let sql = "SELECT count(DISTINCT message) FROM soak_effects WHERE queue = $1";
                sqlx::query_scalar(sql).bind(queue).fetch_one(pool).await
            }

            async fn effects(pool: &Pool<Self>, queue: &str) -> sqlx::Result<Vec<Effect>> {
                let sql = "SELECT message, key, seq FROM soak_effects WHERE queue = $1 ORDER BY id";
                let rows = sqlx::query(sql).bind(queue).fetch_all(pool).await?;
                let read = |row: &<Self as sqlx::Database>::Row| {
                    let (message, key) = (row.try_get("message")?, row.try_get("key")?);
                    Ok(Effect { message, key, seq: row.try_get("seq")? })
                };
                rows.iter().map(read).collect()
            }
        }
    };
}

books!(Sqlite, SqliteStore, "INTEGER PRIMARY KEY AUTOINCREMENT");
books!(Postgres, PostgresStore, "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
