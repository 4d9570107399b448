//! What is missing at a broker, what is there alike, and what is there and different.
//!
//! A driver looks and tells; what follows from it is decided here. A queue of RabbitMQ keeps the
//! arguments of its first declaration, and declaring it with others is an error that closes the channel:
//! so a difference is shown with the way to the new value, and never tried.

use std::fmt;

use super::{Argument, Binding, QueuePolicy, Role, Topology, versioned};
use crate::message::capabilities::Capabilities;

/// Something at a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// An exchange of this name.
    Exchange(String),
    /// A queue of this name.
    Queue(String, Role),
    /// A binding.
    Binding(Binding),
}

impl Subject {
    /// `exchange`, `queue` or `binding`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Exchange(_) => "exchange",
            Self::Queue(..) => "queue",
            Self::Binding(_) => "binding",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange(name) | Self::Queue(name, _) => f.write_str(name),
            Self::Binding(binding) => {
                write!(f, "{} {} -> {}", binding.exchange, binding.pattern, binding.queue)
            }
        }
    }
}

/// One property that is not what the policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `x-message-ttl`, `durable` or `type`, say.
    pub key: String,
    /// What the policy asks for; `None` when it says nothing of this key.
    pub ours: Option<Argument>,
    /// What is there.
    pub theirs: Theirs,
}

/// A property as it is at the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Theirs {
    /// It has this value.
    Value(Argument),
    /// It is not set.
    NotSet,
    /// It has a value other than ours that the broker did not tell whole: its answers end after 255
    /// bytes, and long names fill them.
    CutOff,
}

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::NotSet => f.write_str("not set"),
            Self::CutOff => f.write_str("something else (the broker's answer was cut off)"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = self.ours.as_ref().map_or_else(|| "not set".to_owned(), ToString::to_string);
        write!(f, "{}: ours {ours}, there {}", self.key, self.theirs)
    }
}

/// What a driver saw at the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing of that name.
    Missing,
    /// It is there; with everything that differs, and its messages where they can be counted.
    There {
        /// What differs from the policy; empty when nothing does.
        differences: Vec<Difference>,
        /// Messages in it.
        depth: Option<u64>,
    },
    /// It can't be seen with the means at hand.
    Hidden,
}

/// How to get from what is there to what the policy says without losing a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Migration {
    /// The broker changes it in place when the plan is applied.
    InPlace,
    /// Name the delay as a tier: the new waiting room stands beside the old one, which empties itself.
    Tier {
        /// What to write into the policy file, `retry_tiers = ["10s"]`.
        setting: String,
        /// The new queue.
        queue: String,
    },
    /// A new version of the queue beside the old one, which is emptied and then deleted.
    Version {
        /// What to write into the policy file, `version = 2`.
        setting: String,
        /// The new queue.
        queue: String,
    },
    /// The exchange belongs to somebody else.
    Exchange,
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InPlace => f.write_str("changed in place by `mamparo topology apply`"),
            Self::Tier { setting, queue } => write!(
                f,
                "set {setting}: {queue} then stands beside the old waiting room, which empties itself"
            ),
            Self::Version { setting, queue } => write!(
                f,
                "set {setting}: {queue} then stands beside the old queue until that one is empty"
            ),
            Self::Exchange => f.write_str(
                "ask who made this exchange: events need a durable topic exchange of this name",
            ),
        }
    }
}

/// What applying the plan does with one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Makes it.
    Create,
    /// Nothing: it is as the policy says.
    Keep,
    /// Changes it where it is.
    Change(Vec<Difference>),
    /// Nothing, and that is a finding: it is there and can't be changed.
    Refuse(Vec<Difference>, Migration),
    /// Declares it again, because nobody can see whether it is there; doing so twice is harmless.
    Ensure,
}

/// One subject of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it is about.
    pub subject: Subject,
    /// What happens to it.
    pub action: Action,
    /// Messages in it, where it is a queue that is there.
    pub depth: Option<u64>,
}

/// The plan for one consumer's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its policy.
    pub policy: QueuePolicy,
    /// What the policy needs on this broker, in the order in which it is made.
    pub topology: Topology,
    /// One for each part of it, in the same order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plan for `policy` on a broker where `seen` tells what is there, part by part in the order of
    /// [`subjects`].
    #[must_use]
    pub fn new(policy: &QueuePolicy, broker: &Capabilities, seen: Vec<Seen>) -> Self {
        let topology = policy.topology(broker);
        let steps = subjects(&topology)
            .into_iter()
            .zip(seen.into_iter().chain(std::iter::repeat(Seen::Hidden)))
            .map(|(subject, seen)| step(policy, broker, subject, seen))
            .collect();
        Self { policy: policy.clone(), topology, steps }
    }

    /// Is there something that can't be changed? Then nothing of this queue is made: half of it would be
    /// worse than what is there.
    #[must_use]
    pub fn refused(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Refuse(..)))
    }

    /// Is the broker other than the policy says, as far as it can be seen?
    #[must_use]
    pub fn drifts(&self) -> bool {
        self.steps.iter().any(|step| match step.action {
            Action::Create | Action::Change(_) | Action::Refuse(..) => true,
            Action::Keep | Action::Ensure => false,
        })
    }
}

/// The parts of a topology in the order in which they are made.
#[must_use]
pub fn subjects(topology: &Topology) -> Vec<Subject> {
    let exchanges = topology.exchanges.iter().map(|e| Subject::Exchange(e.name.clone()));
    let queues = topology.queues.iter().map(|q| Subject::Queue(q.name.clone(), q.role));
    let bindings = topology.bindings.iter().cloned().map(Subject::Binding);
    exchanges.chain(queues).chain(bindings).collect()
}

fn step(policy: &QueuePolicy, broker: &Capabilities, subject: Subject, seen: Seen) -> Step {
    let (action, depth) = match seen {
        Seen::Missing => (Action::Create, None),
        Seen::Hidden => (Action::Ensure, None),
        Seen::There { differences, depth } if differences.is_empty() => (Action::Keep, depth),
        Seen::There { differences, depth } => {
            let action = match migration(policy, broker, &subject, &differences) {
                Migration::InPlace => Action::Change(differences),
                way
                @ (Migration::Tier { .. } | Migration::Version { .. } | Migration::Exchange) => {
                    Action::Refuse(differences, way)
                }
            };
            (action, depth)
        }
    };
    Step { subject, action, depth }
}

/// How to get to the policy's values for a subject that differs.
#[must_use]
pub fn migration(
    policy: &QueuePolicy,
    broker: &Capabilities,
    subject: &Subject,
    differences: &[Difference],
) -> Migration {
    if broker.mutable_queues {
        return Migration::InPlace;
    }
    let role = match subject {
        Subject::Queue(_, role) => *role,
        Subject::Exchange(_) | Subject::Binding(_) => return Migration::Exchange,
    };
    // Only the lesson's single waiting room has a name without its delay.
    if role == Role::Waiting
        && policy.retry_tiers.is_empty()
        && differences.iter().any(|difference| difference.key == "x-message-ttl")
    {
        let tiers = QueuePolicy { retry_tiers: vec![policy.retry_delay], ..policy.clone() };
        if let Some(wait) = tiers.waits().pop() {
            let delay = wait.queue.rsplit('.').next().unwrap_or_default();
            let setting = format!("retry_tiers = [\"{delay}\"] instead of retry_delay");
            return Migration::Tier { setting, queue: wait.queue };
        }
    }
    let next = policy.version.max(1).saturating_add(1);
    Migration::Version {
        setting: format!("version = {next}"),
        queue: versioned(policy.consumer(), next),
    }
}
