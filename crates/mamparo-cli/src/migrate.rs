//! `mamparo migrate`: brings the tables of a service's store up to date.

use clap::Args;
use mamparo_store::{Migrated, PostgresStore, SqliteStore, StoreAddress, StoreError};
use serde::Serialize;

use crate::output::{Exit, allowed, data, failure, json, say};

/// What `mamparo migrate` takes.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// The service's store: sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    store: String,
    /// Make an SQLite file that is not there yet. A PostgreSQL database must be there.
    #[arg(long)]
    create: bool,
    /// Do it without being asked.
    #[arg(long)]
    yes: bool,
    /// Print the versions as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    from: i64,
    to: i64,
}

/// Runs the command.
pub(crate) async fn run(verb: Migrate) -> Exit {
    let address = match StoreAddress::parse(&verb.store) {
        Ok(address) => address,
        Err(error) => return unusable(&error),
    };
    if let StoreAddress::File(path) = &address
        && !verb.create
        && !path.is_file()
    {
        say(&format!("error: failed to migrate {address}: there is no such file"));
        say("hint: a service makes its file when it starts; --create makes it here");
        return Exit::Unusable;
    }
    match allowed(&format!("Bring mamparo's tables at {address} up to date?"), verb.yes) {
        Ok(true) => {}
        Ok(false) => {
            say("nothing was changed");
            return Exit::Clean;
        }
        Err(hint) => {
            say("error: failed to migrate: nobody to ask");
            say(&format!("hint: {hint}"));
            return Exit::Unusable;
        }
    }
    match migrate(&verb.store, &address).await {
        Ok(migrated) => shown(&address, migrated, verb.json),
        Err(error) => unusable(&error),
    }
}

async fn migrate(url: &str, address: &StoreAddress) -> Result<Migrated, StoreError> {
    match address {
        StoreAddress::Postgres(_) => {
            let store = PostgresStore::open(url).await?;
            store.close().await;
            Ok(store.migrated())
        }
        StoreAddress::File(_) | StoreAddress::Memory => {
            let store = SqliteStore::open(url).await?;
            store.close().await;
            Ok(store.migrated())
        }
    }
}

fn shown(address: &StoreAddress, Migrated { from, to }: Migrated, as_json: bool) -> Exit {
    if as_json {
        return json(&Report { store: address.to_string(), from, to });
    }
    let text = if from == to {
        format!("{address}: version {to}, up to date\n")
    } else {
        format!("{address}: version {from} -> {to}\n")
    };
    if data(&text) { Exit::Clean } else { Exit::Findings }
}

fn unusable(error: &StoreError) -> Exit {
    say(&failure(error));
    if matches!(error, StoreError::NewerSchema { .. }) {
        say("hint: use the mamparo that migrated it, or a newer one");
    }
    Exit::Unusable
}
