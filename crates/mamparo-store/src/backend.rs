//! The seam between operations and databases: one method per operation, one implementation a database.

/// A database that mamparo can keep its state in. Sealed; implemented for SQLite.
pub trait Backend: sqlx::Database {}

impl Backend for sqlx::Sqlite {}
