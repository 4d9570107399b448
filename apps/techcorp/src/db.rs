//! The shop's SQL, written once for SQLite and PostgreSQL.
//!
//! Services say `query("UPDATE … WHERE id = $1").bind(id).run(tx)` for any database `DB`. What the
//! two databases write differently are two words of our own, which stand in a statement where they
//! are needed: `:listed` reads a bound JSON array as rows, and `:lock` keeps rows that were read to
//! be changed until the transaction ends. Tables are written in SQLite's words and translated.

mod engines;
mod place;

use std::borrow::Cow;
use std::future::Future;

use mamparo::store::{Backend, Store, StoreError, Transaction};
use sqlx::FromRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

pub use place::{Engine, make, of_service};

/// A value that a statement is given.
#[derive(Debug, Clone)]
pub enum Arg {
    /// Text, or nothing where a text would stand.
    Text(Option<String>),
    /// A number, or nothing where a number would stand.
    Number(Option<i64>),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<&String> for Arg {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<&str>> for Arg {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<i64> for Arg {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<u32> for Arg {
    fn from(number: u32) -> Self {
        i64::from(number).into()
    }
}

/// 1 or 0: both databases keep truth as a number.
impl From<bool> for Arg {
    fn from(truth: bool) -> Self {
        i64::from(truth).into()
    }
}

impl From<Option<i64>> for Arg {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

/// What a row is read as: a tuple of texts and numbers, in the order of the columns.
pub trait Shape:
    for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin + 'static
{
}

impl<T> Shape for T where
    T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin + 'static
{
}

/// A database that the shop can keep its books in.
pub trait ShopDb: Backend {
    /// The rows of the JSON array of texts that is bound as `$1`.
    const LISTED: &'static str;
    /// What follows a SELECT whose rows are about to be changed in the same transaction.
    const LOCK: &'static str;

    /// Tables in SQLite's words, in this database's.
    fn schema(tables: &str) -> Cow<'_, str>;

    /// Opens the database at `address`, and makes it where that is possible.
    fn open(address: &str) -> impl Future<Output = Result<Store<Self>, StoreError>> + Send;

    /// Runs a statement; how many rows it changed.
    fn run(
        conn: &mut Self::Connection,
        sql: String,
        args: Vec<Arg>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a statement; the rows that it found.
    fn read<T: Shape>(
        conn: &mut Self::Connection,
        sql: String,
        args: Vec<Arg>,
    ) -> impl Future<Output = Result<Vec<T>, sqlx::Error>> + Send;
}

/// A statement with its values. Build it with [`query`].
#[derive(Debug, Clone)]
pub struct Query {
    sql: &'static str,
    args: Vec<Arg>,
}

/// A statement that stands in the program: nothing that somebody sent is ever part of it.
#[must_use]
pub fn query(sql: &'static str) -> Query {
    Query { sql, args: Vec::new() }
}

impl Query {
    /// The value of the next `$n`.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Arg>) -> Self {
        self.args.push(value.into());
        self
    }

    /// The texts that `:listed` stands for. They are `$1`.
    ///
    /// # Errors
    /// Never: texts can always be written as JSON. The type says otherwise.
    pub fn bind_list(self, texts: &[String]) -> Result<Self, sqlx::Error> {
        let list = serde_json::to_string(texts);
        Ok(self.bind(list.map_err(|error| sqlx::Error::Encode(error.into()))?))
    }

    /// Changes rows in `tx`; how many.
    ///
    /// # Errors
    /// What the database said, here and below.
    pub async fn run<DB: ShopDb>(self, tx: &mut Transaction<'_, DB>) -> Result<u64, sqlx::Error> {
        let (sql, args) = self.on::<DB>();
        DB::run(tx, sql, args).await
    }

    /// Reads rows in `tx`.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn all_in<DB: ShopDb, T: Shape>(
        self,
        tx: &mut Transaction<'_, DB>,
    ) -> Result<Vec<T>, sqlx::Error> {
        let (sql, args) = self.on::<DB>();
        DB::read(tx, sql, args).await
    }

    /// Reads the first row in `tx`, if there is one.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn first_in<DB: ShopDb, T: Shape>(
        self,
        tx: &mut Transaction<'_, DB>,
    ) -> Result<Option<T>, sqlx::Error> {
        Ok(self.all_in(tx).await?.into_iter().next())
    }

    /// Reads rows outside any transaction.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn all<DB: ShopDb, T: Shape>(self, of: &Store<DB>) -> Result<Vec<T>, sqlx::Error> {
        let (sql, args) = self.on::<DB>();
        DB::read(&mut *of.reader().acquire().await?, sql, args).await
    }

    /// Reads the first row outside any transaction, if there is one.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn first<DB: ShopDb, T: Shape>(
        self,
        of: &Store<DB>,
    ) -> Result<Option<T>, sqlx::Error> {
        Ok(self.all(of).await?.into_iter().next())
    }

    /// Reads rows on a connection of the caller's.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn all_at<DB: ShopDb, T: Shape>(
        self,
        conn: &mut DB::Connection,
    ) -> Result<Vec<T>, sqlx::Error> {
        let (sql, args) = self.on::<DB>();
        DB::read(conn, sql, args).await
    }

    fn on<DB: ShopDb>(self) -> (String, Vec<Arg>) {
        let sql = self.sql.replace(":listed", DB::LISTED).replace(":lock", DB::LOCK);
        (sql, self.args)
    }
}

#[cfg(test)]
mod tests;
