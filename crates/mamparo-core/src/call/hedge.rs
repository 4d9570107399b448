//! A second request before the first has failed, against a slow tail ("The Tail at Scale", Dean and
//! Barroso 2013).
//!
//! When an attempt takes longer than nearly all others do, another copy is sent, and the first
//! answer counts. It helps against one slow replica and hurts against a slow dependency, so a hedge
//! needs all of this: an operation that may run twice, a closed circuit, time for an answer, and a
//! token of the dependency's [`RetryBudget`]. A hedge that was denied ends nothing: the attempts that
//! run go on, and the last to end gives the call its outcome (C28). One that is not sent holds
//! nothing (C21).
//!
//! The copy that comes second is cancelled. That is a neutral outcome: it gives back what it held
//! and says nothing about the dependency's health. Tell [`Latency::record_cut_off`] of it if it ran
//! longer than the delay; who only recorded the winners would see a dependency that gets faster with
//! each hedge, and hedge ever more.

use std::fmt;
use std::time::Duration;

use crate::call::latency::{self, Latency};
use crate::call::mistake::Mistakes;
use crate::call::retry_budget::{RetryBudget, Withdrawal};
use crate::limits::{ATTEMPT_MIN_USABLE, HEDGE_DELAY_EVERY, HEDGE_QUANTILE_MIN, HEDGES_MAX};
use crate::outcome::Repeatable;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// How long an attempt runs alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HedgeAfter {
    /// Always so long.
    Fixed(Duration),
    /// As long as this share of all attempts takes.
    Quantile {
        /// Between 0 and 1: 0.95 hedges one attempt in twenty.
        quantile: f64,
        /// But no shorter than this, so that a fast dependency isn't asked twice over a hiccup of
        /// ours.
        least: Duration,
    },
}

/// When to hedge. Default: one more request after the 95th percentile, 10 ms at least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HedgeConfig {
    /// How long an attempt runs alone. Default the 95th percentile, 10 ms at least.
    pub after: HedgeAfter,
    /// Most requests beyond the first, the same delay apart. Default 1.
    pub extra: u32,
}

impl Default for HedgeConfig {
    fn default() -> Self {
        let after = HedgeAfter::Quantile { quantile: 0.95, least: Duration::from_millis(10) };
        Self { after, extra: 1 }
    }
}

impl HedgeAfter {
    /// The shortest that it can be.
    #[must_use]
    pub const fn least(self) -> Duration {
        match self {
            Self::Fixed(least) | Self::Quantile { quantile: _, least } => least,
        }
    }
}

impl HedgeConfig {
    /// How long after its attempt the last hedge begins, where that is fixed. Delays that follow the
    /// latency are as long as nearly all attempts take, which the timeout has room for: they count as
    /// zero.
    #[must_use]
    pub const fn longest_delay(&self) -> Duration {
        match self.after {
            HedgeAfter::Fixed(delay) => delay.saturating_mul(self.extra),
            HedgeAfter::Quantile { .. } => Duration::ZERO,
        }
    }

    /// What can't be meant.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        mistakes.range("hedge.max", self.extra, 1, HEDGES_MAX);
        match self.after {
            // No delay at all would double the load of every call.
            HedgeAfter::Fixed(delay) => mistakes.positive("hedge.after", delay),
            HedgeAfter::Quantile { quantile, least: _ } => {
                let sound = (HEDGE_QUANTILE_MIN..1.0).contains(&quantile);
                mistakes.unless(sound, "hedge.quantile", || {
                    format!("is {quantile}, must be at least {HEDGE_QUANTILE_MIN} and less than 1")
                });
            }
        }
    }
}

impl fmt::Display for HedgeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, extra } = self;
        match after {
            HedgeAfter::Fixed(delay) => write!(f, "{extra} more, one every {delay:?}"),
            HedgeAfter::Quantile { quantile, least } => {
                let percent = (quantile * 10_000.0).round() / 100.0;
                write!(f, "{extra} more, one when it takes longer than {percent} % do, ")?;
                write!(f, "{least:?} at least")
            }
        }
    }
}

/// Why no hedge was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoHedge {
    /// Running twice is not safe, or the body can be sent only once.
    NotRepeatable,
    /// A circuit that is open or tries whether it may close gets no extra load.
    CircuitNotClosed,
    /// As many as are allowed run already.
    ExtraSpent,
    /// A copy has been answered: not again, or not before some time has passed.
    ToldNotTo,
    /// What is left of the deadline is too little for an answer.
    DeadlineTooNear,
    /// The dependency has got its share of retries and hedges.
    BudgetSpent,
}

impl NoHedge {
    /// Every reason there is, for tables and counters.
    pub const ALL: [Self; 6] = [
        Self::NotRepeatable,
        Self::CircuitNotClosed,
        Self::ExtraSpent,
        Self::ToldNotTo,
        Self::DeadlineTooNear,
        Self::BudgetSpent,
    ];

    /// Its place in [`NoHedge::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::NotRepeatable => 0,
            Self::CircuitNotClosed => 1,
            Self::ExtraSpent => 2,
            Self::ToldNotTo => 3,
            Self::DeadlineTooNear => 4,
            Self::BudgetSpent => 5,
        }
    }

    /// The stable code in logs and metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::NotRepeatable => "not-repeatable",
            Self::CircuitNotClosed => "circuit-not-closed",
            Self::ExtraSpent => "extra-spent",
            Self::ToldNotTo => "told-not-to",
            Self::DeadlineTooNear => "deadline-too-near",
            Self::BudgetSpent => "budget-spent",
        }
    }
}

/// An attempt that has run for the delay: what [`Hedge::ask`] has to know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowAttempt {
    /// Hedges of it that were sent.
    pub sent: u32,
    /// What the caller vouches for.
    pub repeatable: Repeatable,
    /// Is the circuit closed (or is there none)?
    pub circuit_closed: bool,
    /// Has a copy of it been answered with a request not to come again, or not yet?
    pub told_not_to: bool,
    /// What remains of the deadline; `None` without one.
    pub left: Option<Duration>,
}

/// Whether a hedge is sent.
#[derive(Debug, PartialEq, Eq)]
pub enum HedgeDecision {
    /// Send it now.
    Send {
        /// What it costs, to be given back if it is not sent after all; `None` without a budget.
        paid: Option<Withdrawal>,
    },
    /// Not this one, nor a later one of the same attempt. What runs goes on.
    No(NoHedge),
}

/// The hedging of one dependency, shared by its calls.
#[derive(Debug)]
pub struct Hedge {
    config: HedgeConfig,
    /// Number of the period for which `delay` was computed, counted from one; 0 before.
    computed_in: AtomicU64,
    /// In nanoseconds; [`UNKNOWN`] when too little is known.
    delay: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl Hedge {
    /// Hedging that has seen nothing yet. Never more than [`HEDGES_MAX`] (3) requests beyond the
    /// first, whatever `config` says.
    #[must_use]
    pub fn new(config: HedgeConfig) -> Self {
        let config = HedgeConfig { extra: config.extra.min(HEDGES_MAX), ..config };
        Self { config, computed_in: AtomicU64::new(0), delay: AtomicU64::new(UNKNOWN) }
    }

    /// Its values.
    #[must_use]
    pub const fn config(&self) -> HedgeConfig {
        self.config
    }

    /// How long an attempt that starts at `now` runs alone, and then each hedge of it.
    ///
    /// `None` when it is not to be hedged: nothing could be sent, or the latency isn't known well
    /// enough ([`latency::samples_needed`]), or so many attempts are cut off that the quantile lies
    /// among them. A quantile is looked up once in [`HEDGE_DELAY_EVERY`] (1 s), by one thread; the
    /// others take the last one.
    pub fn delay(&self, now: Moment, latency: &Latency) -> Option<Duration> {
        if self.config.extra == 0 {
            return None;
        }
        match self.config.after {
            HedgeAfter::Fixed(delay) => Some(delay),
            HedgeAfter::Quantile { quantile, least } => {
                self.refresh(now, quantile, latency);
                let nanos = self.delay.load(Ordering::Relaxed);
                (nanos != UNKNOWN).then(|| Duration::from_nanos(nanos).max(least))
            }
        }
    }

    /// May one more be sent, now that the delay is over? Takes from the budget last.
    pub fn ask(&self, slow: &SlowAttempt, budget: Option<&RetryBudget>) -> HedgeDecision {
        if let Some(reason) = self.forbids(slow) {
            return HedgeDecision::No(reason);
        }
        match budget.map(RetryBudget::withdraw) {
            Some(None) => HedgeDecision::No(NoHedge::BudgetSpent),
            paid => HedgeDecision::Send { paid: paid.flatten() },
        }
    }

    fn forbids(&self, slow: &SlowAttempt) -> Option<NoHedge> {
        match slow.repeatable {
            Repeatable::Unsafe | Repeatable::OneShot => return Some(NoHedge::NotRepeatable),
            Repeatable::Idempotent | Repeatable::Keyed => {}
        }
        if !slow.circuit_closed {
            return Some(NoHedge::CircuitNotClosed);
        }
        if slow.sent >= self.config.extra {
            return Some(NoHedge::ExtraSpent);
        }
        if slow.told_not_to {
            return Some(NoHedge::ToldNotTo);
        }
        let too_late = slow.left.is_some_and(|left| left <= ATTEMPT_MIN_USABLE);
        too_late.then_some(NoHedge::DeadlineTooNear)
    }

    /// Looks the quantile up again, if nobody has in this period.
    fn refresh(&self, now: Moment, quantile: f64, latency: &Latency) {
        let period = latency::period_of(now, nanos_of(HEDGE_DELAY_EVERY));
        let known = self.computed_in.load(Ordering::Relaxed);
        // A clock that stepped back waits until it is where it was.
        if known >= period {
            return;
        }
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.computed_in.compare_exchange(known, period, success, failure).is_ok() {
            let nanos = latency.observed(now, quantile).sound().map_or(UNKNOWN, nanos_of);
            self.delay.store(nanos, Ordering::Relaxed);
        }
    }
}

fn nanos_of(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos()).unwrap_or(UNKNOWN)
}
