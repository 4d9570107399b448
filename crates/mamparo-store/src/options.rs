//! How a store is opened: sizes of its pools, and how long anything may wait.

use std::time::Duration;

/// Sizes and limits of a store's connections. SQLite has one writer and four readers whatever the
/// sizes say; of the limits it knows `acquire_timeout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Connections for requests, at most. Default 10.
    pub connections: u32,
    /// Connections for background work ([`Store::background`](crate::Store::background)), at most.
    /// Default 5. They are apart, so that neither a burst of requests stops the relay, nor a relay
    /// that catches up the requests.
    pub background_connections: u32,
    /// How long connecting to the server may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long an operation may wait for a connection, the connecting included. Default 5 s.
    pub acquire_timeout: Duration,
    /// How long a statement may run (`statement_timeout`). Default 30 s.
    pub statement_timeout: Duration,
    /// How long a statement may wait for a lock (`lock_timeout`). Default 5 s.
    pub lock_timeout: Duration,
    /// How long a transaction may sit idle before the server ends it
    /// (`idle_in_transaction_session_timeout`): a transaction that is forgotten keeps its locks, and
    /// every dead row of the database. Default 60 s.
    pub idle_in_transaction_timeout: Duration,
    /// What `pg_stat_activity` shows (`application_name`). Default `mamparo`.
    pub application_name: String,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            connections: 10,
            background_connections: 5,
            connect_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(5),
            idle_in_transaction_timeout: Duration::from_secs(60),
            application_name: "mamparo".to_owned(),
        }
    }
}
