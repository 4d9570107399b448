//! RabbitMQ without mamparo: what the lesson declares, and how a process dies.

use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
};
use mamparo_call::clock;

/// A connection whose queues are all named by one prefix that nobody else has.
pub struct Raw {
    connection: Connection,
    pub prefix: String,
}

pub fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

pub fn number(number: i64) -> AMQPValue {
    AMQPValue::LongLongInt(number)
}

impl Raw {
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        Self { connection, prefix: format!("topo.{}", uuid::Uuid::new_v4().simple()) }
    }

    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub async fn channel(&self) -> Channel {
        self.connection.create_channel().await.unwrap()
    }

    /// Declares a durable queue.
    pub async fn queue(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        for (key, value) in arguments {
            table.insert((*key).into(), value.clone());
        }
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel().await.queue_declare(name.into(), durable, table).await.unwrap();
    }

    pub async fn topic(&self, exchange: &str) {
        self.exchange(exchange, ExchangeKind::Topic).await;
    }

    pub async fn direct(&self, exchange: &str) {
        self.exchange(exchange, ExchangeKind::Direct).await;
    }

    async fn exchange(&self, exchange: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let channel = self.channel().await;
        let none = FieldTable::default();
        channel.exchange_declare(exchange.into(), kind, options, none).await.unwrap();
    }

    /// Empties a queue; how many messages that were.
    pub async fn purge(&self, queue: &str) -> u32 {
        let channel = self.channel().await;
        channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await.unwrap()
    }

    pub async fn bind(&self, exchange: &str, pattern: &str, queue: &str) {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let channel = self.channel().await;
        channel
            .queue_bind(queue.into(), exchange.into(), pattern.into(), options, none)
            .await
            .unwrap();
    }

    /// Publishes to a queue; was it confirmed?
    pub async fn put(&self, exchange: &str, key: &str, expiration: Option<Duration>) -> bool {
        let channel = self.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(time) = expiration {
            properties = properties.with_expiration(time.as_millis().to_string().into());
        }
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = channel.basic_publish(exchange.into(), key.into(), options, b"{}", properties);
        matches!(sent.await.unwrap().await.unwrap(), Confirmation::Ack(None))
    }

    /// Takes a message and gives it back as a process that dies does: its channel ends. `false` when
    /// there is none.
    pub async fn take_and_die(&self, queue: &str) -> bool {
        let channel = self.channel().await;
        let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap();
        channel.close(200, "died".into()).await.unwrap();
        got.is_some()
    }

    /// Rejects the first message for good.
    pub async fn reject(&self, queue: &str) {
        let channel = self.channel().await;
        let taken = loop {
            let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap();
            match got {
                Some(taken) => break taken,
                None => clock::sleep_until(clock::now().plus(Duration::from_millis(3))).await,
            }
        };
        let tag = taken.delivery.delivery_tag;
        channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await.unwrap();
        channel.close(200, "done".into()).await.unwrap();
    }

    /// Ready messages; `None` when there is no such queue.
    pub async fn depth(&self, queue: &str) -> Option<u32> {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = self.channel().await;
        let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
        found.ok().map(|queue| queue.message_count())
    }

    pub async fn delete(&self, queue: &str) {
        let channel = self.channel().await;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    pub async fn delete_exchange(&self, exchange: &str) {
        let channel = self.channel().await;
        channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await.unwrap();
    }

    /// Removes the queues of these names with every suffix that a policy gives them.
    pub async fn clean(&self, names: &[&str]) {
        for name in names {
            for suffix in ["", ".dlq", ".retry"] {
                self.delete(&format!("{}{suffix}", self.name(name))).await;
            }
        }
    }
}
