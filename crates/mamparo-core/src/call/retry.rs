//! May a failed attempt be repeated, and when?

use std::time::Duration;

use crate::backoff::Backoff;
use crate::call::retry_budget::{RetryBudget, Withdrawal};
use crate::limits::{ATTEMPT_MIN_USABLE, RETRY_AFTER_MAX};
use crate::outcome::{Failure, Repeat, Repeatable};
use crate::rng::Rng;

/// Why no further attempt was made after a failed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GiveUp {
    /// The failure is permanent, or was never the dependency's.
    Permanent,
    /// It could pass, but whoever reported it says that it must not be repeated: the server asked
    /// for that, or a layer below has repeated it already.
    ToldNotTo,
    /// The body can be sent only once, and it was.
    BodyNotReplayable,
    /// It may have run, and doing it twice is not safe.
    MayHaveRun,
    /// All attempts are spent.
    AttemptsSpent,
    /// What is left of the deadline is less than the wait.
    DeadlineTooNear,
    /// The dependency has got its share of retries and hedges.
    BudgetSpent,
    /// The circuit opened in between.
    CircuitOpen,
}

impl GiveUp {
    /// Every reason there is, for tables and counters.
    pub const ALL: [Self; 8] = [
        Self::Permanent,
        Self::ToldNotTo,
        Self::BodyNotReplayable,
        Self::MayHaveRun,
        Self::AttemptsSpent,
        Self::DeadlineTooNear,
        Self::BudgetSpent,
        Self::CircuitOpen,
    ];

    /// The stable code in logs and error texts.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::ToldNotTo => "told-not-to",
            Self::BodyNotReplayable => "body-not-replayable",
            Self::MayHaveRun => "may-have-run",
            Self::AttemptsSpent => "attempts-spent",
            Self::DeadlineTooNear => "deadline-too-near",
            Self::BudgetSpent => "budget-spent",
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

/// An attempt that has failed: what [`Retry::ask`] has to know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Its number, counted from one.
    pub number: u32,
    /// The wait before it; zero before the first.
    pub waited: Duration,
    /// How it failed.
    pub failure: Failure,
    /// What the caller vouches for.
    pub repeatable: Repeatable,
    /// What remains of the deadline; `None` without one.
    pub left: Option<Duration>,
}

/// What follows a failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Another attempt after this wait.
    Again {
        /// Never longer than what is left of the deadline.
        after: Duration,
        /// What it costs, to be given back if the attempt is not sent; `None` without a budget.
        paid: Option<Withdrawal>,
    },
    /// None, and why.
    GiveUp(GiveUp),
}

impl Retry {
    /// One attempt and no more.
    pub const NONE: Self = Self {
        attempts: 1,
        backoff: Backoff::new(Duration::from_millis(100), 2.0, Duration::from_secs(2)),
    };

    /// For a database transaction that was rolled back by a deadlock: 3 attempts, base 50 ms.
    pub const TRANSACTION: Self = Self {
        attempts: 3,
        backoff: Backoff::new(Duration::from_millis(50), 2.0, Duration::from_secs(2)),
    };

    /// What follows the failed attempt?
    ///
    /// The checks run from "should not" to "cannot afford". The budget comes last, so that only an
    /// attempt that all else allows takes from it; it is taken now and not when the wait is over,
    /// because a crowd that waits is a load that is on its way.
    pub fn ask(
        &self,
        failed: &FailedAttempt,
        budget: Option<&RetryBudget>,
        rng: &mut impl Rng,
    ) -> Decision {
        if let Some(reason) = self.forbids(failed) {
            return Decision::GiveUp(reason);
        }
        // A server that names a time knows better than our curve, but it can only lengthen the wait.
        let asked = failed.failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let after = self.backoff.delay(failed.number, failed.waited, rng).max(asked);
        // After the wait there must be enough left for an attempt to be worth starting.
        let needed = after.saturating_add(ATTEMPT_MIN_USABLE);
        if failed.left.is_some_and(|left| needed >= left) {
            return Decision::GiveUp(GiveUp::DeadlineTooNear);
        }
        match budget.map(RetryBudget::withdraw) {
            Some(None) => Decision::GiveUp(GiveUp::BudgetSpent),
            paid => Decision::Again { after, paid: paid.flatten() },
        }
    }

    /// Why no attempt may follow, whatever time and budget are left.
    fn forbids(&self, failed: &FailedAttempt) -> Option<GiveUp> {
        let attempts = match failed.failure.repeat {
            Repeat::Never if failed.failure.is_forbidden() => return Some(GiveUp::ToldNotTo),
            Repeat::Never => return Some(GiveUp::Permanent),
            Repeat::Once => self.attempts.min(2),
            Repeat::Freely => self.attempts,
        };
        if failed.repeatable == Repeatable::OneShot {
            return Some(GiveUp::BodyNotReplayable);
        }
        if !failed.repeatable.safe_after(failed.failure.sent) {
            return Some(GiveUp::MayHaveRun);
        }
        (failed.number >= attempts).then_some(GiveUp::AttemptsSpent)
    }
}
