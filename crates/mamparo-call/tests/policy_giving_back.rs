//! Whatever becomes of a guarded future, its policies get everything back: it is dropped at each
//! await, it panics at each poll, it is kept after its end.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod support;
#[path = "support/work.rs"]
mod work;

use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mamparo_call::policy::{
    AdaptivePolicy, BreakerPolicy, BulkheadPolicy, GuardError, HedgePolicy, RetryPolicy,
    ThrottlePolicy, TimeoutPolicy,
};
use mamparo_call::tower::{BreakerLayer, BulkheadLayer, Cloned, RetryLayer, TimeoutLayer};
use mamparo_call::{Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::call::throttle::ThrottleConfig;
use support::{Broken, millis, touchy};
use tower::{Service, ServiceBuilder, service_fn};
use work::{End, Seen, Work, poll_and_drop, poll_once};

fn quick_retry() -> RetryPolicy {
    let backoff = Backoff { base: millis(1), ..Backoff::default() };
    RetryPolicy::new(Retry { attempts: 3, backoff })
}

fn one_slot() -> BulkheadPolicy {
    BulkheadPolicy::new(BulkheadConfig::new(1, 2))
}

/// A breaker that is about to let its one probe through.
async fn half_open() -> BreakerPolicy {
    let breaker = BreakerPolicy::new(touchy(1));
    let tripped = breaker.call(async { Err::<(), _>(Broken(Failure::TRANSIENT)) }).await;
    tripped.expect_err("it fails");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(breaker.phase(), Phase::HalfOpen);
    breaker
}

#[tokio::test(start_paused = true)]
async fn policies_c15_a_slot_comes_back_from_every_drop_and_panic() {
    for work in Work::all() {
        for polls in 0..6 {
            let bulkhead = one_slot();
            poll_and_drop(bulkhead.call(work.run()), polls, millis(1)).await;
            assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0), "{work:?}, {polls}");
            bulkhead.call(Work(0, End::Works).run()).await.expect("the slot can be had");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c16_a_waiter_that_leaves_hands_its_slot_on() {
    // The waiter is polled, the slot is granted to it at some point, and it is dropped at another.
    for granted_after in 0..4 {
        for polls in 0..6 {
            let bulkhead = one_slot();
            let mut holder = Box::pin(bulkhead.call(pending::<Result<(), Broken>>()));
            assert_eq!(poll_once(&mut holder), Seen::Pending);
            let mut holder = Some(holder);
            let mut waiter = Box::pin(bulkhead.call(Work(2, End::Works).run()));
            let mut next = Box::pin(bulkhead.call(Work(0, End::Works).run()));
            for poll in 0..polls {
                if poll == granted_after {
                    holder = None;
                }
                if poll_once(&mut waiter) != Seen::Pending {
                    break;
                }
                if poll == 0 {
                    assert_eq!(poll_once(&mut next), Seen::Pending, "behind the waiter");
                }
            }
            drop((holder, waiter));
            assert_eq!(poll_once(&mut next), Seen::Ended(Ok(())), "{granted_after}, {polls}");
            assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c16_a_waiter_that_timed_out_gets_no_slot_any_more() {
    let bulkhead = one_slot();
    let mut holder = Box::pin(bulkhead.call(pending::<Result<(), Broken>>()));
    assert_eq!(poll_once(&mut holder), Seen::Pending);
    let waiter = bulkhead.call(Work(0, End::Works).run());
    let context = mamparo_call::Context::default();
    let soon = mamparo_call::clock::now().plus(millis(50));
    let refused = context.with_deadline(soon).scope(waiter).await.expect_err("no slot in time");
    let reason = refused.refused().map(|refused| refused.reason);
    assert_eq!(reason, Some(Refusal::DeadlineExceeded));
    drop(holder);
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn policies_c18_what_has_ended_holds_nothing_while_its_future_is_kept() {
    let (bulkhead, breaker) = (one_slot(), half_open().await);
    let mut done = Box::pin(bulkhead.call(breaker.call(Work(0, End::Works).run())));
    assert_eq!(poll_once(&mut done), Seen::Ended(Ok(())));
    assert_eq!((bulkhead.in_flight(), breaker.phase()), (0, Phase::Closed));
    assert_eq!(poll_once(&mut done), Seen::Pending, "polled after its end it just stays silent");
}

#[tokio::test(start_paused = true)]
async fn policies_c04_a_probe_that_is_dropped_or_panics_frees_its_place_at_once() {
    for work in Work::all() {
        for polls in 0..6 {
            let breaker = half_open().await;
            let seen = poll_and_drop(breaker.call(work.run()), polls, millis(1)).await;
            let expected = match seen {
                Seen::Pending => Phase::HalfOpen,
                Seen::Ended(Ok(())) => Phase::Closed,
                // A panic is a failure, and says so at once.
                Seen::Panicked | Seen::Ended(Err(_)) => Phase::Open,
            };
            assert_eq!(breaker.phase(), expected, "{work:?}, {polls}");
            if expected != Phase::Open {
                breaker.call(Work(0, End::Works).run()).await.expect("the place can be had");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c20_after_a_panic_every_policy_works_on() {
    let bulkhead = one_slot();
    let breaker = BreakerPolicy::new(touchy(1));
    let throttle = ThrottlePolicy::new(ThrottleConfig::default());
    let adaptive = AdaptivePolicy::new(AdaptiveConfig::default(), 0);
    let retry = quick_retry();
    let limit = TimeoutPolicy::new(millis(700));
    let bug = || Work(0, End::Panics).run();
    assert_eq!(poll_once(&mut Box::pin(bulkhead.call(bug()))), Seen::Panicked);
    assert_eq!(poll_once(&mut Box::pin(breaker.call(bug()))), Seen::Panicked);
    assert_eq!(poll_once(&mut Box::pin(throttle.call(bug()))), Seen::Panicked);
    assert_eq!(poll_once(&mut Box::pin(adaptive.call(bug()))), Seen::Panicked);
    assert_eq!(poll_once(&mut Box::pin(limit.call(bug()))), Seen::Panicked);
    let panicked = poll_once(&mut Box::pin(retry.call(Repeatable::Idempotent, |_| bug())));
    assert_eq!(panicked, Seen::Panicked);
    assert_eq!(breaker.phase(), Phase::Open, "counted as a failure");
    let good = || Work(0, End::Works).run();
    bulkhead.call(good()).await.expect("usable");
    throttle.call(good()).await.expect("usable");
    adaptive.call(good()).await.expect("usable");
    limit.call(good()).await.expect("usable");
    retry.call(Repeatable::Idempotent, |_| good()).await.expect("usable");
    assert_eq!(adaptive.bulkhead().in_flight(), 0);
    tokio::time::advance(Duration::from_secs(30)).await;
    breaker.call(good()).await.expect("usable");
}

/// The stack that people build most, each policy with something to lose.
#[tokio::test(start_paused = true)]
async fn policies_c15_a_stack_gives_everything_back_from_every_drop_and_panic() {
    for work in Work::all() {
        for polls in 0..16 {
            let (bulkhead, breaker) = (one_slot(), half_open().await);
            let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve: 5 }));
            let retry = quick_retry().with_budget(Arc::clone(&budget));
            let limit = TimeoutPolicy::new(millis(700));
            let sent = AtomicU32::new(0);
            let attempt = |_| {
                sent.fetch_add(1, Ordering::SeqCst);
                limit.call(work.run())
            };
            let call = bulkhead.call(breaker.call(retry.call(Repeatable::Idempotent, attempt)));
            let seen = poll_and_drop(call, polls, millis(1)).await;
            let what = format!("{work:?}, {polls} polls, {seen:?}");
            assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0), "{what}");
            // What was not sent was not spent.
            let repeated = u64::from(sent.load(Ordering::SeqCst).saturating_sub(1));
            assert_eq!(budget.left(), 5 - repeated, "{what}");
            if breaker.phase() == Phase::HalfOpen {
                breaker.call(Work(0, End::Works).run()).await.expect("the probe place is free");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c15_so_does_a_stack_of_layers() {
    for work in Work::all() {
        for polls in 0..16 {
            let (bulkhead, breaker) = (one_slot(), half_open().await);
            let mut service = ServiceBuilder::new()
                .layer(BulkheadLayer::new(bulkhead.clone()))
                .layer(BreakerLayer::new(breaker.clone()))
                .layer(RetryLayer::new(quick_retry(), Cloned(Repeatable::Idempotent)))
                .layer(TimeoutLayer::new(TimeoutPolicy::new(millis(700))))
                .service(service_fn(|work: Work| work.run()));
            poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
            let seen = poll_and_drop(service.call(work), polls, millis(1)).await;
            let what = format!("{work:?}, {polls} polls, {seen:?}");
            assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0), "{what}");
            if breaker.phase() == Phase::HalfOpen {
                breaker.call(Work(0, End::Works).run()).await.expect("the probe place is free");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c15_a_request_in_line_gives_its_place_back() {
    for polls in 0..6 {
        let bulkhead = one_slot();
        let mut holder = Box::pin(bulkhead.call(pending::<Result<(), Broken>>()));
        assert_eq!(poll_once(&mut holder), Seen::Pending);
        let layer = BulkheadLayer::new(bulkhead.clone());
        let mut service =
            ServiceBuilder::new().layer(layer).service(service_fn(|work: Work| work.run()));
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        let mut call = Box::pin(service.call(Work(2, End::Works)));
        let mut holder = Some(holder);
        for poll in 0..polls {
            assert_eq!(bulkhead.queued(), u32::from(holder.is_some()));
            if poll == 2 {
                holder = None;
            }
            if poll_once(&mut call) != Seen::Pending {
                break;
            }
        }
        drop((holder, call));
        assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0), "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c21_a_hedge_that_is_not_sent_holds_nothing() {
    let bulkhead = BulkheadPolicy::new(BulkheadConfig::new(2, 0));
    let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve: 5 }));
    let after = HedgeAfter::Fixed(millis(50));
    let hedge = HedgePolicy::new(HedgeConfig { after, extra: 1 }).with_budget(Arc::clone(&budget));
    let hang = |_| bulkhead.call(pending::<Result<(), Broken>>());
    let mut call = Box::pin(hedge.call(Repeatable::Idempotent, hang));
    assert_eq!(poll_once(&mut call), Seen::Pending);
    tokio::time::advance(millis(49)).await;
    assert_eq!(poll_once(&mut call), Seen::Pending);
    assert_eq!((bulkhead.in_flight(), budget.left()), (1, 5), "it waits, and holds nothing");
    tokio::time::advance(millis(2)).await;
    assert_eq!(poll_once(&mut call), Seen::Pending);
    assert_eq!((bulkhead.in_flight(), budget.left()), (2, 4));
    drop(call);
    assert_eq!(bulkhead.in_flight(), 0);
    // What may not be repeated is never hedged.
    let mut once = Box::pin(hedge.call(Repeatable::Unsafe, hang));
    for _ in 0..3 {
        assert_eq!(poll_once(&mut once), Seen::Pending);
        tokio::time::advance(millis(60)).await;
    }
    assert_eq!((bulkhead.in_flight(), budget.left()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn policies_c28_without_a_budget_no_new_hedge_and_those_that_run_go_on() {
    let budget = Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve: 0 }));
    let after = HedgeAfter::Fixed(millis(50));
    let hedge = HedgePolicy::new(HedgeConfig { after, extra: 3 }).with_budget(budget);
    let sent = AtomicU32::new(0);
    let slow = |_| {
        sent.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(millis(500)).await;
            Ok::<_, Broken>(7)
        }
    };
    assert_eq!(hedge.call(Repeatable::Idempotent, slow).await, Ok(7));
    assert_eq!(sent.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn of_several_copies_the_first_value_counts_and_the_last_error() {
    let after = HedgeAfter::Fixed(millis(50));
    let hedge = HedgePolicy::new(HedgeConfig { after, extra: 2 });
    // The first copy fails late, the second at once, the third works.
    let answer = hedge.call(Repeatable::Idempotent, |copy| async move {
        let (takes, fails) = [(120, true), (1, true), (200, false)][copy as usize - 1];
        tokio::time::sleep(millis(takes)).await;
        if fails { Err(Broken(Failure::TRANSIENT)) } else { Ok(copy) }
    });
    assert_eq!(answer.await, Ok(3));
    let answer = hedge.call(Repeatable::Idempotent, |copy| async move {
        tokio::time::sleep(millis(60)).await;
        Err::<(), _>(GuardError::Inner(copy))
    });
    assert_eq!(answer.await, Err(GuardError::Inner(3)));
}

/// A service may panic before there is a future.
#[tokio::test(start_paused = true)]
async fn policies_c20_a_service_that_panics_in_its_call_settles_every_layer() {
    let (bulkhead, breaker) = (one_slot(), half_open().await);
    let mut service = ServiceBuilder::new()
        .layer(BulkheadLayer::new(bulkhead.clone()))
        .layer(BreakerLayer::new(breaker.clone()))
        .service(service_fn(|works: bool| {
            assert!(works, "a bug of the service");
            Work(0, End::Works).run()
        }));
    poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    let panicked = catch_unwind(AssertUnwindSafe(|| drop(service.call(false))));
    panicked.expect_err("it panicked");
    assert_eq!((bulkhead.in_flight(), breaker.phase()), (0, Phase::Open));
    tokio::time::advance(Duration::from_secs(30)).await;
    poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    service.call(true).await.expect("both are usable");
    assert_eq!(breaker.phase(), Phase::Closed);
}
