//! The embedded broker: queues as rows of a SQLite file, shared by every process that opens it.
//!
//! A delivery is a lease with an owner, an epoch and an end. A consumer renews its leases; when it
//! dies, its messages come back when their lease is over. Publishers of the same process wake
//! consumers at once, those of other processes are found by polling.

mod letters;
mod provision;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::topology::QueuePolicy;
use mamparo_core::time::Moment;
use mamparo_store::SqliteStore;
use mamparo_store::queue::{self, Selection};
use tokio::sync::watch;

use crate::address::BrokerAddress;
use crate::broker::{
    Broker, Confirm, Delivery, Filter, Receipt, Settled, Stored, Subscription, sealed,
};
use crate::letters::Place;
use crate::{Message, MessagingError, plan};

pub use letters::EmbeddedLetters;

/// Times of the embedded broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// How long a message stays with a consumer that has gone silent. Default 10 s.
    pub lease: Duration,
    /// How often leases are renewed; at most a third of the lease, which is used instead of more.
    /// Default 3 s.
    pub renew_every: Duration,
    /// First wait between two looks at an empty queue. Default 20 ms.
    pub poll_min: Duration,
    /// The wait doubles up to this. Default 500 ms.
    pub poll_max: Duration,
    /// How long a publish may take before it is [`Confirm::Unknown`]. Default 5 s.
    pub publish_timeout: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            poll_min: Duration::from_millis(20),
            poll_max: Duration::from_millis(500),
            publish_timeout: Duration::from_secs(5),
        }
    }
}

/// The embedded broker. Clones share file and wake-ups: open it once per process.
#[derive(Debug, Clone)]
pub struct EmbeddedBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: SqliteStore,
    options: EmbeddedOptions,
    /// Counts publishes of this process.
    published: watch::Sender<u64>,
}

impl EmbeddedBroker {
    /// Opens the broker at `address` (`sqlite:PATH`), creating the file when there is none.
    ///
    /// # Errors
    /// [`MessagingError::Address`], or what the store said.
    pub async fn open(address: &str) -> Result<Self, MessagingError> {
        let address = BrokerAddress::parse(address)?;
        let store = SqliteStore::open(&address.to_string())
            .await
            .map_err(MessagingError::store("open broker"))?;
        Ok(Self::new(store, EmbeddedOptions::default()))
    }

    /// Opens the broker at `address` if its file is there and mamparo's. For tools, which must not
    /// create a broker by a typing error, nor turn another program's database into one.
    ///
    /// # Errors
    /// [`MessagingError::NoFile`], and as [`open`](Self::open).
    pub async fn open_existing(address: &str) -> Result<Self, MessagingError> {
        let address = BrokerAddress::parse(address)?;
        if let Some(path) = address.path()
            && !path.is_file()
        {
            return Err(MessagingError::NoFile { path: path.display().to_string() });
        }
        let store = SqliteStore::open_existing(&address.to_string())
            .await
            .map_err(MessagingError::store("open broker"))?;
        Ok(Self::new(store, EmbeddedOptions::default()))
    }

    /// A broker on an open store.
    #[must_use]
    pub fn new(store: SqliteStore, options: EmbeddedOptions) -> Self {
        let (published, _) = watch::channel(0);
        Self { shared: Arc::new(Shared { store, options, published }) }
    }

    /// The store that the queues lie in.
    #[must_use]
    pub fn store(&self) -> &SqliteStore {
        &self.shared.store
    }

    async fn names(&self) -> Result<Vec<String>, MessagingError> {
        queue::names(&self.shared.store).await.map_err(MessagingError::store("list queues"))
    }

    fn wake(&self) {
        self.shared.published.send_modify(|count| *count = count.wrapping_add(1));
    }

    async fn known(&self, queue: &str) -> Result<(), MessagingError> {
        let known = self.names().await?;
        if known.iter().any(|name| name == queue) {
            return Ok(());
        }
        Err(MessagingError::UnknownQueue { queue: queue.to_owned(), known: Some(known) })
    }
}

impl sealed::Sealed for EmbeddedBroker {}

impl Broker for EmbeddedBroker {
    type Subscription = EmbeddedSubscription;
    type Letters = EmbeddedLetters;

    fn capabilities(&self) -> Capabilities {
        Capabilities::embedded()
    }

    async fn declare(&self, policy: &QueuePolicy) -> Result<(), MessagingError> {
        plan::declare(self, policy).await
    }

    async fn publish(&self, exchange: &str, routing_key: &str, message: &Message) -> Confirm {
        let row = message.clone().into();
        let now = clock::wall();
        let publish = queue::publish(&self.shared.store, exchange, routing_key, &row, now);
        let limit = self.shared.options.publish_timeout;
        let until = clock::instant_of(clock::now().plus(limit));
        match tokio::time::timeout_at(until, publish).await {
            Ok(Ok(0)) => Confirm::Returned,
            Ok(Ok(_)) => {
                self.wake();
                Confirm::Confirmed
            }
            // A failed commit may have happened: only the same id again is safe.
            Ok(Err(error)) => Confirm::Unknown(crate::error::chain(&error)),
            Err(_) => Confirm::Unknown(format!("no confirm within {limit:?}")),
        }
    }

    async fn consume(
        &self,
        queue: &str,
        _prefetch: u32,
    ) -> Result<EmbeddedSubscription, MessagingError> {
        self.known(queue).await?;
        Ok(EmbeddedSubscription {
            broker: self.clone(),
            queue: queue.to_owned(),
            // Never a host name or process id: a restarted node must not own its forerunner's leases.
            owner: uuid::Uuid::now_v7().to_string(),
            seen: AtomicU64::new(u64::MAX),
            poll: Mutex::new(Poll { next: Moment::ORIGIN, wait: self.shared.options.poll_min }),
        })
    }

    async fn depth(&self, queue: &str) -> Result<u64, MessagingError> {
        queue::depth(&self.shared.store, queue)
            .await
            .map_err(MessagingError::store("count the messages of a queue"))
    }

    async fn queues(&self) -> Result<Option<Vec<String>>, MessagingError> {
        self.names().await.map(Some)
    }

    async fn browse(&self, queue: &str, filter: &Filter) -> Result<Vec<Stored>, MessagingError> {
        self.known(queue).await?;
        let Filter { max, kind, ids } = filter.clone();
        let listed = queue::list(&self.shared.store, queue, &Selection { max, kind, ids })
            .await
            .map_err(MessagingError::store("list the messages of a queue"))?;
        let stored = |row: queue::Listed| Stored {
            tag: row.row,
            since: row.since,
            message: row.message.into(),
        };
        Ok(listed.into_iter().map(stored).collect())
    }

    async fn letters(&self, queue: &str, place: Place) -> Result<EmbeddedLetters, MessagingError> {
        EmbeddedLetters::open(self, queue, place).await
    }
}

/// A consumer's leases on one queue.
#[derive(Debug)]
pub struct EmbeddedSubscription {
    broker: EmbeddedBroker,
    queue: String,
    owner: String,
    /// The count of publishes at the last look.
    seen: AtomicU64,
    poll: Mutex<Poll>,
}

#[derive(Debug, Clone, Copy)]
struct Poll {
    /// The next look at the queue. Kept here, so that a dropped `ready` does not begin to wait anew.
    next: Moment,
    wait: Duration,
}

impl EmbeddedSubscription {
    fn poll(&self) -> std::sync::MutexGuard<'_, Poll> {
        // Two plain values can't be left half written.
        self.poll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again no later than at `moment`.
    fn look_by(&self, moment: Moment) {
        let mut poll = self.poll();
        poll.next = poll.next.min(moment);
    }

    /// Plans the next look: at once after a full batch, else later and later.
    fn plan(&self, got: usize, max: u32) {
        let options = self.broker.shared.options;
        let mut poll = self.poll();
        let full = u32::try_from(got).is_ok_and(|got| got >= max);
        poll.wait = if got > 0 {
            options.poll_min
        } else {
            poll.wait.saturating_mul(2).clamp(options.poll_min, options.poll_max)
        };
        poll.next = if full { Moment::ORIGIN } else { clock::now().plus(poll.wait) };
    }
}

impl Subscription for EmbeddedSubscription {
    async fn ready(&self) {
        let mut published = self.broker.shared.published.subscribe();
        if *published.borrow_and_update() != self.seen.load(Ordering::Acquire) {
            return;
        }
        let next = self.poll().next;
        tokio::select! {
            // The sender lives in `self`, so this never ends with an error.
            _ = published.changed() => {}
            () = clock::sleep_until(next) => {}
        }
    }

    /// Never: what fails here is one statement, and the next may succeed.
    async fn lost(&self) {
        std::future::pending().await
    }

    async fn take(&self, max: u32) -> Result<Vec<Delivery>, MessagingError> {
        let shared = &self.broker.shared;
        // Read before the look: a publish during it makes the next `ready` complete at once.
        self.seen.store(*shared.published.borrow(), Ordering::Release);
        let lease = shared.options.lease;
        let leased = queue::lease(&shared.store, &self.queue, &self.owner, max, lease, clock::wall)
            .await
            .map_err(MessagingError::store("take messages"))?;
        self.plan(leased.len(), max);
        let delivery = |row: queue::Leased| Delivery {
            receipt: Receipt { tag: row.row, epoch: row.epoch },
            suspect: row.suspect,
            message: row.message.into(),
        };
        Ok(leased.into_iter().map(delivery).collect())
    }

    fn renew_every(&self) -> Duration {
        let options = self.broker.shared.options;
        options.renew_every.min(options.lease / 3)
    }

    async fn renew(&self) -> Result<(), MessagingError> {
        let shared = &self.broker.shared;
        queue::renew(&shared.store, &self.owner, shared.options.lease, clock::wall)
            .await
            .map_err(MessagingError::store("renew leases"))?;
        Ok(())
    }

    async fn ack(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        let done = queue::ack(&self.broker.shared.store, receipt.tag, receipt.epoch)
            .await
            .map_err(MessagingError::store("acknowledge a message"))?;
        Ok(if done { Settled::Done } else { Settled::Stale })
    }

    async fn give_back(
        &self,
        delivery: &Delivery,
        delay: Duration,
    ) -> Result<Settled, MessagingError> {
        let receipt = delivery.receipt;
        let visible = clock::wall().plus(delay);
        let store = &self.broker.shared.store;
        let done = queue::give_back(store, receipt.tag, receipt.epoch, visible)
            .await
            .map_err(MessagingError::store("give a message back"))?;
        self.look_by(clock::now().plus(delay));
        Ok(if done { Settled::Done } else { Settled::Stale })
    }

    fn holds_for(&self) -> Duration {
        Duration::MAX
    }

    async fn reject(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        let store = &self.broker.shared.store;
        let done = queue::give_back(store, receipt.tag, receipt.epoch, clock::wall())
            .await
            .map_err(MessagingError::store("give a message back"))?;
        self.look_by(clock::now());
        Ok(if done { Settled::Done } else { Settled::Stale })
    }

    async fn close(&self) -> Result<u64, MessagingError> {
        let given = queue::give_back_all(&self.broker.shared.store, &self.owner)
            .await
            .map_err(MessagingError::store("give messages back"))?;
        self.broker.wake();
        Ok(given)
    }
}
