//! How a relay learns of rows that another process committed.

use std::future::Future;
use std::time::Duration;

use crate::StoreError;

/// What an ear heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Nothing. Only ears that are asked again and again say so.
    Nothing,
    /// There may be new rows.
    Rows,
    /// A word that somebody sent to see whether it arrives.
    Word(String),
    /// The connection broke and is there again: what came between was lost.
    Gap,
}

/// Hears of commits of other processes: `LISTEN` on PostgreSQL, a look at the log's file on SQLite.
/// It may miss some, so polling stays the truth.
pub trait Ear: std::fmt::Debug + Send + 'static {
    /// `None`: [`hear`](Self::hear) waits until there is something. Else it only looks, at this
    /// interval.
    const LOOK_EVERY: Option<Duration>;

    /// What there is to hear. To be awaited to its end.
    ///
    /// # Errors
    /// What the database said; the ear is deaf then and a new one is needed.
    fn hear(&mut self) -> impl Future<Output = Result<Heard, StoreError>> + Send;
}
