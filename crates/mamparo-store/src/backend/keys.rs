//! Rows of idempotency keys.

use std::future::Future;

use mamparo_core::message::idempotency::Record;
use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::idempotency::StoredResponse;

/// Rows of idempotency keys.
pub trait KeyRows: sqlx::Database + sealed::Sealed {
    /// Reads an idempotency key's record and keeps others from changing or adding one until the
    /// transaction ends; `None` when there was none. [`KeyRows::save_key`] must follow then.
    fn claim_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Reads an idempotency key's record and keeps others from changing it until the transaction ends.
    fn lock_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Reads an idempotency key's record.
    fn load_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Writes the record of a key that is locked; `answer` and its time replace what was kept before.
    fn save_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
        record: &Record,
        answer: Option<(&StoredResponse, WallTime)>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads the answer that was kept for a key.
    fn load_response(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<StoredResponse>> + Send;

    /// Deletes keys past their retention; how many.
    fn forget_keys(
        conn: &mut Self::Connection,
        now: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}
