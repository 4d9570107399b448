//! Attempts that go on without their caller: counted, bounded, and without a say.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "the runtime of each test ends with it; helpers of tests end the test"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mamparo_call::{Context, Dependency, Failure, Repeatable, clock};
use mamparo_core::call::breaker::Phase;
use support::{Answer, Broken, catalog, millis, touchy};

fn detaching(max: u32) -> Dependency {
    catalog()
        .retry(1, mamparo_core::backoff::Backoff::default())
        .bulkhead(1, 0)
        .detached(max, |work| drop(tokio::spawn(work)))
        .build()
        .expect("sound")
}

/// A call whose attempt takes two seconds, of which the caller waits 0.7.
async fn slow_call(dependency: &Dependency, done: &Arc<AtomicU32>, end: Result<(), Broken>) {
    let answer: Answer<()> = dependency
        .call_detached(Repeatable::Unsafe, |_| {
            let (done, end) = (Arc::clone(done), end.clone());
            async move {
                tokio::time::sleep(millis(2_000)).await;
                assert_eq!(Context::current_deadline(), None, "its caller's was another's");
                assert_eq!(Context::current().request_id.as_deref(), Some("r-1"));
                done.fetch_add(1, Ordering::Relaxed);
                end
            }
        })
        .await;
    answer.expect_err("it times out");
}

fn in_request<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let context = Context { request_id: Some("r-1".into()), ..Context::default() };
    context.with_budget(clock::now(), Duration::from_secs(5)).scope(work)
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_times_out_goes_on_to_its_end_and_the_slot_is_free() {
    let (payments, done) = (detaching(10), Arc::default());
    in_request(slow_call(&payments, &done, Ok(()))).await;
    let seen = payments.snapshot();
    assert_eq!((seen.detached, seen.in_flight, seen.gave_up), (1, 0, 1));
    let next: Answer<()> = payments.call(Repeatable::Unsafe, async |_| Ok(())).await;
    next.expect("the slot is free");
    tokio::time::sleep(millis(2_000)).await;
    assert_eq!((done.load(Ordering::Relaxed), payments.snapshot().detached), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn so_does_one_whose_caller_goes_away_but_not_one_that_never_began() {
    let (payments, done) = (detaching(10), Arc::new(AtomicU32::new(0)));
    let call = in_request(slow_call(&payments, &done, Ok(())));
    tokio::time::timeout(millis(100), call).await.expect_err("the caller goes away");
    drop(in_request(slow_call(&payments, &done, Ok(()))));
    assert_eq!(payments.snapshot().detached, 1);
    tokio::time::sleep(millis(3_000)).await;
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_background_cuts_off_and_the_late_failure_has_no_say() {
    let payments = catalog()
        .retry(1, mamparo_core::backoff::Backoff::default())
        .breaker(touchy(1))
        .detached(1, |work| drop(tokio::spawn(work)))
        .build()
        .expect("sound");
    let done = Arc::default();
    let down = Err(Broken(Failure::TRANSIENT));
    let (first, second) =
        (slow_call(&payments, &done, down.clone()), slow_call(&payments, &done, down));
    in_request(async { tokio::join!(first, second) }).await;
    assert_eq!(payments.snapshot().detached, 1, "one goes on, the other is cut off");
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(payments.breaker_state(), Some(Phase::Open), "by the timeouts");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((done.load(Ordering::Relaxed), payments.snapshot().detached), (1, 0));
    assert_eq!(payments.breaker_state(), Some(Phase::HalfOpen), "its late failure opened nothing");
}

#[tokio::test(start_paused = true)]
async fn without_a_background_it_is_an_ordinary_call() {
    let (payments, done) = (catalog().build().expect("sound"), Arc::default());
    in_request(slow_call(&payments, &done, Ok(()))).await;
    tokio::time::sleep(millis(3_000)).await;
    assert_eq!((done.load(Ordering::Relaxed), payments.snapshot().detached), (0, 0));
}

/// As `tokio::spawn` does where there is no runtime (any more).
#[tokio::test(start_paused = true)]
async fn policies_c20_a_spawner_that_panics_cuts_off_and_ends_neither_the_call_nor_the_process() {
    let payments = catalog()
        .bulkhead(1, 0)
        .detached(1, |work| {
            drop(work);
            panic!("there is no reactor running");
        })
        .build()
        .expect("sound");
    let done = Arc::default();
    for _ in 0..2 {
        in_request(slow_call(&payments, &done, Ok(()))).await;
        let seen = payments.snapshot();
        assert_eq!((seen.detached, seen.in_flight), (0, 0), "its place is free");
    }
    // A panic of the caller drops the attempt; a second one would end the process.
    let call = in_request(slow_call(&payments, &done, Ok(())));
    let caller = std::panic::AssertUnwindSafe(async {
        let mut call = std::pin::pin!(call);
        std::future::poll_fn(|cx| {
            assert!(call.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        panic!("a bug of the caller");
    });
    support::caught::<()>(caller).await.expect_err("the caller's own");
    let seen = payments.snapshot();
    assert_eq!((seen.detached, seen.in_flight, seen.abandoned), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lost_to_its_hedge_goes_on_as_well() {
    let after = mamparo_core::call::hedge::HedgeAfter::Fixed(millis(100));
    let search = catalog()
        .retry(1, mamparo_core::backoff::Backoff::default())
        .hedge(mamparo_core::call::hedge::HedgeConfig { after, extra: 1 })
        .detached(1, |work| drop(tokio::spawn(work)))
        .build()
        .expect("sound");
    let done = Arc::new(AtomicU32::new(0));
    let answer: Answer<u32> = search
        .call_detached(Repeatable::Idempotent, |attempt| {
            let done = Arc::clone(&done);
            async move {
                tokio::time::sleep(millis(if attempt.number == 1 { 600 } else { 1 })).await;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(attempt.number)
            }
        })
        .await;
    assert_eq!((answer.expect("the hedge wins"), search.snapshot().detached), (2, 1));
    tokio::time::sleep(millis(600)).await;
    assert_eq!((done.load(Ordering::Relaxed), search.snapshot().detached), (2, 0));
}

#[test]
fn a_plan_that_detaches_needs_somebody_to_run_it() {
    let plan = mamparo_core::call::plan::Plan {
        detached: Some(5),
        ..mamparo_core::call::plan::Plan::new("payments")
    };
    let error = Dependency::from_plan(plan).expect_err("nobody runs it");
    assert!(error.to_string().contains("needs a spawner"), "{error}");
}
