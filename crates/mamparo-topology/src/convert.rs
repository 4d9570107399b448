//! From the model to core's plain plans: what the file says is what the machines are made from.

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Over, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::message::topology::QueuePolicy;

use crate::{
    BreakerRule, BreakerSection, BulkheadSection, DependencySection, QueueSection,
    RateLimitSection, RetrySection,
};

impl DependencySection {
    /// The plan of a call of this dependency from the service called `service`.
    #[must_use]
    pub fn plan(&self, service: &str) -> Plan {
        let mut plan = Plan::new(self.name.value.clone());
        service.clone_into(&mut plan.service);
        plan.attempt_timeout = Some(*self.attempt_timeout);
        // Without a `retry` there is one attempt: repeating is asked for, never assumed.
        let single = || Retry { attempts: 1, backoff: Backoff::default() };
        plan.retry = self.retry.as_ref().map_or_else(single, |retry| Retry {
            attempts: *retry.attempts,
            backoff: retry.backoff(),
        });
        plan.breaker = self.breaker.as_ref().map(BreakerSection::config);
        plan.bulkhead = self.bulkhead.as_ref().map(BulkheadSection::config);
        plan.rate_limit = self.rate_limit.as_ref().map(RateLimitSection::config);
        plan
    }
}

impl RetrySection {
    /// The waits between attempts.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff { base: *self.base, factor: *self.factor, cap: *self.cap }
    }
}

impl BreakerSection {
    /// The breaker's limits.
    #[must_use]
    pub fn config(&self) -> BreakerConfig {
        let trip = match &self.rule {
            BreakerRule::Failures(failures) => {
                Trip::Failures { failures: **failures, window: *self.window }
            }
            BreakerRule::Rate { failure_rate, min_calls } => Trip::Rate {
                failure_rate: **failure_rate,
                min_calls: **min_calls,
                over: Over::Time(*self.window),
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
        BulkheadConfig { limit: *self.limit, queue: *self.queue }
    }
}

impl RateLimitSection {
    /// The rate limit; a whole period's requests may come at once.
    #[must_use]
    pub fn config(&self) -> RateLimitConfig {
        RateLimitConfig::new(*self.requests, *self.per)
    }
}

impl QueueSection {
    /// The queue's policy, with its events as bindings.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FILE: &str = r#"
[service]
name = "orders"
owner = "team-orders"
request_budget = "3s"

[dependencies.catalog]
url = "http://catalog:8081"
attempt_timeout = "700ms"
retry = { attempts = 2, base = "100ms", factor = 2, cap = "2s" }
breaker = { failures = 5, window = "10s", open_for = "30s", probes = 1 }
bulkhead = { limit = 20, queue = 0 }

[dependencies.bare]
url = "http://bare:8081"
attempt_timeout = "700ms"

[queues."orders.saga"]
owner = "team-orders"
retry_delay = "5s"
runbook = "docs/runbooks/dlq.md"
events = ["stock.reserved"]
"#;

    #[test]
    fn what_the_file_says_is_what_the_machines_get() {
        let file = crate::parse("orders.toml", FILE).unwrap();
        let plan = file.dependency("catalog").unwrap().plan("orders");
        assert_eq!((plan.dependency.as_str(), plan.service.as_str()), ("catalog", "orders"));
        assert_eq!(plan.attempt_timeout, Some(Duration::from_millis(700)));
        assert_eq!(plan.retry.attempts, 2);
        assert_eq!(plan.breaker, Some(BreakerConfig::default()));
        assert_eq!(plan.bulkhead, Some(BulkheadConfig { limit: 20, queue: 0 }));
        assert!(plan.validate().is_empty());

        let bare = file.dependency("bare").unwrap().plan("orders");
        assert_eq!((bare.retry.attempts, bare.breaker, bare.bulkhead), (1, None, None));

        let queue = file.queue("orders.saga").unwrap().policy();
        assert_eq!((queue.prefetch, queue.attempts), (10, 5));
        assert_eq!(queue.retry_delay, Duration::from_secs(5));
        assert_eq!(queue.bindings, ["stock.reserved"]);
        assert!(queue.problems().is_empty());
    }
}
