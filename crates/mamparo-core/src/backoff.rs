//! Exponential backoff with jitter: how long to wait between attempts.
//!
//! Callers that failed together come back together unless chance spreads them. [`Jitter`] says how
//! (Brooker, "Exponential Backoff And Jitter", AWS 2015); full jitter is the default. Whatever is
//! drawn lies within the cap, and the cap never makes the draw narrower than it says: a herd that
//! waits for the longest time is the one that must not arrive at once.

use std::time::Duration;

use crate::limits::ATTEMPTS_MAX;
use crate::rng::Rng;

/// How much of a wait is left to chance. The *ceiling* is `min(cap, base · factorⁿ⁻¹)` after failed
/// attempt *n*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Jitter {
    /// The ceiling itself. For one caller alone, and for tests; a thousand would stay in step.
    None,
    /// Uniform on `[0, ceiling]`: the widest spread, the least load. The default.
    #[default]
    Full,
    /// Uniform on `[ceiling / 2, ceiling]`: for a caller that must not come back at once.
    Equal,
    /// Uniform on `[base, min(cap, 3 · previous wait)]`, `factor` is not looked at. The paper cuts
    /// the *draw* at the cap, which sends two callers of three to the cap exactly; here the
    /// *interval* ends there, so the spread stays.
    Decorrelated,
}

/// How fast a decorrelated wait may grow (Brooker 2015). With 2 it would hardly grow: the mean of
/// the next wait is half of `base + growth · previous`.
const DECORRELATED_GROWTH: f64 = 3.0;

/// How long to wait between attempts. Defaults: base 100 ms, factor 2, cap 2 s, full jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Ceiling of the first wait. Default 100 ms.
    pub base: Duration,
    /// Growth of the ceiling from one wait to the next, at least 1. Default 2.
    pub factor: f64,
    /// The ceiling never grows past this. Default 2 s.
    pub cap: Duration,
    /// How the wait is drawn. Default full.
    pub jitter: Jitter,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), 2.0, Duration::from_secs(2))
    }
}

impl Backoff {
    /// Exponential backoff with full jitter.
    #[must_use]
    pub const fn new(base: Duration, factor: f64, cap: Duration) -> Self {
        Self { base, factor, cap, jitter: Jitter::Full }
    }

    /// The longest that the wait after failed attempt `attempt` (counted from one) can be.
    ///
    /// Total for every input: overflow and NaN end at the cap, never in a panic.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let (growth, steps) = match self.jitter {
            Jitter::None | Jitter::Full | Jitter::Equal => {
                (self.factor.max(1.0), attempt.saturating_sub(1))
            }
            // The wait before the first one counts as the base, and each draw may reach the top.
            Jitter::Decorrelated => (DECORRELATED_GROWTH, attempt.max(1)),
        };
        self.grown(self.base, growth, steps)
    }

    /// The wait after failed attempt `attempt` (counted from one), never longer than the cap.
    ///
    /// `previous` is the wait before that attempt. Only decorrelated jitter looks at it, and not
    /// after the first attempt, where there was none: pass zero.
    pub fn delay(&self, attempt: u32, previous: Duration, rng: &mut impl Rng) -> Duration {
        match self.jitter {
            Jitter::None => self.ceiling(attempt),
            Jitter::Full => between(Duration::ZERO, self.ceiling(attempt), rng),
            Jitter::Equal => {
                let ceiling = self.ceiling(attempt);
                between(ceiling / 2, ceiling, rng)
            }
            Jitter::Decorrelated => {
                let least = self.base.min(self.cap);
                let before = if attempt > 1 { previous.max(least) } else { least };
                between(least, self.grown(before, DECORRELATED_GROWTH, 1), rng)
            }
        }
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

    /// `from · growthˢᵗᵉᵖˢ`, but no more than the cap.
    fn grown(&self, from: Duration, growth: f64, steps: u32) -> Duration {
        // Zero stays zero: 0 · ∞ would be NaN, and NaN is the cap.
        if from.is_zero() {
            return Duration::ZERO;
        }
        let exponent = i32::try_from(steps).unwrap_or(i32::MAX);
        let nanos = from.as_nanos() as f64 * growth.powi(exponent);
        let cap_nanos = self.cap.as_nanos() as f64;
        // Written so that NaN also takes the cap.
        if nanos < cap_nanos { Duration::from_nanos(nanos as u64) } else { self.cap }
    }
}

/// Uniform on `[least, most]`, to the nanosecond; `least` where the interval is none.
fn between(least: Duration, most: Duration, rng: &mut impl Rng) -> Duration {
    let width = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
    least.saturating_add(Duration::from_nanos(rng.up_to(width)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
