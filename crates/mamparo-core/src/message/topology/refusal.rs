//! What no broker is made to hold, and why: arrangements of queues that lose messages or send them to
//! the wrong place.

use super::{DEAD_LETTERS_DELIVERY_LIMIT, Queue, QueuePolicy, Role, Topology};
use crate::message::capabilities::{Capabilities, Engine, Version};

/// The first RabbitMQ whose quorum queues can be a waiting room: message TTL and at-least-once
/// dead-lettering.
const OLDEST: Version = Version::new(3, 10, 0);

/// Why a topology is not made. `Display` says what is wrong; [`why`](Self::why) what happens if it is
/// done anyway; [`way_out`](Self::way_out) what to do instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Queues send their dead letters to an exchange that hands them on by a pattern.
    SharedDeadLetters {
        /// The exchange.
        exchange: String,
        /// The queues that receive everything that dies.
        receivers: Vec<String>,
    },
    /// A waiting room that is no quorum queue.
    ClassicWaitingRoom {
        /// The queue.
        queue: String,
    },
    /// A waiting room that forgets a message before its target has it.
    ForgetsOnReturn {
        /// The queue.
        queue: String,
    },
    /// A queue that gives messages up after some hand-outs and has nowhere to put them.
    LimitWithoutTarget {
        /// The queue.
        queue: String,
        /// The limit.
        limit: i64,
    },
    /// A waiting room whose messages carry their own time.
    TimePerMessage {
        /// The queue.
        queue: String,
    },
    /// A waiting room or dead-letter queue without a limit to its length.
    Unbounded {
        /// The queue.
        queue: String,
    },
    /// The broker has no queue that could be a waiting room.
    TooOld {
        /// Its release.
        version: Version,
    },
    /// The policy asks for a classic queue and for the broker's own delayed retry.
    ClassicDelayedRetry {
        /// The queue.
        queue: String,
    },
}

impl Refusal {
    /// What happens when it is done anyway.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::SharedDeadLetters { .. } => {
                "each of these queues gets the dead letters of all consumers: the wrong team is \
                 called, and a replay puts foreign events into a queue"
            }
            Self::ClassicWaitingRoom { .. } => {
                "a classic queue forgets a message as it expires: when the target is missing or full \
                 at that moment, the message is gone"
            }
            Self::ForgetsOnReturn { .. } => {
                "without at-least-once and reject-publish together, a message that its target does \
                 not take is dropped in silence"
            }
            Self::LimitWithoutTarget { .. } => {
                "after so many hand-outs the broker drops the message, and nobody is told"
            }
            Self::TimePerMessage { .. } => {
                "the broker looks at the head of a queue only: a message of 200 ms waits behind one \
                 of 10 min"
            }
            Self::Unbounded { .. } => {
                "an outage fills it until the broker stops every publisher for want of disk"
            }
            Self::TooOld { .. } => {
                "quorum queues know neither a time to live nor at-least-once dead-lettering there, so \
                 retries could be lost"
            }
            Self::ClassicDelayedRetry { .. } => {
                "only quorum queues delay what is rejected; a classic one hands it out again at once"
            }
        }
    }

    /// What to do instead.
    #[must_use]
    pub const fn way_out(&self) -> &'static str {
        match self {
            Self::SharedDeadLetters { .. } => {
                "dead-letter by name: exchange \"\" and the queue's own .dlq as routing key"
            }
            Self::ClassicWaitingRoom { .. } | Self::ForgetsOnReturn { .. } => {
                "a quorum queue with x-dead-letter-strategy at-least-once and x-overflow \
                 reject-publish, or waiting_room = \"parked\""
            }
            Self::LimitWithoutTarget { .. } => {
                "give the queue a dead-letter exchange and a routing key that reach its own .dlq"
            }
            Self::TimePerMessage { .. } => "one queue per delay: retry_tiers = [\"5s\", \"30s\"]",
            Self::Unbounded { .. } => {
                "set max_length, and an owner who is told before it is reached"
            }
            Self::TooOld { .. } => "use RabbitMQ 3.10 or later",
            Self::ClassicDelayedRetry { .. } => {
                "leave type = \"classic\" out, or use waiting_room = \"tiers\""
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SharedDeadLetters { exchange, receivers } => write!(
                f,
                "exchange {exchange} hands dead letters of every queue to {}",
                receivers.join(", ")
            ),
            Self::ClassicWaitingRoom { queue } => write!(f, "{queue} is a classic waiting room"),
            Self::ForgetsOnReturn { queue } => {
                write!(f, "{queue} dead-letters at most once")
            }
            Self::LimitWithoutTarget { queue, limit } => {
                write!(f, "{queue} has a delivery limit of {limit} and no dead-letter target")
            }
            Self::TimePerMessage { queue } => {
                write!(f, "{queue} returns messages by a time of their own")
            }
            Self::Unbounded { queue } => write!(f, "{queue} has no limit to its length"),
            Self::TooOld { version } => write!(f, "RabbitMQ {version} is older than {OLDEST}"),
            Self::ClassicDelayedRetry { queue } => {
                write!(
                    f,
                    "{queue} is classic and its messages should wait in the broker's own retry"
                )
            }
        }
    }
}

impl QueuePolicy {
    /// What this policy may not be on a broker of these capabilities; empty when it may be declared.
    #[must_use]
    pub fn refusals(&self, broker: &Capabilities) -> Vec<Refusal> {
        let mut found = self.topology(broker).refusals(broker);
        let classic = self.queue_type == super::QueueType::Classic;
        if classic && self.room_on(broker) == super::WaitingRoom::Broker {
            found.push(Refusal::ClassicDelayedRetry { queue: self.queue.clone() });
        }
        found
    }
}

impl Topology {
    /// What may not be made on a broker of these capabilities. On the embedded one nothing is refused:
    /// it moves a message in one transaction, and knows neither dead-letter exchanges nor limits.
    #[must_use]
    pub fn refusals(&self, broker: &Capabilities) -> Vec<Refusal> {
        if broker.engine == Engine::Embedded {
            return Vec::new();
        }
        if broker.version < OLDEST {
            return vec![Refusal::TooOld { version: broker.version }];
        }
        let queues = self.queues.iter().flat_map(|queue| judge(queue, broker));
        self.shared().into_iter().chain(queues).collect()
    }

    /// Exchanges that hand on dead letters by a pattern, or one dead letter to several queues.
    fn shared(&self) -> Vec<Refusal> {
        let mut exchanges: Vec<&str> = self
            .queues
            .iter()
            .filter_map(|queue| queue.text("x-dead-letter-exchange"))
            .filter(|exchange| !exchange.is_empty())
            .collect();
        exchanges.sort_unstable();
        exchanges.dedup();
        let mut found = Vec::new();
        for exchange in exchanges {
            let wild = |pattern: &str| pattern.split('.').any(|word| word == "#" || word == "*");
            let mut receivers: Vec<String> = self
                .bindings
                .iter()
                .filter(|binding| binding.exchange == exchange && wild(&binding.pattern))
                .map(|binding| binding.queue.clone())
                .collect();
            receivers.dedup();
            if !receivers.is_empty() {
                found.push(Refusal::SharedDeadLetters { exchange: exchange.to_owned(), receivers });
            }
        }
        found
    }
}

fn judge(queue: &Queue, broker: &Capabilities) -> Vec<Refusal> {
    let name = || queue.name.clone();
    let quorum = queue.text("x-queue-type") == Some("quorum");
    let target = queue.arguments.contains_key("x-dead-letter-exchange");
    let mut found = Vec::new();
    if queue.role == Role::Waiting {
        let strategy = queue.text("x-dead-letter-strategy") == Some("at-least-once");
        let refuses = queue.text("x-overflow") == Some("reject-publish");
        if !quorum {
            found.push(Refusal::ClassicWaitingRoom { queue: name() });
        } else if !(strategy && refuses) {
            found.push(Refusal::ForgetsOnReturn { queue: name() });
        }
        if !queue.arguments.contains_key("x-message-ttl") {
            found.push(Refusal::TimePerMessage { queue: name() });
        }
    }
    if queue.role != Role::Main && !queue.arguments.contains_key("x-max-length") {
        found.push(Refusal::Unbounded { queue: name() });
    }
    let default = broker.delivery_limit_default.map(i64::from);
    if let Some(limit) = queue.number("x-delivery-limit").or(default)
        && quorum
        && !target
        && (0..i64::from(DEAD_LETTERS_DELIVERY_LIMIT)).contains(&limit)
    {
        found.push(Refusal::LimitWithoutTarget { queue: name(), limit });
    }
    found
}
