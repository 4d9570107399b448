//! Carries committed outbox events to the broker.
//!
//! A row is done when the broker has confirmed it, and only then. Relays share an outbox by leased
//! shards, so each key's rows pass through one relay, which keeps them in order; many rows are at the
//! broker together. The next rows are read, and confirmed ones recorded, while others are in flight. A
//! commit wakes the relay, of another process too; polling is what makes sure that nothing stays.

mod ears;
mod work;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::limits::RELAY_FLIGHTS_MAX;
use mamparo_core::message::relay::Policy;
use mamparo_core::message::topology::EVENTS;
use mamparo_store::outbox::RelaySession;
use mamparo_store::{Backend, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{Broker, MessagingError};

pub use ears::announce_commits;

/// How a relay works.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayOptions {
    /// Where events are published. Default `events`.
    pub exchange: String,
    /// Most rows that are read at once, and most at the broker: 1 to 1,000, default 500. Twice as many
    /// are held in memory.
    pub batch: u32,
    /// How long a dead relay's shards stay with it. Default 10 s, renewed at a third of it.
    pub lease: Duration,
    /// Longest time between two looks at the outbox while nothing proves that commits of other
    /// processes are heard; ten times as long while something does. Default 1 s.
    pub poll: Duration,
    /// A line about each confirmed row is kept for this long. Default 24 h; zero keeps none. PostgreSQL
    /// forgets six hours at a time.
    pub keep: Duration,
    /// How long rows that the broker did not take wait.
    pub policy: Policy,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            exchange: EVENTS.to_owned(),
            batch: 500,
            lease: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            keep: Duration::from_secs(86_400),
            policy: Policy::default(),
        }
    }
}

/// What a relay did in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelaySummary {
    /// Rows that the broker confirmed, recorded so.
    pub confirmed: u64,
    /// Times that a row had to wait for another try.
    pub postponed: u64,
}

/// A relay.
#[derive(Debug)]
pub struct Relay<B, DB: Backend> {
    store: Store<DB>,
    broker: B,
    options: RelayOptions,
}

impl<B: Broker, DB: Backend> Relay<B, DB> {
    /// A relay from `store` to `broker`. Any number of them may work on one store; up to 16 share it
    /// evenly, and more stand by.
    #[must_use]
    pub fn new(store: Store<DB>, broker: B, options: RelayOptions) -> Self {
        Self { store, broker, options }
    }

    /// Works until `cancel`. What is in flight then is waited for (a publish ends within its limit) and
    /// recorded, and the shards are given back, so that the next relay need not wait for a lease.
    pub async fn run(self, cancel: CancellationToken) -> RelaySummary {
        let Self { store, broker, mut options } = self;
        options.batch = options.batch.clamp(1, RELAY_FLIGHTS_MAX);
        let session = Arc::new(RelaySession::new(&store));
        let wakes = ears::Wakes::default();
        let mut work =
            work::Work::new(Arc::clone(&session), broker, options, store.outbox_signal(), &wakes);
        tokio::select! {
            summary = work.run(&cancel) => summary,
            never = Box::pin(ears::hear(&session, &wakes)) => match never {},
            never = Box::pin(ears::announce(&session, store.outbox_signal(), &wakes)) => {
                match never {}
            }
        }
    }
}

/// The end of `work`, or an error when the database has been silent for too long. A host that vanishes
/// closes no connection, so whoever waits for its answer would wait for ever.
async fn answered<DB: Backend, T>(
    session: &RelaySession<DB>,
    operation: &'static str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, MessagingError> {
    let after = session.patience();
    let until = clock::instant_of(clock::now().plus(after));
    match tokio::time::timeout_at(until, work).await {
        Ok(done) => done.map_err(MessagingError::store(operation)),
        Err(_) => {
            session.suspect_connections();
            Err(MessagingError::Silent { operation, after })
        }
    }
}
