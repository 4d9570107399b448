//! The one error of a call: which guard refused, why, and when to return.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::pipeline::{GiveUp, Misfit, Refusal};
use mamparo_core::outcome::{Failure, Kind, Repeat};
use mamparo_core::time::Readable;

use crate::Classify;

/// Why a call of a dependency gave no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// A guard refused before the first attempt: it did not run.
    #[error("call {dependency}: refused ({}){}", reason.slug(), Again(*retry_after))]
    Refused {
        /// The dependency's name.
        dependency: Arc<str>,
        /// Which guard refused.
        reason: Refusal,
        /// When to come back, as far as the guard knows.
        retry_after: Option<Duration>,
        /// Always 0: after an attempt, its failure is the news and the guard only the reason to stop.
        attempts: u32,
    },
    /// The last attempt did not answer in time; nobody knows whether it ran.
    #[error("call {dependency}: no answer within {} (attempt {attempts}, {}){}",
        Readable::wait(*after), gave_up.slug(), Again(*retry_after))]
    TimedOut {
        /// The dependency's name.
        dependency: Arc<str>,
        /// How long the last attempt waited.
        after: Duration,
        /// Attempts made, the first included.
        attempts: u32,
        /// Why no further attempt followed.
        gave_up: GiveUp,
        /// What is left of the open time, when the circuit is open by now.
        retry_after: Option<Duration>,
    },
    /// The last attempt failed with an answer or a transport error.
    #[error("call {dependency}: attempt {attempts} failed ({}){}",
        gave_up.slug(), Again(failure.retry_after))]
    Failed {
        /// The dependency's name.
        dependency: Arc<str>,
        /// What the last attempt said.
        source: E,
        /// What kind of failure the whole call is: what the last attempt said, except that an
        /// earlier attempt that may have run leaves the call unknown ([`Failure::after`]). When the
        /// circuit is open by now, `retry_after` is at least what is left of the open time.
        failure: Failure,
        /// Attempts made, the first included.
        attempts: u32,
        /// Why no further attempt followed.
        gave_up: GiveUp,
    },
    /// The machine was told something that does not fit its state: a bug of this crate, reported
    /// instead of hidden.
    #[error("call {dependency}: its steps came out of order")]
    Misfit {
        /// The dependency's name.
        dependency: Arc<str>,
        /// State and event.
        source: Misfit,
        /// Attempts made before.
        attempts: u32,
    },
}

/// When to come back, where that is known: the end of an error's text.
pub(crate) struct Again(pub(crate) Option<Duration>);

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |after| write!(f, ", again in {}", Readable::wait(after)))
    }
}

impl<E> CallError<E> {
    /// Did anything leave the process? Decides whether "it did not run" is proven.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        match self {
            Self::Refused { attempts, .. }
            | Self::TimedOut { attempts, .. }
            | Self::Failed { attempts, .. }
            | Self::Misfit { attempts, .. } => *attempts,
        }
    }

    /// What the last attempt itself said, where it said anything.
    #[must_use]
    pub fn cause(&self) -> Option<&E> {
        match self {
            Self::Failed { source, .. } => Some(source),
            Self::Refused { .. } | Self::TimedOut { .. } | Self::Misfit { .. } => None,
        }
    }

    /// When to come back, where a guard or the dependency said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::TimedOut { retry_after, .. } => *retry_after,
            Self::Failed { failure, .. } => failure.retry_after,
            Self::Misfit { .. } => None,
        }
    }

    /// Will the same call never work, however often it is made? A 500 is not in that: it may be a
    /// bug or a hiccup, and whoever has time (a message in a retry queue) may find out.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Failed { failure, .. }
            if failure.kind == Kind::Permanent && failure.repeat == Repeat::Never)
    }
}

/// A finished call says of itself that it must not be retried by an outer layer: retries happen in
/// one layer only, and a refusal of our own guards is no verdict on anybody's health.
impl<E> Classify for CallError<E> {
    fn classify(&self) -> Failure {
        match self {
            Self::Refused { retry_after, .. } => Failure::NEUTRAL.with_retry_after(*retry_after),
            Self::TimedOut { .. } | Self::Misfit { .. } => Failure {
                retry_after: self.retry_after(),
                repeat: Repeat::Never,
                ..Failure::UNKNOWN
            },
            Self::Failed { failure, .. } => Failure { repeat: Repeat::Never, ..*failure },
        }
    }

    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}
