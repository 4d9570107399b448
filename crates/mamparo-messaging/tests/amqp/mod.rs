//! RabbitMQ as others use it: a foreign publisher, the lesson's consumer, an operator.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

pub mod proxy;

use std::time::Duration;

use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use mamparo_messaging::QueuePolicy;
use mamparo_messaging::broker::{Delivery, Subscription};

use crate::common::{until, within};

/// A plain client.
#[derive(Debug)]
pub struct Raw {
    pub connection: Connection,
    pub channel: Channel,
}

impl Raw {
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { connection, channel }
    }

    pub async fn declare(&self, queue: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(queue.into(), options, arguments).await.unwrap();
    }

    pub async fn publish(&self, exchange: &str, key: &str, properties: BasicProperties) {
        let confirm = self.try_publish(exchange, key, properties).await.unwrap();
        assert!(confirm.is_ack(), "{confirm:?}");
    }

    pub async fn try_publish(
        &self,
        exchange: &str,
        key: &str,
        properties: BasicProperties,
    ) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions::default();
        let body = b"{\"total\":1}";
        self.channel
            .basic_publish(exchange.into(), key.into(), options, body, properties)
            .await?
            .await
    }

    pub async fn get(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()
    }

    /// The next message, acknowledged; waits for it.
    pub async fn pull(&self, queue: &str) -> BasicGetMessage {
        within(async {
            loop {
                if let Some(message) = self.get(queue).await {
                    message.ack(BasicAckOptions::default()).await.unwrap();
                    return message;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    pub async fn ready(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let asked = self.channel.queue_declare(queue.into(), options, FieldTable::default());
        asked.await.unwrap().message_count()
    }

    pub async fn until_ready(&self, queue: &str, count: u32) {
        until(queue, async || self.ready(queue).await == count).await;
    }

    pub async fn delete(&self, queue: &str) {
        let options = QueueDeleteOptions::default();
        self.channel.queue_delete(queue.into(), options).await.unwrap();
    }

    /// All queues of a policy, so that a shared broker does not fill up.
    pub async fn clear(&self, policy: &QueuePolicy) {
        for wait in policy.waits() {
            self.delete(&wait.queue).await;
        }
        self.delete(&policy.queue).await;
        self.delete(&policy.dlq()).await;
    }
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

pub fn number(value: i64) -> AMQPValue {
    AMQPValue::LongLongInt(value)
}

pub fn table<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

pub fn with_headers(headers: FieldTable) -> BasicProperties {
    BasicProperties::default().with_headers(headers)
}

/// A policy whose queues nobody else uses, and its waiting room of 30 ms.
pub fn policy() -> QueuePolicy {
    let queue = format!("rabbit.{}", uuid::Uuid::new_v4());
    QueuePolicy {
        retry_delay: Duration::from_millis(30),
        ..QueuePolicy::new(queue.clone(), "team-orders").bind(format!("{queue}.*"))
    }
}

pub async fn next(subscription: &impl Subscription) -> Delivery {
    within(async {
        loop {
            subscription.ready().await;
            if let Some(delivery) = subscription.take(1).await.unwrap().pop() {
                return delivery;
            }
        }
    })
    .await
}
