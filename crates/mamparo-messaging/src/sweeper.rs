//! Brings what a broker's dead-letter queues hold into the service's own store.
//!
//! A consumer writes what it gives up into its database. While that is down, and for what the broker
//! itself gives up (too many deliveries, a queue that is full), the broker's dead-letter queue is the
//! last resort; the sweeper empties it. A letter is written and committed before it leaves the
//! broker: a crash in between brings it again, and the store knows it.
//!
//! A letter that the database refuses (a character that the encoding of a PostgreSQL database lacks,
//! say) stays at the broker and is tried again in the next cycle; the others of its page are written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::time::WallTime;
use mamparo_store::failed::{self, Counted, Failure};
use mamparo_store::{Backend, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, Stored};
use crate::letters::{Letters, Order, Place, Settling};
use crate::{MessagingError, QueuePolicy, observe};

/// Letters that are written in one transaction.
const PAGE: u32 = 100;

/// Most letters of one queue that the database may refuse in one cycle. With so many it is the
/// database, or a publisher, that somebody has to look at.
const REFUSED_MAX: u64 = 1_000;

/// Most groups that are counted for the metric.
const GROUPS_MAX: u32 = 100;

/// Most handled rows that are forgotten in one cycle.
const FORGET_MAX: u32 = 1_000;

/// Times and limits of a sweeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweeperOptions {
    /// How often it looks. Default 60 s.
    pub every: Duration,
    /// Most letters of one queue in one cycle. Default 1,000.
    pub max: u32,
    /// How long messages that were put back, discarded or edited are kept. At least the seven days
    /// in which a discard can be undone, default 30 days.
    pub keep: Duration,
}

impl Default for SweeperOptions {
    fn default() -> Self {
        let keep = Duration::from_secs(30 * 86_400);
        Self { every: Duration::from_secs(60), max: 1_000, keep }
    }
}

/// A sweeper over the queues of one service.
#[derive(Debug)]
pub struct Sweeper<B, DB: Backend> {
    broker: B,
    store: Store<DB>,
    /// Queue and consumer.
    queues: Vec<(String, String)>,
    options: SweeperOptions,
    /// What was reported, so that a reason whose last message is gone is reported as none.
    reported: BTreeSet<(String, String)>,
}

impl<B: Broker, DB: Backend> Sweeper<B, DB> {
    /// A sweeper of these queues' dead letters. Any number of them may run.
    pub fn new<'p>(
        broker: B,
        store: &Store<DB>,
        policies: impl IntoIterator<Item = &'p QueuePolicy>,
        options: SweeperOptions,
    ) -> Self {
        let names = |policy: &QueuePolicy| (policy.queue.clone(), policy.consumer().to_owned());
        let queues = policies.into_iter().map(names).collect();
        let store = store.background();
        Self { broker, store, queues, options, reported: BTreeSet::new() }
    }

    /// Sweeps until `cancel`. What fails is reported and tried again in the next cycle.
    pub async fn run(mut self, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            for (queue, consumer) in &self.queues {
                match self.sweep(queue, consumer).await {
                    Ok((swept, left)) => observe::swept(queue, swept, left),
                    Err(error) => observe::sweeper_failed(queue, &error),
                }
            }
            if let Err(error) = self.report().await {
                observe::sweeper_failed("", &error);
            }
            let next = clock::now().plus(self.options.every);
            tokio::select! {
                () = cancel.cancelled() => {}
                () = clock::sleep_until(next) => {}
            }
        }
    }

    /// One cycle over one queue: how many letters came in, and how many are left.
    ///
    /// # Errors
    /// What the broker or the store said. What was not committed lies where it lay.
    pub async fn sweep(&self, queue: &str, consumer: &str) -> Result<(u64, u64), MessagingError> {
        if self.broker.depth(&mamparo_core::message::topology::dlq(queue)).await? == 0 {
            return Ok((0, 0));
        }
        let mut letters = self.broker.letters(queue, Place::Dead).await?;
        let (total, mut taken) = (letters.total(), Taken::default());
        let outcome = loop {
            let room = u64::from(self.options.max).saturating_sub(taken.swept).min(u64::from(PAGE));
            let page = match letters.fetch(u32::try_from(room).unwrap_or(PAGE)).await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            if let Err(error) = self.take_in(&mut letters, queue, consumer, &page, &mut taken).await
            {
                break Err(error);
            }
            if taken.swept >= u64::from(self.options.max) || taken.refused >= REFUSED_MAX {
                break Ok(());
            }
        };
        letters.close().await?;
        if let Some((id, error)) = &taken.first {
            observe::unwritable(queue, taken.refused, id, error);
        }
        outcome.map(|()| (taken.swept, total.saturating_sub(taken.swept)))
    }

    /// Written and committed first, then gone from the broker. A page that the database refuses is
    /// halved until the letters that it refuses are alone.
    async fn take_in<L: Letters>(
        &self,
        letters: &mut L,
        queue: &str,
        consumer: &str,
        page: &[Stored],
        taken: &mut Taken,
    ) -> Result<(), MessagingError> {
        let mut parts = vec![page];
        while let Some(part) = parts.pop() {
            match self.write(queue, consumer, part).await {
                Ok(()) => taken.swept += remove(letters, part).await?,
                Err(error) if !error.class().blames_data() => {
                    return Err(MessagingError::store("record dead letters")(error));
                }
                Err(error) => match part {
                    [one] => taken.refuse(&one.message.id, error),
                    several => {
                        let (first, second) = several.split_at(several.len() / 2);
                        parts.extend([second, first]);
                    }
                },
            }
        }
        Ok(())
    }

    /// All of them in one transaction.
    async fn write(
        &self,
        queue: &str,
        consumer: &str,
        letters: &[Stored],
    ) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        for stored in letters {
            let facts = stored.facts(queue);
            let message = stored.message.clone().into();
            let failure = Failure {
                consumer,
                message: &message,
                reason: facts.reason,
                error: facts.error,
                first_failure: facts.first,
                last_failure: facts.last,
                attempts: facts.attempts,
                host: facts.host,
                version: facts.version,
            };
            failed::record(&mut tx, &failure, clock::wall()).await?;
        }
        self.store.commit(tx).await
    }

    /// Counts what waits for a person, and forgets what nobody can bring back any more.
    async fn report(&mut self) -> Result<(), MessagingError> {
        let now: WallTime = clock::wall();
        let keep = self.options.keep.max(failed::UNDO_WINDOW);
        failed::forget(&self.store, now.minus(keep), FORGET_MAX)
            .await
            .map_err(MessagingError::store("forget failed messages"))?;
        let counts = failed::counts(&self.store).await;
        let counts = counts.map_err(MessagingError::store("count failed messages"))?;
        for (queue, reason) in &self.reported {
            observe::failed_messages(queue, reason, 0);
        }
        self.reported.clear();
        let mut oldest: BTreeMap<&str, WallTime> = BTreeMap::new();
        for Counted { consumer, reason, messages, oldest: first } in &counts {
            observe::failed_messages(consumer, reason, *messages);
            self.reported.insert((consumer.clone(), reason.clone()));
            let of_queue = oldest.entry(consumer).or_insert(*first);
            *of_queue = (*of_queue).min(*first);
        }
        for (_, consumer) in &self.queues {
            let groups = failed::groups(&self.store, Some(consumer), GROUPS_MAX).await;
            let groups = groups.map_err(MessagingError::store("group failed messages"))?;
            let age = oldest.get(consumer.as_str()).map(|oldest| now.since(*oldest));
            let groups = u64::try_from(groups.len()).unwrap_or(u64::MAX);
            observe::failed_queue(consumer, age.unwrap_or_default(), groups);
        }
        Ok(())
    }
}

/// What became of the letters of one cycle.
#[derive(Debug, Default)]
struct Taken {
    swept: u64,
    refused: u64,
    /// The first one that was refused, and what the database said.
    first: Option<(String, StoreError)>,
}

impl Taken {
    fn refuse(&mut self, id: &str, error: StoreError) {
        self.refused += 1;
        self.first.get_or_insert_with(|| (id.to_owned(), error));
    }
}

/// Letters that are written leave the broker: how many did.
async fn remove<L: Letters>(letters: &mut L, written: &[Stored]) -> Result<u64, MessagingError> {
    let removal = |letter| Order { letter, copy: None, archive: None };
    let orders: Vec<Order<'_>> = written.iter().map(removal).collect();
    let settled = letters.settle(&orders).await?;
    let done = settled.iter().filter(|one| **one == Settling::Done).count();
    Ok(u64::try_from(done).unwrap_or(u64::MAX))
}
