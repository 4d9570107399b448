//! A row written before the handler runs, so that a message that kills the process is known.

use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError};

/// Records that `consumer` starts on `message_id`; answers how many earlier starts never ended
/// (the process died in them).
///
/// # Errors
/// What the database said.
pub async fn started<DB: Backend>(
    _store: &Store<DB>,
    _consumer: &str,
    _message_id: &str,
    _now: WallTime,
) -> Result<u32, StoreError> {
    todo!()
}

/// Records that the handler came to an end, whatever it said.
///
/// # Errors
/// What the database said.
pub async fn ended<DB: Backend>(
    _store: &Store<DB>,
    _consumer: &str,
    _message_id: &str,
) -> Result<(), StoreError> {
    todo!()
}
