//! Rows of the embedded broker's queues in the hands of people: paged by number, and each settled in
//! one transaction: a copy elsewhere, an archived original, or nothing but its removal.

use std::collections::BTreeMap;

use mamparo_core::time::WallTime;

use crate::backend::QueueRows;
use crate::queue::{Archived, Listed, QueueMessage, require_queue};
use crate::{Store, StoreError};

/// What becomes of one message.
#[derive(Debug, Clone, Copy)]
pub struct Settlement<'a> {
    /// The message's row.
    pub row: i64,
    /// Goes to the end of this queue.
    pub copy: Option<(&'a str, &'a QueueMessage)>,
    /// The original goes to the archive.
    pub archive: Option<Note<'a>>,
}

/// Why a message lies in the archive.
#[derive(Debug, Clone, Copy)]
pub struct Note<'a> {
    /// Who did it.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
    /// The message's headers from now on.
    pub headers: &'a BTreeMap<String, String>,
}

/// A message in the archive and its number there.
#[derive(Debug, Clone)]
pub struct InArchive {
    /// The row.
    pub row: i64,
    /// What lies there.
    pub archived: Archived,
}

/// The number of the youngest message in `queue`; 0 when it is empty. Later ones have higher numbers.
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn last<DB: QueueRows>(store: &Store<DB>, queue: &str) -> Result<i64, StoreError> {
    let mut conn = store.read_connection("look at a queue").await?;
    require_queue::<DB>(&mut conn, queue, "look at a queue").await?;
    DB::last_message(&mut conn, queue).await.map_err(StoreError::during("look at a queue"))
}

/// Up to `max` messages of `queue` with numbers after `after` and up to `last`, oldest first.
///
/// # Errors
/// What the database said.
pub async fn page<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    after: i64,
    last: i64,
    max: u32,
) -> Result<Vec<Listed>, StoreError> {
    let mut conn = store.read_connection("list messages").await?;
    let page = DB::page_messages(&mut conn, queue, after, last, max).await;
    page.map_err(StoreError::during("list messages"))
}

/// Up to `max` messages that were archived from `queue`, with numbers after `after`, oldest first.
///
/// # Errors
/// What the database said.
pub async fn archive<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    after: i64,
    max: u32,
) -> Result<Vec<InArchive>, StoreError> {
    let mut conn = store.read_connection("list the archive").await?;
    let page = DB::page_archive(&mut conn, queue, after, max).await;
    page.map_err(StoreError::during("list the archive"))
}

/// Settles messages in one transaction. For each, in order: was it there and free?
///
/// # Errors
/// [`StoreError::UnknownQueue`] when a copy's queue is not declared, else what the database said;
/// nothing is changed then.
pub async fn settle<DB: QueueRows>(
    store: &Store<DB>,
    settlements: &[Settlement<'_>],
    now: WallTime,
) -> Result<Vec<bool>, StoreError> {
    let failed = || StoreError::during("settle dead letters");
    let mut tx = store.begin().await?;
    let mut settled = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        if let Some((queue, _)) = settlement.copy {
            require_queue::<DB>(&mut tx, queue, "settle dead letters").await?;
        }
        settled.push(DB::settle_letter(&mut tx, settlement, now).await.map_err(failed())?);
    }
    tx.commit().await.map_err(failed())?;
    Ok(settled)
}

/// Takes a message out of the archive and puts it at the end of `queue`. `false` when it is gone.
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn restore<DB: QueueRows>(
    store: &Store<DB>,
    row: i64,
    queue: &str,
    headers: &BTreeMap<String, String>,
    now: WallTime,
) -> Result<bool, StoreError> {
    let failed = || StoreError::during("restore a message");
    let mut tx = store.begin().await?;
    require_queue::<DB>(&mut tx, queue, "restore a message").await?;
    let restored = DB::restore_message(&mut tx, row, queue, headers, now).await;
    let restored = restored.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(restored)
}
