//! A database, opened with one writing connection and a pool of readers.

use sqlx::{Pool, Sqlite};

use crate::{Backend, StoreError};

/// A transaction of the user's on this store's database.
pub type Transaction<'c, DB> = sqlx::Transaction<'c, DB>;

/// The embedded default.
pub type SqliteStore = Store<Sqlite>;

/// A service's database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store<DB: Backend> {
    writer: Pool<DB>,
    reader: Pool<DB>,
}

impl Store<Sqlite> {
    /// Opens (and creates, and migrates) the database at `address`: `sqlite:PATH` or `sqlite::memory:`.
    ///
    /// # Errors
    /// [`StoreError::Address`] for an address of another kind, else what the database said.
    pub async fn open(_address: &str) -> Result<Self, StoreError> {
        todo!()
    }
}

impl<DB: Backend> Store<DB> {
    /// Begins a writing transaction (`BEGIN IMMEDIATE` on SQLite); waits its turn for the writer.
    ///
    /// # Errors
    /// What the database said.
    pub async fn begin(&self) -> Result<Transaction<'static, DB>, StoreError> {
        todo!()
    }

    /// Connections for reading only.
    #[must_use]
    pub fn reader(&self) -> &Pool<DB> {
        &self.reader
    }

    /// Is the database there? For readiness.
    ///
    /// # Errors
    /// What the database said.
    pub async fn ping(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Closes all connections after their work.
    pub async fn close(&self) {
        let _ = &self.writer;
        todo!()
    }
}
