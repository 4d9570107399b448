//! Each layer in front of a service that writes down every breach of tower's contract.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "support/probe.rs"]
mod probe;
mod support;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mamparo_call::policy::{
    BreakerPolicy, BulkheadPolicy, RateLimitPolicy, RetryPolicy, TimeoutPolicy,
};
use mamparo_call::tower::{
    BreakerLayer, BulkheadLayer, Cloned, Once, RateLimitLayer, Replay, RetryLayer, TimeoutLayer,
};
use mamparo_call::{Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::BreakerConfig;
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::{GiveUp, Retry};
use probe::{Book, Probe, Request, Response};
use support::{Broken, millis};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

fn book() -> Arc<Book> {
    Arc::new(Book::default())
}

/// Copies the body, as long as it is no stream (which begins with a zero here).
#[derive(Debug, Clone, Copy)]
struct Bytes;

impl Replay<Request> for Bytes {
    fn repeatable(&self, _: &Request) -> Repeatable {
        Repeatable::Idempotent
    }

    fn replay(&self, request: &Request) -> Option<Request> {
        (request.0.first() != Some(&0)).then(|| Request(request.0.clone()))
    }
}

fn limit() -> TimeoutPolicy {
    TimeoutPolicy::new(millis(700))
}

fn retry() -> RetryPolicy {
    RetryPolicy::new(Retry { attempts: 3, backoff: Backoff::default() })
}

/// What every layer has to get right, whatever its policy does.
async fn keeps_the_contract<L>(layer: L)
where
    L: Layer<Probe>,
    L::Service: Service<Request, Response = Response, Error: Debug> + Clone,
{
    for stalls in [0, 1, 3] {
        let book = book();
        book.stalls.store(stalls, Ordering::SeqCst);
        let mut service = layer.layer(Probe::new(&book));
        for n in 1..=2 {
            let service = service.ready().await.expect("it gets ready");
            let response = service.call(Request(vec![n])).await.expect("it works");
            assert_eq!(response.body, [n], "untouched");
        }
        // A clone of a service that is ready is not ready, and takes nothing from it.
        service.ready().await.expect("it gets ready");
        let mut clone = service.clone();
        service.call(Request(vec![3])).await.expect("it works");
        clone.ready().await.expect("it gets ready").call(Request(vec![4])).await.expect("works");
        // To be asked twice changes nothing.
        service.ready().await.expect("it gets ready");
        service.ready().await.expect("it is ready").call(Request(vec![5])).await.expect("works");
        // A call that is dropped on its way leaves a service that can be used.
        drop(service.ready().await.expect("it gets ready").call(Request(vec![6])));
        service.ready().await.expect("it gets ready").call(Request(vec![7])).await.expect("works");
        drop((service, clone));
        book.kept(7);
    }
    let book = book();
    book.broken.store(1, Ordering::SeqCst);
    let mut service = layer.layer(Probe::new(&book));
    assert!(service.ready().await.is_err(), "a readiness that failed is handed on");
    drop(service);
    book.kept(0);
}

#[tokio::test(start_paused = true)]
async fn each_layer_keeps_towers_contract() {
    keeps_the_contract(TimeoutLayer::new(limit())).await;
    keeps_the_contract(RetryLayer::new(retry(), Bytes)).await;
    keeps_the_contract(RetryLayer::new(retry(), Once)).await;
    keeps_the_contract(BulkheadLayer::new(BulkheadPolicy::new(BulkheadConfig::new(1, 0)))).await;
    keeps_the_contract(BreakerLayer::new(BreakerPolicy::new(BreakerConfig::default()))).await;
    let plenty = RateLimitConfig::new(100, millis(1));
    keeps_the_contract(RateLimitLayer::new(RateLimitPolicy::new(plenty))).await;
}

#[tokio::test(start_paused = true)]
async fn so_does_a_stack_of_them() {
    let stack = ServiceBuilder::new()
        .layer(BulkheadLayer::new(BulkheadPolicy::new(BulkheadConfig::new(1, 0))))
        .layer(BreakerLayer::new(BreakerPolicy::new(BreakerConfig::default())))
        .layer(RetryLayer::new(retry(), Bytes))
        .layer(TimeoutLayer::new(limit()));
    keeps_the_contract(stack).await;
}

#[tokio::test(start_paused = true)]
async fn policies_c25_every_attempt_sends_the_same_bytes_and_is_ready_on_its_own() {
    let book = book();
    book.stalls.store(2, Ordering::SeqCst);
    book.failures.store(2, Ordering::SeqCst);
    let mut service = RetryLayer::new(retry(), Bytes).layer(Probe::new(&book));
    let response = service.ready().await.expect("ready").call(Request(vec![1, 2, 3])).await;
    assert_eq!(response.expect("the third attempt works").body, [1, 2, 3]);
    assert!(book.requests.lock().unwrap().iter().all(|request| request.0 == [1, 2, 3]));
    book.kept(3);
}

#[tokio::test(start_paused = true)]
async fn policies_c25_what_cannot_be_replayed_is_sent_once_and_untouched() {
    let book = book();
    book.failures.store(1, Ordering::SeqCst);
    let mut service = RetryLayer::new(retry(), Bytes).layer(Probe::new(&book));
    let error = service.ready().await.expect("ready").call(Request(vec![0, 9])).await;
    let error = error.expect_err("one attempt, which fails");
    assert_eq!((error.attempts, error.gave_up), (1, GiveUp::BodyNotReplayable));
    assert_eq!(error.source, Broken(Failure::TRANSIENT));
    assert_eq!(*book.requests.lock().unwrap(), [Request(vec![0, 9])]);
    book.kept(1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_breaks_between_attempts_is_left_alone() {
    let book = book();
    book.failures.store(1, Ordering::SeqCst);
    let mut service = RetryLayer::new(retry(), Bytes).layer(Probe::new(&book));
    let call = service.ready().await.expect("ready").call(Request(vec![1]));
    book.broken.store(1, Ordering::SeqCst);
    let error = call.await.expect_err("there is nobody for a second attempt");
    assert_eq!((error.attempts, error.gave_up), (1, GiveUp::Permanent));
    assert_eq!(error.failure, Failure::TRANSIENT, "what the first attempt said");
    drop(service);
    book.kept(1);
}

#[tokio::test(start_paused = true)]
async fn a_judge_of_responses_repeats_them_and_hands_the_last_one_back() {
    let book = book();
    let judge = |answer: &Result<Response, Broken>| {
        answer.as_ref().is_ok_and(|r| r.body == [5]).then_some(Failure::TRANSIENT)
    };
    let layer = RetryLayer::new(retry(), Bytes).judged_by(judge);
    let mut service = layer.layer(Probe::new(&book));
    let response = service.ready().await.expect("ready").call(Request(vec![5])).await;
    assert_eq!(response.expect("the last response, readable").body, [5]);
    book.kept(3);
}

#[tokio::test(start_paused = true)]
async fn requests_that_clone_need_no_replay_of_their_own() {
    let failing = tower::service_fn(|n: u32| async move {
        if n > 1 { Ok(n) } else { Err(Broken(Failure::NOT_SENT)) }
    });
    let mut service = RetryLayer::new(retry(), Cloned(Repeatable::Unsafe)).layer(failing);
    let error = service.ready().await.expect("ready").call(1).await.expect_err("it fails");
    assert_eq!((error.attempts, error.gave_up), (3, GiveUp::AttemptsSpent));
    assert_eq!(service.ready().await.expect("ready").call(2).await, Ok(2));
}
