//! Dead letters of RabbitMQ in the hand of a tool.
//!
//! Asking for a message, seeing that it is none of those that are meant, and giving it back, hands the
//! same one out again for ever. So a session consumes the queue and keeps everything unacknowledged:
//! what lay there when it was opened comes first, in order, each message once. What is not settled
//! goes back to its place when the channel closes, by whatever end.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Consumer};
use mamparo_call::clock;
use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::headers::{self, DEAD_REASON, Headers};
use mamparo_core::message::topology::{self, Argument, Arguments};
use mamparo_core::message::{failed as failures, lineage};
use mamparo_core::time::WallTime;
use mamparo_store::failed::UNDO_WINDOW;

use super::connection::{closure_of, failed};
use super::mend::Mending;
use super::topology::table;
use super::{RabbitMqBroker, convert, unknown};
use crate::broker::{Broker, Confirm, Filter, Stored};
use crate::letters::{Letters, Order, Place, Settling};
use crate::{Message, MessagingError};

/// Most letters that a session can hold: what AMQP's prefetch can say. Those behind them are not
/// seen by it.
const HELD_MAX: u16 = u16::MAX;

/// A broker that has not handed out the next message in this time has none: then it is asked.
const QUIET: Duration = Duration::from_millis(100);

/// How long to wait for what may have come back. The broker sends it by itself.
const GLANCE: Duration = Duration::from_millis(2);

/// How often it is looked whether everything is back in its queue, and for how long at most:
/// somebody else may have taken some of it.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// How long a channel stays open after its last settlement.
const GRACE: Duration = Duration::from_millis(150);

/// Most messages that the archive of a queue keeps.
const ARCHIVE_MAX: u32 = 100_000;

/// A session over the letters of one queue.
#[derive(Debug)]
pub struct RabbitMqLetters {
    broker: RabbitMqBroker,
    connection: Connection,
    /// The connection's relay: among dead letters lies what no other connection can read.
    _mending: Mending,
    channel: Channel,
    /// `None` for an archive that nothing was ever put into.
    consumer: Option<Consumer>,
    /// The main queue's name.
    queue: String,
    place: Place,
    total: u64,
    fetched: u64,
    settled: u64,
    /// Tags that were handed out and not settled.
    held: HashSet<u64>,
    /// An archive was made for this queue, or found.
    archive: bool,
}

impl RabbitMqLetters {
    pub(super) async fn open(
        broker: &RabbitMqBroker,
        queue: &str,
        place: Place,
    ) -> Result<Self, MessagingError> {
        let name = match place {
            Place::Dead => topology::dlq(queue),
            Place::Archive => topology::archive(queue),
        };
        let ready = broker.ready(&name).await.map_err(failed(format!("count queue {name:?}")))?;
        if ready.is_none() && place == Place::Dead {
            return Err(unknown(queue));
        }
        Self::consume(broker, queue, &name, place, ready)
            .await
            .map_err(failed(format!("open the letters of queue {queue:?}")))
    }

    async fn consume(
        broker: &RabbitMqBroker,
        queue: &str,
        name: &str,
        place: Place,
        ready: Option<u64>,
    ) -> Result<Self, Closure> {
        let total = ready.unwrap_or(0);
        let connector = &broker.inner.connector;
        let (connection, mending) = connector.open_mended(&format!("letters of {queue}")).await?;
        let channel = connector.within(connection.create_channel()).await?;
        connector.within(channel.basic_qos(HELD_MAX, BasicQosOptions::default())).await?;
        let mut consumer = None;
        if ready.is_some() {
            let tag = format!("mamparo-letters-{}", uuid::Uuid::now_v7());
            let asked = channel.basic_consume(
                name.into(),
                tag.as_str().into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            consumer = Some(connector.within(asked).await?);
        }
        Ok(Self {
            broker: broker.clone(),
            connection,
            _mending: mending,
            channel,
            consumer,
            queue: queue.to_owned(),
            place,
            total: total.min(u64::from(HELD_MAX)),
            fetched: 0,
            settled: 0,
            held: HashSet::new(),
            archive: false,
        })
    }

    /// The next message that the broker hands out within `patience`.
    async fn next(&mut self, patience: Duration) -> Result<Option<Delivery>, MessagingError> {
        let Some(consumer) = &mut self.consumer else { return Ok(None) };
        let until = clock::instant_of(clock::now().plus(patience));
        let failed = || failed(format!("read the letters of queue {:?}", self.queue));
        match tokio::time::timeout_at(until, consumer.next()).await {
            Err(_) => Ok(None),
            Ok(Some(Ok(delivery))) => {
                self.held.insert(delivery.delivery_tag);
                Ok(Some(delivery))
            }
            Ok(Some(Err(error))) => Err(failed()(closure_of(&error))),
            Ok(None) => {
                let text = "the broker ended the session";
                Err(failed()(Closure::new(Kind::Disconnected, text)))
            }
        }
    }

    /// Is there really nothing more? Somebody else may have taken what was counted at the beginning.
    async fn drained(&self) -> Result<bool, MessagingError> {
        let Some(consumer) = &self.consumer else { return Ok(true) };
        let name = consumer.queue().to_string();
        let ready = self.broker.ready(&name).await;
        Ok(ready.map_err(failed(format!("count queue {name:?}")))?.unwrap_or(0) == 0)
    }

    /// Gives back what was not settled, and waits until the queue has all of it.
    ///
    /// A quorum queue takes settlements through its log, and a channel that closes drops those that
    /// still wait to get in: letters that were put back would lie among the dead ones as well. So the
    /// channel stays open for a moment. Its end gives back, and not `basic.nack` with `multiple`, which
    /// would bring more than 32 of them back in any order.
    async fn release(&self) -> Result<(), Closure> {
        // Also what the broker has handed out and nobody has looked at.
        let all = self.total.saturating_sub(self.settled);
        let connector = &self.broker.inner.connector;
        if let Some(consumer) = &self.consumer {
            let cancel = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            connector.within(cancel).await?;
            clock::sleep_until(clock::now().plus(GRACE)).await;
        }
        connector.within(self.connection.close(200, "done".into())).await?;
        let Some(consumer) = self.consumer.as_ref().filter(|_| all > 0) else { return Ok(()) };
        let (name, end) = (consumer.queue().to_string(), clock::now().plus(RELEASE_MAX));
        // A queue that is gone has nothing to wait for.
        while self.broker.ready(&name).await?.is_some_and(|ready| ready < all) && clock::now() < end
        {
            clock::sleep_until(clock::now().plus(LOOK_EVERY)).await;
        }
        Ok(())
    }

    /// Makes the archive. Messages leave it when nobody can bring them back any more.
    async fn ensure_archive(&mut self) -> Result<(), Closure> {
        if self.archive {
            return Ok(());
        }
        let arguments: Arguments = [
            ("x-queue-type", Argument::from("quorum")),
            // Looking at it hands messages out and takes them back, which counts as a delivery.
            ("x-delivery-limit", topology::DEAD_LETTERS_DELIVERY_LIMIT.into()),
            ("x-message-ttl", UNDO_WINDOW.into()),
            ("x-max-length", ARCHIVE_MAX.into()),
            ("x-overflow", "reject-publish".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let name = topology::archive(&self.queue);
        let channel = self.broker.inner.shared.channel().await?;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let asked = channel.queue_declare(name.as_str().into(), options, table(&arguments));
        self.broker.inner.connector.within(asked).await?;
        self.archive = true;
        Ok(())
    }

    /// What has to be confirmed before the letter may leave: first the archive, then the copy. A
    /// crash between them leaves the letter, and an archived double that nobody misses.
    async fn publish(
        broker: &RabbitMqBroker,
        queue: &str,
        place: Place,
        order: &Order<'_>,
    ) -> Settling {
        let archived = order.archive.as_ref().filter(|_| place == Place::Dead).map(|note| {
            let kept = order.letter.message.with_headers(note.headers.clone());
            (topology::archive(queue), kept)
        });
        for (to, copy) in archived.iter().chain(&order.copy) {
            let why = match broker.publish("", to, copy).await {
                Confirm::Confirmed => continue,
                Confirm::Returned => format!("queue {to:?} does not exist"),
                Confirm::Nacked(why) => format!("queue {to:?} refused it: {why}"),
                Confirm::Unknown(why) => format!("nobody knows whether {to:?} has it: {why}"),
            };
            return Settling::Refused(why);
        }
        Settling::Done
    }
}

impl Letters for RabbitMqLetters {
    fn total(&self) -> u64 {
        self.total
    }

    async fn fetch(&mut self, max: u32) -> Result<Vec<Stored>, MessagingError> {
        let mut page = Vec::new();
        while self.fetched < self.total && u32::try_from(page.len()).is_ok_and(|got| got < max) {
            match self.next(QUIET).await? {
                Some(delivery) => {
                    self.fetched += 1;
                    page.push(stored(&self.queue, delivery));
                }
                None if self.drained().await? => {
                    // One that was handed out as we asked is on its way to us.
                    let Some(delivery) = self.next(QUIET).await? else {
                        self.total = self.fetched;
                        break;
                    };
                    self.fetched += 1;
                    page.push(stored(&self.queue, delivery));
                }
                None => {}
            }
        }
        Ok(page)
    }

    async fn arrivals(&mut self) -> Result<Vec<String>, MessagingError> {
        let mut ids = Vec::new();
        while let Some(delivery) = self.next(GLANCE).await? {
            if self.fetched < self.total {
                // It lay there before, behind those that were asked for.
                self.fetched += 1;
            } else {
                ids.push(stored(&self.queue, delivery).message.id);
            }
        }
        Ok(ids)
    }

    async fn settle(&mut self, orders: &[Order<'_>]) -> Result<Vec<Settling>, MessagingError> {
        if self.place == Place::Dead && orders.iter().any(|order| order.archive.is_some()) {
            let made = self.ensure_archive().await;
            made.map_err(failed(format!("make queue {:?}", topology::archive(&self.queue))))?;
        }
        let (broker, queue, place) = (&self.broker, self.queue.as_str(), self.place);
        let held = &self.held;
        let publish = |order| async move {
            if tag_of(order).is_some_and(|tag| held.contains(&tag)) {
                Self::publish(broker, queue, place, order).await
            } else {
                Settling::Gone
            }
        };
        // Polled in their order, so they are published in it.
        let mut publishing: FuturesOrdered<_> = orders.iter().map(publish).collect();
        let mut settled = Vec::with_capacity(orders.len());
        while let Some(settling) = publishing.next().await {
            settled.push(settling);
        }
        drop(publishing);
        let operation = format!("settle letters of queue {:?}", self.queue);
        for (order, settling) in orders.iter().zip(&settled) {
            let Some(tag) = tag_of(order).filter(|_| *settling == Settling::Done) else { continue };
            let acked = self.channel.basic_ack(tag, BasicAckOptions::default());
            self.broker.inner.connector.within(acked).await.map_err(failed(operation.as_str()))?;
            self.held.remove(&tag);
            self.settled += 1;
        }
        Ok(settled)
    }

    /// A broker that counts only what nobody has in hand can't tell.
    async fn handled(&mut self, _: &str, _: &str) -> Result<Option<bool>, MessagingError> {
        Ok(None)
    }

    async fn close(self) -> Result<(), MessagingError> {
        let operation = failed(format!("close the letters of queue {:?}", self.queue));
        self.release().await.map_err(operation)
    }
}

/// Messages of any queue, which are held for as long as it takes to look at them.
pub(super) async fn browse(
    broker: &RabbitMqBroker,
    queue: &str,
    filter: &Filter,
) -> Result<Vec<Stored>, MessagingError> {
    let ready = broker.ready(queue).await.map_err(failed(format!("count queue {queue:?}")))?;
    if ready.is_none() {
        return Err(unknown(queue));
    }
    let mut letters = RabbitMqLetters::consume(broker, queue, queue, Place::Dead, ready)
        .await
        .map_err(failed(format!("look into queue {queue:?}")))?;
    let most = usize::try_from(filter.max).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    while found.len() < most {
        let page = letters.fetch(filter.max).await?;
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().filter(|stored| {
            let Message { id, kind, .. } = &stored.message;
            let named = filter.ids.is_empty() || filter.ids.contains(id);
            named && filter.kind.as_ref().is_none_or(|wanted| wanted == kind)
        }));
    }
    found.truncate(most);
    letters.close().await?;
    Ok(found)
}

fn tag_of(order: &Order<'_>) -> Option<u64> {
    u64::try_from(order.letter.tag).ok()
}

/// The delivery as a letter. The broker's own reason is kept as ours where we gave none; everything
/// else that the broker writes into a dead letter stays behind.
fn stored(queue: &str, delivery: Delivery) -> Stored {
    let table = delivery.properties.headers().as_ref();
    let reason = table.and_then(|table| broker_reason(queue, table));
    let published = delivery.properties.timestamp().unwrap_or(0);
    let (exchange, routing_key) = (delivery.exchange.as_str(), delivery.routing_key.as_str());
    let mut message = convert::incoming(exchange, routing_key, &delivery.properties, delivery.data);
    if let Some(reason) = reason
        && headers::get(&message.headers, DEAD_REASON).is_none()
    {
        headers::set(&mut message.headers, DEAD_REASON, reason);
    }
    let time = |name| headers::get(&message.headers, name).and_then(|text| text.parse().ok());
    let published = i64::try_from(published).unwrap_or(i64::MAX).saturating_mul(1_000);
    let since = time(lineage::ARCHIVED)
        .or_else(|| time(headers::LAST_FAILURE))
        .unwrap_or(WallTime::from_unix_millis(published));
    Stored { tag: i64::try_from(delivery.delivery_tag).unwrap_or(i64::MAX), since, message }
}

/// Why the broker moved it here: the newest entry of its death history, which brokers before 4.0 do
/// not repeat in headers of its own.
fn broker_reason(queue: &str, table: &FieldTable) -> Option<String> {
    let mut headers: Headers = table
        .into_iter()
        .filter(|(name, _)| name.as_str().contains("-death-"))
        .map(|(name, value)| (name.to_string(), convert::text_of(value)))
        .collect();
    let newest = match table.inner().get("x-death") {
        Some(AMQPValue::FieldArray(deaths)) => deaths.as_slice().first(),
        Some(_) | None => None,
    };
    if let Some(AMQPValue::FieldTable(death)) = newest {
        for (name, field) in [("x-last-death-reason", "reason"), ("x-last-death-queue", "queue")] {
            if let Some(value) = death.inner().get(field) {
                headers::set(&mut headers, name, convert::text_of(value));
            }
        }
    }
    let reason = failures::facts(&headers, queue).reason;
    (reason != "unknown").then(|| reason.to_owned())
}
