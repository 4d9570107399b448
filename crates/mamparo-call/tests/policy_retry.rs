//! What a free-standing retry does at the edges of its time: nothing is sent too late, and nothing is
//! kept of what was not sent.

mod support;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use mamparo_call::policy::{BreakerPolicy, PolicyEvent, RetryPolicy};
use mamparo_call::tower::{Cloned, RetryLayer};
use mamparo_call::{Context as Request, Failure, Repeatable, clock, retry_in_process};
use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::call::retry::{GiveUp, Retry};
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use support::{Broken, caught, millis, touchy};
use tower::{Service, ServiceBuilder, service_fn};

const DOWN: Broken = Broken(Failure::TRANSIENT);

/// Three attempts, 100 ms apart.
fn retry() -> Retry {
    let backoff = Backoff { factor: 1.0, jitter: Jitter::None, ..Backoff::default() };
    Retry { attempts: 3, backoff }
}

fn five() -> Arc<RetryBudget> {
    Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve: 5 }))
}

/// Polls it, which makes it wait; then nobody wakes it for `asleep`; then it is polled again. The
/// caller waits for a second in all.
async fn oversleeps<F: Future>(future: F, asleep: u64) -> Poll<F::Output> {
    let context = Request::default().with_budget(clock::now(), millis(1_000));
    let mut future = Box::pin(future);
    let mut poll = async || {
        let once = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
        context.clone().scope(once).await
    };
    assert!(poll().await.is_pending(), "it waits for the next attempt");
    tokio::time::advance(millis(asleep)).await;
    poll().await
}

/// Work that fails each time, and how often it was begun.
fn down(sent: &AtomicU32) -> Result<(), Broken> {
    sent.fetch_add(1, Ordering::SeqCst);
    Err(DOWN)
}

#[tokio::test(start_paused = true)]
async fn policies_c24_a_retry_that_is_woken_too_late_is_not_sent() {
    // Ten milliseconds are too little for an attempt, as in front of each one.
    for (asleep, attempts) in [(100, 2), (989, 2), (990, 1), (1_000, 1), (60_000, 1)] {
        let (sent, budget) = (AtomicU32::new(0), five());
        let policy = RetryPolicy::new(retry()).with_budget(Arc::clone(&budget));
        let call = policy.call(Repeatable::Idempotent, async |_| down(&sent));
        let end = oversleeps(call, asleep).await;
        assert_eq!(sent.load(Ordering::SeqCst), attempts, "after {asleep} ms");
        if let Poll::Ready(end) = end {
            let error = end.expect_err("it failed");
            let said = (error.source, error.attempts, error.gave_up, error.failure);
            assert_eq!(said, (DOWN, attempts, GiveUp::DeadlineTooNear, Failure::TRANSIENT));
        }
        // The call is over by now: what was not sent was not spent.
        assert_eq!(budget.left(), 6 - u64::from(attempts), "after {asleep} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c24_nor_is_that_of_a_layer() {
    for (asleep, attempts) in [(100, 2), (989, 2), (990, 1), (60_000, 1)] {
        let (sent, budget) = (Arc::new(AtomicU32::new(0)), five());
        let policy = RetryPolicy::new(retry()).with_budget(Arc::clone(&budget));
        let counted = Arc::clone(&sent);
        let mut service = ServiceBuilder::new()
            .layer(RetryLayer::new(policy, Cloned(Repeatable::Idempotent)))
            .service(service_fn(move |()| std::future::ready(down(&counted))));
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        let end = oversleeps(service.call(()), asleep).await;
        assert_eq!(sent.load(Ordering::SeqCst), attempts, "after {asleep} ms");
        if let Poll::Ready(end) = end {
            assert_eq!(end.expect_err("it failed").gave_up, GiveUp::DeadlineTooNear);
        }
        assert_eq!(budget.left(), 6 - u64::from(attempts), "after {asleep} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c24_nor_is_a_transaction() {
    for (asleep, attempts) in [(989, 2), (990, 1), (60_000, 1)] {
        let sent = AtomicU32::new(0);
        let transaction = retry_in_process("order", retry(), async |_| down(&sent));
        assert!(oversleeps(transaction, asleep).await.is_ready());
        assert_eq!(sent.load(Ordering::SeqCst), attempts, "after {asleep} ms");
    }
}

/// The judge called it a failure, and it is the last answer that there is.
#[tokio::test(start_paused = true)]
async fn a_value_that_was_taken_for_a_failure_is_handed_back_when_it_is_too_late() {
    let policy = RetryPolicy::new(retry());
    let busy = |result: &Result<u16, Broken>| result.is_ok().then_some(Failure::TRANSIENT);
    let call = policy.call_judged(Repeatable::Idempotent, busy, async |_| Ok(503));
    let Poll::Ready(end) = oversleeps(call, 60_000).await else { panic!("it is too late") };
    assert_eq!(end.expect("the answer"), 503);
}

#[tokio::test(start_paused = true)]
async fn policies_c18_a_retry_that_has_ended_stays_silent() {
    let context = Request::default().with_budget(clock::now(), millis(1_000));
    let policy = RetryPolicy::new(retry());
    let mut call = Box::pin(policy.call(Repeatable::Idempotent, async |_| Err::<(), _>(DOWN)));
    for asleep in [60_000, 0, 0] {
        let once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx)));
        let before = context.clone().scope(once).await;
        assert!(before.is_pending(), "{asleep}");
        if asleep > 0 {
            tokio::time::advance(millis(asleep)).await;
            let once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx)));
            assert!(context.clone().scope(once).await.is_ready());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_that_gives_up_says_so_once() {
    let said = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&said);
    let policy = RetryPolicy::new(retry()).listened_by(move |event: &PolicyEvent| {
        if matches!(event, PolicyEvent::GaveUp { attempts: 1, reason: GiveUp::DeadlineTooNear }) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let sent = AtomicU32::new(0);
    let call = policy.call(Repeatable::Idempotent, async |_| down(&sent));
    assert!(oversleeps(call, 60_000).await.is_ready());
    assert_eq!(said.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn policies_c14_what_an_own_guard_refused_neither_pays_in_nor_costs_a_token() {
    let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.5, reserve: 5 }));
    let policy = RetryPolicy::new(retry()).with_budget(Arc::clone(&budget));
    let breaker = BreakerPolicy::new(touchy(1));
    let call = async |result: Result<(), Broken>| {
        let attempt = |_| breaker.call(async { result.clone() });
        policy.call(Repeatable::Idempotent, attempt).await
    };
    // The first attempt opens the circuit, and the second is refused.
    assert_eq!(call(Err(DOWN)).await.expect_err("it is open").attempts, 2);
    assert_eq!(budget.left(), 5, "the token of what was not sent is there again");
    while budget.withdraw().is_some() {}
    for _ in 0..100 {
        call(Ok(())).await.expect_err("it is open");
    }
    assert_eq!(budget.left(), 0, "a fast no is no traffic");
    tokio::time::advance(std::time::Duration::from_secs(30)).await;
    for _ in 0..4 {
        call(Ok(())).await.expect("it is up again");
    }
    assert_eq!(budget.left(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_pays_in_however_it_ends() {
    let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 1.0, reserve: 9 }));
    while budget.withdraw().is_some() {}
    let policy = RetryPolicy::new(Retry::NONE).with_budget(Arc::clone(&budget));
    let call = |work: fn() -> Result<(), Broken>| {
        policy.call(Repeatable::Idempotent, move |_| async move { work() })
    };
    call(|| Ok(())).await.expect("it works");
    assert_eq!(budget.left(), 1);
    call(|| Err(DOWN)).await.expect_err("it fails");
    assert_eq!(budget.left(), 2);
    let hangs =
        policy.call(Repeatable::Idempotent, |_| std::future::pending::<Result<(), Broken>>());
    tokio::time::timeout(millis(5), hangs).await.expect_err("its caller left");
    assert_eq!(budget.left(), 3);
    drop(call(|| Ok(())));
    assert_eq!(budget.left(), 3, "never begun");
    let bug = caught(std::panic::AssertUnwindSafe(call(|| panic!("a bug of the work")))).await;
    assert!(bug.is_err());
    assert_eq!(budget.left(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_pays_in_once_however_often_it_is_repeated() {
    let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 1.0, reserve: 9 }));
    let policy = RetryPolicy::new(retry()).with_budget(Arc::clone(&budget));
    while budget.left() > 2 && budget.withdraw().is_some() {}
    let failed = policy.call(Repeatable::Idempotent, |_| std::future::ready(Err::<(), _>(DOWN)));
    assert_eq!(failed.await.expect_err("three attempts").attempts, 3);
    assert_eq!(budget.left(), 1, "two, and one for the call, less two for its retries");
}

/// Waits that grow from the one before grow from the one that was made.
#[tokio::test(start_paused = true)]
async fn a_decorrelated_wait_knows_the_one_before() {
    let longest = Arc::new(std::sync::Mutex::new(std::time::Duration::ZERO));
    let heard = Arc::clone(&longest);
    let backoff =
        Backoff { jitter: Jitter::Decorrelated, cap: millis(60_000), ..Backoff::default() };
    let policy =
        RetryPolicy::new(Retry { attempts: 3, backoff }).listened_by(move |event: &PolicyEvent| {
            if let PolicyEvent::Retrying { attempt: 2, after } = event {
                let mut longest = heard.lock().expect("nobody panicked");
                *longest = longest.max(*after);
            }
        });
    let named = Failure::TRANSIENT.with_retry_after(Some(millis(1_000)));
    for _ in 0..50 {
        let call = policy.call(Repeatable::Idempotent, async |attempt| {
            Err::<(), _>(Broken(if attempt == 1 { named } else { Failure::TRANSIENT }))
        });
        call.await.expect_err("three attempts");
    }
    // Up to 3 s; without the wait before it would be 300 ms at most.
    let longest = *longest.lock().expect("nobody panicked");
    assert!((millis(301)..=millis(3_000)).contains(&longest), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_attempt_left_open_stays_open() {
    let policy = RetryPolicy::new(Retry { attempts: 2, ..retry() });
    let call = policy.call(Repeatable::Idempotent, async |attempt| {
        Err::<(), _>(Broken(if attempt == 1 { Failure::UNKNOWN } else { Failure::NOT_SENT }))
    });
    let whole = call.await.expect_err("both fail").failure;
    assert_eq!((whole.kind, whole.sent), (Failure::UNKNOWN.kind, Failure::UNKNOWN.sent));
}

#[tokio::test(start_paused = true)]
async fn one_layer_repeats_and_the_one_around_it_does_not() {
    let (inner, outer, sent) =
        (RetryPolicy::new(retry()), RetryPolicy::new(retry()), AtomicU32::new(0));
    let attempt = |_| inner.call(Repeatable::Idempotent, async |_| down(&sent));
    let error = outer.call(Repeatable::Idempotent, attempt).await.expect_err("it is down");
    assert_eq!((sent.load(Ordering::SeqCst), error.gave_up), (3, GiveUp::ToldNotTo));
}
