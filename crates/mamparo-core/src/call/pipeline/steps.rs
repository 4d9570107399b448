//! What the host of a call tells, what it is told to do, and how a call can end.

use std::fmt;
use std::time::Duration;

use crate::call::bulkhead::{Ticket, Woken};
use crate::call::hedge::NoHedge;
use crate::call::pipeline::{Move, Phase};
use crate::call::retry::GiveUp;
use crate::call::{adaptive, breaker, shed};
use crate::outcome::Failure;
use crate::time::Moment;

/// What the host tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The call begins.
    Start,
    /// The ticket of [`Step::Queue`] owns a slot.
    SlotGranted,
    /// The time of [`Step::Queue`] is over.
    QueueTimedOut,
    /// The circuit opened while the call was in the queue.
    CircuitOpened,
    /// The attempt gave a value.
    Succeeded {
        /// Which attempt, as in [`Step::Attempt`].
        number: u32,
    },
    /// The attempt failed.
    Failed {
        /// Which attempt.
        number: u32,
        /// In which way.
        failure: Failure,
    },
    /// The attempt was cut off at its limit.
    TimedOut {
        /// Which attempt.
        number: u32,
    },
    /// The attempt panicked.
    Panicked {
        /// Which attempt.
        number: u32,
    },
    /// The time at which another attempt may be sent beside those under way.
    HedgeDue,
    /// The time of [`Step::Wait`] is over.
    WaitOver,
    /// The caller has gone away.
    Cancelled,
}

/// What the host does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Make an attempt, beside those under way if there are any; tell how it ended.
    Attempt {
        /// The attempt's number, counted from one.
        number: u32,
        /// When it is to be cut off; `None` without any limit.
        until: Option<Moment>,
        /// When to tell [`Event::HedgeDue`] if no attempt has ended by then; it replaces an earlier
        /// such time.
        hedge_at: Option<Moment>,
    },
    /// Go on with the attempts that are under way. A time for [`Event::HedgeDue`] that is still to
    /// come stands.
    KeepOn,
    /// Wait, then tell [`Event::WaitOver`].
    Wait {
        /// The moment of the next attempt.
        until: Moment,
        /// The same as a duration.
        after: Duration,
    },
    /// Wait for a slot; tell [`Event::SlotGranted`] or [`Event::QueueTimedOut`], or, as soon as the
    /// circuit opens, [`Event::CircuitOpened`].
    Queue {
        /// The place in the bulkhead's queue.
        ticket: Ticket,
        /// Longest wait.
        until: Moment,
    },
    /// Hand back a refusal: no attempt was made.
    Reject {
        /// Which guard.
        reason: Refusal,
        /// When to come back, as far as the guard knows.
        retry_after: Option<Duration>,
    },
    /// Hand back the last failure.
    GiveUp {
        /// Why no attempt follows.
        reason: GiveUp,
        /// When the circuit lets calls through again, if it is open by now, whatever the reason.
        retry_after: Option<Duration>,
    },
    /// Hand back the value.
    Done,
    /// Nobody waits for an answer any more; everything taken has been given back.
    Released,
}

/// Which guard refused, before anything was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The caller's deadline has passed, or what is left is too little for an attempt.
    DeadlineExceeded,
    /// Too many calls in the period.
    RateLimited,
    /// All slots are taken and the queue, if any, is full.
    BulkheadFull,
    /// The circuit is open, or all probe places of the half-open circuit are taken.
    CircuitOpen,
    /// Shed to keep more important work alive.
    Shed,
    /// Held back, because the dependency turns most of what it gets away.
    Throttled,
}

impl Refusal {
    /// Every reason there is, for tables and counters.
    pub const ALL: [Self; 6] = [
        Self::DeadlineExceeded,
        Self::RateLimited,
        Self::BulkheadFull,
        Self::CircuitOpen,
        Self::Shed,
        Self::Throttled,
    ];

    /// Its place in [`Refusal::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::DeadlineExceeded => 0,
            Self::RateLimited => 1,
            Self::BulkheadFull => 2,
            Self::CircuitOpen => 3,
            Self::Shed => 4,
            Self::Throttled => 5,
        }
    }

    /// The stable code in logs, metrics, problem documents and docs.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::RateLimited => "rate-limited",
            Self::BulkheadFull => "bulkhead-full",
            Self::CircuitOpen => "circuit-open",
            Self::Shed => "shed",
            Self::Throttled => "throttled",
        }
    }
}

/// An event came that does not fit the state: the host has a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misfit {
    /// The state.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:?} does not fit a call that is {:?}", self.event, self.phase)
    }
}

impl std::error::Error for Misfit {}

/// The answer to an event.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Told {
    /// What to do next.
    pub step: Step,
    /// How it was decided.
    pub moved: Move,
    /// The breaker's change, for hooks and gauges.
    pub change: Option<breaker::Change>,
    /// Other levels of criticality are shed than before.
    pub shed: Option<shed::Change>,
    /// The limit of calls in flight moved.
    pub limit: Option<adaptive::Change>,
    /// The waiters that own a slot now, or have lost their place: wake them.
    pub wake: Woken,
    /// Why no other attempt was sent beside those that take long, where one was due.
    pub no_hedge: Option<NoHedge>,
    /// Attempts that end here without an outcome of their own.
    pub cut_off: u32,
}

impl Told {
    pub(super) fn new(step: Step, moved: Move) -> Self {
        Self {
            step,
            moved,
            change: None,
            shed: None,
            limit: None,
            no_hedge: None,
            wake: Woken::default(),
            cut_off: 0,
        }
    }

    /// Does anybody but the caller have to hear of it?
    #[must_use]
    pub const fn concerns_others(&self) -> bool {
        self.change.is_some()
            || self.shed.is_some()
            || self.limit.is_some()
            || !self.wake.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_place() {
        for (place, refusal) in Refusal::ALL.iter().enumerate() {
            assert_eq!(refusal.index(), place, "{}", refusal.slug());
        }
    }
}
