//! The edges at which breakers of others panic, never open, or open one failure late: the smallest and
//! the largest settings, silence of years, and very many failures in very little time.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{Breaker, BreakerConfig, Event, Over, Phase, Trip};
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;

use Health::{Bad, Good};

const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const START: Moment = Moment::from_millis(1_000_000);

fn of(trip: Trip) -> Breaker {
    Breaker::new(BreakerConfig { trip, ..BreakerConfig::default() })
}

fn rate(failure_rate: f64, min_calls: u32, over: Over) -> Trip {
    Trip::Rate { failure_rate: Some(failure_rate), slow_rate: None, min_calls, over }
}

/// Every kind of rule, each of which `n` failures in a row reach.
fn rules(n: u32) -> [Trip; 4] {
    [
        Trip::Consecutive { failures: n },
        Trip::Failures { failures: n, window: 10 * SECOND },
        rate(1.0, n, Over::Calls(n)),
        rate(1.0, n, Over::Time(10 * SECOND)),
    ]
}

fn call(breaker: &Breaker, now: Moment, health: Health) -> Event {
    let admission = breaker.ask(now).admission.expect("admitted");
    breaker.tell(now, admission, health).event
}

/// The number of the failure that opens the circuit, the first of them at `now` and the others `apart`.
fn opens_at(breaker: &Breaker, now: Moment, apart: Duration) -> Option<u32> {
    (1..=10_000).find(|n| call(breaker, now.plus(apart * (n - 1)), Bad) == Event::Tripped)
}

#[test]
fn failure_n_opens_it_and_none_before_or_after() {
    for n in [1, 2, 3, 5, 100] {
        for trip in rules(n) {
            assert_eq!(opens_at(&of(trip), START, Duration::from_nanos(1)), Some(n), "{trip}");
        }
    }
}

#[test]
fn a_limit_of_no_failures_is_a_limit_of_one() {
    for trip in rules(0) {
        assert_eq!(call(&of(trip), START, Good), Event::Counted, "{trip}");
        assert_eq!(opens_at(&of(trip), START, Duration::ZERO), Some(1), "{trip}");
    }
}

#[test]
fn a_window_of_no_calls_or_of_one_holds_the_last() {
    for calls in [0, 1] {
        let breaker = of(rate(0.5, 1, Over::Calls(calls)));
        for _ in 0..1_000 {
            assert_eq!(call(&breaker, START, Good), Event::Counted);
        }
        assert_eq!(breaker.counts(START).calls, 1);
        assert_eq!(call(&breaker, START, Bad), Event::Tripped, "of {calls} calls");
    }
}

#[test]
fn a_window_of_no_time_holds_what_happens_at_once() {
    for nanos in [0, 1, 9, 10, 999_999, 4_999_999] {
        let breaker = of(rate(1.0, 3, Over::Time(Duration::from_nanos(nanos))));
        assert_eq!(opens_at(&breaker, START, Duration::ZERO), Some(3), "{nanos} ns");
        let breaker = of(rate(1.0, 3, Over::Time(Duration::from_nanos(nanos))));
        assert_eq!(opens_at(&breaker, START, Duration::from_millis(5)), None, "{nanos} ns");
    }
    // A failure leaves a period when it is as old as the period, so of none there is never one inside.
    let none = of(Trip::Failures { failures: 1, window: Duration::ZERO });
    assert_eq!(opens_at(&none, START, Duration::ZERO), None);
    let least = of(Trip::Failures { failures: 3, window: Duration::from_nanos(1) });
    assert_eq!(opens_at(&least, START, Duration::ZERO), Some(3));
}

#[test]
fn a_window_without_end_forgets_nothing() {
    for trip in [
        Trip::Failures { failures: 3, window: Duration::MAX },
        rate(1.0, 3, Over::Time(Duration::MAX)),
    ] {
        assert_eq!(opens_at(&of(trip), START, 100 * YEAR), Some(3), "{trip}");
    }
}

#[test]
fn policies_c10_a_threshold_of_0_50_or_100_percent_is_reached_at_its_value() {
    for over in [Over::Calls(10), Over::Time(10 * SECOND)] {
        for (threshold, failed, opens) in [
            (0.0, 0, false),
            (0.0, 1, true),
            (0.5, 4, false),
            (0.5, 5, true),
            (1.0, 9, false),
            (1.0, 10, true),
        ] {
            let breaker = of(rate(threshold, 10, over));
            (0..10).for_each(|n| {
                call(&breaker, START, if n < failed { Bad } else { Good });
            });
            let phase = breaker.phase(START);
            assert_eq!(phase == Phase::Open, opens, "{failed} of 10 at {threshold}, {over:?}");
        }
    }
}

#[test]
fn a_thousand_failures_in_one_millisecond_open_it_at_the_same_one_as_a_thousand_in_a_second() {
    for n in [5, 1_000] {
        for trip in rules(n) {
            for apart in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(1)] {
                assert_eq!(opens_at(&of(trip), START, apart), Some(n), "{trip}, {apart:?}");
            }
        }
    }
}

#[test]
fn a_circuit_that_was_idle_for_years_opens_as_fast_as_a_new_one() {
    for trip in rules(5) {
        let breaker = of(trip);
        for _ in 0..10_000 {
            call(&breaker, START, Good);
        }
        let later = START.plus(100 * YEAR);
        assert_eq!(opens_at(&breaker, later, Duration::from_millis(1)), Some(5), "{trip}");
    }
}

#[test]
fn last_weeks_failures_do_not_count_in_a_window_of_time() {
    for trip in [Trip::Failures { failures: 5, window: 10 * SECOND }, rules(5)[3]] {
        let breaker = of(trip);
        for _ in 0..4 {
            call(&breaker, START, Bad);
        }
        let later = START.plus(7 * 86_400 * SECOND);
        assert_eq!(breaker.counts(later).failed, 0);
        assert_eq!(opens_at(&breaker, later, Duration::ZERO), Some(5), "{trip}");
    }
}

#[test]
fn an_open_time_without_end_refuses_for_as_long_as_a_clock_runs() {
    for open_growth in [1.0, 2.0] {
        let config = BreakerConfig {
            trip: Trip::Consecutive { failures: 1 },
            open_for: Duration::MAX,
            open_growth,
            open_max: Duration::MAX,
            open_jitter: 0.0,
            ..BreakerConfig::default()
        };
        let breaker = Breaker::new(config);
        assert_eq!(call(&breaker, START, Bad), Event::Tripped);
        for years in [0, 1, 500] {
            let now = START.plus(years * YEAR);
            let after = breaker.ask(now).admission.expect_err("open");
            assert_eq!(after, now.until(Moment::FAR_FUTURE));
            assert_eq!(breaker.explain(now).tries_in, Some(after));
        }
    }
}

#[test]
fn an_open_time_of_none_is_a_trial_at_once_however_often_it_fails() {
    let config = BreakerConfig {
        trip: Trip::Consecutive { failures: 1 },
        open_for: Duration::ZERO,
        open_growth: 2.0,
        open_jitter: 0.5,
        ..BreakerConfig::default()
    };
    let breaker = Breaker::new(config);
    assert_eq!(call(&breaker, START, Bad), Event::Tripped);
    for _ in 0..2_000 {
        assert_eq!(call(&breaker, START, Bad), Event::ProbeFailed);
    }
}

#[test]
fn an_open_time_that_grows_stops_at_its_most_after_thousands_of_trials() {
    let config = BreakerConfig {
        trip: Trip::Consecutive { failures: 1 },
        open_growth: 2.0,
        ..BreakerConfig::default()
    };
    let breaker = Breaker::new(config);
    let mut now = START;
    call(&breaker, now, Bad);
    for trial in 0..3_000 {
        let open = breaker.ask(now).admission.expect_err("open");
        let grown = Duration::from_secs(30 << trial.min(4)).min(config.open_max);
        assert_eq!(open, grown, "after {trial} trials");
        now = now.plus(open);
        call(&breaker, now, Bad);
    }
}

#[test]
fn of_ten_probes_the_first_that_fails_opens_it_again() {
    let config = BreakerConfig {
        trip: Trip::Consecutive { failures: 1 },
        probes: 10,
        ..BreakerConfig::default()
    };
    let breaker = Breaker::new(config);
    call(&breaker, START, Bad);
    let tried = START.plus(config.open_for);
    assert_eq!(call(&breaker, tried, Bad), Event::ProbeFailed);
    assert_eq!(breaker.ask(tried).admission, Err(config.open_for));
}

#[test]
fn an_open_circuit_that_nobody_asked_for_years_is_tried_and_not_simply_closed() {
    let config =
        BreakerConfig { trip: Trip::Consecutive { failures: 1 }, ..BreakerConfig::default() };
    let breaker = Breaker::new(config);
    call(&breaker, START, Bad);
    let later = START.plus(100 * YEAR);
    let probe = breaker.ask(later).admission.expect("it is tried");
    assert!(probe.is_probe());
    assert!(breaker.ask(later).admission.is_err(), "one place");
    assert_eq!(breaker.tell(later, probe, Good).event, Event::ProbesPassed);
}
