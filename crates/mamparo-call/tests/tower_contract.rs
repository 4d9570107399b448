//! Each layer in front of a service that writes down every breach of tower's contract.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "support/probe.rs"]
mod probe;
mod support;

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use mamparo_call::fault::{Fake, FaultInjector};
use mamparo_call::policy::{
    AdaptivePolicy, BreakerPolicy, BulkheadPolicy, HedgePolicy, RateLimitPolicy, RetryPolicy,
    ThrottlePolicy, TimeoutPolicy,
};
use mamparo_call::tower::{
    AdaptiveLayer, BreakerLayer, BulkheadLayer, Cloned, DependencyLayer, FaultLayer, HedgeLayer,
    Once, RateLimitLayer, Replay, RetryLayer, ThrottleLayer, TimeoutLayer,
};
use mamparo_call::{CallError, Dependency, Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::BreakerConfig;
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::fault::{Draw, FaultConfig, key_hash};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::{GiveUp, Retry};
use mamparo_core::call::throttle::ThrottleConfig;
use probe::{Book, Probe, Request, Response};
use support::{Broken, catalog, millis, touchy};
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

fn hedge() -> HedgePolicy {
    HedgePolicy::new(HedgeConfig { after: HedgeAfter::Fixed(millis(50)), extra: 1 })
}

fn fake() -> Broken {
    Broken(Failure::TRANSIENT)
}

/// Switched on, with a share of errors.
fn faults(error: f64) -> FaultLayer<fn(Fake) -> Result<Response, Broken>> {
    let config = FaultConfig { enabled: true, error, ..FaultConfig::default() };
    let injector = FaultInjector::new("orders", "catalog", config).expect("sound");
    FaultLayer::new(Arc::new(injector), |_| Err(fake()))
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
    let throttle = ThrottlePolicy::new(ThrottleConfig::default());
    keeps_the_contract(ThrottleLayer::new(throttle)).await;
    let adaptive = AdaptivePolicy::new(AdaptiveConfig::default(), 1);
    keeps_the_contract(AdaptiveLayer::new(adaptive)).await;
    keeps_the_contract(HedgeLayer::new(hedge(), Bytes)).await;
    keeps_the_contract(DependencyLayer::new(catalog().build().expect("sound"), Bytes)).await;
    keeps_the_contract(faults(0.0)).await;
    let off = FaultInjector::new("orders", "catalog", FaultConfig::default()).expect("sound");
    keeps_the_contract(FaultLayer::new(Arc::new(off), |_: Fake| Err(fake()))).await;
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

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_wait_for_a_service_that_is_stuck_and_keeps_its_readiness() {
    let book = book();
    book.stalls.store(u32::MAX, Ordering::SeqCst);
    let breaker = BreakerPolicy::new(touchy(1));
    let mut service = BreakerLayer::new(breaker.clone()).layer(Probe::new(&book));
    let mut poll = || poll_once(poll_fn(|cx| service.poll_ready(cx)));
    assert!(poll().is_pending(), "a closed circuit has to wait");
    breaker.force_open();
    assert!(poll().is_ready());
    let refused = service.call(Request(vec![1])).await.expect_err("open");
    assert_eq!(refused.refused().map(|refused| refused.reason), Some(Refusal::CircuitOpen));
    // The circuit closes between readiness and call: still nobody may be called.
    assert!(poll_once(poll_fn(|cx| service.poll_ready(cx))).is_ready());
    breaker.force_closed();
    let refused = service.call(Request(vec![2])).await.expect_err("not ready");
    assert_eq!(refused.refused().map(|refused| refused.reason), Some(Refusal::CircuitOpen));
    book.kept(0);
    // With a service that is ready, a refusal leaves the readiness for the next request.
    let book = self::book();
    breaker.force_open();
    let mut service = BreakerLayer::new(breaker.clone()).layer(Probe::new(&book));
    let ready = service.ready().await.expect("ready");
    ready.call(Request(vec![1])).await.expect_err("open");
    breaker.force_closed();
    service.call(Request(vec![2])).await.expect("the readiness of before");
    book.kept(1);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_is_ready_on_its_own_and_sends_the_same_bytes() {
    let book = book();
    book.hangs.store(1, Ordering::SeqCst);
    book.stalls.store(1, Ordering::SeqCst);
    let mut service = HedgeLayer::new(hedge(), Bytes).layer(Probe::new(&book));
    let response = service.ready().await.expect("ready").call(Request(vec![4, 2])).await;
    assert_eq!(response.expect("the hedge's").body, [4, 2]);
    drop(service);
    book.kept(2);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_line_takes_the_ready_instance_along() {
    let book = book();
    book.stalls.store(1, Ordering::SeqCst);
    let bulkhead = BulkheadPolicy::new(BulkheadConfig::new(1, 1));
    let mut service = BulkheadLayer::new(bulkhead.clone()).layer(Probe::new(&book));
    let first = service.ready().await.expect("ready").call(Request(vec![1]));
    let second = service.ready().await.expect("ready").call(Request(vec![2]));
    let third = service.ready().await.expect("ready").call(Request(vec![3]));
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (1, 1));
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!(first.expect("it had the slot").body, [1]);
    assert_eq!(second.expect("it waited").body, [2]);
    let refused = third.expect_err("the line is full").refused();
    assert_eq!(refused.map(|refused| refused.reason), Some(Refusal::BulkheadFull));
    // The instance that was ready for the third is kept for the next.
    service.call(Request(vec![4])).await.expect("it works");
    book.kept(3);
}

#[tokio::test(start_paused = true)]
async fn the_whole_pipeline_makes_each_attempt_with_an_instance_that_is_ready() {
    let book = book();
    book.stalls.store(2, Ordering::SeqCst);
    book.failures.store(2, Ordering::SeqCst);
    let catalog = catalog().breaker(touchy(1)).bulkhead(1, 0).build().expect("sound");
    let mut service = DependencyLayer::new(catalog.clone(), Bytes).layer(Probe::new(&book));
    let error = service.ready().await.expect("ready").call(Request(vec![7])).await;
    let CallError::Failed { attempts: 1, gave_up, .. } = error.expect_err("it opens") else {
        panic!("one attempt, which failed")
    };
    assert_eq!(gave_up, GiveUp::CircuitOpen, "an open circuit ends the attempts");
    let refused = service.ready().await.expect("ready").call(Request(vec![8])).await;
    assert!(matches!(refused, Err(CallError::Refused { reason: Refusal::CircuitOpen, .. })));
    book.kept(1);

    let book = self::book();
    book.stalls.store(2, Ordering::SeqCst);
    book.failures.store(2, Ordering::SeqCst);
    let catalog = support::catalog().build().expect("sound");
    let mut service = DependencyLayer::new(catalog.clone(), Bytes).layer(Probe::new(&book));
    let response = service.ready().await.expect("ready").call(Request(vec![7])).await;
    assert_eq!(response.expect("the third attempt works").body, [7]);
    assert!(book.requests.lock().unwrap().iter().all(|request| request.0 == [7]));
    book.failures.store(1, Ordering::SeqCst);
    let once = service.ready().await.expect("ready").call(Request(vec![0])).await;
    assert!(matches!(
        once,
        Err(CallError::Failed { attempts: 1, gave_up: GiveUp::BodyNotReplayable, .. })
    ));
    drop(service);
    book.kept(4);
    let seen = catalog.snapshot();
    assert_eq!((seen.calls, seen.succeeded, seen.attempts, seen.in_flight), (2, 1, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_whole_pipeline_times_out_waits_in_line_and_gives_everything_back() {
    for polls in 0..8 {
        let book = book();
        book.hangs.store(1, Ordering::SeqCst);
        book.stalls.store(1, Ordering::SeqCst);
        let catalog = Dependency::builder("catalog").attempt_timeout(millis(700)).bulkhead(1, 1);
        let catalog = catalog.build().expect("sound");
        let mut service = DependencyLayer::new(catalog.clone(), Bytes).layer(Probe::new(&book));
        let mut hanging = Box::pin(service.ready().await.expect("ready").call(Request(vec![1])));
        assert!(poll_once(hanging.as_mut()).is_pending());
        let mut queued = Box::pin(service.ready().await.expect("ready").call(Request(vec![2])));
        let refused = service.ready().await.expect("ready").call(Request(vec![3])).await;
        assert!(matches!(refused, Err(CallError::Refused { reason: Refusal::BulkheadFull, .. })));
        for poll in 0..polls {
            if poll == 2 {
                tokio::time::advance(millis(700)).await;
                let cut = poll_once(hanging.as_mut());
                assert!(matches!(cut, Poll::Ready(Err(CallError::TimedOut { .. }))));
            }
            if let Poll::Ready(answer) = poll_once(queued.as_mut()) {
                assert_eq!(answer.expect("it waited").body, [2]);
                assert!(poll >= 3, "not before its slot came free");
                book.kept(2);
                break;
            }
            assert!(poll < 7, "it ends");
        }
        drop((queued, hanging));
        let seen = catalog.snapshot();
        assert_eq!((seen.in_flight, seen.queued), (0, 0), "{polls} polls");
        let next = service.call(Request(vec![4])).await;
        assert_eq!(next.expect("the slot can be had").body, [4]);
    }
}

#[tokio::test(start_paused = true)]
async fn injected_errors_are_seen_like_real_ones_and_reach_nobody() {
    let book = book();
    let layer = ServiceBuilder::new().layer(RetryLayer::new(retry(), Bytes)).layer(faults(1.0));
    let mut service = layer.service(tower::service_fn(|_: Request| async {
        Ok::<Response, Broken>(Response { body: Vec::new() })
    }));
    let error = service.ready().await.expect("ready").call(Request(vec![1])).await;
    assert_eq!(error.expect_err("injected").attempts, 3);
    book.kept(0);
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn faults_by_key_befall_the_clients_that_they_befall_everywhere() {
    let config =
        FaultConfig { enabled: true, draw: Draw::Key, error: 0.5, ..FaultConfig::default() };
    let injector = FaultInjector::new("orders", "catalog", config).expect("sound");
    let layer = FaultLayer::new(Arc::new(injector), |_: Fake| Err(fake()));
    let mut service = layer.layer(tower::service_fn(|_: Request| async {
        Ok::<Response, Broken>(Response { body: Vec::new() })
    }));
    let mut hit = 0;
    for client in (0..100).map(|n| format!("c-{n}")) {
        let expected = config.decide(key_hash(client.as_bytes())).is_some();
        let context = mamparo_call::Context::default();
        let context = mamparo_call::Context { client: Some(client.as_str().into()), ..context };
        for _ in 0..3 {
            let service = service.ready().await.expect("ready");
            let request = Request(vec![1]);
            let answer = context.clone().scope(async { service.call(request).await }).await;
            assert_eq!(answer.is_err(), expected, "{client}");
        }
        hit += u32::from(expected);
    }
    assert!((30..70).contains(&hit), "{hit}");
}
