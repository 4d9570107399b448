//! A dependency for each key, people's orders, and what a dependency says of itself.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::{CallError, Dependencies, Dependency, Failure, Repeatable};
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::throttle::ThrottleConfig;
use support::{Answer, Broken, catalog, touchy};

async fn call(dependency: &Dependency, failure: Option<Failure>) -> Answer<()> {
    dependency
        .call(Repeatable::Unsafe, async |_| failure.map_or(Ok(()), |failure| Err(Broken(failure))))
        .await
}

#[tokio::test(start_paused = true)]
async fn a_sick_host_does_not_shut_out_the_others() {
    let hosts: Dependencies<String> = catalog().breaker(touchy(1)).build_keyed(100).expect("sound");
    call(&hosts.of("sick"), Some(Failure::TRANSIENT)).await.expect_err("it opens");
    let refused = call(&hosts.of("sick"), None).await.expect_err("it is open");
    assert!(matches!(refused, CallError::Refused { reason: Refusal::CircuitOpen, .. }));
    call(&hosts.of("well"), None).await.expect("another circuit");
    assert_eq!(hosts.keys(), 2);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_an_open_circuit_is_remembered_longest() {
    let hosts: Dependencies<u32> = catalog().breaker(touchy(1)).build_keyed(64).expect("sound");
    call(&hosts.of(&0), Some(Failure::TRANSIENT)).await.expect_err("it opens");
    for key in 1..1_000 {
        call(&hosts.of(&key), None).await.expect("it works");
        assert!(hosts.keys() <= 64);
    }
    assert_eq!(hosts.of(&0).breaker_state(), Some(Phase::Open));
    assert_eq!(hosts.overflowed(), 0);
}

#[tokio::test(start_paused = true)]
async fn people_can_hold_a_circuit_and_every_change_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&told);
    let catalog = catalog()
        .breaker(touchy(1))
        .on_change(move |change| hook.lock().expect("whole").push(change.to))
        .build()
        .expect("sound");
    assert!(catalog.force_open());
    assert!(!catalog.force_open(), "it is already");
    let refused = call(&catalog, None).await.expect_err("by order");
    assert!(matches!(refused, CallError::Refused { reason: Refusal::CircuitOpen, .. }));
    assert!(catalog.force_closed());
    for _ in 0..5 {
        call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it fails");
    }
    assert_eq!(catalog.breaker_state(), Some(Phase::Closed), "by order");
    assert!(catalog.automatic());
    call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it fails");
    assert_eq!(catalog.breaker_state(), Some(Phase::Open), "by its own judgement");
    let told = told.lock().expect("whole").clone();
    assert_eq!((told.first(), told.last()), (Some(&Phase::Open), Some(&Phase::Open)));
    assert!(!Dependency::builder("mail").build().expect("sound").force_open(), "it has none");
}

#[tokio::test(start_paused = true)]
async fn it_explains_itself() {
    let catalog = catalog()
        .breaker(touchy(1))
        .bulkhead(20, 5)
        .observe_latency(Duration::from_secs(60))
        .rate_limit(RateLimitConfig::new(1, Duration::from_secs(5)))
        .throttle(ThrottleConfig::default())
        .build()
        .expect("sound");
    let text = catalog.explain().to_string();
    for part in [
        "dependency catalog\n",
        "retry budget     20 % of first attempts",
        "bulkhead         0 of 20 slots taken, 0 waiting",
        "throttle         0 % of calls held back",
        "rate limit       the next call passes\n",
        "timeout advice   none: 0 attempts in the window are too few",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it opens");
    let after = catalog.explain();
    assert_eq!(after.breaker.as_ref().map(|breaker| breaker.phase), Some(Phase::Open));
    assert!(after.to_string().contains("circuit          "), "{after}");
    assert!(after.to_string().contains("rate limit       the next call passes in "), "{after}");
}
