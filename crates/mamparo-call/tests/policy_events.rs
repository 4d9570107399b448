//! What free-standing policies tell their listeners, and what is scraped of it.

#![expect(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::policy::{
    BreakerPolicy, BulkheadPolicy, HedgePolicy, MetricsListener, PolicyEvent, RateLimitPolicy,
    RetryPolicy, TimeoutPolicy,
};
use mamparo_call::{Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use metrics_exporter_prometheus::PrometheusBuilder;
use support::{Broken, millis, touchy};

type Slugs = Arc<Mutex<Vec<&'static str>>>;

/// A listener that writes the events' codes down.
fn scribe() -> (Slugs, impl Fn(&PolicyEvent) + Send + Sync + 'static) {
    let slugs = Slugs::default();
    let written = Arc::clone(&slugs);
    let listener = move |event: &PolicyEvent| {
        slugs.lock().expect("nobody panicked").push(event.slug());
    };
    (written, listener)
}

fn taken(slugs: &Slugs) -> Vec<&'static str> {
    std::mem::take(&mut *slugs.lock().expect("nobody panicked"))
}

fn retry() -> RetryPolicy {
    RetryPolicy::new(Retry { attempts: 2, backoff: Backoff::default() })
}

async fn yields() -> Result<(), Broken> {
    tokio::task::yield_now().await;
    Ok(())
}

async fn fails() -> Result<(), Broken> {
    Err(Broken(Failure::TRANSIENT))
}

#[tokio::test(start_paused = true)]
async fn each_policy_tells_its_events() {
    let (slugs, listener) = scribe();
    let breaker = BreakerPolicy::new(touchy(1)).listened_by(listener);
    breaker.call(async { Ok::<_, Broken>(()) }).await.expect("it works");
    breaker.call(fails()).await.expect_err("it opens");
    breaker.call(fails()).await.expect_err("it is open");
    drop(breaker.call(fails()));
    assert_eq!(taken(&slugs), ["success", "transient", "breaker-changed", "circuit-open"]);

    let (slugs, listener) = scribe();
    let bulkhead = BulkheadPolicy::new(BulkheadConfig::new(1, 1)).listened_by(listener);
    let (first, second, third) =
        tokio::join!(bulkhead.call(yields()), bulkhead.call(fails()), bulkhead.call(fails()));
    first.expect("it had the slot");
    second.expect_err("it waited, and failed");
    third.expect_err("the line was full");
    assert_eq!(taken(&slugs), ["queued", "bulkhead-full"]);

    let (slugs, listener) = scribe();
    let limit = RateLimitPolicy::new(RateLimitConfig::new(1, Duration::from_secs(1)));
    let limit = limit.listened_by(listener);
    limit.call(fails()).await.expect_err("it fails");
    limit.call(fails()).await.expect_err("too soon");
    assert_eq!(taken(&slugs), ["rate-limited"]);

    let (slugs, listener) = scribe();
    let cut = TimeoutPolicy::new(millis(20)).listened_by(listener);
    cut.call(pending::<Result<(), Broken>>()).await.expect_err("it hangs");
    assert_eq!(taken(&slugs), ["timeout"]);

    let (slugs, listener) = scribe();
    let retry = retry().listened_by(listener);
    retry.call(Repeatable::Idempotent, |_| fails()).await.expect_err("both attempts");
    assert_eq!(taken(&slugs), ["transient", "retrying", "transient", "attempts-spent"]);

    let (slugs, listener) = scribe();
    let after = HedgeAfter::Fixed(millis(50));
    let hedge = HedgePolicy::new(HedgeConfig { after, extra: 1 }).listened_by(listener);
    let slow = |copy| async move {
        tokio::time::sleep(millis(if copy == 1 { 500 } else { 1 })).await;
        Ok::<_, Broken>(copy)
    };
    assert_eq!(hedge.call(Repeatable::Idempotent, slow).await, Ok(2));
    assert_eq!(taken(&slugs), ["hedged"]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_ends_no_call() {
    let breaker = BreakerPolicy::new(touchy(1)).listened_by(|_: &PolicyEvent| bug());
    breaker.call(async { Ok::<_, Broken>(()) }).await.expect("the call goes on");
    breaker.call(fails()).await.expect_err("its own error");
}

#[expect(clippy::panic, reason = "the test is about it")]
fn bug() {
    panic!("a bug of the listener")
}

#[test]
fn what_a_dependency_counts_a_stack_of_policies_counts_too() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    metrics::with_local_recorder(&recorder, || {
        runtime.expect("a runtime").block_on(async {
            let breaker = BreakerPolicy::new(touchy(1))
                .listened_by(MetricsListener::new("orders", "catalog"));
            breaker.call(async { Ok::<_, Broken>(()) }).await.expect("it works");
            breaker.call(fails()).await.expect_err("it opens");
            breaker.call(fails()).await.expect_err("it is open");
        });
    });
    let text = handle.render();
    for line in [
        r#"circuit_breaker_state{service="orders",dependency="catalog"} 2"#,
        r#"mamparo_attempts_total{service="orders",dependency="catalog",outcome="success"} 1"#,
        r#"mamparo_attempts_total{service="orders",dependency="catalog",outcome="transient"} 1"#,
        r#"mamparo_breaker_openings_total{service="orders",dependency="catalog"} 1"#,
        r#"mamparo_refusals_total{service="orders",dependency="catalog",reason="circuit-open"} 1"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
