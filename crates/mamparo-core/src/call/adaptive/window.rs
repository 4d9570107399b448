//! Calls of a stretch of time, summed up.

use std::time::Duration;

use crate::call::adaptive::Sample;
use crate::limits::ADAPTIVE_WINDOW_MIN;
use crate::time::Moment;

/// A mean of seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub(super) seconds: f64,
    /// Its standard error: how far off the mean of so few calls is, as a rule.
    pub(super) error: f64,
}

/// What the calls of a window showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    /// What the calls took that were not dropped; `None` when all were.
    pub(super) took: Option<Mean>,
    /// Most calls in flight.
    pub(super) in_flight: u32,
    /// Calls dropped, 0.0 to 1.0.
    pub(super) dropped: f64,
}

/// What a window needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// So many calls before it closes.
    pub(super) calls: u32,
    /// When drops last lowered the limit: a drop of a call that began before has been answered.
    pub(super) lowered: Moment,
}

/// Sums under way.
#[derive(Debug, Default)]
pub(super) struct Window {
    began: Option<Moment>,
    passed: u32,
    dropped: u32,
    took: Duration,
    /// Sum of the squares of seconds.
    squares: f64,
    in_flight: u32,
}

impl Window {
    /// Adds a call, and answers when the window closes with it.
    pub(super) fn tell(&mut self, now: Moment, sample: Sample, needs: Needs) -> Option<Summary> {
        let began = *self.began.get_or_insert(now);
        if now < began {
            // The clock went back. What was measured before can't be compared.
            *self = Self { began: Some(now), ..Self::default() };
            return None;
        }
        self.in_flight = self.in_flight.max(sample.in_flight);
        match sample.dropped {
            false if !sample.took.is_zero() => {
                self.passed = self.passed.saturating_add(1);
                self.took = self.took.saturating_add(sample.took);
                self.squares += sample.took.as_secs_f64().powi(2);
            }
            true if now.minus(sample.took) >= needs.lowered => {
                self.dropped = self.dropped.saturating_add(1);
            }
            false | true => return None,
        }
        let length = now.since(began);
        let full = self.calls() >= needs.calls
            && length >= ADAPTIVE_WINDOW_MIN
            && length >= self.twice_a_call();
        full.then(|| self.close(now))
    }

    const fn calls(&self) -> u32 {
        self.passed.saturating_add(self.dropped)
    }

    /// In a window of this length, half of the calls began under the present limit.
    fn twice_a_call(&self) -> Duration {
        (self.took / self.passed.max(1)).saturating_mul(2)
    }

    fn close(&mut self, now: Moment) -> Summary {
        let next = Self { began: Some(now), ..Self::default() };
        let done = std::mem::replace(self, next);
        let passed = f64::from(done.passed.max(1));
        let seconds = done.took.as_secs_f64() / passed;
        let variance = (done.squares / passed - seconds.powi(2)).max(0.0);
        let mean = Mean { seconds, error: (variance / passed).sqrt() };
        Summary {
            took: (done.passed > 0).then_some(mean),
            in_flight: done.in_flight,
            dropped: f64::from(done.dropped) / f64::from(done.calls().max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Needs = Needs { calls: 10, lowered: Moment::ORIGIN };

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn call(took: u64, dropped: bool) -> Sample {
        Sample { took: Duration::from_millis(took), in_flight: took as u32, dropped }
    }

    #[test]
    fn a_window_needs_both_its_time_and_its_calls() {
        let mut window = Window::default();
        for millis in 1..=10 {
            assert_eq!(window.tell(at(millis), call(1, false), TEN), None);
        }
        let last = window.tell(at(101), call(12, false), TEN);
        let Some(Summary { took: Some(mean), in_flight: 12, dropped: 0.0 }) = last else {
            panic!("{last:?}");
        };
        // Ten times 1 ms and once 11 + 1: mean 2, variance 10, eleven calls.
        assert!((mean.seconds - 0.002).abs() < 1e-9, "{mean:?}");
        assert!((mean.error - 0.001 * (10.0_f64 / 11.0).sqrt()).abs() < 1e-9, "{mean:?}");
        for millis in 0..9 {
            assert_eq!(window.tell(at(1_000 + millis), call(4, true), TEN), None);
        }
        let last = window.tell(at(2_000), call(6, true), TEN);
        assert_eq!(last, Some(Summary { took: None, in_flight: 6, dropped: 1.0 }));
    }

    #[test]
    fn it_lasts_twice_as_long_as_its_calls() {
        let mut window = Window::default();
        for millis in 0..20 {
            assert_eq!(window.tell(at(1_000 + millis), call(400, false), TEN), None);
        }
        assert_eq!(window.tell(at(1_799), call(400, false), TEN), None);
        assert!(window.tell(at(1_800), call(400, false), TEN).is_some());
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let mut window = Window::default();
        window.tell(at(500), call(10, false), TEN);
        for _ in 0..20 {
            assert_eq!(window.tell(at(900), call(0, false), TEN), None, "no time");
            assert_eq!(
                window.tell(at(900), call(11, true), Needs { lowered: at(890), ..TEN }),
                None,
                "an older limit's"
            );
        }
        assert_eq!((window.calls(), window.in_flight), (1, 11));
        window.tell(at(900), call(10, true), Needs { lowered: at(890), ..TEN });
        assert_eq!(window.calls(), 2, "one that began as the limit was lowered is a newer one's");
    }

    #[test]
    fn policies_c35_a_clock_that_steps_back_begins_a_new_window() {
        let mut window = Window::default();
        for _ in 0..9 {
            window.tell(at(9_000), call(10, false), TEN);
        }
        assert_eq!(window.tell(at(5), call(1, false), TEN), None);
        assert_eq!((window.calls(), window.began), (0, Some(at(5))));
    }
}
