//! What opens a breaker: rates of failures and of slow calls, rows, extremes.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{
    Breaker, BreakerConfig, Event, Over, Phase, SlowRate, Told, Trip, Verdict,
};
use mamparo_core::call::window::{BUCKETS, Counts};
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;
use proptest::prelude::*;

const SLOW: Duration = Duration::from_millis(500);

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn breaker(trip: Trip) -> Breaker {
    Breaker::new(BreakerConfig { trip, ..BreakerConfig::default() })
}

fn call(breaker: &Breaker, now: Moment, failed: bool, took: Duration) -> Told {
    let admission = breaker.ask(now).admission.expect("admitted");
    let health = if failed { Health::Bad } else { Health::Good };
    breaker.tell(now, admission, Verdict { health, took: Some(took), retry_after: None })
}

fn slow_only(rate: f64, min_calls: u32, over: Over) -> Trip {
    let slow_rate = Some(SlowRate { slower_than: SLOW, rate });
    Trip::Rate { failure_rate: None, slow_rate, min_calls, over }
}

#[test]
fn slow_calls_open_it_though_every_one_succeeds() {
    for over in [Over::Calls(10), Over::Time(Duration::from_secs(10))] {
        let breaker = breaker(slow_only(0.5, 10, over));
        for n in 0..9 {
            let took = if n % 2 == 0 { SLOW + Duration::from_millis(1) } else { SLOW };
            assert_eq!(call(&breaker, at(n), false, took).event, Event::Counted, "{over:?}");
        }
        assert_eq!(breaker.counts(at(9)), Counts { calls: 9, failed: 0, slow: 5 });
        let told = call(&breaker, at(9), false, Duration::ZERO);
        assert_eq!(told.event, Event::Tripped, "the tenth completes the minimum: 5 of 10");
    }
}

#[test]
fn failures_do_not_open_it_where_only_slowness_counts_and_the_other_way_round() {
    let by_slowness = breaker(slow_only(0.5, 1, Over::Calls(10)));
    for n in 0..100 {
        call(&by_slowness, at(n), true, Duration::ZERO);
    }
    assert_eq!(by_slowness.phase(at(100)), Phase::Closed);
    let over = Over::Calls(10);
    let by_failures =
        breaker(Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 1, over });
    for n in 0..100 {
        call(&by_failures, at(n), false, Duration::from_secs(60));
    }
    assert_eq!(by_failures.phase(at(100)), Phase::Closed);
}

#[test]
fn a_call_without_a_known_time_or_a_verdict_is_not_slow() {
    let breaker = breaker(slow_only(0.1, 1, Over::Calls(10)));
    for health in [Health::Good, Health::Bad, Health::Silent] {
        let admission = breaker.ask(at(0)).admission.expect("closed");
        breaker.tell(at(0), admission, health);
    }
    let admission = breaker.ask(at(0)).admission.expect("closed");
    let took = Some(Duration::from_secs(60));
    let hung = Verdict { took, ..Verdict::from(Health::Silent) };
    assert_eq!(breaker.tell(at(0), admission, hung).event, Event::Returned);
    assert_eq!(breaker.counts(at(0)), Counts { calls: 2, failed: 1, slow: 0 });
}

#[test]
fn policies_c10_a_slow_rate_is_reached_at_its_value_and_at_all_calls() {
    for (rate, slow_of_ten, opens) in
        [(1.0, 10, true), (1.0, 9, false), (0.3, 3, true), (0.3, 2, false), (0.07, 1, true)]
    {
        let breaker = breaker(slow_only(rate, 10, Over::Time(Duration::from_secs(10))));
        for n in 0..10 {
            let took = if n < slow_of_ten { SLOW * 2 } else { SLOW };
            call(&breaker, at(0), false, took);
        }
        assert_eq!(breaker.phase(at(0)) == Phase::Open, opens, "{rate} {slow_of_ten}");
    }
}

#[test]
fn failures_in_a_row_open_it_and_one_success_starts_anew() {
    let breaker = breaker(Trip::Consecutive { failures: 3 });
    let call = |failed| call(&breaker, at(0), failed, Duration::ZERO).event;
    for _ in 0..1_000 {
        assert_eq!(
            (call(true), call(true), call(false)),
            (Event::Counted, Event::Counted, Event::Counted)
        );
    }
    assert_eq!(
        (call(true), call(true), call(true)),
        (Event::Counted, Event::Counted, Event::Tripped)
    );
}

#[test]
fn a_failure_without_a_verdict_neither_adds_to_a_row_nor_ends_it() {
    let breaker = breaker(Trip::Consecutive { failures: 2 });
    call(&breaker, at(0), true, Duration::ZERO);
    let cancelled = breaker.ask(at(0)).admission.expect("closed");
    breaker.tell(at(0), cancelled, Health::Silent);
    assert_eq!(call(&breaker, at(0), true, Duration::ZERO).event, Event::Tripped);
}

/// Successes that have left the window raise the rate of what stays, and the next call notices, be
/// it a success itself.
#[test]
fn a_success_opens_it_when_older_successes_have_left_the_window() {
    let over = Over::Time(Duration::from_secs(10));
    let breaker =
        breaker(Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 2, over });
    for _ in 0..100 {
        call(&breaker, at(0), false, Duration::ZERO);
    }
    for n in 0..50 {
        assert_eq!(call(&breaker, at(5_000 + n), true, Duration::ZERO).event, Event::Counted);
    }
    assert_eq!(call(&breaker, at(9_999), false, Duration::ZERO).event, Event::Counted);
    let told = call(&breaker, at(10_000), false, Duration::ZERO);
    assert_eq!(told.event, Event::Tripped, "50 of 52 are left");
}

#[test]
fn no_limit_is_too_small_or_too_large_and_no_clock_too_strange() {
    let longest = Duration::MAX;
    let mut trips = vec![
        Trip::Consecutive { failures: 0 },
        Trip::Consecutive { failures: u32::MAX },
        Trip::Failures { failures: 0, window: Duration::ZERO },
        Trip::Failures { failures: u32::MAX, window: longest },
    ];
    let over = [0, 1, u32::MAX]
        .map(Over::Calls)
        .into_iter()
        .chain([Duration::ZERO, Duration::from_nanos(1), longest].map(Over::Time));
    for over in over {
        for (min_calls, rate) in [(0, 0.0), (1, f64::NAN), (u32::MAX, 1.0), (1, f64::INFINITY)] {
            let slow_rate = Some(SlowRate { slower_than: Duration::ZERO, rate });
            trips.push(Trip::Rate { failure_rate: Some(rate), slow_rate, min_calls, over });
        }
    }
    for trip in trips {
        for (open_for, open_growth) in [(Duration::ZERO, f64::NAN), (longest, f64::MAX)] {
            for probes in [0, u32::MAX] {
                let config = BreakerConfig {
                    trip,
                    open_for,
                    open_growth,
                    open_max: longest,
                    open_jitter: 1.0,
                    probes,
                    probe_success: f64::NAN,
                    half_open_max: open_for,
                };
                drive_with_strange_clocks(&Breaker::new(config));
            }
        }
    }
}

fn drive_with_strange_clocks(breaker: &Breaker) {
    let years = Duration::from_secs(86_400 * 365 * 50);
    for now in [at(0), Moment::ORIGIN, Moment::FAR_FUTURE, at(1), at(0).plus(years), at(2)] {
        for health in [Health::Bad, Health::Good, Health::Silent, Health::Bad] {
            let _ = (breaker.look(now), breaker.refuses(now), breaker.phase(now));
            let _ = (breaker.explain(now).to_string(), breaker.counts(now));
            if let Ok(admission) = breaker.ask(now).admission {
                let retry_after = Some(Duration::MAX);
                breaker.tell(now, admission, Verdict { health, took: retry_after, retry_after });
            }
        }
    }
}

#[test]
fn after_years_of_silence_nothing_old_counts() {
    let over = Over::Time(Duration::from_secs(10));
    for trip in [
        Trip::Failures { failures: 2, window: Duration::from_secs(10) },
        Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 2, over },
    ] {
        let breaker = breaker(trip);
        call(&breaker, at(0), true, Duration::ZERO);
        let later = at(0).plus(Duration::from_secs(86_400 * 365 * 100));
        assert_eq!(breaker.counts(later), Counts::default());
        assert_eq!(call(&breaker, later, true, Duration::ZERO).event, Event::Counted);
        assert_eq!(breaker.counts(later), Counts { calls: 1, failed: 1, slow: 0 });
    }
}

/// Real threads, on real processors: what the model checks show for three calls, for many.
#[test]
fn threads_that_record_at_once_lose_no_call() {
    const THREADS: u32 = 8;
    const CALLS: u32 = 5_000;
    let slow_rate = Some(SlowRate { slower_than: SLOW, rate: 1.0 });
    for over in [Over::Calls(THREADS * CALLS), Over::Time(Duration::from_secs(10))] {
        let breaker =
            breaker(Trip::Rate { failure_rate: Some(1.0), slow_rate, min_calls: 1, over });
        // From now on not every call has failed or was slow, so it stays closed.
        call(&breaker, at(0), false, Duration::ZERO);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for n in 1..CALLS {
                        let took = if n % 5 == 0 { SLOW * 2 } else { SLOW };
                        call(&breaker, at(0), n % 4 == 0, took);
                    }
                });
            }
        });
        let (calls, each) = (THREADS * (CALLS - 1) + 1, CALLS - 1);
        let expected = Counts { calls, failed: THREADS * (each / 4), slow: THREADS * (each / 5) };
        assert_eq!(breaker.counts(at(0)), expected, "{over:?}");
    }
}

/// One call of the past, as a recount sees it.
struct Past {
    epoch: u64,
    failed: bool,
    slow: bool,
}

fn recount<'a>(inside: impl Iterator<Item = &'a Past>) -> Counts {
    inside.fold(Counts::default(), |sum, past| Counts {
        calls: sum.calls + 1,
        failed: sum.failed + u32::from(past.failed),
        slow: sum.slow + u32::from(past.slow),
    })
}

proptest! {
    /// Whatever the shortcuts, the circuit opens at exactly the call at which a recount of the window
    /// reaches a threshold, under a clock that jumps and steps back.
    #[test]
    fn policies_c11_and_c12_it_opens_at_the_call_at_which_a_recount_would(
        by_calls: bool,
        size in 1_u32..30,
        failure_rate in prop::option::of(0.05_f64..1.0),
        slow_share in prop::option::of(0.05_f64..1.0),
        min_calls in 1_u32..20,
        good in 0_u32..100,
        events in prop::collection::vec((0_u64..900, 0_u64..60, 0_u32..100, 0_u32..100), 0..400),
    ) {
        let period = Duration::from_millis(u64::from(size) * 100);
        let width = period.as_nanos() as u64 / BUCKETS as u64;
        let over = if by_calls { Over::Calls(size) } else { Over::Time(period) };
        let slow_rate = slow_share.map(|rate| SlowRate { slower_than: SLOW, rate });
        let breaker = breaker(Trip::Rate { failure_rate, slow_rate, min_calls, over });
        let (mut past, mut now, mut latest) = (Vec::new(), 10_000_u64, 0);
        for (back, on, failed, slow) in events {
            // One in ten steps back, by up to a second.
            now = if back < 90 { now.saturating_sub(back * 10) } else { now + on };
            let (failed, slow) = (failed >= good, slow >= good);
            latest = latest.max(at(now).nanos() / width);
            past.push(Past { epoch: latest, failed, slow: slow && slow_rate.is_some() });
            let counts = if by_calls {
                recount(past[past.len().saturating_sub(size as usize)..].iter())
            } else {
                recount(past.iter().filter(|past| latest - past.epoch < BUCKETS as u64))
            };
            let failing = counts.failed > 0
                && failure_rate.is_some_and(|rate| counts.failure_rate() >= rate);
            let slowing = counts.slow > 0
                && slow_rate.is_some_and(|rule| counts.slow_rate() >= rule.rate);
            let opens = counts.calls >= min_calls && (failing || slowing);
            let took = if slow { SLOW * 2 } else { SLOW };
            let told = call(&breaker, at(now), failed, took);
            prop_assert_eq!(told.change.is_some(), opens);
            if opens {
                break;
            }
            prop_assert_eq!(breaker.counts(at(now)), counts);
        }
    }
}
