//! Idempotency keys: the second request gets the first one's answer.

use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError, Transaction};

/// An answer as it is kept and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The HTTP status.
    pub status: u16,
    /// Headers worth replaying (`location`, `content-type`).
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Proof that this request owns its key; needed to complete or release it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimToken {
    /// Who asked; keys of different callers never meet.
    pub caller: String,
    /// The key.
    pub key: String,
    /// Fences off an owner whose lease ran out.
    pub epoch: i64,
}

/// What became of the wish to use a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Ours: do the work, then [`complete`] it in the same transaction.
    Granted(ClaimToken),
    /// Another request holds it right now (409).
    InProgress {
        /// When its lease ends.
        until: WallTime,
    },
    /// Done before: replay this answer.
    Replay(StoredResponse),
    /// The key was used for another payload (422).
    Mismatch,
}

/// Claims `key` of `caller` for a request with `fingerprint`, atomically.
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    _store: &Store<DB>,
    _caller: &str,
    _key: &str,
    _fingerprint: &str,
    _lease: Duration,
    _retention: Duration,
    _now: WallTime,
) -> Result<Claim, StoreError> {
    todo!()
}

/// Keeps the answer, in the transaction of the work itself.
///
/// # Errors
/// [`StoreError::Fenced`] when another request took the key over meanwhile: roll back.
pub async fn complete<DB: Backend>(
    _tx: &mut Transaction<'_, DB>,
    _token: &ClaimToken,
    _response: &StoredResponse,
    _now: WallTime,
) -> Result<(), StoreError> {
    todo!()
}

/// Gives the key back: nothing was done, the next request may try.
///
/// # Errors
/// What the database said.
pub async fn release<DB: Backend>(
    _store: &Store<DB>,
    _token: &ClaimToken,
) -> Result<(), StoreError> {
    todo!()
}
