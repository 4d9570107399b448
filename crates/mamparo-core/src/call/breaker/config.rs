//! A breaker's limits, their checks, and how they read.

use std::fmt;
use std::time::Duration;

use crate::call::mistake::Mistakes;
use crate::call::window::{Counts, Standing};
use crate::limits;

/// When a closed circuit opens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trip {
    /// That many failures in a row; a success starts from zero.
    Consecutive {
        /// At least 1.
        failures: u32,
    },
    /// That many failures within the period, however many successes lie between.
    Failures {
        /// At least 1. Default 5.
        failures: u32,
        /// More than zero. Default 10 s.
        window: Duration,
    },
    /// A share of the calls in the window, once it holds enough of them. One of the two shares is
    /// needed; with both, the first that is reached opens.
    Rate {
        /// Share of failures, `0.0 < rate ≤ 1.0`; reaching it opens.
        failure_rate: Option<f64>,
        /// Share of slow calls; reaching it opens.
        slow_rate: Option<SlowRate>,
        /// Fewer calls than this prove nothing; at least 1. Holds for both shares.
        min_calls: u32,
        /// What the window holds.
        over: Over,
    },
}

/// How many calls may be slow, and what slow is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowRate {
    /// A call that took longer than this is slow, whether it failed or not.
    pub slower_than: Duration,
    /// `0.0 < rate ≤ 1.0`; reaching it opens.
    pub rate: f64,
}

/// What a rate is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The last so many calls, 1 to 65 536.
    Calls(u32),
    /// The last period, in steps of a tenth.
    Time(Duration),
}

/// A breaker's limits. Default: 5 failures in 10 s open it for 30 s, then one probe decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerConfig {
    /// When it opens.
    pub trip: Trip,
    /// How long it stays open the first time. Default 30 s. A dependency that says `Retry-After`
    /// with the failure that opens the circuit is left alone at least that long (300 s at most).
    pub open_for: Duration,
    /// By what the open time is multiplied each time that the trial after it fails; a finite number
    /// of at least 1. A trial that passes starts it anew. Default 1: the open time is constant.
    pub open_growth: f64,
    /// The open time grows to this at most, and at least to `open_for`. Default 300 s.
    pub open_max: Duration,
    /// Up to this share of the open time is left out, drawn anew each time, so that the instances of
    /// a service do not try in step; `0.0..=0.5`. Default 0: the open time is exact.
    pub open_jitter: f64,
    /// Trial calls of the half-open circuit: the most at once, and what decides. Default 1.
    pub probes: u32,
    /// Share of the probes that must succeed, `0.0 < share ≤ 1.0`. The circuit closes as soon as it
    /// can't be missed any more, and opens as soon as it can't be reached. Default 1: all.
    pub probe_success: f64,
    /// How long a half-open circuit may wait for its probes, from the first that is under way or has
    /// ended with a verdict. After that, the ones that have ended decide; where none has, probes that
    /// still hang open it again. Default 30 s.
    pub half_open_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            trip: Trip::Failures { failures: 5, window: Duration::from_secs(10) },
            open_for: Duration::from_secs(30),
            open_growth: 1.0,
            open_max: Duration::from_secs(300),
            open_jitter: 0.0,
            probes: 1,
            probe_success: 1.0,
            half_open_max: Duration::from_secs(30),
        }
    }
}

impl BreakerConfig {
    /// The rule for slow calls, if there is one.
    #[must_use]
    pub const fn slow_rate(&self) -> Option<SlowRate> {
        match self.trip {
            Trip::Rate { slow_rate, .. } => slow_rate,
            Trip::Consecutive { .. } | Trip::Failures { .. } => None,
        }
    }

    pub(in crate::call) fn check(&self, mistakes: &mut Mistakes) {
        mistakes.positive("breaker.open_for", self.open_for);
        mistakes.unless(
            self.open_growth.is_finite() && self.open_growth >= 1.0,
            "breaker.open_growth",
            || format!("is {}, must be a number of at least 1", self.open_growth),
        );
        mistakes.unless(
            self.open_growth <= 1.0 || self.open_max >= self.open_for,
            "breaker.open_max",
            || format!("is {:?}, less than open_for, {:?}", self.open_max, self.open_for),
        );
        mistakes.unless((0.0..=0.5).contains(&self.open_jitter), "breaker.open_jitter", || {
            format!("is {}, must be from 0 to 0.5", self.open_jitter)
        });
        mistakes.positive("breaker.half_open_max", self.half_open_max);
        mistakes.range("breaker.probes", self.probes, 1, limits::PROBES_MAX);
        check_share("breaker.probe_success", self.probe_success, mistakes);
        self.trip.check(mistakes);
    }
}

impl Trip {
    fn check(&self, mistakes: &mut Mistakes) {
        match *self {
            Self::Consecutive { failures } => {
                mistakes.range("breaker.failures", failures, 1, u32::MAX);
            }
            Self::Failures { failures, window } => {
                mistakes.range("breaker.failures", failures, 1, limits::WINDOW_CALLS_MAX);
                mistakes.positive("breaker.window", window);
            }
            Self::Rate { failure_rate, slow_rate, min_calls, over } => {
                mistakes.unless(
                    failure_rate.is_some() || slow_rate.is_some(),
                    "breaker.failure_rate",
                    || "is missing, and so is slow_rate: nothing would open it".into(),
                );
                if let Some(rate) = failure_rate {
                    check_share("breaker.failure_rate", rate, mistakes);
                }
                if let Some(SlowRate { slower_than, rate }) = slow_rate {
                    mistakes.positive("breaker.slower_than", slower_than);
                    check_share("breaker.slow_rate", rate, mistakes);
                }
                match over {
                    Over::Calls(calls) => {
                        mistakes.range("breaker.window", calls, 1, limits::WINDOW_CALLS_MAX);
                        // A minimum that the window can't hold is never reached.
                        mistakes.range("breaker.min_calls", min_calls, 1, calls.max(1));
                    }
                    Over::Time(period) => {
                        mistakes.positive("breaker.window", period);
                        mistakes.range("breaker.min_calls", min_calls, 1, u32::MAX);
                    }
                }
            }
        }
    }

    /// How `counts` stand to a rate's thresholds; always below for the rules that count failures.
    #[inline]
    pub(super) fn standing(&self, counts: Counts) -> Standing {
        // No share of nothing is reached: a success alone never opens a circuit, not even at 0 %.
        if counts.failed == 0 && counts.slow == 0 {
            Standing::Below
        } else {
            self.standing_of_bad(counts)
        }
    }

    fn standing_of_bad(&self, counts: Counts) -> Standing {
        let Self::Rate { failure_rate, slow_rate, min_calls, .. } = *self else {
            return Standing::Below;
        };
        let failing = counts.failed > 0
            && failure_rate.is_some_and(|threshold| counts.failure_rate() >= threshold);
        let slow = counts.slow > 0 && slow_rate.is_some_and(|rule| counts.slow_rate() >= rule.rate);
        if !failing && !slow {
            Standing::Below
        } else if counts.calls < min_calls {
            Standing::TooFew
        } else {
            Standing::Reached
        }
    }
}

fn check_share(key: &'static str, share: f64, mistakes: &mut Mistakes) {
    mistakes.unless(share > 0.0 && share <= 1.0, key, || {
        format!("is {share}, must be more than 0 and at most 1")
    });
}

/// When it opens, as in `5 failures in 10s`.
impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Consecutive { failures } => write!(f, "{failures} failures in a row"),
            Self::Failures { failures, window } => write!(f, "{failures} failures in {window:?}"),
            Self::Rate { failure_rate, slow_rate, min_calls, over } => {
                if let Some(rate) = failure_rate {
                    write!(f, "{} %", percent(rate))?;
                }
                if let Some(SlowRate { slower_than, rate }) = slow_rate {
                    let or = if failure_rate.is_some() { " failed or " } else { "" };
                    write!(f, "{or}{} % slower than {slower_than:?}", percent(rate))?;
                }
                write!(f, " of at least {min_calls} calls in ")?;
                match over {
                    Over::Calls(calls) => write!(f, "the last {calls}"),
                    Over::Time(period) => write!(f, "{period:?}"),
                }
            }
        }
    }
}

/// Two decimals at most: 0.07 × 100 is 7.000000000000001 in binary.
pub(super) fn percent(share: f64) -> f64 {
    (share * 10_000.0).round() / 100.0
}

impl fmt::Display for BreakerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, open for {:?}", self.trip, self.open_for)?;
        if self.open_growth > 1.0 {
            write!(f, " × {} up to {:?}", self.open_growth, self.open_max)?;
        }
        if self.open_jitter > 0.0 {
            write!(f, " less up to {} %", percent(self.open_jitter))?;
        }
        write!(f, ", {} probe(s)", self.probes)?;
        if self.probe_success < 1.0 {
            write!(f, " of which {} % succeed", percent(self.probe_success))?;
        }
        write!(f, " within {:?}", self.half_open_max)
    }
}
