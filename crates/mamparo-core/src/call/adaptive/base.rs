//! What calls take without a queue, from windows that may have one.

use crate::call::adaptive::window::Mean;
use crate::limits::ADAPTIVE_BASE_AGE_MAX;
use crate::time::Moment;

/// This close above the base, it is confirmed.
const NEAR: f64 = 1.1;

/// Most that the long-term latency may stand above the base. A long-term mean without this bound takes
/// a queue that stands long enough for the normal.
const LONG_MAX: f64 = 1.25;

/// Weight of a window in the long-term latency: with windows of 100 ms, half of it is the last 4 s.
const LONG_WEIGHT: f64 = 1.0 / 64.0;

/// Weight of a window in the smoothed latency. Unsmoothed, the luckiest window would be the base.
const WEIGHT: f64 = 0.2;

/// Share of a window's standard error that the smoothed latency keeps: √(w ÷ (2 − w)).
const SMOOTHED_ERROR: f64 = 1.0 / 3.0;

/// Standard errors by which the base is taken higher than it looks. With too low a base the limit starves
/// a healthy dependency; with one that is a little high, a few calls queue.
const ERRORS: f64 = 2.0;

/// The base latency, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    least: f64,
    confirmed: Moment,
    smoothed: f64,
    error: f64,
    long: f64,
}

impl Base {
    /// Measured with little in flight.
    pub(super) fn new(now: Moment, took: Mean) -> Self {
        let (smoothed, error) = (took.seconds, took.error / SMOOTHED_ERROR);
        let least = smoothed + ERRORS * took.error;
        Self { least, confirmed: now, smoothed, error, long: least }
    }

    /// Takes the mean of a window. Only downwards: upwards is what a probe is for.
    pub(super) fn tell(&mut self, now: Moment, took: Mean) {
        self.smoothed += (took.seconds - self.smoothed) * WEIGHT;
        self.error += (took.error - self.error) * WEIGHT;
        self.least = self.least.min(self.smoothed + ERRORS * SMOOTHED_ERROR * self.error);
        if self.smoothed <= self.least * NEAR || now < self.confirmed {
            self.confirmed = now;
        }
        self.long += (took.seconds - self.long) * LONG_WEIGHT;
        self.long = self.long.clamp(self.least, self.least * LONG_MAX);
    }

    /// Has nothing near it been seen for too long?
    pub(super) fn is_stale(&self, now: Moment) -> bool {
        now.since(self.confirmed) > ADAPTIVE_BASE_AGE_MAX
    }

    /// What calls take without a queue.
    pub(super) const fn least(&self) -> f64 {
        self.least
    }

    /// What they take in the long term, as far as that is near the base.
    pub(super) const fn long(&self) -> f64 {
        self.long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1_000)
    }

    const fn exactly(seconds: f64) -> Mean {
        Mean { seconds, error: 0.0 }
    }

    #[test]
    fn the_less_is_known_the_higher_it_is_taken() {
        let mut base = Base::new(at(0), Mean { seconds: 1.0, error: 0.1 });
        assert!((base.least() - 1.2).abs() < 1e-9);
        for second in 1..100 {
            base.tell(at(second), Mean { seconds: 1.0, error: 0.03 });
        }
        assert!((base.least() - 1.02).abs() < 1e-6, "{base:?}");
    }

    #[test]
    fn it_goes_down_smoothly_and_never_up() {
        let mut base = Base::new(at(0), exactly(1.0));
        base.tell(at(1), exactly(0.5));
        assert!((base.least() - 0.9).abs() < 1e-9);
        for second in 2..1_000 {
            base.tell(at(second), exactly(4.0));
        }
        assert!((base.least() - 0.9).abs() < 1e-9);
        assert!((base.long() - 0.9 * LONG_MAX).abs() < 1e-9);
    }

    #[test]
    fn it_is_stale_when_nothing_near_it_was_seen_for_30_s() {
        let mut base = Base::new(at(0), exactly(1.0));
        for second in 1..=60 {
            base.tell(at(second), exactly(1.05));
            assert!(!base.is_stale(at(second)));
        }
        // The smoothed latency leaves the base's neighbourhood with the first window of these.
        for second in 61..=90 {
            base.tell(at(second), exactly(2.0));
            assert!(!base.is_stale(at(second)));
        }
        assert!(base.is_stale(at(91)));
    }

    #[test]
    fn policies_c35_a_clock_that_steps_back_does_not_age_it_for_ever() {
        let mut base = Base::new(at(900), exactly(1.0));
        base.tell(at(5), exactly(2.0));
        assert!(!base.is_stale(at(35)) && base.is_stale(at(36)));
    }
}
