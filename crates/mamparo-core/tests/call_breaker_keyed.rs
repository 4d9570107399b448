//! Breakers by key: each on its own, in bounded memory.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::breaker::{Breaker, BreakerConfig, KeyedBreaker, Over, Phase, Trip};
use mamparo_core::outcome::Health;
use mamparo_core::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::from_millis((1_000_000 + seconds) * 1_000)
}

fn hosts(keys_max: usize) -> KeyedBreaker<String> {
    KeyedBreaker::with_keys_max(BreakerConfig::default(), 7, keys_max)
}

fn fail(breaker: &Breaker, now: Moment, times: u32) {
    for _ in 0..times {
        let admission = breaker.ask(now).admission.expect("admitted");
        breaker.tell(now, admission, Health::Bad);
    }
}

#[test]
fn one_sick_host_shuts_out_no_other() {
    let hosts = hosts(100);
    fail(&hosts.get(at(0), "sick"), at(0), 5);
    assert!(hosts.get(at(0), "sick").ask(at(0)).admission.is_err());
    assert!(hosts.get(at(0), "well").ask(at(0)).admission.is_ok());
    assert_eq!(hosts.keys(), 2);
}

#[test]
fn an_open_circuit_outlives_any_number_of_closed_ones() {
    let hosts = hosts(16);
    fail(&hosts.get(at(0), "open"), at(0), 5);
    for n in 0..10_000 {
        let name = format!("strange-{n}");
        // Every one of them has failed, and none is idle.
        fail(&hosts.get(at(0), name.as_str()), at(0), 1 + n % 4);
        assert!(hosts.keys() <= 16);
    }
    assert_eq!(hosts.get(at(0), "open").phase(at(0)), Phase::Open);
    assert_eq!(hosts.overflowed(), 0, "nobody held a handle");
}

/// It has no time left to wait, and still it knows more than a closed one: forgotten, it would let all pass.
#[test]
fn an_open_circuit_whose_time_is_over_outlives_closed_ones_too() {
    let hosts = hosts(2);
    fail(&hosts.get(at(0), "open"), at(0), 5);
    fail(&hosts.get(at(31), "closed"), at(31), 4);
    fail(&hosts.get(at(31), "new"), at(31), 1);
    assert_eq!(hosts.get(at(31), "open").phase(at(31)), Phase::HalfOpen);
    assert_eq!(hosts.keys(), 2);
}

#[test]
fn one_with_more_failures_outlives_those_with_fewer_and_the_idle_go_first() {
    let hosts = hosts(16);
    fail(&hosts.get(at(0), "nearly"), at(0), 4);
    for n in 0..1_000 {
        fail(&hosts.get(at(0), format!("once-{n}").as_str()), at(0), 1);
    }
    assert_eq!(hosts.get(at(0), "nearly").counts(at(0)).failed, 4);
    // Ten seconds later nobody remembers a failure, and what is asked for stays alone.
    for _ in 0..1_000 {
        let _ = hosts.get(at(10), "asked");
    }
    assert_eq!(hosts.keys(), 1);
}

#[test]
fn an_order_is_never_forgotten_and_neither_is_one_in_use() {
    let hosts = hosts(4);
    hosts.get(at(0), "held").force_open(at(0));
    let used = hosts.get(at(0), "used");
    let admission = used.ask(at(0)).admission.expect("closed");
    for n in 0..1_000 {
        fail(&hosts.get(at(0), format!("other-{n}").as_str()), at(0), 5);
    }
    assert!(hosts.get(at(0), "held").overridden().is_some());
    used.tell(at(0), admission, Health::Bad);
    assert_eq!(hosts.get(at(0), "used").counts(at(0)).failed, 1, "it is still the same");
}

#[test]
fn when_all_are_in_use_further_keys_share_one() {
    let hosts = hosts(2);
    let held = [hosts.get(at(0), "a"), hosts.get(at(0), "b")];
    fail(&hosts.get(at(0), "c"), at(0), 5);
    assert_eq!(hosts.get(at(0), "d").phase(at(0)), Phase::Open, "they share");
    assert_eq!((hosts.keys(), hosts.overflowed()), (2, 2));
    assert!(held.iter().all(|breaker| breaker.phase(at(0)) == Phase::Closed));
}

#[test]
fn open_times_of_two_keys_are_spread_apart() {
    let config = BreakerConfig { open_jitter: 0.5, ..BreakerConfig::default() };
    let hosts: KeyedBreaker<String> = KeyedBreaker::new(config, 7);
    let mut times: Vec<Duration> = ["a", "b", "c", "d"]
        .into_iter()
        .map(|host| {
            let breaker = hosts.get(at(0), host);
            fail(&breaker, at(0), 5);
            breaker.refuses(at(0)).expect("open")
        })
        .collect();
    times.sort_unstable();
    times.dedup();
    assert_eq!(times.len(), 4);
}

#[test]
fn a_time_window_that_has_emptied_makes_a_breaker_dispensable() {
    let over = Over::Time(Duration::from_secs(10));
    let trip = Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 10, over };
    let config = BreakerConfig { trip, ..BreakerConfig::default() };
    let hosts: KeyedBreaker<u64> = KeyedBreaker::with_keys_max(config, 7, 64);
    for host in 0..64 {
        fail(&hosts.get(at(0), &host), at(0), 3);
    }
    assert_eq!(hosts.keys(), 64);
    for _ in 0..10_000 {
        let _ = hosts.get(at(10), &0);
    }
    assert_eq!(hosts.keys(), 1);
}
