//! Faults on purpose: what they do to a call, and what they don't.

#![expect(clippy::expect_used, reason = "what tests share fails by panicking")]

mod support;

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use mamparo_call::fault::{Fake, FaultInjector};
use mamparo_call::{CallError, Context, Failure, Repeatable, clock};
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::fault::{Draw, FaultConfig, Latency};
use support::{Broken, catalog, caught, millis, touchy};

const ON: FaultConfig = FaultConfig {
    enabled: true,
    seed: 1,
    draw: Draw::Call,
    latency: None,
    panic: 0.0,
    error: 0.0,
    outcome: 0.0,
};

fn slow(by: Duration) -> FaultConfig {
    FaultConfig { latency: Some(Latency { share: 1.0, least: by, most: by }), ..ON }
}

fn injector(config: FaultConfig) -> FaultInjector {
    FaultInjector::new("orders", "catalog", config).expect("sound")
}

fn made(fake: Fake) -> Result<&'static str, Broken> {
    match fake {
        Fake::Error => Err(Broken(Failure::TRANSIENT)),
        Fake::Outcome => Ok("made up"),
    }
}

/// One call through `faults`, and whether the real thing was begun.
async fn call(faults: &FaultInjector) -> (Result<&'static str, Broken>, bool) {
    let begun = Cell::new(false);
    let real = || {
        begun.set(true);
        async { Ok("real") }
    };
    let answer = faults.around(None, made, real).await;
    (answer, begun.get())
}

#[tokio::test(start_paused = true)]
async fn an_error_and_an_outcome_stand_in_for_the_call() {
    assert_eq!(call(&injector(ON)).await, (Ok("real"), true));
    let off = injector(FaultConfig { enabled: false, error: 1.0, ..ON });
    assert_eq!(call(&off).await, (Ok("real"), true));
    let failing = injector(FaultConfig { error: 1.0, ..ON });
    assert_eq!(call(&failing).await, (Err(Broken(Failure::TRANSIENT)), false));
    let lying = injector(FaultConfig { outcome: 1.0, ..ON });
    assert_eq!(call(&lying).await, (Ok("made up"), false));
}

#[tokio::test(start_paused = true)]
async fn latency_is_waited_before_the_call_is_made() {
    let started = clock::now();
    assert_eq!(call(&injector(slow(millis(250)))).await, (Ok("real"), true));
    let took = clock::now().since(started);
    assert!(took >= millis(250) && took < millis(260), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn latency_ends_at_the_deadline_and_nothing_is_begun_after_it() {
    let faults = injector(slow(Duration::from_secs(60)));
    let started = clock::now();
    let hurried = Context::default().with_budget(started, millis(100));
    let answer = hurried.scope(call(&faults)).await;
    assert_eq!(answer, (Err(Broken(Failure::TRANSIENT)), false));
    assert!(clock::now().since(started) < millis(110));
    // One that ends with the deadline has left no time for anything.
    let hurried = Context::default().with_budget(clock::now(), millis(250));
    let answer = hurried.scope(call(&injector(slow(millis(250))))).await;
    assert_eq!(answer, (Err(Broken(Failure::TRANSIENT)), false));
}

#[tokio::test(start_paused = true)]
async fn to_the_policies_an_injected_fault_is_a_real_one() {
    let failing = injector(FaultConfig { error: 1.0, ..ON });
    let dependency = catalog().breaker(touchy(1)).build().expect("sound");
    let real = || async { Ok("real") };
    let answer =
        dependency.call(Repeatable::Idempotent, |_| failing.around(None, made, real)).await;
    assert!(matches!(answer, Err(CallError::Failed { source: Broken(_), .. })), "{answer:?}");
    assert_eq!(dependency.breaker_state(), Some(Phase::Open));

    let hanging = injector(slow(Duration::from_secs(60)));
    let dependency = catalog().breaker(touchy(1)).build().expect("sound");
    let answer = dependency.call(Repeatable::Unsafe, |_| hanging.around(None, made, real)).await;
    assert!(matches!(answer, Err(CallError::TimedOut { attempts: 1, .. })), "{answer:?}");
    assert_eq!(dependency.breaker_state(), Some(Phase::Open));

    // Every other call fails on average: what is repeated is drawn anew and gets through.
    let flaky = injector(FaultConfig { error: 0.5, ..ON });
    let dependency = catalog().retry(20, mamparo_core::backoff::Backoff::default());
    let dependency = dependency.build().expect("sound");
    for _ in 0..20 {
        let call = dependency.call(Repeatable::Idempotent, |_| flaky.around(None, made, real));
        assert_eq!(call.await.expect("twenty attempts"), "real");
    }
    assert!(dependency.snapshot().retries > 0);
}

#[tokio::test(start_paused = true)]
async fn an_injected_panic_is_a_panic() {
    let faults = injector(FaultConfig { panic: 1.0, ..ON });
    let dependency = catalog().breaker(touchy(1)).build().expect("sound");
    let operation = |_| faults.around(None, made, || async { Ok("real") });
    let call = AssertUnwindSafe(dependency.call(Repeatable::Idempotent, operation));
    let panic = caught(call).await.expect_err("it panics");
    assert_eq!(panic.downcast_ref(), Some(&"injected on purpose"));
    assert_eq!(dependency.breaker_state(), Some(Phase::Open));
}

#[test]
fn a_config_that_cannot_be_meant_is_refused() {
    let config = FaultConfig { error: 1.5, ..ON };
    let error = FaultInjector::new("orders", "catalog", config).expect_err("a share of 1.5");
    assert_eq!(
        error.to_string(),
        "build dependency catalog: faults.error: is 1.5, must be from 0 to 1; \
         faults: panic, error and outcome are 1.5 together, at most 1"
    );
}
