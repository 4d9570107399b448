//! The engines of one pair: files in a folder, or servers of our own that can be killed and brought
//! back, each behind a wire that can be cut.

use std::path::Path;

use mamparo_testkit::servers::{Durability, Postgres, RabbitMq};

use crate::SoakError;
use crate::wire::Wire;

/// A store and a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pair {
    /// Both in SQLite files.
    SqliteEmbedded,
    /// SQLite and RabbitMQ.
    SqliteRabbitmq,
    /// PostgreSQL and the embedded broker.
    PostgresEmbedded,
    /// PostgreSQL and RabbitMQ.
    PostgresRabbitmq,
}

impl Pair {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::SqliteEmbedded,
        Self::SqliteRabbitmq,
        Self::PostgresEmbedded,
        Self::PostgresRabbitmq,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SqliteEmbedded => "sqlite-embedded",
            Self::SqliteRabbitmq => "sqlite-rabbitmq",
            Self::PostgresEmbedded => "postgres-embedded",
            Self::PostgresRabbitmq => "postgres-rabbitmq",
        }
    }

    /// Is the store PostgreSQL?
    #[must_use]
    pub const fn on_postgres(self) -> bool {
        matches!(self, Self::PostgresEmbedded | Self::PostgresRabbitmq)
    }

    /// Is the broker RabbitMQ?
    #[must_use]
    pub const fn on_rabbitmq(self) -> bool {
        matches!(self, Self::SqliteRabbitmq | Self::PostgresRabbitmq)
    }
}

/// The engines of a pair, running.
#[derive(Debug)]
pub struct Engines {
    pair: Pair,
    postgres: Option<(Postgres, Wire)>,
    rabbitmq: Option<(RabbitMq, Wire)>,
    store: String,
    broker: String,
}

impl Engines {
    /// Starts what `pair` needs; files go into `folder`.
    ///
    /// # Errors
    /// When a server does not come up.
    pub async fn start(pair: Pair, folder: &Path) -> Result<Self, SoakError> {
        let file = |name: &str| format!("sqlite:{}", folder.join(name).display());
        let (mut store, mut broker) = (file("store.db"), file("broker.db"));
        let (mut postgres, mut rabbitmq) = (None, None);
        if pair.on_postgres() {
            let server = tokio::task::block_in_place(|| Postgres::start(Durability::Fast));
            let server = server.map_err(SoakError::Server)?;
            store = server.url();
            let wire = Wire::open(&store).await?;
            postgres = Some((server, wire));
        }
        if pair.on_rabbitmq() {
            let node = tokio::task::block_in_place(RabbitMq::start).map_err(SoakError::Server)?;
            broker = node.url();
            let wire = Wire::open(&broker).await?;
            rabbitmq = Some((node, wire));
        }
        Ok(Self { pair, postgres, rabbitmq, store, broker })
    }

    /// Which pair these are.
    #[must_use]
    pub const fn pair(&self) -> Pair {
        self.pair
    }

    /// The store's own address, for whoever is not to be disturbed.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The broker's own address.
    #[must_use]
    pub fn broker(&self) -> &str {
        &self.broker
    }

    /// The wire to the store, if it is a server.
    #[must_use]
    pub fn store_wire(&self) -> Option<&Wire> {
        self.postgres.as_ref().map(|(_, wire)| wire)
    }

    /// The wire to the broker, if it is a server.
    #[must_use]
    pub fn broker_wire(&self) -> Option<&Wire> {
        self.rabbitmq.as_ref().map(|(_, wire)| wire)
    }

    /// Addresses for children: through the wires.
    #[must_use]
    pub fn for_children(&self) -> (String, String) {
        let store = self.store_wire().map_or(self.store.as_str(), Wire::url);
        let broker = self.broker_wire().map_or(self.broker.as_str(), Wire::url);
        (store.to_owned(), broker.to_owned())
    }

    /// Crashes the database and brings it back. `false` when it is a file.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_store(&mut self) -> Result<bool, SoakError> {
        let Some((server, _)) = &mut self.postgres else { return Ok(false) };
        let restarted = tokio::task::block_in_place(|| {
            server.kill()?;
            server.restart()
        });
        restarted.map(|()| true).map_err(SoakError::Server)
    }

    /// Crashes the broker and brings it back. `false` when it is a file.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_broker(&mut self) -> Result<bool, SoakError> {
        let Some((node, _)) = &mut self.rabbitmq else { return Ok(false) };
        let restarted = tokio::task::block_in_place(|| {
            node.kill()?;
            node.restart()
        });
        restarted.map(|()| true).map_err(SoakError::Server)
    }
}
