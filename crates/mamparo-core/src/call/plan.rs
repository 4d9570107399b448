//! What stands in front of a dependency, as plain data.

use std::fmt;
use std::time::Duration;

use crate::call::arithmetic;
use crate::call::breaker::BreakerConfig;
use crate::call::bulkhead::BulkheadConfig;
pub use crate::call::mistake::Mistake;
use crate::call::mistake::Mistakes;
use crate::call::rate_limit::RateLimitConfig;
use crate::call::retry::Retry;
use crate::limits;

/// The policies of one dependency. `Display` prints every value, defaults included.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The dependency's name, as in logs and metrics.
    pub dependency: String,
    /// The calling service's name, as in metrics. Default empty.
    pub service: String,
    /// Longest that one attempt may take. Default none: the caller's deadline alone limits it.
    pub attempt_timeout: Option<Duration>,
    /// Longest that the whole call may take, queue and waits included. Default none.
    pub budget: Option<Duration>,
    /// Attempts and waits. Default one attempt.
    pub retry: Retry,
    /// Default none.
    pub breaker: Option<BreakerConfig>,
    /// Default none.
    pub bulkhead: Option<BulkheadConfig>,
    /// Default none.
    pub rate_limit: Option<RateLimitConfig>,
}

impl Plan {
    /// A plan without any policy.
    #[must_use]
    pub fn new(dependency: impl Into<String>) -> Self {
        Self {
            dependency: dependency.into(),
            service: String::new(),
            attempt_timeout: None,
            budget: None,
            retry: Retry::NONE,
            breaker: None,
            bulkhead: None,
            rate_limit: None,
        }
    }

    /// All mistakes, not just the first. Empty when the plan is sound.
    #[must_use]
    pub fn validate(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        mistakes.unless(!self.dependency.is_empty(), "name", || "must not be empty".into());
        self.check_times(&mut mistakes);
        self.check_retry(&mut mistakes);
        if let Some(breaker) = &self.breaker {
            breaker.check(&mut mistakes);
        }
        if let Some(bulkhead) = &self.bulkhead {
            bulkhead.check(&mut mistakes);
        }
        if let Some(limit) = &self.rate_limit {
            limit.check(&mut mistakes);
        }
        mistakes.into_vec()
    }

    fn check_times(&self, mistakes: &mut Mistakes) {
        for (key, time) in [("attempt_timeout", self.attempt_timeout), ("budget", self.budget)] {
            let least = limits::ATTEMPT_MIN_USABLE;
            mistakes.unless(time.is_none_or(|time| time > least), key, || {
                format!("must be more than {least:?}, the least that an attempt can use")
            });
        }
        if let (Some(timeout), Some(budget)) = (self.attempt_timeout, self.budget)
            && let Err(error) =
                arithmetic::fits(self.retry.attempts, timeout, &self.retry.backoff, budget)
        {
            mistakes.add("budget", error.to_string());
        }
    }

    fn check_retry(&self, mistakes: &mut Mistakes) {
        let Retry { attempts, backoff } = self.retry;
        mistakes.range("retry.attempts", attempts, 1, limits::ATTEMPTS_MAX);
        mistakes.unless(
            backoff.factor.is_finite() && backoff.factor >= 1.0,
            "retry.factor",
            || format!("is {}, must be a number of at least 1", backoff.factor),
        );
        mistakes.unless(backoff.base <= backoff.cap, "retry.cap", || {
            format!("is {:?}, less than the base of {:?}", backoff.cap, backoff.base)
        });
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dependency {}", self.dependency)?;
        match self.attempt_timeout {
            Some(timeout) => writeln!(f, "  attempt timeout  {timeout:?}")?,
            None => writeln!(f, "  attempt timeout  none (the caller's deadline)")?,
        }
        match self.budget {
            Some(budget) => writeln!(f, "  budget           {budget:?}")?,
            None => writeln!(f, "  budget           none (the caller's deadline)")?,
        }
        let Retry { attempts, backoff } = self.retry;
        match attempts {
            0 | 1 => writeln!(f, "  retry            none")?,
            _ => writeln!(
                f,
                "  retry            {attempts} attempts, waits up to {:?} × {} capped at {:?}",
                backoff.base, backoff.factor, backoff.cap
            )?,
        }
        match &self.breaker {
            Some(breaker) => writeln!(f, "  breaker          {breaker}")?,
            None => writeln!(f, "  breaker          none")?,
        }
        match self.bulkhead {
            Some(bulkhead) => writeln!(f, "  bulkhead         {bulkhead}")?,
            None => writeln!(f, "  bulkhead         none")?,
        }
        match self.rate_limit {
            Some(RateLimitConfig { requests, per, burst }) => {
                writeln!(f, "  rate limit       {requests} per {per:?}, {burst} at once")
            }
            None => writeln!(f, "  rate limit       none"),
        }
    }
}
