//! The one error of messaging.

use mamparo_core::message::closure::Closure;
use mamparo_core::message::topology::PolicyProblem;
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
    /// The broker's store failed.
    #[error("{operation}")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// What the store said.
        #[source]
        source: StoreError,
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
