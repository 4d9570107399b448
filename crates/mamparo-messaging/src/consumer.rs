//! Consumes one queue: takes messages, has them handled, carries out what core decides.
//!
//! Up to `prefetch` messages are in hand; those of one key are handled one at a time and in order,
//! and a key whose message waits for another attempt waits with it (`mamparo_core::message::order`
//! says how far that reaches). A message whose earlier hand-out ended without a word runs alone: if
//! the process dies again, it is the culprit, and its neighbours are not.

mod blame;
mod hand;
mod handling;
mod recent;
mod session;
mod work;

use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::message::intake::Phase;
use mamparo_core::message::order::KeyOrder;
use mamparo_core::message::patience::{self, Patience};
use mamparo_core::message::topology::{QueuePolicy, WaitingRoom};
use mamparo_core::time::WallTime;
use mamparo_store::{Backend, Sqlite, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::handler::Plain;
use crate::{Broker, Handler, PlainHandler, observe};
pub(crate) use blame::missing;
pub(crate) use hand::Hand;
use session::Session;
use work::Work;

/// Times of a consumer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConsumerOptions {
    /// How long messages in hand may take to finish after cancellation. Default 10 s.
    pub grace: Duration,
    /// Waits between tries to reach a lost broker. Default: base 100 ms, factor 2, cap 5 s.
    pub reconnect: Backoff,
    /// How long the broker waits for a message to be settled: RabbitMQ's `consumer_timeout`, which it
    /// tells nobody. Default 30 min, as RabbitMQ's. A handler whose limit is longer is not begun.
    pub consumer_timeout: Duration,
    /// The program's version, written on what fails: `env!("CARGO_PKG_VERSION")` say. Default:
    /// mamparo's own.
    pub version: &'static str,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(5));
        Self {
            grace: Duration::from_secs(10),
            reconnect: Backoff::new(base, 2.0, cap),
            consumer_timeout: patience::CONSUMER_TIMEOUT,
            version: concat!("mamparo ", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// What a consumer did in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Acknowledged; duplicates included.
    pub done: u64,
    /// Put into the waiting room.
    pub retried: u64,
    /// Put into the dead-letter queue.
    pub dead: u64,
    /// Given back to the queue: deferred, behind a waiting one of their key, or at the end.
    pub given_back: u64,
    /// Cut off when the grace period was over; they are handled again.
    pub aborted: u64,
    /// Times that the broker or the store was lost.
    pub reconnects: u64,
}

/// How a consumer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHealth {
    /// It is subscribed. Ready means this.
    pub subscribed: bool,
    /// It has come to its end and will not come back.
    pub stopped: bool,
    /// Where its messages wait for another attempt.
    pub room: WaitingRoom,
    /// Flowing, paused or probing.
    pub phase: Phase,
    /// Messages in hand.
    pub in_hand: u32,
    /// When it last took a message.
    pub last_delivery: Option<WallTime>,
    /// When a message was last brought to an end: done, retried, dead or given back.
    pub last_settlement: Option<WallTime>,
    /// What `handler_timeout` means to its broker, which takes back what is not settled in time.
    pub patience: Patience,
    /// The last error that cut it off from its broker or store; `None` once it is back.
    pub error: Option<String>,
    /// While it is paused or probing: what is missing, as the handler or the database said it last.
    pub missing: Option<String>,
}

/// Watches a consumer from outside.
#[derive(Debug, Clone)]
pub struct ConsumerHandle {
    queue: Arc<str>,
    health: watch::Receiver<ConsumerHealth>,
}

impl ConsumerHandle {
    /// The queue's name.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// How it is now.
    #[must_use]
    pub fn health(&self) -> ConsumerHealth {
        let mut health = self.health.borrow().clone();
        // A consumer that was dropped instead of cancelled can't say so itself.
        if self.health.has_changed().is_err() {
            (health.stopped, health.subscribed) = (true, false);
        }
        health
    }

    /// Waits until `condition` holds; `false` when the consumer was gone before.
    pub async fn wait_for(&self, condition: impl FnMut(&ConsumerHealth) -> bool) -> bool {
        self.health.clone().wait_for(condition).await.is_ok()
    }
}

impl<B: Broker, H: PlainHandler> Consumer<B, Sqlite, Plain<H>> {
    /// A consumer without a database, for a handler that changes nothing of its own: no inbox, so a
    /// message that comes twice is handled twice; no attempt rows, so a message that kills processes
    /// is stopped by the broker's delivery limit only; waiting rooms of the broker only.
    #[must_use]
    pub fn plain(broker: B, policy: QueuePolicy, handler: H) -> Self {
        Self::of(broker, None, policy, Plain(handler))
    }
}

/// A consumer of one queue.
#[derive(Debug)]
pub struct Consumer<B: Broker, DB: Backend, H> {
    work: Work<B, DB, H>,
    options: ConsumerOptions,
    health: watch::Sender<ConsumerHealth>,
}

impl<B: Broker, DB: Backend, H: Handler<DB>> Consumer<B, DB, H> {
    /// A consumer of `policy.queue` with the default options.
    #[must_use]
    pub fn new(broker: B, store: Store<DB>, policy: QueuePolicy, handler: H) -> Self {
        Self::of(broker, Some(store), policy, handler)
    }

    fn of(broker: B, store: Option<Store<DB>>, policy: QueuePolicy, handler: H) -> Self {
        let options = ConsumerOptions::default();
        let work = Work::new(broker, store, policy, handler, options.version);
        let (health, _) = watch::channel(ConsumerHealth {
            subscribed: false,
            stopped: false,
            room: work.choice.room,
            phase: Phase::Flowing,
            in_hand: 0,
            last_delivery: None,
            last_settlement: None,
            patience: Patience::Enough,
            error: None,
            missing: None,
        });
        Self { work, options, health }
    }

    /// This consumer with other options.
    #[must_use]
    pub fn with_options(mut self, options: ConsumerOptions) -> Self {
        self.work.version = options.version;
        self.options = options;
        self
    }

    /// Watches this consumer, for readiness.
    #[must_use]
    pub fn handle(&self) -> ConsumerHandle {
        let queue = self.work.policy.queue.as_str().into();
        ConsumerHandle { queue, health: self.health.subscribe() }
    }

    /// Declares the queue, subscribes, and handles messages until `cancel`; then stops taking,
    /// finishes what is in hand within the grace period and gives back the rest.
    ///
    /// A lost broker or store is no end: the consumer is not subscribed meanwhile and comes back
    /// with backoff.
    pub async fn run(self, cancel: CancellationToken) -> Summary {
        let Self { work, options, health } = self;
        let work = Arc::new(work);
        let mut summary = Summary::default();
        let queue = work.policy.queue.as_str();
        let (mut failures, mut wait) = (0_u32, Duration::ZERO);
        let mut order = KeyOrder::default();
        observe::room(queue, &work.choice);
        if !work.may_begin(options.consumer_timeout, &health) {
            cancel.cancelled().await;
            health.send_modify(|health| health.stopped = true);
            return summary;
        }
        while !cancel.is_cancelled() {
            let was = summary.done;
            let error = match Session::open(&work, options, &health, &mut order).await {
                Ok(mut session) => session.run(&cancel, &mut summary).await,
                Err(error) => Err(error),
            };
            health.send_modify(|health| health.subscribed = false);
            let Err(error) = error else { break };
            // Work that got done shows that this is a new failure, not the old one going on.
            failures = if summary.done > was { 1 } else { failures.saturating_add(1) };
            summary.reconnects = summary.reconnects.saturating_add(1);
            observe::disconnected(queue, &error, failures);
            health.send_modify(|health| health.error = Some(crate::error::chain(&error)));
            wait = options.reconnect.delay(failures, wait, &mut clock::entropy());
            tokio::select! {
                () = cancel.cancelled() => {}
                () = clock::sleep_until(clock::now().plus(wait)) => {}
            }
        }
        observe::subscribed(queue, false);
        health.send_modify(|health| health.stopped = true);
        summary
    }
}
