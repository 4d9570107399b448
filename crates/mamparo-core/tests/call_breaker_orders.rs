//! Orders by people, and what a breaker says for itself.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{
    Breaker, BreakerConfig, Event, Missing, Over, Override, Phase, SlowRate, Trip, Verdict,
};
use mamparo_core::call::window::Counts;
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::from_millis((1_000_000 + seconds) * 1_000)
}

fn call(breaker: &Breaker, now: Moment, verdict: impl Into<Verdict>) -> Event {
    let admission = breaker.ask(now).admission.expect("admitted");
    breaker.tell(now, admission, verdict).event
}

fn opened() -> Breaker {
    let breaker = Breaker::new(BreakerConfig::default());
    for _ in 0..5 {
        call(&breaker, at(0), Health::Bad);
    }
    breaker
}

fn explained(breaker: &Breaker, now: Moment) -> String {
    breaker.explain(now).to_string()
}

#[test]
fn held_open_it_refuses_for_ever_and_is_tried_when_the_order_is_taken_back() {
    let breaker = Breaker::new(BreakerConfig::default());
    let in_flight = breaker.ask(at(0)).admission.expect("closed");
    let change = breaker.force_open(at(1)).expect("new");
    assert_eq!(
        (change.from, change.to, change.on),
        (Phase::Closed, Phase::Open, Event::ForcedOpen)
    );
    assert_eq!(breaker.tell(at(2), in_flight, Health::Bad).event, Event::Stale);
    for now in [at(2), at(1_000_000), Moment::FAR_FUTURE] {
        assert_eq!(breaker.ask(now).admission, Err(Duration::from_secs(30)), "ask again then");
        assert_eq!(breaker.refuses(now), Some(Duration::from_secs(30)));
        assert_eq!((breaker.look(now).change, breaker.phase(now)), (None, Phase::Open));
    }
    assert_eq!(breaker.overridden(), Some(Override::Open));
    assert_eq!(breaker.automatic(at(3)).map(|change| change.to), Some(Phase::HalfOpen));
    assert_eq!(breaker.overridden(), None);
    assert_eq!(call(&breaker, at(3), Health::Good), Event::ProbesPassed);
}

#[test]
fn held_closed_it_counts_and_never_opens() {
    let breaker = opened();
    assert_eq!(breaker.force_closed(at(1)).map(|change| change.to), Some(Phase::Closed));
    for _ in 0..100 {
        assert_eq!(call(&breaker, at(1), Health::Bad), Event::Counted);
    }
    assert_eq!(breaker.phase(at(1)), Phase::Closed);
    assert!(breaker.counts(at(1)).failed >= 5, "what would have opened it shows");
    assert_eq!(breaker.automatic(at(2)).map(|change| change.to), Some(Phase::Closed));
    assert_eq!(breaker.counts(at(2)), Counts::default(), "it starts anew");
    for _ in 0..4 {
        assert_eq!(call(&breaker, at(2), Health::Bad), Event::Counted);
    }
    assert_eq!(call(&breaker, at(2), Health::Bad), Event::Tripped);
}

#[test]
fn disabled_it_admits_all_and_counts_nothing() {
    let breaker = opened();
    breaker.disable(at(1));
    for _ in 0..100 {
        assert_eq!(call(&breaker, at(1), Health::Bad), Event::Returned);
    }
    assert_eq!(breaker.counts(at(1)), Counts::default());
    assert_eq!(
        (breaker.phase(at(1)), breaker.overridden()),
        (Phase::Closed, Some(Override::Disabled))
    );
}

#[test]
fn an_order_replaces_another() {
    let breaker = Breaker::new(BreakerConfig::default());
    breaker.force_open(at(0));
    let change = breaker.force_closed(at(1)).expect("another order");
    assert_eq!(
        (change.from, change.to, change.on),
        (Phase::Open, Phase::Closed, Event::ForcedClosed)
    );
    let change = breaker.disable(at(2)).expect("another order");
    assert_eq!(
        (change.from, change.to, change.on),
        (Phase::Closed, Phase::Closed, Event::Disabled)
    );
}

#[test]
fn a_closed_circuit_says_what_is_missing() {
    let breaker = Breaker::new(BreakerConfig::default());
    assert_eq!(
        explained(&breaker, at(0)),
        "closed since the start; 0 failures in the last 10s; opens at 5 failures in 10s: \
         5 more failures to go"
    );
    call(&breaker, at(0), Health::Bad);
    call(&breaker, at(1), Health::Bad);
    let explanation = breaker.explain(at(2));
    assert_eq!(explanation.missing, Some(Missing { failures: Some(3), slow: None, calls: 0 }));
    assert!(explanation.to_string().ends_with("3 more failures to go"), "{explanation}");
    let over = Over::Time(Duration::from_secs(60));
    let slow_rate = Some(SlowRate { slower_than: Duration::from_secs(2), rate: 0.8 });
    let trip = Trip::Rate { failure_rate: Some(0.5), slow_rate, min_calls: 20, over };
    let breaker = Breaker::new(BreakerConfig { trip, ..BreakerConfig::default() });
    for n in 0..13 {
        call(&breaker, at(0), if n < 5 { Health::Bad } else { Health::Good });
    }
    assert_eq!(
        explained(&breaker, at(1)),
        "closed since the start; of 13 calls in the last 1m 0s, 5 failed (38.46 %), 0 slow (0 %); \
         opens at 50 % failed or 80 % slower than 2s of at least 20 calls in 60s: \
         7 calls short of the minimum, 7 more failures or 52 more slow calls to go"
    );
}

#[test]
fn what_is_missing_is_what_it_takes() {
    for (bad, good, rate, over) in [
        (0, 0, 0.5, Over::Calls(10)),
        (3, 5, 0.5, Over::Time(Duration::from_secs(10))),
        (0, 10, 0.4, Over::Calls(10)),
        (2, 2, 1.0, Over::Calls(5)),
    ] {
        let trip = Trip::Rate { failure_rate: Some(rate), slow_rate: None, min_calls: 5, over };
        let breaker = Breaker::new(BreakerConfig { trip, ..BreakerConfig::default() });
        for _ in 0..good {
            call(&breaker, at(0), Health::Good);
        }
        for _ in 0..bad {
            call(&breaker, at(0), Health::Bad);
        }
        let missing = breaker.explain(at(0)).missing.and_then(|missing| missing.failures);
        let missing = missing.expect("failures can open it");
        let needed = (1..100).find(|_| call(&breaker, at(0), Health::Bad) == Event::Tripped);
        // Good calls that leave a ring of calls make it come true sooner, never later.
        assert!(
            needed.is_some_and(|needed| needed <= missing + good),
            "{bad} {good} {rate} {over:?}"
        );
        if matches!(over, Over::Time(_)) || good == 0 {
            assert_eq!(needed, Some(missing), "{bad} {good} {rate} {over:?}");
        }
    }
    let over = Over::Time(Duration::from_secs(10));
    let trip = Trip::Rate { failure_rate: Some(1.0), slow_rate: None, min_calls: 1, over };
    let breaker = Breaker::new(BreakerConfig { trip, ..BreakerConfig::default() });
    call(&breaker, at(0), Health::Good);
    assert!(explained(&breaker, at(0)).ends_with("not before older calls leave the window"));
}

#[test]
fn an_open_circuit_says_why_and_when_it_is_tried() {
    let breaker = opened();
    assert_eq!(
        explained(&breaker, at(4)),
        "open for 4s, because the limit was reached, 5 failures in 10s; calls are refused, and \
         tried again in 26s"
    );
    call(&breaker, at(30), Health::Bad);
    let explanation = breaker.explain(at(31));
    assert_eq!((explanation.reopened, explanation.cause), (1, Some(Event::ProbeFailed)));
    assert_eq!(explanation.tries_in, Some(Duration::from_secs(29)));
    assert_eq!(
        explanation.to_string(),
        "open for 1s, because too many probes failed; calls are refused, and tried again in 29s; \
         the last trial failed"
    );
}

#[test]
fn a_half_open_circuit_says_what_its_places_do() {
    let config = BreakerConfig { probes: 3, probe_success: 0.5, ..BreakerConfig::default() };
    let breaker = Breaker::new(config);
    for _ in 0..5 {
        call(&breaker, at(0), Health::Bad);
    }
    assert_eq!(
        explained(&breaker, at(30)),
        "half-open for 0s, because the open time was over; 0 of 3 probes under way, 0 passed, \
         0 failed; the next call is one"
    );
    assert_eq!(breaker.phase(at(29)), Phase::Open, "explaining changes nothing");
    call(&breaker, at(30), Health::Bad);
    let _hangs = breaker.ask(at(30)).admission.expect("a place");
    assert_eq!(
        explained(&breaker, at(40)),
        "half-open for 10s, because the open time was over; 1 of 3 probes under way, 0 passed, \
         1 failed; decided in 20s at the latest"
    );
}

#[test]
fn an_order_is_named_as_such() {
    let breaker = opened();
    breaker.force_open(at(10));
    assert_eq!(
        explained(&breaker, at(10 + 7_500)),
        "open for 2h 5m, by order: every call is refused until the order is taken back"
    );
    breaker.force_closed(at(10));
    call(&breaker, at(11), Health::Bad);
    assert_eq!(
        explained(&breaker, at(12)),
        "closed for 2s, by order: every call passes and is counted until the order is taken back; \
         1 failure in the last 10s"
    );
    breaker.disable(at(12));
    assert_eq!(
        explained(&breaker, at(72)),
        "closed for 1m 0s, by order: every call passes and none is counted until the order is \
         taken back"
    );
}

/// "The last trial failed" is said of trials that failed, and only until one passes.
#[test]
fn trials_that_failed_are_counted_until_one_passes_or_somebody_orders() {
    let reopened = |breaker: &Breaker, now| breaker.explain(now).reopened;
    let breaker = opened();
    assert_eq!(reopened(&breaker, at(0)), 0, "no trial yet");
    call(&breaker, at(30), Health::Bad);
    assert_eq!(reopened(&breaker, at(30)), 1);
    call(&breaker, at(60), Health::Good);
    assert_eq!(reopened(&breaker, at(60)), 0, "the circuit is closed");
    let breaker = opened();
    let probe = breaker.ask(at(30)).admission.expect("a place");
    breaker.force_open(at(31));
    assert_eq!(reopened(&breaker, at(31)), 0, "an order is no trial that failed");
    assert_eq!(breaker.tell(at(32), probe, Health::Bad).event, Event::Stale);
}
