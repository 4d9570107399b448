//! What the shop of a demo stands on: files in the demo's directory, or servers.

use std::path::Path;

use mamparo::store::StoreError;

use crate::db;

/// Databases and broker. The default is SQLite and the embedded broker, in the demo's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Engines {
    /// The shop's PostgreSQL database; each service has a schema in it.
    pub store: Option<String>,
    /// The RabbitMQ broker.
    pub broker: Option<String>,
    /// Shell commands that do to the servers what the script wants, where they are the demo's to
    /// break.
    pub commands: Commands,
}

/// How to stop, start and restart servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commands {
    /// Stops the broker.
    pub broker_stop: Option<String>,
    /// Starts it again.
    pub broker_start: Option<String>,
    /// Restarts the database server, or makes it crash and recover.
    pub store_restart: Option<String>,
}

impl Engines {
    /// Is any of it a server? Then every service runs in a process of its own.
    #[must_use]
    pub fn any_server(&self) -> bool {
        self.store.is_some() || self.broker.is_some()
    }

    /// The address of a service's own database, for its policy file.
    ///
    /// # Errors
    /// When the shop's database is no PostgreSQL database.
    pub fn store_of(&self, service: &str, dir: &Path) -> Result<String, StoreError> {
        match &self.store {
            Some(shop) => db::of_service(shop, service),
            None => Ok(format!("sqlite:{}", dir.join(format!("{service}.db")).display())),
        }
    }

    /// The broker's address, for policy files.
    #[must_use]
    pub fn broker_in(&self, dir: &Path) -> String {
        let file = || format!("sqlite:{}", dir.join("broker.db").display());
        self.broker.clone().unwrap_or_else(file)
    }
}
