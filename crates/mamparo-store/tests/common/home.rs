//! One suite for every database: a test takes the place where a store lives as a parameter.

use std::future::Future;

use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, Transaction};
use mamparo_testkit::database::Database;
use sqlx::{AssertSqlSafe, Postgres, Sqlite};

use super::File;

/// A place of a test's own in which stores live.
pub(crate) trait Home: Send + Sync + Sized {
    /// What lives there.
    type Db: Backend;

    /// An empty one.
    fn empty() -> Self;

    /// The address for stores.
    fn url(&self) -> String;

    /// One more store on it, as another process would have.
    fn store(&self) -> impl Future<Output = Store<Self::Db>> + Send;

    /// Runs statements in a transaction.
    fn run(tx: &mut Transaction<'_, Self::Db>, sql: &str) -> impl Future<Output = ()> + Send;

    /// The one number that a query answers.
    fn number(store: &Store<Self::Db>, sql: &str) -> impl Future<Output = i64> + Send;
}

impl Home for File {
    type Db = Sqlite;

    fn empty() -> Self {
        Self::new()
    }

    fn url(&self) -> String {
        self.address()
    }

    async fn store(&self) -> SqliteStore {
        self.open().await
    }

    async fn run(tx: &mut Transaction<'_, Sqlite>, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.unwrap();
    }

    async fn number(store: &SqliteStore, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(store.reader()).await.unwrap()
    }
}

impl Home for Database {
    type Db = Postgres;

    fn empty() -> Self {
        Self::create()
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    async fn store(&self) -> PostgresStore {
        PostgresStore::open(&Self::url(self)).await.unwrap()
    }

    async fn run(tx: &mut Transaction<'_, Postgres>, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.unwrap();
    }

    async fn number(store: &PostgresStore, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(store.reader()).await.unwrap()
    }
}

/// Makes a test of each of these functions for each database.
#[macro_export]
macro_rules! on_every_database {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::common::File>().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<mamparo_testkit::database::Database>().await;
            })*
        }
    };
}
