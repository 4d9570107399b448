//! The timeout that a dependency's own answers ask for.
//!
//! A limit that somebody made up is either so long that it protects nobody or so short that it cuts
//! off good answers. This one is a little over nearly all of the answers that came: a quantile plus a
//! margin, to the millisecond and not rounded to a pretty number, and no more than attempts and
//! budget leave room for.

use std::fmt;
use std::time::Duration;

use crate::call::arithmetic::{self, DoesNotFit};
use crate::call::latency::{Latency, Observed, samples_needed};
use crate::call::retry::Retry;
use crate::limits::ATTEMPT_MIN_USABLE;
use crate::time::Moment;

/// How a timeout is derived. Default: the 99th percentile plus 10 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adviser {
    /// Share of the attempts that must be answered within the timeout, between 0 and 1. Default
    /// 0.99.
    pub quantile: f64,
    /// What is added, as a share of the quantile. Default 0.1, three times what the quantile can be
    /// off by.
    pub margin: f64,
}

impl Default for Adviser {
    fn default() -> Self {
        Self { quantile: 0.99, margin: 0.1 }
    }
}

/// A proposed timeout. `Display` says why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// The timeout of one attempt, in whole milliseconds and more than [`ATTEMPT_MIN_USABLE`].
    pub timeout: Duration,
    /// What it was derived from.
    pub observed: Observed,
    /// What was added, as a share.
    pub margin: f64,
    /// Set when the budget left room for less than was wanted: the numbers.
    pub narrowed: Option<DoesNotFit>,
}

/// Why no timeout can be proposed. `Display` says what is missing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoAdvice {
    /// Too few attempts in the window for the quantile to mean anything.
    TooFewSamples {
        /// Attempts in the window.
        samples: u64,
        /// As many would do ([`samples_needed`]).
        needed: u64,
    },
    /// So many attempts were cut off that nobody knows what the rest would have taken: the present
    /// limit is too short, or the dependency is down.
    CutOff(Observed),
    /// No timeout at all makes the attempts fit the budget.
    NothingFits(DoesNotFit),
}

impl Adviser {
    /// A timeout for one attempt of calls that are made up to `retry.attempts` times and may take
    /// `budget` in all (`None` without one).
    ///
    /// # Errors
    /// [`NoAdvice`] where a proposal would be a guess.
    pub fn propose(
        &self,
        now: Moment,
        latency: &Latency,
        retry: &Retry,
        budget: Option<Duration>,
    ) -> Result<Advice, NoAdvice> {
        let observed = latency.observed(now, self.quantile);
        let (samples, needed) = (observed.samples(), samples_needed(self.quantile));
        if samples < needed {
            return Err(NoAdvice::TooFewSamples { samples, needed });
        }
        let Some(value) = observed.value else { return Err(NoAdvice::CutOff(observed)) };
        let wanted = with_margin(value, self.margin);
        let advice = Advice { timeout: wanted, observed, margin: self.margin, narrowed: None };
        let Some(budget) = budget else { return Ok(advice) };
        match arithmetic::fits(retry.attempts, wanted, &retry.backoff, budget) {
            Ok(_worst) => Ok(advice),
            Err(narrowed) => match narrowed.fitting_timeout() {
                Some(timeout) if timeout > ATTEMPT_MIN_USABLE => {
                    Ok(Advice { timeout, narrowed: Some(narrowed), ..advice })
                }
                Some(_) | None => Err(NoAdvice::NothingFits(narrowed)),
            },
        }
    }
}

/// The value and its margin in whole milliseconds, rounded up, and long enough to be of use.
fn with_margin(value: Duration, margin: f64) -> Duration {
    // NaN and negative margins count as none; what is too much saturates.
    let nanos = value.as_nanos() as f64 * (1.0 + margin.max(0.0));
    let wanted = whole_millis(Duration::from_nanos(nanos as u64));
    wanted.max(ATTEMPT_MIN_USABLE + Duration::from_millis(1))
}

/// Rounded up to whole milliseconds.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timeout, observed, margin, narrowed } = self;
        let value = whole_millis(observed.value.unwrap_or_default());
        write!(
            f,
            "{timeout:?}: {} % of {} attempts ",
            percent(observed.quantile),
            observed.samples()
        )?;
        write!(f, "were answered within {value:?}, plus {} %", percent(*margin))?;
        match narrowed {
            Some(narrowed) => write!(f, "; but {narrowed}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for NoAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewSamples { samples, needed } => {
                write!(f, "{samples} attempts in the window are too few, {needed} would do")
            }
            Self::CutOff(observed) => write!(
                f,
                "{} of {} attempts were cut off, so how long {} % take is unknown",
                observed.cut_off,
                observed.samples(),
                percent(observed.quantile)
            ),
            Self::NothingFits(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for NoAdvice {}

/// A share as people write it: 99, 99.9.
fn percent(share: f64) -> f64 {
    (share * 100_000.0).round() / 1_000.0
}
