//! A million calls under virtual time, while the dependency slows down, dies and comes back and callers
//! hang up: no attempt begins after its caller's deadline, and at the end nothing is held.

#![expect(clippy::disallowed_methods, reason = "the set is owned by its test, which joins it")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_call::deadline::Deadline;
use mamparo_call::{Attempt, Context, Dependency, Failure, Repeatable, clock};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Trip};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;
use support::{Broken, millis};
use tokio::task::JoinSet;

const CALLERS: u64 = 250;
const CALLS_EACH: u64 = 4_000;

#[derive(Default)]
struct Seen {
    attempts: AtomicU64,
    too_late: AtomicU64,
    beyond: AtomicU64,
}

/// What the dependency does with an attempt: well at most times, in each minute slow for ten seconds
/// and dead for ten.
async fn serve(began: Moment, mut rng: SeededRng) -> Result<(), Broken> {
    let second = clock::now().since(began).as_secs() % 60;
    let (latency, failing) = match second {
        20..30 => (600, 0.05),
        40..50 => (5, 1.0),
        _ => (40, 0.02),
    };
    tokio::time::sleep(millis(rng.up_to(latency))).await;
    if rng.chance(failing) { Err(Broken(Failure::TRANSIENT)) } else { Ok(()) }
}

async fn caller(catalog: Dependency, seen: Arc<Seen>, began: Moment, seed: u64) {
    let mut rng = SeededRng::new(seed);
    for _ in 0..CALLS_EACH {
        let now = clock::now();
        let deadline = now.plus(millis(rng.up_to(900)));
        let work = SeededRng::new(rng.next_u64());
        let call = catalog.call(Repeatable::Idempotent, |attempt: Attempt| {
            seen.attempts.fetch_add(1, Ordering::Relaxed);
            if clock::now() >= deadline {
                seen.too_late.fetch_add(1, Ordering::Relaxed);
            }
            if attempt.deadline.is_none_or(|until| until > deadline) {
                seen.beyond.fetch_add(1, Ordering::Relaxed);
            }
            serve(began, work.clone())
        });
        let call = Context::default().with_deadline(deadline).scope(call);
        // One caller in ten hangs up early, wherever the call is by then.
        let patience = rng.chance(0.1).then(|| now.plus(millis(rng.up_to(300))));
        let _ = Deadline::new(call, patience).await;
        tokio::time::sleep(millis(rng.up_to(200))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c24_of_a_million_calls_no_attempt_begins_after_its_deadline() {
    let trip = Trip::Failures { failures: 200, window: Duration::from_secs(1) };
    let open_for = Duration::from_secs(2);
    let after = HedgeAfter::Fixed(millis(60));
    let catalog = Dependency::builder("catalog")
        .attempt_timeout(millis(400))
        .retry(3, Backoff { base: millis(20), ..Backoff::default() })
        .hedge(HedgeConfig { after, extra: 1 })
        .breaker(BreakerConfig { trip, open_for, ..BreakerConfig::default() })
        .bulkhead(100, 60)
        .build()
        .expect("sound");
    let (seen, began) = (Arc::new(Seen::default()), clock::now());
    let mut callers = JoinSet::new();
    for seed in 0..CALLERS {
        callers.spawn(caller(catalog.clone(), Arc::clone(&seen), began, seed));
    }
    callers.join_all().await;
    assert_eq!(seen.too_late.load(Ordering::Relaxed), 0);
    assert_eq!(seen.beyond.load(Ordering::Relaxed), 0);
    let end = catalog.snapshot();
    assert_eq!(end.calls, CALLERS * CALLS_EACH);
    assert_eq!((end.in_flight, end.queued), (0, 0));
    assert_eq!(end.attempts, seen.attempts.load(Ordering::Relaxed), "what is worked out is true");
    assert_eq!(end.calls, end.succeeded + end.gave_up + end.abandoned + end.refused_total());
    // Each guard had something to do.
    for reason in [Refusal::BulkheadFull, Refusal::CircuitOpen, Refusal::DeadlineExceeded] {
        assert!(end.refused_by(reason) > 1_000, "{reason:?}: {}", end.refused_by(reason));
    }
    assert!(end.hedges > 1_000 && end.retries > 1_000 && end.abandoned > 1_000, "{end:?}");
}
