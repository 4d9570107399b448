//! The whole pipeline in front of a service: what a plan says of hedges holds there too, and requests
//! that can be made again once only are.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "support/probe.rs"]
mod probe;
mod support;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mamparo_call::tower::{DependencyLayer, DependencyService, Replay};
use mamparo_call::{CallError, Dependency, Repeatable, clock};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::retry::GiveUp;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use probe::{Book, Probe, Request, Response};
use support::{Broken, catalog, millis, touchy};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Makes that many copies of requests, and no more.
#[derive(Debug, Clone)]
struct Copies(Arc<AtomicU32>);

impl Copies {
    fn of(copies: u32) -> Self {
        Self(Arc::new(AtomicU32::new(copies)))
    }

    fn left(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Replay<Request> for Copies {
    fn repeatable(&self, _: &Request) -> Repeatable {
        Repeatable::Idempotent
    }

    fn replay(&self, request: &Request) -> Option<Request> {
        let taken = |left: u32| left.checked_sub(1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).ok()?;
        Some(Request(request.0.clone()))
    }
}

fn hedged(extra: u32) -> mamparo_call::DependencyBuilder {
    let after = HedgeAfter::Fixed(millis(100));
    catalog().retry(1, Backoff::default()).hedge(HedgeConfig { after, extra }).bulkhead(1, 0)
}

fn before(
    dependency: &Dependency,
    copies: u32,
    book: &Arc<Book>,
) -> DependencyService<Probe, Copies> {
    DependencyLayer::new(dependency.clone(), Copies::of(copies)).layer(Probe::new(book))
}

async fn ask(
    service: &mut DependencyService<Probe, Copies>,
    body: u8,
) -> Result<Response, CallError<Broken>> {
    service.ready().await.expect("ready").call(Request(vec![body])).await
}

#[tokio::test(start_paused = true)]
async fn policies_c25_when_the_copies_run_out_the_failure_is_the_answer_at_once() {
    for copies in 0..3 {
        let book = Arc::<Book>::default();
        book.failures.store(9, Ordering::SeqCst);
        let catalog = catalog().retry(5, Backoff::default()).breaker(touchy(1)).build();
        let catalog = catalog.expect("sound");
        catalog.disable_breaker();
        let error = ask(&mut before(&catalog, copies, &book), 7).await.expect_err("it fails");
        let CallError::Failed { attempts, gave_up, .. } = error else { panic!("{error:?}") };
        assert_eq!((attempts, gave_up), (copies + 1, GiveUp::BodyNotReplayable));
        book.kept(copies as usize + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_request_is_hedged_as_the_plan_says() {
    let book = Arc::<Book>::default();
    book.hangs.store(1, Ordering::SeqCst);
    book.stalls.store(2, Ordering::SeqCst);
    let search = hedged(2).breaker(touchy(1)).build().expect("sound");
    let began = clock::now();
    let mut service = before(&search, 9, &book);
    assert_eq!(ask(&mut service, 7).await.expect("the hedge answers").body, [7]);
    assert_eq!(clock::now().since(began), millis(100));
    assert!(book.requests.lock().unwrap().iter().all(|request| request.0 == [7]));
    let seen = search.snapshot();
    assert_eq!((seen.attempts, seen.hedges, seen.retries, seen.in_flight), (2, 1, 0, 0));
    assert_eq!(seen.breaker, Some(Phase::Closed), "cut off is no verdict");
    // A quick answer is not hedged.
    ask(&mut service, 8).await.expect("the slot is free");
    assert_eq!(search.snapshot().hedges, 1);
    drop(service);
    book.kept(3);
}

#[tokio::test(start_paused = true)]
async fn hedges_that_fail_or_time_out_end_like_those_of_a_call() {
    let book = Arc::<Book>::default();
    let search = hedged(2).build().expect("sound");
    let mut service = before(&search, 9, &book);
    book.hangs.store(3, Ordering::SeqCst);
    let began = clock::now();
    let error = ask(&mut service, 1).await.expect_err("all hang");
    assert!(matches!(error, CallError::TimedOut { attempts: 3, .. }), "{error:?}");
    assert_eq!(clock::now().since(began), millis(900), "each has 700 ms of its own");
    book.hangs.store(1, Ordering::SeqCst);
    book.failures.store(2, Ordering::SeqCst);
    let error = ask(&mut service, 2).await.expect_err("one hangs, the others fail");
    assert!(matches!(error, CallError::TimedOut { attempts: 3, .. }), "{error:?}");
    let seen = search.snapshot();
    assert_eq!((seen.hedges, seen.in_flight, seen.gave_up), (4, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn both_failing_is_one_round_that_the_retry_repeats() {
    let book = Arc::<Book>::default();
    book.hangs.store(2, Ordering::SeqCst);
    let backoff = Backoff { base: millis(10), cap: millis(10), ..Backoff::default() };
    let search = hedged(1).retry(2, backoff).build().expect("sound");
    let answer = ask(&mut before(&search, 9, &book), 7).await;
    assert_eq!(answer.expect("the third attempt works").body, [7]);
    let seen = search.snapshot();
    assert_eq!((seen.attempts, seen.retries, seen.hedges), (3, 1, 1));
    book.kept(3);
}

#[tokio::test(start_paused = true)]
async fn policies_c28_without_budget_or_copy_no_hedge_is_sent_and_the_request_goes_on() {
    let none = RetryBudgetConfig { ratio: 0.0, reserve: 0 };
    for (copies, budget, sent) in [(9, Some(none), 1), (0, None, 1), (1, None, 2), (9, None, 3)] {
        let reached = AtomicU32::new(0);
        let search = hedged(2).retry_budget(budget).build().expect("sound");
        let slow = service_fn(|request: Request| {
            reached.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(millis(500)).await;
                Ok::<_, Broken>(request.0)
            }
        });
        let layer = DependencyLayer::new(search.clone(), Copies::of(copies));
        let began = clock::now();
        let answer = layer.layer(slow).oneshot(Request(vec![7])).await;
        assert_eq!(answer.expect("the first answers"), [7]);
        assert_eq!(clock::now().since(began), millis(500));
        assert_eq!(reached.load(Ordering::SeqCst), sent, "{copies} copies");
        assert_eq!(
            (search.snapshot().hedges, search.snapshot().in_flight),
            (u64::from(sent) - 1, 0)
        );
    }
}

fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn policies_c15_a_hedged_request_gives_everything_back_from_every_drop() {
    for stalls in 0..2 {
        for hangs in 0..4 {
            for polls in 0..24 {
                let book = Arc::<Book>::default();
                book.hangs.store(hangs, Ordering::SeqCst);
                book.stalls.store(stalls, Ordering::SeqCst);
                let budget = RetryBudgetConfig { ratio: 0.0, reserve: 5 };
                let search = hedged(2).retry_budget(Some(budget)).breaker(touchy(1)).build();
                let search = search.expect("sound");
                let copies = Copies::of(9);
                let mut service =
                    DependencyLayer::new(search.clone(), copies.clone()).layer(Probe::new(&book));
                let request = Request(vec![7]);
                let mut call = Box::pin(service.ready().await.expect("ready").call(request));
                for _ in 0..polls {
                    if poll_once(&mut call).is_ready() {
                        assert_eq!(search.snapshot().in_flight, 0, "before it is dropped");
                        assert!(poll_once(&mut call).is_pending(), "silent after its end");
                        break;
                    }
                    tokio::time::advance(millis(50)).await;
                }
                drop(call);
                let seen = search.snapshot();
                let told = format!("{stalls} stalls, {hangs} hangs, {polls} polls: {seen:?}");
                assert_eq!((seen.in_flight, seen.queued), (0, 0), "{told}");
                let left = search.explain().retry_budget.expect("a budget").left;
                assert_eq!(left, 5 - seen.hedges, "{told}");
                assert!(copies.left() >= 9 - 1 - seen.hedges as u32, "{told}");
                assert_eq!(seen.calls, seen.succeeded + seen.gave_up + seen.abandoned, "{told}");
                tokio::time::advance(Duration::from_secs(31)).await;
                ask_later(&search).await;
            }
        }
    }
}

async fn ask_later(search: &Dependency) {
    let next = search.call(Repeatable::Unsafe, async |_| Ok::<_, Broken>(()));
    next.await.expect("the slot can be had");
    assert_eq!(search.breaker_state(), Some(Phase::Closed));
}

#[tokio::test(start_paused = true)]
async fn policies_c20_a_hedge_that_panics_is_a_failure_and_settles_the_request() {
    let sent = AtomicU32::new(0);
    let search = hedged(1).breaker(touchy(1)).build().expect("sound");
    let service = service_fn(|_: Request| {
        let number = sent.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(number, 0, "a bug of the service");
            std::future::pending::<Result<(), Broken>>().await
        }
    });
    let layer = DependencyLayer::new(search.clone(), Copies::of(9));
    let call = layer.layer(service).oneshot(Request(vec![7]));
    support::caught(std::panic::AssertUnwindSafe(call)).await.expect_err("it panics");
    let seen = search.snapshot();
    assert_eq!((seen.in_flight, seen.breaker), (0, Some(Phase::Open)));
}
