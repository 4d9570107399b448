//! The breaker in every interleaving of a few threads. Runs under `cargo xtask model`.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

mod model;

use std::time::Duration;

use mamparo_core::call::breaker::{
    Breaker, BreakerConfig, Event, Over, Override, Phase, SlowRate, Trip, Verdict,
};
use mamparo_core::call::window::Counts;
use mamparo_core::outcome::Health;
use mamparo_core::sync::Arc;
use mamparo_core::sync::atomic::{AtomicUsize, Ordering};
use mamparo_core::time::Moment;

use model::{Part, check, together};

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

/// Every kind of window, each of which opens at two bad calls.
fn rules() -> [Trip; 4] {
    let over_calls = Over::Calls(2);
    let over_time = Over::Time(Duration::from_secs(10));
    let slow_rate = Some(SlowRate { slower_than: Duration::from_secs(1), rate: 1.0 });
    [
        Trip::Consecutive { failures: 2 },
        Trip::Failures { failures: 2, window: Duration::from_secs(10) },
        Trip::Rate { failure_rate: Some(1.0), slow_rate, min_calls: 2, over: over_calls },
        Trip::Rate { failure_rate: Some(1.0), slow_rate: None, min_calls: 2, over: over_time },
    ]
}

fn breaker(trip: Trip, probes: u32) -> Breaker {
    Breaker::new(BreakerConfig { trip, probes, ..BreakerConfig::default() })
}

fn call(breaker: &Breaker, now: Moment, health: Health) -> Event {
    let admission = breaker.ask(now).admission.expect("admitted");
    breaker.tell(now, admission, health).event
}

fn opened(trip: Trip, probes: u32) -> Breaker {
    let breaker = breaker(trip, probes);
    call(&breaker, at(0), Health::Bad);
    call(&breaker, at(0), Health::Bad);
    assert_eq!(breaker.phase(at(0)), Phase::Open);
    breaker
}

#[test]
fn policies_c07_failures_at_once_open_it_once_whatever_is_counted() {
    for trip in rules() {
        check(move || {
            let shared = Arc::new(breaker(trip, 1));
            let parts = (0..3)
                .map(|_| -> Part<Breaker, usize> {
                    let admission = shared.ask(at(0)).admission.expect("closed");
                    Box::new(move |b| {
                        usize::from(b.tell(at(0), admission, Health::Bad).change.is_some())
                    })
                })
                .collect();
            let openings: usize = together(&shared, parts).into_iter().sum();
            assert_eq!(openings, 1);
            assert_eq!(shared.ask(at(10_000)).admission, Err(Duration::from_secs(20)));
        });
    }
}

#[test]
fn policies_c03_probes_in_flight_never_exceed_their_number() {
    for probes in [1, 2] {
        check(move || {
            let shared = Arc::new((opened(rules()[0], probes), AtomicUsize::new(0)));
            let parts = (0..3)
                .map(|_| -> Part<(Breaker, AtomicUsize), ()> {
                    Box::new(move |(breaker, in_flight)| {
                        if let Ok(probe) = breaker.ask(at(30_000)).admission {
                            assert!(probe.is_probe());
                            let before = in_flight.fetch_add(1, Ordering::SeqCst);
                            assert!(before < probes as usize);
                            in_flight.fetch_sub(1, Ordering::SeqCst);
                            breaker.tell(at(30_000), probe, Health::Silent);
                        }
                    })
                })
                .collect();
            together(&shared, parts);
            // Every place has come back.
            let free = (0..3).filter(|_| shared.0.ask(at(30_000)).admission.is_ok()).count();
            assert_eq!(free, probes as usize);
        });
    }
}

#[test]
fn policies_c02_late_results_move_nothing_and_count_nowhere() {
    for trip in rules() {
        for late in [Health::Bad, Health::Good] {
            check(move || {
                let breaker = breaker(trip, 1);
                let stale = breaker.ask(at(0)).admission.expect("closed");
                call(&breaker, at(0), Health::Bad);
                call(&breaker, at(0), Health::Bad);
                let shared = Arc::new(breaker);
                let parts: Vec<Part<Breaker, Event>> = vec![
                    Box::new(move |b| b.tell(at(30_000), stale, late).event),
                    Box::new(move |b| {
                        assert_eq!(call(b, at(30_000), Health::Good), Event::ProbesPassed);
                        call(b, at(30_000), Health::Bad)
                    }),
                ];
                let events = together(&shared, parts);
                assert_eq!(events, [Event::Stale, Event::Counted]);
                assert_eq!(shared.phase(at(30_000)), Phase::Closed);
                assert_eq!(shared.counts(at(30_000)), Counts { calls: 1, failed: 1, slow: 0 });
            });
        }
    }
}

/// The one that races with the trip itself: it is counted before it, or not at all.
#[test]
fn policies_c02_a_result_that_races_with_trip_and_trial_stays_out_of_the_new_window() {
    for trip in rules() {
        check(move || {
            let breaker = breaker(trip, 1);
            call(&breaker, at(0), Health::Bad);
            let racing = breaker.ask(at(0)).admission.expect("closed");
            let shared = Arc::new(breaker);
            let parts: Vec<Part<Breaker, ()>> = vec![
                // Takes a number, so that the two that follow share a stripe.
                Box::new(|_| {}),
                Box::new(move |b| {
                    b.tell(at(0), racing, Health::Bad);
                }),
                Box::new(|b| {
                    // Each is refused where the other thread has the say just now.
                    if let Ok(admission) = b.ask(at(0)).admission {
                        b.tell(at(0), admission, Health::Bad);
                    }
                    if let Ok(probe) = b.ask(at(30_000)).admission {
                        b.tell(at(30_000), probe, Health::Good);
                    }
                    call(b, at(30_000), Health::Good);
                }),
            ];
            together(&shared, parts);
            assert_eq!(shared.phase(at(30_000)), Phase::Closed);
            assert_eq!(shared.counts(at(30_000)).failed, 0);
            assert_eq!(call(&shared, at(30_000), Health::Bad), Event::Counted, "the first of two");
            assert_eq!(shared.counts(at(30_000)).failed, 1);
        });
    }
}

#[test]
fn policies_c04_a_probe_that_is_dropped_frees_its_place_for_the_next() {
    check(|| {
        let breaker = opened(rules()[0], 1);
        let probe = breaker.ask(at(30_000)).admission.expect("a place");
        let shared = Arc::new(breaker);
        let parts: Vec<Part<Breaker, usize>> = vec![
            Box::new(move |b| {
                assert_eq!(b.tell(at(30_000), probe, Health::Silent).event, Event::Returned);
                0
            }),
            Box::new(|b| usize::from(b.ask(at(30_000)).admission.is_ok())),
            Box::new(|b| usize::from(b.ask(at(30_000)).admission.is_ok())),
        ];
        let admitted: usize = together(&shared, parts).into_iter().sum();
        let one_more = usize::from(shared.ask(at(30_000)).admission.is_ok());
        assert_eq!(admitted + one_more, 1, "one place, and it is not lost");
    });
}

#[test]
fn a_refusal_names_a_time_that_was_true_at_some_moment_of_the_call() {
    check(|| {
        let shared = Arc::new(opened(rules()[0], 1));
        let parts: Vec<Part<Breaker, ()>> = vec![
            Box::new(|b| {
                if let Ok(probe) = b.ask(at(30_000)).admission {
                    b.tell(at(30_000), probe, Health::Bad);
                }
            }),
            Box::new(|b| match b.ask(at(45_000)).admission {
                // It came first, and is the probe.
                Ok(probe) => assert!(probe.is_probe()),
                // A probe is in flight, or has failed at 30 s.
                Err(after) => {
                    let (second, rest) = (Duration::from_secs(1), Duration::from_secs(15));
                    assert!(after == second || after == rest, "{after:?}");
                }
            }),
        ];
        together(&shared, parts);
    });
}

/// Two probes hang. While one caller finds that their time is over, another one moves on to the next
/// trial, which has a place left: nobody is told that the places are taken.
#[test]
fn the_time_of_one_trial_is_never_taken_for_that_of_another() {
    check(|| {
        let breaker = opened(rules()[0], 2);
        let hanging = [30_000, 30_000].map(|now| breaker.ask(at(now)).admission);
        let shared = Arc::new(breaker);
        let parts: Vec<Part<Breaker, ()>> = vec![
            Box::new(|b| {
                let _ = (b.ask(at(60_000)), b.ask(at(90_000)));
            }),
            Box::new(|b| {
                if let Err(after) = b.ask(at(60_000)).admission {
                    assert_eq!(after, Duration::from_secs(30));
                }
            }),
        ];
        together(&shared, parts);
        assert!(hanging.iter().all(Result::is_ok));
    });
}

/// A probe leaves without a verdict long after the trial began, and the next one takes its place with a
/// time of its own: nobody in between takes it for one that hangs.
#[test]
fn the_time_of_one_probe_is_never_taken_for_that_of_the_next() {
    check(|| {
        let breaker = opened(rules()[0], 1);
        let probe = breaker.ask(at(30_000)).admission.expect("a place");
        let shared = Arc::new(breaker);
        let parts: Vec<Part<Breaker, ()>> = vec![
            Box::new(move |b| {
                b.tell(at(59_999), probe, Health::Silent);
                if let Ok(next) = b.ask(at(90_000)).admission {
                    assert!(next.is_probe());
                    let told = b.tell(at(90_001), next, Health::Good);
                    assert_eq!(told.event, Event::ProbesPassed);
                }
            }),
            Box::new(|b| match b.ask(at(59_999)).admission {
                Ok(_) => {}
                Err(after) => assert_eq!(after, Duration::from_secs(1)),
            }),
        ];
        together(&shared, parts);
    });
}

#[test]
fn an_order_stands_whatever_happens_at_the_same_time() {
    for trip in rules() {
        check(move || {
            let breaker = breaker(trip, 1);
            call(&breaker, at(0), Health::Bad);
            let admission = breaker.ask(at(0)).admission.expect("closed");
            let shared = Arc::new(breaker);
            let parts: Vec<Part<Breaker, ()>> = vec![
                Box::new(move |b| {
                    b.tell(at(0), admission, Health::Bad);
                }),
                Box::new(|b| {
                    assert!(b.force_closed(at(0)).is_some());
                }),
            ];
            together(&shared, parts);
            assert_eq!(shared.overridden(), Some(Override::Closed));
            assert_eq!(shared.phase(at(0)), Phase::Closed);
            assert_eq!(shared.counts(at(0)), Counts::default());
        });
    }
}

/// Two successes complete the minimum, one after the other or at once: one of them has to notice.
#[test]
fn a_success_that_completes_the_minimum_opens_it_whoever_it_was() {
    for over in [Over::Calls(3), Over::Time(Duration::from_secs(10))] {
        check(move || {
            let trip = Trip::Rate { failure_rate: Some(0.3), slow_rate: None, min_calls: 3, over };
            let shared = Arc::new(breaker(trip, 1));
            let parts = [Health::Bad, Health::Good, Health::Good]
                .into_iter()
                .map(|health| -> Part<Breaker, usize> {
                    let admission = shared.ask(at(0)).admission.expect("closed");
                    let verdict = Verdict::from(health);
                    Box::new(move |b| {
                        usize::from(b.tell(at(0), admission, verdict).change.is_some())
                    })
                })
                .collect();
            let openings: usize = together(&shared, parts).into_iter().sum();
            assert_eq!(openings, 1);
        });
    }
}
