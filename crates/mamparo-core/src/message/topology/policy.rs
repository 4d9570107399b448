//! What one consumer wants of its queue.

use std::time::Duration;

use super::{
    ARCHIVE_SUFFIX, DELIVERY_LIMIT_MAX, DLQ_SUFFIX, MAX_LENGTH_MAX, PREFETCH_MAX,
    QUEUE_NAME_BYTES_MAX, RETRY_DELAY_MAX, RETRY_SUFFIX, RETRY_TIERS_MAX, VERSION_MAX, dlq,
    retry_queue, versioned,
};
use crate::limits::ATTEMPTS_MAX;
use crate::message::capabilities::Capabilities;
use crate::message::waiting::SPREAD_PERCENT;

/// Where a message waits between two attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitingRoom {
    /// In queues of the broker, one a delay, that give it back after their time.
    #[default]
    Tiers,
    /// In a row of the service's database. The broker gets no waiting room.
    Parked,
    /// In its own queue, by the broker's own delayed retry (RabbitMQ 4.3).
    Broker,
}

impl WaitingRoom {
    /// The word in `mamparo.toml`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tiers => "tiers",
            Self::Parked => "parked",
            Self::Broker => "broker",
        }
    }
}

/// What order of messages a consumer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Messages of one key are handled one at a time and in their order, within each process. Over the
    /// death of a process RabbitMQ may hand out a key's later messages first: the next process subscribes
    /// before the broker has noticed that the old connection is dead.
    #[default]
    Key,
    /// None: as many at once as there are workers, whatever their keys.
    None,
    /// As [`Order::Key`], over the death of a process too: RabbitMQ hands messages to one consumer at a
    /// time (`x-single-active-consumer`) and to the next one only after it has taken the old one's back.
    /// One process works, the others stand by. Needs [`WaitingRoom::Parked`]: a message that waits in a
    /// queue of the broker forgets, when its process dies, which others have to wait for it.
    Strict,
}

impl Order {
    /// The word in `mamparo.toml`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::None => "none",
            Self::Strict => "strict",
        }
    }
}

/// How RabbitMQ keeps the main queue. Waiting rooms and dead-letter queues are always quorum queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueType {
    /// Replicated, with a delivery limit.
    #[default]
    Quorum,
    /// On one node and without delivery limit: a message that kills its process comes back for ever
    /// unless the consumer's attempt rows stop it.
    Classic,
}

impl QueueType {
    /// RabbitMQ's word, as in `x-queue-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// A waiting room and how long messages stay in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The waiting room's queue, `orders.saga.retry` or `orders.saga.retry.5s`.
    pub queue: String,
    /// How long.
    pub delay: Duration,
}

/// One consumer's queue and its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The queue's name at the broker, `orders.saga` say, or `orders.saga.v2` in version 2.
    pub queue: String,
    /// Who is asked when messages lie in the dead-letter queue. Required.
    pub owner: String,
    /// Messages held at once, and handled at once unless they share a key. 1 to 1000, default 10.
    pub prefetch: u32,
    /// Handlers that run at once, of the messages in hand. 1 to `prefetch`, default as many.
    pub workers: Option<u32>,
    /// Attempts before the dead-letter queue, the first included. 1 to 100, default 5.
    pub attempts: u32,
    /// How long a message waits between attempts. 1 ms to 24 h, default 30 s.
    pub retry_delay: Duration,
    /// Growing delays, one queue each, instead of `retry_delay`: 5 s, 30 s, 2 min and 10 min, say.
    /// Up to 10 of them, each 1 ms to 24 h and longer than the one before. Default none.
    pub retry_tiers: Vec<Duration>,
    /// Where messages wait between attempts. Default [`WaitingRoom::Tiers`].
    pub waiting_room: WaitingRoom,
    /// What order of messages is kept. Default [`Order::Key`].
    pub order: Order,
    /// How long the handler may take for one message. Over zero, default 30 s.
    pub handler_timeout: Duration,
    /// How RabbitMQ keeps the main queue. Default [`QueueType::Quorum`].
    pub queue_type: QueueType,
    /// Times that a quorum queue hands one message out again before it moves it to the dead-letter
    /// queue by itself: the net under the attempts, for a consumer that dies before it can count. At
    /// least `attempts`, up to 10000, default 100.
    ///
    /// A number of its own and no multiple of `attempts` or `prefetch`: it is fixed when the queue is
    /// made, and they are tuned later. Far above `attempts`, because everything in hand is handed out
    /// again when one message kills the process.
    pub delivery_limit: u32,
    /// Most messages in each waiting room and in the dead-letter queue. 1 to 10 million, default
    /// 100000. A full one refuses what a consumer puts there, so that the original stays where it is.
    pub max_length: u32,
    /// Which version of the queue `queue` names. 1 to 999, default 1; see [`versioned`](Self::versioned).
    pub version: u32,
    /// Event types that the queue receives: topic patterns on the exchange [`EVENTS`](super::EVENTS).
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
    /// None, or more than the prefetch.
    Workers,
    /// Outside 1 to 100.
    Attempts,
    /// Outside 1 ms to 24 h.
    RetryDelay,
    /// Too many tiers, one outside 1 ms to 24 h, or one that is not longer than the one before.
    RetryTiers,
    /// Strict, and messages wait in queues of the broker.
    Order,
    /// Zero.
    HandlerTimeout,
    /// Less than the attempts, or more than 10000.
    DeliveryLimit,
    /// Outside 1 to 10 million.
    MaxLength,
    /// Outside 1 to 999, or not the version that the name ends in.
    Version,
    /// A binding is empty or has an empty word, `order..created` say.
    Binding(String),
}

impl std::fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name => f.write_str("name: 1 to 200 letters, digits, '.', '_' or '-'"),
            Self::ReservedSuffix => write!(
                f,
                "name: must not end in {RETRY_SUFFIX}, {DLQ_SUFFIX} or {ARCHIVE_SUFFIX}, nor hold \
                 {RETRY_SUFFIX}. \
                 in the middle"
            ),
            Self::Owner => f.write_str("owner: every queue has one, it is who gets the alert"),
            Self::Prefetch => f.write_str("prefetch: 1 to 1000"),
            Self::Workers => f.write_str("workers: 1 to prefetch"),
            Self::Attempts => f.write_str("attempts: 1 to 100"),
            Self::RetryDelay => f.write_str("retry_delay: 1 ms to 24 h"),
            Self::RetryTiers => f.write_str(
                "retry_tiers: up to 10 delays of 1 ms to 24 h, each longer than the one before",
            ),
            Self::Order => f.write_str(
                "order: \"strict\" needs waiting_room = \"parked\", or a process that dies forgets who \
                 waits for a message in the broker's waiting room",
            ),
            Self::HandlerTimeout => f.write_str("handler_timeout: more than zero"),
            Self::DeliveryLimit => f.write_str("delivery_limit: from attempts to 10000"),
            Self::MaxLength => f.write_str("max_length: 1 to 10000000"),
            Self::Version => f.write_str("version: 1 to 999, and the name ends in it from 2 on"),
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
            workers: None,
            attempts: 5,
            retry_delay: Duration::from_secs(30),
            retry_tiers: Vec::new(),
            waiting_room: WaitingRoom::default(),
            order: Order::default(),
            handler_timeout: Duration::from_secs(30),
            queue_type: QueueType::default(),
            delivery_limit: 100,
            max_length: 100_000,
            version: 1,
            bindings: Vec::new(),
        }
    }

    /// This policy with one more event type (a topic pattern).
    #[must_use]
    pub fn bind(mut self, pattern: impl Into<String>) -> Self {
        self.bindings.push(pattern.into());
        self
    }

    /// This policy for version `version` of its queue: `orders.saga` is then called `orders.saga.v2`.
    /// What a queue is made with can't be changed later on RabbitMQ; a new version stands beside the
    /// old one until that one is empty.
    #[must_use]
    pub fn versioned(mut self, version: u32) -> Self {
        self.queue = versioned(self.consumer(), version);
        self.version = version;
        self
    }

    /// The consumer's name whatever the version of its queue: who has handled a message, and how often
    /// it was tried. A message that reaches two versions is one message.
    #[must_use]
    pub fn consumer(&self) -> &str {
        if self.version < 2 {
            return &self.queue;
        }
        self.queue.strip_suffix(&format!(".v{}", self.version)).unwrap_or(&self.queue)
    }

    /// The waiting room's name when there is one delay only.
    #[must_use]
    pub fn retry_queue(&self) -> String {
        retry_queue(&self.queue)
    }

    /// The dead-letter queue's name.
    #[must_use]
    pub fn dlq(&self) -> String {
        dlq(&self.queue)
    }

    /// The delays between attempts, shortest first; never empty.
    #[must_use]
    pub fn delays(&self) -> &[Duration] {
        if self.retry_tiers.is_empty() {
            std::slice::from_ref(&self.retry_delay)
        } else {
            &self.retry_tiers
        }
    }

    /// The waiting rooms that [`WaitingRoom::Tiers`] needs, shortest delay first: `<queue>.retry` for
    /// one `retry_delay`, `<queue>.retry.5s` and so on for `retry_tiers`. A tier's name holds its delay,
    /// so that another delay is another queue and never the same one with another argument.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        if self.retry_tiers.is_empty() {
            return vec![Wait { queue: self.retry_queue(), delay: self.retry_delay }];
        }
        let tier = |delay: &Duration| Wait {
            queue: format!("{}.{}", self.retry_queue(), short(*delay)),
            delay: *delay,
        };
        self.retry_tiers.iter().map(tier).collect()
    }

    /// Handlers that run at once.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers.unwrap_or(self.prefetch)
    }

    /// Where messages wait on a broker of these capabilities: what the policy says, or
    /// [`WaitingRoom::Tiers`] where the broker has no delayed retry of its own.
    #[must_use]
    pub fn room_on(&self, broker: &Capabilities) -> WaitingRoom {
        match self.waiting_room {
            WaitingRoom::Broker if !broker.delayed_retry => WaitingRoom::Tiers,
            room @ (WaitingRoom::Tiers | WaitingRoom::Parked | WaitingRoom::Broker) => room,
        }
    }

    /// Everything that is wrong, all at once; empty when the policy can be declared.
    #[must_use]
    pub fn problems(&self) -> Vec<PolicyProblem> {
        let legal = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let name = !self.queue.is_empty()
            && self.queue.len() <= QUEUE_NAME_BYTES_MAX
            && self.queue.chars().all(legal);
        let reserved = self.queue.ends_with(RETRY_SUFFIX)
            || self.queue.ends_with(DLQ_SUFFIX)
            || self.queue.ends_with(ARCHIVE_SUFFIX)
            || self.queue.contains(&format!("{RETRY_SUFFIX}."));
        let possible =
            |delay: &Duration| (Duration::from_millis(1)..=RETRY_DELAY_MAX).contains(delay);
        let tiers = self.retry_tiers.len() <= RETRY_TIERS_MAX
            && self.retry_tiers.iter().all(possible)
            && self.retry_tiers.is_sorted_by(|one, next| one < next);
        let workers = self.workers.is_none_or(|workers| (1..=self.prefetch).contains(&workers));
        let ordered = self.order != Order::Strict || self.waiting_room == WaitingRoom::Parked;
        let named = self.version < 2 || self.queue.ends_with(&format!(".v{}", self.version));
        let limit = self.attempts.min(ATTEMPTS_MAX)..=DELIVERY_LIMIT_MAX;
        let checks = [
            (name, PolicyProblem::Name),
            (!reserved, PolicyProblem::ReservedSuffix),
            (!self.owner.trim().is_empty(), PolicyProblem::Owner),
            ((1..=PREFETCH_MAX).contains(&self.prefetch), PolicyProblem::Prefetch),
            (workers, PolicyProblem::Workers),
            ((1..=ATTEMPTS_MAX).contains(&self.attempts), PolicyProblem::Attempts),
            (possible(&self.retry_delay), PolicyProblem::RetryDelay),
            (tiers, PolicyProblem::RetryTiers),
            (ordered, PolicyProblem::Order),
            (!self.handler_timeout.is_zero(), PolicyProblem::HandlerTimeout),
            (limit.contains(&self.delivery_limit), PolicyProblem::DeliveryLimit),
            ((1..=MAX_LENGTH_MAX).contains(&self.max_length), PolicyProblem::MaxLength),
            ((1..=VERSION_MAX).contains(&self.version) && named, PolicyProblem::Version),
        ];
        let bindings = self
            .bindings
            .iter()
            .filter(|pattern| pattern.split('.').any(str::is_empty))
            .map(|pattern| PolicyProblem::Binding(pattern.clone()));
        checks.into_iter().filter(|(good, _)| !good).map(|(_, p)| p).chain(bindings).collect()
    }

    /// The least wait after failed attempt `attempt` (counted from one) in `room`. With queues or rows
    /// of ours it is the n-th delay, the last one from there on. The broker's own delay grows by its
    /// first one with each return, up to the last one.
    #[must_use]
    pub fn pause(&self, room: WaitingRoom, attempt: u32) -> Duration {
        let delays = self.delays();
        let first = delays.first().copied().unwrap_or(self.retry_delay);
        let last = delays.last().copied().unwrap_or(self.retry_delay);
        match room {
            WaitingRoom::Broker => first.saturating_mul(attempt.max(1)).min(last),
            WaitingRoom::Tiers | WaitingRoom::Parked => {
                let nth = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
                delays.get(nth).copied().unwrap_or(last)
            }
        }
    }

    /// Is a wait in `room` longer by chance? The broker's timer knows none, and what comes back before
    /// its time would be given back once more.
    #[must_use]
    pub fn spreads(&self, room: WaitingRoom) -> bool {
        match room {
            WaitingRoom::Tiers => self.delays().len() > 1,
            WaitingRoom::Parked => true,
            WaitingRoom::Broker => false,
        }
    }

    /// The longest that a message can spend with this consumer before it is done or dead, its time
    /// in the queue apart: every attempt up to its limit, every [`pause`](Self::pause) between two
    /// attempts. With [`WaitingRoom::Broker`] the longer of the two ways in which it may come to wait.
    /// Waits that are spread count with their spread: 20 % more where there are several tiers, and in
    /// the parked room.
    #[must_use]
    pub fn worst_case(&self) -> Duration {
        let waits = |room: WaitingRoom| {
            let waits = (1..self.attempts)
                .fold(Duration::ZERO, |sum, attempt| sum.saturating_add(self.pause(room, attempt)));
            let more =
                if self.spreads(room) { waits / 100 * SPREAD_PERCENT } else { Duration::ZERO };
            waits.saturating_add(more)
        };
        let waits = match self.waiting_room {
            room @ (WaitingRoom::Tiers | WaitingRoom::Parked) => waits(room),
            WaitingRoom::Broker => waits(WaitingRoom::Broker).max(waits(WaitingRoom::Tiers)),
        };
        self.handler_timeout.saturating_mul(self.attempts).saturating_add(waits)
    }
}

/// A delay in a queue's name, in the largest unit that keeps it whole: `500ms`, `30s`, `2m`, `1h`.
fn short(delay: Duration) -> String {
    let millis = delay.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let whole = units.into_iter().find(|(_, size)| millis > 0 && millis.is_multiple_of(*size));
    whole.map_or_else(|| format!("{millis}ms"), |(name, size)| format!("{}{name}", millis / size))
}
