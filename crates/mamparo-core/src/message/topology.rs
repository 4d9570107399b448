//! Queues as data: what exists around a consumer's queue, who owns it, and what is wrong with it.
//!
//! Per consumer there are three queues and no shared exchange between them: `<queue>`;
//! `<queue>.retry`, without consumer, whose messages go back to `<queue>` by name after the retry
//! delay; `<queue>.dlq` of its own. Dead letters through one shared topic exchange would put every
//! queue's failures into every dead-letter queue.

use std::time::Duration;

use crate::limits::ATTEMPTS_MAX;

/// The topic exchange that events are published to.
pub const EVENTS: &str = "events";

/// Suffix of the waiting room.
pub const RETRY_SUFFIX: &str = ".retry";

/// Suffix of the dead-letter queue.
pub const DLQ_SUFFIX: &str = ".dlq";

/// Most messages that one consumer may hold. More of them only wait in memory instead of in the queue.
pub const PREFETCH_MAX: u32 = 1_000;

/// Longest retry delay. A message that waits longer than a day wants a person, not a timer.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(86_400);

/// Longest queue name in bytes, so that the suffixed names fit AMQP's 255.
pub const QUEUE_NAME_BYTES_MAX: usize = 200;

/// One consumer's queue and its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The queue's name, `orders.saga` say.
    pub queue: String,
    /// Who is asked when messages lie in the dead-letter queue. Required.
    pub owner: String,
    /// Messages held at once, and handled at once unless they share a key. 1 to 1000, default 10.
    pub prefetch: u32,
    /// Attempts before the dead-letter queue, the first included. 1 to 100, default 5.
    pub attempts: u32,
    /// How long a message waits between attempts. 1 ms to 24 h, default 30 s.
    pub retry_delay: Duration,
    /// How long the handler may take for one message. Over zero, default 30 s.
    pub handler_timeout: Duration,
    /// Event types that the queue receives: topic patterns on the exchange [`EVENTS`].
    pub bindings: Vec<String>,
}

/// What is wrong with a [`QueuePolicy`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyProblem {
    /// The name is empty, too long, or holds something else than letters, digits, `.`, `_` and `-`.
    Name,
    /// The name ends like a waiting room or a dead-letter queue.
    ReservedSuffix,
    /// Nobody owns the queue.
    Owner,
    /// Outside 1 to 1000.
    Prefetch,
    /// Outside 1 to 100.
    Attempts,
    /// Outside 1 ms to 24 h.
    RetryDelay,
    /// Zero.
    HandlerTimeout,
    /// A binding is empty or has an empty word, `order..created` say.
    Binding(String),
}

impl std::fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name => f.write_str("name: 1 to 200 letters, digits, '.', '_' or '-'"),
            Self::ReservedSuffix => {
                write!(f, "name: must not end in {RETRY_SUFFIX} or {DLQ_SUFFIX}")
            }
            Self::Owner => f.write_str("owner: every queue has one, it is who gets the alert"),
            Self::Prefetch => f.write_str("prefetch: 1 to 1000"),
            Self::Attempts => f.write_str("attempts: 1 to 100"),
            Self::RetryDelay => f.write_str("retry_delay: 1 ms to 24 h"),
            Self::HandlerTimeout => f.write_str("handler_timeout: more than zero"),
            Self::Binding(pattern) => write!(f, "bindings: {pattern:?} has an empty word"),
        }
    }
}

impl QueuePolicy {
    /// A policy with all defaults and no bindings.
    #[must_use]
    pub fn new(queue: impl Into<String>, owner: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            owner: owner.into(),
            prefetch: 10,
            attempts: 5,
            retry_delay: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(30),
            bindings: Vec::new(),
        }
    }

    /// This policy with one more event type (a topic pattern).
    #[must_use]
    pub fn bind(mut self, pattern: impl Into<String>) -> Self {
        self.bindings.push(pattern.into());
        self
    }

    /// The waiting room's name.
    #[must_use]
    pub fn retry_queue(&self) -> String {
        retry_queue(&self.queue)
    }

    /// The dead-letter queue's name.
    #[must_use]
    pub fn dlq(&self) -> String {
        dlq(&self.queue)
    }

    /// Everything that is wrong, all at once; empty when the policy can be declared.
    #[must_use]
    pub fn problems(&self) -> Vec<PolicyProblem> {
        let legal = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let name = !self.queue.is_empty()
            && self.queue.len() <= QUEUE_NAME_BYTES_MAX
            && self.queue.chars().all(legal);
        let reserved = self.queue.ends_with(RETRY_SUFFIX) || self.queue.ends_with(DLQ_SUFFIX);
        let delay =
            self.retry_delay >= Duration::from_millis(1) && self.retry_delay <= RETRY_DELAY_MAX;
        let checks = [
            (name, PolicyProblem::Name),
            (!reserved, PolicyProblem::ReservedSuffix),
            (!self.owner.trim().is_empty(), PolicyProblem::Owner),
            ((1..=PREFETCH_MAX).contains(&self.prefetch), PolicyProblem::Prefetch),
            ((1..=ATTEMPTS_MAX).contains(&self.attempts), PolicyProblem::Attempts),
            (delay, PolicyProblem::RetryDelay),
            (!self.handler_timeout.is_zero(), PolicyProblem::HandlerTimeout),
        ];
        let bindings = self
            .bindings
            .iter()
            .filter(|pattern| pattern.split('.').any(str::is_empty))
            .map(|pattern| PolicyProblem::Binding(pattern.clone()));
        checks.into_iter().filter(|(good, _)| !good).map(|(_, p)| p).chain(bindings).collect()
    }

    /// The longest that a message can spend with this consumer before it is done or dead, its time
    /// in the queue apart: every attempt up to its limit, every wait between two attempts.
    #[must_use]
    pub fn worst_case(&self) -> Duration {
        let waits = self.retry_delay.saturating_mul(self.attempts.saturating_sub(1));
        self.handler_timeout.saturating_mul(self.attempts).saturating_add(waits)
    }

    /// The queues and bindings to declare.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let plain = |name: String| Queue { name, returns: None };
        let waiting = Queue {
            name: self.retry_queue(),
            returns: Some(Return { after: self.retry_delay, to: self.queue.clone() }),
        };
        let bindings = self
            .bindings
            .iter()
            .map(|pattern| Binding {
                exchange: EVENTS.to_owned(),
                pattern: pattern.clone(),
                queue: self.queue.clone(),
            })
            .collect();
        Topology { queues: vec![plain(self.queue.clone()), waiting, plain(self.dlq())], bindings }
    }
}

/// What a broker has to hold for one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The three queues: main, retry, dead letters.
    pub queues: Vec<Queue>,
    /// Which events reach the main queue. Only the main queue is ever bound.
    pub bindings: Vec<Binding>,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Where its messages go by themselves, if they do.
    pub returns: Option<Return>,
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

/// The waiting room of `queue`.
#[must_use]
pub fn retry_queue(queue: &str) -> String {
    format!("{queue}{RETRY_SUFFIX}")
}

/// The dead-letter queue of `queue`.
#[must_use]
pub fn dlq(queue: &str) -> String {
    format!("{queue}{DLQ_SUFFIX}")
}
