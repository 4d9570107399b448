//! Exponential backoff with full jitter.
//!
//! The wait before attempt *n* + 1 is uniform on `[0, min(cap, base · factorⁿ⁻¹)]` (Brooker,
//! "Exponential Backoff And Jitter", AWS 2015). Full jitter spreads the callers that failed
//! together over the whole interval; jitter around a fixed delay keeps them in step.

use std::time::Duration;

use crate::limits::ATTEMPTS_MAX;
use crate::rng::Rng;

/// How long to wait between attempts. Defaults: base 100 ms, factor 2, cap 2 s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Ceiling of the first wait. Default 100 ms.
    pub base: Duration,
    /// Growth of the ceiling from one wait to the next, at least 1. Default 2.
    pub factor: f64,
    /// The ceiling never grows past this. Default 2 s.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(100), factor: 2.0, cap: Duration::from_secs(2) }
    }
}

impl Backoff {
    /// The longest that the wait after failed attempt `attempt` (counted from one) can be.
    ///
    /// Total for every input: overflow and NaN end at the cap, never in a panic.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        // Zero stays zero: 0 · ∞ would be NaN, and NaN is the cap.
        if self.base.is_zero() {
            return Duration::ZERO;
        }
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let nanos = self.base.as_nanos() as f64 * self.factor.max(1.0).powi(exponent);
        let cap_nanos = self.cap.as_nanos() as f64;
        // Written so that NaN also takes the cap.
        if nanos < cap_nanos { Duration::from_nanos(nanos as u64) } else { self.cap }
    }

    /// The wait after failed attempt `attempt` (counted from one): uniform from zero to the ceiling.
    pub fn delay(&self, attempt: u32, rng: &mut impl Rng) -> Duration {
        let ceiling = u64::try_from(self.ceiling(attempt).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(rng.up_to(ceiling))
    }

    /// The longest that all waits between `attempts` attempts can take together.
    ///
    /// Exact up to [`ATTEMPTS_MAX`] (100) attempts. Each wait beyond, which no sound policy has,
    /// counts as the cap, so that a mistyped number costs no four thousand million steps.
    #[must_use]
    pub fn worst_total(&self, attempts: u32) -> Duration {
        let exact = attempts.min(ATTEMPTS_MAX);
        let beyond = self.cap.saturating_mul(attempts - exact);
        (1..exact).fold(beyond, |sum, n| sum.saturating_add(self.ceiling(n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SeededRng;
    use proptest::prelude::*;

    #[test]
    fn ceilings_double_up_to_the_cap() {
        let backoff = Backoff::default();
        let millis: Vec<u128> = (1..=7).map(|n| backoff.ceiling(n).as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.worst_total(3), Duration::from_millis(300));
        assert_eq!(backoff.worst_total(1), Duration::ZERO);
        assert_eq!(backoff.worst_total(0), Duration::ZERO);
        let no_wait = Backoff { base: Duration::ZERO, ..backoff };
        assert_eq!(no_wait.ceiling(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn a_mistyped_number_of_attempts_is_added_up_at_once() {
        let flat = Backoff { factor: 1.0, ..Backoff::default() };
        assert_eq!(flat.worst_total(100), Duration::from_millis(9_900));
        // Four thousand million steps would not end within this test.
        assert!(flat.worst_total(u32::MAX) > Duration::from_secs(400_000_000));
        assert_eq!(Backoff { cap: Duration::MAX, ..flat }.worst_total(u32::MAX), Duration::MAX);
    }

    #[test]
    fn policies_c23_full_jitter_is_uniform_from_zero_to_the_ceiling() {
        let backoff = Backoff::default();
        let mut rng = SeededRng::new(42);
        for attempt in [1, 3, 9] {
            let ceiling = backoff.ceiling(attempt).as_nanos() as f64;
            let mut deciles = [0_u32; 10];
            for _ in 0..10_000 {
                let share = backoff.delay(attempt, &mut rng).as_nanos() as f64 / ceiling;
                deciles[((share * 10.0) as usize).min(9)] += 1;
            }
            // χ² with 9 degrees of freedom: 27.9 is exceeded by chance once in a thousand runs.
            let chi: f64 =
                deciles.iter().map(|n| (f64::from(*n) - 1_000.0).powi(2) / 1_000.0).sum();
            assert!(chi < 27.9, "attempt {attempt}: {deciles:?}");
        }
    }

    proptest! {
        #[test]
        fn policies_c22_no_delay_overflows_or_goes_negative(
            attempt in prop_oneof![0_u32..40, Just(1_025), Just(u32::MAX)],
            base in 0_u64..u64::MAX, cap in 0_u64..u64::MAX,
            factor in prop_oneof![0.0_f64..10.0, Just(f64::INFINITY), Just(f64::NAN), Just(-3.0)],
            seed: u64,
        ) {
            let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
            let delay = Backoff { base, factor, cap }.delay(attempt, &mut SeededRng::new(seed));
            prop_assert!(delay <= cap);
        }
    }
}
