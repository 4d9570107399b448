//! tower-resilience 0.13 (its umbrella crate), and the breaker of 0.14.
//!
//! Built as its documentation builds it, without listeners. Its circuit breaker has to know the
//! type of the error, so the rows name the whole way through the builder.

use std::time::Duration;

use tower::{Layer as _, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_resilience::bulkhead::BulkheadLayer;
use tower_resilience::circuitbreaker::{CircuitBreakerLayer, SlidingWindowType};
use tower_resilience::ratelimiter::{RateLimiterLayer, WindowType};
use tower_resilience::retry::RetryLayer;
use tower_resilience::timelimiter::TimeLimiterLayer;
use tower_resilience_circuitbreaker_014 as breaker_014;

use super::{FOR_GOOD, LONG, SLOTS, settle};
use crate::case::{Case, Expect};
use crate::work::{Down, answer, answer_later, down};

/// The breaker's layer as its builder makes it with the default judgement of results.
type Breaker = CircuitBreakerLayer<tower_resilience::circuitbreaker::DefaultClassifier>;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = breakers();
    cases.extend(single_layers());
    cases.extend(stacks());
    cases
}

fn breaker(window: usize) -> Breaker {
    let builder = CircuitBreakerLayer::builder().sliding_window_size(window);
    builder.wait_duration_in_open(FOR_GOOD).build().expect("sound values")
}

fn breakers() -> Vec<Case> {
    let value = Expect::Value;
    let time = CircuitBreakerLayer::builder()
        .sliding_window_type(SlidingWindowType::TimeBased)
        .sliding_window_duration(Duration::from_millis(1))
        .build()
        .expect("sound values");
    let newer = breaker_014::CircuitBreakerLayer::builder().sliding_window_size(100);
    let newer = newer.build().expect("sound values");
    let open = breaker(10).layer(service_fn(down));
    vec![
        Case::service("tr.breaker", value, breaker(100).layer(service_fn(answer))),
        Case::service("tr.breaker.014", value, newer.layer(service_fn(answer))),
        Case::service("tr.breaker.time.1ms", value, time.layer(service_fn(answer))),
        Case::service("tr.open", Expect::Error, tripped(open, 10)),
    ]
}

fn single_layers() -> Vec<Case> {
    let value = Expect::Value;
    let retry = RetryLayer::<u64, u64, Down>::builder().max_attempts(3).build();
    let bulkhead = BulkheadLayer::builder().max_concurrent_calls(SLOTS).reject_when_full();
    let bulkhead = bulkhead.build().expect("sound values");
    // So much that no call of a run is refused: a refusal costs less.
    let limit = || {
        let builder = RateLimiterLayer::builder().limit_for_period(usize::MAX / 4);
        builder.refresh_period(Duration::from_secs(1))
    };
    let fixed = limit().window_type(WindowType::Fixed).build().expect("sound values");
    let bucket = limit().burst_size(usize::MAX / 4).build().expect("sound values");
    let time = TimeLimiterLayer::builder().timeout_duration(LONG).build();
    vec![
        Case::service("tr.retry", value, retry.layer(service_fn(answer))),
        Case::service("tr.bulkhead", value, bulkhead.layer(service_fn(answer))),
        Case::service("tr.rate_limit.fixed", value, fixed.layer(service_fn(answer))),
        Case::service("tr.rate_limit.bucket", value, bucket.layer(service_fn(answer))),
        Case::service("tr.timeout", value, time.layer(service_fn(answer))),
    ]
}

/// Bulkhead > breaker > retry > timeout, as ours.
fn stacks() -> Vec<Case> {
    macro_rules! stack {
        ($window:expr, $inner:expr) => {{
            let bulkhead = BulkheadLayer::builder().max_concurrent_calls(SLOTS).reject_when_full();
            ServiceBuilder::new()
                .layer(bulkhead.build().expect("sound values"))
                .layer(breaker($window))
                .layer(RetryLayer::builder().max_attempts(3).retry_on(|_| false).build())
                .layer(TimeLimiterLayer::builder().timeout_duration(LONG).build())
                .service(service_fn($inner))
        }};
    }
    vec![
        Case::service("tr.stack", Expect::Value, stack!(100, answer)),
        Case::service("tr.stack.yield", Expect::Value, stack!(100, answer_later)),
        Case::service("tr.stack.open", Expect::Error, tripped(stack!(10, down), 10)),
    ]
}

/// `service` after so many failures that its breaker is open.
fn tripped<S: Service<u64> + Clone>(service: S, failures: u32) -> S {
    settle(async {
        for _ in 0..failures {
            service.clone().oneshot(0).await.ok();
        }
    });
    service
}
