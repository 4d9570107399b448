//! Every mix of policies, every number of polls, every end: afterwards nothing is held.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod support;

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mamparo_call::{Dependency, DependencyBuilder, Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::{BreakerConfig, Phase, Trip};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::shed::ShedConfig;
use mamparo_core::call::throttle::ThrottleConfig;
use support::{Answer, Broken, millis};

const RETRY: u32 = 1;
const BREAKER: u32 = 2;
const QUEUE: u32 = 4;
const HEDGE: u32 = 8;
const HELD_BACK: u32 = 16;
const ADAPTIVE: u32 = 32;
const MIXES: u32 = 64;

fn mix(policies: u32) -> DependencyBuilder {
    let has = |policy| policies & policy != 0;
    let mut builder = Dependency::builder("catalog").attempt_timeout(millis(60)).bulkhead(1, 0);
    if has(RETRY) {
        let backoff = Backoff { base: millis(2), cap: millis(4), ..Backoff::default() };
        builder = builder.retry(3, backoff);
    }
    if has(BREAKER) {
        let trip = Trip::Failures { failures: 4, window: Duration::from_secs(10) };
        let open_for = millis(500);
        builder = builder.breaker(BreakerConfig { trip, open_for, ..BreakerConfig::default() });
    }
    if has(QUEUE) {
        builder = builder.bulkhead(1, 3);
    }
    if has(HEDGE) {
        let after = HedgeAfter::Fixed(millis(5));
        builder = builder.hedge(HedgeConfig { after, extra: 2 });
    }
    if has(HELD_BACK) {
        builder = builder
            .throttle(ThrottleConfig::default())
            .shed(ShedConfig { begin: [2.0; 5], ..ShedConfig::default() })
            .rate_limit(RateLimitConfig::new(1_000_000, Duration::from_secs(1)));
    }
    if has(ADAPTIVE) {
        builder = builder.adaptive(AdaptiveConfig {
            min: 1,
            initial: 1,
            max: 1,
            ..AdaptiveConfig::default()
        });
    }
    builder
}

#[derive(Debug, Clone, Copy)]
enum End {
    Works,
    Fails,
    Hangs,
    Panics,
}

async fn attempt(end: End) -> Result<(), Broken> {
    // Two polls, some of them in time for a hedge.
    tokio::time::sleep(millis(7)).await;
    match end {
        End::Works => Ok(()),
        End::Fails => Err(Broken(Failure::TRANSIENT)),
        End::Hangs => pending().await,
        End::Panics => panic!("a bug of the operation"),
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    let cx = &mut Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))).is_ok_and(|poll| poll.is_pending())
}

#[tokio::test(start_paused = true)]
async fn policies_c15_c20_any_mix_dropped_or_panicking_anywhere_gives_everything_back() {
    for policies in 0..MIXES {
        for end in [End::Works, End::Fails, End::Hangs, End::Panics] {
            for polls in 0..12 {
                for behind in [false, true] {
                    dropped_after(policies, end, polls, behind).await;
                }
            }
        }
    }
}

/// Polls a call that often, drops it, and looks for what it left behind. With `behind`, another call
/// holds the slot at first.
async fn dropped_after(policies: u32, end: End, polls: u32, behind: bool) {
    let told = format!("mix {policies:06b}, {end:?}, {polls} polls, behind another: {behind}");
    let catalog = mix(policies).build().expect("sound");
    let full = catalog.explain().retry_budget;
    let free = Cell::new(false);
    let mut holder = Box::pin(catalog.call(Repeatable::Unsafe, |_| {
        poll_fn(|_| if free.get() { Poll::Ready(Ok::<_, Broken>(())) } else { Poll::Pending })
    }));
    if behind {
        poll(&mut holder);
    }
    let mut call = Box::pin(catalog.call(Repeatable::Idempotent, |_| attempt(end)));
    for n in 0..polls {
        if n == 2 && behind {
            free.set(true);
            poll(&mut holder);
        }
        if !poll(&mut call) {
            break;
        }
        tokio::time::advance(millis(4)).await;
    }
    drop(call);
    drop(holder);
    let seen = catalog.snapshot();
    assert_eq!((seen.in_flight, seen.queued), (0, 0), "{told}");
    let now = catalog.explain();
    assert_eq!(now.bulkhead.map(|slots| slots.taken), Some(0), "{told}");
    // What was not spent on an attempt that was sent is there.
    if let Some((before, after)) = full.zip(now.retry_budget) {
        assert_eq!(before.left - after.left, seen.retries + seen.hedges, "{told}");
    }
    assert_eq!(
        seen.calls,
        seen.succeeded + seen.gave_up + seen.abandoned + seen.refused_total(),
        "{told}"
    );
    // The circuit lets somebody through again, and the slot can be had.
    tokio::time::advance(Duration::from_secs(1)).await;
    let next: Answer<()> = catalog.call(Repeatable::Unsafe, async |_| Ok(())).await;
    next.unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_ne!(catalog.breaker_state(), Some(Phase::HalfOpen), "{told}");
}
