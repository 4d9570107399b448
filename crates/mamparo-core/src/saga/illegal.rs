//! Why an entry can't stand in a saga's log.

use std::fmt;

use super::graph::StepId;
use super::log::{Order, Run};
use super::next::Status;
use super::step::{Event, Place};

/// What is wrong with an entry, or with what somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Illegal {
    /// The first entry must say that the saga has started.
    NotStarted,
    /// Only the first entry may say so.
    StartedTwice,
    /// The graph has no such step, or the step has no such item.
    NoSuchRun(Run),
    /// It is not known yet how many items the step has.
    NotCounted(StepId),
    /// More items than a step may have.
    TooMany(u32),
    /// The choice has no such arm.
    NoSuchArm(u16),
    /// No step of the saga waits for this signal.
    NoSuchSignal(String),
    /// Steps of this kind have no such entry.
    WrongKind(StepId),
    /// The step is somewhere where this does not happen.
    Row(Place, Event),
    /// A step answers that was never begun.
    NeverBegun(Run),
    /// What the step waits for has not happened, or something else is still under way.
    NotItsTurn,
    /// Attempts are counted without gaps.
    Attempt {
        /// The number that was given.
        asked: u32,
        /// The number of the next attempt.
        next: u32,
    },
    /// The step has nothing that could be taken back.
    NothingToUndo(Run),
    /// The saga goes back; nothing new is begun.
    GoesBack,
    /// The saga goes forward; nothing is undone.
    GoesForward,
    /// The pivot is behind it: there is no way back.
    PastPivot,
    /// The saga is over.
    Ended(Status),
    /// It rests already.
    Paused,
    /// It does not rest.
    NotPaused,
    /// Whoever acts has a name and a reason.
    Nameless,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("the log does not begin with the saga's start"),
            Self::StartedTwice => f.write_str("the saga has started already"),
            Self::NoSuchRun(run) => write!(f, "there is no step {} item {}", run.step.0, run.item),
            Self::NotCounted(step) => {
                write!(f, "it is not known yet how many items step {} has", step.0)
            }
            Self::TooMany(count) => write!(f, "{count} items; a step has at most 10000"),
            Self::NoSuchArm(arm) => write!(f, "the choice has no arm {arm}"),
            Self::NoSuchSignal(name) => write!(f, "no step waits for a signal {name:?}"),
            Self::WrongKind(step) => write!(f, "step {} is of another kind", step.0),
            Self::Row(place, event) => write!(f, "no {event:?} for a step that is {place:?}"),
            Self::NeverBegun(run) => {
                write!(f, "step {} item {} was never begun", run.step.0, run.item)
            }
            Self::NotItsTurn => f.write_str("it is not its turn: something before it is not over"),
            Self::Attempt { asked, next } => write!(f, "attempt {asked}; the next one is {next}"),
            Self::NothingToUndo(run) => {
                write!(f, "step {} item {} has nothing to undo", run.step.0, run.item)
            }
            Self::GoesBack => f.write_str("the saga goes back; nothing new is begun"),
            Self::GoesForward => f.write_str("the saga goes forward; cancel it to have it undone"),
            Self::PastPivot => {
                f.write_str("the saga is past its pivot; retry or skip the step that failed")
            }
            Self::Ended(status) => write!(f, "the saga is over: {}", status.word()),
            Self::Paused => f.write_str("the saga rests already"),
            Self::NotPaused => f.write_str("the saga does not rest"),
            Self::Nameless => f.write_str("give an actor and a reason"),
        }
    }
}

impl std::error::Error for Illegal {}

impl Order {
    pub(super) fn check(&self) -> Result<(), Illegal> {
        let named = !self.actor.trim().is_empty() && !self.reason.trim().is_empty();
        if named { Ok(()) } else { Err(Illegal::Nameless) }
    }
}
