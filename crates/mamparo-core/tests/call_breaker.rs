//! The breaker: the mission's figures, the faults of others, and every row of its table.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{
    Admission, Breaker, BreakerConfig, Change, Event, Over, Phase, TABLE, Told, Trip,
};
use mamparo_core::outcome::{Health, failure_of_status};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const START: Moment = Moment::from_millis(1_000_000);

fn at(millis: u64) -> Moment {
    START.plus(Duration::from_millis(millis))
}

fn rate(failure_rate: f64, min_calls: u32, over: Over) -> BreakerConfig {
    let trip = Trip::Rate { failure_rate: Some(failure_rate), slow_rate: None, min_calls, over };
    BreakerConfig { trip, ..BreakerConfig::default() }
}

fn admit(breaker: &Breaker, now: Moment) -> Admission {
    breaker.ask(now).admission.expect("admitted")
}

fn call(breaker: &Breaker, now: Moment, health: Health) -> Told {
    let admission = admit(breaker, now);
    breaker.tell(now, admission, health)
}

/// Opens a default breaker at `at(0)`.
fn opened(config: BreakerConfig) -> Breaker {
    let breaker = Breaker::new(config);
    for _ in 0..5 {
        call(&breaker, at(0), Health::Bad);
    }
    assert_eq!(breaker.phase(at(0)), Phase::Open);
    breaker
}

#[test]
fn five_failures_in_ten_seconds_open_it_for_thirty_and_a_probe_closes_it() {
    let breaker = Breaker::new(BreakerConfig::default());
    for n in 0..4 {
        assert_eq!(call(&breaker, at(n * 2_000), Health::Bad).event, Event::Counted);
    }
    let told = call(&breaker, at(9_999), Health::Bad);
    let change = told.change.expect("the fifth opens");
    assert_eq!((change.from, change.to), (Phase::Closed, Phase::Open));
    let refused = breaker.ask(at(10_999)).admission.expect_err("open");
    assert_eq!(refused, Duration::from_secs(29), "what is left of the open time");
    assert_eq!(breaker.phase(at(39_998)), Phase::Open);
    assert_eq!(breaker.phase(at(39_999)), Phase::HalfOpen);
    let probe = admit(&breaker, at(39_999));
    assert!(probe.is_probe());
    breaker.tell(at(40_050), probe, Health::Good);
    assert_eq!(breaker.phase(at(40_050)), Phase::Closed);
    assert_eq!(breaker.counts(at(40_050)).failed, 0, "a closed circuit starts anew");
}

#[test]
fn failures_that_have_left_the_window_do_not_count() {
    let breaker = Breaker::new(BreakerConfig::default());
    for n in 0..100 {
        // Four in any ten seconds.
        assert_eq!(call(&breaker, at(n * 2_500), Health::Bad).event, Event::Counted);
    }
}

#[test]
fn every_row_of_the_table_is_driven() {
    let mut hits = Vec::new();
    let config = BreakerConfig { probes: 2, ..BreakerConfig::default() };
    let breaker = Breaker::new(config);
    let mut stale_of_closed: Vec<Admission> = (0..3).map(|_| admit(&breaker, at(0))).collect();
    let mut tell = |breaker: &Breaker, now, admission, health| {
        let from = breaker.phase(now);
        let told = breaker.tell(now, admission, health);
        hits.push((from, told.event));
        assert_eq!(TABLE.row(from, told.event).map(|row| row.to), Some(breaker.phase(now)));
    };
    for health in [Health::Silent, Health::Bad, Health::Bad, Health::Bad, Health::Bad, Health::Bad]
    {
        let admission = admit(&breaker, at(0));
        tell(&breaker, at(0), admission, health);
    }
    let stale = stale_of_closed.pop().expect("one of three");
    tell(&breaker, at(1), stale, Health::Good);
    let passing = admit(&breaker, at(30_000));
    let returned = admit(&breaker, at(30_000));
    let stale = stale_of_closed.pop().expect("two of three");
    tell(&breaker, at(30_001), stale, Health::Bad);
    tell(&breaker, at(30_001), returned, Health::Silent);
    tell(&breaker, at(30_002), passing, Health::Good);
    let last = admit(&breaker, at(30_003));
    tell(&breaker, at(30_004), last, Health::Good);
    let stale = stale_of_closed.pop().expect("three of three");
    tell(&breaker, at(30_005), stale, Health::Good);
    let breaker = opened(config);
    let probe = admit(&breaker, at(30_000));
    tell(&breaker, at(30_001), probe, Health::Bad);

    // The three that time alone brings about.
    let breaker = opened(config);
    let answer = breaker.ask(at(30_000));
    hits.push((Phase::Open, answer.change.expect("time is over").on));
    let _hanging = answer.admission.expect("a probe");
    let change = breaker.ask(at(60_000)).change.expect("it hangs");
    assert_eq!(change.to, Phase::Open);
    hits.push((Phase::HalfOpen, change.on));
    let probe = admit(&breaker, at(90_000));
    breaker.tell(at(90_001), probe, Health::Good);
    let change = breaker.ask(at(120_000)).change.expect("one success has to do");
    assert_eq!(change.to, Phase::Closed);
    hits.push((Phase::HalfOpen, change.on));
    let breaker = opened(BreakerConfig { probe_success: 0.5, probes: 3, ..config });
    hits.push((Phase::HalfOpen, call(&breaker, at(30_000), Health::Bad).event));
    let change = breaker.ask(at(60_000)).change.expect("one of one has failed");
    assert_eq!(change.to, Phase::Open);
    hits.push((Phase::HalfOpen, change.on));
    hits.extend(rows_of_orders());
    assert_eq!(TABLE.untested(&hits), Vec::<String>::new());
    assert!(TABLE.to_mermaid().contains("Closed --> Open: Tripped"));
}

/// Gives every order in every state, and takes it back.
fn rows_of_orders() -> Vec<(Phase, Event)> {
    type Order = fn(&Breaker, Moment) -> Option<Change>;
    let orders: [Order; 3] = [Breaker::force_open, Breaker::force_closed, Breaker::disable];
    let mut hits = Vec::new();
    for phase in [Phase::Closed, Phase::Open, Phase::HalfOpen] {
        for order in orders {
            let breaker = match phase {
                Phase::Closed => Breaker::new(BreakerConfig::default()),
                Phase::Open | Phase::HalfOpen => opened(BreakerConfig::default()),
            };
            if phase == Phase::HalfOpen {
                call(&breaker, at(30_000), Health::Silent);
            }
            let given = order(&breaker, at(30_000)).expect("a new order");
            assert_eq!(given.from, phase);
            assert_eq!(order(&breaker, at(30_000)), None, "it stands already");
            let back = breaker.automatic(at(30_001)).expect("the order is taken back");
            assert_eq!(breaker.automatic(at(30_001)), None, "there is none");
            for change in [given, back] {
                assert_eq!(TABLE.row(change.from, change.on).map(|row| row.to), Some(change.to));
                hits.push((change.from, change.on));
            }
            assert_eq!(breaker.phase(at(30_001)), back.to);
        }
    }
    hits
}

#[test]
fn policies_c01_the_window_slides_however_long_it_has_run() {
    for successes in [0, 10, 100, 1_000, 10_000] {
        let breaker = Breaker::new(rate(0.5, 10, Over::Calls(10)));
        for _ in 0..successes {
            call(&breaker, at(0), Health::Good);
        }
        let failures = (1..=20).find(|_| {
            call(&breaker, at(0), Health::Bad).change.is_some_and(|c| c.to == Phase::Open)
        });
        let needed = if successes == 0 { 10 } else { 5 };
        assert_eq!(failures, Some(needed), "after {successes} successes");
    }
}

#[test]
fn policies_c02_late_results_of_an_older_generation_change_nothing() {
    let breaker = Breaker::new(BreakerConfig::default());
    let slow_success = admit(&breaker, at(0));
    let slow_failure = admit(&breaker, at(0));
    for _ in 0..5 {
        call(&breaker, at(0), Health::Bad);
    }
    // Half-open, and the probe is still in flight.
    let probe = admit(&breaker, at(30_000));
    let told = breaker.tell(at(30_100), slow_success, Health::Good);
    assert_eq!((told.event, told.change), (Event::Stale, None));
    assert_eq!(breaker.phase(at(30_100)), Phase::HalfOpen);
    assert_eq!(breaker.tell(at(30_150), slow_failure, Health::Bad).event, Event::Stale);
    assert_eq!(breaker.phase(at(30_150)), Phase::HalfOpen);
    breaker.tell(at(30_200), probe, Health::Bad);
    assert_eq!(breaker.phase(at(30_200)), Phase::Open, "the probe has the say");
}

#[test]
fn lesson_h06_a_stale_success_closes_nothing_and_a_stale_failure_extends_nothing() {
    let breaker = Breaker::new(BreakerConfig::default());
    let slow = [admit(&breaker, at(0)), admit(&breaker, at(0))];
    for _ in 0..5 {
        call(&breaker, at(0), Health::Bad);
    }
    let [success, failure] = slow;
    breaker.tell(at(100), success, Health::Good);
    assert_eq!(breaker.phase(at(100)), Phase::Open);
    breaker.tell(at(199), failure, Health::Bad);
    let left = breaker.ask(at(200)).admission.expect_err("open");
    assert_eq!(left, Duration::from_millis(29_800), "the open time runs from the trip");
}

#[test]
fn policies_c03_probes_in_flight_never_exceed_their_number() {
    for probes in [1, 2, 7] {
        let breaker = opened(BreakerConfig { probes, ..BreakerConfig::default() });
        let admitted = (0..100).filter(|_| breaker.ask(at(30_000)).admission.is_ok()).count();
        assert_eq!(admitted, probes as usize);
    }
}

#[test]
fn lesson_h05_half_open_admits_one_of_two_hundred() {
    let breaker = opened(BreakerConfig::default());
    let answers: Vec<_> = (0..200).map(|_| breaker.ask(at(30_000)).admission).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
}

#[test]
fn policies_c05_a_probe_without_a_verdict_gives_its_place_to_the_next() {
    let breaker = opened(BreakerConfig::default());
    for n in 0..50 {
        let told = call(&breaker, at(30_000 + n), Health::Silent);
        assert_eq!((told.event, told.change), (Event::Returned, None));
    }
    call(&breaker, at(31_000), Health::Good);
    assert_eq!(breaker.phase(at(31_000)), Phase::Closed);
}

#[test]
fn policies_c07_failures_at_once_open_it_once_and_leave_the_timer_alone() {
    let breaker = Breaker::new(BreakerConfig::default());
    let admissions: Vec<_> = (0..10).map(|_| admit(&breaker, at(0))).collect();
    let changes = admissions.into_iter().enumerate().filter_map(|(n, admission)| {
        breaker.tell(at(n as u64 * 100), admission, Health::Bad).change
    });
    assert_eq!(changes.count(), 1);
    assert_eq!(breaker.ask(at(400)).admission, Err(Duration::from_secs(30)));
    assert_eq!(breaker.ask(at(900)).admission, Err(Duration::from_millis(29_500)));
}

#[test]
fn policies_c08_half_open_ignores_the_minimum_of_calls() {
    let breaker = Breaker::new(rate(0.5, 20, Over::Calls(100)));
    for _ in 0..20 {
        call(&breaker, at(0), Health::Bad);
    }
    let told = call(&breaker, at(30_000), Health::Bad);
    assert_eq!(told.event, Event::ProbeFailed);
    assert_eq!(breaker.phase(at(30_000)), Phase::Open);
}

#[test]
fn policies_c09_low_traffic_is_decided_within_the_set_time() {
    let config = BreakerConfig { probes: 10, ..BreakerConfig::default() };
    let breaker = opened(config);
    call(&breaker, at(30_000), Health::Good);
    assert_eq!(breaker.phase(at(59_999)), Phase::HalfOpen);
    assert_eq!(breaker.phase(at(60_000)), Phase::Closed);
    // All places taken by probes that hang: nobody is shut out for ever.
    let breaker = opened(BreakerConfig { probes: 1, ..config });
    let hanging = admit(&breaker, at(30_000));
    assert!(breaker.ask(at(59_999)).admission.is_err());
    assert_eq!(breaker.phase(at(60_000)), Phase::Open);
    assert!(breaker.ask(at(60_000)).admission.is_err());
    assert!(breaker.ask(at(90_000)).admission.is_ok());
    assert_eq!(breaker.tell(at(90_001), hanging, Health::Good).event, Event::Stale);
}

/// Half-open, and the only caller has gone without a verdict: there is nothing to decide upon.
#[test]
fn a_trial_that_nobody_makes_waits_for_the_next_caller_however_long() {
    let breaker = opened(BreakerConfig::default());
    call(&breaker, at(30_000), Health::Silent);
    assert_eq!(breaker.phase(at(90_000)), Phase::HalfOpen);
    assert!(admit(&breaker, at(90_000)).is_probe());
}

#[test]
fn policies_c10_reaching_the_rate_opens_it() {
    for (threshold, failed_of_ten, opens) in
        [(1.0, 10, true), (1.0, 9, false), (0.5, 5, true), (0.5, 4, false), (0.0, 1, true)]
    {
        let breaker = Breaker::new(rate(threshold, 10, Over::Calls(10)));
        for n in 0..10 {
            let health = if n < failed_of_ten { Health::Bad } else { Health::Good };
            call(&breaker, at(0), health);
        }
        assert_eq!(breaker.phase(at(0)) == Phase::Open, opens, "{threshold} {failed_of_ten}");
    }
    let untouched = Breaker::new(rate(0.0, 1, Over::Calls(10)));
    call(&untouched, at(0), Health::Good);
    assert_eq!(untouched.phase(at(0)), Phase::Closed, "a success never opens a circuit");
}

#[test]
fn lesson_h07_a_rate_with_a_minimum_ignores_a_few_failures_among_many() {
    let breaker = Breaker::new(rate(0.5, 20, Over::Time(Duration::from_secs(10))));
    for n in 0..10_000_u64 {
        let health = if n % 2_000 == 0 { Health::Bad } else { Health::Good };
        call(&breaker, at(n), health);
    }
    assert_eq!(breaker.phase(at(10_000)), Phase::Closed);
    // A probe that is answered with 404 proves that the dependency is alive.
    let breaker = opened(BreakerConfig::default());
    call(&breaker, at(30_000), failure_of_status(404, None).health);
    assert_eq!(breaker.phase(at(30_000)), Phase::Closed);
}

#[test]
fn lesson_h01_nothing_but_500s_opens_it() {
    let breaker = Breaker::new(BreakerConfig::default());
    for _ in 0..5 {
        call(&breaker, at(0), failure_of_status(500, None).health);
    }
    assert_eq!(breaker.phase(at(0)), Phase::Open);
}

#[test]
fn policies_c35_a_clock_that_steps_back_is_no_disaster() {
    let breaker = opened(BreakerConfig::default());
    assert!(breaker.ask(Moment::ORIGIN).admission.is_err());
    let probe = admit(&breaker, at(30_000));
    assert_eq!(breaker.phase(Moment::ORIGIN), Phase::HalfOpen);
    breaker.tell(Moment::ORIGIN, probe, Health::Good);
    assert_eq!(breaker.phase(Moment::ORIGIN), Phase::Closed);
    for over in [Over::Calls(10), Over::Time(Duration::from_secs(1))] {
        let breaker = Breaker::new(rate(1.0, 10, over));
        for n in (0..10).rev() {
            call(&breaker, at(n * 700), Health::Bad);
        }
        assert_eq!(breaker.phase(at(0)), Phase::Open, "{over:?}");
    }
}

proptest! {
    #[test]
    fn probes_hold_and_places_come_back_in_any_interleaving(
        probes in 1_u32..4,
        steps in prop::collection::vec((0_u8..5, 0_u64..20_000, any::<prop::sample::Index>()), 1..200),
    ) {
        let breaker = opened(BreakerConfig { probes, ..BreakerConfig::default() });
        let mut now = 0;
        let mut held: Vec<Admission> = Vec::new();
        let mut generation_probes = 0_u32;
        for (action, passed, pick) in steps {
            now += passed;
            if action < 2 || held.is_empty() {
                let refuses = breaker.refuses(at(now)).is_some();
                let answer = breaker.ask(at(now));
                prop_assert_eq!(refuses, answer.admission.is_err(), "the look foretells the answer");
                if answer.change.is_some_and(|change| change.to == Phase::HalfOpen) {
                    generation_probes = 0;
                }
                if let Ok(admission) = answer.admission {
                    generation_probes += u32::from(admission.is_probe());
                    held.push(admission);
                }
            } else {
                let admission = held.swap_remove(pick.index(held.len()));
                let health = [Health::Good, Health::Bad, Health::Silent][usize::from(action) - 2];
                let probe = u32::from(admission.is_probe());
                if breaker.tell(at(now), admission, health).event == Event::Returned {
                    generation_probes -= probe;
                }
            }
            if breaker.phase(at(now)) == Phase::HalfOpen {
                prop_assert!(generation_probes <= probes);
            }
        }
    }
}
