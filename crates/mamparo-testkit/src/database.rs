//! A PostgreSQL database of one test's own, on the server that all tests share.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use crate::servers::postgres_url;

/// An empty database with a name that nobody else has. Dropped with its value, also when the test
/// panics and while connections to it are still open.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// Creates one on the server of this test run.
    ///
    /// # Panics
    /// When there is no server (see [`postgres_url`]), or it says no.
    #[must_use]
    pub fn create() -> Self {
        Self::create_on(&postgres_url())
    }

    /// Creates one on the server at `url`, an address of a superuser.
    ///
    /// # Panics
    /// When the server says no.
    #[must_use]
    pub fn create_on(url: &str) -> Self {
        Self::create_as(url, "")
    }

    /// Creates one whose texts are kept in `encoding`, `LATIN1` say, on the server of this test run.
    ///
    /// # Panics
    /// As [`create`](Self::create).
    #[must_use]
    pub fn create_encoded(encoding: &str) -> Self {
        let rest = format!("TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
        Self::create_as(&postgres_url(), &rest)
    }

    #[expect(clippy::panic, reason = "a test that can't run must fail, and this is its message")]
    fn create_as(url: &str, rest: &str) -> Self {
        let random = RandomState::new().build_hasher().finish();
        let name = format!("mamparo_test_{random:016x}");
        let database = Self { server: url.to_owned(), name };
        let created = database.administer(&format!("CREATE DATABASE {} {rest}", database.name));
        match created {
            Ok(()) => database,
            Err(error) => panic!("create a database for a test on PostgreSQL: {error}"),
        }
    }

    /// The address of the database.
    #[must_use]
    pub fn url(&self) -> String {
        let (before, parameters) = match self.server.split_once('?') {
            Some((before, parameters)) => (before, format!("?{parameters}")),
            None => (self.server.as_str(), String::new()),
        };
        let start = before.find("://").map_or(0, |at| at + 3);
        let server = before[start..].find('/').map_or(before, |slash| &before[..start + slash]);
        format!("{server}/{}{parameters}", self.name)
    }

    /// Its name on the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs one statement from the server's own database. On a thread of its own, because a test's
    /// runtime can't block, and a destructor can't wait otherwise.
    fn administer(&self, sql: &str) -> Result<(), String> {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let done = runtime.block_on(async {
                let options = PgConnectOptions::from_str(&self.server)?;
                let mut conn: PgConnection = options.connect().await?;
                conn.execute(AssertSqlSafe(sql)).await?;
                conn.close().await
            });
            done.map_err(|error: sqlx::Error| error.to_string())
        };
        std::thread::scope(|scope| {
            scope.spawn(run).join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))
        })
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A server that is gone has taken the database with it.
        self.administer(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).ok();
    }
}
