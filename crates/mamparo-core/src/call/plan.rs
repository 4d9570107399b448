//! What stands in front of a dependency, as plain data.

mod check;
mod show;

use std::time::Duration;

use crate::call::adaptive::AdaptiveConfig;
use crate::call::breaker::BreakerConfig;
use crate::call::bulkhead::BulkheadConfig;
use crate::call::hedge::HedgeConfig;
pub use crate::call::mistake::Mistake;
use crate::call::rate_limit::RateLimitConfig;
use crate::call::retry::Retry;
use crate::call::retry_budget::RetryBudgetConfig;
use crate::call::shed::ShedConfig;
use crate::call::throttle::ThrottleConfig;
use crate::limits;

/// The policies of one dependency. `Display` prints the order and every value, defaults included.
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
    /// What the retries and hedges of all calls together may add. Default 20 % of first attempts;
    /// without effect where nothing is repeated. `None` takes the limit away.
    pub retry_budget: Option<RetryBudgetConfig>,
    /// Attempts beside one that takes long. Default none.
    pub hedge: Option<HedgeConfig>,
    /// Over which time latencies are observed, for the advice on timeouts. Default none, and
    /// [`limits::LATENCY_WINDOW`] (60 s) where there are hedges. Costs each success a second reading of
    /// the clock.
    pub latency: Option<Duration>,
    /// Default none.
    pub breaker: Option<BreakerConfig>,
    /// Default none.
    pub bulkhead: Option<BulkheadConfig>,
    /// Finds the limit of the bulkhead, in place of the one that the bulkhead names. Default none.
    pub adaptive: Option<AdaptiveConfig>,
    /// Default none.
    pub rate_limit: Option<RateLimitConfig>,
    /// Holds back what the dependency would refuse. Default none.
    pub throttle: Option<ThrottleConfig>,
    /// Refuses the least important calls when the bulkhead fills up. Default none.
    pub shed: Option<ShedConfig>,
    /// Most attempts that go on in the background when their time is over or their caller is gone, for
    /// calls that ask for it. Default none: they are cancelled.
    pub detached: Option<u32>,
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
            retry_budget: Some(RetryBudgetConfig::default()),
            hedge: None,
            latency: None,
            breaker: None,
            bulkhead: None,
            adaptive: None,
            rate_limit: None,
            throttle: None,
            shed: None,
            detached: None,
        }
    }

    /// The budget of retries and hedges, where the plan has any.
    #[must_use]
    pub fn effective_retry_budget(&self) -> Option<RetryBudgetConfig> {
        let repeats = self.retry.attempts > 1 || self.hedge.is_some();
        self.retry_budget.filter(|_| repeats)
    }

    /// The bulkhead as it begins: an adaptive limit sets its own.
    #[must_use]
    pub fn effective_bulkhead(&self) -> Option<BulkheadConfig> {
        match self.adaptive {
            None => self.bulkhead,
            Some(adaptive) => Some(BulkheadConfig {
                limit: adaptive.initial,
                ..self.bulkhead.unwrap_or_default()
            }),
        }
    }

    /// Over which time latencies are observed; `None` where nobody asks for them.
    #[must_use]
    pub fn latency_window(&self) -> Option<Duration> {
        self.latency.or(self.hedge.map(|_| limits::LATENCY_WINDOW))
    }

    /// All mistakes, not just the first. Empty when the plan is sound.
    #[must_use]
    pub fn validate(&self) -> Vec<Mistake> {
        check::mistakes(self)
    }
}
