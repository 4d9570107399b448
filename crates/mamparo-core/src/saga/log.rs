//! The numbered log of a saga: what has happened, in the order in which it was written down.
//!
//! State is never stored beside it. [`Machine`](super::machine::Machine) reads it from the first entry
//! on, and every process that reads the same entries comes to the same state.

use super::graph::StepId;
use crate::time::WallTime;

/// One run of a step: the step, and which of its items. Steps without items have the one item 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The step.
    pub step: StepId,
    /// The item.
    pub item: u32,
}

impl Run {
    /// Of a step without items.
    #[must_use]
    pub const fn of(step: StepId) -> Self {
        Self { step, item: 0 }
    }
}

/// Who acted from outside, and why. Both are never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// When it was written, by the database's clock.
    pub at: WallTime,
    /// What happened.
    pub fact: Fact,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The first entry. `due` is the time by which it must have gone forward.
    Started {
        /// Nothing is begun until somebody resumes it.
        paused: bool,
        /// The latest time for going forward.
        due: Option<WallTime>,
    },
    /// A choice took this arm.
    Chosen(StepId, u16),
    /// A step for each of several items has so many.
    Counted(StepId, u32),
    /// A step was not taken.
    Passed(StepId),
    /// A wait or a sleep, until then.
    Opened(StepId, WallTime),
    /// An intent: this attempt is made from now on, under this lease's epoch.
    Begun(Run, u32, i64),
    /// It has happened.
    Done(Run),
    /// This attempt failed; the next one is due then.
    FailedForNow(Run, Failure, WallTime),
    /// It failed, and no attempt follows.
    Failed(Run, Failure),
    /// Nobody is at this attempt any more, and its outcome is unknown.
    Lost(Run),
    /// The probe says that it has not happened.
    Absent(Run),
    /// An intent: this attempt at the undo, under this lease's epoch.
    UndoBegun(Run, u32, i64),
    /// It is taken back.
    Undone(Run),
    /// This attempt at the undo failed; the next one is due then.
    UndoFailed(Run, Failure, WallTime),
    /// The undo failed, and no attempt follows.
    UndoGivenUp(Run, Failure),
    /// A signal came, for the wait of this name, whether that has begun or not.
    Signalled(String),
    /// The latest time for going forward has passed.
    Overdue,
    /// A person cancels it.
    Cancelled(Order),
    /// A person has it rest.
    Paused(Order),
    /// A person has it go on.
    Resumed(Order),
    /// A person has a step, or its undo, tried again.
    Retried(Run, Order),
    /// A person says that a step counts as done.
    Skipped(Run, Order),
    /// A person says that a step is taken back.
    MarkedUndone(Run, Order),
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    /// What was said, for people.
    pub error: String,
    /// It may have happened all the same. Only a callee that says "no", or a request that was never
    /// sent, is proof that it did not.
    pub may_have_run: bool,
}

impl Failure {
    /// It certainly did not happen.
    #[must_use]
    pub fn refused(error: impl Into<String>) -> Self {
        Self { error: error.into(), may_have_run: false }
    }

    /// It may have happened.
    #[must_use]
    pub fn unclear(error: impl Into<String>) -> Self {
        Self { error: error.into(), may_have_run: true }
    }
}

impl Fact {
    /// Its word, as stored and shown.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Chosen(..) => "chosen",
            Self::Counted(..) => "counted",
            Self::Passed(_) => "passed",
            Self::Opened(..) => "opened",
            Self::Begun(..) => "begun",
            Self::Done(_) => "done",
            Self::FailedForNow(..) => "failed-for-now",
            Self::Failed(..) => "failed",
            Self::Lost(_) => "lost",
            Self::Absent(_) => "absent",
            Self::UndoBegun(..) => "undo-begun",
            Self::Undone(_) => "undone",
            Self::UndoFailed(..) => "undo-failed",
            Self::UndoGivenUp(..) => "undo-given-up",
            Self::Signalled(_) => "signalled",
            Self::Overdue => "overdue",
            Self::Cancelled(_) => "cancelled",
            Self::Paused(_) => "paused",
            Self::Resumed(_) => "resumed",
            Self::Retried(..) => "retried",
            Self::Skipped(..) => "skipped",
            Self::MarkedUndone(..) => "marked-undone",
        }
    }
}
