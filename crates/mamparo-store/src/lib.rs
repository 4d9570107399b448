//! State that must survive: outbox, inbox, idempotency keys, attempts and queue rows, in the
//! service's own database. All of mamparo's SQL is here and nowhere else.
//!
//! Operations that must commit together with your own change take your `sqlx::Transaction`:
//!
//! ```
//! use mamparo_core::time::WallTime;
//! use mamparo_store::outbox::{self, Event};
//! use mamparo_store::SqliteStore;
//!
//! async fn place_order(store: &SqliteStore, now: WallTime) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = store.begin().await?;
//!     sqlx::query("INSERT INTO orders (id) VALUES ('o-1')").execute(&mut *tx).await?;
//!     let event = Event::new("order.created", "o-1", br#"{"id":"o-1"}"#.to_vec());
//!     outbox::enqueue(&mut tx, &event, now).await?;
//!     store.commit(tx).await?; // both or neither; a relay is woken
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     let store = SqliteStore::open("sqlite::memory:").await.unwrap();
//! #     store.apply("CREATE TABLE IF NOT EXISTS orders (id TEXT)").await.unwrap();
//! #     place_order(&store, WallTime::default()).await.unwrap();
//! #     assert_eq!(outbox::stats(&store).await.unwrap().pending, 1);
//! # }
//! ```
//!
//! What may happen next is decided in `mamparo_core::message`; this crate loads rows, asks, and
//! writes down the answer. Time is an argument everywhere. Whatever is handed out is a lease with an
//! owner and an end, and reports of a former owner change nothing, so several processes may share a
//! database, and one that dies leaves nothing locked.
//!
//! # Databases
//!
//! SQLite ([`SqliteStore`], a file) and PostgreSQL ([`PostgresStore`], a server that hosts share; the tests
//! run on 15), by the same operations with the same meaning; one suite of tests runs on both. A
//! [`StoreAddress`] says which. Where they differ, the operation's documentation says so.
//!
//! A transaction ends done, undone, undone and worth another try, or unknown: [`StoreError::class`]
//! tells, [`Store::transact`] and [`Store::attempts`] run again what may run again, and
//! [`Store::has_committed`] finds out about the unknown. Several hosts take their time from
//! [`Store::clock`].
//!
//! # Tables
//!
//! For dashboards, verdicts and the curious. Times are milliseconds since 1970 in UTC, headers are
//! JSON objects, NULL in `owner` means that nobody holds the row. Read them freely; write to them only
//! through this crate.
//!
//! | table | a row is | columns |
//! |---|---|---|
//! | `mamparo_schema` | a migration that ran | `version` |
//! | `mamparo_outbox` | an event that has not left yet | `seq` (on one key the order of commits), `shard` (from the key), `id`, `kind`, `key`, `enqueued_at`, `parked_until` (NULL: leaves when its turn comes; the greatest number: behind such a row of its key), `tries` (that failed), `error` (the last one), `headers`, `body` |
//! | `mamparo_outbox_history` | an event that has left | as above without the last six, and `confirmed_at`; on PostgreSQL in partitions of six hours |
//! | `mamparo_outbox_shards` | a sixteenth of the keys | `shard`, `owner` (the relay that holds it), `epoch` (grows with each change of hands), `lease_until` |
//! | `mamparo_outbox_relays` | a relay that is alive | `owner`, `alive_until` |
//! | `mamparo_inbox` | a message that a consumer has applied | `consumer`, `message_id`, `kind`, `applied_at`, `duplicates` (how often it came again) |
//! | `mamparo_attempts` | a handler that runs, or died running | `consumer`, `message_id`, `owner` (an opening of the store), `started_at`, `alive_until` (dead after that, unless renewed) |
//! | `mamparo_parked` | a message that waits for another attempt | `seq` (order within its key), `consumer`, `id`, `key`, `head` (1: first of its key, the only one that is handed out), `visible_at` (due, or end of the lease), `epoch`, `losses`, `owner`, `attempts`, `since`, `kind`, `exchange`, `routing_key`, `history` (array of failures), `headers`, `body` |
//! | `mamparo_retries` | a message that waits in its broker's own queue | `consumer`, `message_id`, `since` (it is as it is), `returns` (times that it was given back since it came), `owner` (the opening of the store that has it in hand; NULL: it waits), `headers` (those that it goes on with) |
//! | `mamparo_idempotency` | a key of a caller | `caller`, `key`, `fingerprint`, `epoch`, `phase` (`running`, `released`, `completed`), `lease_until`, `keep_until`, `completed_at`, `status`, `headers` (array of pairs), `body` |
//! | `mamparo_failed` | a message that a consumer gave up | `seq` (order of first failures), `consumer`, `id`, `kind`, `exchange`, `routing_key`, `key`, `status` (`failed`, `replayed`, `discarded`, `archived`), `reason`, `error`, `error_group`, `attempts`, `failures` (how often it was given up), `replays`, `first_failure`, `last_failure`, `host`, `version`, `edited_to`, `actor`, `action_reason`, `acted_at`, `owner`, `lease_until`, `headers`, `body` |
//! | `mamparo_failed_log` | what happened to such a message | `consumer`, `id`, `at`, `what`, `who`, `why` |
//! | `mamparo_queues` | a queue and its books | `name`, `message_ttl` (ms), `dead_letter_to`, `published`, `moved_in`, `moved_out`, `acked`, `archived` |
//! | `mamparo_bindings` | a route | `exchange`, `pattern`, `queue` |
//! | `mamparo_messages` | a message in a queue | `seq` (its place), `queue`, `id`, `kind`, `exchange`, `routing_key`, `key`, `since`, `visible_at`, `epoch`, `losses` (hand-outs that ran out), `owner`, `lease_until`, `headers`, `body` |
//! | `mamparo_archive` | a message that somebody discarded | as above, and `archived_at`, `actor`, `reason` |
//!
//! For every queue, `published + moved_in = moved_out + acked + archived + messages in it`
//! ([`queue::Totals::balanced`]): a difference would mean that one was lost or doubled.

pub mod address;
pub mod attempts;
pub mod backend;
pub mod class;
pub mod clock;
mod columns;
pub mod error;
pub mod failed;
mod finish;
pub mod idempotency;
pub mod inbox;
pub mod letters;
pub mod options;
pub mod outbox;
pub mod parked;
mod postgres;
pub mod queue;
pub mod retries;
mod sqlite;
pub mod store;
mod topic;
mod transact;

pub use address::StoreAddress;
pub use backend::{Backend, Migrated, QueueRows};
pub use clock::{Clock, MEASURE_EVERY};
pub use error::StoreError;
pub use mamparo_core::message::transaction::{Class, Repeats};
pub use options::StoreOptions;
/// The databases, for those who name a [`Store`]'s.
pub use sqlx::{Postgres, Sqlite};
pub use store::{Budget, Now, OutboxSignal, PostgresStore, SqliteStore, Store, Transaction};
pub use transact::{Attempts, Witness};
