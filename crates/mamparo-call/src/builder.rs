//! Making a [`Dependency`]: all mistakes come back at once.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::{BreakerConfig, Change};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::hedge::HedgeConfig;
use mamparo_core::call::plan::{Mistake, Plan};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_core::call::shed::ShedConfig;
use mamparo_core::call::throttle::ThrottleConfig;

use crate::detached::BackgroundWork;
use crate::gate::{Gate, Hooks};
use crate::{Dependencies, Dependency};

/// Builds a [`Dependency`]; every mistake is reported at once by [`DependencyBuilder::build`].
///
/// Without further settings there is one attempt, no timeout but the caller's deadline, no breaker,
/// no bulkhead and no rate limit.
pub struct DependencyBuilder {
    plan: Plan,
    hooks: Hooks,
}

impl fmt::Debug for DependencyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DependencyBuilder").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The values of a dependency that can't be meant.
#[derive(Debug, thiserror::Error)]
#[error("build dependency {dependency}: {}", list(mistakes))]
pub struct BuildError {
    /// The dependency's name.
    pub dependency: String,
    /// All mistakes, in the order of the plan.
    pub mistakes: Vec<Mistake>,
}

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("; ")
}

impl DependencyBuilder {
    /// Starts from a whole plan, such as a policy file gives.
    #[must_use]
    pub fn from_plan(plan: Plan) -> Self {
        Self { plan, hooks: Hooks::default() }
    }

    /// Name of the calling service, the label `service` of the metrics. Default empty.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.plan.service = name.into();
        self
    }

    /// Longest that one attempt may take; more than 10 ms. Default: the caller's deadline alone.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.plan.attempt_timeout = Some(timeout);
        self
    }

    /// Longest that the whole call may take, queue and waits included. Default: the caller's
    /// deadline alone.
    #[must_use]
    pub fn budget(mut self, budget: Duration) -> Self {
        self.plan.budget = Some(budget);
        self
    }

    /// Attempts, the first included (1 to 100), and the waits between them. Default one attempt.
    #[must_use]
    pub fn retry(mut self, attempts: u32, backoff: Backoff) -> Self {
        self.plan.retry = Retry { attempts, backoff };
        self
    }

    /// A circuit breaker. Default none.
    #[must_use]
    pub fn breaker(mut self, config: BreakerConfig) -> Self {
        self.plan.breaker = Some(config);
        self
    }

    /// At most `limit` calls in flight and `queue` callers that wait. Default no limit.
    #[must_use]
    pub fn bulkhead(mut self, limit: u32, queue: u32) -> Self {
        self.plan.bulkhead = Some(BulkheadConfig::new(limit, queue));
        self
    }

    /// At most so many calls a period. Default no limit.
    #[must_use]
    pub fn rate_limit(mut self, config: RateLimitConfig) -> Self {
        self.plan.rate_limit = Some(config);
        self
    }

    /// What the retries and hedges of all calls together may add; `None` takes the limit away. Default
    /// 20 % of first attempts.
    #[must_use]
    pub fn retry_budget(mut self, config: Option<RetryBudgetConfig>) -> Self {
        self.plan.retry_budget = config;
        self
    }

    /// Attempts beside one that takes long, for calls that may run twice. Default none.
    #[must_use]
    pub fn hedge(mut self, config: HedgeConfig) -> Self {
        self.plan.hedge = Some(config);
        self
    }

    /// Observes how long attempts take, over `window`, for the advice in
    /// [`Dependency::explain`]. Default off: it costs each success a second reading of the clock.
    #[must_use]
    pub fn observe_latency(mut self, window: Duration) -> Self {
        self.plan.latency = Some(window);
        self
    }

    /// Finds the limit of calls in flight by itself. With it, the limit of
    /// [`DependencyBuilder::bulkhead`] is without effect, and its queue is not. Default a fixed limit.
    #[must_use]
    pub fn adaptive(mut self, config: AdaptiveConfig) -> Self {
        self.plan.adaptive = Some(config);
        self
    }

    /// Holds back what the dependency would refuse, by its answers of late. Default off.
    #[must_use]
    pub fn throttle(mut self, config: ThrottleConfig) -> Self {
        self.plan.throttle = Some(config);
        self
    }

    /// Refuses the least important calls first when the bulkhead fills up. Needs a bulkhead. Default
    /// off.
    #[must_use]
    pub fn shed(mut self, config: ShedConfig) -> Self {
        self.plan.shed = Some(config);
        self
    }

    /// Is called on each change of the breaker, on the task that caused it and outside of any lock.
    /// A panic of the hook is logged as an error and goes no further.
    #[must_use]
    pub fn on_change(mut self, hook: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.hooks.on_change = Some(Arc::new(hook));
        self
    }

    /// Attempts of [`Dependency::call_detached`] that time out or lose their caller go on in the
    /// background, at most `max` (at least 1) at a time; `spawner` runs them, for example on the tasks of
    /// the service, so that its shutdown waits for them. A panic of the spawner is logged as an error and cuts off the
    /// attempt. Default: they are cancelled.
    #[must_use]
    pub fn detached(
        mut self,
        max: u32,
        spawner: impl Fn(BackgroundWork) + Send + Sync + 'static,
    ) -> Self {
        self.plan.detached = Some(max);
        self.hooks.spawner = Some(Arc::new(spawner));
        self
    }

    /// The dependency.
    ///
    /// # Errors
    /// [`BuildError`] lists every mistake, attempts and waits that don't fit the budget included.
    pub fn build(self) -> Result<Dependency, BuildError> {
        let Self { plan, hooks } = self.sound()?;
        Ok(Dependency::from_shared(Arc::new(Gate::new(plan, hooks))))
    }

    /// A dependency for each key, at most `keys_max` (at least 1) of them at a time.
    ///
    /// # Errors
    /// [`BuildError`] as for [`DependencyBuilder::build`].
    pub fn build_keyed<K: Hash + Eq>(self, keys_max: usize) -> Result<Dependencies<K>, BuildError> {
        let Self { plan, hooks } = self.sound()?;
        Ok(Dependencies::new(plan, hooks, keys_max))
    }

    fn sound(self) -> Result<Self, BuildError> {
        let mut mistakes = self.plan.validate();
        if self.plan.detached.is_some() && self.hooks.spawner.is_none() {
            let text = "needs a spawner to run on: DependencyBuilder::detached".to_owned();
            mistakes.push(Mistake { key: "detached", text });
        }
        if mistakes.is_empty() {
            Ok(self)
        } else {
            Err(BuildError { dependency: self.plan.dependency, mistakes })
        }
    }
}
