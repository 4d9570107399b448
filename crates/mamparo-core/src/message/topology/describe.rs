//! From a policy to everything that a broker has to hold for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{EVENTS, Order, QueuePolicy, QueueType, WaitingRoom};
use crate::message::capabilities::{Capabilities, Engine};

/// Hand-outs that a dead-letter queue allows. Whoever looks at dead letters takes them and gives them
/// back, which counts, and RabbitMQ 4 *drops* a message after 20 of these where nobody names another
/// limit. "No limit" can only be said from 4.0 on, and a queue must not differ after an upgrade: so it
/// is a number that nobody reaches.
pub const DEAD_LETTERS_DELIVERY_LIMIT: u32 = 1_000_000;

/// The value of a queue's argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl std::fmt::Display for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) if text.is_empty() => f.write_str("\"\""),
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<Duration> for Argument {
    /// In milliseconds.
    fn from(time: Duration) -> Self {
        Self::Number(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A queue's arguments by name, `x-message-ttl` say.
pub type Arguments = BTreeMap<String, Argument>;

/// What a broker has to hold for one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The exchanges that the bindings name. None on the embedded broker, where they are only names.
    pub exchanges: Vec<Exchange>,
    /// The queues in the order in which they are to be made: dead letters, main, waiting rooms. Whatever
    /// a queue sends its messages to is there before it.
    pub queues: Vec<Queue>,
    /// Which events reach the main queue. Only the main queue is ever bound, and last of all.
    pub bindings: Vec<Binding>,
}

/// A durable topic exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
}

/// What a queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A consumer reads it.
    Main,
    /// Messages wait in it between two attempts.
    Waiting,
    /// Messages lie in it until a person looks.
    DeadLetters,
}

/// One durable queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Where its messages go by themselves, if they do.
    pub returns: Option<Return>,
    /// What it is declared with.
    pub arguments: Arguments,
}

impl Queue {
    /// The text of an argument; `None` when it is not set or no text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.arguments.get(name)? {
            Argument::Text(text) => Some(text),
            Argument::Number(_) | Argument::Flag(_) => None,
        }
    }

    /// The number of an argument; `None` when it is not set or no number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.arguments.get(name)? {
            Argument::Number(number) => Some(*number),
            Argument::Text(_) | Argument::Flag(_) => None,
        }
    }
}

/// A waiting room's way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Return {
    /// After this long …
    pub after: Duration,
    /// … to the queue of this name, by name and through no exchange.
    pub to: String,
}

/// Events of `exchange` whose routing key matches `pattern` go to `queue`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The exchange.
    pub exchange: String,
    /// `*` stands for one word, `#` for any number of them.
    pub pattern: String,
    /// The queue.
    pub queue: String,
}

impl QueuePolicy {
    /// Everything to declare on a broker of these capabilities. Only what is used: waiting rooms where
    /// messages wait in queues, none elsewhere.
    #[must_use]
    pub fn topology(&self, broker: &Capabilities) -> Topology {
        let rabbit = broker.engine == Engine::RabbitMq;
        let room = self.room_on(broker);
        let mut queues = vec![
            Queue {
                name: self.dlq(),
                role: Role::DeadLetters,
                returns: None,
                arguments: only(rabbit, || self.dead_letters()),
            },
            Queue {
                name: self.queue.clone(),
                role: Role::Main,
                returns: None,
                arguments: only(rabbit, || self.main(room)),
            },
        ];
        if room == WaitingRoom::Tiers {
            queues.extend(self.waits().into_iter().map(|wait| Queue {
                arguments: self.waiting(wait.delay, rabbit),
                name: wait.queue,
                role: Role::Waiting,
                returns: Some(Return { after: wait.delay, to: self.queue.clone() }),
            }));
        }
        let binding = |pattern: &String| Binding {
            exchange: EVENTS.to_owned(),
            pattern: pattern.clone(),
            queue: self.queue.clone(),
        };
        let exchanges =
            if rabbit { vec![Exchange { name: EVENTS.to_owned() }] } else { Vec::new() };
        Topology { exchanges, queues, bindings: self.bindings.iter().map(binding).collect() }
    }

    fn main(&self, room: WaitingRoom) -> Arguments {
        let mut main = arguments([
            ("x-queue-type", self.queue_type.as_str().into()),
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", self.dlq().as_str().into()),
        ]);
        if self.queue_type == QueueType::Quorum {
            main.extend(at_least_once());
            main.extend(arguments([("x-delivery-limit", self.delivery_limit.into())]));
        }
        if self.order == Order::Strict {
            main.insert("x-single-active-consumer".to_owned(), Argument::Flag(true));
        }
        if room == WaitingRoom::Broker {
            let delays = self.delays();
            let ends = (delays.first().copied(), delays.last().copied());
            main.extend(arguments([
                // Only rejected messages wait: what a closing consumer gives back is at hand at once.
                ("x-delayed-retry-type", "failed".into()),
                ("x-delayed-retry-min", ends.0.unwrap_or_default().into()),
                ("x-delayed-retry-max", ends.1.unwrap_or_default().into()),
            ]));
        }
        main
    }

    fn waiting(&self, delay: Duration, rabbit: bool) -> Arguments {
        let mut waiting = arguments([
            ("x-message-ttl", delay.into()),
            ("x-dead-letter-routing-key", self.queue.as_str().into()),
        ]);
        if rabbit {
            waiting.extend(arguments([
                ("x-queue-type", QueueType::Quorum.as_str().into()),
                ("x-dead-letter-exchange", "".into()),
                ("x-max-length", self.max_length.into()),
            ]));
            waiting.extend(at_least_once());
        }
        waiting
    }

    fn dead_letters(&self) -> Arguments {
        arguments([
            ("x-queue-type", QueueType::Quorum.as_str().into()),
            ("x-delivery-limit", DEAD_LETTERS_DELIVERY_LIMIT.into()),
            ("x-max-length", self.max_length.into()),
            ("x-overflow", "reject-publish".into()),
        ])
    }
}

/// A dead-lettered message stays until its target has confirmed it. RabbitMQ falls back to at most once,
/// in silence, unless the queue also refuses what is too much instead of dropping its head.
fn at_least_once() -> Arguments {
    arguments([
        ("x-dead-letter-strategy", "at-least-once".into()),
        ("x-overflow", "reject-publish".into()),
    ])
}

fn arguments<const N: usize>(named: [(&str, Argument); N]) -> Arguments {
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn only(wanted: bool, make: impl FnOnce() -> Arguments) -> Arguments {
    if wanted { make() } else { Arguments::new() }
}
