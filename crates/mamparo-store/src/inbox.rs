//! Process once: the row that says "this message has been applied" commits with its effects.

use std::borrow::Cow;

use mamparo_core::message::transaction::Class;
use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError, Transaction};

/// Was this message new?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// First time: apply it in this transaction.
    Fresh,
    /// Applied before: change nothing and acknowledge.
    Duplicate,
}

/// Marks `message_id` as applied by `consumer`, first thing in the handler's transaction.
///
/// A duplicate is counted on the row: commit that too. When the transaction of the first application
/// rolls back, the message is as new as before.
///
/// # Errors
/// What the database said.
pub async fn insert<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    message_id: &str,
    kind: &str,
    now: WallTime,
) -> Result<Seen, StoreError> {
    let duplicates = DB::insert_inbox(&mut **tx, consumer, message_id, kind, now).await;
    match duplicates.map_err(StoreError::during("insert into the inbox"))? {
        0 => Ok(Seen::Fresh),
        _ => Ok(Seen::Duplicate),
    }
}

/// Begins the transaction in which `message_id` is applied, its inbox row in it, in one round trip
/// where there are any. `None` for a message that was applied before: that is counted, and nothing
/// is left open.
///
/// The same as [`Store::begin`] and [`insert`], which on PostgreSQL are two round trips. Commit with
/// [`Store::commit`]; when it rolls back, the message is as new as before.
///
/// # Errors
/// What the database said; nothing is left open then.
pub async fn begin<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    kind: &str,
    now: WallTime,
) -> Result<Option<Transaction<'static, DB>>, StoreError> {
    let operation = "begin with the inbox";
    loop {
        let Some(statements) = DB::begin_with_inbox(consumer, message_id, kind, now) else {
            let mut tx = store.begin().await?;
            let seen = insert(&mut tx, consumer, message_id, kind, now).await?;
            if seen == Seen::Fresh {
                return Ok(Some(tx));
            }
            store.commit(tx).await?;
            return Ok(None);
        };
        match store.begin_by(Cow::Owned(statements), operation).await {
            Ok(tx) => return Ok(Some(tx)),
            Err(error) if error.class() == Class::Duplicate => {}
            Err(error) => return Err(error),
        }
        let mut conn = store.write_connection(operation).await?;
        let counted = DB::count_duplicate(&mut conn, consumer, message_id).await;
        if counted.map_err(StoreError::during(operation))? {
            return Ok(None);
        }
        // Forgotten in between, after its retention: it is new again.
    }
}

/// Has `consumer` applied `message_id`? A hint that saves work before the transaction; only
/// [`insert`] decides.
///
/// # Errors
/// What the database said.
pub async fn contains<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
) -> Result<bool, StoreError> {
    let mut conn = store.read_connection("look into the inbox").await?;
    let found = DB::has_inbox(&mut conn, consumer, message_id).await;
    found.map_err(StoreError::during("look into the inbox"))
}

/// Forgets rows that were applied before `before`, at most `max` of them; how many. A message that
/// comes again after that is applied again, so keep them for longer than any broker keeps messages.
///
/// # Errors
/// What the database said.
pub async fn forget<DB: Backend>(
    store: &Store<DB>,
    before: WallTime,
    max: u32,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("forget inbox rows").await?;
    let forgotten = DB::forget_inbox(&mut conn, before, max).await;
    forgotten.map_err(StoreError::during("forget inbox rows"))
}
