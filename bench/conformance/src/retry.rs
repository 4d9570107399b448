//! Retries: how long they wait, what they repeat, what they may cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use mamparo_call::policy::RetryPolicy;
use mamparo_call::{Repeatable, clock};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::retry::{Decision, FailedAttempt, Retry};
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::outcome::Failure;
use mamparo_core::rng::SeededRng;
use tower::retry::backoff::{Backoff as _, ExponentialBackoffMaker, MakeBackoff as _};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::util::rng::HasherRng;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_resilience::retry::{ExponentialRandomBackoff, IntervalFunction as _, RetryLayer};

use crate::calls::{Down, run, without_panic};
use crate::verdict::{Row, Table, Verdict};

/// First wait and ceiling of every backoff here.
const BASE: Duration = Duration::from_millis(100);
const CAP: Duration = Duration::from_secs(2);
/// An attempt whose wait is at the ceiling.
const LATE: u32 = 10;
const SAMPLES: usize = 1_000;

/// Draws many waits of those that follow attempt `n`.
type Waits = fn(u32) -> Vec<Duration>;

struct Subject {
    name: &'static str,
    waits: Waits,
    retry_after: fn() -> Verdict,
    unsafe_by_default: fn() -> Verdict,
    budget: fn() -> Verdict,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        name: "ours",
        waits: ours_waits,
        retry_after: ours_retry_after,
        unsafe_by_default: ours_unsafe,
        budget: ours_budget,
    },
    Subject {
        name: "tower-resilience",
        waits: resilience_waits,
        retry_after: || Verdict::Fault("the backoff sees only the attempt's number".to_owned()),
        unsafe_by_default: resilience_unsafe,
        budget: || Verdict::None,
    },
    Subject {
        name: "tower",
        waits: tower_waits,
        retry_after: || Verdict::None,
        unsafe_by_default: || Verdict::None,
        budget: tower_budget,
    },
    Subject {
        name: "backon",
        waits: backon_waits,
        retry_after: backon_retry_after,
        unsafe_by_default: backon_unsafe,
        budget: || Verdict::None,
    },
];

type Judge = fn(&Subject) -> Verdict;

const CASES: &[(&str, Judge)] = &[
    ("C23: with jitter, no wait exceeds the cap of 2 s", under_cap),
    ("C23: at the cap, waits are still spread", spread),
    ("C23: full jitter: waits are uniform from 0 to the ceiling", full),
    ("C22: after 64, 1 025 and 50 000 attempts a wait is a duration up to the cap", far),
    ("Retry-After is honoured", |subject| (subject.retry_after)()),
    ("an operation that is not known to be repeatable is not repeated", |subject| {
        (subject.unsafe_by_default)()
    }),
    ("C33: a retry budget of 30, 40, 60, 70, 90 % grants that", |subject| (subject.budget)()),
];

pub(crate) fn table() -> Table {
    let rows = CASES
        .iter()
        .map(|(case, judge)| Row { case, verdicts: SUBJECTS.iter().map(judge).collect() });
    let rows = rows.collect();
    Table { about: "retry", subjects: SUBJECTS.iter().map(|s| s.name).collect(), rows }
}

fn under_cap(subject: &Subject) -> Verdict {
    let most = (subject.waits)(LATE).into_iter().max().unwrap_or_default();
    let seen = format!("up to {:.0} s", most.as_secs_f64());
    Verdict::when(most <= CAP, if most <= CAP { String::new() } else { seen })
}

fn spread(subject: &Subject) -> Verdict {
    let mut waits = (subject.waits)(LATE);
    waits.sort();
    waits.dedup();
    let seen = if waits.len() > 1 { "" } else { "1 distinct wait: a synchronised herd" };
    Verdict::when(waits.len() > SAMPLES / 2, seen)
}

fn full(subject: &Subject) -> Verdict {
    let waits = (subject.waits)(LATE);
    let share = |part: Duration| {
        waits.iter().filter(|wait| **wait <= part).count() as f64 / waits.len() as f64
    };
    // A quarter of them in each quarter, give or take five standard deviations of a fair draw.
    let even = (1_u32..4)
        .all(|quarter| (share(CAP * quarter / 4) - f64::from(quarter) / 4.0).abs() < 0.07);
    Verdict::when(even, if even { "" } else { "has another jitter" }).never_promised()
}

fn far(subject: &Subject) -> Verdict {
    let sound = without_panic(|| {
        [64, 1_025, 50_000].iter().all(|attempt| {
            let waits = (subject.waits)(*attempt);
            waits.iter().all(|wait| *wait <= CAP * 2)
        })
    });
    match sound {
        Some(good) => Verdict::when(good, if good { "" } else { "longer than the cap" }),
        None => Verdict::Fault("panics".to_owned()),
    }
}

fn ours_waits(attempt: u32) -> Vec<Duration> {
    let backoff = Backoff::new(BASE, 2.0, CAP);
    let mut rng = SeededRng::new(7);
    (0..SAMPLES).map(|_| backoff.delay(attempt, Duration::ZERO, &mut rng)).collect()
}

fn resilience_waits(attempt: u32) -> Vec<Duration> {
    // Its widest jitter.
    let backoff = ExponentialRandomBackoff::new(BASE, 1.0).expect("sound values").max_interval(CAP);
    (0..SAMPLES).map(|_| backoff.next_interval(attempt as usize)).collect()
}

fn tower_waits(attempt: u32) -> Vec<Duration> {
    // Its widest jitter. What the wait is can be read off a paused clock alone.
    let draw = || {
        let maker = ExponentialBackoffMaker::new(BASE, CAP, 1.0, HasherRng::new());
        let mut backoff = maker.expect("sound values").make_backoff();
        run(true, async {
            // Nobody waits for 50 000 of them: it is at its cap long before.
            for _ in 1..attempt.min(LATE) {
                drop(backoff.next_backoff());
            }
            let start = clock::now();
            backoff.next_backoff().await;
            clock::now().since(start)
        })
    };
    (0..SAMPLES).map(|_| draw()).collect()
}

fn backon_waits(attempt: u32) -> Vec<Duration> {
    let draw = |seed| {
        let builder = ExponentialBuilder::default().with_min_delay(BASE).with_max_delay(CAP);
        let builder = builder.without_max_times().with_jitter().with_jitter_seed(seed);
        let mut waits = builder.build().skip(attempt as usize - 1);
        waits.next().unwrap_or_default()
    };
    let samples = if attempt > LATE { 10 } else { SAMPLES as u64 };
    (0..samples).map(draw).collect()
}

fn ours_retry_after() -> Verdict {
    let failed = FailedAttempt {
        number: 1,
        waited: Duration::ZERO,
        failure: Failure::TRANSIENT.with_retry_after(Some(Duration::from_secs(5))),
        repeatable: Repeatable::Idempotent,
        left: None,
    };
    let decision = Retry::default().ask(&failed, None, &mut SeededRng::new(7));
    let waits =
        matches!(decision, Decision::Again { after, .. } if after == Duration::from_secs(5));
    Verdict::when(waits, "")
}

fn backon_retry_after() -> Verdict {
    let took = run(true, async {
        let start = clock::now();
        let tries = AtomicU32::new(0);
        let call =
            || async { if tries.fetch_add(1, Ordering::SeqCst) == 0 { Err(Down) } else { Ok(()) } };
        let retried = call.retry(ExponentialBuilder::default());
        retried.adjust(|_, _| Some(Duration::from_secs(5))).await.ok();
        clock::now().since(start)
    });
    Verdict::when(took.as_secs() == 5, "by a hook of the caller's")
}

/// So many attempts of a call that fails each time, and of which nobody said that it may be repeated.
fn attempts(count: u32) -> Verdict {
    Verdict::when(count == 1, format_args!("{count} made")).never_promised()
}

fn ours_unsafe() -> Verdict {
    let made = AtomicU32::new(0);
    run(true, async {
        let policy = RetryPolicy::new(Retry::default());
        let call = policy.call(Repeatable::Unsafe, |_| async {
            made.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(Down)
        });
        call.await.ok();
    });
    attempts(made.load(Ordering::SeqCst))
}

fn resilience_unsafe() -> Verdict {
    let made = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&made);
    run(true, async move {
        let layer = RetryLayer::<(), (), Down>::builder().build();
        let service = layer.layer(service_fn(move |()| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(Down) }
        }));
        service.oneshot(()).await.ok();
    });
    attempts(made.load(Ordering::SeqCst))
}

fn backon_unsafe() -> Verdict {
    let made = AtomicU32::new(0);
    run(true, async {
        let call = || async {
            made.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(Down)
        };
        call.retry(ExponentialBuilder::default()).await.ok();
    });
    attempts(made.load(Ordering::SeqCst))
}

/// The shares that 1 000 deposits grant, against those that were asked for.
fn granted(grant: impl Fn(f64) -> u32) -> Verdict {
    let shares = [0.3, 0.4, 0.6, 0.7, 0.9];
    let off = shares.into_iter().find_map(|share| {
        let got = f64::from(grant(share)) / 1_000.0;
        ((got - share).abs() > 0.01)
            .then(|| format!("{:.0} % grants {:.0} %", share * 100.0, got * 100.0))
    });
    off.map_or_else(Verdict::pass, Verdict::Fault)
}

fn ours_budget() -> Verdict {
    granted(|ratio| {
        // In rounds, as traffic comes: what is saved up is bounded by the reserve.
        let budget = RetryBudget::new(RetryBudgetConfig { ratio, reserve: 0 });
        let mut count = 0;
        for _ in 0..1_000 {
            budget.deposit();
            while budget.withdraw().is_some() {
                count += 1;
            }
        }
        count
    })
}

fn tower_budget() -> Verdict {
    granted(|ratio| {
        let budget = TpsBudget::new(Duration::from_secs(10), 0, ratio as f32);
        let mut count = 0;
        for _ in 0..1_000 {
            budget.deposit();
        }
        while budget.withdraw() {
            count += 1;
        }
        count
    })
}
