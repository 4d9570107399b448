//! A consumer of ours, from the first message to the last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lapin::Channel;
use mamparo_core::message::topology::QueueType;
use mamparo_messaging::{
    Answer, Broker as _, Consumer, Handler, Message, PlainHandler, QueuePolicy, RabbitMqBroker,
    Summary,
};
use mamparo_store::{PostgresStore, StoreAddress, StoreOptions, Transaction};
use sqlx::Postgres;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::inbox;
use crate::bed::{Bed, fresh};
use crate::rabbit::{self, Kind};
use crate::{Error, Result, clock, tasks};

/// What the handler does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Handling<'a> {
    /// Nothing, and says that it is done.
    Nothing,
    /// Nothing, and asks for another attempt.
    Fails,
    /// The change of the group `inbox`, in the transaction that it is given.
    Changes(&'a PostgresStore),
}

/// A queue of ours that holds `count` messages.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) broker: RabbitMqBroker,
    pub(super) policy: QueuePolicy,
    connection: lapin::Connection,
    channel: Channel,
}

impl Filled {
    pub(super) async fn new(bed: &Bed, kind: Kind, prefetch: u16, count: usize) -> Result<Self> {
        let broker = RabbitMqBroker::connect(&bed.amqp).await?;
        let mut policy = QueuePolicy::new(fresh("ours"), "bench");
        policy.prefetch = prefetch.into();
        // Nothing comes back while a measurement lasts.
        policy.retry_delay = Duration::from_secs(600);
        policy.queue_type = match kind {
            Kind::Classic => QueueType::Classic,
            Kind::Quorum => QueueType::Quorum,
        };
        broker.declare(&policy).await?;
        let connection = rabbit::connect(&bed.amqp).await?;
        let channel = rabbit::confirming(&connection).await?;
        rabbit::fill(&channel, &policy.queue, count).await?;
        Ok(Self { broker, policy, connection, channel })
    }

    /// Removes the queues; an error when the main one is not empty, or the waiting room does not hold
    /// `waiting`.
    pub(super) async fn remove(self, waiting: usize) -> Result<()> {
        let Self { broker, policy, connection, channel } = self;
        let retry = policy.retry_queue();
        let left = rabbit::depth(&channel, &policy.queue).await?;
        let waits = rabbit::depth(&channel, &retry).await?;
        if (left, waits) != (0, waiting) {
            return Err(format!("{left} messages left and {waits} wait, not {waiting}").into());
        }
        for queue in [policy.queue.clone(), retry, policy.dlq()] {
            rabbit::delete(&channel, &queue).await?;
        }
        broker.close();
        rabbit::close(&connection).await
    }
}

/// Has a consumer of ours take `count` messages; from the first call of its handler until nothing is
/// in hand any more.
pub(super) async fn consume(
    filled: &Filled,
    handling: Handling<'_>,
    count: usize,
) -> Result<(Duration, Summary)> {
    let (handler, progress) = counting(count);
    let (broker, policy) = (filled.broker.clone(), filled.policy.clone());
    let cancel = CancellationToken::new();
    let (handle, running) = match handling {
        Handling::Nothing => {
            let consumer = Consumer::plain(broker, policy, handler);
            (consumer.handle(), tasks::begin(consumer.run(cancel.clone())))
        }
        Handling::Fails => {
            let consumer = Consumer::plain(broker, policy, Failing(handler));
            (consumer.handle(), tasks::begin(consumer.run(cancel.clone())))
        }
        Handling::Changes(store) => {
            let consumer = Consumer::new(broker, store.clone(), policy, handler);
            (consumer.handle(), tasks::begin(consumer.run(cancel.clone())))
        }
    };
    progress.done.notified().await;
    if !handle.wait_for(|health| health.in_hand == 0).await {
        return Err(Error::from("the consumer ended early"));
    }
    let took = progress.first.get().map(Instant::elapsed);
    cancel.cancel();
    let summary = running.end().await?;
    Ok((took.ok_or_else(|| Error::from("no message came"))?, summary))
}

/// A handler that counts, and how far it is.
pub(super) fn counting(count: usize) -> (Counting, Arc<Progress>) {
    let progress = Arc::new(Progress { left: AtomicUsize::new(count), ..Progress::default() });
    (Counting { progress: Arc::clone(&progress) }, progress)
}

/// A store on a database of its own, with the accounts that handlers change.
pub(super) async fn store(bed: &Bed, connections: u32) -> Result<(PostgresStore, String)> {
    let database = bed.database().await?;
    let options = StoreOptions {
        connections,
        background_connections: connections,
        ..StoreOptions::default()
    };
    let store = PostgresStore::open_with(&StoreAddress::parse(&database)?, &options).await?;
    store.apply(inbox::SCHEMA).await?;
    Ok((store, database))
}

/// How far a handler is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Messages that have not come yet.
    pub(super) left: AtomicUsize,
    first: OnceLock<Instant>,
    /// Told when the last one has come.
    pub(super) done: Notify,
}

/// The handler.
#[derive(Debug)]
pub(super) struct Counting {
    progress: Arc<Progress>,
}

impl Counting {
    fn begin(&self) {
        self.progress.first.get_or_init(clock::now);
    }

    fn end(&self) {
        if self.progress.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.progress.done.notify_one();
        }
    }
}

impl PlainHandler for Counting {
    async fn handle(&self, _message: &Message) -> Answer {
        self.begin();
        self.end();
        Answer::Done
    }
}

/// The same without success.
#[derive(Debug)]
struct Failing(Counting);

impl PlainHandler for Failing {
    async fn handle(&self, message: &Message) -> Answer {
        PlainHandler::handle(&self.0, message).await;
        Answer::retry("not yet")
    }
}

impl Handler<Postgres> for Counting {
    type Facts = ();

    async fn prepare(&self, _message: &Message) -> std::result::Result<(), Answer> {
        self.begin();
        Ok(())
    }

    async fn apply(&self, message: &Message, (): (), tx: &mut Transaction<'_, Postgres>) -> Answer {
        let change = sqlx::query(inbox::UPDATE).bind(inbox::account(&message.id));
        let changed = change.execute(&mut **tx).await;
        self.end();
        match changed {
            Ok(_) => Answer::Done,
            Err(error) => Answer::retry(error.to_string()),
        }
    }
}
