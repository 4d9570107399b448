//! How a guarded future can end besides its own way: one small type a kind of policy.
//!
//! No type is boxed or wants to be cloned, and each answers [`Classify`], so that policies stack in
//! any order: a refusal says nothing about the dependency's health and is never repeated.

use std::time::Duration;

use mamparo_core::call::deadline::is_verdict;
use mamparo_core::call::pipeline::{GiveUp, Refusal};
use mamparo_core::outcome::{Failure, Health, Repeat};
use mamparo_core::time::Readable;

use crate::Classify;
use crate::error::Again;

/// A guard's no: what stands behind it was not started by this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pass a guard: refused ({}){}", reason.slug(), Again(*retry_after))]
pub struct Refused {
    /// Which guard.
    pub reason: Refusal,
    /// When to come back, as far as the guard knows.
    pub retry_after: Option<Duration>,
}

impl Refused {
    pub(crate) const fn new(reason: Refusal, retry_after: Option<Duration>) -> Self {
        Self { reason, retry_after }
    }
}

impl Classify for Refused {
    fn classify(&self) -> Failure {
        Failure::NEUTRAL.with_retry_after(self.retry_after)
    }
}

/// What comes out of a policy that only lets through or refuses: breaker, bulkhead, rate limit,
/// throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuardError<E> {
    /// The guard refused.
    #[error(transparent)]
    Refused(Refused),
    /// The guarded future's own error.
    #[error(transparent)]
    Inner(E),
}

impl<E> GuardError<E> {
    /// Apart, so that the way of a success does not carry an error's bytes along.
    #[cold]
    #[inline(never)]
    pub(crate) fn inner(error: E) -> Self {
        Self::Inner(error)
    }

    /// The refusal, if it was one.
    #[must_use]
    pub const fn refused(&self) -> Option<Refused> {
        match self {
            Self::Refused(refused) => Some(*refused),
            Self::Inner(_) => None,
        }
    }

    /// The guarded future's own error, if it was one.
    #[must_use]
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Refused(_) => None,
            Self::Inner(error) => Some(error),
        }
    }
}

impl<E> GuardError<GuardError<E>> {
    /// Two guards, one behind the other, as one: the refusal says which of them it was.
    #[must_use]
    pub fn flatten(self) -> GuardError<E> {
        match self {
            Self::Refused(refused) => GuardError::Refused(refused),
            Self::Inner(inner) => inner,
        }
    }
}

impl<E: Classify> Classify for GuardError<E> {
    fn classify(&self) -> Failure {
        match self {
            Self::Refused(refused) => refused.classify(),
            Self::Inner(error) => error.classify(),
        }
    }
}

/// What comes out of a [`TimeoutPolicy`](crate::policy::TimeoutPolicy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError<E> {
    /// Too little was left of the caller's deadline to begin.
    #[error(transparent)]
    Refused(Refused),
    /// The future was dropped at its limit; nobody knows whether its work was done.
    #[error("get an answer within {}", Readable::wait(*after))]
    TimedOut {
        /// The time it had: the policy's limit, or what was left of the caller's deadline.
        after: Duration,
        /// The policy's limit.
        limit: Duration,
    },
    /// The future's own error.
    #[error(transparent)]
    Inner(E),
}

impl<E> TimeoutError<E> {
    /// Apart, so that the way of a success does not carry an error's bytes along.
    #[cold]
    #[inline(never)]
    pub(crate) fn inner(error: E) -> Self {
        Self::Inner(error)
    }
}

impl<E: Classify> Classify for TimeoutError<E> {
    fn classify(&self) -> Failure {
        match self {
            Self::Refused(refused) => refused.classify(),
            Self::TimedOut { after, limit } if !is_verdict(Some(*after), Some(*limit)) => {
                Failure { health: Health::Silent, ..Failure::UNKNOWN }
            }
            Self::TimedOut { .. } => Failure::UNKNOWN,
            Self::Inner(error) => error.classify(),
        }
    }
}

/// What comes out of a [`RetryPolicy`](crate::policy::RetryPolicy): the last attempt's error, and why
/// no other attempt followed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("get through: attempt {attempts} was the last ({})", gave_up.slug())]
pub struct RetryError<E> {
    /// The error of the last attempt.
    pub source: E,
    /// Attempts made, the first included.
    pub attempts: u32,
    /// Why no further attempt followed.
    pub gave_up: GiveUp,
    /// What kind of failure the whole is; an earlier attempt that may have run leaves it unknown
    /// ([`Failure::after`]).
    pub failure: Failure,
}

/// Of itself it says that an outer retry must not repeat it: retries happen in one layer only.
impl<E> Classify for RetryError<E> {
    fn classify(&self) -> Failure {
        Failure { repeat: Repeat::Never, ..self.failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Broken(Failure);

    impl Classify for Broken {
        fn classify(&self) -> Failure {
            self.0
        }
    }

    const FULL: Refused = Refused::new(Refusal::BulkheadFull, Some(Duration::from_secs(1)));

    #[test]
    fn policies_c14_a_refusal_is_silent_and_not_repeated_however_deep_it_lies() {
        let deep: GuardError<TimeoutError<GuardError<Broken>>> =
            GuardError::Inner(TimeoutError::Inner(GuardError::Refused(FULL)));
        let failure = deep.classify();
        assert_eq!((failure.health, failure.repeat), (Health::Silent, Repeat::Never));
        assert_eq!(failure.retry_after, FULL.retry_after);
    }

    #[test]
    fn a_refusal_says_why_and_when_to_come_back() {
        assert_eq!(FULL.to_string(), "pass a guard: refused (bulkhead-full), again in 1s");
        let open = Refused::new(Refusal::CircuitOpen, None);
        assert_eq!(open.to_string(), "pass a guard: refused (circuit-open)");
        let after = Duration::from_nanos(299_975_411);
        let cut = TimeoutError::<Refused>::TimedOut { after, limit: Duration::from_millis(300) };
        assert_eq!(cut.to_string(), "get an answer within 300ms");
    }

    #[test]
    fn two_guards_flatten_into_one() {
        let open = Refused::new(Refusal::CircuitOpen, None);
        let outer: GuardError<GuardError<()>> = GuardError::Refused(FULL);
        assert_eq!(outer.flatten().refused(), Some(FULL));
        assert_eq!(
            GuardError::Inner(GuardError::<()>::Refused(open)).flatten().refused(),
            Some(open)
        );
        assert_eq!(GuardError::Inner(GuardError::Inner(7)).flatten().into_inner(), Some(7));
    }

    #[test]
    fn a_cut_by_a_caller_in_a_hurry_is_no_verdict() {
        let cut = |after| {
            let limit = Duration::from_millis(700);
            TimeoutError::<Broken>::TimedOut { after: Duration::from_millis(after), limit }
        };
        assert_eq!(cut(700).classify(), Failure::UNKNOWN);
        assert_eq!(cut(349).classify().health, Health::Silent);
    }
}
