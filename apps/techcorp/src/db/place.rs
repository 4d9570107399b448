//! Where a service keeps its books: which engine an address means, and the place of each service on
//! a PostgreSQL server.
//!
//! The shop has one database there and every service a schema of its own in it. A service sees only
//! its own tables, because its address says so: `postgres://…/techcorp?options[search_path]=orders`.
//! Database and schema are made by the first service that misses them.

use std::str::FromStr;

use mamparo::store::{StoreAddress, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// The database that every server has, to ask for others from.
const MAINTENANCE: &str = "postgres";

/// The parameter of an address that names the schema.
const SEARCH_PATH: &str = "options[search_path]=";

/// PostgreSQL says that a database is not there, or that somebody else was quicker to make it.
const NO_DATABASE: &str = "3D000";
const THERE_ALREADY: [&str; 3] = ["42P04", "42P06", "23505"];

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// A file of the service's own.
    Sqlite,
    /// A server.
    Postgres,
}

impl Engine {
    /// The engine that `address` means.
    ///
    /// # Errors
    /// [`StoreError::Address`], with how to write one.
    pub fn of(address: &str) -> Result<Self, StoreError> {
        Ok(match StoreAddress::parse(address)? {
            StoreAddress::File(_) | StoreAddress::Memory => Self::Sqlite,
            StoreAddress::Postgres(_) => Self::Postgres,
        })
    }
}

/// The address of `service`'s own schema in the shop's database at `shop`.
///
/// # Errors
/// [`StoreError::Address`] when `shop` is no PostgreSQL database, or names a schema already.
pub fn of_service(shop: &str, service: &str) -> Result<String, StoreError> {
    let address = StoreAddress::parse(shop)?;
    let refuse = |why| Err(StoreError::Address { address: address.to_string(), why });
    if !matches!(address, StoreAddress::Postgres(_)) {
        return refuse("the shop's services share a PostgreSQL database: postgres://HOST/DATABASE");
    }
    if shop.contains("search_path") {
        return refuse("each service gets a schema of its own; leave search_path out");
    }
    let more = if shop.contains('?') { '&' } else { '?' };
    Ok(format!("{shop}{more}{SEARCH_PATH}{service}"))
}

/// Sees to it that the database of `address`, and the schema that it names, are there.
/// # Errors
/// What the server said.
pub async fn make(address: &str) -> Result<(), StoreError> {
    let shown = StoreAddress::parse(address)?.to_string();
    make_at(address).await.map_err(|source| StoreError::Open { address: shown, source })
}

async fn make_at(address: &str) -> Result<(), sqlx::Error> {
    let target = PgConnectOptions::from_str(address)?;
    let mut conn = match target.connect().await {
        Err(error) if says(&error, &[NO_DATABASE]) => {
            make_database(&target).await?;
            target.connect().await?
        }
        other => other?,
    };
    make_schema(&mut conn).await?;
    conn.close().await
}

async fn make_database(missing: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let name = quoted(missing.get_database().unwrap_or(missing.get_username()));
    let mut conn = missing.clone().database(MAINTENANCE).connect().await?;
    let made = conn.execute(sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))).await;
    unless_there(made.map(drop))?;
    conn.close().await
}

/// The first schema of the search path, where none of them is there.
async fn make_schema(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let (present, path): (Option<String>, String) =
        sqlx::query_as("SELECT current_schema()::text, current_setting('search_path')")
            .fetch_one(&mut *conn)
            .await?;
    let first = path.split(',').next().unwrap_or_default().trim().trim_matches('"');
    if present.is_some() || first.is_empty() {
        return Ok(());
    }
    let create = format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(first));
    unless_there(conn.execute(sqlx::raw_sql(AssertSqlSafe(create))).await.map(drop))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Several services may miss the same thing at once; who comes second has it, too.
fn unless_there(made: Result<(), sqlx::Error>) -> Result<(), sqlx::Error> {
    match made {
        Err(error) if says(&error, &THERE_ALREADY) => Ok(()),
        other => other,
    }
}

fn says(error: &sqlx::Error, codes: &[&str]) -> bool {
    let said = error.as_database_error().and_then(|error| error.code());
    said.is_some_and(|code| codes.contains(&code.as_ref()))
}
