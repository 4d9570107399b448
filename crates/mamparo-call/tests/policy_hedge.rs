//! What a free-standing hedge knows of the latencies, and what it does not do without need.

#![expect(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::future::{Future, pending};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use mamparo_call::policy::{HedgePolicy, MetricsListener, PolicyEvent, RetryPolicy};
use mamparo_call::{Context as Request, Failure, Repeatable, clock};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use metrics_exporter_prometheus::PrometheusBuilder;
use support::{Broken, millis};

const DOWN: Broken = Broken(Failure::TRANSIENT);

fn every(delay: u64, extra: u32) -> HedgePolicy {
    HedgePolicy::new(HedgeConfig { after: HedgeAfter::Fixed(millis(delay)), extra })
}

fn spent() -> Arc<RetryBudget> {
    Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve: 0 }))
}

async fn takes(time: u64, result: Result<(), Broken>) -> Result<(), Broken> {
    tokio::time::sleep(millis(time)).await;
    result
}

/// Hedges after the 95th percentile, of two hundred answers that took 40 ms each.
async fn by_quantile() -> HedgePolicy {
    let hedge = HedgePolicy::new(HedgeConfig::default());
    for _ in 0..200 {
        hedge.call(Repeatable::Unsafe, |_| takes(40, Ok(()))).await.expect("it works");
    }
    hedge
}

/// How many copies a call that hangs for half a second gets.
async fn copies(hedge: &HedgePolicy) -> u32 {
    // Longer than a delay is kept.
    tokio::time::advance(Duration::from_secs(2)).await;
    let sent = AtomicU32::new(0);
    let call = hedge.call(Repeatable::Idempotent, async |_| {
        sent.fetch_add(1, Ordering::SeqCst);
        takes(500, Ok(())).await
    });
    call.await.expect("it works");
    sent.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_dependency_with_a_slow_tail_is_hedged() {
    assert_eq!(copies(&by_quantile().await).await, 2);
}

/// Whoever forgets those that an outer limit cut off sees none but quick answers, and hedges ever
/// more.
#[tokio::test(start_paused = true)]
async fn calls_that_were_given_up_by_their_callers_count_as_slow() {
    let hedge = by_quantile().await;
    for _ in 0..20 {
        let call = hedge.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>());
        tokio::time::timeout(millis(700), call).await.expect_err("it hangs");
    }
    assert_eq!(copies(&hedge).await, 1, "one in eleven hangs: slow as a whole");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_at_once_says_nothing() {
    let hedge = by_quantile().await;
    for _ in 0..20 {
        let call = hedge.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>());
        tokio::time::timeout(millis(5), call).await.expect_err("it did not wait");
    }
    assert_eq!(copies(&hedge).await, 2);
}

/// A limit within the copies ends them with an error, and that takes as long.
#[tokio::test(start_paused = true)]
async fn attempts_that_failed_late_count_as_slow() {
    let hedge = by_quantile().await;
    for _ in 0..20 {
        hedge.call(Repeatable::Unsafe, |_| takes(700, Err(DOWN))).await.expect_err("a timeout");
    }
    assert_eq!(copies(&hedge).await, 1);
}

/// Whoever only notes the winners sees a dependency that gets faster with each hedge.
#[tokio::test(start_paused = true)]
async fn the_copy_that_lost_counts_as_slow() {
    let hedge = by_quantile().await;
    for _ in 0..20 {
        let call = hedge.call(Repeatable::Idempotent, |copy| async move {
            if copy == 1 { pending().await } else { takes(1, Ok(())).await }
        });
        call.await.expect("the hedge works");
    }
    assert_eq!(copies(&hedge).await, 1);
}

#[tokio::test(start_paused = true)]
async fn only_a_budget_of_its_own_is_paid_into() {
    let own = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 1.0, reserve: 9 }));
    while own.withdraw().is_some() {}
    let alone = every(50, 1).with_budget(Arc::clone(&own));
    alone.call(Repeatable::Keyed, |_| takes(1, Ok(()))).await.expect("it works");
    assert_eq!(own.left(), 1);
    let retry = RetryPolicy::new(Retry::NONE).with_budget(Arc::clone(&own));
    let within = every(50, 1).with_budget_of(&retry);
    within.call(Repeatable::Keyed, |_| takes(1, Ok(()))).await.expect("it works");
    assert_eq!(own.left(), 1, "the retry around it pays in for both");
    within.call(Repeatable::Keyed, |_| takes(500, Ok(()))).await.expect("it works");
    assert_eq!(own.left(), 0, "and both draw on it");
}

/// Outside of a runtime a timer would panic.
#[test]
fn what_may_not_run_twice_sets_no_timer() {
    let hedge = every(50, 1);
    for repeatable in [Repeatable::Unsafe, Repeatable::OneShot] {
        let mut call = Box::pin(hedge.call(repeatable, |_| pending::<Result<(), Broken>>()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(cx).is_pending(), "{repeatable:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mistyped_number_of_copies_is_three() {
    let (hedge, sent) = (every(0, u32::MAX), AtomicU32::new(0));
    let call = hedge.call(Repeatable::Idempotent, async |_| {
        sent.fetch_add(1, Ordering::SeqCst);
        takes(500, Ok(())).await
    });
    call.await.expect("it works");
    assert_eq!(sent.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_is_denied_says_why_and_once() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let hedge = every(50, 3).with_budget(spent()).listened_by(move |event: &PolicyEvent| {
        heard.lock().expect("nobody panicked").push(event.slug());
    });
    hedge.call(Repeatable::Keyed, |_| takes(500, Ok(()))).await.expect("it works");
    assert_eq!(*said.lock().expect("nobody panicked"), ["budget-spent"]);
    let soon = Request::default().with_budget(clock::now(), millis(55));
    let call = hedge.call(Repeatable::Keyed, |_| takes(500, Ok(())));
    soon.scope(call).await.expect("it works");
    assert_eq!(*said.lock().expect("nobody panicked"), ["budget-spent", "deadline-too-near"]);
}

/// Nothing was denied: all that are allowed were sent.
#[tokio::test(start_paused = true)]
async fn after_the_last_copy_nothing_is_due() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let hedge = every(50, 1).listened_by(move |event: &PolicyEvent| {
        heard.lock().expect("nobody panicked").push(event.slug());
    });
    hedge.call(Repeatable::Keyed, |_| takes(500, Ok(()))).await.expect("it works");
    assert_eq!(*said.lock().expect("nobody panicked"), ["hedged"]);
}

#[test]
fn what_the_budget_did_not_allow_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    metrics::with_local_recorder(&recorder, || {
        let count = || MetricsListener::new("orders", "search");
        let hedge = every(50, 3).with_budget(spent()).listened_by(count());
        let retry = RetryPolicy::new(Retry::default()).with_budget(spent()).listened_by(count());
        runtime.expect("a runtime").block_on(async {
            hedge.call(Repeatable::Keyed, |_| takes(500, Ok(()))).await.expect("it works");
            retry.call(Repeatable::Keyed, |_| takes(1, Err(DOWN))).await.expect_err("no budget");
        });
    });
    let text = handle.render();
    let labels = r#"service="orders",dependency="search""#;
    for line in [
        format!(r#"mamparo_hedges_denied_total{{{labels},reason="budget-spent"}} 1"#),
        format!("mamparo_retry_budget_spent_total{{{labels}}} 1"),
    ] {
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
}
