//! Makes what a topology names, in its order.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, ExchangeKind};
use mamparo_core::message::closure::Closure;
use mamparo_core::message::topology::{Argument, Arguments, Topology};

use super::connection::Connector;

pub(super) async fn declare(
    connector: &Connector,
    channel: &Channel,
    topology: &Topology,
) -> Result<(), Closure> {
    for exchange in &topology.exchanges {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let (name, kind) = (exchange.name.as_str().into(), ExchangeKind::Topic);
        let asked = channel.exchange_declare(name, kind, options, FieldTable::default());
        connector.within(asked).await?;
    }
    for queue in &topology.queues {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let name = queue.name.as_str().into();
        connector.within(channel.queue_declare(name, options, table(&queue.arguments))).await?;
    }
    for binding in &topology.bindings {
        let asked = channel.queue_bind(
            binding.queue.as_str().into(),
            binding.exchange.as_str().into(),
            binding.pattern.as_str().into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        connector.within(asked).await?;
    }
    Ok(())
}

/// Arguments for the wire.
fn table(arguments: &Arguments) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(LongString::from(text.as_str())),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
            Argument::Flag(flag) => AMQPValue::Boolean(*flag),
        };
        table.insert(name.as_str().into(), value);
    }
    table
}
