//! May a failed attempt be repeated, and when?

use std::time::Duration;

use crate::backoff::Backoff;
use crate::limits::{ATTEMPT_MIN_USABLE, RETRY_AFTER_MAX};
use crate::outcome::{Failure, Repeat, Repeatable};
use crate::rng::Rng;

/// Why no further attempt was made after a failed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GiveUp {
    /// The failure is permanent, or says of itself that it must not be repeated.
    Permanent,
    /// It may have run, and doing it twice is not safe.
    MayHaveRun,
    /// All attempts are spent.
    AttemptsSpent,
    /// What is left of the deadline is less than the wait.
    DeadlineTooNear,
    /// The circuit opened in between.
    CircuitOpen,
}

impl GiveUp {
    /// The stable code in logs and error texts.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::MayHaveRun => "may-have-run",
            Self::AttemptsSpent => "attempts-spent",
            Self::DeadlineTooNear => "deadline-too-near",
            Self::CircuitOpen => "circuit-open",
        }
    }
}

/// How often and how far apart. Default: 3 attempts with the default [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts, the first included; at least 1. Default 3.
    pub attempts: u32,
    /// The waits between them.
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff: Backoff::default() }
    }
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Another attempt after this wait.
    Again {
        /// Never longer than what is left of the deadline.
        after: Duration,
    },
    /// None, and why.
    GiveUp(GiveUp),
}

impl Retry {
    /// One attempt and no more.
    pub const NONE: Self = Self {
        attempts: 1,
        backoff: Backoff {
            base: Duration::from_millis(100),
            factor: 2.0,
            cap: Duration::from_secs(2),
        },
    };

    /// For a database transaction that was rolled back by a deadlock: 3 attempts, base 50 ms.
    pub const TRANSACTION: Self = Self {
        attempts: 3,
        backoff: Backoff {
            base: Duration::from_millis(50),
            factor: 2.0,
            cap: Duration::from_secs(2),
        },
    };

    /// What follows failed attempt number `attempt` (counted from one)?
    ///
    /// `left` is what remains of the deadline, `None` without one. The checks run from "should not"
    /// to "cannot afford".
    pub fn ask(
        &self,
        attempt: u32,
        failure: &Failure,
        repeatable: Repeatable,
        left: Option<Duration>,
        rng: &mut impl Rng,
    ) -> Decision {
        let attempts = match failure.repeat {
            Repeat::Never => return Decision::GiveUp(GiveUp::Permanent),
            Repeat::Once => self.attempts.min(2),
            Repeat::Freely => self.attempts,
        };
        if !repeatable.safe_after(failure.sent) {
            return Decision::GiveUp(GiveUp::MayHaveRun);
        }
        if attempt >= attempts {
            return Decision::GiveUp(GiveUp::AttemptsSpent);
        }
        // A server that names a time knows better than our curve, but it can only lengthen the wait.
        let asked = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let after = self.backoff.delay(attempt, rng).max(asked);
        // After the wait there must be enough left for an attempt to be worth starting.
        let needed = after.saturating_add(ATTEMPT_MIN_USABLE);
        if left.is_some_and(|left| needed >= left) {
            return Decision::GiveUp(GiveUp::DeadlineTooNear);
        }
        Decision::Again { after }
    }
}
