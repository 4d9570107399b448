//! The waiting room in the service's own database; dead letters among its failed messages.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::failed::facts;
use mamparo_core::message::headers;
use mamparo_core::message::topology::QueuePolicy;
use mamparo_core::message::waiting::Stay;
use mamparo_core::time::{Moment, WallTime};
use mamparo_store::class::class_within;
use mamparo_store::parked::{self, Behind, Claimed, Wait};
use mamparo_store::queue::QueueMessage;
use mamparo_store::{Backend, Class, Store, StoreError, failed};

use super::{Case, Followed, Moved, Room, Tiers};
use crate::consumer::missing;
use crate::error::chain;
use crate::{Broker, MessagingError};

/// How long a claimed row stays with a consumer that has gone silent.
const LEASE: Duration = Duration::from_secs(30);

/// Longest key in bytes. PostgreSQL's indexes take rows of up to 2,704 bytes, and the consumer's name
/// stands beside it.
pub(crate) const KEY_BYTES_MAX: usize = 2_000;

/// How often leases are renewed: two may be missed.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How long the consumer's own loop waits for the database: meanwhile it does nothing else, and its
/// broker waits, too.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How long it does not ask again after that.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The longest wait between two looks for rows that another process parked or let go.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The same while nothing waits at all, so that there is nothing to let go.
const LOOK_WHEN_EMPTY: Duration = Duration::from_secs(10);

/// Rows of [`mamparo_store::parked`]. The row commits before the original is acknowledged; a row that
/// was handed out from here goes in the same transaction as its effects or its dead letter.
#[derive(Debug)]
pub(crate) struct Parked<B, DB: Backend> {
    /// Where a dead letter goes that the database will never take.
    last_resort: Tiers<B>,
    store: Store<DB>,
    consumer: String,
    /// Unique to this consumer: a restarted one must not own its forerunner's leases.
    owner: String,
    /// The consumer's loop does not ask the store before this.
    silent: Mutex<Moment>,
}

impl<B: Broker, DB: Backend> Parked<B, DB> {
    pub(crate) fn new(last_resort: Tiers<B>, store: Store<DB>, policy: &QueuePolicy) -> Self {
        let (owner, silent) = (uuid::Uuid::now_v7().to_string(), Mutex::new(Moment::ORIGIN));
        Self { last_resort, store, consumer: policy.consumer().to_owned(), owner, silent }
    }

    /// The database's time: hosts whose clocks differ must agree on leases and due times.
    pub(crate) fn now(&self) -> WallTime {
        self.store.time(clock::wall())
    }

    /// How long a start counts as alive that belongs to one of these rows.
    pub(crate) const fn alive() -> Duration {
        RENEW_EVERY.saturating_mul(2)
    }

    /// Up to `max` due rows.
    pub(crate) async fn claim(&self, max: u32) -> Result<Vec<Claimed>, MessagingError> {
        let Self { store, consumer, owner, .. } = self;
        let claimed = parked::claim(store, consumer, owner, max, LEASE, || self.now()).await;
        claimed.map_err(self.failed("claim parked messages"))
    }

    /// How long until the next look is worth it.
    pub(crate) async fn next_look(&self) -> Result<Duration, MessagingError> {
        let next = parked::next_due(&self.store, &self.consumer);
        let next = self.asked("look for parked messages", next).await?;
        Ok(next.map_or(LOOK_WHEN_EMPTY, |due| due.since(self.now()).min(LOOK_EVERY)))
    }

    /// Keeps `rows` in hand.
    pub(crate) async fn renew(&self, rows: &[i64]) -> Result<(), MessagingError> {
        let renewed = parked::renew(&self.store, rows, &self.owner, LEASE, || self.now());
        self.asked("renew leases of parked messages", renewed).await.map(drop)
    }

    /// Gives a row back without a verdict, due after `delay`; `false` when somebody else has it.
    pub(crate) async fn release(
        &self,
        claim: (i64, i64),
        delay: Duration,
    ) -> Result<bool, MessagingError> {
        let released = parked::release(&self.store, claim, self.now().plus(delay)).await;
        released.map_err(self.failed("give a parked message back"))
    }

    pub(crate) async fn release_all(&self) -> Result<u64, MessagingError> {
        let now = self.now();
        let released = parked::release_all(&self.store, &self.consumer, &self.owner, now);
        self.asked("give parked messages back", released).await
    }

    /// Of these messages (id, key), the ids of those that have to wait, or wait already.
    pub(crate) async fn look_up(
        &self,
        messages: &[(&str, &str)],
    ) -> Result<Vec<String>, MessagingError> {
        let known = parked::look_up(&self.store, &self.consumer, messages);
        self.asked("look for parked messages", known).await
    }

    /// Takes away a row that is done without a transaction of its own.
    pub(crate) async fn done(&self, key: &str, claim: (i64, i64)) -> Result<bool, MessagingError> {
        let removed = async {
            let mut tx = self.store.begin().await?;
            let removed = parked::remove(&mut tx, &self.consumer, key, claim).await?;
            self.store.commit(tx).await?;
            Ok(removed)
        };
        removed.await.map_err(self.failed("remove a parked message"))
    }

    /// How many rows wait, and since when the oldest does.
    pub(crate) async fn stats(&self) -> Result<(u64, Option<WallTime>), MessagingError> {
        let stats = parked::stats(&self.store, &self.consumer);
        self.asked("count parked messages", stats).await
    }

    fn wait_of(&self, case: &Case<'_>, delay: Duration) -> Wait {
        let now = self.now();
        Wait { due: now.plus(delay), attempts: case.attempts, now }
    }

    /// What the store says to the consumer's own loop, within [`ASK_LIMIT`]. A store that did not
    /// answer is not asked again at once: the loop would do nothing but wait for it.
    async fn asked<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, MessagingError> {
        let late = || Err(StoreError::Deadline { operation });
        let now = clock::now();
        let answer = if now < *self.silent.lock().unwrap_or_else(PoisonError::into_inner) {
            late()
        } else {
            let answer = tokio::time::timeout_at(clock::instant_of(now.plus(ASK_LIMIT)), answer);
            let answer = answer.await.unwrap_or_else(|_| late());
            if let Err(error) = &answer
                && (error.class().is_away() || error.class() == Class::Deadline)
            {
                let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
                *silent = clock::now().plus(ASK_AGAIN);
            }
            answer
        };
        answer.map_err(self.failed(operation))
    }

    /// The store's failure, taken note of.
    fn failed(&self, operation: &'static str) -> impl FnOnce(StoreError) -> MessagingError {
        move |error| {
            self.store.doubt(error.class());
            MessagingError::store(operation)(error)
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "what `unwrap_or_else` hands over")]
    fn away(&self, error: StoreError) -> Moved {
        self.store.doubt(error.class());
        let why = chain(&error);
        if error.class().is_away() { Moved::Away(why) } else { Moved::Stays(why) }
    }

    /// Parks the copy, or puts its row back.
    async fn park(&self, case: &Case<'_>, wait: &Wait) -> Result<Moved, StoreError> {
        let message: QueueMessage = case.copy.clone().into();
        if case.hand.is_parked() {
            let claim = case.hand.claim();
            let kept =
                parked::park_again(&self.store, claim, &message, wait, &case.failure).await?;
            return Ok(if kept { Moved::Settled } else { Moved::Stale });
        }
        let mut tx = self.store.begin().await?;
        // A copy that is there already is the same message: its row waits.
        parked::park(&mut tx, &self.consumer, &message, wait, &case.failure).await?;
        self.store.commit(tx).await?;
        Ok(Moved::Safe)
    }

    async fn record(&self, case: &Case<'_>) -> Result<Moved, StoreError> {
        let message: QueueMessage = case.copy.clone().into();
        let reason = case.copy.header(headers::DEAD_REASON).unwrap_or("unexpected");
        let now = self.now();
        // Written by whichever host saw it; no clock of a host makes the first failure the later one.
        let first = facts(&case.copy.headers, &self.consumer).first.map(|first| first.min(now));
        let failure = failed::Failure {
            consumer: &self.consumer,
            message: &message,
            reason,
            error: &case.failure.error,
            first_failure: first,
            last_failure: Some(now),
            attempts: case.attempts,
            host: &case.failure.host,
            version: &case.failure.version,
        };
        let mut tx = self.store.begin().await?;
        if case.hand.is_parked() {
            let (key, claim) = (&message.key, case.hand.claim());
            if !parked::remove(&mut tx, &self.consumer, key, claim).await? {
                return Ok(Moved::Stale);
            }
        }
        failed::record(&mut tx, &failure, now).await?;
        self.store.commit(tx).await?;
        Ok(if case.hand.is_parked() { Moved::Settled } else { Moved::Safe })
    }

    async fn line_up(&self, case: &Case<'_>) -> Result<Followed, StoreError> {
        let message: QueueMessage = case.copy.clone().into();
        let now = self.now();
        let wait = Wait { due: now, attempts: case.attempts, now };
        let mut tx = self.store.begin().await?;
        let behind = parked::park_behind(&mut tx, &self.consumer, &message, &wait).await?;
        self.store.commit(tx).await?;
        Ok(match behind {
            Behind::Waits => Followed::Moved(Moved::Safe),
            Behind::Free => Followed::Free,
        })
    }
}

impl<B: Broker, DB: Backend> Room for Parked<B, DB> {
    async fn keep(&self, case: &Case<'_>, stay: Stay) -> Moved {
        let parked = self.park(case, &self.wait_of(case, stay.wait)).await;
        parked.unwrap_or_else(|error| self.away(error))
    }

    async fn bury(&self, case: &Case<'_>) -> Moved {
        let error = match self.record(case).await {
            Ok(moved) => return moved,
            Err(error) => error,
        };
        if case.hand.is_parked() || error.class() != Class::Permanent {
            return self.away(error);
        }
        if let Some(why) = missing(&self.store).await {
            return Moved::Away(why);
        }
        // The database is there and does not take this one, because of a byte that its text can't hold,
        // say. The broker's dead letters take anything, and the sweeper tries again later.
        self.last_resort.bury(case).await
    }

    async fn put_off(&self, case: &Case<'_>, delay: Duration) -> Moved {
        if !case.hand.is_parked() {
            return self
                .park(case, &self.wait_of(case, delay))
                .await
                .unwrap_or_else(|error| self.away(error));
        }
        match self.release(case.hand.claim(), delay).await {
            Ok(true) => Moved::Settled,
            Ok(false) => Moved::Stale,
            Err(error) => Moved::Away(chain(&error)),
        }
    }

    async fn follow(&self, case: &Case<'_>, _delay: Duration) -> Followed {
        // Asked by the consumer's own loop, as a rule.
        let followed = self.asked("park a message", self.line_up(case)).await;
        followed.unwrap_or_else(|error| {
            let why = chain(&error);
            let away = class_within(&error)
                .is_some_and(|class| class.is_away() || class == Class::Deadline);
            Followed::Moved(if away { Moved::Away(why) } else { Moved::Stays(why) })
        })
    }
}
