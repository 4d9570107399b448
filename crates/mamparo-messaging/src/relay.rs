//! Carries committed outbox events to the broker.
//!
//! A row is done when the broker has confirmed it, and only then. The store hands out at most one
//! row of each key at a time, so many rows are in flight together while each key keeps its order.
//! A commit wakes the relay; polling is what makes sure that nothing stays.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::limits::BATCH_MAX;
use mamparo_core::message::relay::{Decision, Policy, Published};
use mamparo_core::message::topology::EVENTS;
use mamparo_core::time::{Moment, WallTime};
use mamparo_store::outbox::{self, Claimed};
use mamparo_store::{Backend, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{Broker, Confirm, Message, MessagingError, observe};

/// How a relay works.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayOptions {
    /// Where events are published. Default `events`.
    pub exchange: String,
    /// Most rows in flight. Default 100, which is also the most.
    pub batch: u32,
    /// How long a dead relay's rows stay claimed. Default 30 s: longer than any publish may take.
    pub lease: Duration,
    /// Longest time between two looks at the outbox. Default 1 s.
    pub poll: Duration,
    /// Confirmed rows are forgotten after this long. Default 24 h.
    pub keep: Duration,
    /// How long rows that the broker did not take wait.
    pub policy: Policy,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            exchange: EVENTS.to_owned(),
            batch: BATCH_MAX,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            keep: Duration::from_secs(86_400),
            policy: Policy::default(),
        }
    }
}

/// What a relay did in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelaySummary {
    /// Rows that the broker confirmed.
    pub confirmed: u64,
    /// Times that a row had to wait for another try.
    pub postponed: u64,
}

/// How often the gauges are refreshed and old rows forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// Most rows that are forgotten at once, so that the writer is soon free again.
const FORGET_MAX: u32 = 1_000;

/// Waits between tries when the store itself fails: base 100 ms, factor 2, cap 5 s.
const STORE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), 2.0, Duration::from_secs(5));

/// A relay.
#[derive(Debug)]
pub struct Relay<B, DB: Backend> {
    store: Store<DB>,
    broker: B,
    options: RelayOptions,
    owner: String,
    summary: RelaySummary,
    housekeeping: Moment,
}

impl<B: Broker, DB: Backend> Relay<B, DB> {
    /// A relay from `store` to `broker`. Any number of them may work on one store.
    #[must_use]
    pub fn new(store: Store<DB>, broker: B, options: RelayOptions) -> Self {
        let owner = uuid::Uuid::now_v7().to_string();
        let (summary, housekeeping) = (RelaySummary::default(), Moment::ORIGIN);
        Self { store, broker, options, owner, summary, housekeeping }
    }

    /// Works until `cancel`. What is in flight then is waited for (a publish ends within its limit),
    /// and what is still claimed is given back, so that the next relay need not wait for a lease.
    pub async fn run(mut self, cancel: CancellationToken) -> RelaySummary {
        let mut signal = self.store.outbox_signal();
        let (mut failures, mut wait) = (0_u32, Duration::ZERO);
        while !cancel.is_cancelled() {
            wait = match self.cycle().await {
                Ok(claimed) => {
                    failures = 0;
                    // Confirmed rows free their keys' next ones, so a worked cycle looks again.
                    if claimed > 0 { Duration::ZERO } else { self.options.poll }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    observe::relay_failed(&error, failures);
                    STORE_BACKOFF.delay(failures, wait, &mut clock::entropy())
                }
            };
            if wait.is_zero() {
                continue;
            }
            let until = clock::now().plus(wait);
            tokio::select! {
                () = cancel.cancelled() => {}
                () = signal.wait(), if failures == 0 => {}
                () = clock::sleep_until(until) => {}
            }
        }
        if let Err(error) = outbox::release_all(&self.store, &self.owner).await {
            let error = MessagingError::store("give outbox rows back")(error);
            // Their lease ends by itself.
            observe::relay_failed(&error, 0);
        }
        self.summary
    }

    /// Claims what is due, publishes it and records what came of it. How many rows were claimed.
    async fn cycle(&mut self) -> Result<usize, MessagingError> {
        self.keep_house().await?;
        let batch = self.options.batch.clamp(1, BATCH_MAX);
        let claimed =
            outbox::claim(&self.store, &self.owner, batch, self.options.lease, clock::wall)
                .await
                .map_err(MessagingError::store("claim outbox rows"))?;
        let count = claimed.len();
        let (broker, exchange) = (self.broker.clone(), self.options.exchange.clone());
        let mut flights: FuturesUnordered<_> =
            claimed.into_iter().map(|row| publish(&broker, &exchange, row)).collect();
        let mut confirmed = Vec::with_capacity(count);
        // One row that can't be postponed must not keep the confirmed ones from being recorded: they
        // would all be published again.
        let mut failed = None;
        while let Some(flight) = flights.next().await {
            match self.land(flight).await {
                Ok(Some(row)) => confirmed.push(row),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        if !confirmed.is_empty() {
            // Rows whose lease went to somebody else stay theirs: they are published twice, with
            // one id.
            let done = outbox::confirmed(&self.store, &self.owner, &confirmed, clock::wall())
                .await
                .map_err(MessagingError::store("record confirmed events"))?;
            self.summary.confirmed = self.summary.confirmed.saturating_add(done);
        }
        failed.map_or(Ok(count), Err)
    }

    /// Decides on one published row; the row's number when it is confirmed.
    async fn land(&mut self, flight: Flight) -> Result<Option<i64>, MessagingError> {
        let (published, said) = match flight.confirm {
            Confirm::Confirmed => (Published::Confirmed, String::new()),
            Confirm::Returned => (Published::Returned, "no queue takes it".to_owned()),
            Confirm::Nacked(reason) => (Published::Nacked, reason),
            Confirm::Unknown(reason) => (Published::Unknown, reason),
        };
        let tries = flight.tries;
        let rng = &mut clock::entropy();
        match self.options.policy.tell(clock::wall(), tries, published, rng) {
            Decision::Done => {
                observe::relayed(&self.options.exchange);
                Ok(Some(flight.row))
            }
            Decision::Postpone { due, state: _, alarm } => {
                let (exchange, message) = (&self.options.exchange, &flight.message);
                observe::postponed(exchange, message, &said, tries, alarm);
                self.summary.postponed = self.summary.postponed.saturating_add(1);
                match outbox::postpone(&self.store, &self.owner, flight.row, due, &said).await {
                    // Its lease ran out meanwhile: whoever holds it now decides.
                    Ok(()) | Err(StoreError::Fenced { .. }) => Ok(None),
                    Err(error) => Err(MessagingError::store("postpone an event")(error)),
                }
            }
        }
    }

    async fn keep_house(&mut self) -> Result<(), MessagingError> {
        if clock::now() < self.housekeeping {
            return Ok(());
        }
        let now: WallTime = clock::wall();
        let forgotten = outbox::forget(&self.store, now.minus(self.options.keep), FORGET_MAX)
            .await
            .map_err(MessagingError::store("forget old outbox rows"))?;
        // A full batch means that there is more: forgetting must keep up with what comes in.
        if forgotten < u64::from(FORGET_MAX) {
            self.housekeeping = clock::now().plus(HOUSEKEEPING);
        }
        let stats =
            outbox::stats(&self.store).await.map_err(MessagingError::store("count outbox rows"))?;
        observe::outbox(stats, stats.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest)));
        Ok(())
    }
}

/// A row after its publish.
#[derive(Debug)]
struct Flight {
    row: i64,
    /// Tries made, this one included.
    tries: u32,
    message: Message,
    confirm: Confirm,
}

async fn publish<B: Broker>(broker: &B, exchange: &str, claimed: Claimed) -> Flight {
    let message = Message::from_event(claimed.event, exchange);
    let confirm = broker.publish(exchange, &message.routing_key, &message).await;
    Flight { row: claimed.row, tries: claimed.tries.saturating_add(1), message, confirm }
}
