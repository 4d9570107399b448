//! Files that live as long as a test, and times that tests make up.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod cutter;
pub(crate) mod home;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use mamparo_core::time::WallTime;
use mamparo_store::SqliteStore;
use mamparo_store::queue::{QueueMessage, QueueSpec};
use tempfile::TempDir;

/// The lease that tests hand out.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A directory with one database file in it.
pub(crate) struct File {
    dir: TempDir,
}

impl File {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("store.db")
    }

    pub(crate) fn address(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    /// One more store on the file, as another process would have.
    pub(crate) async fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.address()).await.unwrap()
    }
}

/// A time so many seconds after the start of the test's calendar.
pub(crate) fn at(seconds: u64) -> WallTime {
    WallTime::from_unix_millis(1_000_000).plus(Duration::from_secs(seconds))
}

pub(crate) fn message(id: &str) -> QueueMessage {
    QueueMessage {
        id: id.to_owned(),
        kind: "order.created".to_owned(),
        exchange: "events".to_owned(),
        routing_key: "order.created".to_owned(),
        key: format!("order-{id}"),
        headers: BTreeMap::from([("x-request-id".to_owned(), "r-1".to_owned())]),
        body: vec![0, 159, 146, 150],
    }
}

pub(crate) fn queue(name: &str) -> QueueSpec {
    QueueSpec { name: name.to_owned(), ..QueueSpec::default() }
}
