//! Faults on purpose: shares, replay, keys, and nothing at all when switched off.

use std::time::Duration;

use mamparo_core::call::fault::{Draw, FaultConfig, Faults, Injection, Instead, Latency, key_hash};
use mamparo_core::limits::FAULT_LATENCY_MAX;
use proptest::prelude::*;

const CALLS: u64 = 100_000;

const MIXED: FaultConfig = FaultConfig {
    enabled: true,
    seed: 7,
    draw: Draw::Call,
    latency: Some(Latency {
        share: 0.2,
        least: Duration::from_millis(100),
        most: Duration::from_millis(300),
    }),
    panic: 0.01,
    error: 0.1,
    outcome: 0.05,
};

/// Is `hits` of [`CALLS`] what `share` gives? Within five standard deviations, which chance leaves
/// once in two million.
#[track_caller]
fn is_share(hits: usize, share: f64) {
    let calls = CALLS as f64;
    let tolerance = 5.0 * (calls * share * (1.0 - share)).sqrt();
    let off = (hits as f64 - calls * share).abs();
    assert!(off <= tolerance, "{hits} hits of {calls} for a share of {share}");
}

fn run(config: FaultConfig) -> Vec<Option<Injection>> {
    let faults = Faults::new(config);
    (0..CALLS).map(|_| faults.ask(None)).collect()
}

#[test]
fn each_fault_befalls_its_share_of_the_calls() {
    let befell = run(MIXED);
    let hits = |instead| befell.iter().flatten().filter(|i| i.instead == Some(instead)).count();
    is_share(hits(Instead::Panic), 0.01);
    is_share(hits(Instead::Error), 0.1);
    is_share(hits(Instead::Outcome), 0.05);
    let slow: Vec<Injection> =
        befell.iter().flatten().filter(|i| i.delay.is_some()).copied().collect();
    is_share(slow.len(), 0.2);
    // Drawn apart: a slow call fails as often as any other.
    let slow_error = slow.iter().filter(|i| i.instead == Some(Instead::Error)).count();
    is_share(slow_error, 0.2 * 0.1);
}

#[test]
fn delays_are_uniform_between_their_ends() {
    let befell = run(MIXED);
    let delays: Vec<f64> =
        befell.iter().flatten().filter_map(|i| i.delay).map(|d| d.as_secs_f64()).collect();
    let mut deciles = [0_u32; 10];
    for delay in &delays {
        assert!((0.1..=0.3).contains(delay), "{delay}");
        deciles[(((delay - 0.1) / 0.02) as usize).min(9)] += 1;
    }
    let expected = delays.len() as f64 / 10.0;
    let chi: f64 = deciles.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
    // χ² with 9 degrees of freedom: 27.9 is exceeded by chance once in a thousand runs.
    assert!(chi < 27.9, "{deciles:?}");
}

#[test]
fn a_seed_replays_a_run_and_each_of_its_calls_alone() {
    let befell = run(MIXED);
    assert_eq!(befell, run(MIXED));
    assert_ne!(befell, run(FaultConfig { seed: 8, ..MIXED }));
    for injection in befell.iter().flatten() {
        assert_eq!(MIXED.decide(injection.subject), Some(*injection));
    }
}

#[test]
fn neighbouring_seeds_and_calls_have_nothing_in_common() {
    let config = |seed| FaultConfig { seed, latency: None, panic: 0.0, error: 0.5, ..MIXED };
    let fails = |seed: u64, call: u64| {
        config(seed).decide(call).is_some_and(|i| i.instead == Some(Instead::Error))
    };
    let equal = |other: fn(u64) -> (u64, u64)| {
        (0..CALLS).filter(|call| fails(1, *call) == fails(other(*call).0, other(*call).1)).count()
    };
    is_share(equal(|call| (2, call)), 0.5);
    is_share(equal(|call| (1, call + 1)), 0.5);
    is_share(equal(|call| (call, 1)), 0.5);
}

#[test]
fn a_key_always_meets_the_same_fault_and_a_call_without_one_is_spared() {
    let config = FaultConfig { draw: Draw::Key, ..MIXED };
    let (faults, others) = (Faults::new(config), Faults::new(config));
    let keys: Vec<String> = (0..CALLS).map(|n| format!("client-{n}")).collect();
    let befell: Vec<_> = keys.iter().map(|key| faults.ask(Some(key.as_bytes()))).collect();
    let again: Vec<_> = keys.iter().rev().map(|key| others.ask(Some(key.as_bytes()))).collect();
    assert!(befell.iter().eq(again.iter().rev()), "neither order nor number matters");
    let errors = befell.iter().flatten().filter(|i| i.instead == Some(Instead::Error)).count();
    is_share(errors, 0.1);
    let everybody = Faults::new(FaultConfig { error: 1.0, panic: 0.0, outcome: 0.0, ..config });
    assert!(everybody.ask(Some(b"")).is_some(), "an empty key is a key");
    assert!((0..1_000).all(|_| everybody.ask(None).is_none()));
}

#[test]
fn who_is_hit_at_a_share_is_hit_at_every_larger_one() {
    let at =
        |error| FaultConfig { enabled: true, draw: Draw::Key, error, ..FaultConfig::default() };
    for n in 0..10_000 {
        let key = key_hash(format!("client-{n}").as_bytes());
        let (few, many) = (at(0.05).decide(key), at(0.4).decide(key));
        assert!(few.is_none() || few == many, "client-{n}");
    }
}

#[test]
fn hashes_of_keys_are_those_of_fnv_1a() {
    assert_eq!(key_hash(b""), 0xCBF2_9CE4_8422_2325);
    assert_eq!(key_hash(b"a"), 0xAF63_DC4C_8601_EC8C);
    assert_eq!(key_hash(b"foobar"), 0x8594_4171_F739_67E8);
}

#[test]
fn switched_off_nothing_happens_and_no_call_is_numbered() {
    let off = Faults::new(FaultConfig { enabled: false, error: 1.0, ..MIXED });
    assert!((0..1_000).all(|_| off.ask(Some(b"client")).is_none()));
    assert!((0..1_000).all(|call| off.config().decide(call).is_none()), "asked directly, either");
    assert!(format!("{off:?}").contains("calls: 0"), "{off:?}");
    assert!(!FaultConfig::default().enabled);
    assert_eq!(FaultConfig { enabled: true, ..FaultConfig::default() }.decide(1), None);
}

#[test]
fn all_and_none_are_shares_too() {
    let all = FaultConfig { enabled: true, error: 1.0, ..FaultConfig::default() };
    assert!(
        run(all).iter().flatten().filter(|i| i.instead == Some(Instead::Error)).count() == 100_000
    );
}

#[test]
fn mistakes_name_their_keys() {
    assert_eq!(MIXED.mistakes(), []);
    assert_eq!(FaultConfig { panic: 0.6, error: 0.3, outcome: 0.1, ..MIXED }.mistakes(), []);
    let latency =
        Some(Latency { share: -0.1, least: FAULT_LATENCY_MAX * 3, most: FAULT_LATENCY_MAX * 2 });
    let wrong =
        FaultConfig { latency, panic: 0.7, error: f64::INFINITY, outcome: f64::NAN, ..MIXED };
    let text: Vec<String> = wrong.mistakes().iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "faults.error: is inf, must be from 0 to 1",
            "faults.outcome: is NaN, must be from 0 to 1",
            "faults.latency.share: is -0.1, must be from 0 to 1",
            "faults.latency.most: is 120s, less than the least of 180s",
            "faults.latency.most: is 120s, must be at most 60s",
        ]
    );
    let sum = FaultConfig { panic: 0.5, error: 0.5, outcome: 0.5, ..MIXED }.mistakes();
    assert_eq!(sum[0].to_string(), "faults: panic, error and outcome are 1.5 together, at most 1");
}

proptest! {
    #[test]
    fn no_value_makes_it_panic_or_wait_too_long(
        seed: u64, subject: u64, share: f64, panic: f64, error: f64, outcome: f64,
        least in 0_u64..u64::MAX, most in 0_u64..u64::MAX,
    ) {
        let (least, most) = (Duration::from_nanos(least), Duration::from_nanos(most));
        let latency = Some(Latency { share, least, most });
        let draw = Draw::Call;
        let config = FaultConfig { enabled: true, seed, draw, latency, panic, error, outcome };
        prop_assert!(config.mistakes().len() < 9);
        let delay = config.decide(subject).and_then(|injection| injection.delay);
        prop_assert!(delay.unwrap_or_default() <= FAULT_LATENCY_MAX);
    }
}
