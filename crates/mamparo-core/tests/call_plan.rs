//! A plan says all its mistakes at once and shows every value.

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Over, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;

fn sound() -> Plan {
    Plan {
        service: "orders".into(),
        attempt_timeout: Some(Duration::from_millis(700)),
        budget: Some(Duration::from_secs(3)),
        retry: Retry::default(),
        breaker: Some(BreakerConfig::default()),
        bulkhead: Some(BulkheadConfig::default()),
        rate_limit: Some(RateLimitConfig::new(300, Duration::from_secs(60))),
        ..Plan::new("catalog")
    }
}

#[test]
fn a_sound_plan_has_no_mistakes_and_prints_every_value() {
    assert_eq!(sound().validate(), []);
    assert_eq!(
        sound().to_string(),
        "dependency catalog\n\
         \x20 budget           3s\n\
         \x20 shed             none\n\
         \x20 throttle         none\n\
         \x20 rate limit       300 per 60s, 300 at once\n\
         \x20 bulkhead         20 in flight, 0 queued\n\
         \x20 adaptive limit   none\n\
         \x20 retry            3 attempts, waits up to 100ms × 2 capped at 2s, full jitter\n\
         \x20 retry budget     20 % of first attempts, 20 saved up\n\
         \x20 hedge            none\n\
         \x20 breaker          5 failures in 10s, open for 30s, 1 probe(s) within 30s\n\
         \x20 attempt timeout  700ms\n\
         \x20 detached         none\n\
         \x20 latency          none\n"
    );
    assert_eq!(Plan::new("mail").validate(), []);
    assert!(Plan::new("mail").to_string().contains("breaker          none"));
}

#[test]
fn three_times_two_seconds_in_three_is_a_mistake_with_the_numbers() {
    let plan = Plan { attempt_timeout: Some(Duration::from_secs(2)), ..sound() };
    let mistakes = plan.validate();
    assert_eq!(mistakes.len(), 1);
    assert!(mistakes[0].to_string().starts_with("budget: 3 × 2s + 300ms of waits = 6.3s does not"));
}

#[test]
fn every_mistake_is_reported_at_once() {
    let backoff = Backoff { base: Duration::from_secs(9), factor: f64::NAN, ..Backoff::default() };
    let plan = Plan {
        dependency: String::new(),
        attempt_timeout: Some(Duration::from_millis(10)),
        budget: Some(Duration::ZERO),
        retry: Retry { attempts: 0, backoff },
        breaker: Some(BreakerConfig {
            trip: Trip::Failures { failures: 0, window: Duration::ZERO },
            open_for: Duration::ZERO,
            open_growth: f64::NAN,
            open_max: Duration::ZERO,
            open_jitter: 0.6,
            probes: 0,
            probe_success: 0.0,
            half_open_max: Duration::ZERO,
        }),
        bulkhead: Some(BulkheadConfig::new(0, u32::MAX)),
        rate_limit: Some(RateLimitConfig { requests: 0, per: Duration::ZERO, burst: 0 }),
        ..sound()
    };
    let keys: Vec<&str> = plan.validate().iter().map(|mistake| mistake.key).collect();
    for key in [
        "name",
        "attempt_timeout",
        "budget",
        "retry.attempts",
        "retry.factor",
        "retry.cap",
        "breaker.open_for",
        "breaker.open_growth",
        "breaker.open_jitter",
        "breaker.probe_success",
        "breaker.half_open_max",
        "breaker.probes",
        "breaker.failures",
        "breaker.window",
        "bulkhead.limit",
        "bulkhead.queue",
        "rate_limit.requests",
        "rate_limit.burst",
        "rate_limit.per",
    ] {
        assert!(keys.contains(&key), "{key} is missing in {keys:?}");
    }
}

#[test]
fn a_rate_that_can_never_trip_is_a_mistake() {
    let keys = |failure_rate, min_calls, over| {
        let failure_rate = Some(failure_rate);
        let trip = Trip::Rate { failure_rate, slow_rate: None, min_calls, over };
        let breaker = Some(BreakerConfig { trip, ..BreakerConfig::default() });
        let mistakes = Plan { breaker, ..sound() }.validate();
        mistakes.iter().map(|mistake| mistake.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(0.5, 10, Over::Calls(10)), Vec::<&str>::new());
    assert_eq!(keys(1.0, 10, Over::Time(Duration::from_secs(1))), Vec::<&str>::new());
    assert_eq!(keys(0.5, 11, Over::Calls(10)), ["breaker.min_calls"]);
    assert_eq!(keys(1.1, 10, Over::Calls(10)), ["breaker.failure_rate"]);
    assert_eq!(keys(f64::NAN, 10, Over::Calls(10)), ["breaker.failure_rate"]);
    assert_eq!(keys(0.5, 1, Over::Time(Duration::ZERO)), ["breaker.window"]);
}

#[test]
fn hedges_and_budgets_that_cannot_be_meant_are_named() {
    let keys = |plan: Plan| plan.validate().iter().map(|mistake| mistake.key).collect::<Vec<_>>();
    let hedged = |after, extra| Plan { hedge: Some(HedgeConfig { after, extra }), ..sound() };
    let fixed = |millis| HedgeAfter::Fixed(Duration::from_millis(millis));
    let quantile = |quantile| HedgeAfter::Quantile { quantile, least: Duration::from_millis(10) };
    assert_eq!(keys(hedged(fixed(50), 1)), [""; 0]);
    assert_eq!(keys(hedged(quantile(0.95), 3)), [""; 0]);
    assert_eq!(keys(hedged(fixed(0), 4)), ["hedge.max", "hedge.after"]);
    assert_eq!(keys(hedged(fixed(700), 1)), ["budget", "hedge.after"]);
    assert_eq!(keys(hedged(quantile(1.0), 0)), ["hedge.max", "hedge.quantile"]);
    for ratio in [-0.1, 1.1, f64::NAN] {
        let budget = RetryBudgetConfig { ratio, ..RetryBudgetConfig::default() };
        assert_eq!(keys(Plan { retry_budget: Some(budget), ..sound() }), ["retry.budget"]);
    }
    // 3 × (700 ms + 2 × 200 ms) + 300 ms is more than 3 s: the last hedge has a timeout of its own.
    assert_eq!(keys(hedged(fixed(200), 2)), ["budget"]);
    assert_eq!(keys(Plan { latency: Some(Duration::ZERO), ..sound() }), ["latency"]);
}
