//! Ours: the machines of core alone, the combinators, the tower layers, and a whole dependency.

mod dependency;
mod layers;
mod machines;
mod policies;
mod stacks;

pub(super) use machines::OBJECTS;

use std::time::Duration;

use mamparo_call::policy::BreakerPolicy;
use mamparo_core::call::breaker::{BreakerConfig, Over, SlowRate, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;

use super::{FOR_GOOD, LONG, SLOTS};
use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = machines::cases();
    cases.extend(policies::cases());
    cases.extend(stacks::cases());
    cases.extend(layers::cases());
    cases.extend(dependency::cases());
    cases
}

/// The ways in which a closed breaker counts: consecutive failures, failures in a time, shares of calls,
/// of a time, and of slow calls in a time.
fn modes() -> [BreakerConfig; 5] {
    let with = |trip| BreakerConfig { trip, ..breaker() };
    let rate = |failure_rate, slow_rate, over| {
        with(Trip::Rate { failure_rate, slow_rate, min_calls: 100, over })
    };
    let slow = SlowRate { slower_than: LONG, rate: 0.5 };
    let time = Over::Time(Duration::from_secs(10));
    [
        with(Trip::Consecutive { failures: 5 }),
        breaker(),
        rate(Some(0.5), None, Over::Calls(100)),
        rate(Some(0.5), None, time),
        rate(Some(0.5), Some(slow), time),
    ]
}

/// The default breaker (5 failures in 10 s), which stays open once it is.
fn breaker() -> BreakerConfig {
    BreakerConfig { open_for: FOR_GOOD, open_max: FOR_GOOD, ..BreakerConfig::default() }
}

/// A breaker that is open, and stays so.
fn tripped() -> BreakerPolicy {
    let policy = BreakerPolicy::new(breaker());
    policy.force_open();
    policy
}

/// Slots enough, and no line.
fn bulkhead() -> BulkheadConfig {
    BulkheadConfig { limit: SLOTS as u32, ..BulkheadConfig::default() }
}

/// So much that no call of a run is refused: a refusal costs less.
const fn rate() -> RateLimitConfig {
    RateLimitConfig::new(u32::MAX, Duration::from_secs(1))
}

/// 3 attempts, the default.
fn retry() -> Retry {
    Retry::default()
}
