//! What each kind of jitter draws: bounds for every input, and the shape of the distribution.

use std::collections::BTreeSet;
use std::time::Duration;

use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::rng::SeededRng;
use proptest::prelude::*;

const KINDS: [Jitter; 4] = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated];
const DRAWS: u32 = 10_000;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn of(jitter: Jitter) -> Backoff {
    Backoff { jitter, ..Backoff::default() }
}

/// Draws [`DRAWS`] waits and fails unless they are uniform on `[least, most]`, ends included.
fn assert_uniform(backoff: &Backoff, attempt: u32, previous: Duration, (least, most): (u64, u64)) {
    let what = format!("{:?} after attempt {attempt}", backoff.jitter);
    let mut rng = SeededRng::new(42);
    let (mut deciles, mut sum) = ([0_u32; 10], 0.0);
    for _ in 0..DRAWS {
        let wait = backoff.delay(attempt, previous, &mut rng);
        assert!((millis(least)..=millis(most)).contains(&wait), "{what}: {wait:?}");
        let share = (wait - millis(least)).as_secs_f64() / millis(most - least).as_secs_f64();
        deciles[((share * 10.0) as usize).min(9)] += 1;
        sum += share;
    }
    let expected = f64::from(DRAWS) / 10.0;
    // χ² with 9 degrees of freedom: 27.9 is exceeded by chance once in a thousand runs.
    let chi: f64 = deciles.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
    assert!(chi < 27.9, "{what}: {deciles:?}");
    // The mean of 10 000 uniform draws is off by more than 1 % of the width once in 2 000 runs.
    assert!((sum / f64::from(DRAWS) - 0.5).abs() < 0.01, "{what}: mean {sum}");
}

#[test]
fn policies_c23_full_jitter_is_uniform_from_zero_to_the_ceiling() {
    for (attempt, ceiling) in [(1, 100), (3, 400), (9, 2_000)] {
        assert_uniform(&of(Jitter::Full), attempt, Duration::ZERO, (0, ceiling));
    }
}

#[test]
fn policies_c23_equal_jitter_is_uniform_on_the_upper_half() {
    for (attempt, ceiling) in [(1, 100), (3, 400), (9, 2_000)] {
        assert_uniform(&of(Jitter::Equal), attempt, Duration::ZERO, (ceiling / 2, ceiling));
    }
}

#[test]
fn policies_c23_decorrelated_jitter_is_uniform_from_the_base_to_thrice_the_wait_before() {
    let backoff = of(Jitter::Decorrelated);
    // After the first attempt there was no wait, whatever is passed.
    for previous in [0, 1_900] {
        assert_uniform(&backoff, 1, millis(previous), (100, 300));
    }
    assert_uniform(&backoff, 2, millis(200), (100, 600));
    // A wait of less than the base was none of this policy's.
    assert_uniform(&backoff, 2, millis(3), (100, 300));
    // At the cap the interval ends, and the spread does not.
    for previous in [700, 2_000, 90_000] {
        assert_uniform(&backoff, 7, millis(previous), (100, 2_000));
    }
}

#[test]
fn without_jitter_the_wait_is_the_ceiling() {
    let backoff = of(Jitter::None);
    let waits: Vec<u128> = (1..=6)
        .map(|n| backoff.delay(n, Duration::ZERO, &mut SeededRng::new(1)).as_millis())
        .collect();
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000]);
}

/// A jitter in whole seconds, or one that is cut off at the cap, brings the herd back in step.
#[test]
fn policies_c23_a_thousand_callers_at_the_cap_or_below_a_second_stay_apart() {
    for jitter in [Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
        for (base, cap) in [(millis(100), millis(2_000)), (millis(1_000), millis(2_000))] {
            let backoff = Backoff { base, cap, ..of(jitter) };
            for attempt in [1, 30] {
                let waits: BTreeSet<Duration> = (0..1_000)
                    .map(|seed| backoff.delay(attempt, cap, &mut SeededRng::new(seed)))
                    .collect();
                assert!(waits.len() > 990, "{jitter:?}, {base:?}: {} waits", waits.len());
                let at_the_cap = waits.iter().filter(|wait| **wait == cap).count();
                assert!(at_the_cap <= 1, "{jitter:?}: {at_the_cap} at the cap");
            }
        }
    }
}

#[test]
fn the_ceiling_of_decorrelated_waits_is_what_three_times_the_longest_can_reach() {
    let backoff = of(Jitter::Decorrelated);
    let ceilings: Vec<u128> = (0..=5).map(|n| backoff.ceiling(n).as_millis()).collect();
    assert_eq!(ceilings, [300, 300, 900, 2_000, 2_000, 2_000]);
    assert_eq!(backoff.worst_total(3), millis(1_200));
}

#[test]
fn a_factor_that_is_none_neither_shrinks_the_wait_nor_ends_it() {
    for factor in [0.5, 0.0, -3.0, f64::NEG_INFINITY, f64::NAN] {
        let backoff = Backoff { factor, ..Backoff::default() };
        assert_eq!(backoff.ceiling(9), millis(100), "{factor}");
    }
    let steep = Backoff { factor: f64::INFINITY, ..Backoff::default() };
    assert_eq!((steep.ceiling(1), steep.ceiling(2)), (millis(100), millis(2_000)));
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    let factor = prop_oneof![
        0.0_f64..10.0,
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::NAN),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(-3.0),
    ];
    let time = || prop_oneof![any::<u64>().prop_map(Duration::from_nanos), Just(Duration::MAX)];
    (time(), factor, time(), prop::sample::select(&KINDS[..]))
        .prop_map(|(base, factor, cap, jitter)| Backoff { base, factor, cap, jitter })
}

fn any_attempt() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..40, Just(1_025), any::<u32>(), Just(u32::MAX)]
}

proptest! {
    #[test]
    fn policies_c22_no_delay_overflows_or_goes_negative(
        backoff in any_backoff(), attempt in any_attempt(), previous: u64, seed: u64,
    ) {
        let previous = Duration::from_secs(previous);
        let delay = backoff.delay(attempt, previous, &mut SeededRng::new(seed));
        prop_assert!(delay <= backoff.cap);
        prop_assert!(backoff.ceiling(attempt) <= backoff.cap);
    }

    /// What a plan counts as the worst case is never exceeded.
    #[test]
    fn waits_in_a_row_stay_under_their_ceilings(backoff in any_backoff(), seed: u64) {
        let mut rng = SeededRng::new(seed);
        let (mut wait, mut total) = (Duration::ZERO, Duration::ZERO);
        for attempt in 1..20 {
            wait = backoff.delay(attempt, wait, &mut rng);
            // A step computed from the last wait rounds elsewhere than one from the base.
            let slack = backoff.ceiling(attempt) / 1_000_000_000;
            prop_assert!(wait <= backoff.ceiling(attempt).saturating_add(slack));
            total = total.saturating_add(wait);
        }
        let worst = backoff.worst_total(20);
        prop_assert!(total <= worst.saturating_add(worst / 1_000_000_000));
    }
}
