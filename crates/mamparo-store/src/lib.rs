//! State that must survive: outbox, inbox, idempotency keys, attempts and queue rows, in the
//! service's own database. All of mamparo's SQL is here and nowhere else.
//!
//! Operations that must commit together with your own change take your `sqlx::Transaction`.

pub mod attempts;
pub mod backend;
pub mod error;
pub mod idempotency;
pub mod inbox;
pub mod outbox;
pub mod queue;
mod sqlite;
pub mod store;
mod topic;

pub use backend::Backend;
pub use error::StoreError;
pub use store::{Now, OutboxSignal, SqliteStore, Store, Transaction};
