//! Queues, exchanges and bindings of one policy.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, ExchangeKind};
use mamparo_core::message::closure::Closure;
use mamparo_core::message::topology::{Queue, QueuePolicy};

use super::connection::Connector;

pub(super) async fn declare(
    connector: &Connector,
    channel: &Channel,
    policy: &QueuePolicy,
) -> Result<(), Closure> {
    let topology = policy.topology();
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    for queue in topology.queues {
        let asked = channel.queue_declare(queue.name.as_str().into(), durable, arguments(&queue));
        connector.within(asked).await?;
    }
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    for binding in topology.bindings {
        let exchange = binding.exchange.as_str();
        let none = FieldTable::default();
        let asked =
            channel.exchange_declare(exchange.into(), ExchangeKind::Topic, options, none.clone());
        connector.within(asked).await?;
        let asked = channel.queue_bind(
            binding.queue.as_str().into(),
            exchange.into(),
            binding.pattern.as_str().into(),
            QueueBindOptions::default(),
            none,
        );
        connector.within(asked).await?;
    }
    Ok(())
}

fn arguments(queue: &Queue) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut table = FieldTable::default();
    // Always said: a virtual host may have another default.
    table.insert("x-queue-type".into(), text("quorum"));
    if let Some(way) = &queue.returns {
        let millis = i64::try_from(way.after.as_millis()).unwrap_or(i64::MAX);
        table.insert("x-message-ttl".into(), AMQPValue::LongLongInt(millis));
        table.insert("x-dead-letter-exchange".into(), text(""));
        table.insert("x-dead-letter-routing-key".into(), text(&way.to));
        table.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        table.insert("x-overflow".into(), text("reject-publish"));
    }
    table
}
