//! RabbitMQ as a loop written by hand uses it.

use futures_util::future::try_join_all;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use lapin::{Confirmation, PublisherConfirm};

use crate::{Error, Result};

/// Bytes of every body.
pub(crate) const BODY: usize = 1_024;
/// Publishes in flight while a queue is filled.
const FILLING: usize = 500;

/// Kinds of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One file on one node.
    Classic,
    /// Replicated by Raft; on a single node with itself.
    Quorum,
}

/// Both.
pub(crate) const KINDS: [Kind; 2] = [Kind::Classic, Kind::Quorum];

impl Kind {
    /// As in arguments and rows.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

/// Connects.
pub(crate) async fn connect(address: &str) -> Result<Connection> {
    Ok(Connection::connect(address, ConnectionProperties::default()).await?)
}

/// Ends a connection in order.
pub(crate) async fn close(connection: &Connection) -> Result<()> {
    Ok(connection.close(200, ShortString::from("done")).await?)
}

/// A channel in confirm mode.
pub(crate) async fn confirming(connection: &Connection) -> Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Declares a durable queue.
pub(crate) async fn declare(channel: &Channel, queue: &str, kind: Kind) -> Result<()> {
    declare_with(channel, queue, kind, FieldTable::default()).await
}

/// Declares a waiting room for `to` from which nothing comes back while a measurement lasts: a quorum
/// queue whatever `to` is, because only there nothing is lost on the way back.
pub(crate) async fn declare_waiting(channel: &Channel, queue: &str, to: &str) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(600_000));
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(to));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    declare_with(channel, queue, Kind::Quorum, arguments).await
}

async fn declare_with(
    channel: &Channel,
    queue: &str,
    kind: Kind,
    mut arguments: FieldTable,
) -> Result<()> {
    arguments.insert("x-queue-type".into(), text(kind.as_str()));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await?;
    Ok(())
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// Removes a queue with what is in it.
pub(crate) async fn delete(channel: &Channel, queue: &str) -> Result<()> {
    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
    Ok(())
}

/// Empties a queue.
pub(crate) async fn purge(channel: &Channel, queue: &str) -> Result<()> {
    channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
    Ok(())
}

/// Messages that are ready in `queue`.
pub(crate) async fn depth(channel: &Channel, queue: &str) -> Result<usize> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(usize::try_from(found.message_count())?)
}

/// The properties of the `number`th message: persistent, with an id, a type and a key of its own, as
/// an event of a service has them.
pub(crate) fn properties(number: usize, kind: &str) -> BasicProperties {
    let id = format!("00000000-0000-7000-8000-{number:012x}");
    let mut headers = FieldTable::default();
    headers.insert("x-key".into(), text(&id));
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(id.into())
        .with_type(kind.into())
        .with_headers(headers)
}

/// A JSON body of [`BODY`] bytes.
pub(crate) fn body() -> Vec<u8> {
    let frame = r#"{"text":""}"#.len();
    format!(r#"{{"text":"{}"}}"#, "x".repeat(BODY - frame)).into_bytes()
}

/// Publishes and gives the confirm to wait for.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &str,
    routing_key: &str,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published =
        channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties);
    Ok(published.await?)
}

/// Waits for a confirm; anything else than a plain one is an error.
pub(crate) async fn confirmed(confirm: PublisherConfirm) -> Result<()> {
    match confirm.await? {
        Confirmation::Ack(None) => Ok(()),
        other => Err(Error::from(format!("publish: {other:?}"))),
    }
}

/// Puts `count` messages into `queue`.
pub(crate) async fn fill(channel: &Channel, queue: &str, count: usize) -> Result<()> {
    fill_kinds(channel, queue, count, |_| "order.created").await
}

/// Puts `count` messages into `queue`, each of the type that `kind` gives to its number.
pub(crate) async fn fill_kinds(
    channel: &Channel,
    queue: &str,
    count: usize,
    kind: impl Fn(usize) -> &'static str,
) -> Result<()> {
    let payload = body();
    let mut at = 0;
    while at < count {
        let end = count.min(at + FILLING);
        let mut confirms = Vec::with_capacity(FILLING);
        for number in at..end {
            let properties = properties(number, kind(number));
            confirms.push(publish(channel, "", queue, &payload, properties).await?);
        }
        try_join_all(confirms.into_iter().map(confirmed)).await?;
        at = end;
    }
    Ok(())
}

/// Begins to consume `queue` with manual acks.
pub(crate) async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Result<Consumer> {
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let tag = ShortString::from("bench");
    let options = BasicConsumeOptions::default();
    Ok(channel.basic_consume(queue.into(), tag, options, FieldTable::default()).await?)
}
