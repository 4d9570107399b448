//! On an SQLite file.

use tempfile::TempDir;

#[path = "suite.rs"]
mod suite;

/// The database under test.
type Db = sqlx::Sqlite;

/// The table of the handlers' effects.
const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)";

/// Where the store lives as long as a test.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("orders.db").display())
    }
}
