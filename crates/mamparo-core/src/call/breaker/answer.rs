//! What a breaker is told, and what it answers.

use std::time::Duration;

use super::table::{Event, Phase};
use crate::outcome::Health;
use crate::time::Moment;

/// A state change, for hooks, logs and gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub from: Phase,
    /// The state after; the same where an order only confirms it.
    pub to: Phase,
    /// What made it change.
    pub on: Event,
    /// When.
    pub at: Moment,
}

/// A person's order, which stands above what the breaker would do by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Override {
    /// Refuse every call.
    Open,
    /// Let every call pass, and count: what would open the circuit shows, and does not.
    Closed,
    /// Let every call pass, and count nothing.
    Disabled,
}

/// The right to one call. Comes back through [`super::Breaker::tell`], exactly once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an admission that is never told keeps its probe place"]
pub struct Admission(u64);

impl Admission {
    /// One word, because every call carries it: the generation above, below whether it is a probe.
    #[inline]
    pub(super) const fn new(generation: u64, probe: bool) -> Self {
        Self((generation << 1) | probe as u64)
    }

    #[inline]
    pub(super) const fn generation(&self) -> u64 {
        self.0 >> 1
    }

    /// Is this a trial call of a half-open circuit?
    #[must_use]
    #[inline]
    pub const fn is_probe(&self) -> bool {
        self.0 & 1 != 0
    }
}

/// What became of an admitted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// What it says about the dependency.
    pub health: Health,
    /// How long it took, where slow calls count ([`super::BreakerConfig::slow_rate`]); else not looked at.
    pub took: Option<Duration>,
    /// When the dependency asked to be called again. A circuit that this verdict opens stays open at
    /// least that long.
    pub retry_after: Option<Duration>,
}

impl From<Health> for Verdict {
    fn from(health: Health) -> Self {
        Self { health, took: None, retry_after: None }
    }
}

/// The breaker's answer to a caller that wants to call.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The admission, or after what time to ask again.
    pub admission: Result<Admission, Duration>,
    /// The change that asking brought about.
    pub change: Option<Change>,
}

/// The breaker's answer to a caller that stands in line for other guards first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// After what time to ask again; `None` when the caller may go on.
    pub refused: Option<Duration>,
    /// The change that the look brought about.
    pub change: Option<Change>,
}

/// What became of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// How it was taken.
    pub event: Event,
    /// The change that it made.
    pub change: Option<Change>,
}
