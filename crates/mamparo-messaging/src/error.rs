//! The one error of messaging.

use std::time::Duration;

use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::topology::plan::{Action, Plan};
use mamparo_core::message::topology::{PolicyProblem, Refusal};
use mamparo_store::StoreError;

/// Why a broker or a message operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessagingError {
    /// The address is none that this build can use.
    #[error("use broker {address:?}: {why}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The broker's file does not exist.
    #[error("open broker: there is no file {path:?}")]
    NoFile {
        /// The path.
        path: String,
    },
    /// There is no such queue.
    #[error("find queue {queue:?}: {}", listed(known.as_deref()))]
    UnknownQueue {
        /// What was asked for.
        queue: String,
        /// What there is; `None` when the broker can't tell.
        known: Option<Vec<String>>,
    },
    /// A queue's policy can't be declared.
    #[error("declare queue {queue:?}: {}", joined(problems))]
    Policy {
        /// The queue.
        queue: String,
        /// Everything that is wrong.
        problems: Vec<PolicyProblem>,
    },
    /// The broker, or the way to it, ended what was being done.
    #[error("{operation}: {closure}")]
    Broker {
        /// What was being done.
        operation: String,
        /// How it ended, what that means and what helps.
        closure: Closure,
    },
    /// A queue's policy asks for what no broker is made to hold.
    #[error("declare queue {queue:?}: {}", reasons(refusals))]
    Refused {
        /// The queue.
        queue: String,
        /// Everything that is refused, each with its reason.
        refusals: Vec<Refusal>,
    },
    /// Something is there with other arguments, which can't be changed.
    #[error("declare queue {:?}: the broker has it otherwise: {}", plan.policy.queue, differing(plan))]
    Mismatch {
        /// What is there and what differs.
        plan: Box<Plan>,
    },
    /// The broker's store failed.
    #[error("{operation}")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// What the store said.
        #[source]
        source: StoreError,
    },
    /// The database has said nothing for longer than it may take: its host has vanished, or the way
    /// to it. What was asked for has happened or not.
    #[error("{operation}: the database has not answered for {after:?}")]
    Silent {
        /// What was being done.
        operation: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// A body could not be written as JSON.
    #[error("encode the body of a {kind:?} message")]
    Encode {
        /// The event type.
        kind: String,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
    /// A dead letter is thrown away only by somebody and for a reason.
    #[error("discard: {0} must not be empty")]
    Unsigned(&'static str),
    /// A message's task ended without an outcome: a bug of this crate.
    #[error("handle a message: its task was lost")]
    LostTask,
}

impl MessagingError {
    /// Is something there with other arguments than ours?
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        let told = matches!(self, Self::Broker { closure, .. } if closure.kind == Kind::Mismatch);
        told || matches!(self, Self::Mismatch { .. })
    }

    /// Wraps a store error with what was being done.
    pub(crate) fn store(operation: &'static str) -> impl FnOnce(StoreError) -> Self {
        move |source| Self::Store { operation, source }
    }
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

fn reasons(refusals: &[Refusal]) -> String {
    let reason =
        |refusal: &Refusal| format!("{refusal}: {}; instead, {}", refusal.why(), refusal.way_out());
    refusals.iter().map(reason).collect::<Vec<_>>().join("; ")
}

/// What differs, the way to each new value, and where to read more.
fn differing(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        if let Action::Refuse(differences, way) = &step.action {
            let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
            let (subject, differences) = (&step.subject, differences.join(", "));
            text.push_str(&format!("{subject} ({differences}; {way}); "));
        }
    }
    text.push_str("see `mamparo topology plan` and docs/runbooks/topology.md");
    text
}

fn listed(known: Option<&[String]>) -> String {
    match known {
        None => "the broker has none of this name in this virtual host".to_owned(),
        Some([]) => "the broker has no queues".to_owned(),
        Some(names) => format!("the broker has {}", names.join(", ")),
    }
}

fn joined(problems: &[PolicyProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
