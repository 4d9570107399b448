//! The policies that hold more than a slot or a place: dropped at each await and panicking at each poll,
//! in a mix with others, they hold nothing afterwards, and each end is told once.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod support;
#[path = "support/work.rs"]
mod work;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::policy::{
    AdaptivePolicy, HedgePolicy, PolicyEvent, RateLimitPolicy, RetryPolicy, ThrottlePolicy,
    TimeoutPolicy,
};
use mamparo_call::tower::{
    AdaptiveLayer, Cloned, HedgeLayer, RateLimitLayer, ThrottleLayer, TimeoutLayer,
};
use mamparo_call::{Classify, Context, Dependency, Failure, Repeatable, clock};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::call::throttle::ThrottleConfig;
use support::millis;
use tower::{Layer, ServiceExt, service_fn};
use work::{End, Seen, Work, poll_and_drop, poll_once};

const POLLS: u32 = 12;

/// One slot, and one place in line.
fn one_slot() -> AdaptivePolicy {
    let one = AdaptiveConfig { min: 1, initial: 1, max: 1, ..AdaptiveConfig::default() };
    AdaptivePolicy::new(one, 1)
}

fn tokens(reserve: u32) -> Arc<RetryBudget> {
    Arc::new(RetryBudget::new(RetryBudgetConfig { ratio: 0.0, reserve }))
}

/// The slugs of the events of a policy.
type Heard = Arc<Mutex<Vec<&'static str>>>;

fn hear(heard: &Heard) -> impl Fn(&PolicyEvent) + Send + Sync + 'static {
    let heard = Arc::clone(heard);
    move |event| heard.lock().expect("whole").push(event.slug())
}

#[tokio::test(start_paused = true)]
async fn policies_c15_an_adaptive_slot_comes_back_from_every_drop_and_panic() {
    for work in Work::all() {
        for polls in 0..POLLS {
            for layered in [false, true] {
                let adaptive = one_slot();
                if layered {
                    let service = service_fn(|work: Work| work.run());
                    let service = AdaptiveLayer::new(adaptive.clone()).layer(service);
                    poll_and_drop(service.oneshot(work), polls, millis(1)).await;
                } else {
                    poll_and_drop(adaptive.call(work.run()), polls, millis(1)).await;
                }
                let slots = adaptive.bulkhead();
                assert_eq!((slots.in_flight(), slots.queued()), (0, 0), "{work:?}, {polls}");
                adaptive.call(Work(0, End::Works).run()).await.expect("the slot can be had");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c16_a_waiter_of_an_adaptive_limit_hands_its_slot_on() {
    for polls in 0..6 {
        for granted_after in 0..4 {
            let adaptive = one_slot();
            let mut holder = Box::pin(adaptive.call(Work(9, End::Works).run()));
            assert_eq!(poll_once(&mut holder), Seen::Pending);
            let mut holder = Some(holder);
            let mut waiter = Box::pin(adaptive.call(Work(2, End::Works).run()));
            for poll in 0..polls {
                if poll == granted_after {
                    holder = None;
                }
                if poll_once(&mut waiter) != Seen::Pending {
                    break;
                }
            }
            drop((waiter, holder));
            let slots = adaptive.bulkhead();
            assert_eq!((slots.in_flight(), slots.queued()), (0, 0), "{granted_after}, {polls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c20_each_call_that_a_throttle_let_through_is_told_once_with_its_end() {
    for work in Work::all() {
        for polls in 0..POLLS {
            for layered in [false, true] {
                let heard = Heard::default();
                let throttle = ThrottlePolicy::new(ThrottleConfig::default());
                let throttle = throttle.listened_by(hear(&heard));
                let ended = if layered {
                    let service = service_fn(|work: Work| work.run());
                    let service = ThrottleLayer::new(throttle.clone()).layer(service);
                    poll_and_drop(service.oneshot(work), polls, millis(1)).await.kind()
                } else {
                    poll_and_drop(throttle.call(work.run()), polls, millis(1)).await.kind()
                };
                let expected: &[_] = match ended {
                    // Not polled, it was never asked.
                    "pending" if polls == 0 => &[],
                    "pending" => &["cancelled"],
                    "panicked" => &["panic"],
                    _ if work.1 == End::Works => &["success"],
                    _ => &["transient"],
                };
                assert_eq!(*heard.lock().expect("whole"), expected, "{work:?}, {polls} polls");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c15_a_rate_limit_takes_one_for_each_call_that_was_begun_and_no_other() {
    for work in Work::all() {
        for polls in 0..POLLS {
            for layered in [false, true] {
                let config = RateLimitConfig::new(1, Duration::from_secs(3_600)).with_burst(1);
                let limit = RateLimitPolicy::new(config);
                if layered {
                    let service = service_fn(|work: Work| work.run());
                    let service = RateLimitLayer::new(limit.clone()).layer(service);
                    poll_and_drop(service.oneshot(work), polls, millis(1)).await;
                } else {
                    poll_and_drop(limit.call(work.run()), polls, millis(1)).await;
                }
                let next = limit.call(Work(0, End::Works).run()).await;
                assert_eq!(next.is_ok(), polls == 0, "{work:?}, {polls} polls");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c20_a_limit_of_time_leaves_neither_a_deadline_nor_a_second_end() {
    for work in Work::all() {
        for polls in 0..POLLS {
            for layered in [false, true] {
                let heard = Heard::default();
                let limit = TimeoutPolicy::new(millis(20)).listened_by(hear(&heard));
                let soon = Context::default().with_budget(clock::now(), millis(15));
                let between = millis(8);
                let ended = if layered {
                    let service = service_fn(|work: Work| work.run());
                    let call = TimeoutLayer::new(limit.clone()).layer(service).oneshot(work);
                    poll_and_drop(soon.scope(call), polls, between).await.kind()
                } else {
                    poll_and_drop(soon.scope(limit.call(work.run())), polls, between).await.kind()
                };
                assert_eq!(Context::current_deadline(), None, "{work:?}, {polls} polls");
                let told = heard.lock().expect("whole").clone();
                // After 16 ms its time is over, unless it has ended in that very poll.
                let cut = work.0 > 2 && polls > 2;
                assert_eq!(told, if cut { vec!["timeout"] } else { vec![] }, "{work:?}, {polls}");
                assert_eq!(ended == "pending", polls <= work.0.min(2), "{work:?}, {polls}");
            }
        }
    }
}

/// Retry around hedges around an adaptive bulkhead, on one budget.
#[tokio::test(start_paused = true)]
async fn policies_c15_hedged_retries_hold_nothing_after_every_drop_and_panic() {
    for work in Work::all() {
        for polls in 0..24 {
            let five = AdaptiveConfig { min: 5, initial: 5, max: 5, ..AdaptiveConfig::default() };
            let (adaptive, budget) = (AdaptivePolicy::new(five, 0), tokens(5));
            let backoff = Backoff { base: millis(1), ..Backoff::default() };
            let retry = RetryPolicy::new(Retry { attempts: 2, backoff });
            let retry = retry.with_budget(Arc::clone(&budget));
            let config = HedgeConfig { after: HedgeAfter::Fixed(millis(2)), extra: 1 };
            let hedge = HedgePolicy::new(config).with_budget_of(&retry);
            let sent = AtomicU32::new(0);
            let call = retry.call(Repeatable::Idempotent, |_| {
                hedge.call(Repeatable::Idempotent, |_| {
                    sent.fetch_add(1, Ordering::SeqCst);
                    adaptive.call(work.run())
                })
            });
            let seen = poll_and_drop(call, polls, millis(1)).await;
            let told = format!("{work:?}, {polls} polls, {seen:?}");
            let slots = adaptive.bulkhead();
            assert_eq!((slots.in_flight(), slots.queued()), (0, 0), "{told}");
            let more = u64::from(sent.load(Ordering::SeqCst).saturating_sub(1));
            assert_eq!(budget.left(), 5 - more, "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c15_a_hedging_layer_spends_a_token_for_each_copy_that_it_tells_of() {
    for work in Work::all() {
        for polls in 0..POLLS {
            let (budget, sent, heard) = (tokens(5), AtomicU32::new(0), Heard::default());
            let config = HedgeConfig { after: HedgeAfter::Fixed(millis(2)), extra: 2 };
            let hedge = HedgePolicy::new(config).with_budget(Arc::clone(&budget));
            let hedge = hedge.listened_by(hear(&heard));
            let service = service_fn(|work: Work| {
                sent.fetch_add(1, Ordering::SeqCst);
                work.run()
            });
            let layer = HedgeLayer::new(hedge, Cloned(Repeatable::Idempotent));
            let seen = poll_and_drop(layer.layer(service).oneshot(work), polls, millis(1)).await;
            let told = format!("{work:?}, {polls} polls, {seen:?}");
            let hedges = heard.lock().expect("whole").iter().filter(|it| **it == "hedged").count();
            assert_eq!(budget.left(), 5 - hedges as u64, "{told}");
            // The first may end while the last copy gets ready, which is then not sent.
            let sent = sent.load(Ordering::SeqCst) as usize;
            assert!((hedges..=hedges + 1).contains(&sent) || sent == 0, "{told}");
        }
    }
}

#[derive(Debug)]
struct Puzzling;

impl Classify for Puzzling {
    fn classify(&self) -> Failure {
        panic!("a bug of the error")
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c20_an_error_that_panics_when_asked_is_a_failure_and_settles_the_call() {
    let plan = Dependency::builder("catalog").breaker(support::touchy(1)).bulkhead(1, 0);
    let catalog = plan.build().expect("sound");
    let call = catalog.call(Repeatable::Unsafe, async |_| Err::<(), _>(Puzzling));
    assert_eq!(poll_and_drop(call, 1, millis(1)).await.kind(), "panicked");
    let seen = catalog.snapshot();
    assert_eq!((seen.in_flight, seen.breaker), (0, Some(Phase::Open)));
}

#[tokio::test(start_paused = true)]
async fn what_came_too_late_never_begins_however_often_it_is_polled() {
    let limit = TimeoutPolicy::new(millis(20));
    let late = Context::default().with_budget(clock::now(), millis(10));
    let mut call = Box::pin(late.scope(limit.call(Work(0, End::Panics).run())));
    assert_eq!(poll_once(&mut call).kind(), "ended");
    let mut call = Box::pin(limit.call(Work(0, End::Panics).run()));
    let again = Context::default().with_budget(clock::now(), millis(10));
    let mut twice = Box::pin(again.scope(std::future::poll_fn(|_| {
        let polls = [poll_once(&mut call).kind(), poll_once(&mut call).kind()];
        std::task::Poll::Ready(polls)
    })));
    assert_eq!(poll_once(&mut twice), Seen::Ended(["ended", "pending"]));
}
