//! Rate limits: what passes in any second, and what is kept for whom.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use mamparo_call::clock;
use mamparo_core::call::rate_limit::{Answer, KeyedRateLimit, RateLimit, RateLimitConfig};
use mamparo_core::time::Moment;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_resilience::ratelimiter::{RateLimiterLayer, WindowType};

use crate::calls::{Down, run, without_panic};
use crate::verdict::{Row, Table, Verdict};

/// "100 a second" in every case.
const LIMIT: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);
/// How far apart callers come.
const STEP: Duration = Duration::from_millis(2);

type Judge = fn() -> Verdict;

const SUBJECTS: &[&str] = &["ours", "tower-resilience", "governor"];

const CASES: &[(&str, [Judge; 3])] = &[
    (
        "100 a second: no second holds more, in the strictest mode",
        [ours_strict, resilience_log, governor_bursts],
    ),
    (
        "100 a second: no second holds more than twice that, by default",
        [ours_default, resilience_default, governor_default],
    ),
    (
        "C38: 8 threads together get no more than one",
        [ours_threads, resilience_threads, governor_threads],
    ),
    ("keys that are idle go by themselves", [ours_keys, || Verdict::None, governor_keys]),
    (
        "periods and numbers at their extremes: no panic",
        [ours_extremes, resilience_extremes, governor_extremes],
    ),
    (
        "C35: a clock that steps back: no panic, no flood",
        [ours_backwards, || Verdict::None, || Verdict::None],
    ),
];

pub(crate) fn table() -> Table {
    let rows = CASES
        .iter()
        .map(|(case, judges)| Row { case, verdicts: judges.iter().map(|judge| judge()).collect() });
    let rows = rows.collect();
    Table { about: "rate limit", subjects: SUBJECTS.to_vec(), rows }
}

/// The most that pass in any second, when callers come every step for three seconds after a pause.
fn most_in_a_second(mut passes: impl FnMut(Duration) -> bool) -> usize {
    // Callers that come together at the start take what has been saved up.
    let mut passed: Vec<Duration> = Vec::new();
    let together = (0..LIMIT * 3).map(|_| Duration::ZERO);
    let later = (1..).map(|step| STEP * step).take_while(|at| *at < SECOND * 3);
    for at in together.chain(later) {
        if passes(at) {
            passed.push(at);
        }
    }
    let within =
        |from: &Duration| passed.iter().filter(|at| *at >= from && **at < *from + SECOND).count();
    passed.iter().map(within).max().unwrap_or(0)
}

fn most(count: usize, allowed: u32) -> Verdict {
    Verdict::when(count <= allowed as usize, format_args!("{count}"))
}

fn ours(config: RateLimitConfig) -> usize {
    let limit = RateLimit::new(config);
    most_in_a_second(|at| passes(limit.ask(Moment::from_millis(1_000_000).plus(at))))
}

fn passes(answer: Answer) -> bool {
    matches!(answer, Answer::Allowed { .. })
}

fn ours_strict() -> Verdict {
    most(ours(RateLimitConfig::strict(LIMIT, SECOND)), LIMIT)
}

fn ours_default() -> Verdict {
    most(ours(RateLimitConfig::new(LIMIT, SECOND)), LIMIT * 2)
}

/// Its clock is the system's, so the callers really come.
fn resilience(window: WindowType) -> usize {
    run(false, async {
        let layer = RateLimiterLayer::builder()
            .limit_for_period(LIMIT as usize)
            .refresh_period(SECOND)
            .timeout_duration(Duration::ZERO)
            .window_type(window);
        let layer = layer.build().expect("sound values");
        let service = layer.layer(service_fn(|()| async { Ok::<_, Down>(()) }));
        // Late in its first second, so that a fixed window turns soon after.
        tokio::time::sleep(SECOND * 9 / 10).await;
        let start = clock::now();
        let mut passed = Vec::new();
        while clock::now().since(start) < SECOND * 2 {
            if service.clone().oneshot(()).await.is_ok() {
                passed.push(clock::now().since(start));
            } else {
                tokio::time::sleep(STEP).await;
            }
        }
        // A little less than a second: the readings here are not the limiter's own.
        let second = SECOND - Duration::from_millis(5);
        let within = |from: &Duration| {
            passed.iter().filter(|at| *at >= from && **at < *from + second).count()
        };
        passed.iter().map(within).max().unwrap_or(0)
    })
}

fn resilience_log() -> Verdict {
    most(resilience(WindowType::SlidingLog), LIMIT)
}

fn resilience_default() -> Verdict {
    most(resilience(WindowType::Fixed), LIMIT * 2)
}

fn governor_quota() -> Quota {
    Quota::per_second(NonZeroU32::new(LIMIT).expect("not zero"))
}

fn governor() -> usize {
    let clock = FakeRelativeClock::default();
    let limit = RateLimiter::direct_with_clock(governor_quota(), clock.clone());
    let mut before = Duration::ZERO;
    most_in_a_second(|at| {
        clock.advance(at - before);
        before = at;
        limit.check().is_ok()
    })
}

fn governor_bursts() -> Verdict {
    most(governor(), LIMIT).never_promised()
}

fn governor_default() -> Verdict {
    most(governor(), LIMIT * 2)
}

/// What 8 threads together get of a limit that does not refill meanwhile.
fn together(ask: impl Fn() -> bool + Sync) -> Verdict {
    let passed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    passed.fetch_add(u32::from(ask()), Ordering::Relaxed);
                }
            });
        }
    });
    let passed = passed.into_inner();
    // A refill of one is possible where the clock runs.
    Verdict::when(passed.abs_diff(LIMIT) <= 1, format_args!("{passed}"))
}

const HOUR: Duration = Duration::from_secs(3_600);

fn ours_threads() -> Verdict {
    let limit = RateLimit::new(RateLimitConfig::new(LIMIT, HOUR));
    let now = Moment::from_millis(1_000);
    together(|| passes(limit.ask(now)))
}

fn governor_threads() -> Verdict {
    let quota = Quota::with_period(HOUR / LIMIT).expect("not zero");
    let quota = quota.allow_burst(NonZeroU32::new(LIMIT).expect("not zero"));
    let limit = RateLimiter::direct(quota);
    together(|| limit.check().is_ok())
}

fn resilience_threads() -> Verdict {
    let layer = RateLimiterLayer::builder().limit_for_period(LIMIT as usize).refresh_period(HOUR);
    let layer = layer.timeout_duration(Duration::ZERO).build().expect("sound values");
    let service = Arc::new(layer.layer(service_fn(|()| async { Ok::<_, Down>(()) })));
    together(|| {
        let service = service.as_ref().clone();
        futures_util::FutureExt::now_or_never(service.oneshot(())).is_some_and(|said| said.is_ok())
    })
}

const KEYS: u32 = 100_000;

fn ours_keys() -> Verdict {
    let limit = KeyedRateLimit::<u32>::new(RateLimitConfig::new(LIMIT, SECOND), 7);
    for key in 0..KEYS {
        limit.ask(Moment::from_millis(u64::from(key)), &key);
    }
    let kept = limit.keys();
    Verdict::when(kept <= 10_000, format_args!("{kept} of {KEYS} kept"))
}

fn governor_keys() -> Verdict {
    let limit = RateLimiter::keyed(governor_quota());
    for key in 0..KEYS {
        limit.check_key(&key).ok();
    }
    // Until somebody calls `retain_recent`, as it documents.
    let kept = limit.len();
    Verdict::when(kept <= 10_000, format_args!("{kept} of {KEYS} kept")).never_promised()
}

fn extremes(used: Option<()>) -> Verdict {
    Verdict::when(used.is_some(), if used.is_some() { "" } else { "panics" })
}

const AGES: Duration = Duration::from_secs(600 * 365 * 86_400);

fn ours_extremes() -> Verdict {
    extremes(without_panic(|| {
        for requests in [0, 1, u32::MAX] {
            for per in [Duration::ZERO, Duration::from_nanos(1), AGES, Duration::MAX] {
                for config in
                    [RateLimitConfig::new(requests, per), RateLimitConfig::strict(requests, per)]
                {
                    let limit = RateLimit::new(config);
                    for now in [Moment::ORIGIN, Moment::from_millis(1), Moment::FAR_FUTURE] {
                        limit.ask(now);
                    }
                }
            }
        }
    }))
}

fn resilience_extremes() -> Verdict {
    extremes(without_panic(|| {
        for requests in [1, usize::MAX] {
            for per in [Duration::from_nanos(1), AGES, Duration::MAX] {
                let layer =
                    RateLimiterLayer::builder().limit_for_period(requests).refresh_period(per);
                let Ok(layer) = layer.timeout_duration(Duration::ZERO).build() else { continue };
                let service = layer.layer(service_fn(|()| async { Ok::<_, Down>(()) }));
                run(false, async { service.oneshot(()).await.ok() });
            }
        }
    }))
}

fn governor_extremes() -> Verdict {
    extremes(without_panic(|| {
        for per in [Duration::from_nanos(1), AGES] {
            if let Some(quota) = Quota::with_period(per) {
                RateLimiter::direct(quota).check().ok();
            }
        }
    }))
}

fn ours_backwards() -> Verdict {
    let limit = RateLimit::new(RateLimitConfig::new(LIMIT, SECOND));
    let passed = (0..LIMIT * 10).filter(|step| {
        // An hour to and fro: what is used up stays used up.
        let now = if step % 2 == 0 { 10_000_000 } else { 6_400_000 };
        passes(limit.ask(Moment::from_millis(now)))
    });
    let passed = passed.count();
    Verdict::when(passed <= LIMIT as usize, format_args!("{passed} passed"))
}
