//! From the model to core's plain plans.

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Over, SlowRate, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
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
            retry_budget: Some(self.retry_budget()),
            adaptive: self.adaptive,
            hedge: self.hedge,
            throttle: self.throttle,
            shed: self.shed,
            latency: self.observe_latency.map(|window| window.value),
            detached: self.detached.map(|most| most.value),
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

impl DependencySection {
    /// What retries and hedges may add, 20 % of first attempts where the file says nothing.
    fn retry_budget(&self) -> RetryBudgetConfig {
        let usual = RetryBudgetConfig::default();
        let ratio = self.retry.as_ref().map_or(usual.ratio, |retry| *retry.budget);
        RetryBudgetConfig { ratio, ..usual }
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
        Backoff { jitter: *self.jitter, ..Backoff::new(*self.base, *self.factor, *self.cap) }
    }
}

impl BreakerSection {
    /// The breaker's limits.
    #[must_use]
    pub fn config(&self) -> BreakerConfig {
        BreakerConfig {
            trip: self.rule.trip(*self.window),
            open_for: *self.open_for,
            open_growth: *self.open_growth,
            open_max: *self.open_max,
            open_jitter: *self.open_jitter,
            probes: *self.probes,
            probe_success: *self.probe_success,
            half_open_max: *self.half_open_max,
        }
    }
}

impl BreakerRule {
    fn trip(&self, window: Duration) -> Trip {
        match self {
            Self::Failures(failures) => Trip::Failures { failures: **failures, window },
            Self::Consecutive(failures) => Trip::Consecutive { failures: **failures },
            Self::Rate { failure_rate, slow, min_calls, calls } => Trip::Rate {
                failure_rate: failure_rate.map(|rate| rate.value),
                slow_rate: slow
                    .as_ref()
                    .map(|slow| SlowRate { slower_than: *slow.slower_than, rate: *slow.rate }),
                min_calls: **min_calls,
                over: calls.map_or(Over::Time(window), |calls| Over::Calls(calls.value)),
            },
        }
    }
}

impl BulkheadSection {
    /// The bulkhead's limits.
    #[must_use]
    pub fn config(&self) -> BulkheadConfig {
        BulkheadConfig { order: *self.order, ..BulkheadConfig::new(*self.limit, *self.queue) }
    }
}

impl RateLimitSection {
    /// The limit; without a `burst`, all requests of a period may come at once.
    #[must_use]
    pub fn config(&self) -> RateLimitConfig {
        let burst = self.burst.map_or(*self.requests, |burst| burst.value);
        RateLimitConfig::new(*self.requests, *self.per).with_burst(burst)
    }
}

impl QueueSection {
    /// The queue's rules, as broker and consumer take them.
    #[must_use]
    pub fn policy(&self) -> QueuePolicy {
        let policy = QueuePolicy {
            queue: self.name.value.clone(),
            owner: self.owner.value.clone(),
            prefetch: *self.prefetch,
            workers: self.workers.map(|workers| workers.value),
            attempts: *self.attempts,
            retry_delay: *self.retry_delay,
            retry_tiers: self.retry_tiers.iter().map(|tier| tier.value).collect(),
            waiting_room: *self.waiting_room,
            order: *self.order,
            handler_timeout: *self.handler_timeout,
            queue_type: *self.queue_type,
            delivery_limit: *self.delivery_limit,
            max_length: *self.max_length,
            version: 1,
            bindings: self.events.iter().map(|event| event.value.clone()).collect(),
        };
        policy.versioned(*self.version)
    }
}
