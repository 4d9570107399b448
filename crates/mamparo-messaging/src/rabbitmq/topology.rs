//! RabbitMQ's queues, looked at and made over AMQP.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::topology::mismatch::{self, Next, Probe, ROUNDS_MAX};
use mamparo_core::message::topology::plan::{Difference, Seen, Subject, Theirs, subjects};
use mamparo_core::message::topology::{Argument, Arguments, Binding, Topology};

use super::RabbitMqBroker;
use super::connection::failed;
use crate::MessagingError;
use crate::plan::Provision;

impl Provision for RabbitMqBroker {
    async fn look(&self, topology: &Topology) -> Result<Vec<Seen>, MessagingError> {
        let mut seen = Vec::new();
        for subject in subjects(topology) {
            let looked = match &subject {
                Subject::Exchange(name) => self.look_at_exchange(name).await,
                Subject::Queue(name, _) => {
                    let wanted = topology.queues.iter().find(|queue| queue.name == *name);
                    let none = Arguments::new();
                    let ours = wanted.map_or(&none, |queue| &queue.arguments);
                    self.look_at_queue(name, ours).await
                }
                // AMQP has a verb that makes a binding and none that lists them.
                Subject::Binding(_) => Ok(Seen::Hidden),
            };
            let operation = || format!("look at {} {subject}", subject.kind());
            seen.push(looked.map_err(|closure| failed(operation())(closure))?);
        }
        Ok(seen)
    }

    async fn make(&self, topology: &Topology, subject: &Subject) -> Result<(), MessagingError> {
        let made = match subject {
            Subject::Exchange(name) => self.declare_exchange(name).await,
            Subject::Queue(name, _) => {
                let wanted = topology.queues.iter().find(|queue| queue.name == *name);
                let none = Arguments::new();
                let ours = wanted.map_or(&none, |queue| &queue.arguments);
                self.declare_queue(name, durable(), ours).await.map(drop)
            }
            Subject::Binding(binding) => self.bind(binding).await,
        };
        made.map_err(|closure| failed(format!("declare {} {subject}", subject.kind()))(closure))
    }
}

impl RabbitMqBroker {
    async fn look_at_exchange(&self, name: &str) -> Result<Seen, Closure> {
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        match self.exchange(name, passive).await {
            Err(closure) if closure.kind == Kind::NotFound => return Ok(Seen::Missing),
            answer => answer?,
        }
        let Err(closure) = self.declare_exchange(name).await else { return Ok(same(None)) };
        let Some(found) = mismatch::read(&closure.text) else { return Err(closure) };
        // One difference is enough: it is somebody else's exchange.
        let ours = match found.key.as_str() {
            "type" => Some(Argument::Text("topic".to_owned())),
            "durable" => Some(Argument::Flag(true)),
            "auto_delete" | "internal" => Some(Argument::Flag(false)),
            _ => None,
        };
        let theirs = match found.theirs {
            mismatch::Present::Text(text, _) => Theirs::Value(Argument::Text(text)),
            mismatch::Present::NotSet => Theirs::NotSet,
            mismatch::Present::CutOff => Theirs::CutOff,
        };
        let differences = vec![Difference { key: found.key, ours, theirs }];
        Ok(Seen::There { differences, depth: None })
    }

    /// Is it there, and with which arguments? An active declaration is only sent for what was just seen
    /// to be there, each on a channel of its own, because a difference closes it.
    async fn look_at_queue(&self, name: &str, ours: &Arguments) -> Result<Seen, Closure> {
        let Some(depth) = self.ready(name).await? else { return Ok(Seen::Missing) };
        let mut probe = Probe::new(ours);
        for _ in 0..ROUNDS_MAX {
            let options = QueueDeclareOptions {
                durable: probe.durable(),
                auto_delete: probe.auto_delete(),
                ..Default::default()
            };
            let closure = match self.declare_queue(name, options, probe.arguments()).await {
                Ok(_) => break,
                Err(closure) => closure,
            };
            if closure.kind == Kind::Locked {
                return Ok(exclusive(depth));
            }
            match mismatch::read(&closure.text) {
                Some(found) if probe.tell(&found) == Next::Again => {}
                // What is known already is worth more than why the rest is not.
                Some(_) => break,
                None if probe.found() => break,
                None => return Err(closure),
            }
        }
        Ok(Seen::There { differences: probe.into_differences(), depth: Some(depth) })
    }

    async fn declare_exchange(&self, name: &str) -> Result<(), Closure> {
        self.exchange(name, ExchangeDeclareOptions { durable: true, ..Default::default() }).await
    }

    async fn exchange(&self, name: &str, options: ExchangeDeclareOptions) -> Result<(), Closure> {
        let channel = self.inner.shared.channel().await?;
        let none = FieldTable::default();
        let asked = channel.exchange_declare(name.into(), ExchangeKind::Topic, options, none);
        self.inner.connector.within(asked).await
    }

    async fn declare_queue(
        &self,
        name: &str,
        options: QueueDeclareOptions,
        arguments: &Arguments,
    ) -> Result<(), Closure> {
        let channel = self.inner.shared.channel().await?;
        let asked = channel.queue_declare(name.into(), options, table(arguments));
        self.inner.connector.within(asked).await.map(drop)
    }

    async fn bind(&self, binding: &Binding) -> Result<(), Closure> {
        let channel = self.inner.shared.channel().await?;
        let asked = channel.queue_bind(
            binding.queue.as_str().into(),
            binding.exchange.as_str().into(),
            binding.pattern.as_str().into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        self.inner.connector.within(asked).await
    }
}

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions { durable: true, ..Default::default() }
}

fn same(depth: Option<u64>) -> Seen {
    Seen::There { differences: Vec::new(), depth }
}

/// A queue that another connection has for itself shows nothing but that.
fn exclusive(depth: u64) -> Seen {
    let exclusive = Difference {
        key: "exclusive".to_owned(),
        ours: Some(Argument::Flag(false)),
        theirs: Theirs::Value(Argument::Flag(true)),
    };
    Seen::There { differences: vec![exclusive], depth: Some(depth) }
}

pub(super) fn table(arguments: &Arguments) -> FieldTable {
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
