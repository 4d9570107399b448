//! What a breaker remembers: windows that slide with every event.
//!
//! A window that only counts up forgets nothing: after ten thousand good calls it takes ten thousand
//! bad ones to notice. Each window here equals a recount of the events that are still inside it, the
//! present one included.
//!
//! Those that threads write to at once carry the *generation* of the closed circuit that they belong
//! to. An event of another generation is turned away where it would be written, so a result that
//! comes late never colours a fresh window, however the threads interleave.

mod buckets;
mod calls;
mod failures;
mod streak;
mod striped;

pub use buckets::{BUCKETS, TimeBuckets};
pub use calls::CallRing;
pub use failures::{FailureRing, SharedFailures};
pub use streak::Streak;
pub use striped::{STRIPES, StripedBuckets};

/// One verdict, as windows count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// It was bad for the dependency's health.
    pub failed: bool,
    /// It took longer than a call should.
    pub slow: bool,
}

impl Mark {
    /// A success in good time.
    pub const GOOD: Self = Self { failed: false, slow: false };
    /// A failure in good time.
    pub const FAILED: Self = Self { failed: true, slow: false };

    /// Neither failed nor slow: it can only lower the shares that open a circuit.
    #[must_use]
    pub const fn is_good(self) -> bool {
        !self.failed && !self.slow
    }
}

/// Calls, failures and slow calls inside a window. They stop at 4 294 967 295.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All calls with a verdict.
    pub calls: u32,
    /// Those of them that failed.
    pub failed: u32,
    /// Those of them that were slow, failed ones included.
    pub slow: u32,
}

impl Counts {
    /// Share of failed calls, `0.0..=1.0`; zero without calls.
    #[must_use]
    pub fn failure_rate(self) -> f64 {
        share(self.failed, self.calls)
    }

    /// Share of slow calls, `0.0..=1.0`; zero without calls.
    #[must_use]
    pub fn slow_rate(self) -> f64 {
        share(self.slow, self.calls)
    }

    const fn add(&mut self, mark: Mark) {
        self.calls = self.calls.saturating_add(1);
        self.failed = self.failed.saturating_add(mark.failed as u32);
        self.slow = self.slow.saturating_add(mark.slow as u32);
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            failed: self.failed.saturating_add(other.failed),
            slow: self.slow.saturating_add(other.slow),
        }
    }
}

/// `part` of `whole` as a share; zero of nothing.
///
/// A correctly rounded quotient equals the literal that a person writes for it (7 of 100 is 0.07);
/// rate × calls would miss it by one rounding.
pub(crate) fn share(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// The least part of `whole`, at least 1, whose [`share`] reaches `rate`; `whole` + 1 where none does.
pub(crate) fn least_reaching(rate: f64, whole: u32) -> u32 {
    // The cast saturates; rounding can put the product off by one, in either direction.
    let mut part = ((rate * f64::from(whole)) as u32).saturating_sub(1).clamp(1, whole.max(1));
    while part < whole && share(part, whole) < rate {
        part += 1;
    }
    if share(part, whole) >= rate { part } else { whole.saturating_add(1) }
}

/// How counts stand to a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No share reaches its threshold.
    Below,
    /// A share reaches its threshold, of too few calls to prove anything.
    TooFew,
    /// The threshold is reached.
    Reached,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_least_part_that_reaches_a_rate_is_found_for_every_rate_and_whole() {
        for whole in 1..=200_u32 {
            for percent in 0..=100_u32 {
                let rate = f64::from(percent) / 100.0;
                let naive = (1..=whole).find(|part| share(*part, whole) >= rate);
                assert_eq!(Some(least_reaching(rate, whole)), naive, "{percent} % of {whole}");
            }
        }
        assert_eq!(least_reaching(1.5, 10), 11);
        assert_eq!(least_reaching(f64::NAN, 10), 11);
        assert_eq!(least_reaching(0.5, u32::MAX), 1 << 31);
        assert_eq!(least_reaching(0.5, 0), 1);
    }
}
