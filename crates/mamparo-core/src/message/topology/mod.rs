//! Queues as data: what exists around a consumer's queue, who owns it, and what is wrong with it.
//!
//! Per consumer there is `<queue>`; a waiting room without consumer, `<queue>.retry`, whose messages
//! go back to `<queue>` by name after the retry delay (several when there are several delays, none
//! when messages wait elsewhere); and `<queue>.dlq` of its own. There is no shared exchange between
//! them: dead letters through one shared topic exchange would put every queue's failures into every
//! dead-letter queue.
//!
//! [`QueuePolicy`] says what is wanted, [`Topology`] is what a broker has to hold for it, [`Refusal`]
//! what no broker should hold and why, [`plan`] what is missing or different.

pub mod alarm;
mod describe;
pub mod mismatch;
pub mod plan;
mod policy;
mod refusal;

pub use describe::{
    Argument, Arguments, Binding, DEAD_LETTERS_DELIVERY_LIMIT, Exchange, Queue, Return, Role,
    Topology,
};
pub use policy::{Order, PolicyProblem, QueuePolicy, QueueType, Wait, WaitingRoom};
pub use refusal::Refusal;

use std::time::Duration;

/// The topic exchange that events are published to.
pub const EVENTS: &str = "events";

/// Suffix of the waiting room.
pub const RETRY_SUFFIX: &str = ".retry";

/// Suffix of the dead-letter queue.
pub const DLQ_SUFFIX: &str = ".dlq";

/// Suffix of the queue that keeps what people took out of the dead letters, at a broker that has no
/// archive of its own. Made by the first discard.
pub const ARCHIVE_SUFFIX: &str = ".archive";

/// Most messages that one consumer may hold. More of them only wait in memory instead of in the queue.
pub const PREFETCH_MAX: u32 = 1_000;

/// Longest retry delay. A message that waits longer than a day wants a person, not a timer.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(86_400);

/// Most retry tiers of one queue. Each is a queue of the broker; ten of them span 1 s to a day.
pub const RETRY_TIERS_MAX: usize = 10;

/// Longest queue name in bytes, so that the suffixed names fit AMQP's 255.
pub const QUEUE_NAME_BYTES_MAX: usize = 200;

/// Most hand-outs that a policy may allow before the broker gives a message up.
pub const DELIVERY_LIMIT_MAX: u32 = 10_000;

/// Most messages that a waiting room or a dead-letter queue may be allowed to hold. More is no limit.
pub const MAX_LENGTH_MAX: u32 = 10_000_000;

/// Last version that a queue may have. More of them is a typing mistake.
pub const VERSION_MAX: u32 = 999;

/// The waiting room of `queue` when there is one delay only.
#[must_use]
pub fn retry_queue(queue: &str) -> String {
    format!("{queue}{RETRY_SUFFIX}")
}

/// The dead-letter queue of `queue`.
#[must_use]
pub fn dlq(queue: &str) -> String {
    format!("{queue}{DLQ_SUFFIX}")
}

/// The consumer of a queue: its name without the version, `orders.saga` for `orders.saga.v2`.
#[must_use]
pub fn consumer_of(queue: &str) -> &str {
    let base = queue.rsplit_once(".v").filter(|(_, version)| {
        !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit())
    });
    base.map_or(queue, |(base, _)| base)
}

/// The queue that keeps what people took out of the dead letters of `queue`.
#[must_use]
pub fn archive(queue: &str) -> String {
    format!("{queue}{ARCHIVE_SUFFIX}")
}

/// The name of version `version` of `queue`: `orders.saga`, then `orders.saga.v2` and so on.
#[must_use]
pub fn versioned(queue: &str, version: u32) -> String {
    if version < 2 { queue.to_owned() } else { format!("{queue}.v{version}") }
}
