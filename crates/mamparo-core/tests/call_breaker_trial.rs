//! How a half-open circuit decides, and how long an open one stays open.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{
    Admission, Breaker, BreakerConfig, Event, Over, Phase, SlowRate, Trip, Verdict,
};
use mamparo_core::limits::RETRY_AFTER_MAX;
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;
use proptest::prelude::*;

use Health::{Bad, Good, Silent};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::from_millis((1_000_000 + seconds) * 1_000)
}

fn admit(breaker: &Breaker, now: Moment) -> Admission {
    breaker.ask(now).admission.expect("admitted")
}

fn call(breaker: &Breaker, now: Moment, verdict: impl Into<Verdict>) -> Event {
    let admission = admit(breaker, now);
    breaker.tell(now, admission, verdict).event
}

fn asking(seconds: u64) -> Verdict {
    let retry_after = Some(Duration::from_secs(seconds));
    Verdict { retry_after, ..Verdict::from(Bad) }
}

/// One failure opens it.
fn touchy(config: BreakerConfig) -> BreakerConfig {
    BreakerConfig { trip: Trip::Consecutive { failures: 1 }, ..config }
}

fn half_open(config: BreakerConfig) -> Breaker {
    let breaker = Breaker::new(touchy(config));
    call(&breaker, at(0), Bad);
    breaker
}

fn trial(probes: u32, probe_success: f64) -> Breaker {
    half_open(BreakerConfig { probes, probe_success, ..BreakerConfig::default() })
}

#[test]
fn a_share_of_successes_is_decided_as_soon_as_it_is_certain() {
    use Event::{ProbeFailed, ProbeMissed, ProbePassed, ProbesPassed};
    for (probes, share, verdicts) in [
        // 3 of 5: two may fail.
        (5, 0.6, &[(Good, ProbePassed), (Good, ProbePassed), (Good, ProbesPassed)][..]),
        (5, 0.6, &[(Bad, ProbeMissed), (Bad, ProbeMissed), (Bad, ProbeFailed)]),
        (5, 0.6, &[(Bad, ProbeMissed), (Good, ProbePassed), (Silent, Event::Returned)]),
        (4, 0.5, &[(Bad, ProbeMissed), (Good, ProbePassed), (Good, ProbesPassed)]),
        (3, 1.0, &[(Good, ProbePassed), (Bad, ProbeFailed)]),
        // One unlucky probe of ten is forgiven.
        (10, 0.9, &[(Bad, ProbeMissed), (Bad, ProbeFailed)]),
        (1, 0.01, &[(Bad, ProbeFailed)]),
    ] {
        let breaker = trial(probes, share);
        for (health, expected) in verdicts {
            let event = call(&breaker, at(30), *health);
            assert_eq!(event, *expected, "{probes} {share} {verdicts:?}");
        }
    }
}

#[test]
fn probes_that_are_still_out_when_it_is_decided_come_back_stale() {
    let breaker = trial(5, 0.6);
    let probes: Vec<_> = (0..5).map(|_| admit(&breaker, at(30))).collect();
    assert!(breaker.ask(at(30)).admission.is_err(), "five places");
    let events: Vec<_> =
        probes.into_iter().map(|probe| breaker.tell(at(31), probe, Good).event).collect();
    assert_eq!(events[2..], [Event::ProbesPassed, Event::Stale, Event::Stale]);
    assert_eq!(breaker.phase(at(31)), Phase::Closed);
}

#[test]
fn a_slow_probe_counts_as_the_rule_for_slow_calls_says() {
    let over = Over::Calls(10);
    let opened = |probes, rate| {
        let slow_rate = Some(SlowRate { slower_than: SECOND, rate });
        let trip = Trip::Rate { failure_rate: Some(0.5), slow_rate, min_calls: 1, over };
        let breaker = Breaker::new(BreakerConfig { trip, probes, ..BreakerConfig::default() });
        call(&breaker, at(0), Bad);
        breaker
    };
    let slow = Verdict { took: Some(SECOND * 2), ..Verdict::from(Good) };
    let quick = Verdict { took: Some(SECOND), ..Verdict::from(Good) };
    assert_eq!(call(&opened(1, 0.5), at(30), slow), Event::ProbeFailed);
    assert_eq!(call(&opened(1, 0.5), at(30), quick), Event::ProbesPassed);
    let half_may_be = opened(4, 0.75);
    let events = [slow, slow, quick, quick].map(|verdict| match half_may_be.phase(at(30)) {
        Phase::HalfOpen => call(&half_may_be, at(30), verdict),
        Phase::Closed | Phase::Open => Event::Stale,
    });
    use Event::{ProbePassed, ProbesPassed};
    assert_eq!(events, [ProbePassed, ProbePassed, ProbePassed, ProbesPassed]);
    let three_are_too_many = opened(4, 0.75);
    call(&three_are_too_many, at(30), slow);
    call(&three_are_too_many, at(30), slow);
    assert_eq!(call(&three_are_too_many, at(30), slow), Event::ProbeFailed);
}

/// Enough succeed, but one more slow probe would be too many: it is not decided yet.
#[test]
fn a_share_of_successes_does_not_decide_before_slowness_is_out_of_reach() {
    let slow_rate = Some(SlowRate { slower_than: SECOND, rate: 0.75 });
    let trip = Trip::Rate { failure_rate: None, slow_rate, min_calls: 1, over: Over::Calls(10) };
    let config = BreakerConfig { trip, probes: 4, probe_success: 0.5, ..BreakerConfig::default() };
    let slow = Verdict { took: Some(SECOND * 2), ..Verdict::from(Good) };
    let opened = || {
        let breaker = Breaker::new(config);
        assert_eq!(call(&breaker, at(0), slow), Event::Tripped);
        let events = [slow, slow].map(|verdict| call(&breaker, at(30), verdict));
        assert_eq!(events, [Event::ProbePassed; 2]);
        breaker
    };
    assert_eq!(call(&opened(), at(30), slow), Event::ProbeFailed);
    let breaker = opened();
    assert_eq!(call(&breaker, at(30), Good), Event::ProbePassed, "the fourth may be slow");
    assert_eq!(call(&breaker, at(30), Good), Event::ProbesPassed);
}

/// A share of nothing asks for one success all the same, whether probes or time decide.
#[test]
fn a_trial_without_a_success_closes_nothing() {
    let breaker = trial(2, 0.0);
    assert_eq!(call(&breaker, at(30), Bad), Event::ProbeMissed);
    assert_eq!(breaker.phase(at(60)), Phase::Open);
    assert_eq!(call(&trial(2, 0.0), at(30), Good), Event::ProbesPassed);
}

/// Neither a second probe nor one that leaves without a verdict gives a first that hangs more time.
#[test]
fn the_half_open_time_runs_from_the_first_probe() {
    let breaker = trial(2, 1.0);
    let _hangs = admit(&breaker, at(30));
    assert_eq!(call(&breaker, at(50), Silent), Event::Returned);
    let _second = admit(&breaker, at(55));
    assert_eq!(breaker.phase(at(59)), Phase::HalfOpen);
    assert_eq!(breaker.ask(at(59)).admission, Err(SECOND));
    assert_eq!(breaker.phase(at(60)), Phase::Open);
}

/// The half-open time measures how long probes take. A circuit that waited for a caller, because the
/// first one left without a verdict or an order was taken back at night, owes its first probe all of it.
#[test]
fn policies_c09_a_probe_has_its_whole_time_however_long_nobody_called() {
    for probes in [1, 2] {
        let left = trial(probes, 1.0);
        assert_eq!(call(&left, at(30), Silent), Event::Returned);
        let ordered = trial(probes, 1.0);
        ordered.force_open(at(1));
        ordered.automatic(at(30));
        for breaker in [left, ordered] {
            let held: Vec<_> = (0..probes).map(|_| admit(&breaker, at(90))).collect();
            assert_eq!(breaker.ask(at(90)).admission, Err(SECOND), "the probes are under way");
            assert_eq!(breaker.refuses(at(119)), Some(SECOND));
            assert_eq!(breaker.look(at(119)).change, None);
            assert_eq!(breaker.phase(at(119)), Phase::HalfOpen);
            assert_eq!(breaker.phase(at(120)), Phase::Open, "now they hang");
            for probe in held {
                breaker.tell(at(119), probe, Good);
            }
            assert_eq!(breaker.phase(at(119)), Phase::Closed);
        }
    }
}

#[test]
fn policies_c09_those_that_have_ended_decide_when_the_time_is_over() {
    for (verdicts, to) in [
        (&[Good][..], Phase::Closed),
        (&[Good, Good, Bad], Phase::Closed),
        (&[Good, Bad, Bad], Phase::Open),
        (&[Bad], Phase::Open),
    ] {
        let breaker = trial(10, 0.6);
        for verdict in verdicts {
            call(&breaker, at(30), *verdict);
        }
        let _hangs = admit(&breaker, at(30));
        assert_eq!(breaker.phase(at(59)), Phase::HalfOpen);
        assert_eq!(breaker.phase(at(60)), to, "{verdicts:?}");
        assert_eq!(breaker.look(at(60)).change.is_some(), to == Phase::Open, "a look ends it");
        assert_eq!(breaker.ask(at(60)).admission.is_ok(), to == Phase::Closed);
    }
}

#[test]
fn the_open_time_grows_with_each_failed_trial_and_starts_anew_after_a_good_one() {
    let config = BreakerConfig {
        open_growth: 2.0,
        open_max: Duration::from_secs(200),
        ..BreakerConfig::default()
    };
    let breaker = half_open(config);
    let mut now = at(0);
    for seconds in [30, 60, 120, 200, 200] {
        assert_eq!(breaker.ask(now).admission, Err(Duration::from_secs(seconds)));
        now = now.plus(Duration::from_secs(seconds));
        assert_eq!(call(&breaker, now, Bad), Event::ProbeFailed);
    }
    assert_eq!(breaker.explain(now).reopened, 5);
    now = now.plus(Duration::from_secs(200));
    assert_eq!(call(&breaker, now, Good), Event::ProbesPassed);
    assert_eq!(call(&breaker, now, Bad), Event::Tripped);
    assert_eq!(breaker.ask(now).admission, Err(Duration::from_secs(30)));
}

#[test]
fn by_default_the_open_time_is_thirty_seconds_every_time() {
    let breaker = half_open(BreakerConfig::default());
    for round in 0..20 {
        assert_eq!(breaker.ask(at(round * 30)).admission, Err(Duration::from_secs(30)));
        call(&breaker, at((round + 1) * 30), Bad);
    }
}

#[test]
fn it_stays_open_at_least_as_long_as_the_dependency_asked() {
    for (asked, open) in [(0, 30), (29, 30), (31, 31), (120, 120), (100_000, 300)] {
        let breaker = Breaker::new(touchy(BreakerConfig::default()));
        call(&breaker, at(0), asking(asked));
        assert_eq!(breaker.ask(at(0)).admission, Err(Duration::from_secs(open)), "{asked}");
        // The same for a probe.
        let now = at(open);
        call(&breaker, now, asking(asked));
        assert_eq!(breaker.ask(now).admission, Err(Duration::from_secs(open)), "{asked}");
    }
    assert_eq!(RETRY_AFTER_MAX, Duration::from_secs(300));
    let breaker = Breaker::new(touchy(BreakerConfig::default()));
    let throttled = Verdict { health: Good, ..asking(60) };
    assert_eq!(call(&breaker, at(0), throttled), Event::Counted, "good health opens nothing");
}

#[test]
fn jitter_only_shortens_spreads_and_is_replayed_by_its_seed() {
    let config = BreakerConfig { open_jitter: 0.5, ..touchy(BreakerConfig::default()) };
    let times = |seed| -> Vec<Duration> {
        let breaker = Breaker::with_seed(config, seed);
        let mut now = at(0);
        call(&breaker, now, Bad);
        let mut times = Vec::new();
        for _ in 0..100 {
            let open = breaker.ask(now).admission.expect_err("open");
            assert!(open >= Duration::from_secs(15) && open <= Duration::from_secs(30));
            times.push(open);
            now = now.plus(open);
            call(&breaker, now, Bad);
        }
        times
    };
    assert_eq!(times(7), times(7));
    assert_ne!(times(7), times(8));
    let mut distinct = times(7);
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 95, "{}", distinct.len());
    let mean = distinct.iter().sum::<Duration>() / distinct.len() as u32;
    assert!(mean > Duration::from_secs(20) && mean < Duration::from_secs(25), "{mean:?}");
}

proptest! {
    /// The trial ends at the first verdict after which no further one could change the outcome, and
    /// with that outcome.
    #[test]
    fn an_early_decision_is_the_late_one(
        probes in 1_u32..12, share in 0.01_f64..=1.0, passes in prop::collection::vec(any::<bool>(), 12),
    ) {
        let breaker = trial(probes, share);
        let reached = |passed: u32| f64::from(passed) / f64::from(probes) >= share;
        let (mut passed, mut ended) = (0, 0);
        for pass in passes.into_iter().take(probes as usize) {
            passed += u32::from(pass);
            ended += 1;
            let event = call(&breaker, at(30), if pass { Good } else { Bad });
            let at_worst = reached(passed) && passed > 0;
            let at_best = reached(passed + probes - ended);
            prop_assert_eq!(event == Event::ProbesPassed, at_worst);
            prop_assert_eq!(event == Event::ProbeFailed, !at_best);
            if at_worst || !at_best {
                return Ok(());
            }
        }
        prop_assert!(false, "undecided after all probes");
    }
}
