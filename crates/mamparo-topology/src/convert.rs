//! From the model to core's plain plans.

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Over, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::message::topology::QueuePolicy;

use crate::{
    BreakerRule, BreakerSection, BulkheadSection, DependencySection, PolicyFile, QueueSection,
    RateLimitSection, RetrySection,
};

impl PolicyFile {
    /// What stands in front of the dependency called `name`; `None` when there is no such.
    ///
    /// Where a route waits for it, the service's request budget limits the whole call; elsewhere
    /// only the deadline of the message or job does.
    #[must_use]
    pub fn plan(&self, name: &str) -> Option<Plan> {
        let section = self.dependency(name)?;
        let mut plan = section.plan(&self.service.name);
        let mut calls = self.routes.iter().flat_map(|route| route.calls.iter().flatten());
        if calls.any(|call| *call.dependency == name) {
            plan.budget = self.service.request_budget.map(|budget| budget.value);
        }
        Some(plan)
    }
}

impl DependencySection {
    /// The policies of this section in front of a call from the service called `service`; without
    /// a budget, which is the service's to give.
    #[must_use]
    pub fn plan(&self, service: &str) -> Plan {
        Plan {
            service: service.to_owned(),
            attempt_timeout: Some(*self.attempt_timeout),
            retry: self.retry_config(),
            breaker: self.breaker.as_ref().map(BreakerSection::config),
            bulkhead: self.bulkhead.as_ref().map(BulkheadSection::config),
            rate_limit: self.rate_limit.as_ref().map(RateLimitSection::config),
            ..Plan::new(self.name.value.clone())
        }
    }

    /// Attempts and waits. Without a `retry` there is one attempt: repeating is asked for, never
    /// assumed.
    #[must_use]
    pub fn retry_config(&self) -> Retry {
        self.retry.as_ref().map_or(Retry::NONE, RetrySection::config)
    }
}

impl RetrySection {
    /// Attempts and waits.
    #[must_use]
    pub fn config(&self) -> Retry {
        Retry { attempts: *self.attempts, backoff: self.backoff() }
    }

    /// The waits between attempts.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff::new(*self.base, *self.factor, *self.cap)
    }
}

impl BreakerSection {
    /// The breaker's limits; a half-open circuit waits the default 30 s for its probes.
    #[must_use]
    pub fn config(&self) -> BreakerConfig {
        let window = *self.window;
        let trip = match &self.rule {
            BreakerRule::Failures(failures) => Trip::Failures { failures: **failures, window },
            BreakerRule::Rate { failure_rate, min_calls } => Trip::Rate {
                failure_rate: Some(**failure_rate),
                slow_rate: None,
                min_calls: **min_calls,
                over: Over::Time(window),
            },
        };
        let (open_for, probes) = (*self.open_for, *self.probes);
        BreakerConfig { trip, open_for, probes, ..BreakerConfig::default() }
    }
}

impl BulkheadSection {
    /// The bulkhead's limits.
    #[must_use]
    pub fn config(&self) -> BulkheadConfig {
        BulkheadConfig::new(*self.limit, *self.queue)
    }
}

impl RateLimitSection {
    /// The limit; all requests of a period may come at once.
    #[must_use]
    pub fn config(&self) -> RateLimitConfig {
        RateLimitConfig::new(*self.requests, *self.per)
    }
}

impl QueueSection {
    /// The queue's rules, as broker and consumer take them.
    #[must_use]
    pub fn policy(&self) -> QueuePolicy {
        QueuePolicy {
            queue: self.name.value.clone(),
            owner: self.owner.value.clone(),
            prefetch: *self.prefetch,
            attempts: *self.attempts,
            retry_delay: *self.retry_delay,
            handler_timeout: *self.handler_timeout,
            bindings: self.events.iter().map(|event| event.value.clone()).collect(),
        }
    }
}
