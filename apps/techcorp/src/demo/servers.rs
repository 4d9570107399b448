//! Faults of broker and database themselves, carried out by commands where they are servers.

use std::process::Stdio;
use std::time::Duration;

use mamparo::call::clock;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};
use tokio::process::Command;

use super::DemoError;
use super::books::{Books, EVENTS_PENDING};
use super::site::Site;

/// How long a restarted database may take to answer.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Stops the broker. The embedded one is a file: it is locked, and what is returned holds the lock.
pub(super) async fn stop_broker(site: &Site) -> Result<Option<SqliteConnection>, DemoError> {
    if let Some(stop) = &site.engines().commands.broker_stop
        && site.engines().broker.is_some()
    {
        shell(stop).await?;
        return Ok(None);
    }
    let file = SqliteConnectOptions::new().filename(site.dir().join("broker.db"));
    let mut lock = file.busy_timeout(Duration::from_secs(10)).connect().await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut lock).await?;
    Ok(Some(lock))
}

/// Starts it again. How many events waited in the outboxes.
pub(super) async fn start_broker(
    site: &Site,
    lock: Option<SqliteConnection>,
) -> Result<u64, DemoError> {
    let waiting = waiting(site).await?;
    match (lock, &site.engines().commands.broker_start) {
        (Some(lock), _) => lock.close().await?,
        (None, Some(start)) => shell(start).await?,
        (None, None) => {}
    }
    Ok(waiting)
}

/// Counts without the broker, which is away.
async fn waiting(site: &Site) -> Result<u64, DemoError> {
    let tables = Books::tables(site.engines(), site.dir())?;
    let waiting = tables.count(EVENTS_PENDING).await?;
    tables.close().await;
    Ok(waiting)
}

/// Restarts the database and waits until it answers. Did it cut off those who were connected?
pub(super) async fn restart_store(site: &Site) -> Result<bool, DemoError> {
    let engines = site.engines();
    let (Some(store), Some(restart)) = (&engines.store, &engines.commands.store_restart) else {
        return Ok(false);
    };
    let mut before = PgConnection::connect(store).await?;
    before.ping().await?;
    shell(restart).await?;
    let give_up = clock::now().plus(BACK_WITHIN);
    loop {
        match PgConnection::connect(store).await {
            Ok(after) => {
                after.close().await?;
                return Ok(before.ping().await.is_err());
            }
            Err(error) if clock::now() >= give_up => return Err(error.into()),
            Err(_) => clock::sleep_until(clock::now().plus(Duration::from_millis(100))).await,
        }
    }
}

async fn shell(command: &str) -> Result<(), DemoError> {
    let failed = |why| DemoError::Command { command: command.to_owned(), why };
    let run = Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).output().await;
    let output = run.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{} {}", output.status, said.trim())))
}
