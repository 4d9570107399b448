//! The servers that everything is measured on, and how much of each thing is done.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Result, postgres};

/// How long a run may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// For a look.
    Quick,
    /// For a figure.
    Full,
}

/// Where and how much.
#[derive(Debug)]
pub(crate) struct Bed {
    /// The broker's address.
    pub(crate) amqp: String,
    /// A superuser's address of the database server, without a database at its end.
    pub(crate) postgres: String,
    /// The program `pgbench` of the server's version.
    pub(crate) pgbench: PathBuf,
    /// How much.
    pub(crate) scale: Scale,
}

static NAMES: AtomicU32 = AtomicU32::new(0);

/// A name that no other measurement of this run has.
pub(crate) fn fresh(kind: &str) -> String {
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    format!("bench_{kind}_{}_{number}", std::process::id())
}

impl Bed {
    /// `full` things, or a quarter of them for a look.
    pub(crate) fn amount(&self, full: usize) -> usize {
        match self.scale {
            Scale::Quick => full / 4,
            Scale::Full => full,
        }
    }

    /// A new, empty database; its address. [`Bed::drop_database`] removes it.
    pub(crate) async fn database(&self) -> Result<String> {
        let name = fresh("db");
        let client = postgres::connect(&self.address_of("postgres")).await?;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(self.address_of(&name))
    }

    /// Removes a database with whoever is still connected to it.
    pub(crate) async fn drop_database(&self, address: &str) -> Result<()> {
        let name = address.rsplit('/').next().unwrap_or_default();
        let client = postgres::connect(&self.address_of("postgres")).await?;
        client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        Ok(())
    }

    /// The address of a database of the server.
    pub(crate) fn address_of(&self, database: &str) -> String {
        format!("{}/{database}", self.postgres)
    }
}

impl Bed {
    /// What a commit of the database server is worth, in its own words.
    ///
    /// A server that does not sync would make every figure of ours look worse beside the broker's, or
    /// better beside another run's; so it is refused.
    pub(crate) async fn durability(&self) -> Result<String> {
        let client = postgres::connect(&self.address_of("postgres")).await?;
        let mut said = Vec::new();
        for setting in ["server_version", "fsync", "synchronous_commit", "full_page_writes"] {
            let row = client.query_one(&format!("SHOW {setting}"), &[]).await?;
            let value: String = row.get(0);
            if setting != "server_version" && value != "on" {
                return Err(format!("measure: the database server has {setting} = {value}").into());
            }
            said.push(format!("{setting} {value}"));
        }
        Ok(said.join(", "))
    }
}
