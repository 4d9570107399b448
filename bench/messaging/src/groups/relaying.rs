//! A relay of ours beside rows that come in while it runs.

use lapin::Channel;
use mamparo_call::clock::wall;
use mamparo_messaging::{RabbitMqBroker, Relay, RelayOptions, RelaySummary};
use mamparo_store::PostgresStore;
use mamparo_store::outbox::{self, Event};
use tokio_util::sync::CancellationToken;

use super::relay;
use crate::bed::{Bed, fresh};
use crate::rabbit::{self, Kind};
use crate::tasks::{self, Task};
use crate::{Result, clock};

/// The most rows that the relay reads at once, as in the loop written by hand.
const BATCH: u32 = 500;

/// A relay that runs, and where its messages end up.
#[derive(Debug)]
pub(super) struct Relaying {
    pub(super) store: PostgresStore,
    pub(super) database: String,
    pub(super) channel: Channel,
    pub(super) queue: String,
    connection: lapin::Connection,
    broker: RabbitMqBroker,
    cancel: CancellationToken,
    running: Task<RelaySummary>,
}

impl Relaying {
    /// Starts the relay and waits until its first message is there.
    pub(super) async fn start(bed: &Bed, kind: Kind) -> Result<Self> {
        let database = bed.database().await?;
        let store = PostgresStore::open(&database).await?;
        let connection = rabbit::connect(&bed.amqp).await?;
        let channel = rabbit::confirming(&connection).await?;
        let queue = fresh("relay");
        relay::topology(&channel, &queue, kind).await?;
        let broker = RabbitMqBroker::connect(&bed.amqp).await?;
        let options =
            RelayOptions { exchange: queue.clone(), batch: BATCH, ..RelayOptions::default() };
        let cancel = CancellationToken::new();
        let relay = Relay::new(store.clone(), broker.clone(), options);
        let running = tasks::begin(relay.run(cancel.clone()));
        let relaying =
            Self { store, database, channel, queue, connection, broker, cancel, running };
        relaying.enqueue(vec![event("first", rabbit::body())]).await?;
        relaying.delivered(1).await?;
        rabbit::purge(&relaying.channel, &relaying.queue).await?;
        Ok(relaying)
    }

    /// Commits `events` together.
    pub(super) async fn enqueue(&self, events: Vec<Event>) -> Result<()> {
        let mut tx = self.store.begin().await?;
        for event in events {
            outbox::enqueue(&mut tx, &event, wall()).await?;
        }
        Ok(self.store.commit(tx).await?)
    }

    /// Waits until `count` messages lie in the queue.
    pub(super) async fn delivered(&self, count: usize) -> Result<()> {
        while rabbit::depth(&self.channel, &self.queue).await? < count {
            clock::pause().await;
        }
        Ok(())
    }

    /// Waits until the outbox holds nothing any more.
    pub(super) async fn drained(&self) -> Result<()> {
        while outbox::stats(&self.store).await?.pending > 0 {
            clock::pause().await;
        }
        Ok(())
    }

    /// Ends the relay and removes everything.
    pub(super) async fn end(self, bed: &Bed) -> Result<RelaySummary> {
        self.cancel.cancel();
        let summary = self.running.end().await?;
        relay::remove(&self.channel, &self.queue).await?;
        self.broker.close();
        rabbit::close(&self.connection).await?;
        self.store.close().await;
        bed.drop_database(&self.database).await?;
        Ok(summary)
    }
}

/// An event that is routed to the queue.
pub(super) fn event(key: &str, body: Vec<u8>) -> Event {
    Event::new("order.created", key, body)
}
