//! Process once: the row that says "this message has been applied" commits with its effects.

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
/// A duplicate is counted on the row.
///
/// # Errors
/// What the database said.
pub async fn insert<DB: Backend>(
    _tx: &mut Transaction<'_, DB>,
    _consumer: &str,
    _message_id: &str,
    _kind: &str,
    _now: WallTime,
) -> Result<Seen, StoreError> {
    todo!()
}

/// Has `consumer` applied `message_id`? A hint that saves work before the transaction; only
/// [`insert`] decides.
///
/// # Errors
/// What the database said.
pub async fn contains<DB: Backend>(
    _store: &Store<DB>,
    _consumer: &str,
    _message_id: &str,
) -> Result<bool, StoreError> {
    todo!()
}
